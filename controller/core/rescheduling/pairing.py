"""Which instance sends requests to which other one in a round, chosen by one number per instance.

Sources are below one threshold, destinations above another; the lowest source goes with the highest
destination, the next with the next. A draining instance is below all others. One that goes at a
moment (`must_go`), and got no partner that way, takes the freest that is open at all. Each instance
is in one pair at most. Pairs may be left out: the source then takes the freest destination that
remains for it, and a later source may take the other one. Pairing takes n log n of instances and
pairs left out.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import Self

from controller.core.load.freeness import freeness, freest_first
from controller.core.load.snapshot import InstanceSnapshot, Level
from controller.core.settings import ReschedulingConfig
from controller.core.value import value


@value
class InstanceLoad:
    """`may_send`: the instance is alive and has requests. `may_receive`: it is schedulable and not
    cooling after a failure; what follows from the other fields need not be in it. `must_go`: it
    will be ended, whatever it has then.
    """

    instance_id: str
    freeness: float
    draining: bool = False
    num_evicted_queued: int = 0
    may_send: bool = True
    may_receive: bool = True
    must_go: bool = False

    @classmethod
    def of(
        cls,
        snapshot: InstanceSnapshot,
        levels: Sequence[Level],
        *,
        may_send: bool,
        may_receive: bool,
        must_go: bool = False,
    ) -> Self:
        return cls(
            snapshot.instance_id,
            freeness(snapshot, levels),
            snapshot.draining,
            snapshot.num_evicted_queued,
            may_send and snapshot.num_running + snapshot.num_queued > 0,
            may_receive,
            must_go,
        )

    @property
    def freest_first(self) -> tuple[float, str]:
        return freest_first(self.freeness, self.instance_id)

    @property
    def lowest_first(self) -> tuple[float, str]:
        return -math.inf if self.draining else self.freeness, self.instance_id

    @property
    def is_open(self) -> bool:
        """Requests may be moved to this instance at all."""
        return self.may_receive and not self.draining and not self.num_evicted_queued


@value
class Pair:
    """Freeness in decode steps, at the moment of pairing; that of a draining source is -inf."""

    source_id: str
    destination_id: str
    source_freeness: float
    destination_freeness: float


LoadPairs = list[tuple[InstanceLoad, InstanceLoad]]
LeftOut = Collection[tuple[str, str]]
"""(source id, destination id) of pairs that must not be chosen."""


def is_source(load: InstanceLoad, config: ReschedulingConfig) -> bool:
    if not load.may_send:
        return False
    return load.draining or load.num_evicted_queued > 0 or load.freeness < config.source_below_steps


def is_destination(load: InstanceLoad, config: ReschedulingConfig) -> bool:
    return load.is_open and load.freeness > config.destination_above_steps


def pair(
    loads: Sequence[InstanceLoad], config: ReschedulingConfig, left_out: LeftOut = frozenset()
) -> tuple[Pair, ...]:
    """The lowest source first."""
    pairs = _matched(
        (load for load in loads if is_source(load, config)),
        (load for load in loads if is_destination(load, config)),
        left_out,
    )
    taken = {each.instance_id for both in pairs for each in both}
    alone = [load for load in loads if load.instance_id not in taken]
    pairs += _matched(
        (load for load in alone if load.must_go and load.may_send),
        (load for load in alone if load.is_open),
        left_out,
    )
    return tuple(
        Pair(source.instance_id, to.instance_id, source.freeness, to.freeness)
        for source, to in pairs
    )


def _matched(
    sources: Iterable[InstanceLoad], destinations: Iterable[InstanceLoad], left_out: LeftOut
) -> LoadPairs:
    """The lowest source takes the freest destination that is not left out for it, then the next
    source takes one of the rest. Where nothing is left out, the i-th source gets the i-th
    destination."""
    lowest_first = sorted(sources, key=attrgetter("lowest_first"))
    if not lowest_first:
        return []
    free = sorted(destinations, key=attrgetter("freest_first"))
    pairs = []
    for source in lowest_first:
        place = _first_for(source, free, left_out)
        if place is not None:
            pairs.append((source, free.pop(place)))
    return pairs


def _first_for(source: InstanceLoad, free: Sequence[InstanceLoad], left_out: LeftOut) -> int | None:
    """The place in `free` of the first destination that is not left out for `source`."""
    for place, destination in enumerate(free):
        if (source.instance_id, destination.instance_id) not in left_out:
            return place
    return None
