"""The requests that wait at the controller: in which order they are placed, and which one is
refused when too many wait.

    WaitingRequests  all of them, with late binding or without; which one is refused for others
    WaitingQueue     with late binding: those that may be placed, in order, and the first that fits
    FairTurns        how the API keys of one rank share what becomes free
    DrainRate        how fast requests leave, and so when a refused client may come again
"""

import heapq
import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace

from controller.core.record.windows import CountWindow
from controller.core.scheduler_events import DispatchRequested
from controller.core.value import value

Key = tuple[str, str]
"""(frontend id, request id)."""
Order = tuple[int, float, float, str, str]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting request as late binding sees it. `demand_blocks`: the blocks that it needs in order
    to start. `since_s`: when it came to the controller, by the controller's clock; arrival times
    are by the frontends' clocks. `turn`: its turn among the API keys of its rank (`FairTurns`); 0
    where keys do not count. `behind_s`: it goes as if it had come so much later, because its prompt
    takes long to compute."""

    key: Key
    rank: int
    arrival_time_s: float
    demand_blocks: int
    since_s: float
    turn: float = 0.0
    behind_s: float = 0.0

    @property
    def request_id(self) -> str:
        return self.key[1]

    @property
    def order(self) -> Order:
        frontend_id, request_id = self.key
        due_s = self.arrival_time_s + self.behind_s
        return (-self.rank, self.turn, due_s, request_id, frontend_id)


class WaitingQueue:
    """The requests that may be placed. Each call takes log n, and `fitting` as long as there are
    distinct demands. The queue is also a sequence, in order, for reading."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Waiting] = {}
        self._in_order: list[tuple[Order, Waiting]] = []
        self._by_demand: dict[int, list[tuple[Order, Waiting]]] = {}
        self._demands: list[int] = []
        self._arrivals: dict[int, list[tuple[float, Key]]] = {}
        """By rank, when its requests arrived, the earliest first: that is not their order."""
        self.demand_blocks = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: Key) -> bool:
        return key in self._by_key

    def __iter__(self) -> Iterator[Waiting]:
        return (waiting for _, waiting in self._in_order)

    def __getitem__(self, index: int) -> Waiting:
        return self._in_order[index][1]

    def get(self, key: Key) -> Waiting | None:
        return self._by_key.get(key)

    def index(self, key: Key) -> int | None:
        """The request's place in order, from 0; None if it is not in the queue."""
        waiting = self._by_key.get(key)
        if waiting is None:
            return None
        return bisect_left(self._in_order, waiting.order, key=lambda e: e[0])

    def push(self, waiting: Waiting) -> None:
        entry = waiting.order, waiting
        self._by_key[waiting.key] = waiting
        insort(self._in_order, entry, key=lambda e: e[0])
        if waiting.demand_blocks not in self._by_demand:
            self._by_demand[waiting.demand_blocks] = []
            insort(self._demands, waiting.demand_blocks)
        insort(self._by_demand[waiting.demand_blocks], entry, key=lambda e: e[0])
        insort(self._arrivals.setdefault(waiting.rank, []), (waiting.arrival_time_s, waiting.key))
        self.demand_blocks += waiting.demand_blocks

    def discard(self, key: Key) -> Waiting | None:
        waiting = self._by_key.pop(key, None)
        if waiting is None:
            return None
        order = waiting.order
        del self._in_order[bisect_left(self._in_order, order, key=lambda e: e[0])]
        alike = self._by_demand[waiting.demand_blocks]
        del alike[bisect_left(alike, order, key=lambda e: e[0])]
        if not alike:
            del self._by_demand[waiting.demand_blocks]
            del self._demands[bisect_left(self._demands, waiting.demand_blocks)]
        arrivals = self._arrivals[waiting.rank]
        del arrivals[bisect_left(arrivals, (waiting.arrival_time_s, key))]
        if not arrivals:
            del self._arrivals[waiting.rank]
        self.demand_blocks -= waiting.demand_blocks
        return waiting

    def first(self) -> Waiting | None:
        return self._in_order[0][1] if self._in_order else None

    def earliest(self, rank: int) -> Waiting:
        """The request of this rank that arrived first. Raises KeyError if none has this rank."""
        return self._by_key[self._arrivals[rank][0][1]]

    def fitting(self, room_blocks: int) -> Iterator[Waiting]:
        """The requests that need at most `room_blocks`, in order; valid until the queue changes."""
        first = self.first()
        if first is not None and first.demand_blocks <= room_blocks:
            yield first  # mostly the only one that is asked for
        number = bisect_right(self._demands, room_blocks)
        alike = [self._by_demand[demand] for demand in self._demands[:number]]
        for _, waiting in heapq.merge(*alike, key=lambda entry: entry[0]):
            if waiting is not first:
                yield waiting

    def check(self) -> None:
        """Raises AssertionError if the records contradict each other."""
        orders = [order for order, _ in self._in_order]
        assert all(self.index(waiting.key) == at for at, waiting in enumerate(self))
        assert orders == sorted(waiting.order for waiting in self._by_key.values())
        assert self._demands == sorted(self._by_demand)
        arrivals = sorted(found for each in self._arrivals.values() for found in each)
        assert arrivals == sorted((each.arrival_time_s, each.key) for each in self)
        alike = [entry for entries in self._by_demand.values() for entry in entries]
        assert sorted(order for order, _ in alike) == orders
        for demand, entries in self._by_demand.items():
            assert entries, "a demand of nobody"
            assert [order for order, _ in entries] == sorted(order for order, _ in entries)
            assert all(waiting.demand_blocks == demand for _, waiting in entries)
        assert self.demand_blocks == sum(waiting.demand_blocks for waiting in self._by_key.values())


