"""What the global scheduler (`core.scheduler`) is set to."""

from dataclasses import dataclass, field

from controller.core.dispatch.policies import POLICIES, Policy
from controller.core.load.snapshot import DEFAULT_LEVELS, Level
from controller.core.settings import HoldingConfig, KeyLimits


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    levels: tuple[Level, ...] = DEFAULT_LEVELS
    policy: Policy = POLICIES["llumnix"]
    max_held_reqs: int = 1024
    hold_timeout_s: float = 30.0
    stall_timeout_s: float = 10.0
    """An instance whose last status is older than this gets no requests."""
    holding: HoldingConfig | None = None
    """Late binding: a request that fits nowhere is held too, at most `holding.max_held_reqs` of
    them, and without a timeout while any instance is schedulable. Set if, and only if, `policy`
    has late binding."""
    key_limits: KeyLimits = field(default_factory=KeyLimits)
    names_candidates: bool = True
    """Whether a decision names the instances that it was made from, with their scores. A simulation
    records no decisions, and half of the time of one goes into the names."""
