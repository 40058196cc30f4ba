"""`llumctl doctor --engine`: starts a private cluster of two instances as they are configured, has
requests moved between them (`engine_trial.py`), and takes the cluster down, however the trial ends.
Few settings differ from the configuration, above all the prefix cache, which is off: an instance
would find in it the blocks of a request that comes back, so that nothing is copied.

The cluster is started and stopped as by `up` and `down`, so the processes, the engines, and the
links between them are those that users get. It has a name, ports and a state folder of its own, and
its own Ray unless the configuration names one. If this process is killed, the cluster stays, and
`llumctl down --cluster doctor-PID` ends it."""

import json
import os
import platform
import random
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median

from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.interrupts import no_interrupts, stops_interrupt
from controller.api.settings import PYTHON
from controller.api.settings.settings import EMBEDDED_MODELS, ControlTable, EndpointTable, Settings
from controller.api.state import run_state
from controller.api.text.hints import own_version
from controller.api.text.quantities import sized
from controller.api.wire.status import CheckResult, ClusterStatus, DoctorReport, EngineTrial
from controller.core.settings import SchedulerSettings
from controller.main import down, emulation, up
from controller.main.checks import environment, preflight
from controller.main.doctor import doctor, probe
from controller.main.doctor.engine_trial import EngineTrial as Trial
from controller.main.doctor.engine_trial import TrialError
from controller.main.doctor.trial_judge import MIGRATED, Evidence, trial_of
from controller.main.machine.capacity import cpu_name

Report = Callable[[str], None]

NUM_INSTANCES = 2
MAX_NUM_SEQS = 16
"""How many requests an instance of the trial runs at a time at most, so that few requests fill its
batch and one can be seen to wait."""
MIN_NUM_SEQS = 8
"""Enough if all streams of the trial are on one instance: three of a kind and four others."""
SHARED = {"gpu_memory_utilization": 0.4}
SHARED_KV = {"kv_cache_memory_bytes": 4 << 30, "max_model_len": preflight.AUTO_FIT}
"""Engine arguments with which two engines fit on one GPU: while both start, neither can find out
how much of the memory is its own. The user's arguments win."""
PORTS = range(20_000, 32_000)
"""Below the ports that the kernel gives to connections, of which Ray opens many while it starts."""
CONTROL_TIMEOUT_S = 30.0


