"""The folders of logs that outlive a run.

A new run puts the logs of the last run aside, and deletes those of the run before. Ray's own logs
of a start that failed are copied before their temporary folder is removed.
"""

import contextlib
import os
import shutil
import stat
from pathlib import Path

from controller.main.machine.temp_folder import RAY

PREVIOUS = "previous"
RAY_LOGS = "ray"
"""Both are folders among the cluster's logs."""
MAX_FILES = 60
"""The newest files are copied; Ray writes two for each process, and a few of its own."""
MAX_FILE_BYTES = 256 << 10
"""The end of each file is copied; the copy of a longer file begins with an ellipsis."""


def put_aside(log_dir: Path) -> None:
    """Does nothing if no run has left logs. Raises OSError."""
    left = [path for path in log_dir.glob("*.log*") if path.is_file()]
    if not left:
        return
    previous = log_dir / PREVIOUS
    shutil.rmtree(previous, ignore_errors=True)
    previous.mkdir(mode=0o700)
    for path in left:
        path.replace(previous / path.name)


def session_logs(temp_dir: str) -> Path:
    """Ray's own folder of logs, while the cluster's temporary folder exists."""
    return Path(temp_dir) / RAY / "session_latest" / "logs"


def copy_ray_logs(temp_dir: str, log_dir: Path) -> None:
    """Copies the files to a folder among the cluster's logs, in the place of those copied before.
    Files that cannot be read or written are left out."""
    target = log_dir / RAY_LOGS
    with contextlib.suppress(OSError):
        files = _regular_files(session_logs(temp_dir))
        if not files:
            return
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in target.iterdir():
            old.unlink()
        for path in files:
            with contextlib.suppress(OSError):
                _copy_end(path, target / path.name)


def _regular_files(folder: Path) -> list[Path]:
    found = [(path, path.lstat()) for path in folder.iterdir()]
    files = [(s.st_mtime, path) for path, s in found if stat.S_ISREG(s.st_mode) and s.st_size]
    return [path for _, path in sorted(files, reverse=True)[:MAX_FILES]]


def _copy_end(source: Path, target: Path) -> None:
    with source.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MAX_FILE_BYTES))
        end = file.read(MAX_FILE_BYTES)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write((b"...\n" if size > MAX_FILE_BYTES else b"") + end)
