"""The plan of a cluster: its settings, with a value for every choice that they leave open.

`up` makes the plan and keeps it in a file of mode 0600. The head process reads the plan and gives
it to every actor as JSON. The run state, by which commands find the cluster, is also made from the
plan: when the cluster starts, and again if the run state is lost."""

import json
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from controller.api.errors import LlumctlError
from controller.api.hosts import url_host
from controller.api.settings.settings import Settings
from controller.api.state import user_files
from controller.api.state.run_state import RunState
from controller.core.fleet.adapters import Adapter
from controller.main.machine.ray_environment import ray_authentication
from controller.model.profile import LatencyProfile
from controller.runtime.messages.codec import wire_version

FILE = "plan.json"
"""The plan's file in the cluster's state folder."""
NOT_JOINED_FILE = "not-joined"
"""A file in the cluster's state folder, from the start of the head process until it has joined
Ray. While it is there, none of our actors can be on a Ray."""
MAX_PLAN_BYTES = 16 << 20


class ClusterPlan(BaseModel):
    # Secrets are shown neither in an error about the plan nor in its repr (see the fields).
    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    settings: Settings
    wire: str = Field(default_factory=wire_version)
    """The `wire_version` of the llumctl that made the plan."""
    engine_args: dict[str, Any]
    num_instances: int
    num_frontends: int
    num_gpus_per_instance: int
    num_threads_per_instance: int
    members_port: int = 0
    """The port of the controller's inbox. It does not change, so that members find a restarted
    controller."""
    members_key: str = Field(repr=False)
    """The secret half of `ClusterKey`, by which the members prove themselves to each other."""
    control_token: str = Field(repr=False)
    view_token: str = Field(repr=False)
    """The token that permits to look at the control API, but not to act."""
    api_keys: tuple[str, ...] = Field(repr=False)
    """The lines of the key file (controller/api/settings/key_file.py)."""
    namespace: str
    nonce: str
    started_at_s: float = Field(default_factory=time.time)
    """When `up` began, in seconds since the epoch."""
    state_dir: str
    log_dir: str
    temp_dir: str
    adapters: tuple[Adapter, ...] = ()
    """The LoRA adapters of the configuration."""
    telemetry: dict[str, str] = Field(default_factory=dict, repr=False)
    """The variables of OpenTelemetry in the environment of `up`, for the frontends. A collector's
    key may be among them. Empty without traces."""
    profile: LatencyProfile | None = None
    """The profile of emulated engines; None if the engines are vLLM's."""
    number: int = 0
    """Which of several models the plan is about, from 1 on; 0: the cluster serves one model, or the
    plan is about all."""
    models: tuple["ClusterPlan", ...] = ()
    """The plan of each model of a cluster that serves several: the plan as the processes of that
    model read it. Empty with one model, whose plan this is."""

    @property
    def attached_only(self) -> bool:
        """Whether the model, of which this is the plan, runs on attached servers only."""
        return self.num_instances == 0

    @property
    def by_model(self) -> tuple["ClusterPlan", ...]:
        """The plan of each model that the cluster serves."""
        return self.models or (self,)

    def for_instances(self) -> "ClusterPlan":
        """The plan of one model without the secrets that an instance does not need."""
        secrets = {"control_token": "", "view_token": "", "api_keys": (), "telemetry": {}}
        return self.model_copy(update=secrets)

    def for_frontends(self) -> "ClusterPlan":
        """The plan without the control API's tokens."""
        without = {"control_token": "", "view_token": ""}
        models = tuple(each.model_copy(update=without) for each in self.models)
        return self.model_copy(update=without | {"models": models})

    @property
    def python(self) -> str:
        """The Python interpreter that runs instances; empty: that of the cluster."""
        return self.settings.engine_python

    @property
    def adapters_dir(self) -> Path:
        """The folder with the copies of LoRA adapters, on each machine."""
        return Path(self.temp_dir) / "adapters"

    @property
    def ports_dir(self) -> Path:
        """The folder in which the keepers of the controller's sockets can be found."""
        return Path(self.temp_dir) / "ports"

    @property
    def listener_dir(self) -> Path:
        """The folder in which the keepers of the endpoint's socket can be found."""
        return Path(self.temp_dir) / "listener"

    @property
    def model_name(self) -> str:
        """The name of the model for clients; of several models all names."""
        return ", ".join(each.settings.model_names[0] for each in self.by_model)

    def sharing_gpus(self) -> "ClusterPlan":
        """The plan with instances that ask Ray for no GPU, so that each sees all GPUs."""
        models = tuple(each.sharing_gpus() for each in self.models)
        return self.model_copy(update={"num_gpus_per_instance": 0, "models": models})

    def with_ports(self, ports: Sequence[int]) -> "ClusterPlan":
        """The plan with the port of the inbox for each model's members."""
        first, *_ = ports
        models = tuple(
            each.model_copy(update={"members_port": port})
            for each, port in zip(self.models, ports, strict=False)
        )
        return self.model_copy(update={"members_port": first, "models": models})

    @property
    def all_instances(self) -> int:
        """How many instances all models have at the start."""
        return sum(each.num_instances for each in self.by_model)


def refuse_other_version(plan_json: str) -> None:
    """Raises LlumctlError if the plan was made by a llumctl that has other messages than this one:
    somebody has installed another version into an environment of a running cluster."""
    if json.loads(plan_json).get("wire") != wire_version():
        raise LlumctlError(
            f"llumctl {metadata.version('llumctl')} in {sys.prefix} sends other messages than the"
            " llumctl that started the cluster",
            "install the version that started the cluster again      or      llumctl down",
        )


def state_of(plan: ClusterPlan, ray_environment: dict[str, str], config_file: str = "") -> RunState:
    """The run state before any process runs. If a start is interrupted, `down` finds its processes
    by this run state's nonce."""
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
    """The run state of the cluster with this state folder; None if its plan cannot be read. This
    run state does not name the head process, which is found by the nonce like all other
    processes."""
    try:
        plan = ClusterPlan.model_validate_json(user_files.read(folder / FILE, MAX_PLAN_BYTES))
    except (OSError, ValueError):
        return None
    if plan.settings.cluster.name != folder.name:
        return None
    address = plan.settings.cluster.ray_address or ""
    return state_of(plan, ray_authentication(plan.state_dir, address))


def endpoint_url(plan: ClusterPlan) -> str:
    table = plan.settings.endpoint
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(table.host, table.host)
    scheme = "https" if table.ssl_certfile else "http"
    return f"{scheme}://{url_host(host)}:{table.port}"
