"""What the global scheduler (`core.scheduler`) and its pool of instances go by.

A file of its own: the pool's room lies below the scheduler, and `core.settings` below the levels.
"""

from dataclasses import dataclass, field

from controller.core.load.snapshot import DEFAULT_LEVELS, Level
from controller.core.settings import HoldingConfig, KeyLimits, SchedulerSettings


@dataclass(frozen=True, slots=True)
class SchedulerConfig(SchedulerSettings):
    policy: str = "llumnix"
    """By default one without late binding, as there is no `holding`."""
    levels: tuple[Level, ...] = DEFAULT_LEVELS
    holding: HoldingConfig | None = None
    """Late binding: a request that fits nowhere is held too, at most `holding.max_held_reqs` of
    them, and without a timeout while any instance is schedulable. Set if, and only if, `policy`
    has late binding."""
    key_limits: KeyLimits = field(default_factory=KeyLimits)
    names_candidates: bool = True
    """Whether a decision names the instances that it was made from, with their scores. A simulation
    records no decisions, and half of the time of one goes into the names."""
