"""The header, the bottom line, and where the panes are placed, without a terminal."""

from dataclasses import replace
from datetime import UTC
from itertools import groupby, product
from pathlib import Path

import pytest
from textual.binding import ActiveBinding, BindingsMap
from textual.dom import DOMNode

from benchmarks import incidents
from controller.api.wire.status import ClusterStatus
from tests.unit.tui.tui_support import after, state_of, text_of
from tools import synthetic_cluster as synthetic
from tui import actions
from tui.actions import Place, Target
from tui.drawing import UNICODE, key_line, width_of
from tui.panes import header
from tui.panes.header import Liveness
from tui.screens.dashboard import Arrangement, Pane, arrange
from tui.state import DashboardState, Lost, reduce

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


def test_the_header_counts_cordoned_instances_apart() -> None:
    """The pictures show moves and replays under way, and that nothing looks well while there is an
    alarm."""
    shut = synthetic.instance("i-1", closed_by=("cordoned",), freeness_steps=9000.0)
    found = headed(state_of(synthetic.instance("i-0"), shut), 150, 2)[1]
    assert "inst 1+1 " in found
    assert "freeness avg 521 " in found


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
    lines = found.header_lines + found.alarm_lines + (upper.height if upper else 0) + lower + 1
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
            alarm=alarm,
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


# Six made-up incidents: the line under the header says what happened, and why


@pytest.mark.parametrize("name", incidents.INCIDENTS)
def test_its_cause_stands_on_the_alarm_line_as_the_document_shows_it(name: str) -> None:
    page = Path(incidents.__file__).parents[1] / "docs" / "incidents.md"
    found = after(incidents.frames(name, incidents.SHOWN_S)).alarms
    alarm = text_of(header.alarm_line(found, 120, UNICODE)).rstrip()
    assert alarm in page.read_text("utf-8"), "`make pictures` takes new screens"
