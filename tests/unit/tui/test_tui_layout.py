"""The header, the bottom line, and where the panes are placed, without a terminal."""

import re
from dataclasses import replace
from datetime import UTC
from itertools import groupby, product
from pathlib import Path

import pytest
from textual.binding import ActiveBinding, BindingsMap
from textual.dom import DOMNode

from benchmarks import incidents
from controller.api.text import verdict_words
from controller.api.wire.status import ClusterStatus, InstanceState
from controller.api.wire.stream import StatusFrame
from tests.unit.tui.tui_support import after, state_of, text_of
from tools import synthetic_cluster as synthetic
from tui import actions
from tui.actions import Place, Target
from tui.drawing import UNICODE, key_line, width_of
from tui.panes import header
from tui.panes.header import Liveness
from tui.screens.dashboard import Arrangement, Pane, arrange
from tui.state import DashboardState, Lost, Stopped, reduce

ONE = state_of(synthetic.instance("i-0"))


def liveness(state: DashboardState, now_s: float = synthetic.START_S) -> Liveness:
    return Liveness(state, now_s, 1.0, "prod-a", ("READ",), UTC)


def headed(state: DashboardState, width: int, count: int, later_s: float = 0.0) -> list[str]:
    live = liveness(state, synthetic.START_S + later_s)
    return [text_of(line) for line in header.lines(state, live, width, count, UNICODE, alarm=False)]


def test_the_alarm_line_names_the_worst_and_counts_the_others() -> None:
    worst = synthetic.instance("i-6", num_waiting_reqs=61, num_free_blocks=196, ttft_p99_s=166.0)
    others = [synthetic.instance(f"i-{n}", ttft_p99_s=10.0 + n) for n in (9, 8, 7, 5)]
    found = state_of(*others, worst).alarms
    ends = ("+4", " i-9 and 3 more", " i-9, i-8 and 2 more", " i-9, i-8, i-7, i-5")
    for width in range(20, 221, 3):
        shown = text_of(header.alarm_line(found, width, UNICODE))
        assert len(shown) <= width
        assert shown.startswith(" ! i-6: 61 wait")
        assert shown.endswith(ends)


def verdict_of(found: DashboardState, width: int, way: str = "+", later_s: float = 0.0) -> str:
    live = liveness(found, synthetic.START_S + later_s)
    return text_of(header.verdict_line(found, live, way, width, UNICODE))


def test_the_verdict_has_its_cause_and_its_order_at_any_width() -> None:
    """What is expected of the order goes first, then causes from the end, then what
    the order does."""
    found = after(synthetic.overloaded(1))
    whole = (
        " ! OVERLOADED  61 wait on 1 of 16, the longest 112 s, KV 91%, 1.3 times more arrives than"
        " leaves   + adds an instance (serving in 25 s)"
    )
    assert verdict_of(found, 200) == whole
    assert verdict_of(found, 120) == whole.removesuffix(" (serving in 25 s)")
    assert verdict_of(found, 80) == (
        " ! OVERLOADED  61 wait on 1 of 16, the longest 112 s   + adds an instance"
    )
    assert verdict_of(found, 50) == " ! OVERLOADED  61 wait on 1 of 16   +"
    assert verdict_of(found, 80, way="llumctl scale +1") == (
        " ! OVERLOADED  61 wait on 1 of 16   llumctl scale +1 adds an instance"
    )
    for width in range(1, 200):
        shown = verdict_of(found, width)
        assert shown.startswith(" ! OVERLOADED  ")
        assert len(shown) <= max(width, len(" ! OVERLOADED  6"))
    assert verdict_of(found, 120, way="").endswith("than leaves")


def test_what_does_not_show_the_present_is_the_verdict_then() -> None:
    found = after(synthetic.overloaded(1))
    assert verdict_of(found, 80, later_s=12.0) == (
        " ! STALE  no news for 12s; before that OVERLOADED, 61 wait on 1 of 16"
    )
    stopped = reduce(found, [Stopped("stopped by ana", synthetic.START_S)])
    assert verdict_of(stopped, 80) == " ! STOPPED  stopped by ana"
    assert verdict_of(ONE, 80) == "", "an older controller has no verdict"


def test_a_header_has_no_second_verdict() -> None:
    assert "ready" in headed(ONE, 120, 2)[0]
    assert "ready" not in headed(after(synthetic.overloaded(1)), 120, 2)[0]


