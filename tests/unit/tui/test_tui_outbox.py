"""The outbox: an order is sent once, in time or never, and what the outbox says of it is true.
The session without a screen decides when orders may be given."""

from dataclasses import dataclass, field, replace
from datetime import UTC
from typing import Any, Self
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.errors import (
    AnswerLostError,
    ConflictError,
    NotRunningError,
    RefusedError,
    TimedOutError,
    UnderWayError,
    UnreachableError,
)
from controller.api.operations.on_instances import Undrain, UndrainRequest
from controller.api.operations.on_requests import PriorityRequest, SetPriority
from controller.api.operations.order import Outcome
from controller.api.settings.settings import ConsoleTable
from controller.api.wire.stream import StatusFrame
from tests.unit.tui.tui_control import FakeControl
from tests.unit.tui.tui_support import FakeCaller, FakeSource, text_of
from tools import synthetic_cluster as synthetic
from tui.outbox import OVER, SEND_WITHIN_S, Call, Missing, Outbox, Phase
from tui.session import Options, Session
from tui.state import Stopped

LOST = AnswerLostError("did not answer within 5 s")


@dataclass(frozen=True)
class Report:
    revision: int = 0


@dataclass(frozen=True)
class Nudge:
    """An order that only the outbox uses."""

    lane: str = "spec"
    revision: int | None = 7
    action_id: str = "nudge"
    title: str = "nudge i-7"
    command: str = "llumctl nudge i-7"
    takes_s: float = 0.0

    def at(self, revision: int) -> Self:
        return replace(self, revision=revision)

    def outcome(self, _: Any) -> Outcome:
        return Outcome("nudged", can_undo=True)


def sent(order: Nudge | None = None) -> Outbox:
    """An outbox whose first call has been handed out."""
    outbox = Outbox()
    outbox.put(order or Nudge(), "k", 0.0)
    assert outbox.due(0.0, "") == [outbox[1]]
    return outbox


def unknown(order: Nudge | None = None) -> Outbox:
    """An outbox whose first call got no answer, and is being asked about."""
    outbox = sent(order)
    outbox.hear_error(1, LOST, 5.0, asked=False)
    assert outbox[1].phase is Phase.UNKNOWN
    assert outbox.to_ask(5.9) == []
    assert [each.call_id for each in outbox.to_ask(6.0)] == [1]
    assert outbox.to_ask(60.0) == [], "it is being asked"
    return outbox


def test_an_order_is_sent_once_and_done() -> None:
    outbox = sent()
    assert outbox.due(0.1, "") == []
    outbox.hear_report(1, Report(8))
    assert (outbox[1].phase, outbox[1].text, outbox[1].can_undo) == (Phase.DONE, "nudged", True)
    outbox.hear_error(1, LOST, 9.0, asked=False)
    assert outbox[1].phase is Phase.DONE


def test_what_waits_too_long_or_for_a_stale_screen_is_never_sent() -> None:
    for now_s, locked, text in (
        (6.0 - 0.1, "", ""),
        (6.0, "", "not sent within 5 s: the call before it was not answered"),
        (1.1, "the screen is stale", "not sent: the screen is stale"),
    ):
        outbox = sent()
        outbox.put(Nudge(), "l", 1.0)
        assert outbox.due(now_s, locked) == []
        assert (outbox[2].phase is Phase.CANCELLED, outbox[2].text) == (bool(text), text)
        outbox.hear_report(1, Report(8))
        assert bool(outbox.due(5.9, "")) is not bool(text)


def test_lanes_do_not_wait_for_each_other_and_an_own_change_is_no_conflict() -> None:
    for led_to, carried in ((8, 8), (9, 7), (7, 7)):
        outbox = sent()
        outbox.put(Nudge(lane="r1", revision=None), "l", 0.0)
        outbox.put(Nudge(), "m", 0.0)
        assert [call.key for call in outbox.due(0.0, "")] == ["l"]
        outbox.hear_report(1, Report(led_to))
        (call,) = outbox.due(0.1, "")
        assert (call.key, call.order.revision) == ("m", carried)


@pytest.mark.parametrize(
    ("error", "phase", "text"),
    [
        (RefusedError("no"), Phase.FAILED, "no"),
        (UnreachableError("refused"), Phase.FAILED, "refused: nothing was done"),
        (LOST, Phase.UNKNOWN, "outcome unknown: did not answer within 5 s"),
        (TimedOutError("it goes on"), Phase.UNKNOWN, "outcome unknown: it goes on"),
        (ZeroDivisionError("x"), Phase.UNKNOWN, "outcome unknown: unexpected ZeroDivisionError: x"),
    ],
)
def test_what_an_error_means(error: Exception, phase: Phase, text: str) -> None:
    outbox = sent()
    outbox.hear_error(1, error, 1.0, asked=False)
    assert (outbox[1].phase, outbox[1].text) == (phase, text)


