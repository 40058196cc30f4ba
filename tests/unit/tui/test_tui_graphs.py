"""Graphs, heat and the list of alarms."""

from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.settings.settings import ConsoleTable
from controller.api.wire.status import VerdictOrder
from tests.unit.tui.tui_support import (
    NARROW,
    Bed,
    after,
    keys_of,
    presses,
    state_of,
    text_of,
    watching,
)
from tools import synthetic_cluster as synthetic
from tui import drawing, plotting
from tui.drawing import ASCII, UNICODE, Glyphs, Tone
from tui.panes import graphs, heat
from tui.panes.graphs import GRAPHS
from tui.plotting import Curve
from tui.screens.cluster_views import AlarmScreen, GraphScreen, HeatScreen
from tui.screens.details import InstanceScreen
from tui.session import PAST_EVERY_S
from tui.state import DashboardState, HistoryArrived, reduce


def graphed(seconds: int = 300) -> DashboardState:
    history = synthetic.history(seconds)
    return reduce(after(synthetic.overloaded(1)), [HistoryArrived((history,), 0.0)])


def plotted(*curves: Curve, glyphs: Glyphs = UNICODE, width: int = 8, height: int = 2) -> list[str]:
    scale = plotting.linear([4.0], drawing.number, 4.0)
    return [text_of(line) for line in plotting.plot(curves, scale, width, height, glyphs)]


def test_curves_are_dots_and_their_keys_stand_behind_their_last_values() -> None:
    rising = Curve("r", Tone.CURVE_1, (0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 4.0, 4.0))
    assert plotted(rising) == ["  ⡜⠉r   ", "⣀⠜      "]
    assert plotted(rising, glyphs=ASCII) == ["    r   ", "rrrr    "]
    flat = Curve("f", Tone.CURVE_2, (None, None, *(1.0,) * 4, None, None))
    assert plotted(flat) == ["        ", " ⠤⠤ f   "]


def test_keys_of_equal_values_stand_side_by_side() -> None:
    """On another line, a key would say another value."""
    same = [Curve(key, Tone.CURVE_1, (2.0,) * 8) for key in "abcde"]
    assert [line[-plotting.KEY_WIDTH :].strip() for line in plotted(*same, height=2)] == [
        "",
        "abcd",
    ]


@given(
    st.lists(st.none() | st.floats(0.0, 1e9), max_size=80),
    st.integers(0, 30),
    st.integers(1, 12),
    st.sampled_from((ASCII, UNICODE)),
)
def test_any_plot_has_its_size(
    values: list[float | None], width: int, height: int, glyphs: Glyphs
) -> None:
    for scale in (
        plotting.linear(values, drawing.number, 4.0),
        plotting.logarithmic(values, drawing.number, 0.1, 10.0),
    ):
        assert scale.high >= max([each or 0.0 for each in values], default=0.0) * 0.999
        lines = plotting.plot(
            [Curve("a", Tone.CURVE_1, tuple(values))], scale, width, height, glyphs, 5.0
        )
        assert [drawing.width_of(line) for line in lines] == [width] * height
        assert len(plotting.labels(scale, height)) == height


def test_a_logarithmic_scale_tells_small_from_large() -> None:
    scale = plotting.logarithmic([0.2, 30.0], drawing.number, 0.1, 10.0)
    assert scale.ticks == pytest.approx((0.1, 1.0, 10.0, 100.0))
    assert scale.height(0.0) == 0.0
    assert scale.height(1.0) == pytest.approx(1 / 3)
    assert plotting.labels(scale, 4)[0] == "100"


def test_points_are_in_all_slots_that_they_touch() -> None:
    spans = [(0.0, 1.0), (1.0, 2.0), (2.0, 12.0)]
    assert plotting.slots(spans, 12.0, 4.0, 3) == [(0, 3), (2, 3), (2, 3)]
    assert plotting.slots(spans, 2.0, 0.5, 4) == [(0, 1), (0, 1), (1, 2), (1, 2)]
    assert plotting.slots(spans, 40.0, 4.0, 2) == [(3, 3), (3, 3)]
    assert plotting.slots((), 40.0, 4.0, 1) == [(0, 0)]


