"""The folder of the embedded model."""

from pathlib import Path

from controller.api.state.user_folders import user_folder


def cache_dir() -> Path:
    """A relative $XDG_CACHE_HOME does not count."""
    return user_folder("XDG_CACHE_HOME", ".cache") / "llumctl" / "models"