def test_tall_screens_have_a_line_for_each_of_the_worst_alarms() -> None:
    found = state_of(*(synthetic.instance(f"i-{n}", ttft_p99_s=10.0 + n) for n in range(5))).alarms
    lines = [text_of(line) for line in header.alarm_lines(found, 3, 120, UNICODE)]
    assert lines[0] == " ! i-4: P99 TTFT 14s"
    assert lines[2] == " ! i-2: P99 TTFT 12s  also i-1, i-0"
    assert len(header.alarm_lines(found[:2], 3, 120, UNICODE)) == 2
    assert (
        header.alarm_lines(found, 0, 120, UNICODE) == header.alarm_lines((), 3, 120, UNICODE) == []
    )


def test_the_header_counts_cordoned_instances_apart() -> None:
    """The pictures show moves and replays under way, and that nothing looks well while there is an
    alarm."""
    shut = synthetic.instance("i-1", closed_by=("cordoned",), freeness_steps=9000.0)
    found = headed(state_of(synthetic.instance("i-0"), shut), 150, 2)[1]
    assert "inst 1+1 " in found
    assert "freeness avg 521 " in found


def test_the_figures_of_the_header_are_those_of_the_graphs_and_the_history() -> None:
    """So an instance that hangs counts in none of them."""
    lost = synthetic.instance(
        "i-1", InstanceState.STALLED, num_free_blocks=1000, num_waiting_reqs=9
    )
    status = synthetic.cluster((synthetic.instance("i-0"), lost))
    held = status.model_copy(update={"num_held_reqs": 4})
    state = after([StatusFrame(time_s=status.time_s, status=held)])
    (kept,) = state.past.points
    for width, count in ((150, 2), (80, 1)):
        found = headed(state, width, count)[-1]
        assert "run 12 wait 0 held 4 " in found
        assert f"kv {100 * (kept.kv_held or 0.0):.0f}% " in found


def test_of_the_levels_the_header_leaves_out_the_highest_last() -> None:
    def named(width: int, state: DashboardState, count: int = 2) -> list[str]:
        line = headed(state, width, count)[-1]
        return [name for name in ("high ", "normal ") if f"  {name}" in line]

    found = [named(width, ONE) for width in range(200, 60, -1)]
    assert found[0] == ["high ", "normal "]
    assert [each for each, _ in groupby(found)] == [found[0], ["high "]]
    assert named(80, ONE, 1) == ["high "], "there is room once no moves are counted"
    nothing = {"ttft_p99_s": None, "num_running_reqs": 0, "num_waiting_reqs": 0}
    quiet = [level.model_copy(update=nothing) for level in status_of(ONE).levels]
    update = {"levels": tuple(quiet), "num_migrated_last_minute": 1}
    idle = replace(ONE, status=status_of(ONE).model_copy(update=update))
    assert named(110, idle) == [], "without requests they say nothing"


def status_of(state: DashboardState) -> ClusterStatus:
    assert state.status is not None
    return state.status


def test_the_header_keeps_name_and_liveness_at_any_width() -> None:
    for width in (200, 120, 100, 80, 60, 30, 10, 1):
        for count in (1, 2):
            first = headed(ONE, width, count)[0]
            assert "prod-a" in first
            assert "live 0.0s" in first
            assert len(first) <= max(width, len("prod-a  ● live 0.0s ago  [READ]"))
    assert "! STALE 12s" in headed(ONE, 80, 1, 12)[0]
    lost = reduce(DashboardState(), [Lost("refused", 1.0)])
    assert headed(lost, 80, 1)[0].startswith("prod-a  ! STALE no data")
    assert headed(DashboardState(), 80, 1)[0].startswith("prod-a  + connecting")


# Where the panes are placed


def check_room(found: Arrangement, width: int, height: int) -> None:
    """The boxes are of some size, lie beside or below each other, and fill the terminal."""
    assert found.boxes
    assert all(box.width >= 1 and box.height >= 1 for box in found.boxes.values())
    upper = found.boxes.get(Pane.INSTANCES)
    left = [found.boxes[p] for p in (Pane.MIGRATIONS, Pane.QUEUE) if p in found.boxes]
    right = [found.boxes[Pane.EVENTS]] if Pane.EVENTS in found.boxes else []
    if found.matrix:
        right.append(found.matrix)
        assert not found.tabs
    lower = max(sum(box.height for box in column) for column in (left, right))
    top = found.header_lines + found.verdict_lines + found.alarm_lines + found.graph_lines
    lines = top + (upper.height if upper else 0) + lower + 1
    assert lines <= max(height, 2)
    assert lines == height or height < 5
    assert len({box.width for box in left}) <= 1
    assert sum(box.width + box.gap for box in (*left[:1], *right[:1])) <= width