class _Rank:
    __slots__ = ("next_turns", "waiting")

    def __init__(self) -> None:
        self.next_turns: dict[str, float] = {}
        """For each key, the turn where its next request may begin. A key is only in it while the
        key's requests wait."""
        self.waiting: list[float] = []
        """The turns of the waiting requests, the lowest first."""


class FairTurns:
    """Turns of waiting requests, by which the API keys of one rank share the room that becomes
    free: the key that was served least goes first.

    Each request gets a turn when it begins to wait. A turn is a number of tokens: the turn of the
    key's last request plus the cost of that request, but at least the lowest turn of all waiting
    requests. So a key that was away has neither credit nor debt, and the first request of a rank
    stays the first, as no later request gets an earlier turn (start-time fair queueing: Goyal, Vin
    and Cheng, SIGCOMM '96). Decision 0034 says why turns do not change while a request waits.

    `rank` and `key`: the rank and the API key of a request. `cost`: the number of tokens that it is
    expected to take.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def take(self, rank: int, key: str, cost: float) -> float:
        """Gives a turn to a request that begins to wait now."""
        turns = self._ranks.setdefault(rank, _Rank())
        least = turns.waiting[0] if turns.waiting else 0.0
        turn = max(least, turns.next_turns.get(key, 0.0))
        turns.next_turns[key] = turn + cost
        insort(turns.waiting, turn)
        return turn

    def gone(self, rank: int, key: str, turn: float, cost: float, *, served: bool) -> None:
        """Notes that the request does not wait any more. If it was not served and was the last
        request of its key, the key's next request gets its turn."""
        turns = self._ranks[rank]
        del turns.waiting[bisect_left(turns.waiting, turn)]
        if not turns.waiting:
            del self._ranks[rank]
        elif not served and turns.next_turns[key] == turn + cost:
            turns.next_turns[key] = turn

    def __len__(self) -> int:
        return sum(len(each.waiting) for each in self._ranks.values())


ShedKey = tuple[int, float, str, str]
"""The same as `DispatchRequested.order`."""


class _Latest:
    """Reverses the order, so that the last request is at the top of a heap."""

    __slots__ = ("order",)

    def __init__(self, order: ShedKey) -> None:
        self.order = order

    def __lt__(self, other: "_Latest") -> bool:
        return self.order > other.order


class ShedOrder:
    """Which waiting request is refused when too many wait: the newest of the lowest rank, whatever
    its API key's turn is. Each call takes log n. Discarded requests stay in the heap until they
    reach its top, or until they are half of the heap."""

    def __init__(self) -> None:
        self._orders: set[ShedKey] = set()
        self._heap: list[_Latest] = []

    def __len__(self) -> int:
        return len(self._orders)

    def push(self, order: ShedKey) -> None:
        """Adds the order, which must not be in it yet."""
        self._orders.add(order)
        heapq.heappush(self._heap, _Latest(order))

    def discard(self, order: ShedKey) -> None:
        """Removes the order; does nothing if the order was not added."""
        self._orders.discard(order)
        if len(self._heap) > 2 * len(self._orders) + 64:
            self._heap = [_Latest(each) for each in self._orders]
            heapq.heapify(self._heap)

    def last(self) -> ShedKey | None:
        while self._heap and self._heap[0].order not in self._orders:
            heapq.heappop(self._heap)
        return self._heap[0].order if self._heap else None

    def check(self) -> None:
        """Raises AssertionError if the records contradict each other."""
        assert self._orders <= {each.order for each in self._heap}, "never to be refused"
        assert len(self._heap) <= 2 * len(self._orders) + 64, "it keeps what was discarded"


