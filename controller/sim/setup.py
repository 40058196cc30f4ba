"""What is simulated: the cluster, how it is scheduled, and what happens to it."""

from dataclasses import dataclass, field

from controller.core.load.snapshot import DEFAULT_LEVELS, Level
from controller.core.settings import AutoscaleConfig, HoldingConfig, ReschedulingConfig
from controller.model.profile import LatencyProfile, Mode
from controller.sim.relief_baselines import DEFRAG, LLUMNIX


@dataclass(frozen=True, slots=True)
class SimPolicy:
    """`dispatch`: a name in `dispatch_baselines.DISPATCH`. `status_age_s`: the statuses that
    dispatch looks at may be so old. `by_rank`: whether requests have their ranks, or all the rank
    0. `holding`: late binding. `autoscale`: the number of instances follows the load. `pairing` and
    `victim`: names in `relief_baselines`."""

    name: str
    dispatch: str
    rescheduling: ReschedulingConfig
    levels: tuple[Level, ...] = DEFAULT_LEVELS
    status_age_s: float = 0.0
    by_rank: bool = True
    holding: HoldingConfig | None = None
    autoscale: AutoscaleConfig | None = None
    pairing: str = DEFRAG
    victim: str = LLUMNIX


@dataclass(frozen=True, slots=True)
class ClusterSetup:
    """`num_instances`: at the beginning, where the policy has auto-scaling."""

    profile: LatencyProfile
    policy: SimPolicy
    num_instances: int = 16
    mode: Mode = "chunked"
    prefix_caching: bool = False
    message_s: float = 0.001
    """How long a message between two instances is on its way."""
    sample_s: float = 1.0
    """How often the cluster is looked at for its averages over time."""
    limit_factor: float | None = 2.0
    """A client's limit of outputs, as a multiple of what it gets in the end; None: without."""
    faults: tuple["Fault", ...] = field(default=())

    @property
    def max_instances(self) -> int:
        autoscale = self.policy.autoscale
        return self.num_instances if autoscale is None else autoscale.max_instances


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind`: kill (the instance dies with its requests), drain, slow-steps or slow-links (by
    `factor`). Where instances come and go, one on an instance that is not there does nothing."""

    time_s: float
    kind: str
    instance_id: str
    factor: float = 1.0
