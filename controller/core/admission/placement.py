"""Which waiting request goes where now, and which instances are reserved for the first of those
that fit nowhere: late binding, of `llumnix+`.

An instance's queue binds a request to the one place where it waits. Held back, it goes wherever it
fits first, and room is made for it where that takes the least (`room_orders`).

    first       a request goes, in order, to the best instance on which it fits (`best_fitting`)
    overtaking  who fits goes ahead of those that do not
    reserved    nothing else is placed on an instance that is reserved for a request
                (`reservations`) until it goes, there or elsewhere. So it waits at most for those
                that run there to leave, however many overtake it.
    ranks       a lower rank overtakes higher ones only when each of them has such an instance
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from controller.core.admission.policies import best_place
from controller.core.admission.waiting_requests import Held, HeldQueue, Key
from controller.core.load.room import Room
from controller.core.settings import HoldingConfig
from controller.core.value import value

Score = Callable[[str], float]
"""Of an instance id, for the request: larger is better."""
Cached = Callable[[str], int]
"""Of an instance id: how many tokens of the request the prefix cache there is expected to have."""
ScoreOf = Callable[[int], Score]
"""Of a request's rank."""
CachedOf = Callable[[Key], Cached | None]


@dataclass(frozen=True, slots=True)
class Placed:
    held: Held
    instance_id: str


