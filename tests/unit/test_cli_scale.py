"""`llumctl scale` and `llumctl priority`: what they ask for, say and exit with."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.operations.on_cluster import ScaleReport
from controller.api.operations.on_instances import DrainList, DrainReport
from controller.api.operations.on_requests import PriorityEffect, PriorityReport
from controller.api.wire import ErrorBody
from controller.api.wire.requests import RequestName
from controller.api.wire.status import DrainStatus, InstanceState
from llumctl.app import run
from tests.unit.cli_process import interrupted, llumctl
from tests.unit.cli_support import cluster, instance, remember
from tests.unit.fake_controller import Answer, FakeController, meanwhile

Captured = pytest.CaptureFixture[str]


def leaving(instance_id: str = "i-1", **fields: Any) -> DrainReport:
    known = {"state": "draining", "num_requests_left": 2, "removes_instance": True}
    return DrainReport(instance_id=instance_id, **(known | fields))


class Bed:
    """Two instances. Scaling out adds i-2, scaling in drains i-1."""

    def __init__(self, fake: FakeController) -> None:
        self.fake = fake
        fake.status = cluster(instance("i-0"), instance("i-1"))
        self.drains: tuple[DrainReport, ...] = ()
        self.answer: Answer | None = None
        fake.orders = {
            "GET /v1/drains": lambda _: (200, DrainList(drains=self.drains)),
            "POST /v1/scale": self.scale,
            "GET /v1/requests/r-1/id": lambda _: (200, RequestName(request_id="r-1")),
            "POST /v1/requests/r-1/priority": self.priority,
        }

    def scale(self, body: dict[str, Any]) -> Answer:
        if self.answer is not None:
            return self.answer
        target = body["target"] if body["change"] is None else 2 + body["change"]
        report = ScaleReport(previous=2, target=target, revision=6, dry_run=body["dry_run"])
        if target > 2:
            report = report.model_copy(update={"added": ("i-2",)})
        if target < 2:
            self.drains = () if body["dry_run"] else (leaving(),)
            report = report.model_copy(update={"draining": (leaving(),)})
        if target > 2 and not body["dry_run"]:
            self.fake.status = cluster(
                instance("i-0"), instance("i-1"), instance("i-2", InstanceState.STARTING)
            )
        return 200, report

    def priority(self, body: dict[str, Any]) -> Answer:
        if self.answer is not None:
            return self.answer
        return 200, PriorityReport(
            request_id="r-1",
            client_id="cmpl-1",
            previous="normal",
            level=body["level"],
            instance_id="i-0",
            dry_run=body["dry_run"],
            effect=PriorityEffect(
                headroom_blocks_before=0,
                headroom_blocks_after=60,
                freeness_steps_before=960.4,
                freeness_steps_after=None,
            )
            if body["dry_run"]
            else None,
        )

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body in self.fake.ordered]


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NO_COLOR", "1")
    for module in ("instances", "waiting"):
        monkeypatch.setattr(f"llumctl.commands.{module}.POLL_S", 0.01)
    with FakeController() as served:
        remember(served.url)
        yield Bed(served)


def facts(text: str) -> dict[str, str]:
    """The first block: a name and a value per line."""
    lines = text.split("\n\n")[0].splitlines()
    return {name: value.strip() for name, _, value in (line.partition("  ") for line in lines)}


@pytest.mark.parametrize(
    ("arguments", "planned", "target", "revision"),
    [
        (["3"], [(3, None)], 3, 6),
        (["+1"], [(None, 1)], 3, 6),
        (["-y", "-1"], [(None, -1)], 1, 6),
        (["-1", "-y"], [(None, -1)], 1, 6),
        (["-m", "-1", "-y", "-1"], [(None, -1)], 1, 6),
        (["-y", "--", "-1"], [(None, -1)], 1, 6),
        (["-y", "-1", "--if-revision", "5"], [(None, -1)], 1, 5),
        (["1", "-y"], [], 1, None),
    ],
)
def test_a_number_is_ordered_and_a_change_planned_before(
    bed: Bed,
    arguments: list[str],
    planned: list[tuple[int | None, int | None]],
    target: int,
    revision: int | None,
) -> None:
    assert run(["scale", *arguments]) == 0
    *plans, order = bed.bodies
    assert [(body["target"], body["change"]) for body in plans] == planned
    assert all(body["dry_run"] for body in plans)
    assert (order["target"], order["change"], order["dry_run"]) == (target, None, False)
    assert order["if_revision"] == revision


def test_more_instances_need_no_question(bed: Bed, capsys: Captured) -> None:
    assert run(["scale", "+1", "-m", "morning"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert facts(captured.out) == {"instances": "2 -> 3", "added": "i-2", "revision": "6"}
    planned, done = bed.bodies
    assert planned["dry_run"]
    assert (done["dry_run"], done["if_revision"], done["reason"]) == (False, 6, "morning")
    assert done["draining"] == [], "and none to go"


def test_fewer_instances_are_asked_about(bed: Bed, capsys: Captured) -> None:
    assert run(["scale", "-1"]) == 5
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "error: scale-in asks before it acts, and there is no terminal to ask on\n"
        "try:   llumctl scale -1 --dry-run      then      llumctl scale -1 -y\n"
    )
    assert [body["dry_run"] for body in bed.bodies] == [True]
    assert run(["scale", "-1", "-y", "--deadline", "2m"]) == 0
    out = capsys.readouterr().out
    assert facts(out) == {"instances": "2 -> 1", "draining": "i-1", "revision": "6"}
    assert out.split("\n\n")[1].splitlines()[1].split()[:3] == ["i-1", "draining", "2"]
    assert bed.bodies[-1]["deadline_s"] == 120.0


def test_a_dry_run(bed: Bed, capsys: Captured) -> None:
    assert run(["scale", "1", "--dry-run"]) == 10
    assert facts(capsys.readouterr().out)["instances"] == "2 -> 1"
    assert run(["scale", "2", "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "nothing to change\n"
    assert [body["dry_run"] for body in bed.bodies] == [True, True]


@pytest.mark.usefixtures("bed")
def test_the_machine_formats(capsys: Captured) -> None:
    assert run(["scale", "+1", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema_version"], found["added"], found["target"]) == (1, ["i-2"], 3)
    assert run(["scale", "-1", "-y", "-o", "name"]) == 0
    assert capsys.readouterr().out == "i-1\n"
    assert run(["scale", "-1", "-y", "-o", "jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["draining"][0]["instance_id"] == "i-1"


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [(409, "min_instances", 5), (409, "no_room", 5), (409, "revision_conflict", 6)],
)
def test_refusals(bed: Bed, capsys: Captured, status: int, code: str, expected: int) -> None:
    bed.answer = status, ErrorBody(code=code, message="no: because", hint="llumctl status")
    assert run(["scale", "3", "--if-revision", "5"]) == expected
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "error: no: because\ntry:   llumctl status\n")
    assert bed.bodies[-1]["if_revision"] == 5


def test_waiting_for_a_new_instance(bed: Bed, capsys: Captured) -> None:
    def happen() -> None:
        bed.fake.until_asked("/v1/status", times=2)
        bed.fake.status = cluster(instance("i-0"), instance("i-1"), instance("i-2"))

    with meanwhile(happen):
        assert run(["scale", "+1", "--wait"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "instance i-2 is active\n"
    assert facts(captured.out)["added"] == "i-2"


def test_waiting_for_an_instance_that_does_not_come(bed: Bed, capsys: Captured) -> None:
    assert run(["scale", "+1", "--wait", "--timeout", "0.05"]) == 124
    captured = capsys.readouterr()
    assert "instance/i-2=active did not become true within" in captured.err
    assert facts(captured.out)["added"] == "i-2", "what was begun is told all the same"
    assert run(["scale", "+1"]) == 0

    def happen() -> None:
        bed.fake.until_asked("/v1/status", times=bed.fake.asked.count("/v1/status") + 2)
        bed.fake.status = cluster(instance("i-0"), instance("i-2", InstanceState.FAILED))

    with meanwhile(happen):
        assert run(["scale", "+1", "--wait"]) == 1
    assert "instance/i-2=active can no longer become true" in capsys.readouterr().err


def test_waiting_until_one_is_gone(bed: Bed, capsys: Captured) -> None:
    """Drained is not gone yet."""

    def happen() -> None:
        bed.fake.until_asked("/v1/drains", times=2)
        bed.drains = (leaving(state="drained", num_requests_left=0, safe_to_delete=True),)
        bed.fake.until_asked("/v1/drains", times=bed.fake.asked.count("/v1/drains") + 2)
        bed.fake.status = cluster(instance("i-0"))
        bed.drains = ()

    with meanwhile(happen):
        assert run(["scale", "-1", "-y", "--wait"]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == "i-1: removed"
    assert captured.out.split("\n\n")[1].splitlines()[1].split()[:2] == ["i-1", "removed"]


def test_waiting_for_what_an_order_before_began(bed: Bed, capsys: Captured) -> None:
    """Its answer was lost, and it was sent again: nothing is left to change, but to wait for."""
    removed = DrainStatus(drain_id="d", num_requests_left=2, num_moved=0, removes=True)
    going = instance("i-1", InstanceState.DRAINING, drain=removed)
    bed.fake.status = cluster(instance("i-0"), going, instance("i-2", InstanceState.STARTING))
    bed.drains = (leaving(),)

    def happen() -> None:
        bed.fake.until_asked("/v1/status", times=3)
        bed.fake.status = cluster(instance("i-0"), instance("i-2"))
        bed.drains = ()

    with meanwhile(happen):
        assert run(["scale", "2", "-y", "--wait"]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == "i-1: removed"
    assert facts(captured.out.split("\n\n")[0])["added"] == "i-2"
    assert run(["scale", "2", "-y", "--wait"]) == 0
    assert "nothing to change" in capsys.readouterr().err


def test_a_scale_in_that_takes_too_long(bed: Bed, capsys: Captured) -> None:
    assert run(["scale", "-1", "-y", "--wait", "--timeout", "0.05"]) == 124
    over = "error: drain i-1 is not over after 50ms: 2 requests left; it goes on"
    assert over in capsys.readouterr().err
    late = leaving(deadline_s=time.time() - 1)
    bed.fake.orders["GET /v1/drains"] = lambda _: (200, DrainList(drains=(late,)))
    assert run(["scale", "-1", "-y", "--wait", "--deadline", "30"]) == 124
    assert "drain i-1 timed out after 30s: 2 requests left" in capsys.readouterr().err


def test_a_time_to_wait_without_waiting_is_refused(bed: Bed, capsys: Captured) -> None:
    assert run(["scale", "+1", "--timeout", "5m"]) == 2
    assert capsys.readouterr().err == (
        "error: --timeout: only with --wait\ntry:   llumctl scale --help\n"
    )
    assert bed.bodies == []


def test_its_own_time_is_not_told_as_the_deadline(bed: Bed, capsys: Captured) -> None:
    going = leaving(deadline_s=time.time() + 3600)
    bed.fake.orders["GET /v1/drains"] = lambda _: (200, DrainList(drains=(going,)))
    command = ["scale", "-1", "-y", "--wait", "--deadline", "1h", "--timeout", "0.05"]
    assert run(command) == 124
    assert "drain i-1 is not over after 50ms: 2 requests left" in capsys.readouterr().err


def test_without_a_time_of_its_own_it_waits_for_the_deadline(
    bed: Bed, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llumctl.commands.scale.DEFAULT_TIMEOUT_S", 0.0)
    monkeypatch.setattr("llumctl.commands.scale.DEADLINE_MARGIN_S", 60.0)

    def happen() -> None:
        bed.fake.until_asked("/v1/drains", times=3)
        bed.fake.status = cluster(instance("i-0"))
        bed.drains = ()

    with meanwhile(happen):
        assert run(["scale", "-1", "-y", "--wait", "--deadline", "0.01"]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "i-1: removed"


@pytest.mark.process
def test_ctrl_c_leaves_it_going(bed: Bed) -> None:
    with llumctl("scale", "+1", "--wait") as process:
        bed.fake.until_asked("/v1/status", times=2)
        assert interrupted(process) == (
            130,
            "no longer watching: scaling to 3 goes on\ntry:   llumctl status -w\n",
        )
        assert process.stdout is not None
        assert facts(process.stdout.read())["added"] == "i-2"


# -- priority -----------------------------------------------------------------------------


def test_a_priority_is_changed(bed: Bed, capsys: Captured) -> None:
    assert run(["priority", "r-1", "high", "-m", "the boss waits"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert facts(captured.out) == {
        "request": "r-1",
        "client-id": "cmpl-1",
        "instance": "i-0",
        "level": "normal -> high",
    }
    assert bed.bodies == [{"level": "high", "reason": "the boss waits", "dry_run": False}]
    assert run(["priority", "r-1", "normal"]) == 0
    assert capsys.readouterr().err == "nothing to change\n"


def test_a_priority_in_a_dry_run_and_in_the_machine_formats(bed: Bed, capsys: Captured) -> None:
    assert run(["priority", "r-1", "high", "--dry-run", "-o", "json"]) == 10
    found = json.loads(capsys.readouterr().out)
    assert (found["previous"], found["level"], found["dry_run"]) == ("normal", "high", True)
    assert run(["priority", "r-1", "normal", "--dry-run", "-o", "name"]) == 0
    assert capsys.readouterr().out == "r-1\n"
    assert run(["priority", "r-1", "high", "--dry-run"]) == 10
    shown = facts(capsys.readouterr().out)
    assert (shown["headroom"], shown["freeness"]) == ("0 -> 60 blocks", "960 -> - steps")
    assert [body["dry_run"] for body in bed.bodies] == [True, True, True]


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "not_found", 4),
        (409, "ended", 5),
        (409, "ambiguous", 6),
        (400, "no_such_level", 2),
        (504, "no_answer", 124),
    ],
)
def test_priorities_that_are_refused(
    bed: Bed, capsys: Captured, status: int, code: str, expected: int
) -> None:
    bed.answer = status, ErrorBody(code=code, message="no: because", hint="llumctl requests")
    assert run(["priority", "r-1", "high"]) == expected
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "error: no: because\ntry:   llumctl requests\n")
