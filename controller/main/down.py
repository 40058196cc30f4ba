"""Stop a cluster and leave no process, socket or file of it, whatever state it is in."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from controller.adapters.files.spec_file import FILE as SPEC_FILE
from controller.api.client import ControlClient, actor
from controller.api.errors import LlumctlError
from controller.api.state import run_state
from controller.api.state.audit import AuditLog
from controller.api.state.last_stop import DOWN
from controller.api.state.run_state import RunState
from controller.api.wire.models import StopRequest
from controller.main.machine import ray_logs, temp_folder
from controller.main.machine.processes import end, same_process, sweep
from controller.main.machine.ray_environment import NONCE_VARIABLE, TOKEN_FILE
from controller.main.plan import FILE as PLAN_FILE

POLL_S = 0.1
# What the controller needs beyond the grace time to cut what still runs.
STOP_MARGIN_S = 10.0
HEAD_PATIENCE_S = 5.0
KILL_TIMEOUT_S = 60.0


def run(
    cluster: str, *, drain: bool, timeout_s: float | None, progress: Callable[[str], None]
) -> bool:
    """False if there was nothing to stop. `timeout_s`: None takes the cluster's own grace time."""
    if not os.path.lexists(run_state.run_file(cluster)):
        return False
    with run_state.lock(cluster):
        state = _found(cluster, progress)
        if state is None:
            return False
        grace_s = timeout_s
        if grace_s is None:
            grace_s = present_grace_s(state) if drain else 0.0
        action = f"{DOWN}: drain" if drain else f"{DOWN}: now"
        note(state, action, "begun", progress)
        tear_down(state, drain=drain, grace_s=grace_s, progress=progress, action=action)
        progress(f"cluster {cluster} has stopped")
        return True


def _found(cluster: str, progress: Callable[[str], None]) -> RunState | None:
    """The run state; where that says nothing, what the plan beside it says. The broken one is
    kept for whoever wants to know."""
    try:
        return run_state.load(cluster)
    except run_state.CorruptError as error:
        from controller.main.start.recovery import state_from_plan

        kept = run_state.set_aside(cluster)
        progress(f"{error.message}; it is now {kept}")
        state = state_from_plan(run_state.state_path(cluster))
        if state is None:
            raise LlumctlError(
                f"what cluster {cluster} was made of cannot be read either: nothing was stopped",
                f"pgrep -af {run_state.state_path(cluster)}",
            ) from error
        run_state.save(state)
        return state


def present_grace_s(state: RunState) -> float:
    """As it was set last; if the controller does not say, as the cluster began."""
    with (
        contextlib.suppress(LlumctlError),
        ControlClient(state.control_url, state.control_token, timeout_s=2.0) as client,
    ):
        for setting in client.settings().settings:
            if setting.key == "scheduler.grace_s" and isinstance(setting.value, float):
                return setting.value
    return state.grace_s


def note(state: RunState, action: str, outcome: str, progress: Callable[[str], None]) -> None:
    """Into the audit log, if that can be written: stopping must work on a full disk, too. The
    controller makes an entry of its own, if it lives."""
    try:
        AuditLog(run_state.state_path(state.cluster)).write(
            actor=actor(),
            action=action,
            target=f"cluster {state.cluster}",
            outcome=outcome,
            cause_id=f"down-{state.nonce}",
        )
    except LlumctlError as error:
        progress(f"{error.message}; going on")


def tear_down(
    state: RunState,
    *,
    drain: bool,
    grace_s: float,
    keep_ray_logs: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    action: str = "",
) -> None:
    """First by asking the controller, then by ending what is left, which covers a dead one.
    `action`: of an operator; its end goes into the audit log before the run state goes.
    `keep_ray_logs`: they go with the temporary folder, but where Ray died they may say why.

    Safe to call again after it was interrupted."""
    with contextlib.suppress(LlumctlError):
        _ask_controller(state, drain, grace_s, progress)
    head = same_process(state.ray_head_pid, state.ray_head_started_s)
    if head is not None:
        end([head], HEAD_PATIENCE_S)
    keep_ray_logs = keep_ray_logs or head is None
    if not state.owns_ray:
        _kill_actors(state)
    sweep(state.nonce)
    folder = run_state.state_path(state.cluster)
    if keep_ray_logs:
        ray_logs.keep(state.temp_dir, folder / "logs")
    if left := temp_folder.remove(state.temp_dir, state.nonce):
        progress(f"{state.temp_dir} is left as it is: {left}")
    for file in (PLAN_FILE, TOKEN_FILE, run_state.VIEW_TOKEN_FILE, SPEC_FILE):
        (folder / file).unlink(missing_ok=True)
    if action:
        note(state, action, "done", progress)
    run_state.remove(state.cluster)


def _ask_controller(
    state: RunState, drain: bool, grace_s: float, progress: Callable[[str], None]
) -> None:
    deadline_s = time.monotonic() + (grace_s if drain else 0.0) + STOP_MARGIN_S
    order = StopRequest(drain=drain, grace_s=grace_s)
    told = -1
    with ControlClient(state.control_url, state.control_token, timeout_s=2.0) as client:
        while time.monotonic() < deadline_s:
            answer = client.stop(order)
            if answer.stopped:
                return
            if answer.num_live_reqs != told and answer.num_live_reqs:
                verb = "waiting for" if drain else "ending"
                progress(f"{verb} {answer.num_live_reqs} live requests")
            told = answer.num_live_reqs
            time.sleep(POLL_S)


def _kill_actors(state: RunState) -> None:
    """On somebody else's Ray: end our actors through it, wherever they run. Raises if that
    Ray cannot be reached: the run state is kept then, so that `down` can be tried again."""
    log_file = Path(state.log_dir) / "down.log"
    command = [sys.executable, "-P", "-m", "controller.main.machine.kill_actors"]
    environment = {k: v for k, v in os.environ.items() if k != NONCE_VARIABLE}
    with log_file.open("ab") as log:
        try:
            done = subprocess.run(
                [*command, state.ray_address, state.namespace],
                cwd=run_state.state_path(state.cluster),
                env=environment | state.ray_environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=KILL_TIMEOUT_S,
            )
            code: int | str = done.returncode
        except subprocess.TimeoutExpired:
            code = f"no answer in {KILL_TIMEOUT_S:.0f} s"
    if code != 0:
        raise LlumctlError(
            f"the cluster's actors on Ray at {state.ray_address} could not be ended ({code})",
            f"see {log_file}, then: llumctl down --cluster {state.cluster}",
        )
