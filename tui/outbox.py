"""The orders of a session: each is sent once, and listed with its outcome.

`Outbox` is a machine without a clock or a network. An order is sent within SEND_WITHIN_S after it
was given, or never: it is cancelled if it waits longer, or if the screen goes stale before. It is
sent only once. If no answer comes, the order may have been carried out anyway. So the controller is
asked, by the order's key, what it answered, until it says so or cannot tell; asking changes
nothing. `SessionOrders` does the sending and asking through a caller. The session's log shows the
calls of the outbox, as rows and in words.
"""

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from controller.api.errors import (
    AnswerLostError,
    LlumctlError,
    NoSuchCallError,
    NotRunningError,
    TimedOutError,
    UnderWayError,
    UnreachableError,
)
from controller.api.operations.order import Awaited, End, progress
from controller.api.text.quantities import duration, printable, time_of_day
from controller.api.wire.status import ClusterStatus
from tui.actions import Target
from tui.asking import AnyOrder
from tui.drawing import Column, Glyphs, Line, Span, Tone, fitted, wrapped
from tui.live import Caller, Reply, Work

if TYPE_CHECKING:
    from controller.api.client import ControlClient


Then = Callable[[Any, Exception | None], None]
Aimed = Callable[[str], str]
SEND_WITHIN_S = 5.0
ASK_EVERY_S = 1.0
NETWORK_S = 15.0
"""The longest time that connecting, sending and reading may take together: each of the three may
take as long as a client's timeout."""


class Phase(StrEnum):
    QUEUED = "queued"
    SENT = "sent"
    UNDER_WAY = "under way"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


OVER = (Phase.UNDER_WAY, Phase.DONE, Phase.FAILED, Phase.CANCELLED)
"""Phases in which nothing is sent or asked any more. An order that is under way goes on by
itself."""


TONES = {
    Phase.DONE: Tone.GOOD,
    Phase.FAILED: Tone.BAD,
    Phase.CANCELLED: Tone.BAD,
    Phase.UNKNOWN: Tone.BAD,
}


@dataclass(frozen=True, slots=True)
class Missing:
    """The controller was asked about a key and has no call with it. `up_s`: how long the controller
    has been running; `revision`: the cluster's revision."""

    up_s: float
    revision: int


@dataclass(frozen=True, slots=True)
class Call:
    """An order and its outcome. `time_s`: when it was given, on the controller's clock."""

    call_id: int
    order: AnyOrder
    key: str
    given_at_s: float
    time_s: float
    phase: Phase = Phase.QUEUED
    aimed: Aimed = str
    """Makes the commands in a text mean this cluster."""
    text: str = ""
    """The outcome in words."""
    can_undo: bool = False
    awaits: tuple[Awaited, ...] = ()
    since_revision: int = 0
    """The revision of the cluster that the order produced."""
    sent_at_s: float = 0.0
    ask_at_s: float | None = None
    """When the controller is asked next. None while it is being asked, and if it cannot tell."""
    num_missing: int = 0
    """How often the controller has said that it has no such call."""

    @property
    def is_over(self) -> bool:
        return self.phase in OVER

    @property
    def command(self) -> str:
        """The command that does the same to this cluster on the command line."""
        return self.aimed(self.order.whole_command)

    @property
    def title(self) -> str:
        return self.order.named(self.order.title)


