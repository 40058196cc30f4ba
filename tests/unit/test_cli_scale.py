"""`llumctl scale` and `llumctl priority`: what they order, print, wait for and exit with."""

import json
import time
from typing import Any

import pytest

from controller.api.operations.on_cluster import ScaleReport
from controller.api.operations.on_instances import DrainReport
from controller.api.operations.on_requests import PriorityEffect, PriorityReport
from controller.api.wire.requests import RequestName
from controller.api.wire.status import DrainStatus, InstanceState
from llumctl.app import run
from tests.unit.cli_process import interrupted, llumctl
from tests.unit.cli_support import Cli, cluster, facts
from tests.unit.fake_controller import Answer, FakeController, meanwhile
from tools.synthetic_cluster import instance

STARTING, FAILED = InstanceState.STARTING, InstanceState.FAILED


def leaving(**fields: Any) -> DrainReport:
    known = {"state": "draining", "num_requests_left": 2, "removes_instance": True}
    return DrainReport(instance_id="i-1", **(known | fields))


EFFECT = PriorityEffect(
    headroom_blocks_before=0,
    headroom_blocks_after=60,
    freeness_steps_before=960.4,
    freeness_steps_after=None,
)


class Bed:
    """Two instances. Scaling out adds i-2, scaling in drains i-1."""

    def __init__(self, fake: FakeController) -> None:
        self.fake = fake
        self.has("i-0", "i-1")
        self.going = leaving()
        fake.orders = {
            "POST /v1/scale": self.scale,
            "GET /v1/requests/r-1/id": lambda _: (200, RequestName(request_id="r-1")),
            "POST /v1/requests/r-1/priority": self.priority,
        }

    def has(self, *ids: str, **states: InstanceState) -> None:
        self.fake.status = cluster(
            *map(instance, ids), *(instance(f"i-{id_[1:]}", each) for id_, each in states.items())
        )

    def scale(self, body: dict[str, Any]) -> Answer:
        target = body["target"] if body["change"] is None else 2 + body["change"]
        report = ScaleReport(previous=2, target=target, revision=6, dry_run=body["dry_run"])
        if target < 2:
            self.fake.drains = () if body["dry_run"] else (self.going,)
            report = report.model_copy(update={"draining": (self.going,)})
        if target > 2:
            report = report.model_copy(update={"added": ("i-2",)})
            if not body["dry_run"]:
                self.has("i-0", "i-1", i2=STARTING)
        return 200, report

    def priority(self, body: dict[str, Any]) -> Answer:
        report = PriorityReport(
            request_id="r-1", previous="normal", level=body["level"], dry_run=body["dry_run"]
        )
        return 200, report.model_copy(update={"effect": EFFECT if body["dry_run"] else None})


@pytest.fixture
def bed(fake: FakeController, monkeypatch: pytest.MonkeyPatch) -> Bed:
    for module in ("instances", "waiting"):
        monkeypatch.setattr(f"llumctl.commands.{module}.POLL_S", 0.01)
    return Bed(fake)


def test_a_number_is_ordered_and_a_change_planned_before(bed: Bed) -> None:
    for line, planned, target, revision in (
        ("+1", [(None, 1)], 3, 6),
        ("-y -1", [(None, -1)], 1, 6),
        ("-y -- -1", [(None, -1)], 1, 6),
        ("3", [(3, None)], 3, 6),
        ("-y -1 --if-revision 5", [(None, -1)], 1, 5),
        ("1 -y", [], 1, None),
    ):
        bed.fake.ordered.clear()
        assert run(["scale", *line.split()]) == 0
        *plans, order = bed.fake.bodies()
        assert [(body["target"], body["change"]) for body in plans] == planned, line
        assert all(body["dry_run"] for body in plans)
        assert (order["target"], order["change"], order["dry_run"]) == (target, None, False)
        assert order["if_revision"] == revision


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("small=3 --model big", "--model: big is another model than that of small=3"),
        ("=3 --model big", "'=3': no model before ="),
        ("=3", "'=3': no model before ="),
    ],
)
def test_a_number_of_no_model_or_of_two_is_refused(bed: Bed, cli: Cli, line: str, why: str) -> None:
    assert why in cli("scale", *line.split(), code=2).err
    assert bed.fake.bodies() == []


def test_fewer_instances_are_asked_about(bed: Bed, cli: Cli) -> None:
    assert cli("scale", "-1", code=5) == (
        "",
        "error: scale-in asks before it acts, and there is no terminal to ask on\n"
        "try:   llumctl scale -1 --dry-run      then      llumctl scale -1 -y\n",
    )
    assert [body["dry_run"] for body in bed.fake.bodies()] == [True]
    out = cli("scale", "-1", "-y", "--deadline", "2m").out
    assert facts(out) == {"instances": "2 -> 1", "draining": "i-1", "revision": "6"}
    assert out.split("\n\n")[1].splitlines()[1].split()[:3] == ["i-1", "draining", "2"]
    assert bed.fake.bodies()[-1]["deadline_s"] == 120.0


