"""The requests that the global scheduler holds, with late binding or without."""

from collections.abc import Iterator

from controller.core.holding.held_queue import Held, Key
from controller.core.overload.shed_order import ShedOrder
from controller.core.scheduler_events import DispatchRequested
from controller.core.value import value


@value
class HeldRequest:
    request: DispatchRequested
    since_s: float

    def entry(self, key: Key, demand_blocks: int) -> Held:
        request = self.request
        return Held(key, request.rank, request.arrival_time_s, demand_blocks, self.since_s)


class HeldRequests:
    """By (frontend id, request id), the longest held first."""

    def __init__(self) -> None:
        self._by_key: dict[Key, HeldRequest] = {}
        self._shed_order = ShedOrder()
        """Of those that may be refused for others."""

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

    def hold(self, request: DispatchRequested, since_s: float) -> None:
        """It must not be held yet."""
        self._by_key[request.frontend_id, request.request_id] = HeldRequest(request, since_s)
        if not request.replayed:
            self._shed_order.push(request.order)

    def discard(self, key: Key) -> HeldRequest | None:
        held = self._by_key.pop(key, None)
        if held is not None:
            self._shed_order.discard(held.request.order)
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
        num_replayed = sum(held.request.replayed for held in self._by_key.values())
        assert len(self._shed_order) == len(self._by_key) - num_replayed
