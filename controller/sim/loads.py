"""The statuses that a round of rescheduling looks at, of as few instances as will do.

A round looks at all instances each 0.1 s. But between two changes of an instance its batch only
decodes, and freeness falls: one that cannot be a destination stays so, and one that is no source
becomes one at a known moment (`moments`). In most rounds there is nobody of one of the two kinds.
"""

from collections.abc import Callable, Collection

from controller.core.load.snapshot import InstanceSnapshot
from controller.core.rescheduling.pairing import InstanceLoad, is_destination, is_source
from controller.core.settings import ReschedulingConfig
from controller.sim.instance import SimInstance
from controller.sim.moments import Moments


class Loads:
    """`changed` has to be called whenever something else happens on an instance than to decode,
    `gone` when it serves no more."""

    def __init__(
        self, load_of: Callable[[InstanceSnapshot], InstanceLoad], config: ReschedulingConfig
    ) -> None:
        self._load_of = load_of
        self._config = config
        self._sources = Moments(lambda status: is_source(load_of(status), config))
        self._changed: dict[SimInstance, None] = {}
        """Of these it is not known whether they may be destinations."""
        self._destinations: dict[SimInstance, None] = {}
        """Those that may be, before they change next."""

    def changed(self, instance: SimInstance) -> None:
        self._sources.changed(instance)
        self._changed[instance] = None

    def gone(self, instance: SimInstance) -> None:
        self._sources.gone(instance)
        self._changed.pop(instance, None)
        self._destinations.pop(instance, None)

    def in_pairs(self, now_s: float, closed: Collection[str]) -> list[InstanceSnapshot]:
        """Of all instances that can be in a pair now. Requests do not move to `closed` ones."""
        config = self._config
        self._look_for_destinations()
        if not self._destinations:
            return []
        sources = self._sources.come(now_s)
        destinations = [each for each in self._destinations if each.instance_id not in closed]
        if not sources or not destinations:
            return []
        found = list[InstanceSnapshot]()
        # The fewer ones first: with little load there are no sources.
        kinds = ((sources, is_source), (destinations, is_destination))
        for instances, is_one in sorted(kinds, key=lambda kind: len(kind[0])):
            statuses = [each.status() for each in instances]
            of_kind = [each for each in statuses if is_one(self._load_of(each), config)]
            if not of_kind:
                return []
            found += of_kind
        return found

    def _look_for_destinations(self) -> None:
        for instance in self._changed:
            if is_destination(self._load_of(instance.freest_status()), self._config):
                self._destinations[instance] = None
            else:
                self._destinations.pop(instance, None)
        self._changed.clear()
