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

STAGES = (
    MoveStage(num_blocks=9, num_bytes=3686, copy_time_s=0.01),
    MoveStage(num_blocks=1, num_bytes=410, copy_time_s=0.002),
)
REQUEST = {"request": "r-1", "client-id": "cmpl-1", "from": "i-0"}
FIGURES = {"migration": "m-1", "tokens": "153", "blocks": "10", "bytes": "4.0 KiB"}
FIGURES |= {"copy": "12.0ms", "took": "50.0ms", "downtime": "24.4ms", "excess": "4.4ms"}


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


PLANNED = {"to": "i-1", "outcome": "would move", "tokens": "153", "blocks": "10"}
PLANNED |= {"bytes": "4.0 KiB", "copy": "12.5ms", "downtime": "about 7.3ms"}
NOT_MOVED = {"to": "-", "outcome": "refused", "why": "no", "note": "soon"}
MOVED = {"to": "i-1", "outcome": "migrated", **FIGURES}
WAITED = {"blocks": "0", "excess": "-", "downtime": "none, the request waits for memory"}


def test_the_figures_of_a_move(reports: list[MigrationReport], cli: Cli) -> None:
    cached = moved(attempts=(attempt(num_cached_blocks=2),))
    waited = moved(num_blocks=0, downtime_s=None, excess_s=None)
    refused = moved("refused", to_instance_id=None, why="no", note="soon", attempts=())
    for report, code, shown in (
        (cached, 0, MOVED | {"blocks": "10, 2 were there"}),
        (waited, 0, MOVED | WAITED),
        (planned(), 10, PLANNED),
        (refused, 5, NOT_MOVED),
    ):
        reports.append(report)
        assert facts(cli("migrate", "cmpl-1", code=code).out) == REQUEST | shown


def test_what_is_ordered_and_what_was_copied_and_tried(
    fake: FakeController, reports: list[MigrationReport], cli: Cli
) -> None:
    reports.append(moved(attempts=(attempt(1, "kept", why="a"), attempt(2, stages=STAGES))))
    options = ["--to", "i-1", "--verify-kv", "-m", "make room", "--timeout", "5"]
    captured = cli("migrate", "r-1", *options)
    assert captured.err == ""
    tables = captured.out.split("\n\n")
    assert [line.split() for line in tables[1].splitlines()] == [
        ["STAGE", "BLOCKS", "BYTES", "COPY"],
        ["0", "9", "3.6", "KiB", "10.0ms"],
        ["1", "1", "410", "B", "2.0ms"],
    ]
    assert [line.split() for line in tables[2].splitlines()[:2]] == [
        ["MIGRATION", "TO", "OUTCOME", "WHY"],
        ["m-1", "i-1", "kept", "a"],
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


def test_a_move_that_came_to_nothing(reports: list[MigrationReport], cli: Cli) -> None:
    look, nowhere = "llumctl requests r-1\n", {"to_instance_id": None, "hint": "x"}
    for outcome, fields, code, error, hint in (
        ("refused", {"note": "later"}, 5, "cannot move from i-0 to i-1: no: later", "status  "),
        ("refused", nowhere, 5, "cannot move from i-0: no", "x\n"),
        ("kept", {}, 1, "still runs at i-0, the move failed: no", look),
        ("ended", {"why": ""}, 1, "ended before it could move: it ended", look),
        ("unknown", {}, 1, "may be on either instance: no", look),
    ):
        reports.append(moved(outcome, **({"why": "no"} | fields)))
        told, _, tried = cli("migrate", "r-1", code=code).err.partition("\ntry:   ")
        assert told == f"error: request r-1 {error}"
        assert hint in tried


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


def test_an_abort(fake: FakeController, cli: Cli) -> None:
    """Another choice of the same call ends with the request."""
    running = {"state": RequestState.RUNNING, "num_output_tokens": 33}
    report = AbortReport(request_id="r-1", request_ids=("r-1", "r-2"), **running)
    name = RequestName(request_id="r-1")
    fake.orders = {
        "GET /v1/requests/cmpl-1/id": lambda _: (200, name),
        "POST /v1/requests/r-1/abort": lambda body: (
            200,
            report.model_copy(update={"dry_run": body["dry_run"]}),
        ),
    }
    shown = facts(cli("abort", "cmpl-1", "-m", "runs away").out)
    assert (shown["request"], shown["with it"]) == ("r-1", "r-2")
    assert (shown["state"], shown["tokens"]) == ("running -> aborted", "33 written so far")
    assert fake.bodies() == [{"reason": "runs away", "dry_run": False}]
    assert cli("abort", "cmpl-1", "--dry-run", "-o", "name", code=10).out == "r-1\nr-2\n"
