"""Ray's own logs, kept from a start that failed: they lie in the temporary folder, which goes."""

import contextlib
import os
import stat
from pathlib import Path

from controller.main.machine.temp_folder import RAY

FOLDER = "ray"
MAX_FILES = 60
"""Of the last ones; Ray writes two for each process, and a few of its own."""
MAX_FILE_BYTES = 256 << 10
"""The end of each: a file that is longer begins with an ellipsis."""


def keep(temp_dir: str, log_dir: Path) -> None:
    """Copies them to a folder among the cluster's logs, in the place of those that were kept
    before. Whatever cannot be read or written is left out."""
    target = log_dir / FOLDER
    with contextlib.suppress(OSError):
        files = _regular_files(Path(temp_dir) / RAY / "session_latest" / "logs")
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
