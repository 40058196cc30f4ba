"""Ending requests, restarting an instance, and what is done to all marked rows at once."""

import pytest

from controller.api.operations.on_instances import DrainRequest, RestartRequest, UndrainRequest
from controller.api.operations.on_requests import AbortRequest, PriorityRequest
from controller.api.wire.status import ClusterStatus
from tests.unit.tui.tui_bed import Bed, acting
from tests.unit.tui.tui_support import drawn, presses
from tools import synthetic_cluster as synthetic
from tui.screens.dashboard import DashboardScreen, Pane
from tui.screens.dialogs import ChooseScreen, ConfirmScreen


@presses("abort")
async def test_abort(key: str) -> None:
    async with acting() as bed:
        await bed.press("2", "j")
        wanted = bed.request
        await bed.press(key)
        text = await drawn(bed.pilot)
        assert f"Abort {wanted}?" in text
        assert f"{wanted}: running on i-3, 40 tokens written, priority high" in text
        assert f"{wanted} is the client's mine" in text
        assert f"{wanted}-b ends with it" in text
        assert "There is no undo." in text
        assert bed.control.calls == []
        await bed.tick()
        await bed.press("y")
        assert bed.control.calls == [("abort", wanted, AbortRequest())]
        assert f"abort {wanted}: aborted after 40 tokens, and 1 more" in await bed.bottom()
        await bed.press("U")
        assert f"(abort {wanted}) cannot be undone" in await drawn(bed.pilot)


async def test_a_request_that_ended_meanwhile_is_said_and_not_aborted() -> None:
    async with acting() as bed:
        await bed.press("2")
        bed.control.over = (wanted := bed.request,)
        await bed.press("a")
        assert f"request {wanted} is over" in await drawn(bed.pilot)
        await bed.press("y")
        assert isinstance(bed.app.screen, ConfirmScreen)
        assert bed.control.calls == []


@presses("restart")
async def test_restart(key: str) -> None:
    async with acting() as bed:
        await bed.press("j")
        wanted = bed.cursor
        await bed.press(key)
        text = await drawn(bed.pilot)
        assert f"Restart {wanted}?" in text
        assert f"{wanted}: 2 requests would move, then its process is replaced" in text
        assert "left: 2 of 2 serving instances" in text
        await bed.press("enter")
        assert bed.control.calls == [], "the cursor is on Cancel"
        await bed.press(key, "y")
        assert bed.control.calls == [("restart", wanted, RestartRequest(if_revision=7))]
        await bed.press("U", "y")
        assert bed.control.calls[1][:2] == ("undrain", wanted)


async def test_the_last_instance_is_restarted_by_its_name_only() -> None:
    async with acting() as bed:
        wanted = bed.cursor
        bed.control.last = (wanted,)
        await bed.press("r", "y", "backspace", *wanted, "enter")
        assert bed.control.calls == [("restart", wanted, RestartRequest(force=True, if_revision=7))]


@pytest.mark.parametrize("key", ["a", "r"])
async def test_a_stale_screen_refuses(key: str) -> None:
    async with acting() as bed:
        await bed.press("2")
        bed.source.clock_s += 9
        await bed.press(key)
        assert "now: what the screen shows is" in await bed.bottom()
        assert bed.control.plans == []


# Marked rows


async def marked(bed: Bed, *, pane: Pane = Pane.INSTANCES) -> list[str]:
    """Marks the first two rows of the pane, and returns their ids."""
    keys = {Pane.INSTANCES: "0", Pane.QUEUE: "2"}
    await bed.press(keys[pane], "g", "x", "j", "x")
    assert isinstance(bed.app.screen, DashboardScreen)
    return [item.id for item in bed.app.screen.table(pane).items[:2]]


@presses("mark")
async def test_a_mark_is_set_and_taken_off(key: str) -> None:
    async with acting() as bed:
        wanted = bed.cursor
        await bed.press(key)
        text = await drawn(bed.pilot)
        assert "1 marked" in text
        (line,) = [line for line in text.splitlines() if line.startswith("*")]
        assert wanted in line
        await bed.tick(**{wanted.replace("-", "_"): {"freeness_steps": 9000.0}})
        await bed.press("g")
        assert bed.cursor != wanted
        (line,) = [line for line in (await drawn(bed.pilot)).splitlines() if line.startswith("*")]
        assert wanted in line, "it follows its row"
        await bed.press("escape")
        assert "marked" not in await drawn(bed.pilot)


async def test_cordon_of_the_marked_rows() -> None:
    async with acting() as bed:
        names = await marked(bed)
        await bed.press("j", "j", "c")
        text = await drawn(bed.pilot)
        assert all(f"{name}: would be cordoned" in text for name in names)
        await bed.press("y")
        assert [call[:2] for call in bed.control.calls] == [("cordon", name) for name in names]


