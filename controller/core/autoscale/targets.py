"""Whether targets for TTFT and TPOT hold with more instances, or with one less."""

from dataclasses import dataclass

from controller.core.autoscale.config import AutoscaleConfig
from controller.core.autoscale.estimate import NOTHING_KNOWN, Estimate, Target, estimate
from controller.core.autoscale.load import ClusterLoad

TARGET_MARGIN = 0.8
"""One instance less only if with it each estimate is at most this share of its target: an estimate
that is nearer would soon call for it again."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """A target that is not set, or of whose latency nothing is known, is not missed."""

    config: AutoscaleConfig
    load: ClusterLoad

    def estimate(self, num_more: int) -> Estimate:
        """For the next minute, once all that start serve, and so many instances besides."""
        return self._with(len(self.load.schedulable) + self.load.num_starting + num_more)

    def estimate_less(self) -> Estimate:
        """With one instance less than serve now."""
        return self._with(len(self.load.schedulable) - 1)

    def missed(self, num_more: int = 0) -> Target | None:
        return self._above(self.estimate(num_more), 1.0)

    def helps(self, num_more: int = 0) -> bool:
        """Whether a target is missed with so many more, and by less with one more yet."""
        found = self.estimate(num_more)
        further = self.estimate(num_more + 1)
        return any(
            _is_less(further.of(target), found.of(target))
            for target in Target
            if self._misses(found, target, 1.0)
        )

    def missed_with_one_less(self) -> Target | None:
        """The target that would not hold with its margin. While the last minute tells of another
        number of instances, that is any."""
        targets = [target for target in Target if self._of(target) is not None]
        if targets and self.load.recent is not None and not self.load.recent.settled:
            return targets[0]
        return self._above(self.estimate_less(), TARGET_MARGIN)

    def _with(self, num_instances: int) -> Estimate:
        if self.load.recent is None:
            return NOTHING_KNOWN
        return estimate(self.load.recent, self.load.crowd, num_instances)

    def _above(self, found: Estimate, margin: float) -> Target | None:
        return next((each for each in Target if self._misses(found, each, margin)), None)

    def _misses(self, found: Estimate, target: Target, margin: float) -> bool:
        wanted_s, found_s = self._of(target), found.of(target)
        return wanted_s is not None and found_s is not None and found_s > margin * wanted_s

    def _of(self, target: Target) -> float | None:
        config = self.config
        return config.target_ttft_s if target is Target.TTFT else config.target_tpot_s


def _is_less(one_s: float | None, other_s: float | None) -> bool:
    return one_s is not None and other_s is not None and one_s < other_s
