"""A frontend's side of the cluster: where each of its requests runs, and in what order its
tokens may reach the client.

Dispatch is the controller's decision. When it does not answer in time the router decides by
itself on the last known status (scheduler-bypass, paper section 5), so that a dead
controller fails no request.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controller.core.bypass import choose_without_controller
from controller.core.instance_ref import InstanceRef
from controller.core.migration.ownership import Loss, Ownership
from controller.core.request_record import RequestState
from controller.core.token_order import FIRST_EPOCH, Delivery, Epoch
from controller.ports.mailbox import Mailbox
from controller.runtime.live_request import RECEIVED_EVERY
from controller.runtime.member import Membership
from controller.runtime.message import Message
from controller.runtime.messages import (
    AbortRequests,
    AddRequest,
    Directory,
    DispatchAsked,
    Dispatched,
    DispatchUnused,
    DispatchWithdrawn,
    DrainFrontend,
    Happened,
    InstanceEntry,
    InstanceLost,
    OutputsEmitted,
    OutputsMissing,
    OutputsReceived,
    Refused,
    RequestRefused,
    RequestsAnswered,
    RequestsAsked,
    Welcome,
    decode,
    encode,
)
from controller.runtime.move_messages import (
    FenceAnswered,
    FenceAsked,
    MoveAnnounced,
    MoveTimed,
    OwnerAsked,
    RequestLost,
    RequestMoved,
    RequestNotMoved,
)
from controller.runtime.request_book import RequestBook

log = logging.getLogger(__name__)

# A live controller answers in well under 10 ms, or holds the request on purpose and keeps
# sending directories; so both must be silent for this long before it is bypassed.
CONTROLLER_SILENCE_S = 1.0
# Tokens that are missing for so long are asked for, and so is an owner; again and again.
MISSING_S = 0.05
# And given up after so long: the client gets an error rather than no end.
UNCLEAR_S = 5.0


class NotDispatchedError(Exception):
    """The cluster does not take this request; `code` is `overloaded` or `unavailable`."""

    def __init__(self, code: str, retry_after_s: float) -> None:
        super().__init__(code)
        self.code = code
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Arrival:
    """One sequence to serve. `parent_id` is set where `n` > 1 made several of one request."""

    request_id: str
    client_request_id: str
    num_prompt_tokens: int
    rank: int
    arrival_time_s: float
    """Seconds since the epoch."""
    parent_id: str | None = None


@dataclass(slots=True)
class _Route:
    """Who runs a request, and when its tokens came, by the loop's clock."""

    ownership: Ownership[Any]
    epoch: Epoch = FIRST_EPOCH
    """Of the last token."""
    token_s: float | None = None
    timed: MoveTimed | None = None
    """A move whose first token has not come."""
    unclear_s: float = 0.0
    asked_s: float = 0.0
    """Since when tokens are missing or an owner is, and when it was last asked for."""


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
    def __init__(
        self, member: Membership, mailbox: Mailbox, book: RequestBook, events: RouterEvents
    ) -> None:
        self._member = member
        self._book = book
        self._mailbox = mailbox
        self._events = events
        self._routes: dict[str, _Route] = {}
        self._asked: dict[str, asyncio.Future[Dispatched]] = {}
        self._instances: dict[str, InstanceEntry] = {}
        self._heard_controller_s = float("-inf")
        self._tasks: list[asyncio.Task[None]] = []
        self._unclear: set[str] = set()
        """Requests that lack tokens, or an owner that is known to live."""

    @property
    def num_live_reqs(self) -> int:
        return len(self._routes) + len(self._asked)

    @property
    def live_request_ids(self) -> list[str]:
        return [*self._routes, *self._asked]

    def start(self) -> None:
        self._mailbox.start(self._on_message, self._on_lost)
        self._tasks = [
            asyncio.create_task(self._member.keep_saying_hello()),
            asyncio.create_task(self._ask_for_what_is_missing()),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._mailbox.close()

    async def submit(self, arrival: Arrival, payload: Sequence[Any]) -> None:
        """Dispatch and send. Raises NotDispatchedError; a request aborted meanwhile is not sent."""
        self._book.arrived(
            arrival.request_id,
            arrival.client_request_id,
            arrival.parent_id,
            arrival.rank,
            arrival.num_prompt_tokens,
            arrival.arrival_time_s,
        )
        try:
            await self._dispatch(arrival, payload)
        except NotDispatchedError as refusal:
            self._book.ended(arrival.request_id, RequestState.FAILED, refusal.code)
            raise

    async def _dispatch(self, arrival: Arrival, payload: Sequence[Any]) -> None:
        request_id = arrival.request_id
        ask = DispatchAsked(
            request_id,
            self._member.member_id,
            arrival.num_prompt_tokens,
            arrival.rank,
            arrival.arrival_time_s,
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
        self._routes[request_id] = _Route(Ownership(_ref(entry)))
        self._note_dispatch(answer)
        add = AddRequest(
            request_id,
            self._member.member_id,
            self._mailbox.address,
            entry.incarnation,
            answer.seq,
            arrival.arrival_time_s,
        )
        self._mailbox.send(entry.address, encode(add), payload)

    def abort(self, request_ids: Sequence[str], outcome: RequestState, reason: str) -> None:
        """Forget these requests and have their instances free their blocks; `outcome` is how
        they ended for their clients."""
        by_address: dict[str, list[str]] = {}
        for request_id in request_ids:
            self._book.ended(request_id, outcome, reason)
            if route := self._routes.pop(request_id, None):
                for holder in route.ownership.holders:
                    by_address.setdefault(holder.address, []).append(request_id)
            elif asked := self._asked.pop(request_id, None):
                self._withdraw(request_id, asked)
                asked.cancel()
        for address, ids in by_address.items():
            self._send(address, AbortRequests(tuple(ids)))

    def accept(self, emitted: OutputsEmitted, outputs: Sequence[Any]) -> list[Delivery[Any]]:
        """Of `outputs` (each with a `request_id`), those due now, in order."""
        by_id = {output.request_id: output for output in outputs}
        address = ""
        now_s = asyncio.get_running_loop().time()
        due: list[Delivery[Any]] = []
        received: list[tuple[str, int]] = []
        for item in emitted.items:
            request_id = item.request_id
            route = self._routes.get(request_id)
            output = by_id.get(request_id)
            if route is None or output is None:
                continue
            ownership = route.ownership
            sender = self._sender(emitted, ownership)
            address = sender.address or address
            before = ownership.next_index
            epoch = Epoch(item.attempt, item.hop)
            offered = ownership.offer(
                sender, epoch, item.first_index, item.num_tokens, (item, output)
            )
            for (delivered, its_output), num_skip in offered:
                due.append(Delivery(its_output, num_skip))
                self._time(route, Epoch(delivered.attempt, delivered.hop), now_s)
                num_new = delivered.num_tokens - num_skip
                self._book.emitted(request_id, num_new, delivered.finish_reason)
                if delivered.finish_reason is not None:
                    self._routes.pop(request_id, None)
            if ownership.next_index // RECEIVED_EVERY != before // RECEIVED_EVERY:
                received.append((request_id, ownership.next_index))
            if ownership.gap is not None:
                self._find_unclear(request_id, route)
        if received and address:
            confirmed = OutputsReceived(tuple(received))
            self._mailbox.send(address, encode(confirmed), droppable=True)
        return due

    def _time(self, route: _Route, epoch: Epoch, now_s: float) -> None:
        """A token came. The first of a new owner tells how long the client waited for it."""
        if epoch > route.epoch:
            route.epoch = epoch
            timed, route.timed = route.timed, None
            if timed is not None:
                downtime_s = None if route.token_s is None else now_s - route.token_s
                self._book.move_timed(timed, downtime_s)
        route.token_s = now_s

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
            owner_id = route.ownership.owner.instance_id
            load[owner_id] = load.get(owner_id, 0) + 1
        chosen = choose_without_controller(snapshots, load)
        if chosen is None:
            raise NotDispatchedError("unavailable", retry_after_s=1.0)
        return Dispatched(ask.request_id, chosen.instance_id, chosen.incarnation, seq=0)

    def _note_dispatch(self, answer: Dispatched) -> None:
        alone = answer.seq == 0  # the controller counts from 1
        self._book.dispatched(
            answer.request_id,
            answer.instance_id,
            answer.incarnation,
            answer.candidates,
            "by the frontend alone: the controller is silent" if alone else "by the controller",
            tell=alone,
        )

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
                    self._book.ended(request_id, RequestState.FAILED, message)
                    tell = self._events.on_failed if retryable else self._events.on_refused
                    tell(request_id, message)
            case InstanceLost() as lost:
                self._lose(lost)
            case Happened(events=events):
                for event in events:
                    self._book.happened(event)
            case RequestsAsked() as ask:
                requests, num_matching = self._book.answer(ask)
                answer = RequestsAnswered(
                    ask.query_id, self._member.member_id, requests, num_matching
                )
                self._mailbox.send(self._member.controller_address, encode(answer), droppable=True)
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
                if not self._on_move_message(other):
                    log.warning("unexpected message %s", type(other).__name__)

    def _on_move_message(self, message: Message) -> bool:
        """False for what has nothing to do with moves."""
        match message:
            case MoveAnnounced(request_id=request_id, destination=destination, hop=hop):
                if route := self._routes.get(request_id):
                    route.ownership.announce(destination, hop)
                    known = self._instances.get(destination.instance_id)
                    if known is not None and known.incarnation > destination.incarnation:
                        self._lose_holder(request_id, route, destination)
            case RequestMoved(request_id=request_id) as moved:
                self._moved(moved)
            case RequestNotMoved(request_id=request_id, hop=hop):
                route = self._routes.get(request_id)
                if route is not None and route.ownership.disowned(hop):
                    self._fail(request_id, route)
            case RequestLost(request_id=request_id, owner=owner, hop=hop):
                route = self._routes.get(request_id)
                if route is not None and route.ownership.lost_in(hop):
                    self._fail(request_id, route, owner)
            case FenceAsked(request_id=request_id, owner=owner, hop=hop):
                route = self._routes.get(request_id)
                # A request that is over here is nobody's: its source may have it back and will
                # hear that nobody wants it.
                fenced = route is None or route.ownership.fence(owner, hop)
                self._send(owner.address, FenceAnswered(request_id, hop, fenced))
                if route is None:
                    self._send(owner.address, AbortRequests((request_id,)))
            case MoveTimed(record=record) as timed:
                route = self._routes.get(record.request_id)
                if route is not None and route.ownership.owner.instance_id == record.destination_id:
                    route.timed = timed
            case _:
                return False
        return True

    def _moved(self, moved: RequestMoved) -> None:
        route = self._routes.get(moved.request_id)
        if route is None:  # its client left meanwhile
            self._send(moved.owner.address, AbortRequests((moved.request_id,)))
        elif route.ownership.moved(moved.owner, moved.hop, moved.began_index):
            self._book.moved(moved.request_id, moved.owner.instance_id, moved.owner.incarnation)

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
        self._lose_where(lambda holder: holder.address == address)

    def _lose(self, lost: InstanceLost) -> None:
        dead = (lost.instance_id, lost.incarnation)
        entry = self._instances.get(lost.instance_id)
        if entry is not None and entry.incarnation == lost.incarnation:
            del self._instances[lost.instance_id]
            self._mailbox.forget(entry.address)
        self._lose_where(lambda holder: holder.key == dead)

    def _lose_replaced(self) -> None:
        """A directory with another incarnation says so too, where InstanceLost was missed."""
        known = {i: _ref(entry).key for i, entry in self._instances.items()}
        self._lose_where(lambda holder: known.get(holder.instance_id, holder.key) != holder.key)

    def _lose_where(self, is_lost: Callable[[InstanceRef], bool]) -> None:
        for request_id, route in list(self._routes.items()):
            for holder in route.ownership.holders:
                if is_lost(holder):
                    self._lose_holder(request_id, route, holder)

    def _lose_holder(self, request_id: str, route: _Route, holder: InstanceRef) -> None:
        match route.ownership.lost(holder.instance_id, holder.incarnation):
            case Loss.REQUEST:
                self._fail(request_id, route)
            case Loss.ASK:
                self._find_unclear(request_id, route)
                self._ask_about(request_id, route, asyncio.get_running_loop().time())

    def _fail(self, request_id: str, route: _Route, owner: InstanceRef | None = None) -> None:
        owner = owner or route.ownership.owner
        why = f"instance {owner.instance_id} died while it ran this request; send it again"
        self._end_failed(request_id, why, f"lost-{owner.instance_id}-{owner.incarnation}")

    def _end_failed(self, request_id: str, why: str, cause_id: str | None = None) -> None:
        if self._routes.pop(request_id, None) is not None:
            self._book.ended(request_id, RequestState.FAILED, why, cause_id)
            self._events.on_failed(request_id, why)

    # -- what is missing -----------------------------------------------------------------

    def _find_unclear(self, request_id: str, route: _Route) -> None:
        if request_id not in self._unclear:
            self._unclear.add(request_id)
            route.unclear_s = route.asked_s = asyncio.get_running_loop().time()

    async def _ask_for_what_is_missing(self) -> None:
        while True:
            await asyncio.sleep(MISSING_S)
            now_s = asyncio.get_running_loop().time()
            for request_id in list(self._unclear):
                route = self._routes.get(request_id)
                if route is None or not (route.ownership.to_ask or route.ownership.gap):
                    self._unclear.discard(request_id)
                elif now_s - route.unclear_s >= UNCLEAR_S:
                    self._unclear.discard(request_id)
                    self._give_up(request_id, route)
                elif now_s - route.asked_s >= MISSING_S:
                    self._ask_about(request_id, route, now_s)

    def _give_up(self, request_id: str, route: _Route) -> None:
        """Whoever still has something of it would go on with it to its end."""
        for holder in route.ownership.holders:
            self._send(holder.address, AbortRequests((request_id,)))
        if route.ownership.to_ask is not None:
            self._fail(request_id, route)
        else:
            self._end_failed(request_id, "tokens of it were lost on their way; send it again")

    def _ask_about(self, request_id: str, route: _Route, now_s: float) -> None:
        ownership = route.ownership
        route.asked_s = now_s
        if ownership.to_ask is not None:
            destination, hop = ownership.to_ask
            self._send(destination.address, OwnerAsked(request_id, self._mailbox.address, hop))
        elif ownership.gap is not None:
            missing = OutputsMissing(request_id, *ownership.gap)
            self._send(ownership.owner.address, missing)

    def _sender(self, emitted: OutputsEmitted, ownership: Ownership[Any]) -> InstanceRef:
        """A controller that was just restarted may not list it yet, so what is known of the
        request comes first."""
        key = (emitted.instance_id, emitted.incarnation)
        for holder in ownership.holders:
            if holder.key == key:
                return holder
        entry = self._instances.get(emitted.instance_id)
        if entry is not None and entry.incarnation == emitted.incarnation:
            return _ref(entry)
        return InstanceRef(*key, address="")

    def _send(self, address: str, message: Message) -> None:
        if address:  # none is known of an instance that is in no list and was not announced
            self._mailbox.send(address, encode(message))


def _ref(entry: InstanceEntry) -> InstanceRef:
    return InstanceRef(entry.instance_id, entry.incarnation, entry.address)
