"""Starts a cluster: makes all checks and the plan, starts the head process, and waits until the
cluster serves. Meanwhile it says what it waits for, and if the start fails it says why.

Ray is not imported here. The head process starts Ray and the controller, and from then on this
process is a client of the control API like any other."""

import math
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from controller.adapters.files.state_files import SPEC_FILE
from controller.adapters.ray.ray_starts import failure_of
from controller.adapters.zmq.zmq_mailbox import new_secret_key
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError, RefusedError, TimedOutError, UnreachableError
from controller.api.interrupts import no_interrupts, stops_interrupt
from controller.api.settings.settings import EMBEDDED_MODEL, Settings
from controller.api.state import run_state, user_files
from controller.api.state.audit import DOWN, last_stop_words
from controller.api.state.run_state import RunState
from controller.api.wire.status import (
    ClusterState,
    ClusterStatus,
    FrontendStatus,
    InstanceState,
    InstanceStatus,
)
from controller.core.fleet.incarnations import MAX_FAILED_STARTS
from controller.main import emulation
from controller.main.checks import preflight
from controller.main.checks.adapters import planned_adapters
from controller.main.checks.endpoint import check_endpoint, check_traces
from controller.main.checks.engine_args import check_engine_args, explain_cause
from controller.main.checks.environment import check_settings
from controller.main.checks.preflight import check_vllm_version
from controller.main.down import audit, note, present_grace_s, session_of, tear_down
from controller.main.machine import capacity, run_folders
from controller.main.machine.capacity import available_bytes, default_frontends, num_cores
from controller.main.machine.processes import processes_of, same_process
from controller.main.machine.ray_environment import (
    TOKEN_CURE,
    head_environment,
    make_token,
    ray_authentication,
)
from controller.main.machine.service_manager import ServiceManager
from controller.main.plan import FILE as PLAN_FILE
from controller.main.plan import NOT_JOINED_FILE, ClusterPlan, state_of
from controller.runtime.messages.members import IMPORTING, LAUNCHING

Progress = Callable[[ClusterStatus | str], None]
POLL_S = 0.25
STAY_POLL_S = 1.0
HEAD_COMMAND = (sys.executable, "-P", "-m", "controller.main.roles")
MAX_KEY_FILE_BYTES = 1 << 20
LOOPBACKS = ("127.0.0.1", "::1")
FIRST_WORD_S = 5.0
NEXT_WORD_FACTOR = 1.5
"""The next message comes when the time waited so far has grown by this factor."""
BEFORE_ARGS = (LAUNCHING, IMPORTING)
"""The stages of a member's start in which vLLM does not have its arguments yet."""
TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)
LONG_START_S = 1200


def run(
    settings: Settings,
    *,
    detach: bool,
    wait: bool,
    timeout_s: float | None,
    progress: Progress,
    config_file: str = "",
    share_gpus: bool = False,
) -> ClusterStatus | None:
    """Starts a cluster. Without `detach` it stays until the cluster stops. With `detach` it returns
    when vLLM has accepted the arguments or, with `wait`, when all members serve. If it is
    interrupted or fails, it leaves nothing behind. `share_gpus`: every instance sees all GPUs.

    Without `detach`, a service manager that waits for it is told when the cluster serves."""
    service = ServiceManager()
    timeout_s = timeout_s or settings.cluster.start_timeout_s
    deadline_s = time.monotonic() + timeout_s
    with stops_interrupt():
        with run_state.lock(settings.cluster.name):
            _refuse_running(settings.cluster.name, progress)
            plan = make_plan(settings, progress)
            if share_gpus:  # Ray hides no GPU from a process that asks for none
                plan = plan.sharing_gpus()
            address = settings.cluster.ray_address or ""
            state = state_of(plan, ray_authentication(plan.state_dir, address), config_file)
            head = None
            try:
                run_state.save(state)
                if not address:
                    make_token(state.ray_environment)
                head, state = start_head(plan, state, timeout_s)
                until_ready = wait or not detach
                status = watch_start(head, state, plan, deadline_s, until_ready, progress)
            except BaseException as error:
                with no_interrupts():
                    is_failure = not isinstance(error, KeyboardInterrupt)
                    tear_down(state, drain=False, grace_s=0.0, keep_ray_logs=is_failure)
                    if head is not None:  # else the audit log has no entry of its beginning
                        how = "failed" if is_failure else "failed: interrupted"
                        note(state, _deed(plan), how, progress)
                raise
            note(state, _deed(plan), "done", progress)
        if detach:
            return status
        service.ready(f"serves {plan.model_name} at {state.endpoint_url}")
        try:
            stay(head, state, progress, service)
        finally:
            service.stopping("has stopped")
        return None


