"""What every process of a cluster takes: memory, descriptors, threads, CPU time.

The processes are those that carry the cluster's mark in their environment, whoever started them.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from controller.api.wire.status import FrontendStatus, InstanceStatus
from tools.cluster import Cluster, marked_processes

# A part of the command line, and the role that it tells.
KNOWN_COMMANDS = {
    "RayMember": "controller",
    "raylet/raylet": "raylet",
    "gcs_server": "gcs_server",
    "log_monitor": "ray log monitor",
    "dashboard/agent": "ray agent",
    "dashboard": "ray dashboard",
    "runtime_env": "ray agent",
    "monitor.py": "ray monitor",
    "controller.main.roles": "head",
    " up ": "up",
}


class ProcessKey(NamedTuple):
    role: str
    pid: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """`uss_bytes`: what would be free if the process ended; 0 where it was not asked for."""

    rss_bytes: int
    uss_bytes: int
    num_fds: int
    num_threads: int
    cpu_s: float


def members(cluster: Cluster) -> dict[int, str]:
    """pid -> id, of those that the controller knows."""
    with cluster.control() as control:
        status = control.status()
    known: list[InstanceStatus | FrontendStatus] = [*status.instances, *status.frontends]
    return {each.pid: each.id for each in known if each.pid}


def sample(
    nonce: str, known: Mapping[int, str], with_uss: bool = False
) -> dict[ProcessKey, Footprint]:
    """`known`: pid -> role of members."""
    found = {}
    for process in marked_processes(nonce):
        with suppress(psutil.Error, OSError), process.oneshot():
            role = role_of(process, known)
            memory, times = process.memory_info(), process.cpu_times()
            uss_bytes = process.memory_full_info().uss if with_uss else 0
            found[ProcessKey(role, process.pid)] = Footprint(
                memory.rss,
                uss_bytes,
                process.num_fds(),
                process.num_threads(),
                times.user + times.system,
            )
    return found


def role_of(process: psutil.Process, known: Mapping[int, str]) -> str:
    if process.pid in known:
        return known[process.pid]
    command = " ".join(process.cmdline())
    for part, role in KNOWN_COMMANDS.items():
        if part in command:
            return role
    for parent in process.parents():
        if parent.pid in known:
            return f"child of {known[parent.pid]}"
    return f"other: {process.name()}"


def peak(samples: Iterable[Mapping[ProcessKey, Footprint]]) -> dict[ProcessKey, Footprint]:
    """The most of everything, each by itself."""
    found: dict[ProcessKey, Footprint] = {}
    for each in samples:
        for key, now in each.items():
            before = found.get(key, now)
            found[key] = Footprint(
                max(before.rss_bytes, now.rss_bytes),
                max(before.uss_bytes, now.uss_bytes),
                max(before.num_fds, now.num_fds),
                max(before.num_threads, now.num_threads),
                max(before.cpu_s, now.cpu_s),
            )
    return found


def busy_cores(
    before: Mapping[ProcessKey, Footprint], after: Mapping[ProcessKey, Footprint], for_s: float
) -> dict[ProcessKey, float]:
    """CPU time per second between two samples."""
    return {key: (after[key].cpu_s - before[key].cpu_s) / for_s for key in before if key in after}
