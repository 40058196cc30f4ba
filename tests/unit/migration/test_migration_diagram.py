"""The diagrams in docs/migration.md are those of the tables."""

import re
from pathlib import Path

import pytest

from tools.move_diagrams import DIAGRAMS

DOCUMENT = Path(__file__).parents[3] / "docs" / "migration.md"
COMMAND = "python -m tools.move_diagrams"


@pytest.mark.parametrize("name", DIAGRAMS)
def test_the_document_shows_the_table(name: str) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name} -->\n```mermaid\n(.*?)```\n<!-- /{name} -->", text, re.DOTALL)
    assert found, f"docs/migration.md has no diagram between the marks of {name}"
    assert found[1] == DIAGRAMS[name], f"paste what `{COMMAND}` prints"