def make_plan(settings: Settings, progress: Progress = lambda _: None) -> ClusterPlan:
    """Makes the plan. Before that it makes all checks that are possible before anything starts, the
    cheapest first."""
    cluster, endpoint, control = settings.cluster, settings.endpoint, settings.control
    check_vllm_version()
    preflight.check_policy(settings.scheduler.policy)
    by_model = settings.by_model()
    preflight.check_traffic(by_model)
    of_models = tuple(by_model.values())
    for each in of_models:
        check_engine_args(each.vllm_args)
        check_settings(each)
    hosted = tuple(each for each in of_models if not each.attached_only)
    check_endpoint(endpoint)
    check_traces(endpoint.otlp_traces_endpoint)
    if cluster.ray_address:
        preflight.check_ray_address(cluster.ray_address)
    preflight.check_port(endpoint.host, endpoint.port, "the endpoint", "--port")
    preflight.check_port(control.host, control.port, "the control API", "--control-port")
    state_dir = run_state.state_dir(cluster.name)
    if not hosted:
        chosen_engines: Iterable[dict[str, Any]] = ()
    elif emulation.is_emulated(settings):
        chosen_engines = _emulated_engines(hosted)
    else:
        chosen_engines = choose_vllm_engines(hosted, progress)
    of_hosted = iter(chosen_engines)
    choices = [_no_engines() if each.attached_only else next(of_hosted) for each in of_models]
    num_frontends = max(
        (each.get("num_frontends", 0) for each in choices), default=0
    ) or _num_frontends(settings, 0)
    for of_model, chosen in zip(of_models, choices, strict=True):
        chosen["num_frontends"] = num_frontends
        if not of_model.attached_only:
            chosen["adapters"] = planned_adapters(of_model, chosen["engine_args"])
    preflight.check_threads(sum(each["num_instances"] for each in choices), num_frontends)
    num_threads = preflight.threads_per_rank(
        sum(each["num_instances"] * preflight.num_ranks(each["engine_args"]) for each in choices),
        num_frontends,
    )
    log_dir = state_dir / "logs"
    log_dir.mkdir(mode=0o700, exist_ok=True)
    run_folders.put_aside(log_dir)
    nonce = secrets.token_hex(8)
    plan = ClusterPlan(
        settings=settings,
        **choices[0],
        num_threads_per_instance=num_threads,
        members_key=new_secret_key(),
        control_token=secrets.token_urlsafe(32),
        view_token=secrets.token_urlsafe(32),
        api_keys=_api_keys(settings),
        # On somebody else's Ray there may be a cluster of the same name that has another state
        # folder.
        namespace=f"llumctl-{cluster.name}-{nonce}",
        nonce=nonce,
        state_dir=str(state_dir),
        log_dir=str(log_dir),
        temp_dir=str(run_folders.make_temp(nonce)),
        telemetry=_telemetry(settings),
    )
    if not settings.models:
        return plan
    models = [
        plan.model_copy(update={"settings": of_model, "number": number, **chosen})
        for number, (of_model, chosen) in enumerate(zip(of_models, choices, strict=True), 1)
    ]
    return plan.model_copy(update={"models": tuple(models)})


def _no_engines() -> dict[str, Any]:
    """The fields of the plan of a model that runs on attached servers only."""
    return {"engine_args": {}, "num_instances": 0, "num_gpus_per_instance": 0}


def _telemetry(settings: Settings) -> dict[str, str]:
    if settings.endpoint.otlp_traces_endpoint is None:
        return {}
    return {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}


def choose_vllm_engines(
    of_models: Sequence[Settings], progress: Progress
) -> tuple[dict[str, Any], ...]:
    """For each model, the fields of its plan that depend on the kind of engine. `of_models`: the
    settings of each model."""
    planned = preflight.planned_together(of_models)
    num_bytes, choices = 0, list[dict[str, Any]]()
    for settings, of_model in zip(of_models, planned, strict=True):
        model, config_file = preflight.resolve_model(settings.cluster.model)
        args = of_model.engine_args | {"model": model}
        if of_model.num_gpus:
            memory = preflight.instance_memory(args, num_gpus=of_model.num_gpus, hub_timeout_s=None)
        else:
            preflight.check_kv_cache(args, config_file)
            memory = preflight.check_memory(args, of_model.num_instances, num_bytes)
        num_bytes += of_model.num_instances * memory.num_bytes
        if memory.unknown:
            what = "whether the weights fit this machine's memory was not checked"
            progress(f"{what}: {memory.unknown}")
        choices.append(
            {
                "engine_args": args,
                "num_instances": of_model.num_instances,
                "num_gpus_per_instance": of_model.num_gpus_per_instance,
            }
        )
    frontends = {"num_frontends": _num_frontends(of_models[0], num_bytes)}
    return tuple(each | frontends for each in choices)


