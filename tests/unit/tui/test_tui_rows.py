"""Rows, columns, header and layout, without a terminal."""

from dataclasses import replace
from datetime import UTC
from typing import Any

import pytest
from textual.binding import ActiveBinding, BindingsMap
from textual.dom import DOMNode

from controller.api.wire.requests import Event
from controller.api.wire.status import InstanceState, QueueHeadStatus, ReplaysStatus
from controller.api.wire.stream import EventFrame, StatusFrame
from tools import synthetic_cluster as synthetic
from tui import actions, drawing
from tui.actions import Place, Target
from tui.drawing import ASCII, UNICODE, Line, Span, Tone, key_line, width_of
from tui.panes import events, header, instances, migrations, requests
from tui.panes.header import Liveness
from tui.panes.instances import InstanceRow, facts
from tui.panes.requests import Names, names
from tui.screens.dashboard import Pane, arrange
from tui.state import Arrived, DashboardState, Entry, Lost, reduce

LEVELS = ("high", "normal")


def state_of(*found: Any) -> DashboardState:
    frame = StatusFrame(time_s=synthetic.START_S, status=synthetic.cluster(found))
    return reduce(DashboardState(), [Arrived(frame, synthetic.START_S)])


def cells_of(row: InstanceRow, width: int = 120) -> dict[str, str]:
    placed = drawing.place(instances.columns(row.levels, width), width)
    shown = drawing.cells(placed, row, UNICODE, instances.note(row))
    found = {}
    for p in placed:
        pieces = [span.text for x, span in shown if p.x <= x <= p.x + p.width]
        if pieces:
            found[p.column.name] = "".join(pieces).strip()
    return found


def cells(item: Any, width: int = 120) -> dict[str, str]:
    (row,) = instances.rows(state_of(item), UNICODE)
    return cells_of(row, width)


def text(line: Line) -> str:
    return "".join(span.text for span in line)


def test_an_instance_in_full() -> None:
    busy = synthetic.instance(
        "i-3",
        freeness_steps=-196.0,
        virtual_usage_blocks=1198,
        kv_cache_usage=0.98,
        num_running_reqs=41,
        num_waiting_reqs=6,
        num_running_by_level={"normal": 38, "high": 3},
        headroom_blocks=151,
        num_moves_out=2,
        ttft_p99_s=4.1,
    )
    found = cells(busy)
    assert found.pop("trend").strip("▁▂▃▄▅▆▇") == ""
    assert found == {
        "id": "! i-3",
        "state": "active",
        "freeness": "-196",
        "kv": "#########  98 +23%",
        "run": "41",
        "wait": "6",
        "levels": "H3 N38",
        "moves": "0/2",
        "headroom": "151/1000",
        "ttft": "4.1s",
        "up": "2h00m",
    }


def test_an_instance_kept_free_for_a_high_priority_is_reserved_and_not_in_trouble() -> None:
    kept = synthetic.instance(
        "i-3", freeness_steps=-196.0, virtual_usage_blocks=1198, headroom_blocks=751
    )
    found = cells(kept)
    assert (found["id"], found["state"], found["freeness"]) == ("i-3", "reserved", "-196")
    assert instances.freeness(kept).tone is instances.kv(kept)[0].tone is Tone.PLAIN
    rows = instances.rows(
        state_of(kept, synthetic.instance("i-4", freeness_steps=-3.0, virtual_usage_blocks=995)),
        UNICODE,
    )
    assert ids(instances.ordered(rows, "freeness", descending=False)) == ["i-4", "i-3"]
    assert instances.matches(rows[0].text, "reserved")


def test_an_instance_that_an_alarm_is_about_is_marked_and_comes_first() -> None:
    state = state_of(
        synthetic.instance("i-1", freeness_steps=43.0),
        synthetic.instance("i-2", freeness_steps=20.0),
    )
    rows = instances.rows(state, UNICODE, {"i-1"})
    assert [cells_of(row)["id"] for row in rows] == ["! i-1", "i-2"]
    assert ids(instances.ordered(rows, "freeness", descending=False)) == ["i-1", "i-2"]


def test_a_starved_instance_shows_how_long_its_queue_head_has_waited() -> None:
    head = QueueHeadStatus(
        request_id="r8", level="high", demand_blocks=118, waited_s=52.0, evicted=False
    )
    assert cells(synthetic.instance(ttft_p99_s=None, queue_head=head))["ttft"] == ">52s"
    assert cells(synthetic.instance(ttft_p99_s=1.9, queue_head=head))["ttft"] == "1.9s"
    assert cells(synthetic.instance(ttft_p99_s=None))["ttft"] == "-"
    evicted = head.model_copy(update={"evicted": True})  # it has its first token already
    assert cells(synthetic.instance(ttft_p99_s=None, queue_head=evicted))["ttft"] == "-"


