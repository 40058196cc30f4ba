"""The requests that the global scheduler holds, with late binding or without."""

from collections.abc import Iterator

from controller.core.holding.fair_turns import FairTurns
from controller.core.holding.held_queue import Held, Key
from controller.core.overload.shed_order import ShedOrder
from controller.core.scheduler_events import DispatchRequested
from controller.core.value import value


@value
class HeldRequest:
    """`turn` among the API keys of its rank, and what it is expected to take, in tokens; both 0
    where keys do not count."""

    request: DispatchRequested
    since_s: float
    turn: float = 0.0
    cost: float = 0.0

    def entry(self, key: Key, demand_blocks: int) -> Held:
        request = self.request
        arrival_s = request.arrival_time_s
        return Held(key, request.rank, arrival_s, demand_blocks, self.since_s, self.turn)


class HeldRequests:
    """By (frontend id, request id), the longest held first."""

    def __init__(self) -> None:
        self._by_key: dict[Key, HeldRequest] = {}
        self._shed_order = ShedOrder()
        """Of those that may be refused for others."""
        self._turns = FairTurns()

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: Key) -> bool:
        return key in self._by_key

    def __getitem__(self, key: Key) -> HeldRequest:
        return self._by_key[key]

    def get(self, key: Key) -> HeldRequest | None:
        return self._by_key.get(key)

    def items(self) -> Iterator[tuple[Key, HeldRequest]]:
        return iter(self._by_key.items())

    def latest_first(self) -> Iterator[tuple[Key, HeldRequest]]:
        return reversed(self._by_key.items())

    def hold(self, request: DispatchRequested, since_s: float, cost: float = 0.0) -> None:
        """It must not be held yet. `cost`: 0 gives it no turn: it goes by its arrival."""
        turn = self._turns.take(request.rank, request.api_key, cost) if cost else 0.0
        held = HeldRequest(request, since_s, turn, cost)
        self._by_key[request.frontend_id, request.request_id] = held
        if not request.replayed:
            self._shed_order.push(request.order)

    def discard(self, key: Key, *, served: bool = False) -> HeldRequest | None:
        held = self._by_key.pop(key, None)
        if held is not None:
            request = held.request
            self._shed_order.discard(request.order)
            if held.cost:
                self._turns.gone(request.rank, request.api_key, held.turn, held.cost, served=served)
        return held

    def last(self) -> DispatchRequested | None:
        """The one that is refused if any must be: of the lowest rank the newest. A replayed one,
        whose client has tokens of it, never is."""
        order = self._shed_order.last()
        if order is None:
            return None
        _, _, request_id, frontend_id = order
        return self._by_key[frontend_id, request_id].request

    def check(self) -> None:
        """Raises AssertionError if the books disagree."""
        self._shed_order.check()
        for key, held in self._by_key.items():
            assert key == (held.request.frontend_id, held.request.request_id)
        assert len(self._turns) == sum(held.cost > 0 for held in self._by_key.values())
        num_replayed = sum(held.request.replayed for held in self._by_key.values())
        assert len(self._shed_order) == len(self._by_key) - num_replayed
