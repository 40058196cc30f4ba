"""The engine model repeats what vLLM's scheduler decided when it was recorded.

tests/contract checks that the recording still holds for the installed vLLM.
"""

import json
from typing import Any

import pytest

from tests.schedules import RECORDED, Scenario, decisions_of_the_model

ENTRIES = json.loads(RECORDED.read_text())


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e["scenario"]["name"])
def test_the_model_decides_the_same(entry: dict[str, Any]) -> None:
    scenario = Scenario.from_json(entry["scenario"])
    assert decisions_of_the_model(scenario) == entry["decisions"]
