"""The checks of `doctor` on the nodes of the Ray that `cluster.ray_address` names."""

import subprocess
import sys

from pydantic import ValidationError

from controller.adapters.embedded_model import folder_of
from controller.api.errors import LlumctlError
from controller.api.settings.settings import EMBEDDED_MODEL, Settings
from controller.api.state import run_state
from controller.api.wire.status import Check
from controller.main import emulation
from controller.main.checks import preflight
from controller.main.checks.preflight import Planned
from controller.main.doctor.nodes import gather, probe
from controller.main.doctor.nodes.checks import Wanted, node_checks
from controller.main.doctor.nodes.facts import Questions, RayFacts, Versions
from controller.main.doctor.resources import instance_memory
from controller.main.machine.ray_environment import own_environment

COMMAND = (sys.executable, "-P", "-m", "controller.main.doctor.nodes.gather")
TIMEOUT_S = 40.0 + 2 * gather.NODE_TIMEOUT_S
"""Ray itself gives up joining after 30 s or so."""


def ask(settings: Settings) -> list[Check]:
    """Takes some 5 s, and as long as `TIMEOUT_S` where nodes are silent. Leaves nothing behind."""
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
    model, emulated = settings.cluster.model, emulation.is_emulated(settings)
    log_dir = str(run_state.state_path(settings.cluster.name) / "logs")
    if emulated:  # frontends read the model, and they run on this machine
        return Questions(log_dir=log_dir)
    if model == EMBEDDED_MODEL:
        return Questions(model_folder=str(folder_of(preflight.cache_dir())), log_dir=log_dir)
    if (path := preflight.local_folder(model)) is not None:
        return Questions(model_folder=str(path.resolve()), log_dir=log_dir)
    return Questions(hub_model=model, log_dir=log_dir)


def _wanted(settings: Settings, address: str) -> Wanted:
    gpus = preflight.num_gpus()
    try:
        planned = preflight.planned(settings, gpus)
    except LlumctlError:  # another row says what is wrong; the nodes are judged all the same
        planned = Planned(
            gpus, min(gpus, 1), settings.cluster.instances or preflight.DEFAULT_CPU_INSTANCES, {}
        )
    return Wanted(
        address=address,
        host=settings.cluster.host,
        num_instances=planned.num_instances,
        instance_bytes=instance_memory(settings, planned).num_bytes,
        num_gpus_per_instance=planned.num_gpus_per_instance,
        ours=Versions(**probe.versions()),
        needs_vllm=not emulation.is_emulated(settings),
        model=settings.cluster.model,
    )
