"""Ending requests, restarting an instance, and what is done to all marked rows at once."""

from controller.api.operations.on_instances import DrainRequest, RestartRequest, UndrainRequest
from controller.api.operations.on_requests import AbortRequest
from tests.unit.tui.tui_support import Bed, acting, field_of, presses
from tools import synthetic_cluster as synthetic
from tui.screens.dashboard import Pane
from tui.screens.dialogs import ChooseScreen, ConfirmScreen


@presses("abort")
async def test_abort(key: str) -> None:
    async with acting() as bed:
        await bed.press("2")
        bed.control.over = (over := bed.request,)
        await bed.press(key)
        assert f"request {over} is over" in await bed.shown()
        await bed.press("y")
        assert isinstance(bed.app.screen, ConfirmScreen)
        await bed.press("escape", "j")
        wanted = bed.request
        await bed.press(key)
        text = await bed.shown()
        for words in (
            f"Abort {wanted}?",
            f"{wanted}: running on i-3, 40 tokens written, priority high",
            f"{wanted} is the client's mine",
            f"{wanted}-b ends with it",
            "There is no undo.",
        ):
            assert words in text
        assert bed.control.calls == []
        await bed.tick()
        await bed.press("y")
        assert bed.control.calls == [("abort", wanted, AbortRequest())]
        assert f"abort {wanted}: aborted after 40 tokens, and 1 more" in await bed.bottom()
        await bed.press("U")
        assert f"(abort {wanted}) cannot be undone" in await bed.shown()


@presses("restart")
async def test_restart(key: str) -> None:
    async with acting() as bed:
        await bed.press("j")
        wanted = bed.cursor
        await bed.press(key)
        text = await bed.shown()
        assert f"Restart {wanted}?" in text
        assert f"{wanted}: 2 requests would move, then its process is replaced" in text
        assert "left: 2 of 2 serving instances" in text
        await bed.press("enter")
        assert bed.control.calls == [], "the cursor is on Cancel"
        await bed.press(key, "y")
        assert bed.control.calls == [("restart", wanted, RestartRequest(if_revision=7))]
        await bed.press("U", "y")
        assert bed.control.sent[1] == ("undrain", wanted)


# Marked rows


async def marked(bed: Bed, pane: Pane = Pane.INSTANCES) -> list[str]:
    """Marks the first two rows of the pane, and returns their ids."""
    await bed.press("0" if pane is Pane.INSTANCES else "2", "g", "x", "j", "x")
    return bed.ids(pane)[:2]


def requests_of(bed: Bed) -> list[str]:
    return [item.target.request_id for item in bed.table(Pane.QUEUE).items[:2]]


@presses("mark")
async def test_a_mark_follows_its_row_and_is_taken_off(key: str) -> None:
    async with acting() as bed:
        wanted = bed.cursor
        await bed.press(key)
        assert "1 marked" in await bed.shown()
        for update in ({}, {"freeness_steps": 9000.0}):
            await bed.tick(**{field_of(wanted): update})
            (line,) = [line for line in await bed.lines() if line.startswith("*")]
            assert wanted in line
        await bed.press("g")
        assert bed.cursor != wanted
        await bed.press("u")
        assert f"Undrain {wanted}?" in await bed.shown(), "the cursor may be on another row"
        assert bed.control.calls == []
        await bed.press("y")
        assert bed.control.calls == [("undrain", wanted, UndrainRequest(if_revision=7))]
        await bed.press("escape")
        assert "marked" not in await bed.shown()


async def test_orders_for_all_marked_instances_wherever_the_cursor_is() -> None:
    async with acting() as bed:
        first, second = await marked(bed)
        await bed.press("j", "j", "d")
        text = await bed.shown()
        assert "Drain 2 instances?" in text
        assert f"{first}: 2 requests would move" in text
        assert f"{second}: 2 requests would move" in text
        assert text.count("left: 2 of 2 serving instances") == 1
        await bed.press("y")
        assert bed.control.calls == [
            ("drain", first, DrainRequest(if_revision=7, with_ids=(second,))),
            ("drain", second, DrainRequest(if_revision=8, with_ids=(first,))),
        ]
        await bed.press("c", "y")
        assert bed.control.sent[2:] == [("cordon", first), ("cordon", second)]
        await bed.press("r")
        assert "restart one at a time: Esc takes the marks off" in await bed.bottom()


async def test_orders_for_all_marked_requests() -> None:
    """All move except the request that is on the destination already; one that has ended is left
    out of an abort."""
    async with acting() as bed:
        sources = await marked(bed, Pane.QUEUE)
        first, second = requests_of(bed)
        await bed.press("p")
        assert f"Which priority for 2 requests ({first}, {second})?" in await bed.shown()
        await bed.press("enter", "m")
        assert isinstance(bed.app.screen, ChooseScreen)
        names = [each.name for each in bed.app.screen.found.choices]
        assert set(sources) <= set(names)
        assert "2 of 2 can:" in await bed.shown()
        await bed.press(*["j"] * names.index(sources[0]), "enter")
        bed.control.over = (first,)
        await bed.press("a")
        assert "Abort 2 requests?" in await bed.shown()
        assert f"not abort {first}: request {first} is over" in await bed.shown()
        await bed.press("y")
        assert bed.control.sent == [
            ("priority", first),
            ("priority", second),
            ("migrate", second),
            ("abort", second),
        ]
        assert bed.control.calls[2][2].to == sources[0]


async def test_a_mark_vanishes_with_its_row_and_with_what_the_row_was_about() -> None:
    async with acting() as bed:
        gone, changed = await marked(bed, Pane.QUEUE)
        heads = {item.id: item.queue_head for item in bed.status.instances}
        assert heads[changed] is not None
        head = heads[changed].model_copy(update={"request_id": "another"})
        await bed.tick(
            **{field_of(gone): {"queue_head": None}, field_of(changed): {"queue_head": head}}
        )
        assert "marked" not in await bed.shown()


async def test_marked_requests_on_an_instances_screen() -> None:
    async with acting() as bed:
        bed.source.answer = synthetic.requests(bed.cursor)
        await bed.press("enter")
        screen = bed.app.screen
        await bed.tick()
        await bed.press("x", "j", "x", "a")
        assert "Abort 2 requests?" in await bed.shown()
        await bed.press("escape", "escape")
        assert "marked" not in await bed.shown()
        assert bed.app.screen is screen
