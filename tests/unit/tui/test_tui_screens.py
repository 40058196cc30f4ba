"""The screens in odd conditions: sizes, things that vanish, slow painting; and which rows a table
keeps in view while rows move."""

from collections.abc import Iterable
from typing import Any

import pytest

from controller.api.wire.requests import Event, RequestList
from controller.api.wire.status import InstanceState
from controller.api.wire.stream import EventFrame, StatusFrame
from tests.unit.tui import tui_lives
from tests.unit.tui.tui_support import NARROW, WALL, Bed, FakeSource, watching
from tools import synthetic_cluster as synthetic
from tui.actions import Target
from tui.drawing import ASCII, GAP
from tui.panes.requests import SHORT
from tui.screens.dashboard import DashboardScreen, Pane
from tui.state import RecordingFailed, RequestsArrived
from tui.widgets import TableView

KEYS = ("e", "e", "z", "1", "z", "2", "3", "0", "tab", "j", "enter", "G", "escape", "s", "escape")


@pytest.mark.parametrize("size", [(1, 1), (20, 5), (40, 10), (109, 30), (300, 90)])
async def test_every_key_works_at_any_size(size: tuple[int, int]) -> None:
    source = FakeSource()
    source.explanation = tui_lives.eventful()
    async with watching(synthetic.overloaded(12), size, source) as bed:
        for key in (*KEYS, "question_mark", "escape", "slash", "escape"):
            await bed.press(key)
            lines = await bed.lines()
            assert len(lines) == size[1]
            assert all(len(line) <= size[0] for line in lines)
        await bed.open(Target("i-1", tui_lives.REQUEST_ID))
        await bed.press("j", "G", "s", "escape", "escape")


async def test_a_table_of_nothing_takes_keys_and_an_event_about_no_instance_opens_none() -> None:
    async with watching((), recording=True) as bed:
        await bed.press("j", "k", "g", "G", "pagedown", "pageup", "enter", "z", "e", "space")
        assert all(table.cursor_id is None for table in bed.main.query(TableView))
        await bed.press("space")
        about = Event(kind="controller_started", time_s=synthetic.START_S, cause_id="x")
        await bed.feed([EventFrame(time_s=synthetic.START_S, event=about)])
        await bed.press("3", "enter")
        assert isinstance(bed.app.screen, DashboardScreen)
        assert "about no instance" in await bed.bottom()
        bed.app.session.message.clear()
        await bed.hear(RecordingFailed("cannot write the recording: No space left", 1.0))
        await bed.sees("[REC FAILED]", "No space left")


async def test_an_instance_that_leaves_under_the_cursor() -> None:
    some = [synthetic.instance(f"i-{place}", freeness_steps=place) for place in range(3)]

    def status(second: int, *instances: object) -> list[StatusFrame]:
        at_s = synthetic.START_S + second
        return [StatusFrame(time_s=at_s, status=synthetic.cluster(instances, at_s))]

    async with watching(status(0, *some)) as bed:
        await bed.press("j", "enter")
        await bed.feed(status(1, some[0], some[2]))
        await bed.sees("i-1  is no longer part of the cluster", "gone")
        await bed.press("escape")
        assert bed.cursor == "i-2"
        await bed.feed(status(2))
        assert "no instances yet" in await bed.shown()
        await bed.press("enter", "j", "G")
        assert isinstance(bed.app.screen, DashboardScreen)


async def test_a_filter_that_hides_everything_is_what_is_said() -> None:
    async with watching(3) as bed:
        bed.source.answer = synthetic.requests("i-3", 11)
        for _ in range(2):
            for wanted in ("zzz", ""):
                bed.app.screen.filter_by(wanted)
                await bed.settle()
                assert ("nothing matches the filter" in await bed.shown()) is bool(wanted)
                assert "no instances yet" not in await bed.shown()
            await bed.open(Target("i-3"))


async def test_the_filter_of_events_searches_all_that_the_controller_knows() -> None:
    old = Event(
        position="a-1",
        kind="instance_died",
        time_s=synthetic.START_S - 3600,
        cause_id="start-i-77",
        instance_id="i-77",
    )
    async with watching(3) as bed:
        bed.control.events = (old,)
        bed.main.show_events("i-77")
        await bed.settle()
        assert bed.ids(Pane.EVENTS) == ["a-1"]
        assert bed.control.searches == ["i-77"]
        await bed.sees("(1/10000)", "filter:i-77", "i-77")
        await bed.wait(2.0)
        assert bed.control.searches == ["i-77"], "the answer is new"
        bed.control.events = ()
        bed.caller.held = True
        bed.main.show_events("nothing like it")
        await bed.sees("asking the controller")
        bed.caller.release()
        await bed.settle()
        await bed.sees("no match in the last 10,000")
        await bed.wait(9.0)
        assert bed.control.searches == ["i-77", "nothing like it", "nothing like it"]


