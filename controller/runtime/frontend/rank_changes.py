"""Changed priorities of a frontend's live requests.

The frontend counts the changes of each request's rank and tells the owner until the owner confirms.
A new owner is told too, although the rank travels with a move. So no change is lost, whichever
instance dies or gives the request back, and an older change never counts over a newer one. For a
request that no instance has yet, the frontend asks for an instance anew with the new rank.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from controller.core.migration.routes import Route, Routes, RouteState
from controller.core.record.request_record import ENDED
from controller.core.token_order import Epoch
from controller.runtime.frontend.dispatcher import Dispatcher
from controller.runtime.frontend.request_book import RequestBook
from controller.runtime.messages.message import Message
from controller.runtime.messages.operations import (
    RankChangeAnswered,
    RankChangeAsked,
    RankConfirmed,
    RankSet,
)
from controller.runtime.repeating import repeat

log = logging.getLogger(__name__)

# An owner that has not confirmed a change is told again after so long.
TELL_EVERY_S = 0.1


@dataclass(slots=True)
class _Change:
    rank: int
    number: int
    confirmed_by: tuple[str, int] | None = None
    """(instance, incarnation)."""
    confirmed_epoch: Epoch | None = None


class RankChanges:
    """`send` takes an address and a message."""

    def __init__(
        self,
        routes: Routes,
        dispatcher: Dispatcher,
        book: RequestBook,
        send: Callable[[str, Message], None],
    ) -> None:
        self._routes = routes
        self._dispatcher = dispatcher
        self._book = book
        self._send = send
        self._changes: dict[str, _Change] = {}
        """The last change of each request that has had one."""
        self._has_changes = asyncio.Event()

    def asked(self, ask: RankChangeAsked) -> RankChangeAnswered:
        """Changes the rank as an operator asked, unless it is a dry run."""
        request_id = ask.request_id
        found = self._book.find(request_id)
        if found is None or found.state in ENDED:
            return RankChangeAnswered(ask.query_id, "unknown" if found is None else "ended")
        previous, level = found.level, self._book.level_name(ask.rank)
        if not ask.dry_run and previous != level:
            before = self._changes.get(request_id)
            number = 1 if before is None else before.number + 1
            self._changes[request_id] = _Change(ask.rank, number)
            self._has_changes.set()
            self._book.level_changed(request_id, ask.rank, ask.cause_id, ask.actor, ask.reason)
            self._dispatcher.change_rank(request_id, ask.rank)
            self.tell_owner(request_id)
        return RankChangeAnswered(ask.query_id, "", previous, found.instance_id)

    def tell_owner(self, request_id: str) -> None:
        """Tells the request's owner its rank. Does nothing if the rank never changed, or nobody
        owns the request yet."""
        change, route = self._changes.get(request_id), self._routes.live.get(request_id)
        is_lost = self._routes.state(request_id) is RouteState.LOST
        if change is not None and route is not None and not is_lost:
            told = RankSet(request_id, change.rank, change.number)
            self._send(route.ownership.owner.address, told)

    def confirmed(self, confirmed: RankConfirmed) -> None:
        change = self._changes.get(confirmed.request_id)
        if change is not None and change.number == confirmed.change:
            change.confirmed_by = (confirmed.instance_id, confirmed.incarnation)
            change.confirmed_epoch = Epoch(confirmed.attempt, confirmed.hop)

    async def keep_telling(self) -> None:
        await repeat(TELL_EVERY_S, "the telling of priorities", self._tell_all, self._has_changes)

    def _tell_all(self) -> None:
        if not self._changes:
            self._has_changes.clear()
        for request_id, change in list(self._changes.items()):
            try:
                self._tell_again(request_id, change)
            except Exception:  # the others are told all the same
                log.exception("the priority of %s cannot be told", request_id)

    def _tell_again(self, request_id: str, change: _Change) -> None:
        route = self._routes.live.get(request_id)
        if route is not None:
            is_lost = self._routes.state(request_id) is RouteState.LOST
            if not is_lost and not _is_confirmed(change, route):
                self.tell_owner(request_id)
        elif request_id not in self._dispatcher.asked:
            del self._changes[request_id]


def _is_confirmed(change: _Change, route: Route) -> bool:
    """Whether the present owner has confirmed the change. An owner that took the request back may
    be in a later hop than its first token here shows."""
    ownership = route.ownership
    return (
        change.confirmed_by == ownership.owner.key
        and change.confirmed_epoch is not None
        and change.confirmed_epoch >= ownership.order.epoch
    )
