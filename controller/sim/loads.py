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
        self._kept: dict[str, tuple[InstanceSnapshot, InstanceLoad]] = {}
        """The last load of each instance, and of which status it is."""

    def in_pairs(self, config: ReschedulingConfig, closed: Collection[str]) -> list[InstanceLoad]:
        """Of all instances that can be in a pair now. Requests do not move to `closed` ones."""
        alive = [each for each in self._instances.values() if each.alive]
        if config.pairing != "defrag":
            return [self._load(each.status(), config, closed) for each in alive]
        sources, destinations = list[SimInstance](), list[SimInstance]()
        for each in alive:
            bounds = self._bounds.get(each.instance_id)
            if bounds is None or bounds.num_changes != each.num_changes:
                bounds = self._bounds[each.instance_id] = self._bounds_of(each, config)
            if bounds.may_be_source:
                sources.append(each)
            if bounds.may_be_destination and each.instance_id not in closed:
                destinations.append(each)
        if not sources or not destinations:
            return []
        found = list[InstanceLoad]()
        # The fewer ones first: near saturation there are no destinations in most rounds, and with
        # little load no sources.
        kinds = ((sources, is_source), (destinations, is_destination))
        for instances, is_one in sorted(kinds, key=lambda kind: len(kind[0])):
            loads = [self._load_now(each, config) for each in instances]
            of_kind = [load for load in loads if is_one(load, config)]
            if not of_kind:
                return []
            found += of_kind
        return found

    def _bounds_of(self, instance: SimInstance, config: ReschedulingConfig) -> _Bounds:
        freest = self._load(instance.freest_status(), config)
        may_be_source = is_source(freest, config) or is_source(
            self._load(instance.fullest_status(), config), config
        )
        return _Bounds(instance.num_changes, may_be_source, is_destination(freest, config))

    def _load_now(self, instance: SimInstance, config: ReschedulingConfig) -> InstanceLoad:
        status = instance.status()
        kept = self._kept.get(instance.instance_id)
        if kept is None or kept[0] is not status:
            kept = self._kept[instance.instance_id] = status, self._load(status, config)
        return kept[1]

    def _load(
        self, status: InstanceSnapshot, config: ReschedulingConfig, closed: Collection[str] = ()
    ) -> InstanceLoad:
        return InstanceLoad.of(
            status,
            self._levels,
            may_send=config.enabled or status.draining,
            may_receive=status.instance_id not in closed,
        )
