"""The fuzzer finds what is planted, names its culprit, and can send it again."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.unit.fuzz.faulty_endpoint import FaultyEndpoint, error
from tools.fuzz.__main__ import main


def fuzzed(plant: Callable[[bytes], bytes | None], out: Path, *more: str) -> int:
    with FaultyEndpoint(plant).in_thread() as endpoint:
        fixed = ("--seed", "1", "--seconds", "0.5", "--stall", "0.4", "--deadline", "5")
        return main([*fixed, "--url", endpoint.url, "--out", str(out), *more])


def findings(out: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(out.glob("finding-*.json"))]


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    assert fuzzed(lambda _: None, tmp_path) == 0
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["findings"] == {}
    assert run["num_sent"] >= 24
    assert len(run["outcomes"]) >= 8


def test_a_bad_answer_is_found_shrunk_and_sent_again(tmp_path: Path) -> None:
    def plant(request: bytes) -> bytes | None:
        return error(500) if b'"tool_choice"' in request else None

    assert fuzzed(plant, tmp_path, "--families", "tools") == 1
    found = next(each for each in findings(tmp_path) if each["kind"] == "5xx")
    assert list(json.loads(found["shrunk"]["body"])) == ["tool_choice"]
    again = tmp_path / "finding-000-x.json"
    again.write_text(json.dumps(found))
    assert fuzzed(plant, tmp_path, "--replay", str(again)) == 1
    assert fuzzed(lambda _: None, tmp_path, "--replay", str(again)) == 0
