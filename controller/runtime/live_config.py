"""The configuration that may change while the cluster runs."""

from dataclasses import dataclass, field

from controller.core.scheduler_config import SchedulerConfig
from controller.core.settings import AutoscaleConfig, ReschedulingConfig
from controller.runtime.messages.members import FrontendLimits


@dataclass(frozen=True, slots=True)
class LiveAutoscale:
    """`start_timeout_s`: an instance that does not serve for so long counts as one that cannot
    start."""

    config: AutoscaleConfig = field(
        default_factory=lambda: AutoscaleConfig(first_check_after_s=10.0)
    )
    start_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class LiveConfig:
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    rescheduling: ReschedulingConfig = field(default_factory=ReschedulingConfig)
    frontends: FrontendLimits = field(default_factory=FrontendLimits)
    autoscale: LiveAutoscale = field(default_factory=LiveAutoscale)
    max_events: int = 10_000
