"""Orders that go on after their answer: what the log and the bottom line say with each status."""

from typing import Any

import pytest

from controller.api.operations.on_cluster import (
    RollingRequest,
    RollingStopRequest,
    ScaleReport,
    awaited_of_scale,
)
from controller.api.operations.on_instances import DrainReport, awaited
from controller.api.operations.order import Awaited, End, progress
from controller.api.wire.status import (
    DrainStatus,
    InstanceState,
    InstanceStatus,
    RestartedInstance,
    RestartTurn,
    RollingReport,
)
from tests.unit.tui.tui_support import acting, field_of
from tools import synthetic_cluster as synthetic

EMPTYING = DrainStatus(drain_id="op-1", num_requests_left=12, num_moved=3)
EMPTY = EMPTYING.model_copy(update={"num_requests_left": 0, "safe_to_delete": True})


def instance(drain: DrainStatus | None = None, **what: Any) -> InstanceStatus:
    found = synthetic.instance("i-7")
    state = InstanceState.DRAINING if drain else InstanceState.ACTIVE
    update = {"state": state, "drain": drain, "num_moves_out": 1, "incarnation": 3}
    return found.model_copy(update=update | what)


STARTING, FAILED = InstanceState.STARTING, InstanceState.FAILED
LEFT = "12 requests left, 1 migrating"
TAKEN = "taken back, or given up at its deadline"


@pytest.mark.parametrize(
    ("end", "found", "text", "is_over", "failed"),
    [
        (End.DRAINED, instance(EMPTYING), LEFT, False, False),
        (End.DRAINED, instance(EMPTY), "drained", True, False),
        (End.DRAINED, instance(), TAKEN, True, True),
        (End.DRAINED, None, "it is gone", True, True),
        (End.REMOVED, instance(EMPTYING), LEFT, False, False),
        (End.REMOVED, instance(EMPTY), "0 requests left, 1 migrating", False, False),
        (End.REMOVED, None, "removed", True, False),
        (End.REMOVED, instance(), TAKEN, True, True),
        (End.RESTARTED, instance(EMPTYING), LEFT, False, False),
        (End.RESTARTED, instance(EMPTY, state=STARTING), "starting", False, False),
        (End.RESTARTED, instance(incarnation=4, state=STARTING), "starting", False, False),
        (End.RESTARTED, instance(incarnation=4), "restarted", True, False),
        (End.RESTARTED, instance(), TAKEN, True, True),
        (End.RESTARTED, instance(EMPTY, state=FAILED, detail="no"), "failed: no", True, True),
        (End.STARTED, None, "not launched yet", False, False),
        (End.STARTED, instance(state=STARTING, detail="loading"), "loading", False, False),
        (End.STARTED, instance(), "serves", True, False),
    ],
)
def test_how_far_one_is(
    end: End, found: InstanceStatus | None, text: str, is_over: bool, failed: bool
) -> None:
    status = synthetic.cluster((found,) if found else ())
    come = progress([Awaited("i-7", end, "op-1", 3)], status)
    assert (come.text, come.is_over, come.failed) == (text, is_over, failed)


def test_several_are_over_together() -> None:
    wanted = [Awaited("i-7", End.REMOVED, "op-1"), Awaited("i-8", End.REMOVED, "op-1")]
    come = progress(wanted, synthetic.cluster((instance(EMPTYING),)))
    assert (come.text, come.is_over) == (f"i-7: {LEFT}, i-8: removed", False)
    assert progress(wanted, synthetic.cluster(())).is_over


def test_what_remains_of_a_report() -> None:
    report = DrainReport(instance_id="i-7", state="draining", drain_id="op-1", incarnation=3)
    assert awaited(report) == (Awaited("i-7", End.DRAINED, "op-1", 3),)
    assert awaited(report.model_copy(update={"safe_to_delete": True})) == ()
    restart = report.model_copy(update={"restarts_instance": True, "safe_to_delete": True})
    assert [each.end for each in awaited(restart)] == [End.RESTARTED]
    going = report.model_copy(update={"removes_instance": True})
    scale = ScaleReport(previous=4, target=4, added=("i-9",), draining=(going,))
    assert [each.end for each in awaited_of_scale(scale)] == [End.STARTED, End.REMOVED]


async def test_a_drain_tells_its_progress_and_its_end() -> None:
    """Both stand on the bottom line beside the keys, and in the log. Earlier statuses are
    ignored."""
    async with acting((160, 36)) as bed:
        bed.control.drain_id = "op-1"
        wanted = bed.cursor
        await bed.press("d", "y")
        emptying = {"drain": EMPTYING, "state": InstanceState.DRAINING, "num_moves_out": 1}
        await bed.tick({"revision": bed.control.revision - 1})
        assert "taken back" not in await bed.bottom()
        await bed.tick(**{field_of(wanted): emptying})
        bed.app.session.message.clear()
        bottom = await bed.bottom()
        assert f"> drain {wanted}: 12 requests left, 1 migrating" in bottom
        assert "? help" in bottom
        await bed.press("L")
        assert "under way" in await bed.shown()
        await bed.tick(**{field_of(wanted): emptying | {"drain": EMPTY}})
        assert f"drain {wanted}: drained after 3.0s" in await bed.bottom()
        text = await bed.shown()
        assert "done       drained after 3.0s" in text
        assert "under way" not in text


async def test_an_undrain_says_itself_that_it_ended_the_drain() -> None:
    async with acting((160, 36)) as bed:
        bed.control.drain_id = "op-1"
        await bed.press("d", "y", "u")
        await bed.tick()
        assert "it gets requests again" in await bed.bottom()
        await bed.press("L")
        assert TAKEN in await bed.shown()


async def test_a_rolling_restart_is_typed_followed_and_stopped() -> None:
    going = RollingReport(
        rolling_id="op-roll",
        state="going",
        done=(RestartedInstance(instance_id="i-0", took_s=9.0),),
        under_way=(RestartTurn(instance_id="i-1", began_s=1.0, state="restarting"),),
        left=("i-2",),
    )
    why = "i-1 could not start: no such model"
    update = {"state": "failed", "why": why, "failed_id": "i-1", "under_way": ()}
    async with acting() as bed:
        bed.control.last = ("i-0",)
        await bed.type("colon", "rolling")
        text = await bed.shown()
        assert "Restart all, one after the other?" in text
        assert "2 instances would be restarted, 1 at a time" in text
        assert "i-0: 2 requests (7 blocks), then a start" in text
        assert "Type all" in text
        await bed.type("", "all")
        assert "rolling restart: 0 of 2 done, then i-0 i-1" in await bed.bottom()
        await bed.press("U")
        assert "It is taken back by: restart --stop" in await bed.shown()
        await bed.press("escape")
        await bed.tick({"rolling": going})
        assert "roll 1/3 i-1 starting" in await bed.shown()
        await bed.tick({"rolling": going.model_copy(update=update)})
        assert "roll 1/2 failed i-1" in await bed.shown()
        assert f"failed: {why}" in await bed.bottom()
        await bed.type("colon", "stop_rolling")
        assert "these would keep their process: i-1" in await bed.shown()
        await bed.press("y")
        assert bed.control.calls == [
            ("rolling", "", RollingRequest(force=True, if_revision=7)),
            ("stop_rolling", "", RollingStopRequest(if_revision=8)),
        ]
