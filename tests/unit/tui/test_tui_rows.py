"""Rows and columns of the panes, without a terminal."""

from collections.abc import Sequence
from datetime import UTC
from typing import Any

import pytest

from controller.api.text.events import matches
from controller.api.wire.requests import Event, RequestList, RequestState
from controller.api.wire.status import (
    ClusterStatus,
    HeldPlaceStatus,
    InstanceState,
    InstanceStatus,
    MoveStatus,
    QueueHeadStatus,
)
from controller.api.wire.stream import EventFrame
from tests.unit.tui.tui_support import after, state_of, text_of
from tools import synthetic_cluster as synthetic
from tui import drawing
from tui.actions import Target
from tui.drawing import ASCII, UNICODE, Column
from tui.panes import events, instances, migrations, requests
from tui.panes.instances import InstanceRow, facts
from tui.panes.requests import Names, RequestRow
from tui.state import DashboardState

NO_NAMES = Names("…")


def words(columns: Sequence[Column[Any]], row: Any, width: int = 120) -> list[str]:
    """The text of each column in turn."""
    placed = drawing.place(columns, width)
    return [span.text.strip() for _, span in drawing.cells(placed, row, UNICODE)]


def cells_of(row: InstanceRow) -> dict[str, str]:
    placed = drawing.place(instances.columns(status_of(row.item), 120), 120)
    shown = drawing.cells(placed, row, UNICODE, instances.note(row))
    found = {
        p.column.name: [span.text for x, span in shown if p.x <= x <= p.x + p.width] for p in placed
    }
    return {name: "".join(pieces).strip() for name, pieces in found.items() if pieces}


def head(waited_s: float = 52.0, **fields: Any) -> QueueHeadStatus:
    known = {"request_id": "r8c10", "level": "high", "demand_blocks": 118, "evicted": False}
    return QueueHeadStatus(waited_s=waited_s, **(known | fields))


FULL = {
    "freeness_steps": -196.0,
    "virtual_usage_blocks": 1198,
    "kv_cache_usage": 0.98,
    "num_running_by_level": {"normal": 38, "high": 3},
    "headroom_blocks": 151,
}
UNKNOWN = dict.fromkeys(("num_running_reqs", "freeness_steps", "kv_cache_usage"))


CELLS = {
    "busy": (
        FULL,
        {
            "id": "! i-3",
            "kv": "████████▉  98 +23%",
            "level.high": "3+0      -",
            "headroom": "151/1000",
        },
    ),
    "kept free for a high priority is reserved and not in trouble": (
        FULL | {"headroom_blocks": 751},
        {"id": "i-3", "state": "reserved", "freeness": "-196"},
    ),
    "starved, it shows how long its head has waited": (
        {"ttft_p99_s": None, "queue_head": head()},
        {"ttft": ">52s"},
    ),
    "an evicted head has its first token already": (
        {"ttft_p99_s": None, "queue_head": head(evicted=True)},
        {"ttft": "-"},
    ),
    "draining, it has none left": (
        {"state": InstanceState.DRAINING, "virtual_usage_blocks": None},
        {"id": "> i-3", "freeness": "-inf", "kv": "█████▒▒▒▒  55%"},
    ),
    "without figures, it says what it does": (
        {"state": InstanceState.STARTING, "detail": "loading weights 61%", **UNKNOWN},
        {"id": "+ i-3", "state": "starting", "freeness": "loading weights 61%"},
    ),
    "stalled": ({"state": InstanceState.STALLED}, {"id": "! i-3"}),
    "cordoned": ({"closed_by": ("cordoned",)}, {"id": "i-3", "state": "cordoned"}),
}


@pytest.mark.parametrize(("fields", "cells"), CELLS.values(), ids=CELLS)
def test_cells_of_an_instance(fields: dict[str, Any], cells: dict[str, str]) -> None:
    (row,) = instances.rows(state_of(synthetic.instance("i-3", **fields)), UNICODE)
    found = cells_of(row)
    assert {name: found.get(name) for name in cells} == cells
    if UNKNOWN.items() <= fields.items():
        assert found == cells, "the note stands in place of the other cells"