async def test_requests_of_events_that_a_search_finds_have_short_names() -> None:
    ids = [f"chatcmpl-3f0a91c2-of-tenant-{number:04}" for number in range(30)]
    found = tuple(
        Event(
            position=f"a-{number}",
            kind="evicted",
            time_s=synthetic.START_S - 3600 + number,
            cause_id="c",
            instance_id="i-77",
            request_id=id_,
        )
        for number, id_ in enumerate(ids)
    )
    async with watching(3, (120, 36)) as bed:
        bed.control.events = found
        bed.main.show_events("i-77")
        await bed.settle()
        assert len({bed.app.session.names.of(id_) for id_ in ids}) == 30
        assert all(len(bed.app.session.names.of(id_)) <= SHORT for id_ in ids)
        await bed.sees(bed.app.session.names.of(ids[-1]))


async def test_the_log_of_an_instance_stands_on_its_screen() -> None:
    """On a short screen the log takes the place of the history. Its text cannot control the
    terminal."""
    async with watching(3, NARROW) as bed:
        ends = "2026 ERROR x: \x1b[2Jno room\tleft"
        bed.source.log = (*(f"line {n}" for n in range(90)), ends)
        await bed.open(Target("i-3"))
        assert "[History]  Log" in await bed.shown()
        assert "ERROR" not in await bed.shown()
        await bed.press("tab", "tab")
        await bed.sees("History  [Log]", "ERROR x: \\x1b[2Jno room    left")
        await bed.press("g")
        assert "line 0" in await bed.shown()
        await bed.press("tab")
        await bed.resize(*WALL)
        await bed.sees("History  sort", "Log  sort")


async def test_questions_about_requests_go_on_and_failures_are_said() -> None:
    """Many requests are asked for seldom, and their age is shown."""
    async with watching(3) as bed:
        await bed.open(Target("i-3"))
        assert "asking ..." in await bed.shown()
        await bed.hear(RequestsArrived("i-3", None, "no answer within 5 s", bed.source.clock_s))
        assert "no answer within 5 s" in await bed.shown()
        answer = synthetic.requests("i-3").model_copy(update={"silent_frontends": ("f-1",)})
        bed.source.hear(RequestsArrived("i-3", answer, "", bed.source.clock_s))
        await bed.wait(1)
        assert "without those of f-1: no answer" in await bed.shown()
        assert bed.source.asked == ["i-3", "i-3"]
        bed.source.hear(RequestsArrived("i-3", answer, "", bed.source.clock_s))
        bed.source.answer = synthetic.requests("i-3", 2000)
        await bed.wait(2)
        asked = len(bed.source.asked)
        await bed.wait(1)
        assert "Requests (2000)  1s ago" in await bed.shown()
        assert len(bed.source.asked) == asked
        await bed.wait(1)
        assert len(bed.source.asked) == asked + 1
        await bed.press("G")
        await bed.sees("of 2000", "waiting")


async def test_many_requests_have_a_grid_of_their_phases() -> None:
    async with watching(3) as bed:
        bed.source.answer = synthetic.requests("", 60)
        await bed.type("colon", "requests")
        await bed.sees(" Q 1 queued  D 58 decode  E 1 evicted ", f" {'D' * 58}EQ")
        bed.source.answer = synthetic.requests("", 20)
        await bed.wait(2)
        await bed.sees("Requests (20)")
        assert "DDD" not in await bed.shown()


async def test_a_request_keeps_its_name_on_all_screens_when_another_load_comes() -> None:
    async with watching(3) as bed:
        first = synthetic.requests("", 8).requests
        ids = [f"cmpl-8be6e970ff0600ea-{n}-0-7c3a177d{n}" for n in range(8)]

        async def listed(*wanted: str) -> None:
            found = [
                item.model_copy(update={"id": id_})
                for item, id_ in zip(first, wanted, strict=False)
            ]
            bed.source.answer = RequestList(requests=tuple(found), num_matching=len(found))
            await bed.wait(2)

        await bed.type("colon", "requests")
        await listed(*ids[:4])
        await bed.sees("0-0-…77d0", "3-0-…77d3")
        await listed("chatcmpl-90c7dbc54b4264d5-11", "load-90c7dbc54b4264d5-12", ids[3])
        await bed.sees("3-0-…77d3")
        await listed(*ids[3:])
        await bed.sees("3-0-…77d3", "7-0-…77d7")