def test_a_draining_instance_has_none_left() -> None:
    found = cells(synthetic.instance("i-7", InstanceState.DRAINING, virtual_usage_blocks=None))
    assert (found["id"], found["freeness"]) == ("> i-7", "-inf")
    assert found["kv"].endswith("55 +inf%")


def test_an_instance_without_figures_says_what_it_does() -> None:
    none = dict.fromkeys(("num_running_reqs", "freeness_steps", "kv_cache_usage"))
    starting = synthetic.instance(
        "i-8", InstanceState.STARTING, detail="loading weights 61%", **none
    )
    found = cells(starting)
    assert found == {"id": "+ i-8", "state": "starting", "freeness": "loading weights 61%"}


@pytest.mark.parametrize(
    ("state", "glyph"),
    [
        (InstanceState.ACTIVE, " "),
        (InstanceState.STARTING, "+"),
        (InstanceState.RESTARTING, "+"),
        (InstanceState.DRAINING, ">"),
        (InstanceState.STALLED, "!"),
        (InstanceState.FAILED, "!"),
    ],
)
def test_each_state_has_a_glyph_and_a_tone(state: InstanceState, glyph: str) -> None:
    assert instances.attention(synthetic.instance("i-0", state)) == glyph
    assert instances.state_tone(state)


@pytest.mark.parametrize("width", [120, 110, 100, 80, 60, 40, 12, 1, 0])
def test_columns_fit_any_width(width: int) -> None:
    placed = drawing.place(instances.columns(("high", "normal"), width), width)
    assert all(p.x + p.width <= max(width, 0) for p in placed)


def test_eighty_columns_keep_what_matters() -> None:
    def kept_at(width: int) -> set[str]:
        return {p.column.name for p in drawing.place(instances.columns(LEVELS, width), width)}

    kept = kept_at(80)
    assert kept == {"id", "state", "freeness", "trend", "kv", "run", "wait", "ttft"}
    every = {column.name for column in instances.columns(LEVELS, 120)}
    assert kept_at(120) == every - {"heat"}
    assert kept_at(200) == every - {"levels"} | {"level.high", "level.normal"}


def test_held_and_wanted_have_two_tones() -> None:
    held, wanted, rest = instances.kv(
        synthetic.instance(kv_cache_usage=0.5, virtual_usage_blocks=742)
    )
    assert (held.text, held.tone) == ("####", Tone.PLAIN)
    assert (wanted.text, wanted.tone) == ("===", Tone.WARN)
    assert rest.text.split() == ["50", "+25%"]
    (starved, wanted, _) = instances.kv(
        synthetic.instance(freeness_steps=-1.0, kv_cache_usage=0.9, virtual_usage_blocks=1200)
    )
    assert starved.tone is wanted.tone is Tone.BAD


@pytest.mark.parametrize(
    ("levels", "shown"),
    [
        (("high", "normal"), "H1 N2"),
        (("high", "hot", "normal"), "Hi1 Ho0 N2"),
        (("normal",), "N2 H1"),
        (("high", "higher", "normal"), "High1 Highe0 N2"),
    ],
)
def test_levels_are_named_as_shortly_as_can_be(levels: tuple[str, ...], shown: str) -> None:
    item = synthetic.instance(num_running_by_level={"normal": 2, "high": 1})
    assert instances.running_by_level(item, levels) == shown


def test_a_wall_screen_has_a_column_per_level_and_the_last_hour() -> None:
    frames = [
        StatusFrame(
            time_s=synthetic.START_S + 60 * minute,
            status=synthetic.cluster(
                (synthetic.instance(kv_cache_usage=usage),), synthetic.START_S + 60 * minute
            ),
        )
        for minute, usage in enumerate((0.0, 0.5, 0.95, 1.0))
    ]
    state = reduce(DashboardState(), [Arrived(frame, frame.time_s) for frame in frames])
    (row,) = instances.rows(state, UNICODE)
    found = cells_of(row, 200)
    assert found["heat"] == "▁▄▇▇"
    assert found["level.high"].split() == ["0+0", "-", "-"]
    assert found["level.normal"].split() == ["12+0", "-", "-"]
    busy = synthetic.instance(
        num_running_by_level={"high": 3, "normal": 12},
        num_waiting_by_level={"high": 1, "normal": 60},
        headroom_by_level_blocks={"high": 743},
        ttft_p99_by_level_s={"high": 0.24, "normal": 166.0},
    )
    found = cells_of(replace(row, item=busy), 150)
    assert found["level.high"].split() == ["3+1", "240ms", "743"]
    assert found["level.normal"].split() == ["12+60", "2m46s", "-"]
    assert "levels" in cells_of(row, 149)
    many = tuple(f"level-{n}" for n in range(5))
    assert "levels" in cells_of(replace(row, levels=many), 150), "no room for all of them"
    (heat,) = [column for column in instances.columns(LEVELS, 200) if column.name == "heat"]
    line = heat.cell(row, 30)
    assert isinstance(line, tuple)
    assert [span.tone for span in line] == [Tone.DIM, Tone.WARN, Tone.BAD]
    assert sum(len(span.text) for span in line) == 30


