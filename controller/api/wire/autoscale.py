"""Wire models of auto-scaling: its mode, its last decision and why."""

from typing import Literal

from pydantic import Field

from controller.api.wire.base import AnswerModel, WireModel

AutoscaleMode = Literal["off", "dry-run", "on"]
AutoscaleOutcome = Literal["nothing", "done", "would", "blocked"]


class AutoscaleCheck(WireModel):
    """One look at the load. `reason` is a code (docs/metrics.md), `why` the same in words. `deed`:
    what was to be done, as `add 2` or `remove i-3`; empty if nothing was. `outcome`: whether it was
    done, would have been (a dry run, or an operator's scale), or could not be."""

    cause_id: str
    time_s: float
    """Seconds since the epoch."""
    reason: str
    why: str
    deed: str = ""
    outcome: AutoscaleOutcome
    num_wanted: int
    """Instances that are to be there."""
    num_requests: int
    freeness_steps: float
    """F_scale of those that serve."""
    freeness_started_steps: float
    """F_scale with those that start, as empty ones."""
    freeness_less_steps: float | None = None
    """F_scale without the memory of the one that would go next."""
    ttft_s: float | None = None
    """The P99 that is estimated for the next minute."""
    tpot_s: float | None = None
    added: tuple[str, ...] = ()
    removed: str | None = None
    kept: str | None = None


class AutoscaleHoldStatus(WireModel):
    """An operator's own scale, which wins until it is released. `since_s`: seconds since the
    epoch."""

    actor: str
    num_instances: int
    since_s: float


class AutoscaleStatus(WireModel):
    """`num_instances`: planned ones that can start. `last_change`: the last look that decided to
    have more or fewer."""

    mode: AutoscaleMode
    held: AutoscaleHoldStatus | None = None
    min_instances: int
    max_instances: int
    target_ttft_s: float | None = None
    target_tpot_s: float | None = None
    num_instances: int
    num_wanted: int | None = None
    """By the last look; null before the first one."""
    cold_start_s: float | None = None
    """From the launch of an instance until it serves: the median of the last ones."""
    next_check_in_s: float | None = None
    last: AutoscaleCheck | None = None
    last_change: AutoscaleCheck | None = None
    num_checks_by_reason: dict[str, int] = Field(default_factory=dict)
    """Since this controller started."""


class AutoscaleReport(AutoscaleStatus, AnswerModel):
    """The same by itself."""
