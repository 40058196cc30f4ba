"""The folder of a cluster's short-lived files: Ray's session with its Unix sockets, and metrics.

Every run of a cluster gets a folder with an unpredictable name: two clusters of one name do not
share it, and nobody can have put a symbolic link in its place. A marker in the folder holds the
run's nonce. Only a folder with the right marker is ever emptied, so a run state that names another
folder, by accident or by malice, does no harm.
"""

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
"""Ray's folder in ours, which is private; Ray opens its own to everybody (mode 0777)."""
# A Unix socket's path may have 107 bytes, and Ray's own part of it takes 66.
MAX_RAY_BYTES = 40
# mkdtemp appends so many bytes to the prefix.
NUM_RANDOM_BYTES = 8
MAX_MARKER_BYTES = 256


def make(nonce: str) -> Path:
    """Makes a folder of mode 0700 below the user's temporary folder, or below /tmp if that folder's
    path is too long for Ray's sockets, or has letters that Ray cannot send: only ASCII passes."""
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


def remove(folder: str, nonce: str) -> str:
    """Removes the folder of the run with this nonce. Returns why it was left; empty if it is gone.

    Everything is deleted through the descriptor of the folder whose marker was checked: a folder
    that is put in its place meanwhile is not touched.
    """
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
    """Deletes the marker last, so that an interrupted removal can be repeated."""
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
