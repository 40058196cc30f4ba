"""Makes the run state from the plan: when the cluster starts, and when the run state was lost."""

from pathlib import Path

from controller.api.hosts import url_host
from controller.api.state import user_files
from controller.api.state.run_state import RunState
from controller.main.machine.ray_environment import ray_authentication
from controller.main.plan import FILE, ClusterPlan
from controller.main.roles import endpoint_url

MAX_PLAN_BYTES = 16 << 20


def state_of(plan: ClusterPlan, ray_environment: dict[str, str], config_file: str = "") -> RunState:
    """The run state before anything runs. With its nonce `down` finds the processes of a start that
    was cut short."""
    table = plan.settings
    address = table.cluster.ray_address or ""
    return RunState(
        cluster=table.cluster.name,
        nonce=plan.nonce,
        control_url=f"http://{url_host(table.control.host)}:{table.control.port}",
        control_token=plan.control_token,
        endpoint_url=endpoint_url(plan),
        ray_address=address,
        owns_ray=not address,
        ray_head_pid=None,
        ray_head_started_s=None,
        namespace=plan.namespace,
        started_at_s=plan.started_at_s,
        log_dir=plan.log_dir,
        temp_dir=plan.temp_dir,
        grace_s=table.scheduler.grace_s,
        ray_environment=ray_environment,
        endpoint_certificate=table.endpoint.ssl_certfile or "",
        config_file=config_file,
    )


def state_from_plan(folder: Path) -> RunState | None:
    """The run state of the cluster with this state folder; None if its plan cannot be read. It does
    not name the head process, which is found by the nonce like all others."""
    try:
        plan = ClusterPlan.model_validate_json(user_files.read(folder / FILE, MAX_PLAN_BYTES))
    except (OSError, ValueError):
        return None
    if plan.settings.cluster.name != folder.name:
        return None
    address = plan.settings.cluster.ray_address or ""
    return state_of(plan, ray_authentication(plan.state_dir, address))
