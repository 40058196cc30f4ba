"""Which instance runs each request of a frontend, by what instances say of moves and deaths.

core/migration/ownership.py decides which instance owns a request; this module carries that out. If
tokens or a live owner are missing, the frontend asks for them until they come or the request is
taken for lost (replays.py). An instance whose tokens count for nothing is told so, or it would
decode to the request's end.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from controller.core.instance_ref import InstanceRef
from controller.core.load.snapshot import blocks_for
from controller.core.migration.ownership import Loss, Ownership
from controller.core.replay.replay import Replay
from controller.core.token_order import FIRST_EPOCH, Epoch
from controller.ports.mailbox import Mailbox
from controller.runtime.frontend.known_instances import KnownInstances
from controller.runtime.frontend.request_book import RequestBook
from controller.runtime.messages.codec import encode
from controller.runtime.messages.inbox import Handlers
from controller.runtime.messages.members import InstanceLost
from controller.runtime.messages.message import Message
from controller.runtime.messages.moves import (
    FenceAnswered,
    FenceAsked,
    MoveAnnounced,
    MoveTimed,
    OwnerAsked,
    OwnerConfirmed,
    RequestLost,
    RequestMoved,
    RequestNotMoved,
)
from controller.runtime.messages.requests import (
    AbortRequests,
    OutputItem,
    OutputsMissing,
    OutputsUnread,
)
from controller.runtime.repeating import repeat

log = logging.getLogger(__name__)

# Tokens that are missing for so long are asked for, and so is a missing owner, again each time so
# much has passed. As often an instance hears which of its requests are not read.
MISSING_S = 0.05
# A request is taken for lost after so long: it is replayed, or the client gets an error.
UNCLEAR_S = 5.0


@dataclass(slots=True)
class Route:
    """A request's owner, and when its tokens came, by the loop's clock."""

    ownership: Ownership[Any]
    num_prompt_tokens: int = 0
    epoch: Epoch = FIRST_EPOCH
    """The epoch of the last token."""
    token_s: float | None = None
    timed: MoveTimed | None = None
    """A move of which the destination's first token has not come yet."""
    replay: Replay | None = None
    """A replay of which the first token has not come yet."""
    unclear_s: float = 0.0
    """Since when tokens or the owner are missing."""
    asked_s: float = 0.0
    """When they were last asked for."""

    @property
    def next_index(self) -> int:
        """How many tokens have come."""
        return self.ownership.order.next_index

    @property
    def attempt(self) -> int:
        return self.ownership.order.epoch.attempt


