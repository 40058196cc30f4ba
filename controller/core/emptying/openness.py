"""Which instances take moves and requests now: the reasons against each instance
(`core.load.closed`), and which destinations are avoided for a while. Rounds, moves by hand,
forecasts, statuses and refusals all ask this module.

    pair cools     (source, destination) that failed together
    all cool       a destination that died, or failed with a second source
    fruitless      (source, destination) between which no request could go
    unlike         (source, destination) whose engines have different KV blocks
    failed lately  a request whose move failed (`relieving`)

A failed move may be the source's fault: a broken link fails with every destination. So a
destination first cools only for the source that failed with it, and for all sources once a second
one failed. A pair is avoided as fruitless because freeness does not show that a request takes its
headroom along, or is larger than the room of the freest destination; each round would choose the
same pair again.
"""

import functools
from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from controller.core.admission.instance_pool import InstanceRecord
from controller.core.admission.waiting_requests import Key
from controller.core.load.closed import Closed, Reasons, stop_arrivals
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.migration.refusals import MoveRefusal, refusal_between

_refusal_between = functools.lru_cache(maxsize=1024)(refusal_between)
"""Rounds ask this for each pair. A cluster has few different fingerprints."""

COOLING_S = 30.0
"""How long a destination cools after a failure. The time does not grow with further failures,
because destinations are few, and an attempt costs its source only one stage."""
FRUITLESS_S = 1.0
"""How long a fruitless pair is avoided. Within a second prefills end, and some dozens of blocks are
freed or filled. A fruitless order has two costs: one look at the source's requests, and no other
source gets its destination in that round."""
FRUITLESS_ROUNDS = 2
"""If rounds are far apart, a pair is avoided for at least this many rounds, so that the source
tries another destination in the next round."""

Who = TypeVar("Who", bound=Hashable)


class Avoided(Generic[Who]):
    """Keys that are avoided for a while, and why. All times are in seconds, by the caller's
    clock."""

    def __init__(self) -> None:
        self._until_s: dict[Who, tuple[float, str]] = {}
        """By key, the end of the avoidance and its reason. `at` forgets the avoidances that are
        over."""

    def avoid(self, key: Who, until_s: float, why: str = "") -> None:
        """Avoids the key until `until_s`, for this reason. An earlier entry for the key is
        replaced."""
        self._until_s[key] = until_s, why

    def remaining_s(self, key: Who, now_s: float) -> float:
        """How long the key is still avoided; 0 if it is not avoided."""
        known = self._until_s.get(key)
        return 0.0 if known is None else max(0.0, known[0] - now_s)

    def why(self, key: Who, now_s: float) -> str:
        """Why the key is avoided; empty if it is not avoided."""
        known = self._until_s.get(key)
        return "" if known is None or known[0] <= now_s else known[1]

    def at(self, now_s: float) -> Collection[Who]:
        """Returns the keys that are avoided now, and forgets all others."""
        if self._until_s:
            self._until_s = {key: each for key, each in self._until_s.items() if each[0] > now_s}
        return self._until_s.keys()

    def clear(self) -> None:
        self._until_s.clear()


class Cooling:
    """Destinations that failed lately: for a while no request is moved to them."""

    def __init__(self, cooling_s: float = COOLING_S) -> None:
        self._cooling_s = cooling_s
        self._pairs: Avoided[tuple[str, str]] = Avoided()
        """The pairs that cool: (source id, destination id)."""
        self._for_all: Avoided[str] = Avoided()
        """The destinations that cool for all sources."""

    def failed(self, source_id: str, destination_id: str, now_s: float) -> None:
        others = (source for source, to in self._pairs.at(now_s) if to == destination_id)
        if any(source != source_id for source in others):
            self._for_all.avoid(destination_id, now_s + self._cooling_s)
        self._pairs.avoid((source_id, destination_id), now_s + self._cooling_s)

    def died(self, destination_id: str, now_s: float) -> None:
        self._for_all.avoid(destination_id, now_s + self._cooling_s)

    def remaining_s(self, destination_id: str, now_s: float, source_id: str | None = None) -> float:
        """Seconds until the destination may be chosen for that source (None: for any)."""
        for_all_s = self._for_all.remaining_s(destination_id, now_s)
        if source_id is None:
            return for_all_s
        return max(for_all_s, self._pairs.remaining_s((source_id, destination_id), now_s))

    def destinations(self, now_s: float) -> Collection[str]:
        """The destinations that cool for all sources."""
        return self._for_all.at(now_s)

    def pairs(self, now_s: float) -> Collection[tuple[str, str]]:
        """The pairs (source id, destination id) that failed together and still cool."""
        return self._pairs.at(now_s)