def shown_at(width: int, status: ClusterStatus) -> set[str]:
    """The columns of instances that have room."""
    placed = drawing.place(instances.columns(status, width), width)
    assert all(p.x + p.width <= width for p in placed)
    return {p.column.name for p in placed}


def status_of(*items: InstanceStatus, **fields: Any) -> ClusterStatus:
    """A status with these instances and fields. Both levels have had requests of late."""
    return synthetic.cluster(items).model_copy(update=fields)


BUSY = status_of(synthetic.instance(**FULL), num_migrated_last_minute=3)
QUIET = status_of(synthetic.instance(headroom_blocks=0))
LEVELS_OF = {level.name: level for level in BUSY.levels}
EIGHTY = {"id", "state", "freeness", "trend", "kv", "run", "wait", "ttft"}


def test_columns_fit_any_width_and_eighty_keep_what_matters() -> None:
    for width in (0, 1, 12, 40, 60, 100, 110):
        shown_at(width, BUSY)
    for status in (BUSY, QUIET):
        assert shown_at(80, status) == EIGHTY
        assert not {"heat", "level.normal", "moves", "headroom"} - shown_at(200, status)


def test_of_the_levels_the_highest_goes_last_and_first_what_repeats_the_total() -> None:
    assert "level.high" in shown_at(100, BUSY)
    assert shown_at(120, BUSY) == EIGHTY | {"level.high", "moves", "headroom"}
    assert "level.normal" in shown_at(150, BUSY)
    nothing = {"ttft_p99_s": None, "num_running_reqs": 0, "num_waiting_reqs": 0}
    idle = LEVELS_OF["high"].model_copy(update=nothing)
    alone = BUSY.model_copy(update={"levels": (LEVELS_OF["normal"], idle)})
    assert {"moves", "headroom", "up"} <= shown_at(120, alone)
    assert {"level.high", "level.normal"} <= shown_at(200, alone), "there is room for them"


def test_what_is_zero_everywhere_makes_room() -> None:
    assert {"moves", "headroom"}.isdisjoint(shown_at(120, QUIET))
    assert {"level.high", "level.normal"} <= shown_at(120, QUIET)


def test_many_levels_are_counted_in_one_column_unless_all_have_room() -> None:
    levels = tuple(
        LEVELS_OF["high"].model_copy(update={"name": f"level-{n}", "rank": n}) for n in range(4)
    )
    many = BUSY.model_copy(update={"levels": levels})
    assert "levels" in shown_at(150, many)
    assert "levels" not in shown_at(250, many)


def test_blocks_kept_by_level_are_shown_if_several_levels_keep_some() -> None:
    both = synthetic.instance(headroom_by_level_blocks={"high": 90, "normal": 10})
    assert {"kept.high", "kept.normal"} <= shown_at(230, status_of(both))
    one = synthetic.instance(headroom_by_level_blocks={"high": 90})
    assert "kept.high" not in shown_at(230, status_of(one)), "HEADROOM says it"


@pytest.mark.parametrize(
    ("levels", "shown"),
    [
        (("high", "hot", "normal"), "Hi1 Ho0 N2"),
        (("normal",), "N2 H1"),
        (("high", "higher", "normal"), "High1 Highe0 N2"),
    ],
)
def test_levels_are_named_as_shortly_as_can_be(levels: tuple[str, ...], shown: str) -> None:
    item = synthetic.instance(num_running_by_level={"normal": 2, "high": 1})
    assert instances.running_by_level(item, levels) == shown


def ordered(column: str, *found: InstanceStatus, descending: bool, **more: Any) -> list[str]:
    rows = instances.rows(state_of(*found), UNICODE, **more)
    return [row.id for row in instances.ordered(rows, column, descending=descending)]


