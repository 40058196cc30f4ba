"""Figures as text, and columns that fit a width."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.wire.status import QueueHeadStatus
from tools import synthetic_cluster as synthetic
from tui import drawing
from tui.drawing import ASCII, UNICODE, Column, Span
from tui.panes import instances
from tui.state import Sample


@pytest.mark.parametrize(
    ("drawn", "text"),
    [
        (drawing.number(None), "-"),
        (drawing.number(-0.4), "0"),
        (drawing.number(999999), "999999"),
        (drawing.number(-2.5e9), "-2.5G"),
        (drawing.number(float("-inf")), "-inf"),
        (drawing.number(float("nan")), "-"),
        (drawing.percent(None), "-"),
        (drawing.percent(12.0), ">999"),
        (drawing.percent(float("inf")), "inf"),
        ("".join(drawing.bar(None, None, 10, ASCII)), "          "),
        ("".join(drawing.bar(0.44, float("inf"), 10, ASCII)), "####======"),
        ("".join(drawing.bar(0.5, 0.2, 10, ASCII)), "#####     "),
        ("".join(drawing.bar(float("nan"), 0.3, 10, ASCII)), "===       "),
        ("".join(drawing.bar(0.44, 0.6, 10, UNICODE)), "████▍▒    "),
        ("".join(drawing.bar(0.4, None, 10, UNICODE)), "████      "),
        ("".join(drawing.bar(0.01, None, 10, UNICODE)), "▏         "),
        ("".join(drawing.bar(7.0, 9.0, 10, UNICODE)), "██████████"),
    ],
)
def test_figures_stay_short(drawn: str, text: str) -> None:
    assert drawn == text


def columns_at(width: int, *columns: Column[None]) -> dict[str, int]:
    """The columns that have room, each with its width."""
    return {p.column.name: p.width for p in drawing.place(columns, width)}


def column(name: str, width: int, drop: int = 0, **more: Any) -> Column[None]:
    return Column(name, name, width, lambda *_: Span(""), drop=drop, **more)


def test_no_column_is_left_out_while_there_is_room() -> None:
    found = columns_at(40, column("id", 8), column("wide", 30, drop=1), column("narrow", 9, drop=2))
    assert list(found) == ["id", "narrow"], "narrow comes back when wide is out"


def test_texts_grow_before_curves() -> None:
    curve, text = column("curve", 6, max_width=20, curve=True), column("text", 5, max_width=15)
    assert columns_at(14, curve, text) == {"curve": 6, "text": 5}
    assert columns_at(26, curve, text) == {"curve": 8, "text": 15}
    assert columns_at(99, curve, text) == {"curve": 20, "text": 15}


@pytest.mark.parametrize("width", [2, 7, 41])
@pytest.mark.parametrize("text", ["drain i-1 moves 会話会話会話会話 to i-2, 話 a", "会" * 30])
def test_wrapped_lines_fit_in_columns(text: str, width: int) -> None:
    lines = drawing.wrapped(text, width)
    assert all(drawing.num_cells(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    indented = drawing.wrapped(text, 20, first="  ", later="    ")
    assert all(drawing.num_cells(line) <= 20 for line in indented)
    assert indented[0].startswith("  ")
    assert all(line.startswith("    ") for line in indented[1:])


TRENDS = {
    "one scale": ((-100, 0, 1, 16, 17, 64, 129, 385, 2000, 1e6), 10, 0, "__..,:-=+#"),
    "what is unknown is left out": ((None, 5, None, 5000), 4, 0, " . #"),
    "the newest is on the right": ((0, 70), 4, 0, "  _:"),
    "to the left": ((0, 70), 4, 15, " _: "),
    "and out": ((0, 70), 4, 60, "    "),
}


@pytest.mark.parametrize(("values", "width", "later_s", "shown"), TRENDS.values(), ids=TRENDS)
def test_trends(values: tuple[float | None, ...], width: int, later_s: float, shown: str) -> None:
    """One sample per slot."""
    slot_s = 60 / width
    samples = [Sample(1200 + place * slot_s, value) for place, value in enumerate(values)]
    assert drawing.trend(samples, samples[-1].time_s + later_s, width, ASCII) == shown
    assert drawing.trend((), 0.0, width, ASCII) == " " * width


def test_what_does_not_fit_is_cut_and_what_ascii_cannot_show_is_marked() -> None:
    assert drawing.fitted("abcdef", 4, UNICODE) == "abc…"
    assert drawing.fitted("ab", 4, ASCII, right=True) == "  ab"
    assert drawing.fitted("ab", 0, ASCII) == ""
    assert drawing.width_of((Span(drawing.fitted("日本語", 4, UNICODE)),)) == 4
    assert drawing.encodable("nai\u0308ve", ASCII) == "na?ve"
    assert drawing.encodable("naïve", UNICODE) == "naïve"
    for glyphs in (ASCII, UNICODE):
        told = drawing.encodable("\x1b]52;c;eA==\x07 a\x85\u202e\xa0b\n", glyphs)
        assert told == "]52;c;eA== a b"


# KV blocks as a line, and the trend of step times


def head(demand_blocks: int) -> QueueHeadStatus:
    return QueueHeadStatus(
        request_id="r1", level="normal", demand_blocks=demand_blocks, waited_s=1.0, evicted=False
    )


@given(
    free=st.integers(0, 1000),
    headroom=st.integers(0, 2000),
    demand=st.integers(0, 2000),
    watermark=st.integers(0, 1000),
    width=st.integers(1, 300),
)
def test_the_parts_are_all_blocks(
    free: int, headroom: int, demand: int, watermark: int, width: int
) -> None:
    item = synthetic.instance(
        num_free_blocks=free,
        headroom_blocks=headroom,
        watermark_blocks=watermark,
        queue_head=head(demand),
    )
    found = instances.block_parts(item)
    assert all(blocks >= 0 for _, blocks, _, _ in found)
    assert sum(blocks for _, blocks, _, _ in found) == 1000
    bar = instances.block_map(item, width)[0][1:]
    assert sum(len(span.text) for span in bar) == max(0, width - 14)


def test_step_times_are_on_one_scale() -> None:
    for step_time_s, glyph in ((0.004, "▁"), (0.015, "▂"), (0.1, "▅"), (2.0, "█"), (None, " ")):
        samples = [Sample(59.5, 100.0, step_time_s)]
        assert drawing.step_trend(samples, 59.9, 6, UNICODE) == " " * 5 + glyph