class Outbox:
    """`due` and `to_ask` return each call and each question once; the caller must carry it out at
    once."""

    def __init__(self, aimed: Aimed = str) -> None:
        """`aimed`: makes the commands in a text mean this cluster."""
        self._aimed = aimed
        self._calls: dict[int, Call] = {}
        self._own: dict[int, int] = {}
        """For each revision that an order of this session has changed, the revision that the order
        produced. An order that was given before the screen showed the later revision is sent for
        the later one."""

    def __iter__(self) -> Iterator[Call]:
        """All calls of the session, in the order in which they were given."""
        return iter(self._calls.values())

    def __getitem__(self, call_id: int) -> Call:
        return self._calls[call_id]

    def put(self, order: AnyOrder, key: str, now_s: float, time_s: float = 0.0) -> Call:
        number = len(self._calls) + 1
        call = Call(number, order, key, now_s, time_s, aimed=self._aimed)
        self._calls[call.call_id] = call
        return call

    def due(self, now_s: float, locked: str) -> list[Call]:
        """Returns the calls that must be sent now, and cancels the calls that may no longer be
        sent. `locked`: why nothing may be changed now; empty if changes are allowed."""
        found: list[Call] = []
        for call in [each for each in self if each.phase is Phase.QUEUED]:
            if locked:
                self._end(call, Phase.CANCELLED, f"not sent: {locked}")
            elif now_s - call.given_at_s >= SEND_WITHIN_S:
                why = f"not sent within {SEND_WITHIN_S:g} s: the call before it was not answered"
                self._end(call, Phase.CANCELLED, why)
            elif not any(
                each.phase is Phase.SENT and each.order.lane == call.order.lane for each in self
            ):
                order = call.order
                while order.revision in self._own:
                    order = order.at(self._own[order.revision])
                sent = replace(call, order=order, phase=Phase.SENT, sent_at_s=now_s)
                self._calls[call.call_id] = sent
                found.append(sent)
        return found

    def to_ask(self, now_s: float) -> list[Call]:
        """Returns the calls about which the controller must be asked now."""
        for call in [each for each in self if each.phase is Phase.SENT]:
            if now_s - call.sent_at_s >= NETWORK_S + call.order.takes_s:
                self._lose(call, "no answer came", now_s)
        found = [
            each
            for each in self
            if each.phase is Phase.UNKNOWN and each.ask_at_s is not None and each.ask_at_s <= now_s
        ]
        for call in found:
            self._calls[call.call_id] = replace(call, ask_at_s=None)
        return found

    def hear_report(self, call_id: int, report: Any) -> None:
        """Takes the controller's answer, whether to the call itself or to a question about it."""
        call = self._calls[call_id]
        if call.is_over:
            return
        outcome = call.order.outcome(report)
        revision = getattr(report, "revision", None)
        if call.order.revision is not None and revision == call.order.revision + 1:
            self._own[call.order.revision] = revision
        phase = Phase.FAILED if outcome.failed else Phase.DONE
        self._calls[call_id] = replace(
            call,
            phase=Phase.UNDER_WAY if outcome.awaits else phase,
            text=self._aimed(outcome.text),
            can_undo=outcome.can_undo,
            awaits=outcome.awaits,
            since_revision=revision or 0,
            ask_at_s=None,
        )

    def hear_status(self, status: ClusterStatus) -> None:
        """Follows the calls under way. A status that is older than a call's answer says nothing
        about that call."""
        for call in [each for each in self if each.phase is Phase.UNDER_WAY]:
            if status.revision < call.since_revision:
                continue
            found = progress(call.awaits, status, call.order.model)
            text, phase = found.text, call.phase
            if found.is_over:
                text = f"{text} after {duration(max(0.0, status.time_s - call.time_s))}"
                phase = Phase.FAILED if found.failed else Phase.DONE
            ends = {each.end for each in call.awaits} if found.is_over else set()
            can_undo = call.can_undo and not found.failed and End.RESTARTED not in ends
            self._calls[call.call_id] = replace(call, text=text, phase=phase, can_undo=can_undo)

    def hear_error(self, call_id: int, error: Exception, now_s: float, *, asked: bool) -> None:
        """Takes the error of a call that was refused or failed or, with `asked`, the error of a
        question about the call."""
        call = self._calls[call_id]
        if call.is_over:
            return
        why = error.message if isinstance(error, LlumctlError) else _unexpected(error)
        why = self._aimed(why)
        if isinstance(error, TimedOutError | NotRunningError) and asked:
            self._cannot_tell(call, why)
        elif asked and isinstance(error, UnreachableError | UnderWayError):
            self._calls[call_id] = replace(call, ask_at_s=now_s + ASK_EVERY_S)
        elif isinstance(error, AnswerLostError | TimedOutError) or not isinstance(
            error, LlumctlError
        ):
            self._lose(call, why, now_s)
        elif isinstance(error, UnreachableError):
            self._end(call, Phase.FAILED, f"{why}: nothing was done")
        else:
            self._end(call, Phase.FAILED, why)

    def hear_missing(self, call_id: int, missing: Missing, now_s: float) -> None:
        """Takes the answer that the controller has no such call. This is believed only if the same
        controller process says it twice: by then, a call that was still on its way would have
        arrived."""
        call = self._calls[call_id]
        if call.is_over:
            return
        if missing.up_s > now_s - call.sent_at_s:
            if call.num_missing:
                self._end(call, Phase.FAILED, "it never reached the controller: nothing was done")
            else:
                again = replace(call, num_missing=1, ask_at_s=now_s + ASK_EVERY_S)
                self._calls[call_id] = again
        elif call.order.revision == missing.revision:
            self._end(call, Phase.FAILED, "the controller was started again: nothing was done")
        else:
            self._cannot_tell(call, "the controller was started again and cannot tell")

    def _lose(self, call: Call, why: str, now_s: float) -> None:
        text = f"outcome unknown: {why}"
        self._calls[call.call_id] = replace(
            call, phase=Phase.UNKNOWN, text=text, ask_at_s=now_s + ASK_EVERY_S
        )

    def _cannot_tell(self, call: Call, why: str) -> None:
        text = f"outcome unknown: {why}"
        self._calls[call.call_id] = replace(call, phase=Phase.UNKNOWN, text=text, ask_at_s=None)

    def _end(self, call: Call, phase: Phase, text: str) -> None:
        self._calls[call.call_id] = replace(call, phase=phase, text=text, ask_at_s=None)


