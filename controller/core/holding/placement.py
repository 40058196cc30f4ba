"""Who of the held requests goes where now, and which instances are kept for the first of those
that fit nowhere.

    first       a request goes, in order, to the best instance on which it fits (`first_token`)
    overtaking  who fits goes ahead of those that do not
    reserved    nothing else is placed on an instance that is kept for a request (`kept`) until it
                goes, there or elsewhere. So it waits at most for those that run there to leave,
                however many overtake it.
    ranks       a lower rank overtakes higher ones only when each of them has such an instance
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from controller.core.admission.waiting_requests import Held, HeldQueue, Key
from controller.core.holding.first_token import Cached, Score, best_fitting
from controller.core.holding.kept import kept_for
from controller.core.holding.kept_anew import Settled
from controller.core.load.room import Room
from controller.core.settings import HoldingConfig

ScoreOf = Callable[[int], Score]
"""Of a request's rank."""
CachedOf = Callable[[Key], Cached | None]


@dataclass(frozen=True, slots=True)
class Placed:
    held: Held
    instance_id: str


class Placement:
    """`queue` is what waits; `reserved` the request for which an instance is kept, by its id."""

    def __init__(self, config: HoldingConfig) -> None:
        self.config = config
        self.queue = HeldQueue()
        self.reserved: dict[str, Key] = {}
        self.num_overtaken: dict[Key, int] = {}
        """How many went ahead of a request while it was the first; those that none overtook are
        not in it."""
        self._settled_in: Mapping[str, Room] | None = None
        """The rooms in which nothing was left to do when `place` last ended."""
        self._settled: Settled | None = None
        """Of the instances that are kept."""

    def place(
        self,
        rooms: Mapping[str, Room],
        score_of: ScoreOf,
        cached_of: CachedOf,
        now_s: float,
        *,
        same_or_less: bool = False,
    ) -> Iterator[Placed]:
        """One after the other; the caller dispatches each before it asks for the next, so that
        scores are up to date. `rooms` of all schedulable instances, by id; they are changed, and
        the caller may replace them. `same_or_less`: since the last call nothing was pushed, and
        none of these very rooms grew."""
        if same_or_less and self._settled_in is rooms:
            # What fitted nowhere still fits nowhere. Most statuses only tell of decoding, and to
            # look at all rooms for each took a sixth of a simulated run.
            if not self.is_settled(rooms, now_s):
                self._reserve(rooms, now_s)
            return
        self._settled_in = rooms
        self._forget_reserved(rooms)
        for instance_id, key in list(self.reserved.items()):
            held = self.queue.get(key)
            if held is not None and held.demand_blocks <= rooms[instance_id].spare_blocks:
                yield self._go(held, rooms[instance_id])
        while self.queue:
            found = self._next(rooms, score_of, cached_of)
            if found is None:
                break
            yield self._go(*found)
        self._reserve(rooms, now_s)

    def is_settled(self, rooms: Mapping[str, Room], now_s: float) -> bool:
        """Whether `place` would do nothing, with `same_or_less`: nothing fits, and the same
        instances are kept."""
        return (
            self._settled_in is rooms
            and self._settled is not None
            and self._settled.lasts(rooms, now_s)
        )

    def discard(self, key: Key) -> Held | None:
        """Takes a request out, wherever it stands."""
        self._settled_in = None
        self.num_overtaken.pop(key, None)
        self.reserved = {i: other for i, other in self.reserved.items() if other != key}
        return self.queue.discard(key)

    def check(self) -> None:
        """Raises AssertionError if the books disagree."""
        self.queue.check()
        assert all(key in self.queue for key in self.reserved.values()), "kept for nobody"
        assert all(key in self.queue for key in self.num_overtaken), "overtaken, and not there"

    # ------------------------------------------------------------------------------------

    def _next(
        self, rooms: Mapping[str, Room], score_of: ScoreOf, cached_of: CachedOf
    ) -> tuple[Held, Room] | None:
        """The first in order that fits and may go, and where to."""
        open_rooms = [room for room in rooms.values() if room.instance_id not in self.reserved]
        largest = max([room.spare_blocks for room in open_rooms], default=0)
        first = self.queue.first()
        assert first is not None
        held = first if first.demand_blocks <= largest else self._overtaking(largest)
        if held is None:
            return None
        score, cached = score_of(held.rank), cached_of(held.key)
        room = best_fitting(open_rooms, held.demand_blocks, score, cached, self.config)
        return None if room is None else (held, room)

    def _overtaking(self, largest: int) -> Held | None:
        """The first that fits, if it may go ahead of those that do not."""
        held = self.queue.first_fitting(largest) if self.config.overtaking else None
        return held if held is not None and self._may_overtake(held) else None

    def _may_overtake(self, held: Held) -> bool:
        with_instance = set(self.reserved.values())
        for other in self.queue:
            if other.rank <= held.rank:
                return True
            if other.key not in with_instance:
                return False
        return True

    def _go(self, held: Held, room: Room) -> Placed:
        first = self.queue.first()
        if first is not None and first.key != held.key:
            self.num_overtaken[first.key] = self.num_overtaken.get(first.key, 0) + 1
        self.discard(held.key)
        room.take(held.demand_blocks)
        return Placed(held, room.instance_id)

    def _forget_reserved(self, rooms: Mapping[str, Room]) -> None:
        self.reserved = {
            instance_id: key
            for instance_id, key in self.reserved.items()
            if instance_id in rooms and key in self.queue
        }

    def _reserve(self, rooms: Mapping[str, Room], now_s: float) -> None:
        kept = kept_for(self.reserved, self.queue, rooms, self.config, now_s)
        if kept != self.reserved:
            self.reserved = kept
            self._settled_in = None
            return
        self._settled = Settled.of(kept, self.queue, rooms, self.config, now_s)
