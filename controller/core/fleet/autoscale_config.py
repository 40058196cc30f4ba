"""What auto-scaling goes by. Range, interval and first check are those of the Llumnix authors'
experiments, in blocks of 16 tokens per request there.

Operators set how many instances there may be, the range, the targets and the interval. The rest is
fixed in a cluster, and is here so that the simulator can compare.
"""

from dataclasses import dataclass
from typing import Literal

AutoscaleMode = Literal["off", "dry-run", "on"]


@dataclass(frozen=True, slots=True)
class AutoscaleConfig:
    """Raises ValueError if the range or the bounds are empty, or a time makes no sense."""

    up_below_steps: float = 160.0
    """x: more instances while F_scale is below this."""
    down_above_steps: float = 960.0
    """y: one instance less if F_scale without its memory is still above this. Not below x, or the
    cluster would grow and shrink in turn under a load that does not change."""
    min_instances: int = 1
    max_instances: int = 16
    max_added: int = 4
    """How many instances one decision may add because of the load. The authors' code adds several,
    too, and removes one."""
    target_ttft_s: float | None = None
    """More instances while the estimate of the P99 for the next minute is above this."""
    target_tpot_s: float | None = None
    check_interval_s: float = 10.0
    first_check_after_s: float = 100.0
    up_persistence_s: float = 10.0
    """For how long each check must have found F_scale below x; a cluster has its interval for it,
    so that two checks in a row must. A load between two checks is not seen; with 0 one check is
    enough."""
    down_persistence_s: float = 10.0
    """For how long each check must have found room for one instance less; as `up_persistence_s`."""
    retry_failed_start_s: float = 300.0
    """For how long none is started after an instance could not start: what keeps one from starting
    keeps the next one too."""
    cold_start_s: float | None = None
    """How long an instance takes from its launch until it serves, where that is known, for events
    and simulations. No decision goes by it: instances that start count as empty all that time."""

    def __post_init__(self) -> None:
        if not self.up_below_steps <= self.down_above_steps:
            raise ValueError("up_below_steps must not be above down_above_steps")
        if not 1 <= self.min_instances <= self.max_instances:
            raise ValueError("min_instances must be from 1 to max_instances")
        if self.max_added < 1:
            raise ValueError("max_added must be at least 1")
        if not self.check_interval_s > 0:
            raise ValueError("check_interval_s must be positive")
        for name in (
            "first_check_after_s",
            "up_persistence_s",
            "down_persistence_s",
            "retry_failed_start_s",
        ):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative")
        for target_s in (self.target_ttft_s, self.target_tpot_s):
            if target_s is not None and not target_s > 0:
                raise ValueError("a target must be positive")
        if self.cold_start_s is not None and not self.cold_start_s >= 0:
            raise ValueError("cold_start_s must not be negative")
