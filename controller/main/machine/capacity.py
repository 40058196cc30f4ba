"""What this machine has room for: the memory that this process and its children may still take, the
cores and how busy they are, and the number of frontends that fits if no setting gives it."""

import os
import platform
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
"""The places of the figures for cgroups of version 2, then of version 1: the folder, the file with
the limit, the file with the use, and the row of `memory.stat` with the part of the use that can be
reclaimed."""

CPU_INFO = Path("/proc/cpuinfo")

GIB = 1 << 30
FRONTEND_BYTES = 1_100_000_000
"""The memory of a frontend: it takes 0.7 GB after its start, and 1.2 GB were seen after an
overload."""
DEFAULT_FRONTENDS = 2
TWO_FROM_CORES = 4
"""From this number of cores on there are two frontends. A frontend's start takes 9 s of a core, and
under load it keeps a core busy, as an engine does."""
BUSY = 2.0
"""From this load on, the machine counts as busy: the number of processes that want to run, for each
core. A start alone causes a load of about one."""


def gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"


def available_bytes() -> int:
    """The memory that is available on the machine, or to this process's cgroup if that is less."""
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


def default_frontends(num_cores: int, spare_bytes: int) -> int:
    """The number of frontends. Two are better if there is room: when a frontend dies, it serves
    again after 10 s, and the other one serves meanwhile. `spare_bytes`: the memory that the
    instances leave."""
    room = num_cores >= TWO_FROM_CORES and spare_bytes >= DEFAULT_FRONTENDS * FRONTEND_BYTES
    return DEFAULT_FRONTENDS if room else 1


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def load() -> str:
    """How busy the machine is, in words, if that explains a slow start; otherwise empty."""
    running, cores = os.getloadavg()[0], num_cores()
    return f"a load of {running:.0f} on {cores} cores" if running > BUSY * cores else ""


def cpu_name() -> str:
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return " ".join(value.split())
    return platform.machine()