async def test_drain_of_the_marked_rows_wherever_the_cursor_is() -> None:
    async with acting() as bed:
        first, second = await marked(bed)
        await bed.press("j", "j", "d")
        text = await drawn(bed.pilot)
        assert "Drain 2 instances?" in text
        assert f"{first}: 2 requests would move" in text
        assert f"{second}: 2 requests would move" in text
        assert text.count("left: 2 of 2 serving instances") == 1
        await bed.press("y")
        assert bed.control.calls == [
            ("drain", first, DrainRequest(if_revision=7, with_ids=(second,))),
            ("drain", second, DrainRequest(if_revision=8, with_ids=(first,))),
        ]
        await bed.press("L")
        lines = (await drawn(bed.pilot)).splitlines()
        for each in (first, second):
            assert any(f"drain {each} " in line and "done" in line for line in lines)


async def test_even_one_marked_row_is_asked_about() -> None:
    """Its undrain would need no question, but the cursor may be on another row."""
    async with acting() as bed:
        wanted = bed.cursor
        await bed.press("x", "j", "u")
        assert f"Undrain {wanted}?" in await drawn(bed.pilot)
        assert bed.control.calls == []
        await bed.press("y")
        assert bed.control.calls == [("undrain", wanted, UndrainRequest(if_revision=7))]


async def requests_of(bed: Bed) -> list[str]:
    assert isinstance(bed.app.screen, DashboardScreen)
    return [item.target.request_id for item in bed.app.screen.table(Pane.QUEUE).items[:2]]


async def test_abort_of_marked_requests_leaves_out_what_has_ended() -> None:
    async with acting() as bed:
        await marked(bed, pane=Pane.QUEUE)
        first, second = await requests_of(bed)
        bed.control.over = (first,)
        await bed.press("a")
        text = await drawn(bed.pilot)
        assert "Abort 2 requests?" in text
        assert f"not abort {first}: request {first} is over" in text
        await bed.press("y")
        assert bed.control.calls == [("abort", second, AbortRequest())]


async def test_priority_of_marked_requests() -> None:
    async with acting() as bed:
        await marked(bed, pane=Pane.QUEUE)
        first, second = await requests_of(bed)
        await bed.press("p")
        assert f"Which priority for 2 requests ({first}, {second})?" in await drawn(bed.pilot)
        await bed.press("enter")
        assert bed.control.calls == [
            ("priority", first, PriorityRequest(level="high")),
            ("priority", second, PriorityRequest(level="high")),
        ]


async def test_migrate_of_marked_requests() -> None:
    """All move except the request that is on the destination already."""
    async with acting() as bed:
        sources = await marked(bed, pane=Pane.QUEUE)
        wanted = await requests_of(bed)
        await bed.press("m")
        assert isinstance(bed.app.screen, ChooseScreen)
        names = [each.name for each in bed.app.screen.found.choices]
        assert set(sources) <= set(names)
        assert "2 of 2 can:" in await drawn(bed.pilot)
        await bed.press(*["j"] * names.index(sources[0]), "enter")
        assert [(name, id_, order.to) for name, id_, order in bed.control.calls] == [
            ("migrate", wanted[1], sources[0])
        ]


async def test_one_instance_restarts_at_a_time() -> None:
    async with acting() as bed:
        await marked(bed)
        await bed.press("r")
        assert "restart one at a time: Esc takes the marks off" in await bed.bottom()
        assert bed.control.plans == []


async def test_a_mark_vanishes_with_its_row_and_with_what_the_row_was_about() -> None:
    async with acting() as bed:
        gone, changed = await marked(bed, pane=Pane.QUEUE)
        (status,) = [bed.app.session.state.status]
        assert isinstance(status, ClusterStatus)
        heads = {item.id: item.queue_head for item in status.instances}
        assert heads[changed] is not None
        head = heads[changed].model_copy(update={"request_id": "another"})
        await bed.tick(
            **{gone.replace("-", "_"): {"queue_head": None}},
            **{changed.replace("-", "_"): {"queue_head": head}},
        )
        assert "marked" not in await drawn(bed.pilot)
        assert isinstance(bed.app.screen, DashboardScreen)
        await bed.press("3", "x")
        assert bed.app.screen.table(Pane.EVENTS).marked == () or "marked" in await drawn(bed.pilot)


async def test_marked_requests_on_an_instances_screen() -> None:
    async with acting() as bed:
        bed.source.answer = synthetic.requests(bed.cursor)
        await bed.press("enter")
        await bed.tick()
        await bed.press("x", "j", "x", "a")
        assert "Abort 2 requests?" in await drawn(bed.pilot)
        await bed.press("escape", "escape")
        assert "marked" not in await drawn(bed.pilot)
        assert not isinstance(bed.app.screen, DashboardScreen)
