"""Wire models of the control API: what `-o json` prints and what the dashboard draws.

Compatibility: within one `schema_version` fields are only added, never renamed, retyped or
removed; readers ignore fields that they do not know. Units are in the names. JSON has no
infinity: a draining instance's freeness is null beside its state.
"""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1


class WireModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ClusterState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    STOPPING = "stopping"
    FAILED = "failed"


class InstanceState(StrEnum):
    """`stalled` answers nothing at present; `failed` could not start and is not retried."""

    STARTING = "starting"
    ACTIVE = "active"
    DRAINING = "draining"
    STALLED = "stalled"
    RESTARTING = "restarting"
    FAILED = "failed"


class QueueHeadStatus(WireModel):
    request_id: str
    level: str
    demand_blocks: int
    waited_s: float
    evicted: bool


class InstanceStatus(WireModel):
    """One instance. Load figures are null until it has reported for the first time."""

    id: str
    state: InstanceState
    detail: str = ""
    incarnation: int
    num_restarts: int = 0
    node: str = ""
    pid: int | None = None
    freeness_steps: float | None = None
    virtual_usage_blocks: int | None = None
    headroom_blocks: int | None = None
    block_size: int | None = None
    num_total_blocks: int | None = None
    num_free_blocks: int | None = None
    watermark_blocks: int | None = None
    num_running_reqs: int | None = None
    num_waiting_reqs: int | None = None
    num_unreported_reqs: int = 0
    kv_cache_usage: float | None = None
    queue_head: QueueHeadStatus | None = None
    num_evictions: int | None = None
    step_time_s: float | None = None
    num_steps: int | None = None
    age_s: float | None = None


class FrontendStatus(WireModel):
    id: str
    state: InstanceState
    detail: str = ""
    incarnation: int
    num_restarts: int = 0
    node: str = ""
    pid: int | None = None
    num_live_reqs: int = 0
    age_s: float | None = None


class ClusterStatus(WireModel):
    schema_version: int = SCHEMA_VERSION
    cluster: str
    state: ClusterState
    detail: str = ""
    model: str
    policy: str
    endpoint_url: str
    uptime_s: float
    num_held_reqs: int
    instances: tuple[InstanceStatus, ...]
    frontends: tuple[FrontendStatus, ...]


class StopRequest(WireModel):
    """Stop the cluster. With `drain`, live requests may finish within `grace_s`."""

    drain: bool = True
    grace_s: float = Field(30.0, ge=0, allow_inf_nan=False)


class StopProgress(WireModel):
    schema_version: int = SCHEMA_VERSION
    stopped: bool
    num_live_reqs: int


class ErrorBody(WireModel):
    """What every non-2xx answer carries. `hint` is the next command to try."""

    code: str
    message: str
    hint: str = ""


class CheckResult(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(WireModel):
    """One finding of `doctor`. `cure` is empty when there is nothing to do."""

    name: str
    result: CheckResult
    what: str
    cure: str = ""


class DoctorReport(WireModel):
    schema_version: int = SCHEMA_VERSION
    checks: tuple[Check, ...]
