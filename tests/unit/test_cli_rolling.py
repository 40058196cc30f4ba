"""`llumctl restart --rolling` and `--stop`: what they ask for, follow, say and exit with."""

from collections.abc import Iterator
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
from tests.unit.cli_support import cluster, instance, remember
from tests.unit.fake_controller import Answer, FakeController, meanwhile

Captured = pytest.CaptureFixture[str]
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
GOING = RollingReport(
    rolling_id="op-1",
    state="going",
    under_way=(RestartTurn(instance_id="i-0", began_s=1.0, state="draining", num_requests_left=1),),
    left=("i-1",),
    began_s=1.0,
    changes=True,
    revision=5,
)
DONE = (
    RestartedInstance(instance_id="i-0", took_s=2.0),
    RestartedInstance(instance_id="i-1", took_s=3.5),
)


def report(**what: Any) -> RollingReport:
    return GOING.model_copy(update=what)


class Bed:
    def __init__(self, fake: FakeController) -> None:
        self.fake = fake
        self.now = GOING
        self.refusal: Answer | None = None
        fake.orders = {
            "GET /v1/rolling-restart": lambda _: (200, self.now),
            "POST /v1/rolling-restart": self.begin,
            "POST /v1/rolling-restart/dismiss": lambda _: (200, self.now),
            "POST /v1/rolling-restart/stop": lambda _: self.refusal or (200, self.now),
        }

    def begin(self, body: dict[str, Any]) -> Answer:
        if self.refusal is not None:
            return self.refusal
        return 200, PLAN if body["dry_run"] else self.now

    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body in self.fake.ordered]

    def until_watched(self, times: int = 2) -> None:
        path = "/v1/rolling-restart"
        self.fake.until_asked(path, times + self.fake.asked.count(path))


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("llumctl.commands.restart.POLL_S", 0.01)
    with FakeController() as served:
        remember(served.url)
        yield Bed(served)


def test_each_step_is_followed_until_all_are_restarted(bed: Bed, capsys: Captured) -> None:
    def happen() -> None:
        bed.until_watched()
        bed.now = report(under_way=(RestartTurn(instance_id="i-0", began_s=1, state="restarting"),))
        bed.until_watched()
        bed.now = report(
            done=DONE[:1],
            left=(),
            under_way=(
                RestartTurn(instance_id="i-1", began_s=3, state="draining", num_requests_left=2),
            ),
        )
        bed.until_watched()
        bed.now = report(state="done", done=DONE, left=(), under_way=(), ended_s=6.5)

    with meanwhile(happen):
        assert run(["restart", "--rolling", "-y", "-m", "a patch", "--at-once", "max"]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "rolling restart: 0 of 2 done, i-0 emptying (1 left), then i-1",
        "rolling restart: 0 of 2 done, i-0 starting, then i-1",
        "rolling restart: 1 of 2 done, i-1 emptying (2 left)",
        "rolling restart: 2 of 2 done in 5.5s",
    ]
    assert [line.split() for line in captured.out.splitlines()] == [
        ["ID", "STATE", "TOOK"],
        ["i-0", "restarted", "2.0s"],
        ["i-1", "restarted", "3.5s"],
    ]
    assert bed.bodies() == [
        {
            "at_once": 0,
            "deadline_s": None,
            "start_timeout_s": 600.0,
            "dry_run": False,
            "force": False,
            "reason": "a patch",
            "if_revision": None,
            "engine_args": {},
        }
    ]


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (
            {"state": "failed", "why": "i-0 could not start: no", "failed_id": "i-0"},
            "error: the rolling restart failed: i-0 could not start: no; not restarted: i-1",
        ),
        (
            {"state": "stopped", "why": "stopped by an operator"},
            "error: the rolling restart was stopped: stopped by an operator",
        ),
        ({"rolling_id": "op-2"}, "error: another rolling restart has begun meanwhile"),
    ],
)
def test_how_else_it_may_end(bed: Bed, capsys: Captured, end: dict[str, Any], words: str) -> None:
    def happen() -> None:
        bed.until_watched()
        bed.now = report(under_way=(), **end)

    with meanwhile(happen):
        assert run(["restart", "--rolling", "-y"]) == 1
    assert words in capsys.readouterr().err.splitlines()


