"""`llumctl drain --remove`: what it asks for, follows, says and exits with."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.operations.on_instances import DrainList, DrainReport, PlannedDeparture
from controller.api.wire import ErrorBody
from llumctl import output
from llumctl.app import run
from tests.unit.cli_support import cluster, instance, remember
from tests.unit.fake_controller import Answer, FakeController, meanwhile

Captured = pytest.CaptureFixture[str]
LATE = "it cannot be copied before its instance goes"
PLAN = (
    PlannedDeparture(
        request_id="r-1", client_id="c", num_tokens=70, num_blocks=5, to_instance_id="i-0"
    ),
    PlannedDeparture(
        request_id="r-2", client_id="d", num_tokens=9000, num_blocks=600, code="too_late", why=LATE
    ),
)


def report(state: str = "draining", **fields: Any) -> DrainReport:
    known: dict[str, Any] = {
        "drain_id": "d-1",
        "revision": 4,
        "removes_instance": True,
        "evacuates_instance": True,
        "deadline_s": time.time() + 30,
        "changes": True,
    }
    return DrainReport(instance_id="i-1", state=state, **(known | fields))


class Bed:
    def __init__(self, fake: FakeController) -> None:
        self.fake = fake
        self.drains: list[DrainReport] = []
        self.refusal: Answer | None = None
        fake.status = cluster(instance("i-0"), instance("i-1"))
        fake.orders = {
            "GET /v1/drains": lambda _: (200, DrainList(drains=tuple(self.drains))),
            "POST /v1/instances/i-1/evacuate": self.evacuate,
        }

    def evacuate(self, body: dict[str, Any]) -> Answer:
        if self.refusal is not None:
            return self.refusal
        if body["dry_run"]:
            return 200, report("active", plan=PLAN, dry_run=True, num_requests_left=2)
        self.drains = self.drains or [report(num_requests_left=2, num_moving=1)]
        return 200, self.drains[-1]

    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body in self.fake.ordered]

    def is_removed(self) -> None:
        self.fake.until_asked("/v1/drains", 2)
        self.fake.status = cluster(instance("i-0"))
        self.drains = []


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


def test_it_is_followed_until_the_instance_is_gone(bed: Bed, capsys: Captured) -> None:
    with meanwhile(bed.is_removed):
        assert run(["drain", "--remove", "i-1", "--within", "30s", "-y", "-m", "spot"]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["i-1: 2 left, 1 moving, 0 moved", "i-1: removed"]
    assert bed.bodies() == [
        {"within_s": 30.0, "dry_run": False, "force": False, "reason": "spot", "if_revision": None}
    ]


def test_its_moment_is_no_missed_deadline(bed: Bed) -> None:
    """The instance goes then, and that is what was asked for."""
    bed.drains = [report(num_requests_left=1, deadline_s=time.time() - 1)]
    with meanwhile(bed.is_removed):
        assert run(["drain", "--remove", "i-1", "-y", "--within", "2"]) == 0


def test_a_dry_run_says_what_is_too_late(bed: Bed, capsys: Captured) -> None:
    assert run(["drain", "--remove", "i-1", "--dry-run"]) == 10
    out = capsys.readouterr().out
    assert LATE in out
    assert "i-0" in out
    assert bed.bodies()[0]["dry_run"]


def test_it_asks_with_what_it_would_do(
    bed: Bed, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []
    monkeypatch.setattr(output, "check_terminal", lambda *_: None)
    monkeypatch.setattr(output, "ask", questions.append)
    assert run(["drain", "--remove", "i-1", "--detach"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert "i-1: 2 requests would move; 1 cannot move now" in told
    assert questions == ["Evacuate i-1 within 30 s?"]
    assert bed.bodies()[-1]["if_revision"] == 4, "what was shown is what is done"


def test_refusals(bed: Bed, capsys: Captured) -> None:
    bed.refusal = 409, ErrorBody(code="last_instance", message="no", hint="llumctl scale +1")
    assert run(["drain", "--remove", "i-1", "-y"]) == 5
    assert run(["drain", "--remove", "i-1"]) == 5
    assert "llumctl drain i-1 --remove --within 30s --dry-run      then" in capsys.readouterr().err
    for others in (["i-2"], ["--deadline", "5m"], ["--on-deadline", "keep", "--deadline", "1"]):
        assert run(["drain", "--remove", "i-1", "-y", *others]) == 2
    assert run(["drain", "i-1", "-y", "--within", "30s"]) == 2
    assert "--within: only with --remove" in capsys.readouterr().err
    for wrong in ("0", "8d", "soon"):
        assert run(["drain", "--remove", "i-1", "--within", wrong, "-y"]) == 2
        assert "--within" in capsys.readouterr().err
