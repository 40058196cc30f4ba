"""The orders of a session: gives them, asks for plans, and keeps what became of each."""

import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from controller.api.errors import NoSuchCallError
from controller.api.wire.status import ClusterStatus
from tui.actions.asking import AnyOrder
from tui.actions.outbox import Call, Missing, Outbox
from tui.live import Caller, Reply, Work

if TYPE_CHECKING:
    from controller.api.client import ControlClient

Then = Callable[[Any, Exception | None], None]


@dataclass(frozen=True, slots=True)
class _About:
    """Of which call a reply tells; `asked`: it answers a question about the call."""

    call_id: int
    asked: bool


class SessionOrders:
    """`caller` None: a replay, where nothing can be asked or ordered. `of_cluster`: as `Outbox`
    takes it."""

    def __init__(self, caller: Caller | None, of_cluster: str = "") -> None:
        self.outbox = Outbox(of_cluster)
        self._caller = caller
        self._tickets = itertools.count(1)
        self._waiting: dict[int, _About | Then] = {}

    def order(self, order: AnyOrder, now_s: float, time_s: float) -> Call:
        return self.outbox.put(order, secrets.token_hex(8), now_s, time_s)

    def ask(self, question: Work, then: Then) -> None:
        """Calls `then` with the answer or the error, in a later `pump`."""
        self._call(question, then)

    def pump(self, now_s: float, locked: str, status: ClusterStatus | None) -> list[Call]:
        """Hears what came, sends what is due, and returns the calls whose phase has changed.
        `status`: the last one of the cluster."""
        before = {call.call_id: call.phase for call in self.outbox}
        if status is not None:
            self.outbox.hear_status(status)
        self._hear(now_s)
        for call in self.outbox.due(now_s, locked):
            self._call(_posted(call), _About(call.call_id, asked=False))
        for call in self.outbox.to_ask(now_s):
            self._call(_told(call), _About(call.call_id, asked=True))
        self._hear(now_s)
        return [call for call in self.outbox if call.phase is not before.get(call.call_id)]

    def _call(self, work: Work, waits: _About | Then) -> None:
        if self._caller is not None:
            ticket = next(self._tickets)
            self._waiting[ticket] = waits
            self._caller.call(ticket, work)

    def _hear(self, now_s: float) -> None:
        for reply in self._caller.take() if self._caller is not None else ():
            waits = self._waiting.pop(reply.ticket)
            if isinstance(waits, _About):
                self._settle(waits, reply, now_s)
            else:
                waits(reply.answer, reply.error)

    def _settle(self, about: _About, reply: Reply, now_s: float) -> None:
        if isinstance(reply.answer, Missing):
            self.outbox.hear_missing(about.call_id, reply.answer, now_s)
        elif reply.error is None:
            self.outbox.hear_report(about.call_id, reply.answer)
        else:
            self.outbox.hear_error(about.call_id, reply.error, now_s, asked=about.asked)


def _posted(call: Call) -> Work:
    return lambda client: client.send(call.order, key=call.key)


def _told(call: Call) -> Work:
    def ask(client: "ControlClient") -> Any:
        try:
            return client.answer(call.order.report, call.key)
        except NoSuchCallError:
            status = client.status()
            return Missing(status.uptime_s, status.revision)

    return ask
