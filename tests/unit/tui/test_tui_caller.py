"""Calls on threads: each reply comes once, whatever the work does."""

import threading

import pytest

from controller.api.client import ControlClient
from controller.api.errors import NotRunningError
from controller.api.wire.status import ClusterStatus
from tests.unit.cli_support import TOKEN
from tests.unit.fake_controller import FakeController, until
from tui.live import LiveCaller, Reply


def replies(caller: LiveCaller, count: int) -> dict[int, Reply]:
    found: list[Reply] = []

    def complete() -> bool:
        found.extend(caller.take())
        return len(found) >= count

    until(complete)
    assert caller.take() == []
    return {reply.ticket: reply for reply in found}


def test_answers_and_errors_come_back_by_their_ticket() -> None:
    with FakeController() as fake:
        caller = LiveCaller(lambda: ControlClient(fake.url, TOKEN, 2.0))
        woken = threading.Event()
        caller.wake = woken.set
        caller.call(1, lambda client: client.status())
        caller.call(2, lambda _: 1 / 0)
        found = replies(caller, 2)
        assert woken.wait(5)
    assert isinstance(found[1].answer, ClusterStatus)
    assert isinstance(found[2].error, ZeroDivisionError)


def test_a_cluster_that_does_not_run_is_an_error_too() -> None:
    def connect() -> ControlClient:
        raise NotRunningError("stopped")

    caller = LiveCaller(connect)
    caller.call(1, lambda client: pytest.fail(f"there is no client: {client}"))
    assert isinstance(replies(caller, 1)[1].error, NotRunningError)


def test_a_call_that_hangs_holds_up_no_other() -> None:
    release = threading.Event()
    with FakeController() as fake:
        caller = LiveCaller(lambda: ControlClient(fake.url, TOKEN, 2.0))
        caller.call(1, lambda _: release.wait(30))
        caller.call(2, lambda _: "quick")
        assert replies(caller, 1)[2].answer == "quick"
        release.set()
        assert replies(caller, 1)[1].answer is True
