"""Carries out what `core/migration/rank_changes.py` decides about changed priorities. For a request
that no instance has yet, the frontend asks for an instance anew with the new rank."""

import asyncio
from collections.abc import Callable

from controller.core.migration import rank_changes
from controller.core.migration.rank_changes import RankChanges
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


class RankRunner:
    """`send` takes an address and a message."""

    def __init__(
        self,
        machine: RankChanges,
        dispatcher: Dispatcher,
        book: RequestBook,
        send: Callable[[str, Message], None],
    ) -> None:
        self.machine = machine
        self._dispatcher = dispatcher
        self._book = book
        self._send = send
        self._has_changes = asyncio.Event()

    def asked(self, ask: RankChangeAsked) -> RankChangeAnswered:
        """Changes the rank as an operator asked, unless it is a dry run."""
        request_id = ask.request_id
        found = self._book.find(request_id)
        if found is None or found.state in ENDED:
            return RankChangeAnswered(ask.query_id, "unknown" if found is None else "ended")
        previous, level = found.level, self._book.level_name(ask.rank)
        if not ask.dry_run and previous != level:
            self._book.level_changed(request_id, ask.rank, ask.cause_id, ask.actor, ask.reason)
            self._dispatcher.change_rank(request_id, ask.rank)
            self._take(rank_changes.Changed(request_id, ask.rank))
            self._has_changes.set()
        return RankChangeAnswered(ask.query_id, "", previous, found.instance_id)

    def sent(self, request_id: str) -> None:
        """An instance gets the request."""
        self._take(rank_changes.Sent(request_id))

    def ended(self, request_id: str) -> None:
        self._take(rank_changes.Ended(request_id))

    def confirmed(self, told: RankConfirmed) -> None:
        by, epoch = (told.instance_id, told.incarnation), Epoch(told.attempt, told.hop)
        self._take(rank_changes.Confirmed(told.request_id, told.change, by, epoch))

    async def keep_telling(self) -> None:
        every_s = rank_changes.TELL_EVERY_S
        await repeat(every_s, "the telling of priorities", self._tell_again, self._has_changes)

    def _tell_again(self) -> None:
        self._take(rank_changes.Due())
        if not self.machine.has_changes:
            self._has_changes.clear()

    def _take(self, event: rank_changes.Event) -> None:
        for told in self.machine.handle(event):
            self._send(told.owner.address, RankSet(told.request_id, told.rank, told.number))
