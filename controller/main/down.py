"""Stops a cluster, whatever its state, and leaves no process, socket or temporary file of it.

`python -P -m controller.main.down ADDRESS NAMESPACE` ends a cluster's actors on a Ray that is not
ours. It is a separate process because Ray's client library ends its process if it gives up."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from controller.adapters.files.state_files import INCARNATION_FILE, SPEC_FILE
from controller.adapters.ray.head_watch import RECONNECT_DEFAULT_S, RECONNECT_VARIABLE, HeadWatch
from controller.adapters.ray.ray_starts import noted_processes
from controller.api.client import ControlClient, actor
from controller.api.errors import LlumctlError
from controller.api.state import run_state
from controller.api.state.audit import DOWN, AuditLog
from controller.api.state.run_state import RunState
from controller.api.wire.status import StopRequest
from controller.main.machine import run_folders
from controller.main.machine.processes import Session, end, same_process, sweep
from controller.main.machine.ray_environment import NONCE_VARIABLE, TOKEN_FILE, own_environment
from controller.main.plan import FILE as PLAN_FILE
from controller.main.plan import NOT_JOINED_FILE, state_from_plan

POLL_S = 0.1
# After the grace time the controller needs this long to end whatever still runs.
STOP_MARGIN_S = 10.0
HEAD_PATIENCE_S = 5.0
KILL_TIMEOUT_S = 60.0


def run(
    cluster: str, *, drain: bool, timeout_s: float | None, progress: Callable[[str], None]
) -> bool:
    """Stops a cluster. Returns false if no cluster of that name runs. `timeout_s`: None stands for
    the cluster's grace time."""
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
    """The run state; None if there is none. If its file is broken, the file is renamed and kept,
    and a new run state is made from the plan in the same folder."""
    try:
        return run_state.load(cluster)
    except run_state.CorruptError as error:
        kept = run_state.set_aside(cluster)
        progress(f"{error.message}; it is now {kept}")
        state = state_from_plan(run_state.state_path(cluster))
        if state is None:
            raise LlumctlError(
                f"the plan of cluster {cluster} cannot be read either: nothing was stopped",
                f"pgrep -af {run_state.state_path(cluster)}",
            ) from error
        run_state.save(state)
        return state


def present_grace_s(state: RunState) -> float:
    """The grace time as it is set now. If the controller does not answer, this is the grace time
    that was set when the cluster started."""
    with (
        contextlib.suppress(LlumctlError),
        ControlClient(state.control_url, state.control_token, timeout_s=2.0) as client,
    ):
        for setting in client.settings().settings:
            if setting.key == "scheduler.grace_s" and isinstance(setting.value, float):
                return setting.value
    return state.grace_s


def audit(state: RunState, action: str, outcome: str) -> None:
    """Makes an entry in the audit log. A live controller makes its own entries, too. Raises
    LlumctlError."""
    AuditLog(run_state.state_dir(state.cluster)).write(
        actor=actor(),
        action=action,
        target=f"cluster {state.cluster}",
        outcome=outcome,
        cause_id=f"{action.partition(':')[0]}-{state.nonce}",
    )


def note(state: RunState, action: str, outcome: str, progress: Callable[[str], None]) -> None:
    """Makes an entry in the audit log, if that is possible. If the disk is full, a cluster can
    still be stopped, and the outcome of a start stays what it is."""
    try:
        audit(state, action, outcome)
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
    """Asks the controller to stop the cluster, then ends all processes that are left, even if the
    controller is dead. `action`: an operator's action; its end is written to the audit log before
    the run state is removed. `keep_ray_logs`: whether to copy Ray's logs, which may say why Ray
    died, before the temporary folder is removed.

    If this function was interrupted, it may be called again."""
    with contextlib.suppress(LlumctlError):
        _ask_controller(state, drain, grace_s, progress)
    head = same_process(state.ray_head_pid, state.ray_head_started_s)
    if head is not None:
        end([head], HEAD_PATIENCE_S)
    keep_ray_logs = keep_ray_logs or head is None
    folder = run_state.state_path(state.cluster)
    if not state.owns_ray and not (folder / NOT_JOINED_FILE).exists():
        end_actors(state, progress)
    sweep(state.nonce, session_of(state))
    if keep_ray_logs:
        run_folders.copy_ray_logs(state.temp_dir, folder / "logs")
    if left := run_folders.remove_temp(state.temp_dir, state.nonce):
        progress(f"{state.temp_dir} is left as it is: {left}")
    secrets = (TOKEN_FILE, run_state.VIEW_TOKEN_FILE)
    for file in (*secrets, PLAN_FILE, NOT_JOINED_FILE, SPEC_FILE, INCARNATION_FILE):
        (folder / file).unlink(missing_ok=True)
    if action:
        note(state, action, "done", progress)
    run_state.remove(state.cluster)


def session_of(state: RunState) -> Session | None:
    """The session of the head process, to which all processes of our own Ray belong."""
    if state.ray_head_pid is None:
        return None
    return Session(state.ray_head_pid, run_state.state_path(state.cluster))


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


def end_actors(state: RunState, progress: Callable[[str], None]) -> None:
    """Ends our actors on somebody else's Ray, wherever they run. If that Ray has no head any more,
    it ends the actors on this machine; on other machines their own Ray ends them. Raises
    LlumctlError if there is a head but the actors could not be ended. The run state stays then, so
    that `down` can be tried again."""
    if HeadWatch(state.ray_address).look() is None:
        try:
            _kill_actors(state)
        except LlumctlError:
            _end_noted(state)
            raise
        return
    progress(
        f"no Ray answers at {state.ray_address}: processes on other machines end by themselves,"
        f" {RECONNECT_DEFAULT_S:.0f} s after it was lost unless {RECONNECT_VARIABLE} is set there"
    )
    _end_noted(state)


def _end_noted(state: RunState) -> None:
    noted = noted_processes(Path(state.log_dir), state.namespace)
    end([process for each in noted if (process := same_process(*each))], HEAD_PATIENCE_S)


def _kill_actors(state: RunState) -> None:
    """Ends the actors by a separate process, which joins that Ray. Raises LlumctlError."""
    log_file = Path(state.log_dir) / "down.log"
    command = [sys.executable, "-P", "-m", "controller.main.down"]
    environment = {k: v for k, v in own_environment().items() if k != NONCE_VARIABLE}
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
            f"see {log_file}; if this machine's raylet is gone: ray start"
            f" --address={state.ray_address}, then: llumctl down",
        )


def main(address: str, namespace: str) -> None:
    import ray

    from controller.adapters.ray.ray_launcher import kill_actors

    ray.init(address=address, namespace=namespace, log_to_driver=False)
    kill_actors(namespace)


if __name__ == "__main__":
    main(*sys.argv[1:3])