@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("zoomed", [None, Pane.EVENTS])
@pytest.mark.parametrize(
    "empty", [(), (Pane.QUEUE,), (Pane.MIGRATIONS,), (Pane.QUEUE, Pane.MIGRATIONS)]
)
def test_panes_fit_any_terminal(
    expanded: bool, zoomed: Pane | None, empty: tuple[Pane, ...]
) -> None:
    shown = {"tab": Pane.QUEUE, "zoomed": zoomed, "expanded": expanded, "empty": empty}
    widths = (1, 20, 65, 109, 110, 111, 150, 220, 300)
    heights = (1, 2, 4, 5, 6, 9, 10, 11, *range(12, 71, 6))
    contents = ((0, False, 0), (2, True, 4), (64, False, 18), (64, True, 18))
    for width, height, content in product(widths, heights, contents):
        num_instances, alarm, matrix_lines = content
        found = arrange(
            width,
            height,
            num_instances=num_instances,
            verdict=alarm,
            num_alarms=2 * alarm,
            matrix_lines=matrix_lines,
            **shown,
        )
        check_room(found, width, height)


def test_empty_panes_leave_their_room_to_the_others() -> None:
    def heights(*empty: Pane) -> dict[Pane, int]:
        found = arrange(120, 36, num_instances=4, tab=Pane.QUEUE, empty=empty)
        return {pane: box.height for pane, box in found.boxes.items()}

    idle = heights(Pane.QUEUE)
    assert idle[Pane.QUEUE] == 3
    assert idle[Pane.MIGRATIONS] > heights()[Pane.MIGRATIONS]
    many = arrange(80, 24, num_instances=64, tab=Pane.QUEUE, empty=(Pane.QUEUE,))
    assert [box.height for box in many.boxes.values()] == [19, 3]
    tiny = arrange(40, 8, num_instances=64, tab=Pane.QUEUE, focused=Pane.QUEUE)
    assert list(tiny.boxes) == [Pane.QUEUE]


# The bottom line


def footer(
    *places: Place,
    targets: tuple[Target, ...] = (),
    keymap: dict[str, str] | None = None,
    replay: bool = False,
) -> list[tuple[str, str]]:
    """The keys and words of the bottom line, with the bindings as Textual has them in force."""
    found = BindingsMap(actions.bindings(*places))
    found.apply_keymap(keymap or {})
    active = {key: ActiveBinding(DOMNode(), each, True) for key, each in found}
    return actions.footer(active, places, targets=targets, replay=replay)


def test_the_footer_keeps_help_and_quit_and_shows_rebound_keys_and_those_of_a_replay() -> None:
    pairs = footer(Place.TABLE, Place.MAIN, Place.ANYWHERE)
    for width in (120, 80, 40, 10):
        line = key_line(pairs, width)
        assert text_of(line).endswith("? help  q quit ")
        assert width_of(line) <= max(width, 16)
    places = (Place.MAIN, Place.ROWS, Place.ANYWHERE)
    assert ("x", "quit") in footer(*places, keymap={"quit": "x"})
    assert ("u", "undo") not in footer(*places)
    about_an_event = (Target("i-3", operation_id="op-1"),)
    words = dict(footer(*places, targets=about_an_event))
    assert words["u"] == "undo"
    assert not {"d", "r", "p", "x"} & words.keys(), "its instance is only mentioned"
    replayed = footer(*places, targets=(Target("i-3"),), replay=True)
    assert "mark" not in dict(replayed).values()
    assert {("[", "slower"), ("Space", "pause")} <= set(replayed)
    assert "tune" not in [word for _, word in replayed], "a recording has no settings"


# Twelve made-up incidents: the lines under the header say what happened, and why


@pytest.mark.parametrize("name", incidents.INCIDENTS)
def test_verdict_and_alarm_stand_there_as_the_document_shows_them(name: str) -> None:
    page = (Path(incidents.__file__).parents[1] / "docs" / "incidents.md").read_text("utf-8")
    found = after(incidents.frames(name, incidents.SHOWN_S))
    assert found.status is not None
    assert found.status.verdict is not None
    word = verdict_words.verdict_word(found.status.verdict)
    (screen,) = re.findall(rf"<!-- screen: {name} -->\n```\n(.*?)```", page, re.DOTALL)
    lines = screen.splitlines()
    assert lines[2][3:].startswith(f"{word}  "), "`make pictures` takes new screens"
    if found.alarms:
        assert lines[3] == text_of(header.alarm_line(found.alarms, 120, UNICODE)).rstrip()
