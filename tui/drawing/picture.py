"""Pictures of the screen as files: named by cluster and time, and never written over another."""

import os
import re
from datetime import datetime, tzinfo
from itertools import count
from pathlib import Path


def save(svg: str, folder: Path, cluster: str, time_s: float, zone: tzinfo | None) -> Path:
    """The new file, which only its owner may read, as it names requests. Raises OSError."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", cluster)[:60] or "cluster"
    stem = f"llumctl-{name}-{datetime.fromtimestamp(time_s, zone):%Y%m%d-%H%M%S}"
    for number in count(1):
        path = folder / f"{stem}{f'-{number}' if number > 1 else ''}.svg"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(svg)
        return path
    raise AssertionError("numbers never end")