def ids(found: list[InstanceRow]) -> list[str]:
    return [row.id for row in found]


def test_sorting_leaves_the_unknown_last_either_way() -> None:
    found = instances.rows(
        state_of(
            synthetic.instance("i-10", freeness_steps=5.0),
            synthetic.instance("i-2", freeness_steps=5.0),
            synthetic.instance("i-3", freeness_steps=None),
            synthetic.instance("i-4", InstanceState.DRAINING),
            synthetic.instance("i-5", freeness_steps=-1.0),
        ),
        UNICODE,
    )
    assert ids(instances.ordered(found, "freeness", descending=False)) == [
        "i-4",
        "i-5",
        "i-2",
        "i-10",
        "i-3",
    ]
    assert ids(instances.ordered(found, "freeness", descending=True)) == [
        "i-2",
        "i-10",
        "i-5",
        "i-4",
        "i-3",
    ]
    assert ids(instances.ordered(found, "id", descending=True))[:2] == ["i-10", "i-5"]


@pytest.mark.parametrize("column", instances.SORTS)
def test_every_column_sorts(column: str) -> None:
    state = reduce(
        DashboardState(), [Arrived(frame, frame.time_s) for frame in synthetic.frames(3)]
    )
    found = instances.rows(state, UNICODE)
    up = ids(instances.ordered(found, column, descending=False))
    assert sorted(up) == sorted(ids(found))
    values = [
        instances.SORTS[column](row) for row in instances.ordered(found, column, descending=False)
    ]
    known = [value for value in values if value is not None]
    assert known == sorted(known)
    assert values[: len(known)] == known


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [("", True), ("i-3", True), ("STALLED", True), ("i-3 stalled", True), ("!active", True),
     ("active", False), ("!stalled", False), ("stalled i-4", False), ("!", False)],
)  # fmt: skip
def test_filters(wanted: str, fits: bool) -> None:
    assert instances.matches("i-3 stalled 10.0.0.11", wanted) is fits


def test_queue_heads_say_what_they_need_and_why_they_wait() -> None:
    def head(waited_s: float, *, evicted: bool = False) -> QueueHeadStatus:
        return QueueHeadStatus(
            request_id="r8c10",
            level="high",
            demand_blocks=118,
            waited_s=waited_s,
            evicted=evicted,
            evicted_for_s=waited_s if evicted else None,
            why="fragmented",
        )

    state = state_of(
        synthetic.instance("i-1", queue_head=head(1.0)),
        synthetic.instance("i-2"),
        synthetic.instance("i-3", num_free_blocks=14, queue_head=head(3.2, evicted=True)),
    )
    found = requests.head_rows(state, names(state, "…"))
    assert [row.id for row in found] == ["i-3", "i-1"]
    placed = drawing.place(requests.HEAD_COLUMNS, 90)
    shown = [span.text.strip() for _, span in drawing.cells(placed, found[0], UNICODE)]
    assert shown == ["i-3", "r8c10", "high", "3.2s", "118", "4", "fragmented (evicted)"]
    narrow = drawing.place(requests.HEAD_COLUMNS, 58)
    assert [span.text.strip() for _, span in drawing.cells(narrow, found[0], UNICODE)][-1] == (
        "fragmented"
    )


def held_state() -> DashboardState:
    *_, frame = synthetic.late_binding(1)
    assert isinstance(frame, StatusFrame)
    return reduce(DashboardState(), [Arrived(frame, frame.time_s)])


def test_the_queue_at_the_controller_stands_first() -> None:
    state = held_state()
    row, *others = requests.head_rows(state, names(state, "…"))
    assert (row.id, row.target, others) == ("held", Target("", "r9001c9"), [])
    words = {
        width: [
            span.text.strip()
            for _, span in drawing.cells(drawing.place(requests.HEAD_COLUMNS, width), row, UNICODE)
        ]
        for width in (100, 80, 64)
    }
    assert words[100][:6] == ["held", "r9001c9", "high", "31s", "360", "198"]
    assert [words[width][-1] for width in (100, 80, 64)] == [
        "i-9 kept, lacks 172, 60 behind",
        "i-9 kept, lacks 172, 60 behind",
        "i-9 lacks 172",
    ]