def test_what_the_controller_says_when_asked() -> None:
    for error, phase, asks_again in (
        (UnreachableError("refused"), Phase.UNKNOWN, True),
        (UnderWayError("under way"), Phase.UNKNOWN, True),
        (NotRunningError("stopped"), Phase.UNKNOWN, False),
        (TimedOutError("it goes on"), Phase.UNKNOWN, False),
        (ConflictError("changed meanwhile"), Phase.FAILED, False),
    ):
        outbox = unknown()
        outbox.hear_error(1, error, 7.0, asked=True)
        assert outbox[1].phase is phase
        assert bool(outbox.to_ask(8.0)) == asks_again


def test_a_thread_that_never_comes_back_is_asked_about_and_may_still_tell() -> None:
    outbox = sent(Nudge(takes_s=60.0))
    outbox.to_ask(74.9)
    assert outbox[1].phase is Phase.SENT
    outbox.to_ask(75.0)
    assert outbox[1].phase is Phase.UNKNOWN
    outbox.hear_report(1, Report(8))
    assert outbox[1].phase is Phase.DONE


def test_a_call_that_never_arrived_is_believed_when_told_twice() -> None:
    """A controller that started again knows by the revision only."""
    outbox = unknown()
    outbox.hear_missing(1, Missing(100.0, 7), 6.0)
    assert outbox[1].phase is Phase.UNKNOWN
    assert outbox.to_ask(7.0)
    outbox.hear_missing(1, Missing(101.0, 7), 7.0)
    assert outbox[1].text == "it never reached the controller: nothing was done"
    for order, revision, phase in (
        (Nudge(), 7, Phase.FAILED),
        (Nudge(), 8, Phase.UNKNOWN),
        (Nudge(revision=None), 7, Phase.UNKNOWN),
    ):
        outbox = unknown(order)
        outbox.hear_missing(1, Missing(2.0, revision), 6.0)
        assert outbox[1].phase is phase
        assert outbox.to_ask(99.0) == [], "it would say the same again"


ANSWERS = ("answer", "lose_answer", "lose_call", "refuse_connection")
PAUSES = ("0.4", "1.1", "4")


@dataclass
class World:
    """A controller that may lose calls and answers, be slow, and start again."""

    outbox: Outbox = field(default_factory=Outbox)
    now_s: float = 100.0
    started_s: float = 0.0
    revision: int = 0
    answers: dict[str, Report | Exception] = field(default_factory=dict)
    carried_out: list[str] = field(default_factory=list)
    handed_out: list[str] = field(default_factory=list)
    on_the_way: list[Call] = field(default_factory=list)
    asked: list[Call] = field(default_factory=list)

    def carry_out(self, call: Call) -> None:
        if call.key in self.answers:
            return
        if call.order.revision in (None, self.revision):
            self.revision += 1
            self.carried_out.append(call.key)
            self.answers[call.key] = Report(self.revision)
        else:
            self.answers[call.key] = ConflictError("changed meanwhile")

    def hear(self, call: Call, found: Report | Exception, *, asked: bool) -> None:
        if isinstance(found, Report):
            self.outbox.hear_report(call.call_id, found)
        else:
            self.outbox.hear_error(call.call_id, found, self.now_s, asked=asked)

    def do(self, what: str) -> None:
        if what in ("give", "give_free"):
            order = Nudge(revision=self.revision if what == "give" else None, lane=what)
            self.outbox.put(order, f"k{len(list(self.outbox))}", self.now_s)
        elif what in ("due", "due_stale"):
            locked = "stale" if what == "due_stale" else ""
            for call in self.outbox.due(self.now_s, locked):
                assert not locked
                assert self.now_s - call.given_at_s < SEND_WITHIN_S
                self.handed_out.append(call.key)
                self.on_the_way.append(call)
        elif what == "ask":
            self.asked += self.outbox.to_ask(self.now_s)
        elif what in ANSWERS and self.on_the_way:
            call = self.on_the_way.pop(0)
            if what in ("answer", "lose_answer"):
                self.carry_out(call)
            error = UnreachableError("refused") if what == "refuse_connection" else LOST
            self.hear(call, self.answers[call.key] if what == "answer" else error, asked=False)
        elif what in ("tell", "tell_lost") and self.asked:
            call = self.asked.pop(0)
            if what == "tell_lost":
                self.hear(call, UnreachableError("refused"), asked=True)
            elif call.key in self.answers:
                self.hear(call, self.answers[call.key], asked=True)
            else:
                missing = Missing(self.now_s - self.started_s, self.revision)
                self.outbox.hear_missing(call.call_id, missing, self.now_s)
        elif what == "restart":
            self.answers.clear()
            self.started_s = self.now_s
        elif what in PAUSES:
            self.now_s += float(what)


STEPS = st.sampled_from(
    [
        *("give", "give_free", "due", "due", "due_stale"),
        *ANSWERS,
        *("ask", "tell", "tell", "tell_lost", "restart"),
        *PAUSES,
    ]
)