@dataclass(frozen=True, slots=True)
class _About:
    """What a reply is about: a call. `asked`: whether the reply answers a question about the
    call."""

    call_id: int
    asked: bool


class SessionOrders:
    """Sends the orders of the outbox, and asks the controller questions."""

    def __init__(self, caller: Caller | None, aimed: Aimed = str) -> None:
        """`caller`: None for a replay, in which nothing can be asked or ordered. `aimed`: as for
        `Outbox`."""
        self.outbox = Outbox(aimed)
        self._caller = caller
        self._tickets = itertools.count(1)
        self._waiting: dict[int, _About | Then] = {}

    def order(self, order: AnyOrder, now_s: float, time_s: float) -> Call:
        return self.outbox.put(order, secrets.token_hex(8), now_s, time_s)

    def ask(self, question: Work, then: Then) -> None:
        """Asks a question. A later `pump` calls `then` with the answer or the error."""
        self._call(question, then)

    def pump(self, now_s: float, locked: str, status: ClusterStatus | None) -> list[Call]:
        """Takes the replies, sends the calls that are due, and returns the calls whose phase has
        changed. `status`: the last status of the cluster."""
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


def _unexpected(error: Exception) -> str:
    return f"unexpected {type(error).__name__}: {error}"


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


@dataclass(frozen=True, slots=True)
class LogRow:
    call: Call
    zone: tzinfo | None

    @property
    def id(self) -> str:
        return str(self.call.call_id)

    @property
    def target(self) -> Target:
        return Target(other=self.call.command)

    @property
    def text(self) -> str:
        return f"{self.call.title} {self.call.phase} {self.call.text}"


def log_rows(calls: Iterable[Call], zone: tzinfo | None) -> list[LogRow]:
    """The rows, the newest first."""
    return [LogRow(call, zone) for call in calls][::-1]


def told(call: Call) -> str:
    """One line for the bottom of the screen. It names a request's id, which is long, only once."""
    text = call.text.replace(f"request {call.order.lane} ", "it ")
    return printable(f"{call.title}: {text or call.phase}")


def whole(call: Call, width: int) -> list[Line]:
    """An order and its outcome in full, in as many lines as that takes."""
    outcome = f"{call.title}: {call.phase}{', ' * bool(call.text)}{call.text}"
    texts = ((outcome, TONES.get(call.phase, Tone.WARN)), (call.command, Tone.DIM))
    return [
        (Span(f" {line}", tone),)
        for text, tone in texts
        for line in wrapped(printable(text), max(1, width - 2))
    ]


def under_way(calls: Iterable[Call], width: int, glyphs: Glyphs) -> Line:
    """The latest order that is under way, for the bottom line. The text takes at most half of the
    width."""
    found = [call for call in calls if call.phase is Phase.UNDER_WAY]
    if not found:
        return ()
    more = f" (+{len(found) - 1})" if len(found) > 1 else ""
    words = f"> {told(found[-1])}{more}"
    return (Span(f" {fitted(words, min(cell_len(words), width // 2), glyphs)} ", Tone.WARN),)


def _time(row: LogRow, _: int) -> Span:
    return Span(time_of_day(row.call.time_s, row.zone), Tone.DIM)


def _phase(row: LogRow, _: int) -> Span:
    return Span(str(row.call.phase), TONES.get(row.call.phase, Tone.WARN))


def _words(text: Callable[[Call], str], tone: Tone = Tone.PLAIN) -> Callable[[LogRow, int], Span]:
    return lambda row, _: Span(printable(text(row.call)), tone)


LOG_COLUMNS: tuple[Column[LogRow], ...] = (
    Column("time", "TIME", 8, _time),
    Column("action", "ACTION", 20, _words(lambda call: call.title)),
    Column("phase", "STATE", 9, _phase),
    Column("outcome", "OUTCOME", 30, _words(lambda call: call.text), max_width=80),
    Column(
        "command",
        "COMMAND",
        24,
        _words(lambda call: call.command, Tone.DIM),
        drop=1,
        max_width=200,
    ),
)
