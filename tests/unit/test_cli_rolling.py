"""`llumctl restart --rolling`, `--stop` and `--dismiss`: what they order, follow, print and exit
with; and how `status` shows them."""

from pathlib import Path
from typing import Any

import pytest

from controller.api.text import status_words
from controller.api.wire import ErrorBody
from controller.api.wire.status import (
    EngineChangeStatus,
    PlannedRestart,
    RestartedInstance,
    RestartTurn,
    RollingReport,
)
from llumctl import output
from llumctl.app import run
from llumctl.commands import restart
from llumctl.commands.status_table import render
from tests.unit.cli_support import Cli, cluster
from tests.unit.fake_controller import Answer, FakeController, meanwhile

Captured = pytest.CaptureFixture[str]
ROLLING = ("restart", "--rolling")
PLAN = RollingReport(
    plan=(
        PlannedRestart(instance_id="i-0", num_requests=1, num_blocks=5, estimate_s=0.4),
        PlannedRestart(instance_id="i-1", num_requests=4, num_blocks=80, num_cannot_move=2),
    ),
    left=("i-0", "i-1"),
    cold_start_s=9.0,
    dry_run=True,
    changes=True,
    revision=4,
)
DONE = (
    RestartedInstance(instance_id="i-0", took_s=2.0),
    RestartedInstance(instance_id="i-1", took_s=3.5),
)


def turn(number: int, **fields: Any) -> tuple[RestartTurn, ...]:
    known = {"instance_id": f"i-{number}", "began_s": 1.0, "state": "draining"}
    return (RestartTurn(**(known | fields)),)


def report(**fields: Any) -> RollingReport:
    known: dict[str, Any] = {
        "rolling_id": "op-1",
        "state": "going",
        "under_way": turn(0, num_requests_left=1),
        "left": ("i-1",),
        "began_s": 1.0,
        "changes": True,
        "revision": 5,
    }
    return RollingReport(**(known | fields))


FAILURE = {"state": "failed", "why": "i-0 could not start", "failed_id": "i-0", "under_way": ()}


class Bed:
    def __init__(self, fake: FakeController) -> None:
        self.fake = fake
        self.now = report()
        fake.orders = {
            "GET /v1/rolling-restart": lambda _: (200, self.now),
            "POST /v1/rolling-restart": lambda body: (200, PLAN if body["dry_run"] else self.now),
            "POST /v1/rolling-restart/dismiss": lambda _: (200, self.now),
            "POST /v1/rolling-restart/stop": lambda _: (200, self.now),
        }

    def follows(self, *later: RollingReport, arguments: tuple[str, ...] = ()) -> int:
        """The exit code of a command that is told these reports after the first."""

        def happen() -> None:
            for each in later:
                self.fake.until_asked_again("/v1/rolling-restart")
                self.now = each

        with meanwhile(happen):
            return run([*ROLLING, "-y", *arguments])


@pytest.fixture
def bed(fake: FakeController, monkeypatch: pytest.MonkeyPatch) -> Bed:
    monkeypatch.setattr("llumctl.commands.restart.POLL_S", 0.01)
    return Bed(fake)


def test_each_step_is_followed_until_all_are_restarted(bed: Bed, capsys: Captured) -> None:
    later = (
        report(under_way=turn(0, state="restarting")),
        report(done=DONE[:1], left=(), under_way=turn(1, num_requests_left=2)),
        report(state="done", done=DONE, left=(), under_way=(), ended_s=6.5),
    )
    assert bed.follows(*later, arguments=("-m", "a patch", "--at-once", "max")) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "rolling restart: 0 of 2 done, i-0 emptying (1 left), then i-1",
        "rolling restart: 0 of 2 done, i-0 starting, then i-1",
        "rolling restart: 1 of 2 done, i-1 emptying (2 left)",
        "rolling restart: 2 of 2 done in 5.5s",
    ]
    assert captured.out.splitlines()[-1].split() == ["i-1", "restarted", "3.5s"]
    (body,) = bed.fake.bodies()
    wanted = {"at_once": 0, "start_timeout_s": 600.0, "dry_run": False, "reason": "a patch"}
    assert body.items() >= wanted.items()


def test_how_else_it_may_end(bed: Bed, capsys: Captured) -> None:
    for end, words in (
        (FAILURE, "error: the rolling restart failed: i-0 could not start; not restarted: i-1"),
        ({"state": "stopped", "why": "w"}, "error: the rolling restart was stopped: w"),
        ({"rolling_id": "op-2"}, "error: another rolling restart has begun meanwhile"),
    ):
        bed.now = report()
        assert bed.follows(report(**end)) == 1
        assert words in capsys.readouterr().err.splitlines()


def test_ctrl_c_leaves_it_going(bed: Bed, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_self: restart.RollingWatch) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(restart.RollingWatch, "until_over", interrupted)
    assert cli(*ROLLING, "-y", code=130).err.endswith(f"{restart.DETACHED}\n")
    assert len(bed.fake.ordered) == 1, "nothing but its beginning was ordered"


