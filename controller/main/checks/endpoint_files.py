"""Files that the endpoint's options name."""

import os
from pathlib import Path

from controller.api.errors import WrongSettingError
from controller.api.state import user_files

TABLE = "endpoint"


def read(key: str, name: str, max_bytes: int) -> tuple[str, os.stat_result]:
    """The file's text and its status. Raises WrongSettingError."""
    try:
        raw, found = user_files.read_with_status(Path(name), max_bytes)
        return raw.decode("utf-8"), found
    except UnicodeDecodeError:
        raise wrong(key, f"{name} is not text", f"file {name}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise wrong(key, f"cannot be read: {name}: {reason}", f"ls -l {name}") from error


def wrong(key: str, what: str, hint: str = "llumctl up --help") -> WrongSettingError:
    return WrongSettingError((TABLE, key), what, hint)