def _emulated_engines(of_models: Sequence[Settings]) -> tuple[dict[str, Any], ...]:
    """For each model, the fields of its plan, as in `choose_vllm_engines`."""
    numbers = [preflight.planned(each).num_instances for each in of_models]
    profiles = [emulation.profile_of(each.emulated) for each in of_models]
    num_frontends = _num_frontends(of_models[0], sum(numbers) * emulation.INSTANCE_BYTES)
    emulation.check_memory(sum(numbers), num_frontends)
    model, _ = preflight.resolve_model(EMBEDDED_MODEL)
    return tuple(
        {
            "engine_args": emulation.engine_args(settings, profile, model),
            "num_instances": num_instances,
            "num_frontends": num_frontends,
            "num_gpus_per_instance": 0,
            "profile": profile,
        }
        for settings, num_instances, profile in zip(of_models, numbers, profiles, strict=True)
    )


def _num_frontends(settings: Settings, instances_bytes: int) -> int:
    spare_bytes = available_bytes() - instances_bytes
    return settings.cluster.frontends or default_frontends(num_cores(), spare_bytes)


def start_head(
    plan: ClusterPlan, state: RunState, timeout_s: float
) -> tuple[subprocess.Popen[bytes], RunState]:
    """Starts the head process in a session of its own, and adds its pid to the run state. The ports
    of the endpoint and of the control API are bound before, and the head process keeps them."""
    environment = head_environment(
        plan.nonce,
        state.ray_environment,
        loopback=_on_loopback(plan),
        start_timeout_s=timeout_s,
    )
    folder = Path(plan.state_dir)
    with (
        preflight.hold_endpoint(plan.settings.endpoint) as endpoint,
        preflight.hold_control(plan.settings.control) as control,
    ):
        # If the last run was never stopped, its spec may still exist.
        (folder / SPEC_FILE).unlink(missing_ok=True)
        user_files.new_private(folder / NOT_JOINED_FILE).close()
        with user_files.new_private(folder / PLAN_FILE) as file:
            file.write(plan.model_dump_json().encode())
        with user_files.new_private(folder / run_state.VIEW_TOKEN_FILE) as file:
            file.write(plan.view_token.encode())
        audit(state, _deed(plan), "begun")
        sockets = (endpoint.fileno(), control.fileno())
        with user_files.new_private(Path(plan.log_dir) / "head.log") as log:
            head = subprocess.Popen(
                [*HEAD_COMMAND, *map(str, sockets), str(folder / PLAN_FILE)],
                pass_fds=sockets,
                cwd=plan.state_dir,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,  # makes Ray's logs and those of all members private
            )
    started_s = psutil.Process(head.pid).create_time()
    state = replace(state, ray_head_pid=head.pid, ray_head_started_s=started_s)
    run_state.save(state)
    return head, state


def _deed(plan: ClusterPlan) -> str:
    """The action of this start in the audit log."""
    return f"up: {plan.all_instances} instances of {plan.model_name}"


def _on_loopback(plan: ClusterPlan) -> bool:
    table = plan.settings.cluster
    return not table.ray_address and table.host in LOOPBACKS


def _instances_of(plan: ClusterPlan) -> str:
    """`2 instances of the emulated a10-llama-7b (big)`"""
    what = plan.model_name if plan.profile is None else f"the emulated {plan.profile.name}"
    name = plan.settings.model_names[0]
    if plan.attached_only:
        return f"{name} on servers to be attached"
    named = f" ({name})" if plan.number and name != what else ""
    return f"{plan.num_instances} instance{'s' if plan.num_instances > 1 else ''} of {what}{named}"