@pytest.mark.usefixtures("bed")
def test_a_dry_run_shows_each_in_turn_and_what_it_takes(cli: Cli) -> None:
    assert [line.split() for line in cli(*ROLLING, "--dry-run", code=10).out.splitlines()] == [
        ["TURN", "ID", "REQUESTS", "BLOCKS", "CANNOT-MOVE", "EMPTY-IN", "START"],
        ["1", "i-0", "1", "5", "0", "0.4s", "9.0s"],
        ["2", "i-1", "4", "80", "2", "-", "9.0s"],
    ]
    assert cli(*ROLLING, "--detach", "-y", "-o", "name").out.split() == ["i-0", "i-1"]


def test_it_asks_with_what_it_would_do(bed: Bed, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []
    monkeypatch.setattr(output, "check_terminal", lambda *_: None)
    monkeypatch.setattr(output, "ask", questions.append)
    assert cli(*ROLLING, "--detach", "--at-once", "2").err.splitlines() == [
        "2 instances would be restarted, 1 at a time",
        "i-0: 1 request (5 blocks), empty in about 0.4s, then a start of about 9.0s",
        "i-1: 4 requests (80 blocks), 2 cannot move now and would be waited for,"
        " then a start of about 9.0s",
    ]
    assert questions == ["Restart all, one after the other?"]
    assert bed.fake.bodies()[-1]["if_revision"] == 4, "what was shown is what is done"


def test_engine_arguments_are_sent_shown_and_named_in_the_next_command(
    bed: Bed, capsys: Captured, cli: Cli
) -> None:
    args = ("--engine-arg", "max-num-seqs=64", "--engine-arg", "enforce_eager=null")
    bed.now = report(engine_args={"max_num_seqs": 64}, **FAILURE)
    assert run([*ROLLING, *args, "-y"]) == 1
    assert bed.fake.bodies()[0]["engine_args"] == {"max_num_seqs": 64, "enforce_eager": None}
    told = capsys.readouterr().err
    assert "not restarted: i-1, with max_num_seqs=64" in told
    assert "llumctl restart --rolling --engine-arg KEY=VALUE" in told
    command = f"llumctl {' '.join((*ROLLING, *args))}"
    told = f"try:   {command} --dry-run      then      {command} -y\n"
    assert cli(*ROLLING, *args, code=5).err.endswith(told)
    planned = PLAN.model_copy(update={"engine_args": {"a": 64}, "changes_engine": True})
    assert status_words.rolling_plan(planned)[0].endswith("1 at a time, with a=64")


def test_a_python_environment_is_sent_as_the_path_of_its_interpreter(
    bed: Bed, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "next").mkdir()
    monkeypatch.chdir(tmp_path)
    for given, sent in (("next", f"{tmp_path}/next/bin/python"), ("/p", "/p"), ("null", None)):
        assert run([*ROLLING, "--python", given, "-y", "--detach"]) == 0
        assert bed.fake.bodies()[-1]["engine_args"] == {"python": sent}
    found = cli(*ROLLING, "--python", "~no-such-user/env", "-y", code=2).err
    assert "--python: ~no-such-user/env: " in found


def test_stopping(bed: Bed, cli: Cli) -> None:
    bed.now = report(state="stopped", why="stopped: no", done=DONE[:1], under_way=())
    assert "not-restarted" in cli("restart", "--stop", "-m", "no").out.splitlines()[-1]
    assert bed.fake.bodies() == [{"dry_run": False, "reason": "no", "if_revision": None}]
    assert run(["restart", "--stop", "--dry-run"]) == 10
    refusal: Answer = 409, ErrorBody(code="not_rolling", message="no", hint="llumctl status")
    bed.fake.orders["POST /v1/rolling-restart/stop"] = lambda _: refusal
    assert "nothing to change" in cli("restart", "--stop").err


def test_one_that_is_over_is_dismissed(bed: Bed, capsys: Captured, cli: Cli) -> None:
    bed.now = report(**FAILURE)
    assert run(["restart", "--dismiss"]) == 0
    assert run(["restart", "--dismiss", "--dry-run"]) == 10
    bed.now = report(changes=False, **FAILURE)
    capsys.readouterr()
    assert cli("restart", "--dismiss").err == "nothing to change\n"


# -- in the status ------------------------------------------------------------------------


def summary(**fields: Any) -> list[str]:
    status = cluster().model_copy(update=fields)
    return render(status, wide=False).splitlines()


def test_status_says_how_far_it_is() -> None:
    for found, told in (
        (
            report(under_way=(), left=("i-0", "i-1"), waits="no other instance serves"),
            "0 of 2 done, waits: no other instance serves, then i-0 i-1",
        ),
        (report(**FAILURE), "0 of 1 done, failed: i-0 could not start, not restarted: i-1"),
    ):
        assert f"rolling restart: {told}" in summary(rolling=found)


def test_status_says_nothing_of_one_that_is_over() -> None:
    for past in (report(state="done"), report(state="stopped"), report(dismissed=True, **FAILURE)):
        assert summary(rolling=past) == summary(rolling=None)


def test_status_says_which_instances_have_which_arguments() -> None:
    changes = (
        EngineChangeStatus(generation=0, instances=("i-2",), is_clusters=True),
        EngineChangeStatus(generation=1, args={"speed": 3.0}, instances=("i-0", "i-1")),
    )
    told = "engine arguments: as started (i-2, and new ones); speed=3.0 (i-0 i-1)"
    assert told in summary(engine_changes=changes)