def test_an_instance_that_is_kept_is_marked_and_says_for_whom() -> None:
    state = held_state()
    rows = {row.id: row for row in instances.rows(state, UNICODE, (), names(state, "…"))}
    placed = drawing.place(instances.columns((), 120, kept=True), 120)
    shown = {
        id_: [span.text.strip() for _, span in drawing.cells(placed, row, UNICODE)]
        for id_, row in rows.items()
    }
    assert shown["i-9"][:2] == ["= i-9", "reserved"]
    assert "r9001c9   -172" in shown["i-9"]
    assert shown["i-8"][:2] == ["i-8", "active"]
    alarmed = instances.rows(state, UNICODE, {"i-9"})
    (row,) = [row for row in alarmed if row.id == "i-9"]
    assert instances.columns((), 120)[0].cell(row, 8).text == "! i-9"
    lines = ["".join(span.text for span in line) for line in facts(state, "i-9", 120, ASCII)]
    assert lines[-1] == (" kept for    r9001c9  high  waited 31s  needs 360 blk, 172 lack")


def event_cells(entry: Entry, *, expanded: bool = False) -> list[str]:
    columns = events.EXPANDED_COLUMNS if expanded else events.COLUMNS
    placed = drawing.place(columns, 120)
    row = events.EventRow(entry, UTC, Names([], "…"))
    return [span.text.strip() for _, span in drawing.cells(placed, row, UNICODE)]


def test_an_event_short_and_expanded() -> None:
    found = Event(
        kind="finished",
        time_s=synthetic.START_S,
        cause_id="arrive-r1",
        reason="stop",
        instance_id="i-3",
        request_id="r1",
        numbers={"num_output_tokens": 200, "ttft_s": 0.31, "e2e_latency_s": None},
    )
    entry = Entry(0, found.time_s, found)
    assert event_cells(entry) == ["12:00:00", "finished", "i-3", "r1  stop"]
    assert event_cells(entry, expanded=True) == [
        "12:00:00",
        "finished",
        "i-3",
        "arrive-r1",
        "r1  stop",
        "200 output tokens  ttft 310ms",
    ]


@pytest.mark.parametrize(
    ("kind", "word", "who"),
    [
        ("instance_died", "died", "i-3"),
        ("frontend_started", "started", "f-0"),
        ("controller_started", "started", "controller"),
        ("something_new", "something new", "i-3"),
        ("migrated", "migrated", "i-3"),
        ("migration_failed", "not moved", "i-3"),
    ],
)
def test_events_of_members(kind: str, word: str, who: str) -> None:
    found = Event(kind=kind, time_s=1.0, cause_id="c", instance_id="i-3", frontend_id="f-0")
    assert (events.word(found), events.who(found)) == (word, who)


def test_operators_are_named() -> None:
    found = Event(kind="operator", time_s=1.0, cause_id="op-1", reason="stop", actor="ana@head")
    assert events.what(found) == "stop  by ana@head"


def test_gaps_say_how_many() -> None:
    assert event_cells(Entry(3, synthetic.START_S, missed=17))[3] == "17 events were missed"
    assert event_cells(Entry(3, synthetic.START_S))[3] == "events were missed"


def heard_of(*found: tuple[str, float, str | None]) -> DashboardState:
    frames = [
        EventFrame(
            time_s=at_s,
            event=Event(
                kind=kind, time_s=at_s, cause_id="c", instance_id="i-3", request_id=request_id
            ),
        )
        for kind, at_s, request_id in found
    ]
    return reduce(DashboardState(), [Arrived(frame, frame.time_s) for frame in frames])


def test_routine_events_are_lines_only_where_all_are_wanted() -> None:
    state = heard_of(
        ("dispatched", 1.0, "r1"), ("instance_died", 2.0, None), ("finished", 3.0, "r1")
    )
    brief = events.rows(state, UTC, Names([], "…"), routine=False)
    assert [row.text.split()[0] for row in brief] == ["instance_died"]
    assert len(events.rows(state, UTC, Names([], "…"), routine=True)) == 3


def test_what_happens_to_many_requests_at_once_is_one_line() -> None:
    state = heard_of(
        ("failed", 1.0, "r1"),
        ("failed", 1.1, "r2"),
        ("failed", 1.9, "r3"),
        ("failed", 2.0, "r4"),
        ("operator", 2.1, None),
        ("operator", 2.2, None),
    )
    found = events.rows(state, UTC, Names([], "…"), routine=False)
    assert [row.count for row in found] == [3, 1, 1, 1]
    placed = drawing.place(events.COLUMNS, 60)
    words = [drawing.cells(placed, row, UNICODE)[3][1].text.strip() for row in found]
    assert words[:2] == ["3 requests", "r4"]


