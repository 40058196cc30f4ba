"""Defects are drawn by a seed, found again where their function went, seeded in one place, and
tried by the tests that import the module."""

import ast
from collections.abc import Sequence
from pathlib import Path

from tools.seeded_defects import (
    Defect,
    Kind,
    draw,
    places,
    results,
    run_all,
    seeded,
)

SOURCE = '''
"""A text with 3 in it."""
LIMIT = 4


class Queue:
    async def give(self, items):
        """Gives 1."""
        if len(items) > 2:
            self.send(items[0])
        log.info("gave %d", 3)
        await self.flush(force=True)
        return items[1:]
'''


def test_places_are_those_of_behaviour() -> None:
    give = "Queue.give"
    found = [(each.name, each.kind, each.before, each.after) for each in places(SOURCE)]
    assert found == [
        ("LIMIT", Kind.CONSTANT_CHANGED, "4", "8"),
        (give, Kind.SWAPPED_BRANCH, "len(items) > 2", "not (len(items) > 2)"),
        (give, Kind.WRONG_COMPARISON, "len(items) > 2", "len(items) >= 2"),
        (give, Kind.OFF_BY_ONE, "2", "3"),
        (give, Kind.DROPPED_MESSAGE, "self.send(items[0])", "pass"),
        (give, Kind.OFF_BY_ONE, "0", "1"),
        (give, Kind.MISSING_AWAIT, "await self.flush(force=True)", "(self.flush(force=True))"),
        (give, Kind.CONSTANT_CHANGED, "True", "False"),
        (give, Kind.OFF_BY_ONE, "1", "2"),
    ]
    for place in places(SOURCE):
        ast.parse(seeded(SOURCE, place))


def a_tree(root: Path) -> Path:
    files = {
        "controller/core/queue.py": SOURCE,
        "tests/unit/helpers.py": "import controller.core.queue\n",
        "tests/unit/test_helped.py": "from tests.unit import helpers\n",
        "tests/unit/test_nothing.py": "import json\n",
    }
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


class Pytest:
    """Fails where the first defect is in the tree."""

    calls = 0

    def __call__(self, tree: Path, tests: Sequence[str], _: float) -> tuple[int | None, str]:
        self.calls += 1
        assert tests
        if "    pass\n" in (tree / "controller/core/queue.py").read_text():
            return 1, "\nFAILED tests/unit/test_helped.py::test_it - assert 1 == 2\n"
        return 0, "1 passed"


QUEUE = "controller.core.queue"
DEFECTS = [
    Defect(QUEUE, "Queue.give", Kind.DROPPED_MESSAGE, 0, "self.send(items[0])", "pass"),
    Defect(QUEUE, "LIMIT", Kind.CONSTANT_CHANGED, 0, "4", "8"),
]


def test_each_defect_is_seeded_alone_and_what_finds_it_is_recorded(tmp_path: Path) -> None:
    root, to = a_tree(tmp_path / "tree"), tmp_path / "results.jsonl"
    run = Pytest()
    outcomes = [each.outcome for each in run_all(root, DEFECTS, to, 1, run)]
    assert outcomes == ["found", "not found"]
    assert results(to)[0].by == "tests/unit/test_helped.py::test_it"
    assert draw(root, 4, seed=3) == draw(root, 4, seed=3) != draw(root, 4, seed=4)
    assert run.calls == 3  # the test that failed once more, without the defect
    assert (root / "controller/core/queue.py").read_text() == SOURCE