MIXED = [
    synthetic.instance("i-10", freeness_steps=5.0),
    synthetic.instance("i-2", freeness_steps=5.0),
    synthetic.instance("i-3", freeness_steps=None),
    synthetic.instance("i-4", InstanceState.DRAINING, freeness_steps=None),
    synthetic.instance("i-5", freeness_steps=-1.0),
]
TROUBLED = [
    synthetic.instance("i-6", InstanceState.STARTING, freeness_steps=None),
    synthetic.instance("i-7", InstanceState.STALLED, freeness_steps=9000.0),
    synthetic.instance("i-8", InstanceState.FAILED, freeness_steps=None),
    synthetic.instance("i-9", InstanceState.RESTARTING, freeness_steps=None),
]


@pytest.mark.parametrize(
    ("column", "descending", "found", "ids"),
    [
        ("freeness", False, MIXED, "i-4 i-5 i-2 i-10 i-3"),
        ("freeness", True, MIXED, "i-2 i-10 i-5 i-4 i-3"),
        ("id", True, MIXED, "i-10 i-5 i-4 i-3 i-2"),
        ("freeness", False, [MIXED[4], MIXED[3], *TROUBLED], "i-8 i-7 i-9 i-4 i-5 i-6"),
    ],
    ids=["unknown is last", "either way", "by number", "what cannot serve comes first"],
)
def test_orders(column: str, descending: bool, found: list[InstanceStatus], ids: str) -> None:
    assert ordered(column, *found, descending=descending) == ids.split()


def test_an_instance_that_an_alarm_is_about_comes_first_and_a_reserved_one_behind() -> None:
    fine = [synthetic.instance("i-1", freeness_steps=43.0), synthetic.instance("i-2")]
    assert ordered("freeness", *fine, descending=False, alarmed={"i-2"}) == ["i-2", "i-1"]
    kept = synthetic.instance("i-3", **(FULL | {"headroom_blocks": 751}))
    starved = synthetic.instance("i-4", freeness_steps=-3.0, virtual_usage_blocks=995)
    assert ordered("freeness", kept, starved, descending=False) == ["i-4", "i-3"]


def test_every_column_sorts() -> None:
    rows = instances.rows(after(synthetic.frames(3)), UNICODE)
    for column in instances.SORTS:
        found = instances.ordered(rows, column, descending=False)
        assert sorted(row.id for row in found) == sorted(row.id for row in rows)
        values = [instances.SORTS[column](row) for row in found]
        known = [value for value in values if value is not None]
        assert values[: len(known)] == known == sorted(known), column


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [("", True), ("i-3", True), ("STALLED", True), ("i-3 stalled", True), ("!active", True),
     ("active", False), ("!stalled", False), ("stalled i-4", False), ("!", False),
     ("!astalled", True)],
)  # fmt: skip
def test_filters(wanted: str, fits: bool) -> None:
    assert matches("i-3 stalled 10.0.0.11", wanted) is fits


# Queue heads


def test_queue_heads_say_what_they_need_and_why_they_wait() -> None:
    evicted = head(3.2, why="fragmented", evicted=True, evicted_for_s=3.2)
    state = state_of(
        synthetic.instance("i-1", queue_head=head(1.0)),
        synthetic.instance("i-2"),
        synthetic.instance("i-3", num_free_blocks=14, queue_head=evicted),
    )
    rows = requests.head_rows(state, NO_NAMES)
    assert [row.id for row in rows] == ["i-3", "i-1"]
    found = ["i-3", "r8c10", "high", "3.2s", "118", "4", "fragmented (evicted)"]
    assert words(requests.HEAD_COLUMNS, rows[0], 90) == found
    assert words(requests.HEAD_COLUMNS, rows[0], 58)[-1] == "fragmented"


