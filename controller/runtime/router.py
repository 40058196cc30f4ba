"""A frontend's side of the cluster: where each of its requests runs, and in what order its
tokens may reach the client.

Dispatch is the controller's decision. When it does not answer in time the router decides by
itself on the last known status (scheduler-bypass, paper section 5), so that a dead
controller fails no request.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.core.bypass import choose_without_controller
from controller.core.token_order import Delivery, Epoch, TokenOrder
from controller.ports.mailbox import Mailbox
from controller.runtime.member import Membership
from controller.runtime.messages import (
    AbortRequests,
    AddRequest,
    Directory,
    DispatchAsked,
    Dispatched,
    DispatchUnused,
    DispatchWithdrawn,
    DrainFrontend,
    InstanceEntry,
    InstanceLost,
    OutputsEmitted,
    Refused,
    RequestRefused,
    Welcome,
    decode,
    encode,
)

log = logging.getLogger(__name__)

# A live controller answers in well under 10 ms, or holds the request on purpose and keeps
# sending directories; so both must be silent for this long before it is bypassed.
CONTROLLER_SILENCE_S = 1.0


class NotDispatchedError(Exception):
    """The cluster does not take this request; `code` is `overloaded` or `unavailable`."""

    def __init__(self, code: str, retry_after_s: float) -> None:
        super().__init__(code)
        self.code = code
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class _Route:
    """The incarnation that runs a request and the order of its tokens."""

    instance_id: str
    incarnation: int
    address: str
    order: TokenOrder[Any] = field(default_factory=TokenOrder)


@dataclass(frozen=True, slots=True)
class RouterEvents:
    """What the router tells the OpenAI app."""

    on_outputs: Callable[[OutputsEmitted, Sequence[memoryview]], None]
    on_failed: Callable[[str, str], None]
    """A live request (id, why) that no instance runs any more; it may be sent again."""
    on_refused: Callable[[str, str], None]
    """A request (id, why) that no instance would take."""
    on_directory: Callable[[Sequence[InstanceEntry]], None]
    on_drain: Callable[[float], None]


class Router:
    def __init__(self, member: Membership, mailbox: Mailbox, events: RouterEvents) -> None:
        self._member = member
        self._mailbox = mailbox
        self._events = events
        self._routes: dict[str, _Route] = {}
        self._asked: dict[str, asyncio.Future[Dispatched]] = {}
        self._instances: dict[str, InstanceEntry] = {}
        self._heard_controller_s = float("-inf")
        self._hellos: asyncio.Task[None] | None = None

    @property
    def num_live_reqs(self) -> int:
        return len(self._routes) + len(self._asked)

    @property
    def live_request_ids(self) -> list[str]:
        return [*self._routes, *self._asked]

    def start(self) -> None:
        self._mailbox.start(self._on_message, self._on_lost)
        self._hellos = asyncio.create_task(self._member.keep_saying_hello())

    async def close(self) -> None:
        if self._hellos:
            self._hellos.cancel()
        await self._mailbox.close()

    async def submit(
        self,
        request_id: str,
        num_prompt_tokens: int,
        rank: int,
        arrival_time_s: float,
        payload: Sequence[Any],
    ) -> None:
        """Dispatch and send. Raises NotDispatchedError; a request aborted meanwhile is not sent."""
        ask = DispatchAsked(
            request_id, self._member.member_id, num_prompt_tokens, rank, arrival_time_s
        )
        asked = self._asked[request_id] = asyncio.get_running_loop().create_future()
        try:
            answer = await self._ask(ask, asked)
        except asyncio.CancelledError:
            if request_id in self._asked:  # the client left, not `abort`
                self._withdraw(request_id, asked)
                raise
            return
        finally:
            aborted = self._asked.pop(request_id, None) is None
        if aborted:  # just after the answer came
            return
        entry = self._instances.get(answer.instance_id)
        if entry is None or entry.incarnation != answer.incarnation:
            raise NotDispatchedError("unavailable", retry_after_s=1.0)  # died in between
        self._routes[request_id] = _Route(entry.instance_id, entry.incarnation, entry.address)
        add = AddRequest(
            request_id,
            self._member.member_id,
            self._mailbox.address,
            entry.incarnation,
            answer.seq,
        )
        self._mailbox.send(entry.address, encode(add), payload)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget these requests and have their instances free their blocks."""
        by_address: dict[str, list[str]] = {}
        for request_id in request_ids:
            if route := self._routes.pop(request_id, None):
                by_address.setdefault(route.address, []).append(request_id)
            elif asked := self._asked.pop(request_id, None):
                self._withdraw(request_id, asked)
                asked.cancel()
        for address, ids in by_address.items():
            self._mailbox.send(address, encode(AbortRequests(tuple(ids))))

    def accept(self, emitted: OutputsEmitted, outputs: Sequence[Any]) -> list[Delivery[Any]]:
        """Of `outputs` (each with `request_id` and `finished`), those due now, in order."""
        by_id = {output.request_id: output for output in outputs}
        due: list[Delivery[Any]] = []
        for item in emitted.items:
            route = self._routes.get(item.request_id)
            output = by_id.get(item.request_id)
            if route is None or output is None:
                continue
            epoch = Epoch(item.attempt, item.hop)
            for delivery in route.order.offer(epoch, item.first_index, item.num_tokens, output):
                due.append(delivery)
                if delivery.item.finished:
                    self._routes.pop(item.request_id, None)
        return due

    async def _ask(self, ask: DispatchAsked, asked: asyncio.Future[Dispatched]) -> Dispatched:
        """Asks again and again: a question, or a controller that held it, may get lost."""
        while True:
            self._mailbox.send(self._member.controller_address, encode(ask), droppable=True)
            done, _ = await asyncio.wait({asked}, timeout=CONTROLLER_SILENCE_S)
            if done:
                return asked.result()
            if self._controller_is_silent():
                return self._decide_alone(ask)

    def _controller_is_silent(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        return now_s - self._heard_controller_s > CONTROLLER_SILENCE_S

    def _decide_alone(self, ask: DispatchAsked) -> Dispatched:
        snapshots = [e.snapshot for e in self._instances.values() if e.snapshot is not None]
        load: dict[str, int] = {}
        for route in self._routes.values():
            load[route.instance_id] = load.get(route.instance_id, 0) + 1
        chosen = choose_without_controller(snapshots, load)
        if chosen is None:
            raise NotDispatchedError("unavailable", retry_after_s=1.0)
        return Dispatched(ask.request_id, chosen.instance_id, chosen.incarnation, seq=0)

    def _withdraw(self, request_id: str, asked: asyncio.Future[Dispatched]) -> None:
        if asked.done():
            if not asked.cancelled() and asked.exception() is None:
                self._decline(asked.result())
            return
        withdrawn = DispatchWithdrawn(request_id, self._member.member_id)
        self._mailbox.send(self._member.controller_address, encode(withdrawn), droppable=True)

    def _decline(self, dispatched: Dispatched) -> None:
        """Or the controller would count the request as on its way for ever."""
        entry = self._instances.get(dispatched.instance_id)
        if entry is not None and entry.incarnation == dispatched.incarnation:
            unused = DispatchUnused(dispatched.incarnation, dispatched.seq)
            self._mailbox.send(entry.address, encode(unused))

    def _on_message(self, head: bytes | memoryview, payload: Sequence[memoryview]) -> None:
        match decode(head):
            case OutputsEmitted() as emitted:
                self._events.on_outputs(emitted, payload)
            case Dispatched() as dispatched:
                self._answer(dispatched)
            case Refused() as refused:
                if (asked := self._asked.get(refused.request_id)) and not asked.done():
                    asked.set_exception(NotDispatchedError(refused.code, refused.retry_after_s))
            case RequestRefused(request_id=request_id, message=message, retryable=retryable):
                if self._routes.pop(request_id, None):
                    tell = self._events.on_failed if retryable else self._events.on_refused
                    tell(request_id, message)
            case InstanceLost() as lost:
                self._lose(lost)
            case Directory(instances=instances):
                self._heard_controller_s = asyncio.get_running_loop().time()
                self._instances = {entry.instance_id: entry for entry in instances}
                self._lose_replaced()
                self._events.on_directory(instances)
            case Welcome() as welcome:
                self._member.welcomed(welcome)
            case DrainFrontend(grace_s=grace_s):
                self._events.on_drain(grace_s)
            case other:
                log.warning("unexpected message %s", type(other).__name__)

    def _answer(self, dispatched: Dispatched) -> None:
        asked = self._asked.get(dispatched.request_id)
        if asked is not None and not asked.done():
            asked.set_result(dispatched)
        else:
            self._decline(dispatched)

    def _on_lost(self, address: str) -> None:
        """An instance's socket closed: the controller says the same, but may be gone too."""
        for entry in list(self._instances.values()):
            if entry.address == address:
                del self._instances[entry.instance_id]
        self._fail_routes(lambda route: route.address == address)

    def _lose(self, lost: InstanceLost) -> None:
        entry = self._instances.get(lost.instance_id)
        if entry is not None and entry.incarnation == lost.incarnation:
            del self._instances[lost.instance_id]
            self._mailbox.forget(entry.address)
        self._fail_routes(
            lambda route: (
                (route.instance_id, route.incarnation) == (lost.instance_id, lost.incarnation)
            )
        )

    def _lose_replaced(self) -> None:
        """A directory with another incarnation says so too, where InstanceLost was missed."""
        known = {i: (entry.incarnation, entry.address) for i, entry in self._instances.items()}
        self._fail_routes(
            lambda route: (
                known.get(route.instance_id, (route.incarnation, route.address))
                != (route.incarnation, route.address)
            )
        )

    def _fail_routes(self, is_lost: Callable[[_Route], bool]) -> None:
        for request_id, route in list(self._routes.items()):
            if is_lost(route):
                del self._routes[request_id]
                why = f"instance {route.instance_id} died while it ran this request; send it again"
                self._events.on_failed(request_id, why)
