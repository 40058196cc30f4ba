"""The logs of the last run: a new one puts them aside, and those before them go."""

import shutil
from pathlib import Path

FOLDER = "previous"


def put_aside(log_dir: Path) -> None:
    """Nothing where no run has left any. Raises OSError."""
    left = [path for path in log_dir.glob("*.log*") if path.is_file()]
    if not left:
        return
    previous = log_dir / FOLDER
    shutil.rmtree(previous, ignore_errors=True)
    previous.mkdir(mode=0o700)
    for path in left:
        path.replace(previous / path.name)
