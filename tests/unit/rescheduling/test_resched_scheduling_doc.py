"""What docs/scheduling.md says is what the code does: its cases of the paper's figure 9, its codes
and its defaults."""

import re
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from controller.core.emptying.relief import Candidate, MoveReason, next_move
from controller.core.emptying.rounds import InstanceLoad, pair
from controller.core.load.freeness import batch_size, freeness, instance_virtual_usage
from controller.core.load.snapshot import InstanceSnapshot, Level
from controller.core.migration.refusals import ReliefRefusal
from controller.core.settings import MigrationSettings
from tests.unit.rescheduling.relief_builders import BLOCK_SIZE, EASY, queued, running, view_of

TEXT = (Path(__file__).parents[3] / "docs" / "scheduling.md").read_text(encoding="utf-8")
LEVELS = (Level("normal", 0), Level("high", 1, target_load_tokens=8 * BLOCK_SIZE))


def _requests(cell: str) -> dict[str, Candidate]:
    """`x 6` runs and holds 6 blocks, `(q 8)` waits for 8."""
    found = {}
    for waits, name, num_blocks in re.findall(r"(\()?(\w+) (\d+)", cell):
        make = queued if waits else running
        found[name] = make(name, int(num_blocks), rank=int(name == "high"))
    return found


def _figures(snapshot: InstanceSnapshot) -> list[str]:
    numbers = instance_virtual_usage(snapshot, LEVELS), freeness(snapshot, LEVELS)
    usage, free = (f"{each:.1f}".removesuffix(".0") for each in numbers)
    shown = [usage, str(batch_size(snapshot)), free]
    return [each.replace("-", "−").replace("inf", "∞") for each in shown]


@pytest.mark.parametrize("case", ["balance", "queue-head", "headroom", "drain"])
def test_the_document_s_cases_of_figure_nine(case: str) -> None:
    table = TEXT.partition(f"<!-- {case} -->\n")[2].partition(f"<!-- /{case} -->")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert len(rows) > 1
    for row, following in pairwise([*rows, ["nothing"]]):
        left, right = _requests(row[1]), _requests(row[5])
        sides = {"total_blocks": 20, "draining": case == "drain", "levels": LEVELS}
        view = view_of(list(left.values()), list(right.values()), **sides)
        assert [*_figures(view.source), *_figures(view.destination)] == row[2:5] + row[6:9], row
        name, _, what = following[0].partition(" ")
        decision = next_move(view)
        if name == "nothing":
            both = (view.source, view.destination)
            loads = [InstanceLoad.of(s, LEVELS, may_send=True, may_receive=True) for s in both]
            assert decision.chosen is None or not pair(loads, EASY)
            continue
        here, there = set(_requests(following[1])), set(_requests(following[5]))
        if what == "starts":
            assert (here, there) == (set(left), set(right))
            continue
        assert decision.chosen is not None
        assert f"{decision.chosen.request_id} moves: {decision.reason}" == following[0]
        assert (here, there) == (set(left) - {name}, {*right, name})


def test_it_names_every_reason_and_refusal() -> None:
    for name in (*MoveReason, *ReliefRefusal):
        assert re.search(rf"\b{name}\b", TEXT), f"{name} is not in docs/scheduling.md"


def test_its_defaults_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `migration\.(\w+)` \| ([^|]+) \|", TEXT, re.MULTILINE))
    assert rows == {name: _shown(value) for name, value in asdict(MigrationSettings()).items()}


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, int | float) else str(value)
