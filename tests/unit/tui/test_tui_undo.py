"""`U`, and `u` on an operator's event: what is taken back, by which call, and what cannot be."""

import pytest

from controller.api.errors import ConflictError, LlumctlError
from controller.api.operations.on_cluster import ScaleRequest, SettingsPatch
from controller.api.operations.on_instances import DrainRequest, UndrainRequest
from controller.api.operations.on_requests import MigrateRequest, PriorityRequest
from controller.api.operations.order import Order
from controller.api.operations.table import Undo
from controller.api.wire import SettingValue
from controller.api.wire.requests import Event
from controller.api.wire.stream import EventFrame
from tests.unit.tui.tui_bed import acting
from tests.unit.tui.tui_control import FakeControl
from tests.unit.tui.tui_support import drawn, presses, settle
from tools import synthetic_cluster as synthetic
from tui.asking import TakeBack
from tui.screens.dialogs import ConfirmScreen

WHY = "undo of op-0"
NINE: dict[str, SettingValue] = {"migration.max_moves": 9}


@pytest.mark.parametrize(
    ("undo", "line", "call"),
    [
        (
            Undo(kind="undrain", target="i-3", previous={}, made={}),
            "i-3 would get requests again",
            ("undrain", "i-3", UndrainRequest(reason=WHY, if_revision=7)),
        ),
        (
            Undo(kind="drain", target="i-3", previous={}, made={}),
            "i-3: 2 requests would move",
            ("drain", "i-3", DrainRequest(reason=WHY, if_revision=7)),
        ),
        (
            Undo(kind="scale", previous={"instances": 11}, made={"instances": 12}),
            "12 -> 11 instances",
            ("scale", "", ScaleRequest(target=11, draining=("i-11",), reason=WHY, if_revision=7)),
        ),
        (
            Undo(kind="priority", target="r-1", previous={"level": "high"}, made={}),
            "r-1: normal -> high",
            ("priority", "r-1", PriorityRequest(level="high", reason=WHY)),
        ),
        (
            Undo(kind="migrate", target="r-1", previous={"instance": "i-5"}, made={}),
            "40 blocks, 40.0 MiB, downtime about 24ms",
            ("migrate", "r-1", MigrateRequest(to="i-5", reason=WHY)),
        ),
        (
            Undo(kind="set", previous=dict(NINE), made={}),
            "migration.max_moves: 4 -> 9",
            (
                "set",
                "",
                SettingsPatch(changes=NINE, reason=WHY, if_revision=7),
            ),
        ),
    ],
)
def test_what_each_is_taken_back_by(undo: Undo, line: str, call: tuple[str, str, object]) -> None:
    """The plan says who did it and when; the order carries the reason and the list's revision."""
    control = FakeControl()
    control.note("did it", undo, reason="maintenance")
    found = TakeBack().plan(control)  # type: ignore[arg-type]
    assert found.lines[0].endswith("ana@desk (maintenance):")
    assert line in found.lines
    assert isinstance(found.order, Order)
    control.send(found.order, key="key")  # type: ignore[arg-type]
    assert control.calls == [call]


def test_one_that_cannot_be_taken_back_says_why() -> None:
    control = FakeControl()
    with pytest.raises(LlumctlError, match="there is no operation that was done"):
        TakeBack().plan(control)  # type: ignore[arg-type]
    control.note("drain i-1", Undo(kind="undrain", target="i-1", previous={}, made={}))
    control.note("abort r-1", None)
    with pytest.raises(LlumctlError, match=r"op-1 \(abort r-1\) cannot be undone: it cannot"):
        TakeBack().plan(control)  # type: ignore[arg-type]
    assert TakeBack("op-0").plan(control).order is not None  # type: ignore[arg-type]


@presses("undo")
async def test_undo(key: str) -> None:
    """Undoes the last operation, whoever did it, after it was shown. A second undo takes back the
    first one, as on the command line."""
    async with acting() as bed:
        await bed.press(key)
        assert "there is no operation that was done" in await drawn(bed.pilot)
        await bed.press("y", "escape")
        wanted = bed.cursor
        await bed.press("d", "y")
        bed.control.note("undrain i-5", Undo(kind="drain", target="i-5", previous={}, made={}))
        await bed.press(key)
        text = await drawn(bed.pilot)
        assert "12:00:01 ana@desk:" in text
        assert "It is taken back by: drain i-5" in text
        assert "r1  7 blocks  to i-9" in text
        await bed.press("enter")
        assert len(bed.control.calls) == 1, "the cursor is on Cancel"
        bed.control.done.pop(0)
        await bed.type("colon", "undo")
        await bed.tick()
        await bed.press("y")
        order = UndrainRequest(reason=WHY, if_revision=8)
        assert bed.control.calls[1] == ("undrain", wanted, order)
        assert f"undrain {wanted}: it gets requests again" in await bed.bottom()
        await bed.press(key)
        assert f"It is taken back by: drain {wanted}" in await drawn(bed.pilot)


@presses("undrain")
async def test_on_an_operators_event_it_takes_that_operation_back(key: str) -> None:
    async with acting() as bed:
        bed.control.note("set x", Undo(kind="scale", previous={"instances": 13}, made={}))
        bed.control.note("drain i-1", Undo(kind="undrain", target="i-1", previous={}, made={}))
        event = Event(kind="operator", time_s=synthetic.START_S, cause_id="op-0", reason="scale")
        bed.source.feed([EventFrame(time_s=bed.source.clock_s, event=event)])
        await settle(bed.app, bed.pilot)
        await bed.press("3", key)
        assert isinstance(bed.app.screen, ConfirmScreen)
        assert "Take op-0 back?" in await drawn(bed.pilot)
        bed.control.failing = {"scale": ConflictError("the cluster was changed meanwhile")}
        await bed.press("y")
        order = ScaleRequest(target=13, draining=(), reason=WHY, if_revision=7)
        assert bed.control.calls == [("scale", "", order)]
        assert "the cluster was changed meanwhile" in await bed.bottom()