@pytest.mark.parametrize("width", range(1, 120, 7))
def test_rates_of_routine_events_fit(width: int) -> None:
    state = heard_of(
        *(("dispatched", 1 + place / 25, "r") for place in range(115)),
        *(("not_moved", 5.6, "r") for _ in range(7)),
        ("evicted", 6.1, "r"),
    )
    for count in (1, 2):
        found = [text(line) for line in events.rates(state, width, count)]
        assert len(found) <= count
        assert all(len(line) <= width for line in found)
    if width > 40:
        assert found == [" +23 dispatched/s  +1.4 not moved/s"]


def moving() -> DashboardState:
    status = synthetic.moving(synthetic.cluster((synthetic.instance("i-0"),)))
    frame = StatusFrame(time_s=synthetic.START_S, status=status)
    return reduce(DashboardState(), [Arrived(frame, synthetic.START_S)])


def move_cells(row: migrations.MigrationRow, width: int = 120) -> list[str]:
    placed = drawing.place(migrations.COLUMNS, width)
    return [span.text.strip() for _, span in drawing.cells(placed, row, UNICODE)]


def test_moves_under_way_come_first_then_those_that_ended() -> None:
    found = migrations.rows(moving(), names(moving(), "…"))
    assert [move_cells(row) for row in found] == [
        ["r77c0", "i-3>i-1", "commit", "64/64", "-", "0.9s", "by hand"],
        ["r77c1", "i-3>i-2", "copying 1", "88/118", "-", "0.7s", "by hand"],
        ["r77c2", "i-0>i-2", "last copy", "9/9", "-", "0.5s", "by hand"],
        ["r66c0", "i-3>i-1", "migrated", "40", "24ms", "2.0s", "by hand"],
        [
            "r66c1",
            "i-3>i-1",
            "kept",
            "41",
            "-",
            "3.0s",
            "the destination has not enough free blocks",
        ],
        ["r66c2", "i-3>i-1", "migrated", "42", "31ms", "4.0s", "by hand"],
    ]
    assert [row.target.instance_id for row in found] == ["i-3", "i-3", "i-0", "i-1", "i-3", "i-1"]
    assert migrations.rows(DashboardState(), Names([], "…")) == []


def with_status(state: DashboardState, **update: object) -> StatusFrame:
    assert state.status is not None
    status = state.status.model_copy(update=update)
    return StatusFrame(time_s=synthetic.START_S, status=status)


def losing() -> DashboardState:
    last = list(synthetic.on_four_nodes(1))[-1]
    return reduce(DashboardState(), [Arrived(last, synthetic.START_S)])


def test_evacuations_and_replays_stand_beside_moves() -> None:
    found = migrations.rows(losing(), names(losing(), "…"))
    assert [move_cells(row) for row in found[:4]] == [
        ["7 left", "i-1>", "evacuate", "-", "-", "-21s", "goes in 21s, 5 moved"],
        ["r9c0", "i-9>?", "placing", "1800t", "1.7s", "-", "death"],
        ["r9c1", "i-9>i-4", "computing", "412t", "1.4s", "-", "death"],
        ["r77c0", "i-3>i-1", "commit", "64/64", "-", "0.9s", "by hand"],
    ]
    ended = [move_cells(row) for row in found if row.id.startswith("replay r9d")]
    assert ended == [
        ["r9d0", "i-8>i-0", "replayed", "140t", "1.1s", "0.5s", "death"],
        ["r9d1", "i-8>i-2", "sent anew", "140t", "-", "1.5s", "death"],
        ["r9d2", "i-8", "failed", "140t", "-", "2.5s", "death: too often"],
    ]
    assert len({row.id for row in found}) == len(found)
    targets = {row.id: (row.target.instance_id, row.target.request_id) for row in found}
    assert targets["evacuation i-1"] == ("i-1", "")
    assert targets["replay r9c0"] == ("i-9", "r9c0")
    assert targets["replay r9c1"] == ("i-4", "r9c1")


def test_replays_of_the_last_minute_are_in_the_header_and_have_a_column() -> None:
    assert "  mig 3 (41/min, 1 fail)  replay 2 (11/min, 1 fail)  " in headed(losing(), 150, 2)[1]
    assert "  replay 2  " in headed(losing(), 100, 1)[0]
    assert "replay" not in headed(moving(), 150, 2)[1]
    past = ReplaysStatus(num_replayed_last_minute=5)
    over = reduce(losing(), [Arrived(with_status(losing(), replays=past), synthetic.START_S)])
    assert "  replay 5/min  " in headed(over, 100, 1)[0]
    rows = {row.id: row for row in instances.rows(losing(), UNICODE)}
    shown = instances.columns((), 120, lost=True)
    assert "replays" not in [column.name for column in instances.columns((), 120)]
    (replays,) = [column for column in shown if column.name == "replays"]
    cells = {id_: replays.cell(row, 6) for id_, row in rows.items()}
    assert (cells["i-9"], cells["i-4"]) == (Span("0/2", Tone.WARN), Span("1/0", Tone.WARN))
    assert cells["i-0"] == Span("0/0", Tone.DIM)


