"""What docs/scheduling.md says is what the code does: its tables and defaults."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from controller.core.emptying.relief import MoveReason
from controller.core.migration.refusals import ReliefRefusal
from controller.core.settings import MigrationSettings
from tests.unit.rescheduling.figure_nine import CASES, table

DOCUMENT = Path(__file__).parents[3] / "docs" / "scheduling.md"
COMMAND = "PYTHONPATH=. python tests/unit/rescheduling/figure_nine.py"


@pytest.mark.parametrize("name", CASES)
def test_the_document_shows_what_the_code_does(name: str) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert found, f"docs/scheduling.md has no table between the marks of {name}"
    assert found[1] == table(CASES[name]), f"paste what `{COMMAND}` prints"


def test_it_names_every_reason_and_refusal() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for name in (*MoveReason, *ReliefRefusal):
        assert re.search(rf"\b{name}\b", text), f"{name} is not in docs/scheduling.md"


def test_its_defaults_are_those_of_the_code() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `migration\.(\w+)` \| ([^|]+) \|", text, re.MULTILINE))
    assert rows == {name: _shown(value) for name, value in asdict(MigrationSettings()).items()}


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, int | float) else str(value)
