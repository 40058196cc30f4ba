"""The diagrams in docs/migration.md are those of the tables."""

import re
from pathlib import Path

import pytest

from controller.core.migration import destination, source
from controller.core.migration.source import SourceState, StagePlanned
from tools.move_diagrams import DIAGRAMS, mermaid

DOCUMENT = Path(__file__).parents[3] / "docs" / "migration.md"
COMMAND = "python -m tools.move_diagrams"


@pytest.mark.parametrize("name", DIAGRAMS)
def test_the_document_shows_the_table(name: str) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name} -->\n```mermaid\n(.*?)```\n<!-- /{name} -->", text, re.DOTALL)
    assert found, f"docs/migration.md has no diagram between the marks of {name}"
    assert found[1] == DIAGRAMS[name], f"paste what `{COMMAND}` prints"


def test_a_changed_rule_shows() -> None:
    table = dict(source.TABLE)
    del table[SourceState.PLANNING, StagePlanned]
    assert "planning --> pre_allocating: stage planned" in DIAGRAMS["source"]
    assert "planning --> pre_allocating" not in mermaid(table, source.OVER)


def test_each_state_is_in_it() -> None:
    for state in SourceState:
        assert re.search(rf"\b{state}\b", DIAGRAMS["source"])
    for state in destination.DestinationState:
        assert re.search(rf"\b{state}\b", DIAGRAMS["destination"])