@pytest.mark.parametrize("glyphs", [ASCII, UNICODE])
@pytest.mark.parametrize("state", [DashboardState(), state_of(), graphed(), graphed(1)])
def test_graphs_have_their_size_at_any_width(state: DashboardState, glyphs: Glyphs) -> None:
    for width in (3, 40, 119, 120, 200, 301):
        lines = graphs.strip(state, 300.0, width, glyphs)
        assert len(lines) == graphs.STRIP_LINES
        assert all(drawing.width_of(line) <= max(width, 40) for line in lines)
        for graph in GRAPHS:
            for height in (1, 4, 20):
                found = graphs.large(graph, state, 60.0, width, height, glyphs, UTC)
                assert len(found) <= height


def test_the_strip_says_its_figures_in_the_tone_of_their_severity() -> None:
    title = graphs.strip(graphed(), 300.0, 200, UNICODE)[0]
    assert text_of(title).startswith("─ run H14 N126 wait h3 n26 ─")
    assert "─ KV held #69% wanted =103% ─" in text_of(title)
    assert "─ P99 TTFT H1.2s N10s ─" in text_of(title)
    tones = {span.text: span.tone for span in title}
    assert tones["10s"] is Tone.BAD
    assert tones["1.2s"] is Tone.PLAIN
    assert "alarm 10s" in text_of(graphs.large(GRAPHS[2], graphed(), 60.0, 80, 20, UNICODE, UTC)[0])


def test_a_wide_graph_has_its_scale_and_times_of_day() -> None:
    found = [
        text_of(line) for line in graphs.large(GRAPHS[0], graphed(), 300.0, 120, 20, UNICODE, UTC)
    ]
    assert found[0].startswith("  H high running 1")
    assert found[1].startswith("    160 ")
    assert found[-3].startswith("      0 ")
    assert found[-1].split() == ["11:56:00", "11:57:00", "11:58:00", "11:59:00"]
    assert found[-2].index("+") - found[-1].index("11:56:00") == 4
    narrow = text_of(graphs.large(GRAPHS[0], graphed(), 300.0, 60, 20, UNICODE, UTC)[0])
    assert narrow.startswith("  run H")


# Heat


def cells(state: DashboardState, place: int, width: int, height: int) -> list[str]:
    found = heat.lines(state, heat.HEATS[place], {"i-1"}, width, height, UNICODE)
    return [text_of(line) for line in found]


def test_a_cell_has_its_figure_and_a_mark_for_trouble() -> None:
    state = state_of(
        synthetic.instance("i-0", freeness_steps=-5.0, kv_cache_usage=0.99, ttft_p99_s=6.0),
        synthetic.instance("i-1"),
    )
    assert cells(state, 0, 80, 5)[0].split() == ["i-0", "█", "-5", "!i-1", "▃", "521"]
    assert cells(state, 1, 80, 5)[0].split() == ["i-0", "█", "99%", "!i-1", "▅", "55%"]
    assert cells(state, 2, 80, 5)[0].split() == ["i-0", "▅", "6.0s", "!i-1", "▂", "800ms"]
    tones = {s.text: s.tone for s in heat.lines(state, heat.HEATS[1], (), 80, 5, UNICODE)[0]}
    assert tones["█  99%"] is Tone.BAD
    assert tones["▅  55%"] is Tone.PLAIN


def test_cells_stand_by_node_and_shrink_to_glyphs() -> None:
    nodes = after(synthetic.on_four_nodes(1))
    shown = cells(nodes, 1, 80, 20)
    assert shown[0].strip().startswith("no machine yet") or ": " in shown[0]
    many = state_of(*(synthetic.instance(f"i-{n}") for n in range(256)))
    assert len(cells(many, 1, 80, 60)) == 52
    small = cells(many, 1, 80, 20)
    assert small[0].count("▅") == 77
    assert small[0].count("!") == 1
    assert sum(len(line) - 1 for line in small) == 256
    assert "lines more" in cells(many, 1, 80, 2)[-1]


