"""The screen of one request."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.wire.requests import Explanation
from controller.api.wire.status import HeldPlaceStatus
from tests.unit.tui import tui_lives as lives
from tests.unit.tui.tui_support import WIDE, FakeSource, text_of, watching
from tools import synthetic_cluster as synthetic
from tui.actions import Target
from tui.drawing import UNICODE, apportion
from tui.panes import timeline
from tui.screens.dashboard import Pane
from tui.screens.details import InstanceScreen, RequestScreen
from tui.state import ExplanationArrived

REQUEST_ID = lives.REQUEST_ID


def opened(*ids: str) -> Target:
    return Target("i-1", *(ids or (REQUEST_ID,)))


def source() -> FakeSource:
    fed = FakeSource()
    fed.explanation = lives.eventful()
    return fed


async def test_enter_on_a_request_opens_it_and_on_its_life_the_instance() -> None:
    async with watching(20, WIDE, source()) as bed:
        bed.source.answer = synthetic.requests("i-3")
        await bed.press("3", "slash", "r", "enter")
        about = bed.table(Pane.EVENTS).target.request_id
        for keys, request_id in ((["enter"], about), (["j", "enter"], "r9001")):
            await bed.press(*keys)
            assert isinstance(bed.app.screen, RequestScreen)
            assert bed.app.screen.request_id == request_id
            await bed.press("escape")
            await bed.open(Target("i-3"))
        await bed.open(opened())
        await bed.press("j", "enter")
        assert isinstance(bed.app.screen, InstanceScreen)
        assert (bed.app.screen.instance_id, bed.app.screen.request_id) == ("i-3", REQUEST_ID)


async def test_it_is_asked_about_until_it_has_ended_and_what_was_known_stays() -> None:
    async with watching(20, WIDE, source()) as bed:
        await bed.open(opened())
        found = ExplanationArrived(REQUEST_ID, None, "no answer within 5 s", bed.source.clock_s)
        await bed.hear(found)
        await bed.sees("no answer within 5 s", "dispatched to i-3")
        bed.source.explanation = lives.ended()
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
        await bed.press("S")
        assert screen.table("timeline").items[0].moment.phase is None
        await bed.type("colon", "sort time")
        assert "sort:time^" in await bed.shown()
        await bed.type("colon", "sort kv")
        assert "no column 'kv'" in await bed.bottom()


# The life of a request as phases and lines


MOVE = lives.EVENTFUL[-1].model_copy(update={"downtime_s": None})
LIVES = {
    "an eventful life": (
        lives.ended(),
        "held 0.0+0.002 queued 0.002+1.198 prefill 1.2+0.3 decode 1.5+2.5 evicted 4.0+2.0"
        " decode 6.0+2.976 moving 8.976+0.024 decode 9.0+2.0",
    ),
    "evicted before its first token it is prefilled again": (
        Explanation(request=lives.request(ttft_s=7.5), steps=lives.EVENTFUL[:5]),
        "held 0.0+0.002 queued 0.002+1.198 prefill 1.2+2.8 evicted 4.0+2.0 prefill 6.0+1.5"
        " decode 7.5+-",
    ),
    "a move without a token changes no phase of what waits": (
        lives.waiting().model_copy(update={"steps": (lives.EVENTFUL[0], MOVE)}),
        "held 0.0+0.002 queued 0.002+-",
    ),
}


@pytest.mark.parametrize(("life", "expected"), LIVES.values(), ids=LIVES)
def test_phases(life: Explanation, expected: str) -> None:
    """Each with its begin and its length."""
    found = [each for each in timeline.moments(life) if each.phase is not None]
    lengths = ["-" if each.length_s is None else round(each.length_s, 3) for each in found]
    told = [
        f"{each.phase.name.lower()} {round(each.at_s, 3)}+{length}"
        for each, length in zip(found, lengths, strict=True)
    ]
    assert " ".join(told) == expected


def test_each_decision_says_among_what_it_chose() -> None:
    """The pictures `request` show all of it. Long notes go on below."""
    shown = [row.note for row in timeline.rows(lives.eventful(), 200) if row.note]
    scores = "scores: i-3 521 (chosen), i-1 480, i-2 96, i-0 -"
    assert scores in shown
    assert "freeness: i-1 640 (chosen), i-2 88" in shown
    rows = timeline.rows(lives.eventful(), 60)
    assert all(len(row.note) <= 60 - timeline.NOTE_X - 4 for row in rows)
    notes = [row.note for row in rows if row.id.startswith("1.") and row.note]
    assert " ".join(notes) == scores
    assert len(notes) == 2


def test_lines_stay_with_what_they_are_about() -> None:
    rows = timeline.rows(lives.eventful(), 120)
    for sort in timeline.SORTS:
        for descending in (False, True):
            found = timeline.ordered(rows, sort, descending=descending)
            assert sorted(row.id for row in found) == sorted(row.id for row in rows)
            for before, row in pairwise(found):
                assert not row.note or row.moment == before.moment
    lengths = [row.moment.length_s for row in timeline.ordered(rows, "length", descending=True)]
    assert lengths[0] is None, "what goes on comes first"


@given(
    sizes=st.lists(
        st.just(0.0) | st.floats(min_value=1e-3, max_value=1e6), min_size=1, max_size=40
    ),
    width=st.integers(min_value=0, max_value=200),
)
def test_shares_fill_the_line(sizes: list[float], width: int) -> None:
    found = apportion(sizes, width)
    assert all(cells >= 0 for cells in found)
    assert sum(found) == (width if sum(sizes) > 0 else 0)
    if sum(size > 0 for size in sizes) <= width and sum(sizes) > 0:
        assert all((cells > 0) == (size > 0) for cells, size in zip(found, sizes, strict=True))
    assert apportion((1000, 1, 0), 10) == [9, 1, 0]


def test_the_facts_have_the_whole_id_and_why_it_waits() -> None:
    lines = timeline.facts(lives.waiting(), 120, UNICODE)
    text = "\n".join(text_of(line) for line in lines)
    assert lives.REQUEST_ID in text
    assert "memory: its instance lacks blocks; demand 280 blocks" in text
    assert "no: it has no blocks yet" in text
    update = {"held": HeldPlaceStatus(place=3, why="memory")}
    held = Explanation(request=lives.waiting().request.model_copy(update=update), steps=())
    shown = "\n".join(text_of(line) for line in timeline.facts(held, 120, UNICODE))
    assert "waiting at the controller" in shown
