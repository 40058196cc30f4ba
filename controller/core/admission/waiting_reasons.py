"""What waits, and why: at the controller (`HeldView`), and at the head of an instance's queue
(`queue_reason`). For people to look at: it decides and changes nothing.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from controller.core.admission.placement import Placement
from controller.core.admission.waiting_requests import Held, HeldQueue, Key
from controller.core.load.room import Room
from controller.core.load.snapshot import InstanceSnapshot


class HeldReason(StrEnum):
    """The first that is true counts."""

    NO_INSTANCE = "no-instance"
    """No instance takes requests."""
    TOO_LARGE = "too-large"
    """It needs more blocks than any instance has."""
    KEPT = "kept"
    """An instance is reserved for it, and lacks blocks or places yet."""
    NEXT = "next"
    """It fits: it goes with the next status."""
    BEHIND = "behind"
    """It fits, but may not go ahead of those before it."""
    RESERVED = "reserved"
    """It fits only on instances that are reserved for others."""
    BATCH_FULL = "batch-full"
    """Where it finds the blocks all places of the batch are taken, or enough wait already."""
    FRAGMENTED = "fragmented"
    """It needs more blocks than are free on any instance, but not on all together."""
    MEMORY = "memory"
    """It needs more blocks than are free on all instances together."""


class OvertakenBy(StrEnum):
    """Who of the later requests may go ahead, where it fits and this one does not."""

    ANY = "any"
    """All of them: this one has an instance of its own."""
    ITS_RANK = "its-rank"
    """Those of its rank: no lower ones, as no instance is reserved for this one."""
    NOBODY = "nobody"
    """Overtaking is switched off, or all instances are reserved: the order is strict."""


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """`place`: 1 is the first in order. `instance_id`: the instance that is reserved for it;
    `lacking_blocks`: how many more must be free there; else how many where the fewest are missing,
    and None without an instance. `num_overtaken`: how many went ahead of it while it was the
    first."""

    held: Held
    place: int
    reason: HeldReason
    instance_id: str | None
    lacking_blocks: int | None
    overtaken_by: OvertakenBy
    num_overtaken: int


class HeldView:
    """`entries` in order, and as long as nothing else happens; a demand of 0 blocks is not known
    yet. `rooms` of the schedulable instances, by id. `placement`: None without late binding.

    How many are held costs nothing while late binding knows all of them: to copy 100,000 and make
    an index of them, in order to find one, took 40 ms."""

    def __init__(
        self,
        entries: HeldQueue | list[Held],
        placement: Placement | None,
        rooms: Mapping[str, Room],
    ) -> None:
        self.entries = entries
        self._index: dict[Key, int] | None = None
        self._placement = placement
        self._rooms = rooms if placement is not None else {}
        reserved = placement.reserved if placement is not None else {}
        self.reserved = {i: key for i, key in reserved.items() if i in self._rooms}
        """By instance, the request that it is reserved for."""
        fullest_first = sorted(self.reserved, key=lambda i: (-self._rooms[i].lacking_blocks(0), i))
        self._reserved_for = {
            self.reserved[instance_id]: instance_id for instance_id in fullest_first
        }
        """Of several that are reserved for a request the one that lacks the least."""
        self._open = [
            room for room in self._rooms.values() if room.instance_id not in self.reserved
        ]
        without = (held.rank for held in entries if held.key not in self._reserved_for)
        self._highest_without = next(without, None)
        """The highest rank of those without a reserved instance: no lower one may overtake."""

    @property
    def demand_blocks(self) -> int:
        """Of all together."""
        if isinstance(self.entries, HeldQueue):
            return self.entries.demand_blocks
        return sum(held.demand_blocks for held in self.entries)

    def ranks(self) -> Iterator[tuple[int, int, float]]:
        """(rank, how many, the earliest arrival) of each, the highest first. With 100,000 held
        requests a status took 47 ms when it looked at each, and takes 5."""
        begin = 0
        while begin < len(self.entries):
            first = self.entries[begin]
            end = bisect_right(self.entries, -first.rank, lo=begin, key=lambda held: -held.rank)
            yield first.rank, end - begin, first.arrival_time_s
            begin = end

    def reservations(self) -> Iterator[tuple[str, Held, int]]:
        """(instance, the request that it is reserved for, how many blocks lack there)."""
        for instance_id, key in self.reserved.items():
            held = self._placement.queue.get(key) if self._placement is not None else None
            if held is not None:
                lacking = self._rooms[instance_id].lacking_blocks(held.demand_blocks)
                yield instance_id, held, max(0, lacking)

    def oldest(self) -> HeldPlace | None:
        """The one that arrived first; a higher rank may go before it for long."""
        found, begin, arrival_s = None, 0, float("inf")
        for _, number, first_s in self.ranks():
            if first_s < arrival_s:
                found, arrival_s = begin, first_s
            begin += number
        return None if found is None else self._at(found)

    def first(self) -> HeldPlace | None:
        return self._at(0) if self.entries else None

    def find(self, key: Key) -> HeldPlace | None:
        """None if the request is not held."""
        if isinstance(self.entries, HeldQueue):
            index = self.entries.index(key)
        else:
            if self._index is None:
                self._index = {held.key: index for index, held in enumerate(self.entries)}
            index = self._index.get(key)
        return None if index is None else self._at(index)

    def best_reserved(self) -> dict[str, HeldPlace]:
        """By instance, the request that it is reserved for, where it lacks the least of those that
        are reserved for the same one."""
        found = ((instance_id, self.find(key)) for key, instance_id in self._reserved_for.items())
        return {instance_id: place for instance_id, place in found if place is not None}

    def _at(self, index: int) -> HeldPlace:
        held = self.entries[index]
        reserved_id = self._reserved_for.get(held.key)
        rooms = self._rooms.values() if reserved_id is None else (self._rooms[reserved_id],)
        lacking = (max(0, room.lacking_blocks(held.demand_blocks)) for room in rooms)
        overtaken = self._placement.num_overtaken if self._placement is not None else {}
        return HeldPlace(
            held,
            index + 1,
            self._reason(held, index),
            reserved_id,
            min(lacking, default=None),
            self._overtaken_by(held),
            overtaken.get(held.key, 0),
        )

    def _reason(self, held: Held, index: int) -> HeldReason:
        demand, rooms = held.demand_blocks, self._rooms.values()
        if not rooms:
            return HeldReason.NO_INSTANCE
        if all(room.capacity_blocks < demand for room in rooms):
            return HeldReason.TOO_LARGE
        if held.key in self._reserved_for:
            return HeldReason.KEPT
        if any(demand <= room.spare_blocks for room in self._open):
            return HeldReason.NEXT if self._may_go(held, index) else HeldReason.BEHIND
        if any(demand <= room.spare_blocks for room in rooms):
            return HeldReason.RESERVED
        if any(room.num_places <= 0 and room.lacking_blocks(demand) <= 0 for room in rooms):
            return HeldReason.BATCH_FULL
        in_all = sum(max(0, room.free_blocks) for room in rooms)
        return HeldReason.FRAGMENTED if demand <= in_all else HeldReason.MEMORY

    def _may_go(self, held: Held, index: int) -> bool:
        assert self._placement is not None
        if index == 0:
            return True
        outranked = self._highest_without is not None and held.rank < self._highest_without
        return self._placement.config.overtaking and not outranked

    def _overtaken_by(self, held: Held) -> OvertakenBy:
        if self._placement is None or not self._placement.config.overtaking or not self._open:
            return OvertakenBy.NOBODY
        return OvertakenBy.ANY if held.key in self._reserved_for else OvertakenBy.ITS_RANK


class QueueReason(StrEnum):
    BATCH_FULL = "batch-full"
    """As many requests run as the batch has places."""
    MEMORY = "memory"
    """The head's demand exceeds what is free in the whole cluster."""
    FRAGMENTED = "fragmented"
    """The head's demand exceeds what is free here, but not what is free in the cluster."""
    NEXT_STEP = "next-step"
    """There is room: the head waits for its turn within the steps' token budget."""


def queue_reason(
    snapshot: InstanceSnapshot, cluster: Iterable[InstanceSnapshot]
) -> QueueReason | None:
    """None without a queue. `cluster` holds all instances that may take requests."""
    head = snapshot.queue_head
    if head is None:
        return None
    if snapshot.max_num_running and snapshot.num_running >= snapshot.max_num_running:
        return QueueReason.BATCH_FULL
    if head.demand_blocks <= snapshot.admissible_blocks:
        return QueueReason.NEXT_STEP
    in_all = sum(max(0, other.admissible_blocks) for other in cluster)
    return QueueReason.FRAGMENTED if head.demand_blocks <= in_all else QueueReason.MEMORY
