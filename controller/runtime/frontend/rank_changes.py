"""Priorities of a frontend's live requests that were changed on their way.

The frontend counts the changes of each request and tells its owner until that one confirms; a
new owner is told again, although the rank travels with a move: so no change is lost, whoever
dies or gives it back, and an older one never counts over a newer one. A request that no
instance has yet is asked for anew with its new rank.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from controller.core.record.request_record import ENDED
from controller.runtime.frontend.dispatcher import Dispatcher
from controller.runtime.frontend.request_book import RequestBook
from controller.runtime.frontend.routes import Route, Routes
from controller.runtime.messages.message import Message
from controller.runtime.messages.operations import (
    RankChangeAnswered,
    RankChangeAsked,
    RankConfirmed,
    RankSet,
)

log = logging.getLogger(__name__)

# An owner that did not confirm a change is told again so often.
TELL_EVERY_S = 0.1


@dataclass(slots=True)
class _Change:
    rank: int
    number: int
    confirmed_by: tuple[str, int] | None = None
    """(instance, incarnation)."""
    confirmed_hop: int = -1


class RankChanges:
    """`send` takes an address."""

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
        """The last one of each request that ever had one."""

    def asked(self, ask: RankChangeAsked) -> RankChangeAnswered:
        """By an operator. Mutates unless it is a dry run."""
        request_id = ask.request_id
        found = self._book.find(request_id)
        if found is None or found.state in ENDED:
            return RankChangeAnswered(ask.query_id, "unknown" if found is None else "ended")
        previous, level = found.level, self._book.level_name(ask.rank)
        if not ask.dry_run and previous != level:
            before = self._changes.get(request_id)
            number = 1 if before is None else before.number + 1
            self._changes[request_id] = _Change(ask.rank, number)
            self._book.level_changed(request_id, ask.rank, ask.cause_id, ask.actor, ask.reason)
            self._dispatcher.change_rank(request_id, ask.rank)
            self.tell_owner(request_id)
        return RankChangeAnswered(ask.query_id, "", previous, found.instance_id)

    def tell_owner(self, request_id: str) -> None:
        """Nothing if its rank never changed, or nobody owns it yet."""
        change, route = self._changes.get(request_id), self._routes.live.get(request_id)
        if change is not None and route is not None:
            told = RankSet(request_id, change.rank, change.number)
            self._send(route.ownership.owner.address, told)

    def confirmed(self, confirmed: RankConfirmed) -> None:
        change = self._changes.get(confirmed.request_id)
        if change is not None and change.number == confirmed.change:
            change.confirmed_by = (confirmed.instance_id, confirmed.incarnation)
            change.confirmed_hop = confirmed.hop

    async def keep_telling(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            for request_id, change in list(self._changes.items()):
                try:
                    self._tell_again(request_id, change)
                except Exception:  # the others are told all the same
                    log.exception("the priority of %s cannot be told", request_id)

    def _tell_again(self, request_id: str, change: _Change) -> None:
        route = self._routes.live.get(request_id)
        if route is not None:
            if not _is_confirmed(change, route):
                self.tell_owner(request_id)
        elif request_id not in self._dispatcher.asked:
            del self._changes[request_id]


def _is_confirmed(change: _Change, route: Route) -> bool:
    """By who owns it now. One that took it back may be in a hop ahead of its first token here."""
    ownership = route.ownership
    return (
        change.confirmed_by == ownership.owner.key
        and change.confirmed_hop >= ownership.order.epoch.hop
    )