def run(settings: Settings, report: Report) -> DoctorReport:
    """Checks the machine, and then tries the engine if no check failed. Raises LlumctlError if the
    cluster cannot be started, or breaks off."""
    own = trial_settings(settings)
    checked = own
    if shares_gpus(own):  # each of them is checked as if it had the GPUs for itself
        cluster = own.cluster.model_copy(update={"instances": 1})
        checked = own.model_copy(update={"cluster": cluster})
    with stops_interrupt():
        checks = tuple(doctor.run(checked))
        if any(check.result is CheckResult.FAIL for check in checks):
            return DoctorReport(checks=checks)
        folder = run_state.state_path(own.cluster.name)
        known = versions(own)
        if changed := changes(settings, own):
            known["trial sets"] = changed
        try:
            with _cluster(own, report) as client:
                found = _tried(own, client, report, known)
        except KeyboardInterrupt:  # any other error names the logs
            if folder.exists():
                report(f"the logs stay in {folder / 'logs'}")
            raise
        if found.result is CheckResult.FAIL:
            report(f"the logs stay in {folder / 'logs'}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return DoctorReport(checks=checks, engine=found)


def trial_settings(settings: Settings) -> Settings:
    """The settings of the trial's cluster: its engines are configured like the user's except for
    the prefix cache and the size of a batch, and nothing moves by itself. Dispatch does not hold
    requests, so that one can wait at an instance."""
    endpoint_port, control_port = _free_ports(2)
    engine = settings.engine
    if not emulation.is_emulated(settings):
        wanted = preflight.whole_number(engine.get("max_num_seqs")) or MAX_NUM_SEQS
        engine = engine | {
            "enable_prefix_caching": False,
            "max_num_seqs": max(MIN_NUM_SEQS, min(MAX_NUM_SEQS, wanted)),
        }
    if shares_gpus(settings):
        is_embedded = settings.cluster.model in EMBEDDED_MODELS
        engine = SHARED | ({} if is_embedded else SHARED_KV) | engine
    return Settings(
        cluster=settings.cluster.model_copy(
            update={
                "name": f"doctor-{os.getpid()}",
                "instances": NUM_INSTANCES,
                "frontends": 1,
            }
        ),
        endpoint=EndpointTable(port=endpoint_port, generation_config="vllm"),
        control=ControlTable(port=control_port),
        scheduler=SchedulerSettings(policy="llumnix"),
        migration=replace(settings.migration, enabled=False),
        engine=engine,
        emulated=settings.emulated.model_copy(update={"prefix_caching": False}),
    )


def changes(settings: Settings, own: Settings) -> str:
    """The arguments of the engines that the trial has set, and what was configured in their place;
    empty if there are none."""
    if emulation.is_emulated(settings):
        before, after = settings.emulated.model_dump(), own.emulated.model_dump()
    else:
        before, after = settings.engine, own.engine
    told = []
    for name, value in sorted(after.items()):
        was = before.get(name)
        if was != value:
            instead = "" if was is None else f" instead of {json.dumps(was)}"
            told.append(f"{name} {json.dumps(value)}{instead}")
    return ", ".join(told)


def shares_gpus(settings: Settings) -> bool:
    """Whether this machine has GPUs for one instance, but not for two. Then both use the same ones:
    their moves are as exact as others, but slower."""
    if emulation.is_emulated(settings) or settings.cluster.ray_address is not None:
        return False
    try:
        per_instance = preflight.gpus_per_instance(settings)
    except LlumctlError:  # a check reports it
        return False
    return per_instance <= preflight.num_gpus() < NUM_INSTANCES * per_instance


def _free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        port = random.choice(PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return list(found)


@contextmanager
def _cluster(settings: Settings, report: Report) -> Iterator[ControlClient]:
    """Runs the cluster for the time of the block. No other process has a cluster of this name, so
    it is taken down even if its start was interrupted. Its logs stay, if there are any."""
    name = settings.cluster.name
    try:
        up.run(
            settings,
            detach=True,
            wait=True,
            timeout_s=None,
            progress=_words_only(report),
            share_gpus=shares_gpus(settings),
        )
        state = run_state.load(name)
        if state is None:
            raise LlumctlError(f"cluster {name} was stopped by another command")
        with ControlClient(state.control_url, state.control_token, CONTROL_TIMEOUT_S) as client:
            yield client
    finally:
        with no_interrupts():
            down.run(name, drain=False, timeout_s=None, progress=lambda _: None)
            folder = run_state.state_path(name)
            if not any((folder / "logs").glob("*")):  # nothing was started
                shutil.rmtree(folder, ignore_errors=True)


def _words_only(report: Report) -> Callable[[ClusterStatus | str], None]:
    def progress(news: ClusterStatus | str) -> None:
        if isinstance(news, str):
            report(news)

    return progress


def _tried(
    settings: Settings, client: ControlClient, report: Report, known: dict[str, str]
) -> EngineTrial:
    """Raises LlumctlError, which names the logs, if the trial cannot go on. `known`: what is known
    of the engines before they run."""
    logs = run_state.state_path(settings.cluster.name) / "logs"
    url = f"http://{settings.endpoint.host}:{settings.endpoint.port}"
    try:
        trial = Trial(url, client, report)
        with closing(trial):
            evidence = trial.run()
            slowdown = trial.slowdown() if evidence[0].num_migrated else None
        status = client.status()
    except (TrialError, LlumctlError) as error:
        raise LlumctlError(
            f"the trial of the engine broke off: {error}", f"less {logs}/i-0.log"
        ) from error
    died = [each.id for each in status.instances if each.num_restarts]
    problem = f"{', '.join(died)} died during the trial" if died else ""
    facts = known | _facts(settings, status, evidence)
    return trial_of(evidence, slowdown, facts, problem)


def versions(settings: Settings) -> dict[str, str]:
    """Those of the environment in which the instances run, and what differs from them in the
    frontends. Raises WrongSettingError if that environment cannot be asked."""
    here = probe.versions()
    own = {
        "llumctl": own_version(),
        "vllm": " ".join(preflight.check_vllm_version()),
        **{name: here[name] for name in ("torch", "ray", "python")},
    }
    python = settings.engine.get(PYTHON)
    if python is None:
        return own
    there = environment.described(Path(python), settings)
    of_instances = {
        "llumctl": there.llumctl,
        "vllm": f"{there.distribution} {there.vllm}".strip() or "none",
        "torch": there.torch or "unknown",
        "ray": there.ray,
        "python": f"{there.python}, {python}",
    }
    names = [name for name in ("llumctl", "vllm", "torch") if own[name] != of_instances[name]]
    if names:
        of_instances["frontends"] = ", ".join(f"{name} {own[name]}" for name in names)
    return of_instances


def _facts(
    settings: Settings, status: ClusterStatus, evidence: Sequence[Evidence]
) -> dict[str, str]:
    """What a reader of the report must know of the engines and the machine."""
    facts = {
        "device": _device(settings),
        "model": settings.cluster.model,
        "engine": settings.cluster.engine,
    }
    if not emulation.is_emulated(settings):
        kinds = ("tensor", "pipeline")
        sizes = (settings.engine.get(f"{kind}_parallel_size", 1) for kind in kinds)
        facts["parallel"] = ", ".join(map("{} {}".format, kinds, sizes))
        facts["arguments"] = json.dumps(settings.engine, sort_keys=True)
    facts["kv blocks"] = ", ".join(
        f"{each.id} {each.num_total_blocks} of {each.block_size} tokens"
        for each in status.instances
    )
    prints = {each.fingerprint: each.id for each in status.instances}
    for text, instance_id in prints.items():
        name = "fingerprint" if len(prints) == 1 else f"of {instance_id}"
        facts[name] = text or "none, as the engine moves no requests"
    copies = [
        (move.num_bytes, move.copy_s, move.num_blocks)
        for each in evidence
        for move in each.moves
        if move.outcome == MIGRATED and move.copy_s and move.num_blocks
    ]
    if copies:
        rate = median(num_bytes / copy_s for num_bytes, copy_s, _ in copies)
        largest = max(num_bytes for num_bytes, _, _ in copies)
        facts["copies"] = f"{sized(rate)}/s in the median, {sized(largest)} at most"
    return facts


def _device(settings: Settings) -> str:
    gpus = preflight.visible_gpus()
    if gpus and not emulation.is_emulated(settings):
        shared = ", which both instances share" if shares_gpus(settings) else ""
        return f"{', '.join(gpus)}{shared}"
    return f"{os.cpu_count()} cores, {cpu_name()}, {platform.system()} {platform.machine()}"