def watch_start(
    head: subprocess.Popen[bytes],
    state: RunState,
    plan: ClusterPlan,
    deadline_s: float,
    until_ready: bool,
    progress: Progress,
) -> ClusterStatus:
    whats = ", ".join(_instances_of(each) for each in plan.by_model)
    progress(f"starting {whats}; logs: {plan.log_dir}")
    log_dir, awaits = Path(plan.log_dir), "Ray"
    began_s = time.monotonic()
    patience = Patience(began_s)
    with ControlClient(state.control_url, state.control_token) as client:
        while time.monotonic() < deadline_s:
            if head.poll() is not None:
                raise head_failure(log_dir, state.ray_address)
            status = _status_or_none(client)
            if status is not None:
                progress(status)
                if status.state == ClusterState.FAILED:
                    raise explain_failure(status, plan)
                if status.state == ClusterState.READY or (not until_ready and are_taken(status)):
                    return status
            else:
                refuse_given_up(log_dir, plan.namespace)
                refuse_without_token(log_dir, state.ray_address)
            awaits = awaited(status, log_dir, plan.namespace, plan.temp_dir)
            if word := patience.word(time.monotonic(), awaits):
                progress(word)
            time.sleep(POLL_S)
    waited_s = time.monotonic() - began_s
    busy = capacity.load()
    raise TimedOutError(
        f"cluster {state.cluster} was not ready after {waited_s:.0f} s: it waited for {awaits}"
        + (f", with {busy}" if busy else ""),
        f"{retry_command(waited_s)}      or see the logs in {plan.log_dir}",
    )


def stay(
    head: subprocess.Popen[bytes], state: RunState, progress: Progress, service: ServiceManager
) -> None:
    """Shows the status until the user stops the cluster by Ctrl-C or another signal, `llumctl down`
    stops it elsewhere, or the head process dies."""
    try:
        with ControlClient(state.control_url, state.control_token) as client:
            while head.poll() is None or not state.owns_ray:
                if run_state.load(state.cluster) != state:
                    break
                status = _status_or_none(client)
                if status is not None:
                    progress(status)
                time.sleep(STAY_POLL_S)
    except KeyboardInterrupt:
        service.stopping("live requests may finish")
        _stop_on_request(state, progress)
        return
    if _is_stopped_elsewhere(state):
        progress(last_stop_words(state.cluster))
        return
    tear_down(state, drain=False, grace_s=0.0, keep_ray_logs=True)
    raise LlumctlError(
        f"Ray of cluster {state.cluster} died (its head process ended with {head.returncode})",
        f"see {state.log_dir}/head.log, then: llumctl up",
    )


def _is_stopped_elsewhere(state: RunState) -> bool:
    """Whether a `down` has removed the run state. If a `down` is under way, this waits for it,
    because it ends Ray first."""
    while run_state.load(state.cluster) == state:
        try:
            with run_state.lock(state.cluster):
                return run_state.load(state.cluster) != state
        except RefusedError:
            time.sleep(STAY_POLL_S)
    return True


def _stop_on_request(state: RunState, progress: Progress) -> None:
    progress("stopping: live requests may finish; Ctrl-C again to stop at once")
    action = f"{DOWN}: Ctrl-C, SIGTERM or a hang-up"
    note(state, action, "begun", progress)
    try:
        grace_s = present_grace_s(state)
        tear_down(state, drain=True, grace_s=grace_s, progress=progress, action=action)
    except KeyboardInterrupt:
        with no_interrupts():
            tear_down(state, drain=False, grace_s=0.0, action=action)
    progress(f"cluster {state.cluster} has stopped")


def _status_or_none(client: ControlClient) -> ClusterStatus | None:
    try:
        return client.status()
    except UnreachableError:
        return None


def _refuse_running(cluster: str, progress: Progress) -> None:
    state = run_state.load(cluster)
    if state is None:
        return
    alive = same_process(state.ray_head_pid, state.ray_head_started_s) or not state.owns_ray
    if alive:
        raise RefusedError(
            f"cluster {cluster} is already running ({state.endpoint_url})",
            "llumctl status      or      llumctl down",
        )
    if processes_of(state.nonce, session_of(state)):
        progress(f"clearing what a dead cluster {cluster} left behind")
    tear_down(state, drain=False, grace_s=0.0)


def _api_keys(settings: Settings) -> tuple[str, ...]:
    file = settings.endpoint.api_key_file
    if file is None:
        return ()
    try:
        lines = user_files.read(Path(file).expanduser(), MAX_KEY_FILE_BYTES).decode().splitlines()
    except (OSError, ValueError) as error:
        raise LlumctlError(f"cannot read {file}: {error}", f"ls -l {file}") from error
    return tuple(line.strip() for line in lines if line.strip())


