"""What the pool of instances goes by, of all that the scheduler is set to."""

from collections.abc import Sequence
from dataclasses import dataclass

from controller.core.dispatch.policies import Policy
from controller.core.load.snapshot import Level


@dataclass(frozen=True, slots=True)
class PoolConfig:
    policy: Policy
    levels: Sequence[Level]
    stall_timeout_s: float
    """An instance whose last status is older gets no requests."""
    room_to_grow_tokens: int | None
    """Set with late binding only."""
    names_candidates: bool
    """Of the policy's choices (`SchedulerConfig`)."""
