"""Writes docs/compatibility.md: which engine features are served, move, and stay exact, by the
outcome of the contract tests that show it (tests/contract/features.py).

`make compatibility` runs these tests on the installed vLLM and keeps their outcome in
tests/contract/outcomes.json, with those of other versions; `make compatibility ARGS=--page` only
writes the page. A unit test compares the page with the table and the outcomes.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

from controller.main.checks import preflight
from tests.contract.features import DASH, FEATURES, Claim, Feature, No, named_tests

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/compatibility.md"
OUTCOMES = ROOT / "tests/contract/outcomes.json"
PASSED, FAILED = "passed", "failed"

Outcomes = dict[str, dict[str, str]]
"""For each run, such as 0.32.0, the tests that were not skipped, with PASSED or FAILED."""

_HEAD = """# Compatibility

`make compatibility` writes this page. It runs contract tests on real engines and keeps their
outcome. A row says what is known of an engine feature:

- **serves**: an engine with it answers.
- **moves**: its requests can move to another engine. For "no" the code of the refusal is given;
  [the list of codes](reference/codes.md) has its sentence.
- **exact**: a request that moved gets the tokens, and the log-probabilities, of one that stayed.

"Not tested" means just that: it may work. The tests run on a CPU with small models, V2 in Triton's
interpreter. They run on both of vLLM's model runners, those of models on V1 only. `make test-gpu`
runs the tests of moves on a GPU. To try your model, your engine arguments and your hardware, run
[`llumctl doctor --engine`](engine-trial.md).
"""


def run_tests(options: Iterable[str]) -> None:
    """Runs the tests that rows name, and keeps their outcome under the version of vLLM that is
    installed beside this Python. `options` of pytest, such as `-k`, may leave tests out."""
    functions = dict.fromkeys(f"tests/contract/{test.partition('[')[0]}" for test in named_tests())
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        any_mark = ("-m", "full or not full", f"--junitxml={results}")
        subprocess.run([sys.executable, "-m", "pytest", *functions, *any_mark, *options], cwd=ROOT)
        found = outcomes_in(results.read_text(encoding="utf-8"))
    known = kept_outcomes()
    known[_run_name()] = known.get(_run_name(), {}) | found
    ordered = {
        run: {test: of_run[test] for test in named_tests() if test in of_run}
        for run, of_run in sorted(known.items(), reverse=True)
    }
    OUTCOMES.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def _run_name() -> str:
    version = preflight.check_vllm_version().version.partition("+")[0]
    return f"{version} on a GPU" if preflight.num_gpus() else version


def kept_outcomes() -> Outcomes:
    found: Outcomes = json.loads(OUTCOMES.read_text(encoding="utf-8"))
    return found


def outcomes_in(junit: str) -> dict[str, str]:
    """The outcome of each test that a row names, from pytest's report. A test that was skipped has
    none."""
    cases = [
        (
            f"{case.attrib['classname'].rpartition('.')[2]}.py::{case.attrib['name']}",
            {child.tag for child in case},
        )
        for case in ElementTree.fromstring(junit).iter("testcase")
    ]
    found = {}
    for test in named_tests():
        tags = [tags for case, tags in cases if is_meant(test, case) and "skipped" not in tags]
        if tags:
            is_bad = any(each & {"failure", "error"} for each in tags)
            found[test] = FAILED if is_bad else PASSED
    return found


def is_meant(test: str, case: str) -> bool:
    """Whether the row's test is this case of pytest's. Pytest joins parameters by hyphens."""
    name, bracket, part = test.partition("[")
    if case.partition("[")[0] != name:
        return False
    parameters = f"-{case.partition('[')[2].removesuffix(']')}-"
    return not bracket or f"-{part.removesuffix(']')}-" in parameters


# -- the page --------------------------------------------------------------------------------------


def page(outcomes: Mapping[str, Mapping[str, str]]) -> str:
    numbers = {test: number for number, test in enumerate(named_tests(), 1)}
    lines = [_HEAD]
    for title, features in FEATURES.items():
        lines += [f"## {title}", "", "| feature | serves | moves | exact | tests |"]
        lines.append("| --- | --- | --- | --- | --- |")
        lines += [_row(feature, outcomes, numbers) for feature in features]
        lines.append("")
    lines += ["## Versions", "", "| vLLM | tests that passed | tests that failed |"]
    lines.append("| --- | --- | --- |")
    for run, of_run in outcomes.items():
        failed = [str(numbers[test]) for test, outcome in of_run.items() if outcome == FAILED]
        num_passed = f"{len(of_run) - len(failed)} of {len(numbers)}"
        lines.append(f"| {run} | {num_passed} | {', '.join(failed) or 'none'} |")
    lines += [
        "",
        "How 0.33.0 runs on a CPU: [versions of vLLM](upgrading.md#versions-of-vllm).",
        "",
    ]
    lines += ["## Tests", "", "In `tests/contract`; brackets name the parameters that count.", ""]
    lines += [f"{number}. `{test}`" for test, number in numbers.items()]
    return "\n".join(lines) + "\n"


def _row(
    feature: Feature, outcomes: Mapping[str, Mapping[str, str]], numbers: Mapping[str, int]
) -> str:
    claims = (feature.serves, feature.moves, feature.exact)
    cells = [_cell(claim, outcomes) for claim in claims]
    tests = sorted({numbers[test] for claim in claims for test in _tests(claim)})
    name = f"{feature.name}: {feature.note}" if feature.note else feature.name
    return f"| {name} | {' | '.join(cells)} | {', '.join(map(str, tests))} |"


def _cell(claim: Claim, outcomes: Mapping[str, Mapping[str, str]]) -> str:
    tests = _tests(claim)
    failing = [run for run in outcomes if any(outcomes[run].get(t) == FAILED for t in tests)]
    if failing:
        return f"**fails on {', '.join(failing)}**"
    if isinstance(claim, No):
        return claim.why if " " in claim.why or claim.why == DASH else f"no: `{claim.why}`"
    if not tests:
        return "not tested"
    passing = [run for run in outcomes if all(outcomes[run].get(t) == PASSED for t in tests)]
    if not passing:
        return "not run"
    return "yes" if len(passing) == len(outcomes) else f"yes, on {', '.join(passing)}"


def _tests(claim: Claim) -> tuple[str, ...]:
    return claim.tests if isinstance(claim, No) else claim


if __name__ == "__main__":
    if sys.argv[1:] != ["--page"]:
        run_tests(sys.argv[1:])
    PAGE.write_text(page(kept_outcomes()), encoding="utf-8")
