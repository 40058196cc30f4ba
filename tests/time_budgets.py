"""How long the tests of one file may take together, so that `make test` stays short.

The seconds are those that `--durations` counts: set-up, test and tear-down. A run names each file
that took longer than its budget on two quiet cores, and fails if a file took three times its
budget. Only `make test` loads this plugin; `make test-full` runs more tests of the same files, so
there the budgets are not checked.
"""

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest

FOLDERS = {
    "tests/unit/tui": 30.0,
    "tests/unit": 20.0,
    "tests/contract": 60.0,
    "tests/faults": 150.0,
    "tests/e2e": 90.0,
}
FAILS_AT = 3.0


def budget_s(file: str) -> float:
    parents = (str(parent) for parent in PurePosixPath(file).parents)
    return next((FOLDERS[parent] for parent in parents if parent in FOLDERS), float("inf"))


def over_budget(took_s: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """(file, seconds, budget) of the files that took too long, the worst first."""
    over = [(file, s, budget_s(file)) for file, s in took_s.items() if s > budget_s(file)]
    return sorted(over, key=lambda each: each[2] - each[1])


class TimeBudgets:
    def __init__(self) -> None:
        self.took_s: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.took_s[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        too_long = [s for _, s, budget in over_budget(self.took_s) if s > FAILS_AT * budget]
        if too_long and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        if num := config.getoption("durations"):
            terminalreporter.section(f"slowest {num} files")
            for name, s in sorted(self.took_s.items(), key=lambda each: -each[1])[:num]:
                terminalreporter.write_line(f"{s:.1f}s {name}")
        for name, s, budget in over_budget(self.took_s):
            fails = " (fails)" if s > FAILS_AT * budget else ""
            terminalreporter.write_line(
                f"{name} took {s:.0f} s; its budget is {budget:.0f} s{fails}: tests/time_budgets.py"
            )


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("HYPOTHESIS_PROFILE") != "full" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(TimeBudgets())