def test_half_a_wide_screen_has_room_for_a_move_and_its_reason() -> None:
    kept = [p.column.name for p in drawing.place(migrations.COLUMNS, 64)]
    assert kept == [column.name for column in migrations.COLUMNS]


def test_the_header_counts_the_moves() -> None:
    assert "  mig 3 (41/min, 1 fail)  " in headed(moving(), 150, 2)[1]
    assert "  mig 3" in headed(moving(), 120, 1)[0]


def liveness(state: DashboardState, now_s: float, *badges: str) -> Liveness:
    return Liveness(state, now_s, 1.0, "prod-a", ("READ", *badges), UTC)


@pytest.mark.parametrize("width", range(20, 221, 3))
def test_the_alarm_line_names_the_worst_and_counts_the_others(width: int) -> None:
    head = QueueHeadStatus(
        request_id="r8", level="high", demand_blocks=280, waited_s=182.0, evicted=False
    )
    worst = synthetic.instance(
        "i-6", num_waiting_reqs=61, num_free_blocks=196, queue_head=head, ttft_p99_s=166.0
    )
    others = [synthetic.instance(f"i-{n}", ttft_p99_s=10.0 + n) for n in (9, 8, 7, 5)]
    found = state_of(*others, worst).alarms
    shown = text(header.alarm_line(found, width, UNICODE))
    assert len(shown) <= width
    assert shown.startswith(" ! i-6: 61 wait")
    assert len(header.alarm_line(found[:1], width, UNICODE)[0].text) <= width
    if width < 76:
        assert shown.endswith("+4")
    if width > 132:
        assert shown.endswith("  also i-9, i-8, i-7, i-5")


def test_nothing_in_the_header_looks_well_while_there_is_an_alarm() -> None:
    state = state_of(synthetic.instance("i-0"))
    live = liveness(state, synthetic.START_S)
    for count in (1, 2):
        for alarm in (False, True):
            lines = header.lines(state, live, 150, count, UNICODE, alarm=alarm)
            good = [span.text for line in lines for span in line if span.tone is Tone.GOOD]
            assert bool(good) is not alarm
    assert "  ! ready  " in text(header.lines(state, live, 150, 2, UNICODE, alarm=True)[0])


def test_the_header_counts_cordoned_instances_among_those_without_new_requests() -> None:
    shut = synthetic.instance("i-1", closed_by=("cordoned",), freeness_steps=9000.0)
    _, second = headed(state_of(synthetic.instance("i-0"), shut), 150, 2)
    assert "inst 1+1 " in second
    assert "freeness avg 521 " in second


def headed(
    state: DashboardState, width: int, count: int, now_s: float = synthetic.START_S
) -> list[str]:
    return [
        text(line) for line in header.lines(state, liveness(state, now_s), width, count, UNICODE)
    ]


def test_the_header_in_two_lines() -> None:
    trouble = synthetic.instance("i-1", InstanceState.STALLED, num_waiting_reqs=9)
    first, second = headed(
        state_of(synthetic.instance("i-0"), trouble), 150, 2, synthetic.START_S + 0.4
    )
    assert first.startswith(
        "llumctl  prod-a  degraded  http://10.0.0.5:8000  ● live 0.4s ago  [READ]"
    )
    assert first.endswith("12:00:00")
    assert len(first) == 150
    assert second == (
        "inst 1+1 (1 stalled)  req run 24 wait 9 held 0  freeness avg 521  mig 0 (0/min, 0 fail)"
        "  kv 55%  evict 0  p99 TTFT 1.9s  i-1 is stalled"
    )


def test_the_highest_level_leaves_the_header_last() -> None:
    """The remaining one of two levels must not repeat the total."""
    found = [
        synthetic.instance(
            "i-0",
            num_running_by_level={"high": 3, "normal": 9},
            num_waiting_by_level={"normal": 1, "high": 0},
        )
    ]
    status = synthetic.cluster(tuple(found))
    heard = [Arrived(StatusFrame(time_s=synthetic.START_S, status=status), synthetic.START_S)]
    state = reduce(DashboardState(), heard)
    shown = {width: headed(state, width, 2)[1] for width in range(40, 200)}
    assert any("high 3+0" in line and "normal" not in line for line in shown.values())
    assert any("high 3+0" in line and "normal 9+1" in line for line in shown.values())
    for line in shown.values():
        assert "normal" not in line or "high" in line


