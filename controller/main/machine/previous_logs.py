"""A new run puts the logs of the last run aside, and deletes those of the run before."""

import shutil
from pathlib import Path

FOLDER = "previous"


def put_aside(log_dir: Path) -> None:
    """Does nothing if no run has left logs. Raises OSError."""
    left = [path for path in log_dir.glob("*.log*") if path.is_file()]
    if not left:
        return
    previous = log_dir / FOLDER
    shutil.rmtree(previous, ignore_errors=True)
    previous.mkdir(mode=0o700)
    for path in left:
        path.replace(previous / path.name)