def test_a_figure_stands_out_from_half_of_its_limit_on() -> None:
    limits = ConsoleTable()
    assert [drawing.severity(each, 10.0) for each in (None, 4.9, 5.0, 10.0)] == [
        Tone.PLAIN,
        Tone.PLAIN,
        Tone.WARN,
        Tone.BAD,
    ]
    assert drawing.severity(99.0, 0.0) is Tone.PLAIN, "the alarm is switched off"
    assert [drawing.fullness(each) for each in (None, 0.5, 0.9, 0.98)] == [
        Tone.PLAIN,
        Tone.PLAIN,
        Tone.WARN,
        Tone.BAD,
    ]
    assert limits.alarm_ttft_p99_s == 10.0


# Screens and keys


@presses("graphs")
@presses("graph_span", "span")
async def test_graphs_on_the_whole_screen(watched: Bed, key: str, span: str) -> None:
    watched.source.history = (synthetic.history(300),)
    await watched.press(key)
    assert isinstance(watched.app.screen, GraphScreen)
    await watched.sees("Requests that run and wait, 5 min", "high running")
    for minutes in (15, 1, 5):
        await watched.press(span)
        await watched.sees(f"{minutes} min")
    (forward,), (backward,) = keys_of("pane_next"), keys_of("pane_previous")
    await watched.press(forward)
    await watched.sees("KV memory", "# held")
    await watched.press(backward, backward)
    await watched.sees("Moves and evictions")
    await watched.wait(PAST_EVERY_S)
    await watched.press(key, "slash")
    assert "filter" not in await watched.bottom()
    await watched.press("escape")
    assert watched.table().has_focus


@presses("heat")
@presses("alarms", "alarms")
@pytest.mark.parametrize("size", [NARROW, (200, 60)])
async def test_views_lead_to_each_other_and_back(
    key: str, alarms: str, size: tuple[int, int]
) -> None:
    async with watching(synthetic.overloaded(3), size) as bed:
        await bed.press(key)
        assert isinstance(bed.app.screen, HeatScreen)
        await bed.sees("Heat: freeness", "!i-6")
        await bed.press("tab")
        await bed.sees("Heat: KV")
        await bed.press(alarms)
        assert isinstance(bed.app.screen, AlarmScreen)
        await bed.sees("1 raised, 2 ended", "! raised", "1m52s", "39s", "9 moves failed")
        await bed.press("S")
        rows = [line for line in await bed.lines() if "ended   " in line or "! raised" in line]
        assert "! raised" in rows[-1]
        await bed.press("S", "enter")
        assert isinstance(bed.app.screen, InstanceScreen)
        await bed.press("escape", "escape")
        assert bed.table().has_focus
        await bed.type("colon", "heat")
        await bed.type("colon", "graphs")
        assert isinstance(bed.app.screen, GraphScreen)
        await bed.type("colon", "alarms")
        assert isinstance(bed.app.screen, AlarmScreen)


async def test_without_a_list_the_alarms_are_those_of_this_dashboard(watched: Bed) -> None:
    await watched.tick(i_3={"ttft_p99_s": 30.0})
    await watched.press("6")
    await watched.sees("! raised  -", "i-3", "P99 TTFT 30s")


WAYS = {
    "add": ("+", "llumctl scale +1"),
    "restart": ("r on i-3", "llumctl restart i-3 --now"),
    "drain": ("d on i-3", "llumctl drain i-3"),
    "look": ("Enter on i-3", "Enter on i-3"),
    "logs": (":logs i-3", ":logs i-3"),
    "move": ("m on the queue head", "llumctl migrate i-3 --to i-1"),
    "wait": ("", ""),
    "moves-on": (":set migration.enabled=true", "llumctl set migration.enabled=true"),
    "dance": ("", ""),
}


async def test_an_order_has_its_key_or_its_command_where_nothing_can_be_changed(
    watched: Bed,
) -> None:
    session = watched.app.session
    for deed, (key, command) in WAYS.items():
        order = VerdictOrder(deed=deed, target="i-3", to="i-1")
        assert session.way_of(order) == key
        session.is_read_only = True
        assert session.way_of(order) == command
        session.is_read_only = False
    await watched.feed(synthetic.overloaded(1))
    await watched.sees(" ! OVERLOADED  61 wait on 1 of 16", "   + adds an instance")