def test_the_queue_at_the_controller_is_a_row_that_opens_its_first_request() -> None:
    """The pictures `held` show what stands in the row, and at the instances kept free."""
    state = after(list(synthetic.late_binding(1))[-1:])
    head_row, *others = requests.head_rows(state, NO_NAMES)
    assert (head_row.id, head_row.target, others) == ("held", Target("", "r9001c9"), [])
    held = {"held": HeldPlaceStatus(place=3, why="memory")}
    item = synthetic.requests("", 1).requests[0].model_copy(update=held)
    (row,) = requests.rows(RequestList(requests=(item,), num_matching=1), NO_NAMES)
    assert "held 3" in words(requests.COLUMNS, row)
    last = text_of(facts(state, "i-9", 120, ASCII)[-1])
    assert last == " kept for    r9001c9  high  waited 31s  needs 360 blk, 172 lack"


# Lists of requests


def request_row(moves_to: str = "", **fields: Any) -> RequestRow:
    item = synthetic.requests("i-3", 3).requests[0].model_copy(update=fields)
    move = MoveStatus(
        migration_id="m-1",
        request_id=item.id,
        from_instance_id="i-3",
        to_instance_id=moves_to,
        state="copying",
        stage=1,
        num_blocks_copied=3,
        num_blocks=35,
        age_s=0.2,
    )
    status = status_of(moves=(move,) if moves_to else ())
    (row,) = requests.rows(RequestList(requests=(item,), num_matching=1), NO_NAMES, status)
    return row


@pytest.mark.parametrize(
    ("fields", "phase"),
    [
        ({}, "decode"),
        ({"num_output_tokens": 0}, "prefill"),
        ({"moves_to": "i-12"}, "moving>i-12"),
        ({"state": RequestState.WAITING}, "queued"),
        ({"state": RequestState.EVICTED, "moves_to": "i-12"}, "evicted"),
        ({"state": RequestState.DISPATCHING}, "dispatching"),
        ({"held": HeldPlaceStatus(place=3, why="memory")}, "held 3"),
        ({"state": RequestState.FINISHED}, "finished"),
    ],
)
def test_phases_of_a_request(fields: dict[str, Any], phase: str) -> None:
    row = request_row(**fields)
    assert phase in words(requests.COLUMNS, row)
    assert phase in row.text, "a filter finds it"


def test_a_request_says_where_it_is_how_fast_it_goes_and_when_it_last_went() -> None:
    row = request_row(num_output_tokens=101, age_s=12.0, ttft_s=1.0, last_token_age_s=6.0)
    found = words(requests.COLUMNS, row, 120)
    assert found[2] == "i-3"
    assert found[8:12] == ["35", "20", "6.0s", "0"], "blocks, tokens per second, the last token"
    assert "i-3" not in words(requests.COLUMNS_OF_AN_INSTANCE, row)
    assert request_row(num_output_tokens=1).tokens_per_s is None
    slow = request_row(num_output_tokens=3, age_s=2.0, ttft_s=1.0, last_token_age_s=None)
    assert "2.0" in words(requests.COLUMNS, slow)


def test_a_grid_has_a_cell_for_each_request_or_each_phase_its_share() -> None:
    many = [request_row() for _ in range(30)] + [request_row(state=RequestState.WAITING)] * 10
    legend, *lines = requests.phases(many, 21, 2)
    assert text_of(legend) == " Q 10 queued  D 30 decode "
    assert [text_of(line) for line in lines] == [" " + "D" * 20, " " + "D" * 10 + "Q" * 10]
    _, line = requests.phases(many, 21, 1)
    assert text_of(line) == " " + "Q" * 5 + "D" * 15


def test_every_order_of_requests_sorts() -> None:
    found = requests.rows(synthetic.requests("i-3", 5), NO_NAMES)
    for sort in requests.SORTS:
        assert {row.id for row in requests.ordered(found, sort, descending=True)} == {
            row.id for row in found
        }


# Events


def heard_of(*found: tuple[str, float, str | None]) -> DashboardState:
    known = {"cause_id": "c", "instance_id": "i-3"}
    return after(
        EventFrame(time_s=at_s, event=Event(kind=kind, time_s=at_s, request_id=request_id, **known))
        for kind, at_s, request_id in found
    )


