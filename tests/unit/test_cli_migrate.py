"""`llumctl migrate` and `llumctl abort`: what they order and print, and what they say of moves that
fail."""

import json
from typing import Any

import pytest

from controller.api.client import ControlClient
from controller.api.operations.on_requests import (
    AbortReport,
    MigrationReport,
    MoveAttempt,
    MovePlanned,
)
from controller.api.wire.requests import MoveStage, RequestName, RequestState
from llumctl.app import run
from tests.unit.cli_support import Cli, facts
from tests.unit.fake_controller import FakeController

Captured = pytest.CaptureFixture[str]
STAGES = (
    MoveStage(num_blocks=9, num_bytes=3686, copy_time_s=0.01),
    MoveStage(num_blocks=1, num_bytes=410, copy_time_s=0.002),
)
REQUEST = {"request": "r-1", "client-id": "cmpl-1", "from": "i-0"}
FIGURES = {
    "migration": "m-1",
    "tokens": "153",
    "blocks": "10",
    "bytes": "4.0 KiB",
    "copy": "12.0ms",
    "took": "50.0ms",
    "downtime": "24.4ms",
    "excess": "4.4ms",
}


def attempt(number: int = 1, outcome: str = "migrated", **fields: Any) -> MoveAttempt:
    known: dict[str, Any] = {"duration_s": 0.05, "num_tokens": 153}
    return MoveAttempt(
        migration_id=f"m-{number}",
        to_instance_id=f"i-{number}",
        outcome=outcome,
        **(known | fields),
    )


def moved(outcome: str = "migrated", **fields: Any) -> MigrationReport:
    known: dict[str, Any] = {
        "to_instance_id": "i-1",
        "num_blocks": 10,
        "num_bytes": 4096,
        "copy_time_s": 0.012,
        "downtime_s": 0.0244,
        "excess_s": 0.0044,
        "attempts": (attempt(outcome=outcome),),
    }
    return MigrationReport(
        request_id="r-1",
        client_id="cmpl-1",
        from_instance_id="i-0",
        outcome=outcome,
        **(known | fields),
    )


def planned(**fields: Any) -> MigrationReport:
    known = {"num_tokens": 153, "num_blocks": 10, "num_bytes": 4096, "copy_time_s": 0.0125}
    plan = MovePlanned(**(known | {"downtime_s": 0.0073} | fields))
    return moved("would_move", plan=plan, attempts=(), dry_run=True)


@pytest.fixture
def reports(fake: FakeController) -> list[MigrationReport]:
    """The answers to come."""
    found: list[MigrationReport] = []
    name = RequestName(request_id="r-1")
    fake.orders = {
        "GET /v1/requests/r-1/id": lambda _: (200, name),
        "GET /v1/requests/cmpl-1/id": lambda _: (200, name),
        "POST /v1/requests/r-1/migrate": lambda _: (200, found.pop(0)),
    }
    return found


PLANNED = {"to": "i-1", "outcome": "would move", "tokens": "153"}
NO_DOWNTIME = "none, the request waits for memory"


@pytest.mark.parametrize(
    ("report", "code", "shown"),
    [
        (
            moved(attempts=(attempt(num_cached_blocks=2),)),
            0,
            {"to": "i-1", "outcome": "migrated", **FIGURES, "blocks": "10, 2 were there"},
        ),
        (
            moved(num_blocks=0, downtime_s=None, excess_s=None),
            0,
            {"to": "i-1", "outcome": "migrated", **FIGURES}
            | {"blocks": "0", "excess": "-", "downtime": NO_DOWNTIME},
        ),
        (
            planned(),
            10,
            {**PLANNED, "blocks": "10", "bytes": "4.0 KiB", "copy": "12.5ms"}
            | {"downtime": "about 7.3ms"},
        ),
        (
            planned(num_blocks=0, num_bytes=0, copy_time_s=None),
            10,
            {**PLANNED, "blocks": "0", "bytes": "0 B", "copy": "-", "downtime": NO_DOWNTIME},
        ),
        (
            moved("refused", to_instance_id=None, why="no", note="soon", attempts=()),
            5,
            {"to": "-", "outcome": "refused", "why": "no", "note": "soon"},
        ),
    ],
    ids=["moved", "moved while it waited", "dry run", "dry run while it waits", "not begun"],
)
def test_the_figures_of_a_move(
    reports: list[MigrationReport],
    cli: Cli,
    report: MigrationReport,
    code: int,
    shown: dict[str, str],
) -> None:
    reports.append(report)
    assert facts(cli("migrate", "cmpl-1", code=code).out) == REQUEST | shown


