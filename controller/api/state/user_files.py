"""The user's own files: the folders of the XDG base directory specification, and files of mode 0600
that are replaced.

A small module of the standard library only: every command imports it. `plain_file` reads files
that a user names.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from controller.api.errors import LlumctlError


def user_folder(variable: str, below_home: str, environ: Mapping[str, str] | None = None) -> Path:
    """What an XDG variable names, or a folder in the user's home. A relative value does not count.

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


def replace(target: Path, text: str, mode: int = 0o600) -> None:
    """A reader sees the whole old text or the whole new one. Raises OSError; then the old file
    stays, and no other file is left."""
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