def test_whom_events_are_about() -> None:
    for kind, word, who in (
        ("instance_died", "died", "i-3"),
        ("frontend_started", "started", "f-0"),
        ("controller_started", "started", "controller"),
        ("something_new", "something new", "i-3"),
        ("migration_failed", "not moved", "i-3"),
    ):
        found = Event(kind=kind, time_s=1.0, cause_id="c", instance_id="i-3", frontend_id="f-0")
        assert (events.word(found), events.who(found)) == (word, who)
    found = Event(kind="operator", time_s=1.0, cause_id="op-1", reason="stop", actor="ana@head")
    assert events.what(found) == "stop  by ana@head"


def test_routine_events_are_lines_only_where_all_are_wanted_and_many_are_one() -> None:
    failed = [("failed", at_s, f"r{at_s}") for at_s in (1.0, 1.1, 1.9, 11.5)]
    state = heard_of(
        ("dispatched", 0.5, "r1"),
        *failed,
        ("operator", 12.1, None),
        ("operator", 12.2, None),
        ("finished", 13.0, "r9"),
    )
    rows = events.rows(state, UTC, NO_NAMES, routine=False)
    assert [row.sum and row.sum.count for row in rows] == [3, None, None, None]
    assert [words(events.COLUMNS, row, 60)[3] for row in rows[:2]] == ["3 in 1 s", "r11.5"]
    assert rows[0].target == Target("i-3", other="i-3"), "several requests: none is meant"
    assert len(events.rows(state, UTC, NO_NAMES, routine=True)) == 8


def test_a_storm_of_routine_trouble_is_a_line_and_one_of_it_is_none() -> None:
    evicted = [("evicted", 1.0 + at / 4, f"r{at}") for at in range(9)]
    alone = [("evicted", 30.0, "r1"), ("evicted", 31.0, "r2")]
    state = heard_of(("instance_died", 0.5, None), *evicted, ("operator", 5.0, None), *alone)
    rows = events.rows(state, UTC, NO_NAMES, routine=False)
    assert [words(events.COLUMNS, row, 60)[1:] for row in rows] == [
        ["died", "i-3", ""],
        ["evicted", "i-3", "9 in 2 s"],
        ["operator", "i-3", ""],
    ]


def test_what_the_controller_found_comes_before_what_is_known_here_and_once() -> None:
    def found(number: int) -> Event:
        place = {"position": f"a-{number}", "instance_id": "i-3", "request_id": f"r{number}"}
        return Event(kind="evicted", time_s=float(number), cause_id="c", **place)  # type: ignore[arg-type]

    state = after(EventFrame(time_s=9.0, event=found(number)) for number in (3, 4))
    older = [found(number) for number in (1, 2, 3)]
    rows = events.rows(state, UTC, NO_NAMES, routine=True, older=older)
    assert [row.id for row in rows] == ["a-1", "a-2", "a-3", "a-4"]


# Moves


def test_evacuations_and_replays_stand_before_moves() -> None:
    """The pictures `live` and `nodes` show what stands in the rows."""
    state = after(list(synthetic.on_four_nodes(1))[-1:])
    found = migrations.rows(state, NO_NAMES)
    assert len({row.id for row in found}) == len(found)
    first = [Target("i-1"), Target("i-9", "r9c0"), Target("i-4", "r9c1")]
    assert [row.target for row in found][:3] == first
    moves = [row.target.instance_id for row in found if row.id.startswith("m-")]
    assert moves == ["i-3", "i-3", "i-0", "i-1", "i-3", "i-1"], "those under way come first"


MOVED = {"kind": "migrated", "cause_id": "m"}