@given(st.lists(STEPS, max_size=60) | st.lists(STEPS.filter(lambda step: step != "restart")))
def test_nothing_is_sent_late_or_twice_and_what_is_said_is_true(steps: list[str]) -> None:
    """Every call comes to an end once the controller answers."""
    world = World()
    for step in steps:
        world.do(step)
    assert len(world.handed_out) == len(set(world.handed_out)), "handed out twice"
    assert len(world.carried_out) == len(set(world.carried_out)), "carried out twice"
    for call in world.outbox:
        if call.phase is Phase.DONE:
            assert call.key in world.carried_out
        elif call.phase in OVER:
            assert call.key not in world.carried_out, call
        if call.phase is Phase.CANCELLED:
            assert call.key not in world.handed_out
    if "restart" not in steps:
        for step in ("due", "answer", "ask", "tell", "1.1") * 80:
            world.do(step)
        assert all(call.is_over for call in world.outbox), "only a restart leaves it unknown"


# The session: when orders may be given, and what becomes of those that were


class Desk:
    """A session that has heard one status, and its controller."""

    def __init__(self, **options: Any) -> None:
        self.source, self.control = FakeSource(), FakeControl()
        self.caller = FakeCaller(self.control)
        self.session = Session(
            self.source,
            Options(zone=UTC, **options),
            self.caller,
            set_timer=Mock(),
            redraw=Mock(),
            pump=Mock(),
        )
        status = synthetic.cluster((synthetic.instance("i-0"), synthetic.instance("i-1")))
        status = status.model_copy(update={"revision": 7})
        self.source.feed([StatusFrame(time_s=synthetic.START_S, status=status)])
        self.session.take()

    def undrain(self, *ids: str) -> None:
        for each in ids:
            self.session.give(Undrain(each, UndrainRequest(if_revision=7)))

    def wait(self, seconds: float) -> None:
        self.source.clock_s += seconds
        self.session.take()

    @property
    def said(self) -> str:
        return text_of(self.session.message.line)


STALE = "what the screen shows is 3.1s old"


def test_orders_may_be_given_only_while_the_screen_shows_the_present() -> None:
    desk = Desk()
    session = desk.session
    assert session.locked() == ""
    session.toggle_freeze()
    assert session.locked() == "the screen is frozen: Space"
    session.toggle_freeze()
    desk.wait(3.0)
    assert session.locked() == ""
    desk.wait(0.1)
    assert session.locked() == STALE
    desk.source.hear(Stopped("cluster prod-a was stopped", desk.source.clock_s))
    desk.wait(0)
    assert session.locked() == "the cluster has stopped"
    session.state = type(session.state)()
    assert session.locked() == "nothing is known of the cluster yet"


@pytest.mark.parametrize(
    ("options", "locked", "after_toggle"),
    [
        ({}, "", "read-only: R allows changes"),
        ({"limits": ConsoleTable(readonly=True)}, "read-only: R allows changes", ""),
        ({"readonly": True}, *["this dashboard was started with --readonly"] * 2),
    ],
)
def test_read_only(options: dict[str, Any], locked: str, after_toggle: str) -> None:
    session = Desk(**options).session
    for wanted in (locked, after_toggle):
        assert session.locked() == wanted
        assert ("READ" if wanted else "WRITE") in session.liveness().badges
        session.toggle_read_only()


def test_what_is_refused_is_said_without_the_way_back() -> None:
    desk = Desk()
    desk.control.failing = {"priority": ConflictError("request r-1 has finished")}
    desk.session.give(SetPriority("r-1", PriorityRequest(level="high")))
    assert desk.said == " priority r-1 high: it has finished"


def test_an_answer_that_never_comes_is_asked_for_and_the_order_not_repeated() -> None:
    desk = Desk(of_cluster=" --cluster t3")
    desk.control.failing = {"undrain": AnswerLostError("did not answer within 5 s")}
    desk.undrain("i-0")
    assert desk.said == " undrain i-0: outcome unknown: did not answer within 5 s"
    assert "1 UNKNOWN" in desk.session.liveness().badges
    assert desk.session.unsettled() == [f"{desk.said[1:]}: llumctl uncordon --cluster t3 i-0"]
    desk.wait(0.9)
    desk.control.failing = {}
    undrain = Undrain("i-0", UndrainRequest())
    desk.control.send(undrain, key=desk.control.keys[0])
    desk.wait(0)
    assert "unknown" in desk.said, "it is asked a second later"
    desk.wait(0.1)
    assert desk.said == " undrain i-0: it gets requests again  (U takes it back)"
    assert desk.session.unsettled() == []
    assert len(desk.control.calls) == 2, "of which the second was given by the test"


def test_what_is_not_sent_in_time_or_before_the_screen_is_stale_is_never_sent() -> None:
    desk = Desk()
    desk.caller.held = True
    desk.undrain("i-0", "i-1")
    desk.wait(2.9)
    assert desk.session.unsettled() == ["undrain i-0: sent: llumctl uncordon i-0"]
    desk.wait(0.2)
    assert desk.said == f" undrain i-1: not sent: {STALE}"
    desk.caller.release()
    desk.wait(0)
    assert desk.control.sent == [("undrain", "i-0")]
