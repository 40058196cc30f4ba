"""The screen of one request."""

from tests.unit.tui import tui_lives
from tests.unit.tui.tui_support import WIDE, Bed, FakeSource, watching
from tools import synthetic_cluster as synthetic
from tui.actions import Target
from tui.screens.dashboard import DashboardScreen, Pane
from tui.screens.details import InstanceScreen, RequestScreen
from tui.state import ExplanationArrived

REQUEST_ID = tui_lives.REQUEST_ID


def opened(*ids: str) -> Target:
    return Target("i-1", *(ids or (REQUEST_ID,)))


def source() -> FakeSource:
    fed = FakeSource()
    fed.explanation = tui_lives.eventful()
    return fed


async def opens(bed: Bed, request_id: str) -> None:
    await bed.press("enter")
    assert isinstance(bed.app.screen, RequestScreen)
    assert bed.app.screen.request_id == request_id
    await bed.press("escape")


async def test_enter_on_a_request_opens_it_and_on_its_life_the_instance() -> None:
    async with watching(20, WIDE, source()) as bed:
        for key, pane in (("1", Pane.MIGRATIONS), ("2", Pane.QUEUE), ("3", Pane.EVENTS)):
            await bed.press(key, "slash", "r", "enter")
            await opens(bed, bed.table(pane).target.request_id)
            assert isinstance(bed.app.screen, DashboardScreen)
        bed.source.answer = synthetic.requests("i-3")
        await bed.open(Target("i-3"))
        await bed.press("j")
        await opens(bed, "r9001")
        assert isinstance(bed.app.screen, InstanceScreen)
        await bed.open(opened())
        await bed.press("j", "enter")
        assert isinstance(bed.app.screen, InstanceScreen)
        assert (bed.app.screen.instance_id, bed.app.screen.request_id) == ("i-3", REQUEST_ID)


async def test_it_is_asked_about_until_it_has_ended_and_what_was_known_stays() -> None:
    async with watching(20, WIDE, source()) as bed:
        await bed.open(opened())
        assert bed.source.asked == [REQUEST_ID]
        found = ExplanationArrived(REQUEST_ID, None, "no answer within 5 s", bed.source.clock_s)
        await bed.hear(found)
        assert "no answer within 5 s" in await bed.shown()
        assert "dispatched to i-3" in await bed.shown()
        bed.source.explanation = tui_lives.ended()
        await bed.wait(1)
        assert "finished on i-1: stop" in await bed.shown()
        await bed.wait(5)
        assert bed.source.asked == [REQUEST_ID, REQUEST_ID]
        bed.source.explanation = None
        await bed.open(opened("another"))
        assert "asking ..." in await bed.shown()
        assert "dispatched to i-3" not in await bed.shown(), "an answer about another request"


async def test_filter_sort_and_commands() -> None:
    async with watching(20, WIDE, source()) as bed:
        await bed.open(opened())
        screen = bed.app.screen
        assert isinstance(screen, RequestScreen)
        await bed.type("slash", "migrated")
        assert {row.moment.at_s for row in screen.table("timeline").items} == {9.0}
        await bed.type("colon", "filter first")
        assert "first token" in screen.table("timeline").items[0].moment.what
        await bed.type("slash", "")
        await bed.press("s", "j", "enter")
        assert "sort:lengthv" in await bed.shown()
        assert screen.table("timeline").items[0].moment.length_s is None
        await bed.press("S")
        assert screen.table("timeline").items[0].moment.phase is None
        await bed.type("colon", "sort time")
        assert "sort:time^" in await bed.shown()
        await bed.type("colon", "sort kv")
        assert "no column 'kv'" in await bed.bottom()
