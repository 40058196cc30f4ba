"""The folders of a run: its temporary folder, and the logs that outlive the run.

The temporary folder has the short-lived files of a cluster: Ray's session with its Unix sockets,
and metrics. Every run of a cluster gets a folder with an unpredictable name. So two clusters of the
same name do not share a folder, and nobody can have put a symbolic link in its place. A marker in
the folder contains the run's nonce. Only a folder with the right marker is ever emptied, so a run
state that names another folder, by accident or by malice, does no harm.

A new run puts the logs of the last run aside, and deletes the logs of the run before that. If a
start failed, Ray's own logs are copied before their temporary folder is removed."""

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from controller.api.errors import LlumctlError

PREFIX = "llumctl-"
MARKER = "llumctl-cluster"
RAY = "ray"
"""The name of Ray's folder within our folder. Our folder is private, and Ray gives its own the mode
0777."""
# The longest path of Ray's folder. A Unix socket's path may have 107 bytes, and Ray's own part
# takes 66.
MAX_RAY_BYTES = 40
# mkdtemp appends this many bytes to the prefix.
NUM_RANDOM_BYTES = 8
MAX_MARKER_BYTES = 256
PREVIOUS = "previous"
RAY_LOGS = "ray"
"""`PREVIOUS` and `RAY_LOGS` are folders among the cluster's logs."""
MAX_FILES = 60
"""At most this many files are copied, the newest ones. Ray writes two files for each process, and a
few of its own."""
MAX_FILE_BYTES = 256 << 10
"""If a file is longer, only its end is copied, and the copy begins with an ellipsis."""


def make_temp(nonce: str) -> Path:
    """Makes a folder of mode 0700 below the user's temporary folder. If the path of the user's
    folder is too long for Ray's sockets, or has characters that are not ASCII, which Ray cannot
    send, the folder is made below /tmp."""
    base = tempfile.gettempdir()
    name_bytes = len(f"/{PREFIX}") + NUM_RANDOM_BYTES + len(f"/{RAY}")
    if len(os.fsencode(base)) + name_bytes > MAX_RAY_BYTES or not base.isascii():
        base = "/tmp"
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        marker = os.open(folder / MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(marker, "w") as file:
            file.write(nonce)
    except OSError as error:
        raise LlumctlError(
            f"cannot make a temporary folder in {base}: {error.strerror}",
            "TMPDIR=<a folder of yours> llumctl up",
        ) from error
    return folder


def remove_temp(folder: str, nonce: str) -> str:
    """Removes the folder of the run with this nonce. Returns why the folder was left; empty if it
    is gone.

    Everything is deleted through the descriptor of the folder whose marker was checked, so that
    another folder that is put in its place meanwhile is not touched."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(folder, flags)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    try:
        if problem := _not_ours(descriptor, nonce):
            return problem
        _empty(descriptor)
    finally:
        os.close(descriptor)
    try:
        Path(folder).rmdir()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _not_ours(descriptor: int, nonce: str) -> str:
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        return f"it belongs to uid {found.st_uid}"
    if found.st_mode & 0o077:
        return f"others may enter it (mode {stat.S_IMODE(found.st_mode):04o})"
    if not nonce or _marked(descriptor) != nonce.encode():
        return "it has no mark of this cluster"
    return ""


def _marked(folder: int) -> bytes | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        descriptor = os.open(MARKER, flags, dir_fd=folder)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return os.read(descriptor, MAX_MARKER_BYTES)
        finally:
            os.close(descriptor)
    return None


def _empty(folder: int) -> None:
    """Deletes the content of the folder. The marker comes last, so that an interrupted removal can
    be repeated."""
    with os.scandir(folder) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in names:
        if is_folder:
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
        elif name != MARKER:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
    with contextlib.suppress(OSError):
        if os.listdir(folder) == [MARKER]:
            os.unlink(MARKER, dir_fd=folder)


def put_aside(log_dir: Path) -> None:
    """Moves the logs of the last run aside, if there are any. Raises OSError."""
    left = [path for path in log_dir.glob("*.log*") if path.is_file()]
    if not left:
        return
    previous = log_dir / PREVIOUS
    shutil.rmtree(previous, ignore_errors=True)
    previous.mkdir(mode=0o700)
    for path in left:
        path.replace(previous / path.name)


def session_logs(temp_dir: str) -> Path:
    """The folder of Ray's own logs. It exists as long as the cluster's temporary folder."""
    return Path(temp_dir) / RAY / "session_latest" / "logs"


def copy_ray_logs(temp_dir: str, log_dir: Path) -> None:
    """Copies Ray's logs to a folder among the cluster's logs, and replaces earlier copies there.
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