def test_who_moves_where() -> None:
    ways = [(1.0, "i-9", "i-2"), (62.0, "i-10", "i-2"), *[(63.0, "i-2", "i-10")] * 12]
    state = after(
        EventFrame(time_s=at_s, event=Event(time_s=at_s, labels={"from": one, "to": to}, **MOVED))
        for at_s, one, to in ways
    )
    found = [text_of(line).rstrip() for line in migrations.matrix_lines(state, 40, 10, UNICODE)]
    assert found == [
        "─ Who moves where (13 in the last minute)",
        " FROM      >i-2 >i-10",
        " i-2               12",
        " i-10         1",
    ]
    assert migrations.num_matrix_lines(state) == 2
    assert migrations.num_matrix_lines(DashboardState()) == 0
    busiest = migrations.matrix_lines(state, 40, 3, UNICODE)[2:]
    assert [text_of(line).split()[0] for line in busiest] == ["i-2"]


# Instances on several machines: a line for each node


def at(id_: str, node: str, freeness_steps: float = 500.0, **fields: object) -> InstanceStatus:
    return synthetic.instance(id_, node=node, freeness_steps=freeness_steps, **fields)


def gone(id_: str, node: str) -> InstanceStatus:
    return InstanceStatus(id=id_, state=InstanceState.RESTARTING, incarnation=1, node=node)


def starting(id_: str) -> InstanceStatus:
    return InstanceStatus(id=id_, state=InstanceState.STARTING, incarnation=0)


CLOSED, COOLING = {"closed_by": ("cordoned", "cooling")}, {"closed_by": ("cooling",)}
B = "b: 1 instance  freeness 500  run 12 wait 0  kv 56%"
LOST = "! c lost with 2 instances: i-1 i-2"


NODES = {
    "on one node nothing is grouped": (
        [at("i-0", "a"), at("i-1", "a", 600.0), starting("i-2")],
        ["i-0", "i-1", "i-2"],
    ),
    "groups stand in the order of their first instance": (
        [
            at("i-0", "a"),
            at("i-1", "b", 7.0, num_waiting_reqs=3),
            at("i-2", "a", 90.0),
            at("i-3", "b", 800.0, state=InstanceState.STALLED),
            starting("i-4"),
        ],
        [
            "b: 2 instances, 1 stalled  freeness 7  run 12 wait 3  kv 56%",
            *("i-3", "i-1"),
            "a: 2 instances  freeness 590  run 24 wait 0  kv 56%",
            *("i-2", "i-0"),
            "no machine yet: 1 instance, 1 starting",
            "i-4",
        ],
    ),
    "cordoned instances are named and their room is not counted": (
        [
            at("i-0", "a", 90.0, closed_by=("cooling",)),
            at("i-1", "a", 91.0, **CLOSED),
            at("i-3", "b"),
        ],
        ["a: 2 instances, 1 cordoned  freeness 90  run 24 wait 0  kv 56%", "i-0", "i-1", B, "i-3"],
    ),
    "a lost node is one line": (
        [at("i-3", "b"), gone("i-1", "c"), gone("i-2", "c")],
        [LOST, B, "i-3"],
    ),
    "a node with one instance that is gone may be there": (
        [at("i-3", "b"), gone("i-1", "c")],
        ["c: 1 instance, 1 restarting  freeness -  run 0 wait 0  kv -", "i-1", B, "i-3"],
    ),
}


@pytest.mark.parametrize(("found", "lines"), NODES.values(), ids=NODES)
def test_lines_of_nodes(found: list[InstanceStatus], lines: list[str]) -> None:
    shown = grouped(*found, filtered=False)
    assert shown == lines
    assert len(shown) == instances.num_lines(state_of(*found).status)
    if LOST in lines:
        filtered = grouped(*found, filtered=True)
        assert filtered[:3] == [LOST, "i-1", "i-2"], "a filter shows its instances"


def grouped(*found: InstanceStatus, filtered: bool) -> list[str]:
    state = state_of(*found)
    rows = instances.ordered(instances.rows(state, UNICODE), "freeness", descending=False)
    return [
        instances.node_line(row) if isinstance(row, instances.NodeRow) else row.id
        for row in instances.grouped(rows, state.status, filtered=filtered)
    ]