class Patience:
    """Decides when `up` says what it waits for; the messages come less and less often."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._next_s = FIRST_WORD_S

    def word(self, now_s: float, what: str) -> str:
        """The next message; empty if it is too early for a message."""
        waited_s = now_s - self._began_s
        if waited_s < self._next_s:
            return ""
        self._next_s = waited_s * NEXT_WORD_FACTOR
        return f"waiting for {what}, {waited_s:.0f} s"


def awaited(status: ClusterStatus | None, log_dir: Path, run: str, temp_dir: str) -> str:
    """What `up` waits for: the members that do not serve yet. Without a status it is the
    controller, or Ray before the controller has started."""
    if status is not None:
        members: list[InstanceStatus | FrontendStatus] = [*status.instances, *status.frontends]
        absent = [m for m in members if m.state != InstanceState.ACTIVE]
        return ", ".join(f"{m.id} ({m.detail})" if m.detail else m.id for m in absent) or "a report"
    reason, _ = failure_of(log_dir, "controller", run)
    if reason:
        return f"the controller (its last start failed: {reason})"
    if (log_dir / "controller.log").exists():
        return "the controller"
    logs = run_folders.session_logs(temp_dir)
    if (logs / "raylet.out").exists():
        return "Ray, whose node joins its head and starts the controller's process"
    if (logs / "gcs_server.out").exists():
        return "Ray, whose head comes up"
    return "Ray"


def are_taken(status: ClusterStatus) -> bool:
    """Whether vLLM has accepted the arguments, so that `up --detach` may return.

    vLLM finds many faults of arguments only when it is imported and builds its configuration
    (docs/decisions/0018). All members have the same arguments, so it is enough that one instance
    and one frontend have built their configuration. `llumctl status` shows later failures, for
    example in loading the weights."""
    return any(map(_has_taken, status.instances)) and any(map(_has_taken, status.frontends))


def _has_taken(member: InstanceStatus | FrontendStatus) -> bool:
    starts = member.state is InstanceState.STARTING
    return member.state is InstanceState.ACTIVE or (starts and member.detail not in BEFORE_ARGS)


def explain_failure(status: ClusterStatus, plan: ClusterPlan) -> LlumctlError:
    """The error of the first member that could not start, in the member's own words, with a
    hint."""
    members: list[InstanceStatus | FrontendStatus] = [*status.instances, *status.frontends]
    failed = next(m for m in members if m.state == InstanceState.FAILED)
    log = Path(plan.log_dir) / f"{failed.id}.log"
    return explain_cause(f"{failed.id} could not start {plan.model_name}", failed.detail, log)


def refuse_given_up(log_dir: Path, run: str) -> None:
    """Raises LlumctlError if the controller was given up because it died too often during its
    start."""
    reason, given_up = failure_of(log_dir, "controller", run)
    if given_up:
        raise LlumctlError(
            f"the controller could not start, {MAX_FAILED_STARTS} times in a row: {reason}",
            f"less {log_dir / 'controller.log'}",
        )


def refuse_without_token(log_dir: Path, ray_address: str) -> None:
    """Raises LlumctlError if the user's Ray refuses the head process because of its token. Ray's
    client repeats a refused call every second, for as long as `up` waits. Its words are in
    ray 2.60, gcs_client.cc."""
    if ray_address and "InvalidAuthToken" in _head_log(log_dir):
        raise LlumctlError(
            f"Ray at {ray_address} asks for its token, and llumctl has none, or another one",
            TOKEN_CURE,
        )


def head_failure(log_dir: Path, ray_address: str) -> LlumctlError:
    log = log_dir / "head.log"
    lines = [line.strip() for line in _head_log(log_dir).splitlines() if line.strip()]
    why = lines[-1][:300] if lines else "it said nothing"
    what = f"Ray at {ray_address}" if ray_address else "Ray"
    hint = f"less {log}"
    if TIMED_OUT.search(why):
        hint = f"{retry_command()}      or      {hint}"
    return LlumctlError(f"{what} could not be started or joined: {why}", hint)


def _head_log(log_dir: Path) -> str:
    log = log_dir / "head.log"
    return log.read_text(errors="replace") if log.exists() else ""


def retry_command(waited_s: float = 0.0) -> str:
    """The command that tries again with more time. Ray waits for its parts as long as `up`
    waits."""
    return f"llumctl up --timeout {max(LONG_START_S, 2 * math.ceil(waited_s))}"
