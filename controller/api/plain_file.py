"""Files that a user names, opened without waiting and read without surprise.

To open a pipe that nobody writes to waits for ever, and a device may have no end: both are refused
in the words of an OSError, as is a file that is larger than its reader wants.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def opened(path: Path) -> BinaryIO:
    """Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if kind != stat.S_IFREG:
            what = _KINDS.get(kind, "something else")
            raise OSError(errno.EINVAL, f"it is {what}, not a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read(path: Path, max_bytes: int) -> bytes:
    """Raises OSError."""
    return read_with_status(path, max_bytes)[0]


def read_with_status(path: Path, max_bytes: int) -> tuple[bytes, os.stat_result]:
    """With whose file was read, and who else may. Raises OSError."""
    with opened(path) as file:
        content = file.read(max_bytes + 1)
        found = os.fstat(file.fileno())
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes")
    return content, found
