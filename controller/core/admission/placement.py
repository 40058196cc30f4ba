"""Late binding, of `llumnix+`: which waiting request goes where now, which instances are reserved
for the first requests that fit nowhere, and, for people, why each request waits.

A request in an instance's queue is bound to that instance. A request that waits at the controller
goes wherever it fits first, and room is made for it where that takes the least (`room_plan`).

    first       a request goes, in order, to the best instance on which it fits (`best_fitting`)
    by choice   it waits although it fits, if its first token comes sooner that way (`best_fitting`,
                `is_backlogged`)
    overtaking  a request that fits goes ahead of requests that do not
    reserved    no other request is placed on an instance that is reserved for a request
                (`reservations`) until that request goes, to this instance or to another one. So the
                request waits at most until the instance's running requests have left, however many
                requests overtake it.
    ranks       a lower rank overtakes higher ones only when each of them has such an instance
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from controller.core.admission.first_token import first_token_s
from controller.core.admission.policies import Prompt
from controller.core.admission.waiting_requests import Key, Waiting, WaitingQueue
from controller.core.load.freeness import Room
from controller.core.load.snapshot import BACKGROUND, InstanceSnapshot
from controller.core.settings import HoldingConfig
from controller.core.value import value

Score = Callable[[str], float]
"""The score of an instance, by its id, for the request: larger is better."""
ScoreOf = Callable[[int], Score]
"""Called with a rank: returns the scores for requests of that rank."""
PromptOf = Callable[[Key], Prompt]
AdapterWait = Callable[[str], int]
"""Called with an instance's id. Returns `InstanceRecord.wait_for` for the request."""
AdapterWaitOf = Callable[[Key], AdapterWait | None]


def no_adapter(_key: Key) -> None:
    """The `AdapterWaitOf` of requests without an adapter."""


@dataclass(frozen=True, slots=True)
class Placed:
    waiting: Waiting
    instance_id: str


