"""The folder of the embedded model."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """A relative $XDG_CACHE_HOME does not count."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (home if home.is_absolute() else Path.home() / ".cache") / "llumctl" / "models"