async def test_nothing_beyond_ascii_on_an_ascii_terminal() -> None:
    odd = synthetic.instance("i-0", node="größer", detail="日本")
    last = StatusFrame(time_s=synthetic.START_S + 20, status=synthetic.cluster((odd,)))
    async with watching([*synthetic.frames(20), last], glyphs=ASCII) as bed:
        for key in ("e", "question_mark", "escape", "0", "enter"):
            await bed.press(key)
            assert (await bed.shown()).isascii()


async def test_only_what_changed_is_painted(watched: Bed) -> None:
    table = watched.table()
    painted: list[Any] = []
    table.refresh = lambda *regions, **_: painted.extend(regions) or table
    watched.app.pump()
    assert painted == []
    first, *others = watched.status.instances
    changed = first.model_copy(update={"num_waiting_reqs": first.num_waiting_reqs + 1})
    same_time = watched.status.model_copy(update={"instances": (changed, *others)})
    watched.source.feed([StatusFrame(time_s=watched.source.clock_s, status=same_time)])
    watched.app.pump()
    (region,) = painted
    row = watched.ids().index(changed.id) + 2
    assert (region.y, region.height, region.width) == (row, 1, 4 + GAP)


# More rows than fit: the top of the order stays in view until somebody moves the cursor


def statuses(count: int) -> Iterable[StatusFrame]:
    """Statuses of instances that all serve, so that they are ordered only by freeness."""
    for frame in synthetic.frames(count, num_instances=64, events_per_s=0):
        if isinstance(frame, StatusFrame):
            all_ = frame.status.instances
            active = tuple(each for each in all_ if each.state is InstanceState.ACTIVE)
            only = frame.status.model_copy(update={"instances": active})
            yield frame.model_copy(update={"status": only})


async def places_of(bed: Bed, chosen: str, frames: Iterable[StatusFrame]) -> set[int]:
    """The places at which the row stands, during which the cursor is on it and it is in view."""
    places = set()
    for frame in frames:
        await bed.feed([frame])
        assert bed.cursor == chosen
        assert f" {chosen} " in await bed.shown()
        places.add(bed.ids().index(chosen))
    return places


async def test_an_untouched_table_shows_the_worst_and_a_touched_one_its_row() -> None:
    """A row that was opened is touched too."""
    first, *frames = statuses(45)
    async with watching([first], NARROW) as bed:
        for rows, touch in ((frames[:15], "jjjjjj"), (frames[35:], ["enter", "escape"])):
            firsts = set()
            for frame in rows:
                await bed.feed([frame])
                assert bed.table().position.startswith("1-")
                assert bed.cursor == bed.ids()[0]
                firsts.add(bed.cursor)
            assert len(firsts) > 2, "the rows did not change places"
            await bed.press(*touch)
            assert len(await places_of(bed, bed.cursor, frames[15:35])) > 3
            await bed.press("g")


async def test_the_cursor_passes_the_lines_of_nodes() -> None:
    """A node's line comes into view again with its first instance."""
    async with watching(synthetic.on_four_nodes(1), NARROW) as bed:
        rows = [each for each in bed.ids() if not each.startswith("node ")]
        seen = [bed.cursor]
        for _ in range(len(rows) + 1):
            await bed.press("j")
            seen.append(bed.cursor)
        assert seen == [*rows, *[rows[-1]] * 2]
        for row in reversed(rows[:-1]):
            await bed.press("k")
            assert bed.cursor == row
        assert bed.ids()[0].removeprefix("node ") in await bed.shown()
        await bed.press("G")
        assert bed.table().position.endswith(f"-{len(rows)} of {len(rows)}")


async def test_the_line_of_a_node_is_nothing_to_click_on_or_to_act_on() -> None:
    async with watching(synthetic.on_four_nodes(1)) as bed:
        table, place = bed.table(), bed.ids().index("node 10.0.0.11")
        before = bed.cursor
        await bed.pilot.click(table, offset=(5, place + 2))
        assert bed.cursor == before
        await bed.pilot.click(table, offset=(5, place + 3))
        assert bed.cursor == bed.ids()[place + 1]
        bed.main.filter_by("i-9")
        assert bed.ids() == ["node 10.0.0.13", "i-9"]
        assert table.target.instance_id == "i-9"
        bed.main.filter_by("nothing like it")
        assert not table.target.subject
