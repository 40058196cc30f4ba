"""`[autoscale]`: when the cluster adds instances by itself, and when it removes some."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from controller.api.settings.bounds import MAX_INSTANCES
from controller.api.settings.table import Seconds, Table

AutoscaleMode = Literal["off", "dry-run", "on"]
Steps = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=MAX_INSTANCES)]


class AutoscaleTable(Table):
    """`[autoscale]`: how many instances there are to be for the load; docs/scheduling.md."""

    mode: AutoscaleMode = "off"
    """dry-run decides as on does, and only says so."""
    min_instances: Count = 1
    """With no request at all, so many stay."""
    max_instances: Count = 16
    """No more are added, and one goes at a time while there are more."""
    up_below_steps: Steps = 160.0
    """Instances are added while the freeness of the whole cluster is lower."""
    down_above_steps: Steps = 960.0
    """One instance goes if the freeness of the cluster without it is higher; not lower than
    `up_below_steps`."""
    target_ttft_s: Seconds | None = None
    """Instances are added too while the P99 time to first token that is estimated for the next
    minute is longer; None: no target."""
    target_tpot_s: Seconds | None = None
    """As `target_ttft_s`, of the mean time per output token of a request."""
    check_interval_s: Annotated[float, Field(ge=0.1, le=3600)] = 10.0
    """From one look at the load to the next, and before the first one. Two looks in a row must have
    found the same before it is acted on."""

    @model_validator(mode="after")
    def _ranges(self) -> Self:
        if self.up_below_steps > self.down_above_steps:
            raise ValueError(
                f"up_below_steps ({self.up_below_steps:g}) must not exceed"
                f" down_above_steps ({self.down_above_steps:g})"
            )
        if self.min_instances > self.max_instances:
            raise ValueError(
                f"min_instances ({self.min_instances}) must not exceed"
                f" max_instances ({self.max_instances})"
            )
        return self
