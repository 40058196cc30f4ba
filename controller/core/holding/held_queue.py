"""The requests that wait at the controller, in `order`, and the first of them that fits a room."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

Key = tuple[str, str]
"""(frontend id, request id)."""
Order = tuple[int, float, float, str, str]


@dataclass(frozen=True, slots=True)
class Held:
    """`demand_blocks`: all that the request needs in order to start. `since_s`: when it came to the
    controller, by the controller's clock; arrival times are the frontends'. `turn`: among the API
    keys of its rank (`fair_turns`); 0 for all where they do not count."""

    key: Key
    rank: int
    arrival_time_s: float
    demand_blocks: int
    since_s: float
    turn: float = 0.0

    @property
    def request_id(self) -> str:
        return self.key[1]

    @property
    def order(self) -> Order:
        frontend_id, request_id = self.key
        return (-self.rank, self.turn, self.arrival_time_s, request_id, frontend_id)


class HeldQueue:
    """Takes log n and, for `first_fitting`, the number of distinct demands. Also a sequence, in
    order, for whoever only looks."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Held] = {}
        self._in_order: list[tuple[Order, Held]] = []
        self._by_demand: dict[int, list[tuple[Order, Held]]] = {}
        self._demands: list[int] = []
        self.demand_blocks = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: Key) -> bool:
        return key in self._by_key

    def __iter__(self) -> Iterator[Held]:
        return (held for _, held in self._in_order)

    def __getitem__(self, index: int) -> Held:
        return self._in_order[index][1]

    def get(self, key: Key) -> Held | None:
        return self._by_key.get(key)

    def index(self, key: Key) -> int | None:
        """The request's place in order, from 0; None if it is not here."""
        held = self._by_key.get(key)
        if held is None:
            return None
        return bisect_left(self._in_order, held.order, key=lambda e: e[0])

    def push(self, held: Held) -> None:
        entry = held.order, held
        self._by_key[held.key] = held
        insort(self._in_order, entry, key=lambda e: e[0])
        if held.demand_blocks not in self._by_demand:
            self._by_demand[held.demand_blocks] = []
            insort(self._demands, held.demand_blocks)
        insort(self._by_demand[held.demand_blocks], entry, key=lambda e: e[0])
        self.demand_blocks += held.demand_blocks

    def discard(self, key: Key) -> Held | None:
        held = self._by_key.pop(key, None)
        if held is None:
            return None
        order = held.order
        del self._in_order[bisect_left(self._in_order, order, key=lambda e: e[0])]
        alike = self._by_demand[held.demand_blocks]
        del alike[bisect_left(alike, order, key=lambda e: e[0])]
        if not alike:
            del self._by_demand[held.demand_blocks]
            del self._demands[bisect_left(self._demands, held.demand_blocks)]
        self.demand_blocks -= held.demand_blocks
        return held

    def first(self) -> Held | None:
        return self._in_order[0][1] if self._in_order else None

    def first_fitting(self, room_blocks: int) -> Held | None:
        """The first in order of those that need at most `room_blocks`."""
        best: tuple[Order, Held] | None = None
        for demand in self._demands:
            if demand > room_blocks:
                break
            entry = self._by_demand[demand][0]
            if best is None or entry[0] < best[0]:
                best = entry
        return best[1] if best is not None else None

    def check(self) -> None:
        """Raises AssertionError if the books disagree."""
        orders = [order for order, _ in self._in_order]
        assert all(self.index(held.key) == at for at, held in enumerate(self))
        assert orders == sorted(held.order for held in self._by_key.values())
        assert self._demands == sorted(self._by_demand)
        alike = [entry for entries in self._by_demand.values() for entry in entries]
        assert sorted(order for order, _ in alike) == orders
        for demand, entries in self._by_demand.items():
            assert entries, "a demand of nobody"
            assert [order for order, _ in entries] == sorted(order for order, _ in entries)
            assert all(held.demand_blocks == demand for _, held in entries)
        assert self.demand_blocks == sum(held.demand_blocks for held in self._by_key.values())
