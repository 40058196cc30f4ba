"""`llumctl restart`: what it asks for, follows, says and exits with."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.operations.on_instances import DrainList, DrainReport, PlannedDeparture
from controller.api.wire import ErrorBody
from controller.api.wire.status import InstanceState
from llumctl import output
from llumctl.app import run
from tests.unit.cli_support import cluster, instance, remember
from tests.unit.fake_controller import Answer, FakeController, meanwhile

Captured = pytest.CaptureFixture[str]
PLAN = (
    PlannedDeparture(
        request_id="r-1", client_id="c", num_tokens=70, num_blocks=5, to_instance_id="i-0"
    ),
)
REPLAYED = (
    PlannedDeparture(
        request_id="r-1",
        client_id="c",
        num_tokens=70,
        num_blocks=5,
        code="replays",
        why="it would be replayed elsewhere",
    ),
)


def report(state: str = "draining", **fields: Any) -> DrainReport:
    known: dict[str, Any] = {
        "drain_id": "d-1",
        "revision": 4,
        "restarts_instance": True,
        "incarnation": 1,
        "pid": 70,
        "changes": True,
    }
    return DrainReport(instance_id="i-1", state=state, **(known | fields))


class Bed:
    """Two instances; drains and processes are what the test says."""

    def __init__(self, fake: FakeController) -> None:
        self.fake = fake
        self.drains: list[DrainReport] = []
        self.plan = report("active", plan=PLAN, dry_run=True, num_requests_left=1)
        self.refusal: Answer | None = None
        self.has_process(incarnation=1, pid=70)
        fake.orders = {
            "GET /v1/drains": lambda _: (200, DrainList(drains=tuple(self.drains))),
            "POST /v1/instances/i-1/restart": self.restart,
        }

    def has_process(self, state: InstanceState = InstanceState.ACTIVE, **what: Any) -> None:
        self.fake.status = cluster(instance("i-0"), instance("i-1", state, **what))

    def restart(self, body: dict[str, Any]) -> Answer:
        if self.refusal is not None:
            return self.refusal
        if body["dry_run"]:
            return 200, self.plan
        self.drains = self.drains or [report(num_requests_left=1)]
        return 200, self.drains[-1]

    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body in self.fake.ordered]

    def until_watched(self, times: int = 2) -> None:
        self.fake.until_asked("/v1/drains", times + self.fake.asked.count("/v1/drains"))


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("llumctl.commands.instances.POLL_S", 0.01)
    with FakeController() as served:
        remember(served.url)
        yield Bed(served)


def test_it_is_followed_until_the_next_process_serves(bed: Bed, capsys: Captured) -> None:
    def happen() -> None:
        bed.until_watched()
        bed.drains = [report("restarting", num_moved=1, incarnation=2, pid=71)]
        bed.until_watched()
        bed.has_process(incarnation=2, pid=71)
        bed.drains = []

    with meanwhile(happen):
        assert run(["restart", "i-1", "-y", "-m", "a leak"]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "i-1: 1 left, 0 moving, 0 moved",
        "i-1: restarting",
        "i-1: restarted (1 moved)",
    ]
    assert captured.out.splitlines()[1].split()[:5] == ["i-1", "restarted", "0", "0", "1"]
    assert bed.bodies() == [
        {
            "deadline_s": None,
            "now": False,
            "dry_run": False,
            "force": False,
            "reason": "a leak",
            "if_revision": None,
        }
    ]


@pytest.mark.parametrize(
    ("state", "process", "code", "words"),
    [
        (InstanceState.ACTIVE, {"pid": 70}, 1, "the restart of i-1 was taken back before"),
        (InstanceState.FAILED, {"pid": 71}, 1, "i-1 was restarted, and its new process could not"),
        # A controller that began anew counts incarnations anew.
        (InstanceState.ACTIVE, {"pid": 71}, 0, "restarted"),
    ],
)
def test_how_it_may_end(
    bed: Bed,
    capsys: Captured,
    state: InstanceState,
    process: dict[str, int],
    code: int,
    words: str,
) -> None:
    def happen() -> None:
        bed.until_watched()
        bed.has_process(state, incarnation=1, **process)
        bed.drains = []

    with meanwhile(happen):
        assert run(["restart", "i-1", "-y"]) == code
    assert words in capsys.readouterr().err


def test_a_deadline_that_passes_ends_it(bed: Bed, capsys: Captured) -> None:
    late = {"deadline_s": time.time() - 1, "on_deadline": "abort"}
    bed.drains = [report(num_requests_left=1, **late)]

    def happen() -> None:
        bed.until_watched()
        bed.drains = []

    with meanwhile(happen):
        assert run(["restart", "i-1", "-y", "--deadline", "30"]) == 124
    err = capsys.readouterr().err
    assert "error: restart i-1 timed out after 30s: 1 request left; it was given up" in err
    assert err.endswith("llumctl restart i-1 --deadline 60\n")
    assert bed.bodies()[0]["deadline_s"] == 30.0


def test_a_process_that_takes_its_time_is_not_late(bed: Bed, capsys: Captured) -> None:
    """The deadline was about emptying it."""
    late = {"deadline_s": time.time() - 60, "on_deadline": "abort"}
    bed.drains = [report("restarting", **late)]

    def happen() -> None:
        bed.until_watched(5)
        bed.has_process(incarnation=2, pid=71)
        bed.drains = []

    with meanwhile(happen):
        assert run(["restart", "i-1", "-y", "--deadline", "30"]) == 0
    assert capsys.readouterr().err.endswith("i-1: restarted (0 moved)\n")


def test_detached_or_dry_it_returns_at_once(bed: Bed, capsys: Captured) -> None:
    assert run(["restart", "i-1", "--dry-run"]) == 10
    assert "r-1" in capsys.readouterr().out
    assert run(["restart", "i-1", "-y", "--now", "--detach", "-o", "json"]) == 0
    assert '"restarts_instance": true' in capsys.readouterr().out
    assert [(body["dry_run"], body["now"]) for body in bed.bodies()] == [
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize(
    ("plan", "arguments", "told"),
    [
        (PLAN, (), "i-1: 1 request would move"),
        (REPLAYED, ("--now",), "i-1: 1 request would be replayed elsewhere"),
    ],
)
def test_it_asks_with_what_it_would_do(
    bed: Bed,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    plan: tuple[PlannedDeparture, ...],
    arguments: tuple[str, ...],
    told: str,
) -> None:
    questions: list[str] = []
    monkeypatch.setattr(output, "check_terminal", lambda *_: None)
    monkeypatch.setattr(output, "ask", questions.append)
    bed.plan = bed.plan.model_copy(update={"plan": plan})
    assert run(["restart", "i-1", "--detach", *arguments]) == 0
    assert told in capsys.readouterr().err.splitlines()
    assert questions == [f"Restart i-1{' at once' if arguments else ''}?"]
    assert bed.bodies()[-1]["if_revision"] == 4, "what was shown is what is done"


def test_without_a_terminal_it_does_not_act(bed: Bed, capsys: Captured) -> None:
    assert run(["restart", "i-1", "--now"]) == 5
    err = capsys.readouterr().err
    assert "restart asks before it acts, and there is no terminal to ask on" in err
    assert "llumctl restart i-1 --now --dry-run      then      llumctl restart i-1 --now -y" in err
    assert bed.bodies() == []


def test_refusals(bed: Bed, capsys: Captured) -> None:
    for code in ("last_instance", "leaving", "not_started"):
        bed.refusal = 409, ErrorBody(code=code, message="no", hint="llumctl status")
        assert run(["restart", "i-1", "-y"]) == 5
    assert run(["restart", "i-1", "-y", "--now", "--deadline", "5"]) == 2
    assert "--now: not with --deadline" in capsys.readouterr().err
