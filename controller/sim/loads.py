"""The loads that a round of rescheduling pairs, of as few instances as will do.

A round looks at all instances each 0.1 s, and that took half of a run. But between two changes of
an instance its batch only decodes: free blocks fall from `freest_status` to `fullest_status`, and
freeness with them. So these two say, once per change, whether the instance can be a source or a
destination at all before the next one; the others need no status.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from controller.core.load.snapshot import InstanceSnapshot, Level
from controller.core.rescheduling.config import ReschedulingConfig
from controller.core.rescheduling.pairing import InstanceLoad, is_destination, is_source
from controller.sim.instance import SimInstance


@dataclass(slots=True)
class _Bounds:
    num_changes: int
    may_be_source: bool
    may_be_destination: bool


class Loads:
    def __init__(self, instances: Mapping[str, SimInstance], levels: Sequence[Level]) -> None:
        self._instances = instances
        self._levels = levels
        self._bounds: dict[str, _Bounds] = {}

    def in_pairs(self, config: ReschedulingConfig, closed: Collection[str]) -> list[InstanceLoad]:
        """Of all instances that can be in a pair now. Requests do not move to `closed` ones."""
        alive = [each for each in self._instances.values() if each.alive]
        if config.pairing != "defrag":
            return [self._load(each.status(), config, closed) for each in alive]
        bounds = [(each, self._bounds_of(each, config)) for each in alive]
        if not any(bound.may_be_source for _, bound in bounds):
            return []
        found: dict[str, InstanceLoad] = {}
        for each, bound in bounds:
            if bound.may_be_destination and each.instance_id not in closed:
                load = self._load(each.status(), config)
                if is_destination(load, config):
                    found[each.instance_id] = load
        if not found:  # Near saturation that is so in most rounds, with many sources.
            return []
        for each, bound in bounds:
            if bound.may_be_source and each.instance_id not in found:
                load = self._load(each.status(), config, closed)
                if is_source(load, config):
                    found[each.instance_id] = load
        return list(found.values())

    def _bounds_of(self, instance: SimInstance, config: ReschedulingConfig) -> _Bounds:
        known = self._bounds.get(instance.instance_id)
        if known is None or known.num_changes != instance.num_changes:
            status, fullest_status = instance.freest_status(), instance.fullest_status()
            freest = fullest = self._load(status, config)
            if fullest_status is not status:
                fullest = self._load(fullest_status, config)
            known = self._bounds[instance.instance_id] = _Bounds(
                instance.num_changes, is_source(fullest, config), is_destination(freest, config)
            )
        return known

    def _load(
        self, status: InstanceSnapshot, config: ReschedulingConfig, closed: Collection[str] = ()
    ) -> InstanceLoad:
        return InstanceLoad.of(
            status,
            self._levels,
            may_send=config.enabled or status.draining,
            may_receive=status.instance_id not in closed,
        )