class Placement:
    """Keeps the waiting requests and places them on instances (late binding). `queue`: the requests
    that wait. `reserved`: by instance, the request for which it is reserved."""

    def __init__(self, config: HoldingConfig) -> None:
        self.config = config
        self.queue = WaitingQueue()
        self.reserved: dict[str, Key] = {}
        self.num_overtaken: dict[Key, int] = {}
        """By request, how many requests went ahead of it while it was the first in order; requests
        that were never overtaken are missing."""
        self._settled_in: Mapping[str, Room] | None = None
        """The rooms at the end of the latest `place` that left nothing to do."""
        self._settled: _Settled | None = None
        """For how long the reserved instances stay the same."""
        self._retry_s = -math.inf
        """Before this time, statuses change nothing for requests that wait by choice."""
        self._roomy_blocks = 0
        """Set while some request waits by choice, although it may go and fits somewhere: for a
        place where its first token comes sooner, or until less is to be computed. Requests of up
        to this size fit."""

    def place(
        self,
        rooms: Mapping[str, Room],
        score_of: ScoreOf,
        prompt_of: PromptOf,
        now_s: float,
        adapter_wait_of: AdapterWaitOf = no_adapter,
        *,
        same_or_less: bool = False,
    ) -> Iterator[Placed]:
        """Places one request after the other. The caller dispatches each before it asks for the
        next, so that scores are up to date. `rooms`: of all schedulable instances, by id; they are
        changed here, and the caller may replace them. `same_or_less`: since the last call no
        request was pushed, and none of these rooms grew."""
        if same_or_less and self._settled_in is rooms and not self._roomy_blocks:
            # Requests that fitted nowhere still fit nowhere. Most statuses only report decoded
            # tokens, and to look at all rooms for each status took a sixth of a simulated run.
            if not self.is_settled(rooms, now_s):
                self._reserve(rooms, now_s)
            return
        self._settled_in = rooms
        self._forget_reserved(rooms)
        for instance_id, key in list(self.reserved.items()):
            waiting = self.queue.get(key)
            if waiting is not None and waiting.demand_blocks <= rooms[instance_id].spare_blocks:
                yield self._go(waiting, rooms[instance_id])
        while self.queue:
            placeable = self._next(rooms, score_of, prompt_of, now_s, adapter_wait_of)
            if placeable is None:
                break
            yield self._go(*placeable)
        self._reserve(rooms, now_s)
        self._retry_s = now_s + RETRY_S_PER_ROOM * len(rooms)

    def rests(self, now_s: float) -> bool:
        """Whether a status need not be looked at: requests wait by choice, and were placed just
        now. Then the next `place` looks at everything."""
        return self._roomy_blocks > 0 and now_s < self._retry_s

    @property
    def waits_by_choice(self) -> bool:
        """Whether some request waits although it may go and fits somewhere."""
        return self._roomy_blocks > 0

    def is_settled(self, rooms: Mapping[str, Room], now_s: float) -> bool:
        """Whether `place` with `same_or_less` would do nothing: no request fits, and the
        reservations stay as they are."""
        return (
            self._settled_in is rooms
            and not self._roomy_blocks
            and self._settled is not None
            and self._settled.lasts(rooms, now_s)
        )

    def discard(self, key: Key) -> Waiting | None:
        """Takes a request out of the queue."""
        self._settled_in = None
        self.num_overtaken.pop(key, None)
        self.reserved = {i: other for i, other in self.reserved.items() if other != key}
        return self.queue.discard(key)

    def check(self) -> None:
        """Raises AssertionError if the records contradict each other."""
        self.queue.check()
        assert all(key in self.queue for key in self.reserved.values()), "reserved for nobody"
        assert all(key in self.queue for key in self.num_overtaken), "overtaken, and not there"

    # ------------------------------------------------------------------------------------

    def _next(
        self,
        rooms: Mapping[str, Room],
        score_of: ScoreOf,
        prompt_of: PromptOf,
        now_s: float,
        adapter_wait_of: AdapterWaitOf,
    ) -> tuple[Waiting, Room] | None:
        """The first request in order that fits and may go, and its instance's room."""
        self._roomy_blocks = 0
        open_rooms = [room for room in rooms.values() if room.instance_id not in self.reserved]
        largest = max([room.spare_blocks for room in open_rooms], default=0)
        for waiting in self._candidates(largest, max(1, MAX_COMPARED // len(rooms))):
            self._roomy_blocks = largest
            if self.config.by_time and is_backlogged(open_rooms, self.config, now_s):
                return None
            room = best_fitting(
                open_rooms,
                waiting,
                score_of(waiting.rank),
                prompt_of(waiting.key),
                self.config,
                now_s,
                adapter_wait_of(waiting.key),
            )
            if room is not None:
                self._roomy_blocks = 0
                return waiting, room
        return None

    def _candidates(self, largest: int, number: int) -> Iterator[Waiting]:
        """The first requests, in order, that fit into a room of this size and may go ahead of the
        requests before them; `number` at most."""
        first = self.queue.first()
        for waiting in islice(self.queue.fitting(largest), min(number, MAX_TRIED)):
            if waiting is not first and not (
                self.config.overtaking and self._may_overtake(waiting)
            ):
                return
            yield waiting

    def _may_overtake(self, waiting: Waiting) -> bool:
        with_instance = set(self.reserved.values())
        for other in self.queue:
            if other.rank <= waiting.rank:
                return True
            if other.key not in with_instance:
                return False
        return True

    def _go(self, waiting: Waiting, room: Room) -> Placed:
        first = self.queue.first()
        if first is not None and first.key != waiting.key:
            self.num_overtaken[first.key] = self.num_overtaken.get(first.key, 0) + 1
        self.discard(waiting.key)
        room.take(waiting.demand_blocks)
        return Placed(waiting, room.instance_id)

    def _forget_reserved(self, rooms: Mapping[str, Room]) -> None:
        self.reserved = {
            instance_id: key
            for instance_id, key in self.reserved.items()
            if instance_id in rooms and key in self.queue
        }

    def _reserve(self, rooms: Mapping[str, Room], now_s: float) -> None:
        reserved = reservations(
            self.reserved, self.queue, rooms, self.config, now_s, self._roomy_blocks
        )
        if reserved != self.reserved:
            self.reserved = reserved
            self._settled_in = None
            return
        self._settled = _Settled.of(reserved, self.queue, rooms, self.config, now_s)


# -- on which of the instances where a request fits it is placed ---------------------------

MAX_TRIED = 16
"""If the first requests wait for better instances than those on which they fit, at most so many are
tried."""
MAX_COMPARED = 2048
"""In a large cluster fewer requests are tried: together they look at so many rooms, in 1 ms."""
RETRY_S_PER_ROOM = 20e-6
"""Requests that wait by choice are looked at after a status at most this often, for each instance:
every 20 ms with 1,024 instances, whose statuses come every few microseconds."""


def is_backlogged(rooms: Iterable[Room], config: HoldingConfig, now_s: float) -> bool:
    """Whether every instance has prompts to compute for a while, even after its next step. The step
    counts because statuses come between steps: a request that waited for the end of the last one
    would come too late for the next."""
    return all(room.backlog_s(now_s) > config.max_backlog_s + room.full_step_s for room in rooms)


def best_fitting(
    rooms: Sequence[Room],
    waiting: Waiting,
    score: Score,
    prompt: Prompt,
    config: HoldingConfig,
    now_s: float,
    adapter_wait: AdapterWait | None = None,
) -> Room | None:
    """The room to which the request goes: of those in which it fits and its first token comes soon,
    the freest. `rooms`: ids ascending. `adapter_wait`: None without a LoRA adapter; with one, only
    the rooms are considered where the request waits the least for it.

    The first token may come much sooner where the request does not fit yet, because its prompt is
    cached there. Then the request waits for that place, but at most as long as it would gain by
    that: whoever has waited for what another place costs more, takes the other place.
    """
    demand_blocks = waiting.demand_blocks
    fitting = [room for room in rooms if demand_blocks <= room.spare_blocks]
    if adapter_wait is not None:
        waits = [adapter_wait(room.instance_id) for room in fitting]
        least = min(waits, default=0)
        fitting = [room for room, wait in zip(fitting, waits, strict=True) if wait == least]
        rooms = [room for room in rooms if adapter_wait(room.instance_id) == least]
    if not fitting or not config.by_time:
        return _freest(fitting, score)
    large = [r for r in rooms if max(r.capacity_blocks, r.spare_blocks) >= demand_blocks]
    times_s = first_token_s(large, prompt, now_s)
    soonest_s = min(times_s) + (now_s - waiting.since_s)
    soon = [
        room
        for room, time_s in zip(large, times_s, strict=True)
        if time_s <= soonest_s + config.slack_tokens * room.speed.token_s
        and demand_blocks <= room.spare_blocks
    ]
    return _freest(soon, score)


def _freest(rooms: Sequence[Room], score: Score) -> Room | None:
    """Of several that are as free, as idle ones are, it is the one whose cache has least: there
    the new prompt displaces nothing that may be needed again. Then it is the lowest id."""
    if not rooms:
        return None
    scores = [score(room.instance_id) for room in rooms]
    best = max(scores)
    tied = [room for room, found in zip(rooms, scores, strict=True) if found == best]
    return min(tied, key=lambda room: room.num_cached_tokens)


# -- which instances are reserved for which of the waiting requests ----------------------

MAX_LOOKED_AT = 64
"""Only this many of the first waiting requests may have an instance reserved for them."""
EXCHANGED_BELOW = 0.75
"""Another instance takes the place of a reserved one if it lacks less than this share of what the
reserved one lacks. Without this, the first request waited three times as long on S-L (decision
0031)."""


def reservations(
    before: Mapping[str, Key],
    queue: WaitingQueue,
    rooms: Mapping[str, Room],
    config: HoldingConfig,
    now_s: float,
    roomy_blocks: int = 0,
) -> dict[str, Key]:
    """The reservations from now on, by instance id. `before`: the reservations until now. Requests
    of up to `roomy_blocks` wait by choice and not for room, and get no further instance.

    first   the first request has an instance at once
    others  each other request has one when it has waited `reserve_after_s`, while no more are
            reserved than the share allows
    more    the rest of `reserved_share` goes to the first request, one more instance each
            `reserve_after_s`: requests move from one of its instances to the others, so that the
            blocks that they free are on one instance
    best    the instance that lacks the least is reserved. If another one lacks much less later, it
            takes its place: on the reserved one long requests may go on growing for minutes
    ranks   a higher rank takes the instance of a lower one
    """
    first = queue.first()
    if first is None:
        return {}
    reserved = _exchanged(before, queue, rooms)
    waited_s = now_s - first.since_s
    most = _most_reserved(config, len(rooms), waited_s)
    _yield_to(first, reserved, queue, most)
    for waiting in islice(queue, MAX_LOOKED_AT):
        if len(reserved) >= most:
            return reserved
        has_turn = waiting is first or now_s - waiting.since_s >= config.reserve_after_s
        is_blocked = waiting.demand_blocks > roomy_blocks
        if has_turn and is_blocked and waiting.key not in reserved.values():
            _reserve_another(waiting, reserved, rooms, most)
    if first.demand_blocks <= roomy_blocks:
        return reserved
    own = max(1, int(config.reserved_share * len(rooms)))
    after_s = config.reserve_after_s
    num_wanted = min(own, 1 + int(waited_s / after_s)) if after_s else own
    for _ in range(num_wanted - sum(key == first.key for key in reserved.values())):
        _reserve_another(first, reserved, rooms, most)
    return reserved


def _reserve_another(
    waiting: Waiting, reserved: dict[str, Key], rooms: Mapping[str, Room], most: int
) -> None:
    best = _least_lacking(rooms.values(), reserved, waiting.demand_blocks)
    if best is not None and len(reserved) < most:
        reserved[best.instance_id] = waiting.key


def _most_reserved(config: HoldingConfig, num_instances: int, waited_s: float) -> int:
    doublings = min(waited_s / config.share_doubles_s, 64.0)
    share = min(1.0, config.reserved_share * 2.0**doublings)
    return max(1, int(share * num_instances))


def _least_lacking(
    rooms: Iterable[Room], reserved: Collection[str], demand_blocks: int
) -> Room | None:
    """The room that lacks the least, among the rooms that are open and large enough."""
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
    before: Mapping[str, Key], queue: WaitingQueue, rooms: Mapping[str, Room]
) -> dict[str, Key]:
    reserved = dict(before)
    least = _LeastInOpen.of(rooms, reserved)
    for instance_id, key in before.items():
        waiting = queue.get(key)
        if waiting is None:
            continue
        lacking = rooms[instance_id].lacking_blocks(waiting.demand_blocks)
        if _no_better_in_open(least, waiting.demand_blocks, lacking):
            continue  # a search for the best one each time took a quarter of a simulated run
        best = _least_lacking(rooms.values(), reserved, waiting.demand_blocks)
        if best and best.lacking_blocks(waiting.demand_blocks) < EXCHANGED_BELOW * lacking:
            del reserved[instance_id]
            reserved[best.instance_id] = key
            least = _LeastInOpen.of(rooms, reserved)
    return reserved


def _no_better_in_open(least: "_LeastInOpen", demand_blocks: int, lacking_blocks: int) -> bool:
    """Whether each reserved instance stays reserved, by the least that any open room lacks."""
    at_least = min(least.lacking_blocks + demand_blocks, least.claimed_blocks)
    return at_least >= EXCHANGED_BELOW * lacking_blocks


@value
class _LeastInOpen:
    """The minimum of each value over all open rooms, including rooms that are too small for any
    waiting request. Together they bound from below what a request lacks in an open room: at least
    the smaller of `lacking_blocks` plus the request's demand, and `claimed_blocks`."""

    lacking_blocks: float
    claimed_blocks: float

    @classmethod
    def of(cls, rooms: Mapping[str, Room], reserved: Collection[str]) -> "_LeastInOpen":
        open_rooms = [room for instance_id, room in rooms.items() if instance_id not in reserved]
        return cls(
            min((room.lacking_blocks(0) for room in open_rooms), default=math.inf),
            min((room.claimed_blocks for room in open_rooms), default=math.inf),
        )


def _yield_to(first: Waiting, reserved: dict[str, Key], queue: WaitingQueue, most: int) -> None:
    """Takes a reserved instance from the last request of a lower rank, if no more instances may be
    reserved and the first request has none."""
    if len(reserved) < most or first.key in reserved.values():
        return
    holders = ((queue.get(key), instance_id) for instance_id, key in reserved.items())
    lower = [(each.order, i) for each, i in holders if each is not None and each.rank < first.rank]
    if lower:
        del reserved[max(lower)[1]]


# -- when `reservations` has to be asked again, after it changed nothing -----------------

ROUNDING_S = 1e-6
"""A reservation may be made this much too early, because sums of times are rounded."""


@value
class _Settled:
    """How long `reservations` would go on to change nothing, made after a call that changed
    nothing.

    While requests wait, each status may ask for the reservations, and most statuses only tell of
    decoding: to compute them for each took a tenth of a simulated run. Until the queue changes or a
    room lacks less, the reservations can change for these reasons only:

        turns      one more instance may be reserved, or a request has waited long enough for one;
                   the time is known in advance
        open       an open room that lacks more makes an exchange less likely
        reserved   a reserved room that lacks more may be exchanged, if it lacks too much by now

    `rooms` and `demands`: by id, of the reserved instances. `least`: of the open rooms.
    """

    until_s: float
    rooms: Mapping[str, Room]
    demands: Mapping[str, int]
    least: _LeastInOpen

    @classmethod
    def of(
        cls,
        reserved: Mapping[str, Key],
        queue: WaitingQueue,
        rooms: Mapping[str, Room],
        config: HoldingConfig,
        now_s: float,
    ) -> "_Settled":
        """Made after `reservations` was given `reserved` and returned the same reservations."""
        waiting = ((instance_id, queue.get(key)) for instance_id, key in reserved.items())
        return cls(
            _next_turn_s(len(reserved), queue, len(rooms), config, now_s),
            {instance_id: rooms[instance_id] for instance_id in reserved},
            {instance_id: each.demand_blocks for instance_id, each in waiting if each is not None},
            _LeastInOpen.of(rooms, reserved),
        )

    def lasts(self, rooms: Mapping[str, Room], now_s: float) -> bool:
        """Whether `reservations` would change nothing now."""
        if now_s >= self.until_s:
            return False
        for instance_id, known in self.rooms.items():  # called for each status: no `all`
            room = rooms[instance_id]
            if room is not known and not self._keeps_place(instance_id, room):
                return False
        return True

    def _keeps_place(self, instance_id: str, room: Room) -> bool:
        demand = self.demands[instance_id]
        return _no_better_in_open(self.least, demand, room.lacking_blocks(demand))


def _next_turn_s(
    num_reserved: int, queue: WaitingQueue, num_instances: int, config: HoldingConfig, now_s: float
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
        looked_at = (waiting.since_s + after_s for waiting in islice(queue, MAX_LOOKED_AT))
        turns_s += (turn_s for turn_s in looked_at if turn_s > now_s - ROUNDING_S)
    return min(turns_s) - ROUNDING_S


# -- what waits, and why ---------------------------------------------------------------------------


class WaitingReason(StrEnum):
    """Why a request waits at the controller. If several reasons apply, the first one is shown."""

    NO_INSTANCE = "no-instance"
    """No instance takes requests."""
    TOO_LARGE = "too-large"
    """The request needs more blocks than any instance has."""
    HAS_RESERVATION = "kept"
    """An instance is reserved for the request, but still lacks blocks or places for it."""
    NEXT = "next"
    """The request fits, and is sent when the next status comes."""
    BY_CHOICE = "by-choice"
    """The request fits, but its first token comes sooner if it waits: for another instance, or
    until less is to be computed."""
    BEHIND = "behind"
    """The request fits, but may not go ahead of the requests before it."""
    RESERVED = "reserved"
    """The request fits only on instances that are reserved for other requests."""
    BATCH_FULL = "batch-full"
    """Some instances have enough blocks, but each of them has no place in the batch or already has
    enough waiting requests."""
    FRAGMENTED = "fragmented"
    """The request needs more blocks than are free on any single instance, but not more than are
    free on all instances together."""
    MEMORY = "memory"
    """The request needs more blocks than are free on all instances together."""


class OvertakenBy(StrEnum):
    """Which later requests may go ahead of a request that does not fit, if they fit."""

    ANY = "any"
    """All later requests, as this request has an instance of its own."""
    ITS_RANK = "its-rank"
    """Only later requests of its rank, as no instance is reserved for this request."""
    NOBODY = "nobody"
    """None: the order is strict, as overtaking is switched off or all instances are reserved."""


@dataclass(frozen=True, slots=True)
class WaitingPlace:
    """How a waiting request stands, for people. `place`: 1 is the first in order. `instance_id`:
    the instance that is reserved for the request. `lacking_blocks`: how many more blocks must be
    free on that instance or, without a reservation, on the instance where the fewest are missing;
    None without an instance. `num_overtaken`: how many requests went ahead of this request while it
    was the first in order."""

    waiting: Waiting
    place: int
    reason: WaitingReason
    instance_id: str | None
    lacking_blocks: int | None
    overtaken_by: OvertakenBy
    num_overtaken: int


class WaitingView:
    """The requests that wait at the controller, for people to look at; valid until something else
    happens. `entries`: in order; a demand of 0 blocks is not known yet. `rooms`: of the schedulable
    instances, by id. `placement`: None without late binding.

    While late binding knows all requests, the view costs the same however many wait. Before,
    100,000 requests were copied and indexed in order to find one, which took 40 ms."""

    def __init__(
        self,
        entries: WaitingQueue | list[Waiting],
        placement: Placement | None,
        rooms: Mapping[str, Room],
    ) -> None:
        self.entries = entries
        self._index: dict[Key, int] | None = None
        self._placement = placement
        self._rooms = rooms if placement is not None else {}
        reserved = placement.reserved if placement is not None else {}
        self.reserved = {i: key for i, key in reserved.items() if i in self._rooms}
        """For each reserved instance, the request for which it is reserved."""
        fullest_first = sorted(
            self.reserved, key=lambda i: (self._rooms[i].lacking_blocks(0), i), reverse=True
        )
        self._reserved_for = {
            self.reserved[instance_id]: instance_id for instance_id in fullest_first
        }
        """For each request with a reserved instance, that instance; if it has several, the one that
        lacks the least."""
        self._open = [
            room for room in self._rooms.values() if room.instance_id not in self.reserved
        ]
        without = (waiting.rank for waiting in entries if waiting.key not in self._reserved_for)
        self._waits_by_choice = placement is not None and placement.waits_by_choice
        self._highest_without = next(without, None)
        """The highest rank of the requests without a reserved instance; no lower rank may overtake
        them."""

    @property
    def demand_blocks(self) -> int:
        """The demand of all requests together."""
        if isinstance(self.entries, WaitingQueue):
            return self.entries.demand_blocks
        return sum(waiting.demand_blocks for waiting in self.entries)

    def ranks(self) -> Iterator[tuple[int, int, float]]:
        """For each rank, the highest first: (rank, number of waiting requests, earliest arrival).
        With 100,000 waiting requests a status takes 5 ms. When it looked at each request, it took
        47 ms."""
        for earliest, number in self._earliest():
            yield earliest.rank, number, earliest.arrival_time_s

    def _earliest(self) -> Iterator[tuple[Waiting, int]]:
        """For each rank, the highest first, the request that arrived first, and how many wait.
        Without late binding the order is that of the arrivals."""
        begin = 0
        while begin < len(self.entries):
            first = self.entries[begin]
            end = bisect_right(self.entries, -first.rank, lo=begin, key=lambda each: -each.rank)
            if isinstance(self.entries, WaitingQueue):
                first = self.entries.earliest(first.rank)
            yield first, end - begin
            begin = end

    def reservations(self) -> Iterator[tuple[str, Waiting, int]]:
        """For each reservation: (instance, the request for which it is reserved, how many blocks it
        lacks for that request)."""
        for instance_id, key in self.reserved.items():
            waiting = self._placement.queue.get(key) if self._placement is not None else None
            if waiting is not None:
                lacking = self._rooms[instance_id].lacking_blocks(waiting.demand_blocks)
                yield instance_id, waiting, max(0, lacking)

    def oldest(self) -> WaitingPlace | None:
        """The request that arrived first, of those that somebody waits for. Requests of a higher
        rank may go before it for a long time."""
        first = [each for each, _ in self._earliest() if each.rank > BACKGROUND.rank]
        found = min(first, key=lambda each: each.arrival_time_s, default=None)
        return None if found is None else self.find(found.key)

    def first(self) -> WaitingPlace | None:
        return self._at(0) if self.entries else None

    def find(self, key: Key) -> WaitingPlace | None:
        """The place of this request among the waiting ones; None if it does not wait at the
        controller."""
        if isinstance(self.entries, WaitingQueue):
            index = self.entries.index(key)
        else:
            if self._index is None:
                self._index = {waiting.key: index for index, waiting in enumerate(self.entries)}
            index = self._index.get(key)
        return None if index is None else self._at(index)

    def best_reserved(self) -> dict[str, WaitingPlace]:
        """For each reserved instance, the request for which it is reserved. If several are reserved
        for one request, only the one that lacks the least is named."""
        places = ((instance_id, self.find(key)) for key, instance_id in self._reserved_for.items())
        return {instance_id: place for instance_id, place in places if place is not None}

    def _at(self, index: int) -> WaitingPlace:
        waiting = self.entries[index]
        reserved_id = self._reserved_for.get(waiting.key)
        rooms = self._rooms.values() if reserved_id is None else (self._rooms[reserved_id],)
        lacking = (max(0, room.lacking_blocks(waiting.demand_blocks)) for room in rooms)
        overtaken = self._placement.num_overtaken if self._placement is not None else {}
        return WaitingPlace(
            waiting,
            index + 1,
            self._reason(waiting, index),
            reserved_id,
            min(lacking, default=None),
            self._overtaken_by(waiting),
            overtaken.get(waiting.key, 0),
        )

    def _reason(self, waiting: Waiting, index: int) -> WaitingReason:
        demand, rooms = waiting.demand_blocks, self._rooms.values()
        if not rooms:
            return WaitingReason.NO_INSTANCE
        if all(room.capacity_blocks < demand for room in rooms):
            return WaitingReason.TOO_LARGE
        if waiting.key in self._reserved_for:
            return WaitingReason.HAS_RESERVATION
        if any(demand <= room.spare_blocks for room in self._open):
            if not self._may_go(waiting, index):
                return WaitingReason.BEHIND
            return WaitingReason.BY_CHOICE if self._waits_by_choice else WaitingReason.NEXT
        if any(demand <= room.spare_blocks for room in rooms):
            return WaitingReason.RESERVED
        if any(room.num_places <= 0 and room.lacking_blocks(demand) <= 0 for room in rooms):
            return WaitingReason.BATCH_FULL
        in_all = sum(max(0, room.free_blocks) for room in rooms)
        return WaitingReason.FRAGMENTED if demand <= in_all else WaitingReason.MEMORY

    def _may_go(self, waiting: Waiting, index: int) -> bool:
        assert self._placement is not None
        if index == 0:
            return True
        outranked = self._highest_without is not None and waiting.rank < self._highest_without
        return self._placement.config.overtaking and not outranked

    def _overtaken_by(self, waiting: Waiting) -> OvertakenBy:
        if self._placement is None or not self._placement.config.overtaking or not self._open:
            return OvertakenBy.NOBODY
        return OvertakenBy.ANY if waiting.key in self._reserved_for else OvertakenBy.ITS_RANK


class QueueReason(StrEnum):
    BATCH_FULL = "batch-full"
    """All places of the batch are taken."""
    MEMORY = "memory"
    """The first request in the queue needs more blocks than are free in the whole cluster."""
    FRAGMENTED = "fragmented"
    """The first request in the queue needs more blocks than are free on this instance, but not more
    than are free in the cluster."""
    NEXT_STEP = "next-step"
    """The blocks are there; the first request waits until a step has enough of its token budget
    left."""


def queue_reason(
    snapshot: InstanceSnapshot, cluster: Iterable[InstanceSnapshot]
) -> QueueReason | None:
    """Why the first request in the instance's queue waits; None if the queue is empty. `cluster`:
    all instances that may take requests."""
    head = snapshot.queue_head
    if head is None:
        return None
    if snapshot.max_num_running and snapshot.num_running >= snapshot.max_num_running:
        return QueueReason.BATCH_FULL
    if head.demand_blocks <= snapshot.admissible_blocks:
        return QueueReason.NEXT_STEP
    in_all = sum(max(0, other.admissible_blocks) for other in cluster)
    return QueueReason.FRAGMENTED if head.demand_blocks <= in_all else QueueReason.MEMORY
