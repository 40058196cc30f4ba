"""The checks of `doctor` about what a cluster consumes: memory, shared memory, ports."""

import errno
import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

from controller.api.settings.settings import EMBEDDED_MODEL, Settings
from controller.api.state.run_state import RunState
from controller.api.wire.doctor import Check, CheckResult
from controller.main.machine.memory import available_bytes
from controller.main.start import emulation
from controller.main.start.frontends import FRONTEND_BYTES, default_frontends, num_cores

GIB = 1 << 30

INSTANCE_BYTES = GIB
"""An engine of the embedded model in a process of its own: 0.8-0.9 GiB resident measured."""
RAY_BYTES = GIB
"""Ray's head processes and the controller."""
DEFAULT_KV_BYTES = GIB // 4
CPU_INSTANCES = 2
SHM_LEAST_BYTES = GIB // 2


def memory_check(settings: Settings, *, num_gpus: int, already_running: bool) -> Check:
    """By an estimate, so it only warns unless not even one instance fits."""
    name = "memory"
    available = available_bytes()
    if already_running:
        return _check(name, CheckResult.OK, f"{_gib(available)} left beside the running cluster")
    instances = num_instances(settings, num_gpus)
    each = instance_bytes(settings)
    wanted = settings.cluster.frontends
    frontends = wanted or default_frontends(num_cores(), available - instances * each)
    rest = frontends * FRONTEND_BYTES + RAY_BYTES
    needed = instances * each + rest
    what = f"{_gib(available)} available, about {_gib(needed)} needed by {instances} instances"
    if available < each + rest:
        return _check(name, CheckResult.FAIL, what, "free memory, or choose a smaller model")
    if available < needed:
        fits = max(1, (available - rest) // each)
        return _check(name, CheckResult.WARN, what, f"llumctl up -n {fits}")
    return _check(name, CheckResult.OK, what)


def num_instances(settings: Settings, num_gpus: int) -> int:
    if settings.cluster.instances is not None:
        return settings.cluster.instances
    if emulation.is_emulated(settings):
        return emulation.DEFAULT_INSTANCES
    each = settings.engine.get("tensor_parallel_size", 1)
    return (
        max(1, num_gpus // each)
        if num_gpus and isinstance(each, int) and each > 0
        else CPU_INSTANCES
    )


def instance_bytes(settings: Settings) -> int:
    """Memory for the process, the KV cache, and the weights if they are in a local folder."""
    if emulation.is_emulated(settings):
        return emulation.INSTANCE_BYTES
    cache = settings.engine.get("kv_cache_memory_bytes")
    kv_bytes = cache if isinstance(cache, int) else DEFAULT_KV_BYTES
    return INSTANCE_BYTES + kv_bytes + _weights_bytes(settings.cluster.model)


def _weights_bytes(model: str) -> int:
    folder = Path(model)
    if model == EMBEDDED_MODEL or not folder.is_dir():
        return 0
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def shm_check(path: str = "/dev/shm") -> Check:
    name = "shared memory"
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return _check(name, CheckResult.WARN, f"{path}: {error.strerror}", "mount a tmpfs there")
    what = f"{path}: {_gib(usage.free)} free of {_gib(usage.total)}"
    if usage.free < SHM_LEAST_BYTES:
        return _check(
            name,
            CheckResult.WARN,
            f"{what}: Ray's object store falls back to slow files",
            "docker run --shm-size=2g      or      delete what fills it",
        )
    return _check(name, CheckResult.OK, what)


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
        _check(name, CheckResult.OK, f"{port} is held by our running cluster")
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
        return _check(
            name, CheckResult.FAIL, f"{host}:{port}: {error.strerror}", _cure(error, port, flag)
        )
    return _check(name, CheckResult.OK, f"{host}:{port} is free")


def _cure(error: OSError, port: int, flag: str) -> str:
    if error.errno == errno.EADDRINUSE:
        other = port % 65535 + 1
        return f"llumctl up {flag} {other}      or find the holder: ss -ltnp 'sport = :{port}'"
    if error.errno == errno.EACCES:
        return f"llumctl up {flag} {port + 8000 if port <= 57535 else 8000}"
    return "set the host to an address of this machine"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"


def _check(name: str, result: CheckResult, what: str, cure: str = "") -> Check:
    return Check(name=name, result=result, what=what, cure=cure)