class Routes:
    def __init__(self, mailbox: Mailbox, known: KnownInstances, book: RequestBook) -> None:
        self._mailbox = mailbox
        self._known = known
        self._book = book
        self.on_lost: Callable[[str, InstanceRef, str], None]
        """Called once for a live request (id) that no instance has any more, as its owner died, or
        for another reason in words."""
        self.on_found: Callable[[str], None]
        """Called if an instance has such a request after all."""
        self.is_lost: Callable[[str], bool]
        """Whether a request (id) was lost, and no instance has it yet in its next attempt."""
        self.live: dict[str, Route] = {}
        self._unclear: set[str] = set()
        """Requests that lack tokens, or an owner that is known to live."""
        self._unread: dict[str, set[tuple[str, int, int]]] = {}
        """(request id, attempt, hop) of tokens that are not read, by their sender's address."""
        self._has_to_ask = asyncio.Event()

    def num_by_owner(self) -> dict[str, int]:
        load: dict[str, int] = {}
        for route in self._owned():
            owner_id = route.ownership.owner.instance_id
            load[owner_id] = load.get(owner_id, 0) + 1
        return load

    def blocks_by_owner(self, block_size: int) -> dict[str, int]:
        """What the live requests take of each instance, as if none shared a block."""
        found: dict[str, int] = {}
        for route in self._owned():
            owner_id, num_outputs = route.ownership.owner.instance_id, route.next_index
            num_blocks = blocks_for(route.num_prompt_tokens + num_outputs, block_size)
            found[owner_id] = found.get(owner_id, 0) + num_blocks
        return found

    def _owned(self) -> Iterator[Route]:
        return (route for r, route in self.live.items() if not self.is_lost(r))

    # -- moves ---------------------------------------------------------------------------

    @property
    def handlers(self) -> Handlers:
        return {
            MoveAnnounced: self._announced,
            RequestMoved: self._moved,
            RequestNotMoved: self._not_moved,
            RequestLost: self._request_lost,
            FenceAsked: self._fence_asked,
            MoveTimed: self._move_timed,
            InstanceLost: self._instance_lost,
        }

    def _announced(self, announced: MoveAnnounced) -> None:
        destination = announced.destination
        route = self.live.get(announced.request_id)
        if route is not None and not self.is_lost(announced.request_id):
            route.ownership.announce(destination, announced.epoch)
            known = self._known.incarnation(destination.instance_id)
            if known is not None and known > destination.incarnation:
                self._lose_holder(announced.request_id, route, destination)

    def _moved(self, moved: RequestMoved) -> None:
        request_id, owner = moved.request_id, moved.owner
        route = self.live.get(request_id)
        if route is None:  # its client left meanwhile
            self.send(owner.address, AbortRequests((request_id,)))
        elif moved.attempt < route.attempt:
            self._stop(owner, request_id, moved.epoch)
        else:
            if route.ownership.moved(owner, moved.epoch, moved.began_index):
                self._book.moved(request_id, owner.instance_id, owner.incarnation)
                self.find(request_id)
            if route.ownership.is_read_from(owner, moved.epoch):
                confirmed = OwnerConfirmed(request_id, moved.hop, moved.attempt)
                self.send(owner.address, confirmed)

    def _not_moved(self, told: RequestNotMoved) -> None:
        route = self.live.get(told.request_id)
        if route is not None and route.ownership.disowned(told.epoch):
            self._lose(told.request_id, route)

    def _request_lost(self, lost: RequestLost) -> None:
        route = self.live.get(lost.request_id)
        if route is not None and route.ownership.lost_in(lost.epoch):
            self._lose(lost.request_id, route, lost.owner)

    def _fence_asked(self, asked: FenceAsked) -> None:
        """Fences a hop. A request that is over here, or that was lost, has no owner: its source may
        have it back, and is told to stop it."""
        request_id, owner = asked.request_id, asked.owner
        route = self.live.get(request_id)
        fenced: bool | None = True
        if route is not None and not self.is_lost(request_id):
            fenced = route.ownership.fence(owner, asked.epoch)
        if route is not None and fenced is None:  # of one that was taken for dead
            if route.ownership.to_ask is not None:
                return  # it asks again, and the destination has answered by then
            self._lose(request_id, route, owner)
        self.send(
            owner.address,
            FenceAnswered(request_id, asked.hop, asked.attempt, fenced=fenced is not False),
        )
        if request_id not in self.live:
            self.send(owner.address, AbortRequests((request_id,)))
        elif route is not None and (self.is_lost(request_id) or asked.attempt < route.attempt):
            self._stop(owner, request_id, asked.epoch)

    def _move_timed(self, timed: MoveTimed) -> None:
        route = self.live.get(timed.record.request_id)
        if route is not None and route.ownership.owner.instance_id == timed.record.destination_id:
            route.timed = timed

    # -- deaths --------------------------------------------------------------------------

    def address_lost(self, address: str) -> None:
        """An instance's socket closed. The controller says the same, but may be gone too."""
        for entry in self._known:
            if entry.address == address:
                self._known.forget(entry)
        self._lose_where(lambda holder: holder.address == address)

    def _instance_lost(self, lost: InstanceLost) -> None:
        dead = (lost.instance_id, lost.incarnation)
        entry = self._known.find(*dead)
        if entry is not None:
            self._known.forget(entry)
            self._mailbox.forget(entry.address)
        self._lose_where(lambda holder: holder.key == dead)

    def lose_replaced(self) -> None:
        """Drops incarnations that the directory has replaced, as InstanceLost may have been
        missed."""
        known = {entry.instance_id: entry.ref.key for entry in self._known}
        self._lose_where(lambda holder: known.get(holder.instance_id, holder.key) != holder.key)

    def _lose_where(self, is_lost: Callable[[InstanceRef], bool]) -> None:
        for request_id, route in list(self.live.items()):
            for holder in route.ownership.holders:
                if is_lost(holder):
                    self._lose_holder(request_id, route, holder)

    def _lose_holder(self, request_id: str, route: Route, holder: InstanceRef) -> None:
        match route.ownership.lost(holder.instance_id, holder.incarnation):
            case Loss.REQUEST:
                self._lose(request_id, route)
            case Loss.ASK:
                self.find_unclear(request_id, route)
                self._ask_about(request_id, route, asyncio.get_running_loop().time())

    def _lose(self, request_id: str, route: Route, owner: InstanceRef | None = None) -> None:
        owner = owner or route.ownership.owner
        if not self.is_lost(request_id):
            what = f"instance {owner.instance_id} died while it ran this request"
            self.on_lost(request_id, owner, what)

    def find(self, request_id: str) -> None:
        """Call it when another instance turns out to own the request in the same attempt."""
        if self.is_lost(request_id):
            self.on_found(request_id)

    def _stop(self, holder: InstanceRef, request_id: str, epoch: Epoch) -> None:
        self.send(holder.address, OutputsUnread(((request_id, *epoch),)))

    # -- what is missing -----------------------------------------------------------------

    def find_unclear(self, request_id: str, route: Route) -> None:
        if request_id not in self._unclear:
            self._unclear.add(request_id)
            self._has_to_ask.set()
            route.unclear_s = route.asked_s = asyncio.get_running_loop().time()

    def unread(self, sender: InstanceRef, item: OutputItem) -> None:
        """Notes tokens that are not read; the next turn of `keep_asking` tells their sender. A
        request that ended with such tokens has no other end, and may be lost."""
        epoch = Epoch(item.attempt, item.hop)
        if item.finish_reason is None:
            self._unread.setdefault(sender.address, set()).add((item.request_id, *epoch))
            self._has_to_ask.set()
        elif (route := self.live.get(item.request_id)) and route.ownership.lost_in(epoch):
            self._lose(item.request_id, route, sender)

    async def keep_asking(self) -> None:
        """Asks for missing tokens and owners, and tells senders of unread tokens."""
        await repeat(MISSING_S, "the look for missing tokens", self._ask, self._has_to_ask)

    def _ask(self) -> None:
        unread, self._unread = self._unread, {}
        if not self._unclear:
            self._has_to_ask.clear()
        for address, items in unread.items():
            self.send(address, OutputsUnread(tuple(sorted(items))))
        now_s = asyncio.get_running_loop().time()
        for request_id in list(self._unclear):
            try:
                self._look_for_what_is_missing(request_id, now_s)
            except Exception:  # the others are looked after all the same
                log.exception("request %s cannot be given up", request_id)

    def _look_for_what_is_missing(self, request_id: str, now_s: float) -> None:
        route = self.live.get(request_id)
        if (
            route is None
            or self.is_lost(request_id)
            or not (route.ownership.to_ask or route.ownership.order.gap)
        ):
            self._unclear.discard(request_id)
        elif now_s - route.unclear_s >= UNCLEAR_S:
            self._unclear.discard(request_id)
            self._give_up(request_id, route)
        elif now_s - route.asked_s >= MISSING_S:
            self._ask_about(request_id, route, now_s)

    def _give_up(self, request_id: str, route: Route) -> None:
        """Takes the request for lost, and aborts it at its holders, which would decode to its
        end."""
        for holder in route.ownership.holders:
            self.send(holder.address, AbortRequests((request_id,)))
        if route.ownership.to_ask is not None:
            self._lose(request_id, route)
        else:
            owner = route.ownership.owner
            self.on_lost(request_id, owner, "tokens of it were lost on their way")

    def _ask_about(self, request_id: str, route: Route, now_s: float) -> None:
        ownership = route.ownership
        route.asked_s = now_s
        if ownership.to_ask is not None:
            destination, (attempt, hop) = ownership.to_ask
            asked = OwnerAsked(request_id, hop, attempt, frontend=self._mailbox.address)
            self.send(destination.address, asked)
        elif ownership.order.gap is not None:
            missing = OutputsMissing(request_id, *ownership.order.gap)
            self.send(ownership.owner.address, missing)

    def send(self, address: str, message: Message) -> None:
        if address:  # none is known of an instance that is in no list and was not announced
            self._mailbox.send(address, encode(message))
