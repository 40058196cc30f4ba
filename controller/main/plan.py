"""The plan of a cluster: its settings with every open choice made. `up` makes it and keeps it in a
file of mode 0600; the head process reads it and gives it to every actor as JSON."""

import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from controller.api.settings.settings import Settings
from controller.model.profile import LatencyProfile

FILE = "plan.json"
"""In the cluster's state folder."""


class ClusterPlan(BaseModel):
    # No error about the plan, and no repr (see the fields), shows a secret.
    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    settings: Settings
    engine_args: dict[str, Any]
    num_instances: int
    num_frontends: int
    num_gpus_per_instance: int
    num_threads_per_instance: int
    members_port: int = 0
    """The controller's port for the members; fixed, so that they find a restarted controller."""
    members_key: str = Field(repr=False)
    """The secret half of `ClusterKey`, by which the members prove themselves to each other."""
    control_token: str = Field(repr=False)
    view_token: str = Field(repr=False)
    """Allows to look at the control API, but not to act."""
    api_keys: tuple[str, ...] = Field(repr=False)
    """Lines of the key file (controller/api/settings/key_file.py)."""
    namespace: str
    nonce: str
    started_at_s: float = Field(default_factory=time.time)
    """Seconds since the epoch: when `up` began."""
    state_dir: str
    log_dir: str
    temp_dir: str
    profile: LatencyProfile | None = None
    """The profile that emulated engines keep; None: the engines are vLLM's."""

    def for_instances(self) -> "ClusterPlan":
        """The plan without the secrets that an instance does not need."""
        return self.model_copy(update={"control_token": "", "view_token": "", "api_keys": ()})

    def for_frontends(self) -> "ClusterPlan":
        """The plan without the control API's tokens."""
        return self.model_copy(update={"control_token": "", "view_token": ""})

    @property
    def ports_dir(self) -> Path:
        """The folder in which the keepers of the controller's sockets are found."""
        return Path(self.temp_dir) / "ports"

    @property
    def listener_dir(self) -> Path:
        """The folder in which the keepers of the endpoint's socket are found."""
        return Path(self.temp_dir) / "listener"

    @property
    def model_name(self) -> str:
        return self.settings.model_names[0]
