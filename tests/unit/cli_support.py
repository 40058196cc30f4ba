"""A cluster's status and its run state, for tests of the command line."""

from controller.api.state import run_state
from controller.api.state.audit import AuditLog
from controller.api.state.run_state import RunState
from controller.api.wire.status import (
    AutoscaleStatus,
    ClusterState,
    ClusterStatus,
    FrontendStatus,
    InstanceState,
    InstanceStatus,
)
from tools.synthetic_cluster import instance, run_state_of

TOKEN = "right"


def cluster(
    *instances: InstanceStatus, state: ClusterState = ClusterState.READY, detail: str = ""
) -> ClusterStatus:
    frontend = FrontendStatus(id="f-0", state=InstanceState.ACTIVE, incarnation=1, age_s=0.2)
    return ClusterStatus(
        cluster="default",
        state=state,
        detail=detail,
        model="embedded",
        policy="llumnix",
        endpoint_url="http://127.0.0.1:8000",
        uptime_s=185,
        cluster_uptime_s=7385,
        num_held_reqs=0,
        autoscale=AutoscaleStatus(mode="off", min_instances=1, max_instances=16, num_instances=1),
        instances=instances or (instance(),),
        frontends=(frontend,),
    )


def facts(text: str) -> dict[str, str]:
    """The first block of what a command prints: a name and a value on each line."""
    lines = text.split("\n\n")[0].splitlines()
    return {name: value.strip() for name, _, value in (line.partition("  ") for line in lines)}


def remember(control_url: str, *, token: str = TOKEN, name: str = "default") -> RunState:
    """Leaves the run state that `up` would."""
    state = run_state_of(control_url, token, name)
    run_state.save(state)
    return state


def stop(actor: str, *, name: str = "default") -> None:
    """Leaves what `down` would."""
    AuditLog(run_state.state_path(name)).write(
        actor=actor, action="down: drain", target=f"cluster {name}", outcome="done", cause_id="d"
    )
    run_state.remove(name)
