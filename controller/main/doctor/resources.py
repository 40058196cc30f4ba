"""The checks of `doctor` about what a cluster consumes: memory, shared memory, ports."""

import errno
import shutil
import socket
from urllib.parse import urlsplit

from controller.api.errors import LlumctlError
from controller.api.settings.settings import Settings
from controller.api.state.run_state import RunState
from controller.api.wire.status import Check, CheckResult
from controller.main import emulation
from controller.main.checks import preflight
from controller.main.checks.preflight import InstanceMemory, Planned
from controller.main.machine.capacity import (
    FRONTEND_BYTES,
    available_bytes,
    default_frontends,
    num_cores,
)

GIB = 1 << 30

RAY_BYTES = GIB
"""Ray's head processes and the controller."""
HUB_TIMEOUT_S = 1.0
SHM_LEAST_BYTES = GIB // 2


def memory_check(settings: Settings, *, num_gpus: int, already_running: bool) -> Check:
    """By an estimate, so it only warns unless not even one instance fits."""
    name = "memory"
    available = available_bytes()
    if already_running:
        return row(name, CheckResult.OK, f"{gib(available)} left beside the running cluster")
    try:
        planned = preflight.planned(settings, num_gpus)
    except LlumctlError as error:
        return row(name, CheckResult.WARN, f"not judged: {error.message}", error.hint)
    instances, memory = planned.num_instances, instance_memory(settings, planned)
    each = memory.num_bytes
    wanted = settings.cluster.frontends
    frontends = wanted or default_frontends(num_cores(), available - instances * each)
    rest = frontends * FRONTEND_BYTES + RAY_BYTES
    needed = instances * each + rest
    what = f"{gib(available)} available, about {gib(needed)} needed by {instances} instances"
    if memory.unknown:
        what = f"{what}, without their weights: {memory.unknown}"
    if available < each + rest:
        return row(name, CheckResult.FAIL, what, "free memory, or choose a smaller model")
    if available < needed:
        fits = max(1, (available - rest) // each)
        return row(name, CheckResult.WARN, what, f"llumctl up -n {fits}")
    if memory.unknown:
        cure = f"compare the size of its weights with {gib(available - needed)}"
        return row(name, CheckResult.WARN, what, cure)
    return row(name, CheckResult.OK, what)


def instance_memory(settings: Settings, planned: Planned) -> InstanceMemory:
    """Of an instance that `up` would start: as `up` judges it, but nothing is made or fetched for
    it, and the hub has less time to answer."""
    if emulation.is_emulated(settings):
        return InstanceMemory(emulation.INSTANCE_BYTES)
    folder = preflight.local_folder(settings.cluster.model)
    args = planned.engine_args | {"model": str(folder or settings.cluster.model)}
    return preflight.instance_memory(args, num_gpus=planned.num_gpus, hub_timeout_s=HUB_TIMEOUT_S)


def shm_check(path: str = "/dev/shm") -> Check:
    name = "shared memory"
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return row(name, CheckResult.WARN, f"{path}: {error.strerror}", "mount a tmpfs there")
    what = f"{path}: {gib(usage.free)} free of {gib(usage.total)}"
    if usage.free < SHM_LEAST_BYTES:
        return row(
            name,
            CheckResult.WARN,
            f"{what}: Ray's object store falls back to slow files",
            "docker run --shm-size=2g      or      delete what fills it",
        )
    return row(name, CheckResult.OK, what)


def port_checks(settings: Settings, running: RunState | None) -> list[Check]:
    """Ports must be free, or held by our own running cluster."""
    endpoint, control = settings.endpoint, settings.control
    wanted = (
        ("endpoint port", endpoint.host, endpoint.port, "--port"),
        ("control port", control.host, control.port, "--control-port"),
    )
    ours = set()
    if running is not None:
        ours = {urlsplit(running.endpoint_url).port, urlsplit(running.control_url).port}
    return [
        row(name, CheckResult.OK, f"{port} is held by our running cluster")
        if port in ours
        else port_check(name, host, port, flag)
        for name, host, port, flag in wanted
    ]


def port_check(name: str, host: str, port: int, flag: str) -> Check:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return row(
            name, CheckResult.FAIL, f"{host}:{port}: {error.strerror}", _cure(error, port, flag)
        )
    return row(name, CheckResult.OK, f"{host}:{port} is free")


def _cure(error: OSError, port: int, flag: str) -> str:
    if error.errno == errno.EADDRINUSE:
        other = port % 65535 + 1
        return f"llumctl up {flag} {other}      or find the holder: ss -ltnp 'sport = :{port}'"
    if error.errno == errno.EACCES:
        return f"llumctl up {flag} {port + 8000 if port <= 57535 else 8000}"
    return "set the host to an address of this machine"


def gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"


def row(name: str, result: CheckResult, what: str, cure: str = "") -> Check:
    return Check(name=name, result=result, what=what, cure=cure)
