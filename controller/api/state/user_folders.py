"""The user's folders of the XDG base directory specification."""

import os
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
