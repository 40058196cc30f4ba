"""`U`, and `u` on an operator's event: what is taken back, by which call, and what cannot be."""

from typing import Any

import pytest

from controller.api.errors import ConflictError, LlumctlError
from controller.api.operations.on_cluster import ScaleRequest, SettingsPatch
from controller.api.operations.on_instances import DrainRequest, UndrainRequest
from controller.api.operations.on_requests import MigrateRequest, PriorityRequest
from controller.api.operations.table import Undo
from controller.api.wire.requests import Event
from controller.api.wire.stream import EventFrame
from tests.unit.tui.tui_control import FakeControl
from tests.unit.tui.tui_support import acting, presses
from tools import synthetic_cluster as synthetic
from tui.asking import TakeBack

WHY = "undo of op-0"
ON = {"reason": WHY, "if_revision": 7}


def undo(kind: str, target: str = "", **previous: Any) -> Undo:
    values = {key.replace("__", "."): value for key, value in previous.items()}
    return Undo(kind=kind, target=target, previous=values, made={})


@pytest.mark.parametrize(
    ("undo", "line", "wanted"),
    [
        (undo("undrain", "i-3"), "i-3 would get requests again", UndrainRequest(**ON)),
        (undo("drain", "i-3"), "i-3: 2 requests would move", DrainRequest(**ON)),
        (
            undo("scale", instances=11),
            "12 -> 11 instances",
            ScaleRequest(target=11, draining=("i-11",), **ON),
        ),
        (
            undo("priority", "r-1", level="high"),
            "r-1: normal -> high",
            PriorityRequest(level="high", reason=WHY),
        ),
        (
            undo("migrate", "r-1", instance="i-5"),
            "40 blocks, 40.0 MiB, downtime about 24ms",
            MigrateRequest(to="i-5", reason=WHY),
        ),
        (
            undo("set", migration__max_moves=9),
            "migration.max_moves: 4 -> 9",
            SettingsPatch(changes={"migration.max_moves": 9}, **ON),
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Undo) else "",
)
def test_what_each_is_taken_back_by(undo: Undo, line: str, wanted: object) -> None:
    """The plan says who did it and when; the order carries the reason and the list's revision."""
    control = FakeControl()
    control.note("did it", undo, reason="maintenance")
    found = TakeBack().plan(control)
    assert found.lines[0].endswith("ana@desk (maintenance):")
    assert line in found.lines
    control.send(found.order, key="key")
    assert control.calls == [(undo.kind, undo.target, wanted)]


def test_one_that_cannot_be_taken_back_says_why() -> None:
    control = FakeControl()
    with pytest.raises(LlumctlError, match="there is no operation that was done"):
        TakeBack().plan(control)
    control.note("drain i-1", undo("undrain", "i-1"))
    control.note("abort r-1", None)
    with pytest.raises(LlumctlError, match=r"op-1 \(abort r-1\) cannot be undone: it cannot"):
        TakeBack().plan(control)
    assert TakeBack("op-0").plan(control).order is not None


@presses("undo")
async def test_undo(key: str) -> None:
    """Undoes the last operation, whoever did it, after it was shown. A second undo takes back the
    first one, as on the command line."""
    async with acting() as bed:
        await bed.press(key)
        assert "there is no operation that was done" in await bed.shown()
        await bed.press("y", "escape")
        wanted = bed.cursor
        await bed.press("d", "y")
        bed.control.note("undrain i-5", undo("drain", "i-5"))
        await bed.press(key)
        text = await bed.shown()
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
        assert f"It is taken back by: drain {wanted}" in await bed.shown()


async def test_on_an_operators_event_undrain_takes_that_operation_back() -> None:
    async with acting() as bed:
        bed.control.note("set x", undo("scale", instances=13))
        bed.control.note("drain i-1", undo("undrain", "i-1"))
        event = Event(kind="operator", time_s=synthetic.START_S, cause_id="op-0", reason="scale")
        await bed.feed([EventFrame(time_s=bed.source.clock_s, event=event)])
        await bed.press("3", "u")
        assert "Take op-0 back?" in await bed.shown()
        bed.control.failing = {"scale": ConflictError("the cluster was changed meanwhile")}
        await bed.press("y")
        order = ScaleRequest(target=13, draining=(), **ON)
        assert bed.control.calls == [("scale", "", order)]
        assert "the cluster was changed meanwhile" in await bed.bottom()
