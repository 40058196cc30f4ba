"""KV blocks as a line, and the trend of step times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.wire.status import QueueHeadStatus
from tools import synthetic_cluster as synthetic
from tui import drawing
from tui.drawing import UNICODE
from tui.panes import instances
from tui.state import Sample


def head(demand_blocks: int) -> QueueHeadStatus:
    return QueueHeadStatus(
        request_id="r1", level="normal", demand_blocks=demand_blocks, waited_s=1.0, evicted=False
    )


def text(width: int = 114, **fields: object) -> list[str]:
    found = instances.block_map(synthetic.instance(**fields), width)
    return ["".join(span.text for span in line)[13:] for line in found]


def test_all_parts_in_proportion() -> None:
    bar, legend = text(num_free_blocks=500, headroom_blocks=200, queue_head=head(90))
    assert bar == "#" * 50 + "=" * 9 + "+" * 20 + "." * 20 + "-"
    assert legend.split("  ") == [
        "# 500 held",
        "= 90 wanted by the head",
        "+ 200 headroom",
        ". 200 free",
        "- 10 watermark",
        "",
    ]


def test_what_the_head_lacks_is_told() -> None:
    bar, legend = text(num_free_blocks=196, headroom_blocks=90, queue_head=head(280))
    assert "+" not in bar
    assert "." not in bar
    assert legend.startswith("the head lacks 94  # 804 held")


def test_nothing_is_drawn_of_an_instance_that_has_not_reported() -> None:
    assert text(num_total_blocks=None) == []
    assert text(num_free_blocks=None) == []


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


@pytest.mark.parametrize(
    ("step_time_s", "glyph"), [(0.004, "▁"), (0.015, "▂"), (0.1, "▅"), (2.0, "▇"), (None, " ")]
)
def test_step_times_are_on_one_scale(step_time_s: float | None, glyph: str) -> None:
    samples = [Sample(59.5, 100.0, step_time_s)]
    assert drawing.step_trend(samples, 59.9, 6, UNICODE) == " " * 5 + glyph
