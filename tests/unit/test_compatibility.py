"""The page of engine features: its rows name tests that exist, and it says how those ended."""

import ast
import re
from pathlib import Path

from controller.main.checks.preflight import SUPPORTED
from tests.contract.features import FEATURES, No, named_tests
from tools import compatibility
from tools.compatibility import FAILED, PASSED, is_meant, kept_outcomes, outcomes_in

CONTRACT = Path(__file__).parents[1] / "contract"
SEEDED = "test_vllm_moves.py::test_the_reader_cannot_tell[seeded]"


def test_rows_name_tests_that_exist() -> None:
    words = "\n".join(file.read_text() for file in CONTRACT.glob("*.py"))
    for test in named_tests():
        file, _, name = test.partition("::")
        tree = ast.parse((CONTRACT / file).read_text())
        functions = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        name, _, part = name.partition("[")
        assert name in functions, test
        assert f'"{part.removesuffix("]")}"' in words or not part, test


def test_codes_of_refusals_are_listed() -> None:
    codes = (compatibility.ROOT / "docs/reference/codes.md").read_text()
    claims = [
        f.moves for features in FEATURES.values() for f in features if isinstance(f.moves, No)
    ]
    assert len(claims) > 5
    assert all(f"`{claim.why}`" in codes for claim in claims)


def test_the_page_is_up_to_date() -> None:
    """`make compatibility ARGS=--page` writes it."""
    outcomes = kept_outcomes()
    assert compatibility.PAGE.read_text() == compatibility.page(outcomes)
    assert {run.partition(" ")[0] for run in outcomes} <= {*SUPPORTED}
    assert {test for of_run in outcomes.values() for test in of_run} <= {*named_tests()}


def test_an_outcome_is_that_of_all_cases_that_ran() -> None:
    def case(name: str, inside: str = "") -> str:
        module = "tests.contract.test_vllm_moves"
        return f'<testcase classname="{module}" name="{name}">{inside}</testcase>'

    cell = "test_the_reader_cannot_tell[{}]"
    for cases, outcome in (
        ([case(cell.format("seeded"))], PASSED),
        ([case(cell.format("V1-seeded")), case(cell.format("V2-seeded"), "<skipped/>")], PASSED),
        ([case(cell.format("V1-seeded")), case(cell.format("V2-seeded"), "<failure/>")], FAILED),
        ([case(cell.format("seeded"), "<error/>")], FAILED),
        ([case(cell.format("seeded"), "<skipped/>")], None),
        ([case(cell.format("seeded top-k, top-p")), case("test_another[seeded]")], None),
    ):
        report = f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"
        assert outcomes_in(report).get(SEEDED) == outcome
    assert is_meant(SEEDED.partition("[")[0], SEEDED)


def test_the_page_says_what_failed_and_what_did_not_run() -> None:
    def row(outcomes: dict[str, dict[str, str]]) -> str:
        found = re.search(r"^\| Seeded sampling \|.*", compatibility.page(outcomes), re.MULTILINE)
        assert found is not None
        return found[0]

    assert row({}).count("not run") == 3
    assert row({"b": {SEEDED: PASSED}, "a": {SEEDED: PASSED}}).count(" yes ") == 3
    assert row({"b": {SEEDED: PASSED}, "a": {}}).count("yes, on b") == 3
    assert row({"b": {SEEDED: PASSED}, "a": {SEEDED: FAILED}}).count("**fails on a**") == 3
