"""The session without a screen: when orders may be given, and what becomes of those that were."""

from datetime import UTC
from typing import Any
from unittest.mock import Mock

import pytest

from controller.api.errors import AnswerLostError, ConflictError
from controller.api.operations.on_instances import Undrain, UndrainRequest
from controller.api.operations.on_requests import PriorityRequest, SetPriority
from controller.api.settings.settings import ConsoleTable
from controller.api.wire.stream import StatusFrame
from tests.unit.tui.tui_control import FakeControl
from tests.unit.tui.tui_support import FakeCaller, FakeSource, text_of
from tools import synthetic_cluster as synthetic
from tui.session import Options, Session
from tui.state import Stopped


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


def test_two_orders_of_ones_own_are_no_conflict_and_what_is_refused_is_said() -> None:
    """The second one was given before the screen showed the first one's revision."""
    desk = Desk()
    desk.undrain("i-0", "i-1")
    assert [wanted.if_revision for _, _, wanted in desk.control.calls] == [7, 8]
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
