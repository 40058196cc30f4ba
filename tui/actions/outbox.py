"""The orders of a session on their way to the controller: a machine without a clock or a network.

An order is sent within SEND_WITHIN_S of the key that gave it, or never: one that waits longer, or
whose screen goes stale before, is cancelled. It is sent once. One without an answer may have been
carried out: the controller is asked what it answered to the order's key, which changes nothing,
until it tells, or cannot tell.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from controller.api.errors import (
    AnswerLostError,
    LlumctlError,
    NotRunningError,
    TimedOutError,
    UnderWayError,
    UnreachableError,
)
from controller.api.operations.order import Awaited, End, progress
from controller.api.text import hints
from controller.api.text.quantities import duration
from controller.api.wire.status import ClusterStatus
from tui.actions.asking import AnyOrder

SEND_WITHIN_S = 5.0
ASK_EVERY_S = 1.0
NETWORK_S = 15.0
"""Connecting, sending and reading may each take as long as a client's own time-out."""


class Phase(StrEnum):
    QUEUED = "queued"
    SENT = "sent"
    UNDER_WAY = "under way"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


OVER = (Phase.UNDER_WAY, Phase.DONE, Phase.FAILED, Phase.CANCELLED)
"""Nothing is sent or asked any more; what is under way goes on without this dashboard."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The controller has no call with the key that it was asked about; `up_s`: for how long it
    has run, and `revision` that of the cluster."""

    up_s: float
    revision: int


@dataclass(frozen=True, slots=True)
class Call:
    """An order and what became of it. `time_s`: when it was given, by the controller's clock."""

    call_id: int
    order: AnyOrder
    key: str
    given_at_s: float
    time_s: float
    phase: Phase = Phase.QUEUED
    of_cluster: str = ""
    text: str = ""
    """The outcome in words."""
    can_undo: bool = False
    awaits: tuple[Awaited, ...] = ()
    since_revision: int = 0
    """The cluster's revision that the call made."""
    sent_at_s: float = 0.0
    ask_at_s: float | None = None
    """When the controller is asked next; None while it is being asked, or if it cannot tell."""
    num_missing: int = 0
    """How often the controller said that it had no such call."""

    @property
    def is_over(self) -> bool:
        return self.phase in OVER

    @property
    def command(self) -> str:
        """What does the same on the command line, to this cluster."""
        return hints.aimed(self.order.command, self.of_cluster)


class Outbox:
    """`due` and `to_ask` hand out each call and each question once, to be carried out at once."""

    def __init__(self, of_cluster: str = "") -> None:
        """`of_cluster`: what a command needs to mean this cluster, as ` --cluster prod`."""
        self._of_cluster = of_cluster
        self._calls: dict[int, Call] = {}
        self._own: dict[int, int] = {}
        """Revisions that an own order led from, and to: an order that was given before the screen
        showed the later one goes on from there."""

    def __iter__(self) -> Iterator[Call]:
        """All calls of the session, in the order in which they were given."""
        return iter(self._calls.values())

    def __getitem__(self, call_id: int) -> Call:
        return self._calls[call_id]

    def put(self, order: AnyOrder, key: str, now_s: float, time_s: float = 0.0) -> Call:
        number = len(self._calls) + 1
        call = Call(number, order, key, now_s, time_s, of_cluster=self._of_cluster)
        self._calls[call.call_id] = call
        return call

    def due(self, now_s: float, locked: str) -> list[Call]:
        """The calls that must be sent now; cancels those that may not be sent any more. `locked`:
        why nothing may be changed now, or empty."""
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
        """The calls about which the controller must be asked now."""
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
        """The controller's answer, whether to the call or to a question about it."""
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
            text=hints.aimed(outcome.text, self._of_cluster),
            can_undo=outcome.can_undo,
            awaits=outcome.awaits,
            since_revision=revision or 0,
            ask_at_s=None,
        )

    def hear_status(self, status: ClusterStatus) -> None:
        """How far the calls are that go on. A status from before a call's answer tells nothing."""
        for call in [each for each in self if each.phase is Phase.UNDER_WAY]:
            if status.revision < call.since_revision:
                continue
            found = progress(call.awaits, status)
            text, phase = found.text, call.phase
            if found.is_over:
                text = f"{text} after {duration(max(0.0, status.time_s - call.time_s))}"
                phase = Phase.FAILED if found.failed else Phase.DONE
            ends = {each.end for each in call.awaits} if found.is_over else set()
            can_undo = call.can_undo and not found.failed and End.RESTARTED not in ends
            self._calls[call.call_id] = replace(call, text=text, phase=phase, can_undo=can_undo)

    def hear_error(self, call_id: int, error: Exception, now_s: float, *, asked: bool) -> None:
        """A refusal or a failure of the call or, with `asked`, of a question about it."""
        call = self._calls[call_id]
        if call.is_over:
            return
        why = error.message if isinstance(error, LlumctlError) else _unexpected(error)
        why = hints.aimed(why, self._of_cluster)
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
        """The controller has no such call. Only what one controller process says twice is believed:
        a call that is still on its way would be there by then."""
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


def _unexpected(error: Exception) -> str:
    return f"unexpected {type(error).__name__}: {error}"