class Placement:
    """`queue` is what waits; `reserved` has, by instance, the request that it is reserved for."""

    def __init__(self, config: HoldingConfig) -> None:
        self.config = config
        self.queue = HeldQueue()
        self.reserved: dict[str, Key] = {}
        self.num_overtaken: dict[Key, int] = {}
        """How many went ahead of a request while it was the first; those that none overtook are
        not in it."""
        self._settled_in: Mapping[str, Room] | None = None
        """The rooms in which nothing was left to do when `place` last ended."""
        self._settled: _Settled | None = None
        """Of the instances that are reserved."""

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
        instances are reserved."""
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
        assert all(key in self.queue for key in self.reserved.values()), "reserved for nobody"
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
        reserved = reservations(self.reserved, self.queue, rooms, self.config, now_s)
        if reserved != self.reserved:
            self.reserved = reserved
            self._settled_in = None
            return
        self._settled = _Settled.of(reserved, self.queue, rooms, self.config, now_s)


# -- to which of the instances on which a request fits it goes ---------------------------

ROOMY = 0.5
"""An instance with at least this share of its memory to spare, the request taken in, is not short
of memory."""


def best_fitting(
    rooms: Iterable[Room],
    demand_blocks: int,
    score: Score,
    cached: Cached | None,
    config: HoldingConfig,
) -> Room | None:
    """Of the rooms in which such a request fits, the one that it goes to: one of those where its
    first token comes soonest, and of these the freest; where memory is short even on the freest,
    that one. `rooms`: ids ascending, by which `best_place` breaks ties. `cached` is None if nothing
    is.

    Freeness is about memory alone. Where every instance has room, it hardly tells one with a long
    prompt to compute from one with none, nor one that has the request's beginning in its prefix
    cache: on the Mooncake trace the mean TTFT was 1.46 s by freeness alone and is 0.59 s so
    (decision 0032).
    """
    fitting = [room for room in rooms if demand_blocks <= room.spare_blocks]
    freest = _freest(fitting, score)
    if freest is None or not (config.by_prefill or config.by_prefix):
        return freest
    # Written out, as with 64 instances these lines were a third of a simulated run.
    roomy = [r for r in fitting if r.spare_blocks - demand_blocks >= ROOMY * r.capacity_blocks]
    if not any(room is freest for room in roomy):
        return freest
    ahead = _tokens_ahead(roomy, cached, config)
    most = min(ahead) + config.prefill_slack_tokens
    soonest = [room for room, tokens in zip(roomy, ahead, strict=True) if tokens <= most]
    return freest if any(room is freest for room in soonest) else _freest(soonest, score)


def _freest(rooms: Sequence[Room], score: Score) -> Room | None:
    if not rooms:
        return None
    return rooms[best_place([score(room.instance_id) for room in rooms])]


def _tokens_ahead(
    rooms: Sequence[Room], cached: Cached | None, config: HoldingConfig
) -> Sequence[int]:
    """How many tokens each computes before the request's first one comes out. The prompt's length
    is the same everywhere and so is left out."""
    ahead = [room.prefill_tokens for room in rooms] if config.by_prefill else [0] * len(rooms)
    if cached is None or not config.by_prefix:
        return ahead
    spared = (cached(room.instance_id) for room in rooms)
    return [tokens - less for tokens, less in zip(ahead, spared, strict=True)]


# -- which instances are reserved for which of the waiting requests ----------------------

MAX_LOOKED_AT = 64
"""So many of the first held requests may have an instance reserved for them."""
EXCHANGED_BELOW = 0.75
"""Another instance takes the place of a reserved one if it lacks less than this share of what that
one lacks. Without it the first waited three times as long on S-L (decision 0031)."""


def reservations(
    before: Mapping[str, Key],
    queue: HeldQueue,
    rooms: Mapping[str, Room],
    config: HoldingConfig,
    now_s: float,
) -> dict[str, Key]:
    """What is reserved from now on, by instance id; `before` is what was until now.

    first   the first one has an instance at once
    others  each has one when it has waited `reserve_after_s`, while no more are reserved than the
            share allows
    more    what is left of `reserved_share` goes to the first, one more each `reserve_after_s`:
            requests move from one of its instances to the others, so that what they free comes
            together
    best    it is the one that lacks the least. One that lacks much less later takes its place: on
            the reserved one long requests may go on growing for minutes
    ranks   a higher rank takes the instance of a lower one
    """
    first = queue.first()
    if first is None:
        return {}
    reserved = _exchanged(before, queue, rooms)
    waited_s = now_s - first.since_s
    most = _most_reserved(config, len(rooms), waited_s)
    _yield_to(first, reserved, queue, most)
    for held in islice(queue, MAX_LOOKED_AT):
        if len(reserved) >= most:
            return reserved
        has_turn = held is first or now_s - held.since_s >= config.reserve_after_s
        if has_turn and held.key not in reserved.values():
            _reserve_another(held, reserved, rooms, most)
    own = max(1, int(config.reserved_share * len(rooms)))
    after_s = config.reserve_after_s
    num_wanted = min(own, 1 + int(waited_s / after_s)) if after_s else own
    for _ in range(num_wanted - sum(key == first.key for key in reserved.values())):
        _reserve_another(first, reserved, rooms, most)
    return reserved


def _reserve_another(
    held: Held, reserved: dict[str, Key], rooms: Mapping[str, Room], most: int
) -> None:
    best = _least_lacking(rooms.values(), reserved, held.demand_blocks)
    if best is not None and len(reserved) < most:
        reserved[best.instance_id] = held.key


def _most_reserved(config: HoldingConfig, num_instances: int, waited_s: float) -> int:
    doublings = min(waited_s / config.share_doubles_s, 64.0)
    share = min(1.0, config.reserved_share * 2.0**doublings)
    return max(1, int(share * num_instances))


def _least_lacking(
    rooms: Iterable[Room], reserved: Collection[str], demand_blocks: int
) -> Room | None:
    """Of the rooms that are open and large enough."""
    return min(
        (
            room
            for room in rooms
            if room.instance_id not in reserved and room.capacity_blocks >= demand_blocks
        ),
        key=lambda room: (room.lacking_blocks(demand_blocks), room.instance_id),
        default=None,
    )


def _exchanged(
    before: Mapping[str, Key], queue: HeldQueue, rooms: Mapping[str, Room]
) -> dict[str, Key]:
    reserved = dict(before)
    least = _LeastInOpen.of(rooms, reserved)
    for instance_id, key in before.items():
        held = queue.get(key)
        if held is None:
            continue
        lacking = rooms[instance_id].lacking_blocks(held.demand_blocks)
        if _no_better_in_open(least, held.demand_blocks, lacking):
            continue  # To look for the best one each time took a quarter of a simulated run.
        best = _least_lacking(rooms.values(), reserved, held.demand_blocks)
        if best and best.lacking_blocks(held.demand_blocks) < EXCHANGED_BELOW * lacking:
            del reserved[instance_id]
            reserved[best.instance_id] = key
            least = _LeastInOpen.of(rooms, reserved)
    return reserved


def _no_better_in_open(least: "_LeastInOpen", demand_blocks: int, lacking_blocks: int) -> bool:
    """Whether a reserved instance keeps its place, by what the open rooms lack at the least."""
    at_least = min(least.lacking_blocks + demand_blocks, least.claimed_blocks)
    return at_least >= EXCHANGED_BELOW * lacking_blocks


@value
class _LeastInOpen:
    """An open room, large enough or not, lacks `lacking_blocks` and a request's demand at the
    least, or the `claimed_blocks` that make it idle."""

    lacking_blocks: float
    claimed_blocks: float

    @classmethod
    def of(cls, rooms: Mapping[str, Room], reserved: Collection[str]) -> "_LeastInOpen":
        found = [room for instance_id, room in rooms.items() if instance_id not in reserved]
        return cls(
            min((room.lacking_blocks(0) for room in found), default=math.inf),
            min((room.claimed_blocks for room in found), default=math.inf),
        )


def _yield_to(first: Held, reserved: dict[str, Key], queue: HeldQueue, most: int) -> None:
    """If all that may be reserved is, and nothing for the first, the last of a lower rank loses its
    instance."""
    if len(reserved) < most or first.key in reserved.values():
        return
    found = ((queue.get(key), instance_id) for instance_id, key in reserved.items())
    lower = [(held.order, i) for held, i in found if held is not None and held.rank < first.rank]
    if lower:
        del reserved[max(lower)[1]]


# -- when `reservations` has to be asked again, after it changed nothing -----------------

ROUNDING_S = 1e-6
"""Turns are looked at a little before they come, as sums of times are rounded."""


@value
class _Settled:
    """For how long `reservations` would change nothing, after it changed nothing.

    While requests are held each status may ask it, and most statuses only tell of decoding: to ask
    at each took a tenth of a simulated run. Until the queue changes or a room lacks less, these
    count:

        turns      one more may be reserved, or a request has waited long enough for one: known in
                   advance
        open       an open room that lacks more makes an exchange less likely
        reserved   a reserved room that lacks more may be exchanged, if it lacks too much by now

    `rooms` and `demands` are of the reserved instances, by id, `least` of the open ones.
    """

    until_s: float
    rooms: Mapping[str, Room]
    demands: Mapping[str, int]
    least: _LeastInOpen

    @classmethod
    def of(
        cls,
        reserved: Mapping[str, Key],
        queue: HeldQueue,
        rooms: Mapping[str, Room],
        config: HoldingConfig,
        now_s: float,
    ) -> "_Settled":
        """`reservations` gave `reserved` just now, and was given the same."""
        held = ((instance_id, queue.get(key)) for instance_id, key in reserved.items())
        return cls(
            _next_turn_s(len(reserved), queue, len(rooms), config, now_s),
            {instance_id: rooms[instance_id] for instance_id in reserved},
            {instance_id: each.demand_blocks for instance_id, each in held if each is not None},
            _LeastInOpen.of(rooms, reserved),
        )

    def lasts(self, rooms: Mapping[str, Room], now_s: float) -> bool:
        """Whether `reservations` would change nothing now."""
        if now_s >= self.until_s:
            return False
        for instance_id, known in self.rooms.items():  # each status comes here: no `all`
            room = rooms[instance_id]
            if room is not known and not self._keeps_place(instance_id, room):
                return False
        return True

    def _keeps_place(self, instance_id: str, room: Room) -> bool:
        demand = self.demands[instance_id]
        return _no_better_in_open(self.least, demand, room.lacking_blocks(demand))


def _next_turn_s(
    num_reserved: int, queue: HeldQueue, num_instances: int, config: HoldingConfig, now_s: float
) -> float:
    first = queue.first()
    if first is None:
        return math.inf
    waited_s, after_s = now_s - first.since_s, config.reserve_after_s
    share, most = config.reserved_share, _most_reserved(config, num_instances, waited_s)
    turns_s = [math.inf]
    if share > 0 and most < num_instances:
        num_doublings = math.log2((most + 1) / (share * num_instances))
        turns_s.append(first.since_s + config.share_doubles_s * num_doublings)
    if num_reserved < most and after_s:
        turns_s.append(first.since_s + after_s * (1 + int(waited_s / after_s)))
        looked_at = (held.since_s + after_s for held in islice(queue, MAX_LOOKED_AT))
        turns_s += (turn_s for turn_s in looked_at if turn_s > now_s - ROUNDING_S)
    return min(turns_s) - ROUNDING_S