@value
class WaitingRequest:
    """A request that waits at the controller. `turn`: its turn among the API keys of its rank.
    `cost`: how many tokens the request is expected to take. Both are 0 if API keys do not count.
    `is_late`: it has waited for too long, and goes behind the others of its rank."""

    request: DispatchRequested
    since_s: float
    turn: float = 0.0
    cost: float = 0.0
    is_late: bool = False

    def entry(self, key: Key, demand_blocks: int, behind_s: float = 0.0) -> Waiting:
        request = self.request
        arrival_s = request.arrival_time_s
        turn = math.inf if self.is_late else self.turn
        return Waiting(key, request.rank, arrival_s, demand_blocks, self.since_s, turn, behind_s)


class WaitingRequests:
    """All requests that wait at the controller, by (frontend id, request id), in the order in which
    they began to wait."""

    def __init__(self) -> None:
        self._by_key: dict[Key, WaitingRequest] = {}
        self._shed_order = ShedOrder()
        """The requests that may be refused for others."""
        self._turns = FairTurns()

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: Key) -> bool:
        return key in self._by_key

    def __getitem__(self, key: Key) -> WaitingRequest:
        return self._by_key[key]

    def get(self, key: Key) -> WaitingRequest | None:
        return self._by_key.get(key)

    def items(self) -> Iterator[tuple[Key, WaitingRequest]]:
        return iter(self._by_key.items())

    def latest_first(self) -> Iterator[tuple[Key, WaitingRequest]]:
        return reversed(self._by_key.items())

    def hold(self, request: DispatchRequested, since_s: float, cost: float = 0.0) -> None:
        """Adds a request, which must not be among the waiting ones yet. With a `cost` of 0 it gets
        no turn, and is ordered by its arrival."""
        turn = self._turns.take(request.rank, request.api_key, cost) if cost else 0.0
        waiting = WaitingRequest(request, since_s, turn, cost)
        self._by_key[request.frontend_id, request.request_id] = waiting
        if not request.replayed:
            self._shed_order.push(request.order)

    def set_late(self, key: Key, *, is_late: bool) -> WaitingRequest:
        """Puts the request behind the others of its rank from now on, or takes that back. It gives
        up its turn: otherwise that turn would stay the lowest one, and a key that comes later would
        begin there, far ahead of those that were served meanwhile."""
        before = self._by_key[key]
        if before.cost:
            request, turn, cost = before.request, before.turn, before.cost
            self._turns.gone(request.rank, request.api_key, turn, cost, served=True)
        found = replace(before, turn=0.0, cost=0.0, is_late=is_late)
        self._by_key[key] = found
        return found

    def discard(self, key: Key, *, served: bool = False) -> WaitingRequest | None:
        waiting = self._by_key.pop(key, None)
        if waiting is not None:
            request = waiting.request
            self._shed_order.discard(request.order)
            if waiting.cost:
                turn, cost = waiting.turn, waiting.cost
                self._turns.gone(request.rank, request.api_key, turn, cost, served=served)
        return waiting

    def last(self) -> DispatchRequested | None:
        """The request that is refused if one has to be: the newest of the lowest rank. A replayed
        request is never refused, because its client already has tokens."""
        order = self._shed_order.last()
        if order is None:
            return None
        _, _, request_id, frontend_id = order
        return self._by_key[frontend_id, request_id].request

    def check(self) -> None:
        """Raises AssertionError if the records contradict each other."""
        self._shed_order.check()
        for key, waiting in self._by_key.items():
            assert key == (waiting.request.frontend_id, waiting.request.request_id)
        assert len(self._turns) == sum(waiting.cost > 0 for waiting in self._by_key.values())
        num_replayed = sum(waiting.request.replayed for waiting in self._by_key.values())
        assert len(self._shed_order) == len(self._by_key) - num_replayed


DRAIN_WINDOW_S = 30.0
LEAST_RETRY_S, MOST_RETRY_S = 1, 60
"""The bounds of the Retry-After. OpenAI's clients obey a Retry-After of up to 60 s; with a longer
one they follow a rule of their own."""


class DrainRate:
    """How fast waiting requests left in the last DRAIN_WINDOW_S, and so when a refused client may
    come again: once all waiting requests would be gone at that rate, because its request would be
    the last of them. Even then the client may be refused again, because other clients come too.
    `now_s` must never decrease.
    """

    def __init__(self) -> None:
        self._num_gone = CountWindow(DRAIN_WINDOW_S)

    def gone(self, now_s: float, number: int = 1) -> None:
        """Notes that `number` waiting requests went to instances."""
        if number:
            self._num_gone.add(number, now_s)

    def retry_after_s(self, num_waiting: int, now_s: float) -> int:
        """Whole seconds from LEAST_RETRY_S to MOST_RETRY_S. If no request went lately,
        MOST_RETRY_S."""
        per_s = self._num_gone.per_s(now_s)
        if num_waiting > MOST_RETRY_S * per_s:
            return MOST_RETRY_S
        return max(LEAST_RETRY_S, math.ceil(num_waiting / per_s)) if num_waiting else LEAST_RETRY_S
