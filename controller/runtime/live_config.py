"""The configuration that may change while the cluster runs."""

from dataclasses import dataclass, field

from controller.core.scheduler_config import SchedulerConfig
from controller.core.settings import AutoscaleConfig, ReschedulingConfig
from controller.ports.engine import StepPhase
from controller.runtime.messages.operations import FrontendLimits


@dataclass(frozen=True, slots=True)
class LiveAutoscale:
    """`start_timeout_s`: an instance that does not serve for so long counts as one that cannot
    start."""

    config: AutoscaleConfig = field(
        default_factory=lambda: AutoscaleConfig(first_check_after_s=10.0)
    )
    start_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class SlowLimits:
    """An instance whose steps take `factor` times as long as the others' for `after_s` is emptied;
    0: none is."""

    factor: float = 0.0
    after_s: float = 30.0


@dataclass(frozen=True, slots=True)
class LiveConfig:
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    rescheduling: ReschedulingConfig = field(default_factory=ReschedulingConfig)
    frontends: FrontendLimits = field(default_factory=FrontendLimits)
    autoscale: LiveAutoscale = field(default_factory=LiveAutoscale)
    status_interval_s: float = 0.02
    status_phases: tuple[StepPhase, ...] = ("before-return",)
    """When instances push their statuses; empty: never, they are asked."""
    fence_after_s: float = 30.0
    """An instance that reports nothing for so long is taken for dead; 0: never."""
    slow: SlowLimits = field(default_factory=SlowLimits)
    max_events: int = 10_000