def test_a_dry_run_and_the_machine_formats(bed: Bed, cli: Cli) -> None:
    assert facts(cli("scale", "1", "--dry-run", code=10).out)["instances"] == "2 -> 1"
    assert cli("scale", "2", "--dry-run").err == "nothing to change\n"
    assert [body["dry_run"] for body in bed.fake.bodies()] == [True, True]
    found = json.loads(cli("scale", "+1", "-m", "morning", "-o", "json").out)
    assert (found["schema_version"], found["added"], found["target"]) == (1, ["i-2"], 3)
    done = bed.fake.bodies()[-1]
    assert (done["reason"], done["draining"]) == ("morning", []), "none is to go"
    assert cli("scale", "-1", "-y", "-o", "name").out == "i-1\n"


# -- waiting ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "code", "told"),
    [
        (InstanceState.ACTIVE, 0, "instance i-2 is active"),
        (FAILED, 1, "error: instance/i-2=active can no longer become true: instance i-2 is failed"),
    ],
)
def test_waiting_for_a_new_instance(
    bed: Bed, cli: Cli, state: InstanceState, code: int, told: str
) -> None:
    def happen() -> None:
        bed.fake.until_asked("/v1/status", times=2)
        bed.has("i-0", "i-1", i2=state)

    with meanwhile(happen):
        captured = cli("scale", "+1", "--wait", code=code)
    assert captured.err.splitlines()[0] == told
    assert facts(captured.out)["added"] == "i-2", "what was begun is told all the same"


def test_waiting_until_one_is_gone(bed: Bed, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drained is not gone yet. Without a time of its own, it waits for the deadline."""
    monkeypatch.setattr("llumctl.commands.scale.DEFAULT_TIMEOUT_S", 0.0)
    monkeypatch.setattr("llumctl.commands.scale.DEADLINE_MARGIN_S", 60.0)

    def happen() -> None:
        bed.fake.until_asked_again("/v1/drains")
        bed.fake.drains = (leaving(state="drained", num_requests_left=0, safe_to_delete=True),)
        bed.fake.until_asked_again("/v1/drains")
        bed.has("i-0")
        bed.fake.drains = ()

    with meanwhile(happen):
        captured = cli("scale", "-1", "-y", "--wait", "--deadline", "0.01")
    assert captured.err.splitlines()[-1] == "i-1: removed"
    assert captured.out.split("\n\n")[1].splitlines()[1].split()[:2] == ["i-1", "removed"]


def test_waiting_for_what_an_order_before_began(bed: Bed, cli: Cli) -> None:
    """Its answer was lost, and it was sent again: nothing is left to change, but to wait for."""
    removed = DrainStatus(drain_id="d", num_requests_left=2, num_moved=0, removes=True)
    going = instance("i-1", InstanceState.DRAINING, drain=removed)
    bed.fake.status = cluster(instance("i-0"), going, instance("i-2", STARTING))
    bed.fake.drains = (leaving(),)

    def happen() -> None:
        bed.fake.until_asked("/v1/status", times=3)
        bed.has("i-0", "i-2")
        bed.fake.drains = ()

    with meanwhile(happen):
        captured = cli("scale", "2", "-y", "--wait")
    assert captured.err.splitlines()[-1] == "i-1: removed"
    assert facts(captured.out)["added"] == "i-2"
    assert "nothing to change" in cli("scale", "2", "-y", "--wait").err


def test_a_wait_that_takes_too_long(bed: Bed, cli: Cli) -> None:
    for line, deadline_in_s, told in (
        (
            "-1 --timeout 0.05 --deadline 1h",
            3600,
            "drain i-1 is not over after 50ms: 2 requests left",
        ),
        ("-1 --deadline 30", -1, "drain i-1 timed out after 30s: 2 requests left"),
        ("+1 --timeout 0.05", 0, "instance/i-2=active did not become true within 50ms"),
    ):
        bed.going = leaving(deadline_s=time.time() + deadline_in_s)
        captured = cli("scale", *line.split(), "-y", "--wait", code=124)
        assert told in captured.err
        assert facts(captured.out)["revision"] == "6", "what was begun is told all the same"


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


def test_a_priority_is_changed(bed: Bed, cli: Cli) -> None:
    captured = cli("priority", "r-1", "high", "-m", "the boss waits")
    assert captured.err == ""
    shown = facts(captured.out)
    assert (shown["request"], shown["level"]) == ("r-1", "normal -> high")
    assert bed.fake.bodies() == [{"level": "high", "reason": "the boss waits", "dry_run": False}]
    assert cli("priority", "r-1", "normal").err == "nothing to change\n"
    assert cli("priority", "r-1", "normal", "--dry-run", "-o", "name").out == "r-1\n"
    found = json.loads(cli("priority", "r-1", "high", "--dry-run", "-o", "json", code=10).out)
    assert (found["previous"], found["level"], found["dry_run"]) == ("normal", "high", True)
    shown = facts(cli("priority", "r-1", "high", "--dry-run", code=10).out)
    assert (shown["headroom"], shown["freeness"]) == ("0 -> 60 blocks", "960 -> - steps")
    assert [body["dry_run"] for body in bed.fake.bodies()[2:]] == [True, True, True]
