"""Reads files of secrets, which nobody but their owner may read."""

import os
import stat
from pathlib import Path

from controller.api.errors import UsageError
from controller.api.state import user_files

MAX_BYTES = 1 << 20


def read(path: Path, where: str) -> str:
    """Raises UsageError if the file cannot be read, is open to other users, or is empty. The
    message begins with `where`: the place that named the file."""
    try:
        with user_files.opened(path) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(MAX_BYTES).decode().strip()
    except (OSError, ValueError) as error:
        is_binary = isinstance(error, UnicodeDecodeError)
        reason = "not text" if is_binary else getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"{where}: cannot read {path}: {reason}",
            f"(umask 077; openssl rand -hex 32 > {path})",
        ) from error
    if mode & 0o077:
        raise UsageError(
            f"{where}: {path} is open to other users (mode {mode:04o})", f"chmod 600 {path}"
        )
    if not text:
        raise UsageError(f"{where}: {path} holds no key", f"openssl rand -hex 32 > {path}")
    return text