def test_a_command_that_the_header_names_means_this_cluster() -> None:
    status = synthetic.cluster((synthetic.instance("i-0"),))
    status = status.model_copy(update={"detail": "Ray is gone: llumctl down, then llumctl up"})
    live = replace(liveness(state_of(), synthetic.START_S), of_cluster=" --cluster h2")
    assert text(header.vitals(status, live, 300)).endswith(
        "llumctl down --cluster h2, then llumctl up --cluster h2"
    )


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60, 30, 10, 1])
@pytest.mark.parametrize("count", [1, 2])
def test_the_header_keeps_name_and_liveness_at_any_width(width: int, count: int) -> None:
    first = headed(state_of(synthetic.instance("i-0")), width, count)[0]
    assert "prod-a" in first
    assert "live 0.0s" in first
    assert len(first) <= max(width, len("prod-a  ● live 0.0s ago  [READ]"))


def test_the_header_says_what_is_stale() -> None:
    state = state_of(synthetic.instance("i-0"))
    assert "! STALE 12s" in headed(state, 80, 1, synthetic.START_S + 12)[0]
    lost = reduce(DashboardState(), [Lost("refused", 1.0)])
    assert headed(lost, 80, 1, 2.0)[0].startswith("prod-a  ! STALE no data")
    assert headed(DashboardState(), 80, 1)[0].startswith("prod-a  + connecting")


def test_ascii_headers_are_ascii() -> None:
    state = state_of(synthetic.instance("i-0"))
    for line in header.lines(state, liveness(state, synthetic.START_S), 120, 2, ASCII):
        assert text(line).isascii()


def test_facts_of_an_instance() -> None:
    head = QueueHeadStatus(
        request_id="r8", level="high", demand_blocks=118, waited_s=3.2, evicted=False, why="memory"
    )
    lines = [
        text(line)
        for line in facts(state_of(synthetic.instance("i-0", queue_head=head)), "i-0", 120, ASCII)
    ]
    assert lines[0] == " i-0  active"
    assert "550 of 1000 (16 tokens)" in lines[3]
    assert lines[-1] == (" queue head  r8  high  waited 3.2s  needs 118 blk of 440  memory")
    assert all(len(line) <= 120 for line in lines)
    assert len(facts(state_of(synthetic.instance("i-0")), "i-0", 20, ASCII)) == 24
    assert "no longer" in text(facts(state_of(), "i-0", 80, ASCII)[0])


@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("zoomed", [None, Pane.EVENTS])
@pytest.mark.parametrize("alarm", [False, True])
@pytest.mark.parametrize(
    "empty", [(), (Pane.QUEUE,), (Pane.MIGRATIONS,), (Pane.QUEUE, Pane.MIGRATIONS)]
)
def test_panes_fit_any_terminal(
    expanded: bool, zoomed: Pane | None, alarm: bool, empty: tuple[Pane, ...]
) -> None:
    sizes = [(width, height) for width in range(20, 221, 5) for height in range(5, 71, 2)]
    tiny = [(width, height) for width in (1, 2, 300) for height in (1, 2, 3, 4)]
    for width, height in (*sizes, *tiny):
        for num_instances, matrix_lines in ((0, 0), (2, 4), (64, 18)):
            found = arrange(
                width,
                height,
                num_instances=num_instances,
                alarm=alarm,
                tab=Pane.QUEUE,
                zoomed=zoomed,
                expanded=expanded,
                empty=empty,
                matrix_lines=matrix_lines,
            )
            assert found.boxes
            assert all(box.width >= 1 and box.height >= 1 for box in found.boxes.values())
            upper = found.boxes.get(Pane.INSTANCES)
            left = [found.boxes[p] for p in (Pane.MIGRATIONS, Pane.QUEUE) if p in found.boxes]
            right = [found.boxes[Pane.EVENTS]] if Pane.EVENTS in found.boxes else []
            if found.matrix:
                right.append(found.matrix)
                assert not found.tabs
            lower = max(sum(box.height for box in column) for column in (left, right))
            above = found.header_lines + found.alarm_lines + (upper.height if upper else 0)
            assert above + lower + 1 <= max(height, 2)
            if height >= 5:
                assert above + lower + 1 == height
            assert len({box.width for box in left}) <= 1
            assert sum(box.width + box.gap for box in (*left[:1], *right[:1])) <= width


def test_empty_panes_leave_their_room_to_the_others() -> None:
    def boxes(*empty: Pane, size: tuple[int, int] = (120, 36)) -> dict[Pane, tuple[int, int]]:
        found = arrange(*size, num_instances=4, tab=Pane.QUEUE, empty=empty)
        return {pane: (box.width, box.height) for pane, box in found.boxes.items()}

    full, idle = boxes(), boxes(Pane.QUEUE)
    assert idle[Pane.QUEUE][1] == 3
    assert idle[Pane.MIGRATIONS][1] > full[Pane.MIGRATIONS][1]
    assert boxes(Pane.MIGRATIONS)[Pane.MIGRATIONS][1] == 3
    both = boxes(Pane.QUEUE, Pane.MIGRATIONS)
    assert both[Pane.EVENTS][0] > full[Pane.EVENTS][0] + 30
    many = arrange(80, 24, num_instances=64, tab=Pane.QUEUE, empty=(Pane.QUEUE,))
    assert many.boxes[Pane.QUEUE].height == 3
    assert many.boxes[Pane.INSTANCES].height == 19


