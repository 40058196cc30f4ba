"""How much memory is left to this process and what it starts."""

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
"""Version 2, then 1: folder, limit, use, and the part of the use that gives way."""


def available_bytes() -> int:
    """What this process's group may still take, not only what the machine has."""
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