def test_what_is_ordered_and_the_stages(
    fake: FakeController, reports: list[MigrationReport], cli: Cli
) -> None:
    reports.append(moved(attempts=(attempt(stages=STAGES),)))
    options = ["--to", "i-1", "--verify-kv", "-m", "make room", "--timeout", "5"]
    captured = cli("migrate", "r-1", *options)
    assert captured.err == ""
    assert [line.split() for line in captured.out.split("\n\n")[1].splitlines()] == [
        ["STAGE", "BLOCKS", "BYTES", "COPY"],
        ["0", "9", "3.6", "KiB", "10.0ms"],
        ["1", "1", "410", "B", "2.0ms"],
    ]
    (body,) = fake.bodies("/v1/requests/r-1/migrate")
    wanted = {"to": "i-1", "verify_kv": True, "reason": "make room", "timeout_s": 5.0}
    assert body.items() >= (wanted | {"dry_run": False}).items()


def test_the_machine_formats(reports: list[MigrationReport], cli: Cli) -> None:
    reports += [moved(), moved(), planned()]
    found = json.loads(cli("migrate", "r-1", "-o", "json").out)
    assert found == json.loads(moved().model_dump_json())
    assert run(["migrate", "r-1", "-o", "name"]) == 0
    assert cli("migrate", "r-1", "-o", "name", "--dry-run", code=10).out == "m-1\nr-1\n"


@pytest.mark.parametrize(
    ("outcome", "fields", "code", "error", "hint"),
    [
        ("refused", {"note": "later"}, 5, "cannot move from i-0 to i-1: no: later", "status  "),
        ("refused", {"to_instance_id": None, "hint": "x"}, 5, "cannot move from i-0: no", "x\n"),
        ("kept", {}, 1, "still runs at i-0, the move failed: no", "llumctl requests r-1\n"),
        ("resumed", {}, 1, "runs again at i-0, the move failed: no", "llumctl requests r-1\n"),
        ("ended", {"why": ""}, 1, "ended before it could move: it ended", "requests r-1\n"),
        ("unknown", {}, 1, "may be on either instance: no", "llumctl requests r-1\n"),
    ],
)
def test_a_move_that_came_to_nothing(
    reports: list[MigrationReport],
    cli: Cli,
    outcome: str,
    fields: dict[str, Any],
    code: int,
    error: str,
    hint: str,
) -> None:
    reports.append(moved(outcome, **({"why": "no"} | fields)))
    told, _, tried = cli("migrate", "r-1", code=code).err.partition("\ntry:   ")
    assert told == f"error: request r-1 {error}"
    assert hint in tried


def test_all_attempts_are_listed(reports: list[MigrationReport], cli: Cli) -> None:
    attempts = (attempt(1, "kept", why="a"), attempt(2, "resumed", why="b"))
    reports.append(moved("resumed", attempts=attempts))
    assert [
        line.split() for line in cli("migrate", "r-1", code=1).out.split("\n\n")[-1].splitlines()
    ] == [
        ["MIGRATION", "TO", "OUTCOME", "WHY"],
        ["m-1", "i-1", "kept", "a"],
        ["m-2", "i-2", "resumed", "b"],
    ]


@pytest.mark.usefixtures("reports")
def test_an_interrupted_wait_says_that_the_move_is_not_taken_back(
    monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ControlClient, "send", interrupted)
    told = cli("migrate", "r-1", "--to", "i-2", code=130).err
    assert "the move goes on, even if it still waits for its turn" in told
    assert "llumctl requests r-1" in told
    assert "the move" not in cli("migrate", "r-1", "--dry-run", code=130).err


# -- abort --------------------------------------------------------------------------------


def test_an_abort(fake: FakeController, capsys: Captured, cli: Cli) -> None:
    """Another choice of the same call ends with it."""
    report = AbortReport(
        request_id="r-1",
        request_ids=("r-1", "r-2"),
        client_id="cmpl-1",
        state=RequestState.RUNNING,
        instance_id="i-0",
        num_output_tokens=33,
    )
    name = RequestName(request_id="r-1")
    fake.orders = {
        "GET /v1/requests/cmpl-1/id": lambda _: (200, name),
        "POST /v1/requests/r-1/abort": lambda body: (
            200,
            report.model_copy(update={"dry_run": body["dry_run"]}),
        ),
    }
    assert run(["abort", "cmpl-1", "-m", "runs away"]) == 0
    shown = {"request": "r-1", "client-id": "cmpl-1", "instance": "i-0", "with it": "r-2"}
    shown |= {"state": "running -> aborted", "tokens": "33 written so far"}
    assert facts(capsys.readouterr().out) == shown
    assert fake.bodies() == [{"reason": "runs away", "dry_run": False}]
    assert (
        facts(cli("abort", "cmpl-1", "--dry-run", code=10).out)["state"]
        == "running -> would be aborted"
    )
    assert cli("abort", "cmpl-1", "--dry-run", "-o", "name", code=10).out == "r-1\nr-2\n"
