"""How much memory is left to this process and its children."""

from pathlib import Path

import psutil

CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
"""Version 2, then 1: the folder, and its files of the limit, of the use, and of the part of the
use that can be reclaimed."""


def available_bytes() -> int:
    """The machine's available memory, or what this process's cgroup may still take, if less."""
    available = int(psutil.virtual_memory().available)
    for folder, limit, use, reclaimable in CGROUPS:
        left = _cgroup_left(Path(folder), limit, use, reclaimable)
        if left is not None:
            return max(0, min(available, left))
    return available


def _cgroup_left(folder: Path, limit: str, use: str, reclaimable: str) -> int | None:
    try:
        most = int((folder / limit).read_text())
        used = int((folder / use).read_text())
        rows = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return most - used + int(dict(rows).get(reclaimable, 0))
    except (OSError, ValueError):
        return None