def fruitless_until_s(now_s: float, interval_s: float) -> float:
    """When a pair that is fruitless now may be ordered again, with a round every `interval_s`."""
    return now_s + max(FRUITLESS_S, FRUITLESS_ROUNDS * interval_s)


# -- the reasons against an instance ---------------------------------------------------------------


class Instances(Protocol):
    """What the scheduler knows of the instances."""

    @property
    def instances(self) -> Mapping[str, InstanceRecord]:
        """All known instances, by id."""

    @property
    def ordered(self) -> Mapping[str, Reasons]:
        """For each instance id, the reasons of the spec against the instance. Instances without
        such reasons are left out."""

    @property
    def reserved(self) -> Mapping[str, Key]:
        """For each reserved instance, the waiting request for which it is reserved."""


class Openness:
    """Which instances are open, and why others are not. Whoever learns of a failed move reports it
    to `cooling`."""

    def __init__(
        self, scheduler: Instances, cooling: Cooling, *, allow_inexact: bool = False
    ) -> None:
        self.allow_inexact = allow_inexact
        self._scheduler = scheduler
        self._cooling = cooling

    def closed_by(
        self, instance_id: str, now_s: float, source_id: str | None = None
    ) -> tuple[Closed, ...]:
        """All reasons against the instance in the order of `Closed`, including the reasons that
        only concern moves from `source_id` (None: from any source)."""
        record = self._scheduler.instances.get(instance_id)
        if record is None:
            return (Closed.NOT_SERVING,)
        reasons = record.closed_by
        if instance_id in self._scheduler.reserved:
            reasons = (*reasons, Closed.RESERVED)
        if self._cooling.remaining_s(instance_id, now_s, source_id):
            reasons = (*reasons, Closed.COOLING)
        return reasons

    def sources(self) -> Iterator[InstanceSnapshot]:
        """The last statuses of the instances where moves may begin. An instance that hangs is left
        out, as it would not send anything."""
        for record in self._scheduler.instances.values():
            if record.snapshot is not None and record.may_send:
                yield record.snapshot

    def destinations(self, now_s: float, source_id: str) -> list[InstanceSnapshot]:
        """The last statuses of the instances to which moves from the source may go."""
        return [
            record.snapshot
            for instance_id, record in self._scheduler.instances.items()
            if record.snapshot is not None
            and not self.unlike(source_id, instance_id)
            and not stop_arrivals(self.closed_by(instance_id, now_s, source_id))
        ]

    def unlike(self, source_id: str, destination_id: str) -> MoveRefusal | None:
        """Why no request at all can move between these instances, because of their engines; None if
        requests can, or if an instance is not known. Instances with different engines are in one
        cluster during an upgrade (`fleet.rolling`)."""
        source = self._scheduler.instances.get(source_id)
        there = self._scheduler.instances.get(destination_id)
        if source is None or there is None or source.fingerprint == there.fingerprint:
            return None
        prints = source.fingerprint, there.fingerprint
        return _refusal_between(*prints, allow_inexact=self.allow_inexact)

    def closed_to_moves(self, now_s: float) -> set[str]:
        """The instances that report and to which no move may go from any source."""
        scheduler = self._scheduler
        ordered = (i for i, reasons in scheduler.ordered.items() if stop_arrivals(reasons))
        reserved = scheduler.reserved if Closed.RESERVED.stops_arrivals else ()
        cooling = self._cooling.destinations(now_s) if Closed.COOLING.stops_arrivals else ()
        return {*reserved, *ordered, *cooling}