def test_ctrl_c_leaves_it_going(
    bed: Bed, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_self: restart.RollingWatch) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(restart.RollingWatch, "until_over", interrupted)
    assert run(["restart", "--rolling", "-y"]) == 130
    err = capsys.readouterr().err
    assert err.endswith(f"{restart.DETACHED}\n")
    assert len(bed.bodies()) == 1, "nothing but its beginning was ordered"


def test_a_dry_run_shows_each_in_turn_and_what_it_takes(bed: Bed, capsys: Captured) -> None:
    assert run(["restart", "--rolling", "--dry-run"]) == 10
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["TURN", "ID", "REQUESTS", "BLOCKS", "CANNOT-MOVE", "EMPTY-IN", "START"],
        ["1", "i-0", "1", "5", "0", "0.4s", "9.0s"],
        ["2", "i-1", "4", "80", "2", "-", "9.0s"],
    ]
    assert bed.bodies()[0]["dry_run"]
    assert run(["restart", "--rolling", "--detach", "-y", "-o", "name"]) == 0
    assert capsys.readouterr().out.split() == ["i-0", "i-1"]


def test_it_asks_with_what_it_would_do(
    bed: Bed, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []
    monkeypatch.setattr(output, "check_terminal", lambda *_: None)
    monkeypatch.setattr(output, "ask", questions.append)
    assert run(["restart", "--rolling", "--detach", "--at-once", "2"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "2 instances would be restarted, 1 at a time",
        "i-0: 1 request (5 blocks), empty in about 0.4s, then a start of about 9.0s",
        "i-1: 4 requests (80 blocks), 2 cannot move now and would be waited for,"
        " then a start of about 9.0s",
    ]
    assert questions == ["Restart all, one after the other?"]
    assert bed.bodies()[-1]["if_revision"] == 4, "what was shown is what is done"


def test_stopping(bed: Bed, capsys: Captured) -> None:
    bed.now = report(state="stopped", why="stopped: no", done=DONE[:1], under_way=())
    assert run(["restart", "--stop", "-m", "no"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["i-1", "not-restarted", "-"]
    assert bed.bodies() == [{"dry_run": False, "reason": "no", "if_revision": None}]
    assert run(["restart", "--stop", "--dry-run"]) == 10
    bed.refusal = 409, ErrorBody(code="not_rolling", message="no", hint="llumctl status")
    assert run(["restart", "--stop"]) == 0
    assert "nothing to change" in capsys.readouterr().err


def test_refusals(bed: Bed, capsys: Captured) -> None:
    for code in ("rolling", "last_instance", "no_instances"):
        bed.refusal = 409, ErrorBody(code=code, message="no", hint="llumctl status")
        assert run(["restart", "--rolling", "-y"]) == 5
    for wrong, words in (
        ((), "give one of ID, --rolling, --stop and --dismiss"),
        (("i-1", "--rolling"), "give one of ID, --rolling, --stop and --dismiss"),
        (("--rolling", "--now"), "--now: not with --rolling"),
        (("--stop", "--force"), "--force: not with --stop"),
        (("i-1", "--at-once", "2"), "--at-once: not with ID"),
        (("i-1", "--engine-arg", "a=1"), "--engine-arg: not with ID"),
        (("--stop", "--engine-arg", "a=1"), "--engine-arg: not with --stop"),
        (("--dismiss", "--rolling"), "give one of"),
        (("--dismiss", "--deadline", "2"), "--deadline: not with --dismiss"),
        (("--rolling", "--engine-arg", "a"), "'a' is not of the form key=value"),
        (("--rolling", "--engine-arg", "a=1", "--engine-arg", "a=2"), "a is given twice"),
        (("--rolling", "--at-once", "0"), "'0' is neither a number of instances nor max"),
        (("--rolling", "--at-once", "all"), "'all' is neither a number of instances nor max"),
        (("--rolling", "--start-timeout", "8d"), "--start-timeout: must be at most 7d"),
    ):
        assert run(["restart", *wrong, "-y"]) == 2
        assert words in capsys.readouterr().err
    assert run(["restart", "--rolling"]) == 5
    assert "llumctl restart --rolling --dry-run      then" in capsys.readouterr().err


def test_engine_arguments_are_sent_shown_and_named_in_the_next_command(
    bed: Bed, capsys: Captured
) -> None:
    args = ("--engine-arg", "max-num-seqs=64", "--engine-arg", "enforce_eager=null")
    assert run(["restart", "--rolling", *args, "--dry-run"]) == 10
    assert bed.bodies()[0]["engine_args"] == {"max_num_seqs": 64, "enforce_eager": None}
    bed.now = report(
        state="failed",
        failed_id="i-0",
        why="i-0 could not start",
        under_way=(),
        engine_args={"max_num_seqs": 64},
    )
    capsys.readouterr()
    assert run(["restart", "--rolling", *args, "-y"]) == 1
    told = capsys.readouterr().err
    assert "failed: i-0 could not start, not restarted: i-1, with max_num_seqs=64" in told
    assert "llumctl restart --rolling --engine-arg KEY=VALUE" in told
    assert run(["restart", "--rolling", *args]) == 5
    told = capsys.readouterr().err
    command = "llumctl restart --rolling --engine-arg max-num-seqs=64"
    assert f"{command} --engine-arg enforce_eager=null --dry-run" in told


def test_the_plan_names_the_engine_arguments() -> None:
    known = {"engine_args": {"max_num_seqs": 64, "mode": "chunked"}, "changes_engine": True}
    first, *_ = status_words.rolling_plan(PLAN.model_copy(update=known))
    assert first.endswith("1 at a time, with max_num_seqs=64, mode=chunked")
    first, *_ = status_words.rolling_plan(PLAN.model_copy(update={"changes_engine": True}))
    assert first.endswith("with the engine arguments of the cluster's start")


def test_one_that_is_over_is_dismissed(bed: Bed, capsys: Captured) -> None:
    bed.now = report(state="failed", failed_id="i-0", why="no", under_way=(), changes=True)
    assert run(["restart", "--dismiss"]) == 0
    assert run(["restart", "--dismiss", "--dry-run"]) == 10
    bed.now = bed.now.model_copy(update={"changes": False})
    capsys.readouterr()
    assert run(["restart", "--dismiss"]) == 0
    assert capsys.readouterr().err == "nothing to change\n"


def test_status_says_how_far_it_is() -> None:
    def lines(found: RollingReport | None) -> list[str]:
        status = cluster(instance("i-0")).model_copy(update={"rolling": found})
        return render(status, wide=False).splitlines()

    assert "rolling restart: 0 of 2 done, i-0 emptying (1 left), then i-1" in lines(GOING)
    waits = report(under_way=(), left=("i-0", "i-1"), waits="no other instance serves")
    told = "rolling restart: 0 of 2 done, waits: no other instance serves, then i-0 i-1"
    assert told in lines(waits)
    failed = report(state="failed", failed_id="i-0", why="i-0 could not start", under_way=())
    told = "rolling restart: 0 of 1 done, failed: i-0 could not start, not restarted: i-1"
    assert told in lines(failed)
    dismissed = failed.model_copy(update={"dismissed": True})
    for past in (None, report(state="done"), report(state="stopped"), dismissed):
        assert lines(past) == lines(None)


def test_status_says_which_instances_have_which_arguments() -> None:
    changes = (
        EngineChangeStatus(generation=0, instances=("i-2",), is_clusters=True),
        EngineChangeStatus(generation=1, args={"speed": 3.0}, instances=("i-0", "i-1")),
    )
    status = cluster(instance("i-0")).model_copy(update={"engine_changes": changes})
    told = "engine arguments: as started (i-2, and new ones); speed=3.0 (i-0 i-1)"
    assert told in render(status, wide=False).splitlines()
