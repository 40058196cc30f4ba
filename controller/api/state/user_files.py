"""Files of the user. Files that the user names are opened without waiting and read up to a limit.
llumctl's own files, in the folders of the XDG base directory specification, are replaced whole.

Opening a pipe that nobody writes to waits for ever, and a device may have no end. So both are
refused with an OSError, as is a file that is larger than its reader wants. Every command imports
this module, so it imports the standard library only.
"""

import errno
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from controller.api.errors import LlumctlError

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def opened(path: Path, *, takes_pipe: bool = False) -> BinaryIO:
    """Opens a regular file. `takes_pipe`: a pipe without a name is accepted too. A shell makes such
    a pipe from `<(COMMAND)`; it has a writer and can be read once. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if takes_pipe and kind == stat.S_IFIFO and _has_no_name(descriptor):
            os.set_blocking(descriptor, True)
        elif kind != stat.S_IFREG:
            what = _KINDS.get(kind, "something else")
            raise OSError(errno.EINVAL, f"it is {what}, not a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read(path: Path, max_bytes: int) -> bytes:
    """Reads the file. Raises OSError."""
    return read_with_status(path, max_bytes)[0]


def read_with_status(
    path: Path, max_bytes: int, *, takes_pipe: bool = False
) -> tuple[bytes, os.stat_result]:
    """The content, and the status of the very file that was read. Raises OSError."""
    with opened(path, takes_pipe=takes_pipe) as file:
        content = file.read(max_bytes + 1)
        found = os.fstat(file.fileno())
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes")
    return content, found


def is_changed_by_others(found: os.stat_result) -> bool:
    """Whether users other than root and the user of this process may change the file, and so the
    code that it names."""
    return found.st_uid not in (os.geteuid(), 0) or bool(found.st_mode & 0o022)


def _has_no_name(pipe: int) -> bool:
    return str(Path(f"/proc/self/fd/{pipe}").readlink()).startswith("pipe:[")


def user_folder(variable: str, below_home: str, environ: Mapping[str, str] | None = None) -> Path:
    """The folder that an XDG variable names, or a folder in the user's home. A relative value is
    ignored.

    Raises LlumctlError for a user without a home, as containers may have.
    """
    named = Path((os.environ if environ is None else environ).get(variable) or "")
    return named if named.is_absolute() else home() / below_home


def home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise LlumctlError(
            f"there is no home folder: HOME is not set, and uid {os.getuid()} has no entry in the"
            " password file",
            "HOME=<a folder of yours> llumctl ...",
        ) from error


def new_private(path: Path) -> BinaryIO:
    """A new file of mode 0600 for appending, in the place of an old file. Raises OSError."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def replace(target: Path, text: str, mode: int = 0o600) -> None:
    """Replaces a file in one step: a reader sees the whole old text or the whole new one. Raises
    OSError; then the old file stays, and no other file is left."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
