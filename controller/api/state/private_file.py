"""Files of mode 0600 that are replaced: a reader sees the whole old text or the whole new one."""

import os
import secrets
from pathlib import Path


def replace(target: Path, text: str, mode: int = 0o600) -> None:
    """Raises OSError; then the old file stays, and no other file is left."""
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