def test_a_wall_screen_has_room_for_who_moves_where() -> None:
    wall = arrange(200, 60, num_instances=16, tab=Pane.QUEUE, matrix_lines=18)
    assert wall.matrix is not None
    assert wall.matrix.height == 18
    assert wall.matrix.width == wall.boxes[Pane.EVENTS].width
    assert arrange(120, 36, num_instances=16, tab=Pane.QUEUE, matrix_lines=18).matrix is None


def moved(*found: tuple[float, str, str]) -> DashboardState:
    events = [
        EventFrame(
            time_s=at_s,
            event=Event(
                kind="migrated", time_s=at_s, cause_id="m", labels={"from": source, "to": to}
            ),
        )
        for at_s, source, to in found
    ]
    return reduce(DashboardState(), [Arrived(frame, frame.time_s) for frame in events])


def test_who_moves_where() -> None:
    state = moved((1.0, "i-9", "i-2"), (62.0, "i-10", "i-2"), *[(63.0, "i-2", "i-10")] * 12)
    found = [text(line).rstrip() for line in migrations.matrix_lines(state, 40, 10, UNICODE)]
    assert found == [
        "─ Who moves where (13 in the last minute)",
        " FROM      >i-2 >i-10",
        " i-2               12",
        " i-10         1",
    ]
    assert migrations.num_matrix_lines(state) == 2
    assert migrations.num_matrix_lines(DashboardState()) == 0
    assert moved((1.0, "i-0", "i-1"), (90.0, "i-0", "i-1")).ways[0].time_s == 90.0


def test_the_matrix_keeps_those_that_move_most() -> None:
    busy = moved(*[(5.0, f"i-{n}", f"i-{n + 1}") for n in range(64) for _ in range(n + 1)])
    for width in (1, 12, 40, 90, 200):
        for height in (1, 2, 5, 18):
            assert len(migrations.matrix_lines(busy, width, height, ASCII)) <= max(2, height)
    shown = [text(line) for line in migrations.matrix_lines(busy, 40, 5, ASCII)]
    assert [line.split()[0] for line in shown[2:]] == ["i-61", "i-62", "i-63"]
    assert shown[1].split() == ["FROM", ">i-60", ">i-61", ">i-62", ">i-63", ">i-64"]


def test_layouts_of_the_two_sizes() -> None:
    wide = arrange(120, 36, num_instances=64, tab=Pane.QUEUE)
    assert (wide.header_lines, wide.tabs, list(wide.boxes)) == (2, False, list(Pane))
    assert [box.height for box in wide.boxes.values()] == [24, 4, 5, 9]
    narrow = arrange(80, 24, num_instances=64, tab=Pane.EVENTS)
    assert (narrow.header_lines, narrow.tabs) == (1, True)
    assert list(narrow.boxes) == [Pane.INSTANCES, Pane.EVENTS]
    few = arrange(80, 24, num_instances=2, tab=Pane.EVENTS)
    assert [box.height for box in few.boxes.values()] == [4, 18]
    tiny = arrange(40, 8, num_instances=64, tab=Pane.QUEUE, focused=Pane.QUEUE)
    assert list(tiny.boxes) == [Pane.QUEUE]


def active(keymap: dict[str, str], *places: Place) -> dict[str, ActiveBinding]:
    """The bindings of these places as Textual has them in force."""
    found = BindingsMap(actions.bindings(*places))
    found.apply_keymap(keymap)
    return {key: ActiveBinding(DOMNode(), each, True) for key, each in found}


def test_the_footer_keeps_help_and_quit() -> None:
    places = (Place.TABLE, Place.MAIN, Place.ANYWHERE)
    pairs = actions.footer(active({}, *places), places, replay=False)
    assert ("Enter", "detail") in pairs
    for width in (120, 80, 40, 10):
        line = key_line(pairs, width)
        assert text(line).endswith("? help  q quit ")
        assert width_of(line) <= max(width, 16)


def test_the_footer_shows_rebound_keys_and_those_of_a_replay() -> None:
    places = (Place.MAIN, Place.ROWS, Place.ANYWHERE)
    usual = active({}, *places)
    assert ("x", "quit") in actions.footer(active({"quit": "x"}, *places), places, replay=False)
    replayed = actions.footer(usual, places, replay=True)
    assert ("[", "slower") in replayed
    assert ("Space", "pause") in replayed
    assert "tune" not in [word for _, word in replayed], "a recording has no settings"
    assert "tune" in [word for _, word in actions.footer(usual, places, replay=False)]
