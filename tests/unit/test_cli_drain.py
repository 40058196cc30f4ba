"""`llumctl drain`, `drain --remove`, `restart ID` and `uncordon`: what they order, how they follow
it, what they print and how they exit."""

import json
import time
from typing import Any

import pytest

from controller.api.operations.on_instances import (
    CannotMove,
    CordonReport,
    DrainList,
    DrainReport,
    PlannedDeparture,
)
from controller.api.state import run_state
from controller.api.wire import ErrorBody
from controller.api.wire.status import InstanceState, InstanceStatus
from llumctl import output
from llumctl.app import run
from llumctl.commands import instances
from tests.unit.cli_process import LIMIT_S
from tests.unit.cli_support import Cli, cluster
from tests.unit.fake_controller import Answer, FakeController, meanwhile
from tools.pty_process import terminal
from tools.synthetic_cluster import instance

Captured = pytest.CaptureFixture[str]
ACTIVE, FAILED = InstanceState.ACTIVE, InstanceState.FAILED
DRAIN, REMOVE, RESTART = ("drain", "i-1"), ("drain", "i-1", "--remove"), ("restart", "i-1")
COMMON = {"dry_run": False, "force": False, "reason": "", "if_revision": None}
NO_ROOM = "no instance has 118 free blocks"


def departure(number: int = 1, **fields: Any) -> PlannedDeparture:
    known = {"request_id": f"r-{number}", "client_id": f"cmpl-{number}", "num_tokens": 70}
    return PlannedDeparture(**(known | {"num_blocks": 5} | fields))


PLAN = (departure(to_instance_id="i-0"), departure(3, code="no_blocks", why=NO_ROOM))
REPLAYED = (departure(code="replays", why="it would be replayed elsewhere"),)
STUCK = CannotMove(request_id="r-3", client_id="cmpl-3", code="no_blocks", why=NO_ROOM)


def report(state: str = "draining", instance_id: str = "i-1", **fields: Any) -> DrainReport:
    known: dict[str, Any] = {"drain_id": "d-1", "revision": 4, "num_requests_left": 2}
    if state == "drained":
        known |= {"num_requests_left": 0, "safe_to_delete": True}
    return DrainReport(instance_id=instance_id, state=state, **(known | fields))


def leaving(**fields: Any) -> DrainReport:
    known = {"removes_instance": True, "evacuates_instance": True, "num_requests_left": 1}
    return report(**(known | fields))


def restarting(state: str = "draining", **fields: Any) -> DrainReport:
    known = {"restarts_instance": True, "incarnation": 1, "pid": 70, "num_requests_left": 1}
    return report(state, **(known | fields))


LATE = {"deadline_s": -1.0}
"""Deadlines count from the time at which they are told."""


def timed(found: DrainReport) -> DrainReport:
    if found.deadline_s is None:
        return found
    return found.model_copy(update={"deadline_s": time.time() + found.deadline_s})


def refused(code: str, status: int, message: str) -> Answer:
    return status, ErrorBody(code=code, message=message, hint="llumctl status")


class Bed:
    """Two instances; an order begins `begun`, or is planned as `plan`."""

    def __init__(self, fake: FakeController) -> None:
        self.fake = fake
        fake.status = cluster(instance("i-0"), instance("i-1"))
        self.begun = report(num_moving=1)
        self.plan = report("active", plan=PLAN, dry_run=True, changes=True)
        fake.orders = {
            "POST /v1/instances/i-1/drain": self.drain,
            "POST /v1/instances/i-2/drain": self.drain,
            "POST /v1/instances/i-1/evacuate": self.drain,
            "POST /v1/instances/i-1/restart": self.drain,
            "POST /v1/instances/i-1/undrain": self.undrain,
            "POST /v1/instances/i-1/uncordon": self.uncordon,
        }

    def drain(self, body: dict[str, Any]) -> Answer:
        if body["dry_run"]:
            return 200, self.plan
        self.fake.drains = [timed(self.begun)]
        return 200, self.fake.drains[0]

    def undrain(self, body: dict[str, Any]) -> Answer:
        if not self.fake.drains:
            return refused("not_draining", 409, "i-1 is not being drained")
        dry_run = body["dry_run"]
        if not dry_run:
            self.fake.drains = []
        return 200, report("active", revision=5, dry_run=dry_run, changes=True)

    def uncordon(self, body: dict[str, Any]) -> Answer:
        """It is not cordoned."""
        closed_by = ("draining",) if self.fake.drains else ()
        return 200, CordonReport(
            instance_id="i-1", cordoned=False, closed_by=closed_by, dry_run=body["dry_run"]
        )

    def follows(self, arguments: tuple[str, ...], *later: DrainReport | None) -> int:
        """The exit code of a command that is told these reports after the first."""

        def happen() -> None:
            for each in later:
                self.fake.until_asked_again("/v1/drains")
                self.fake.drains = [] if each is None else [timed(each)]

        with meanwhile(happen):
            return run([*arguments, "-y"])


@pytest.fixture
def bed(fake: FakeController, monkeypatch: pytest.MonkeyPatch) -> Bed:
    monkeypatch.setattr("llumctl.commands.instances.POLL_S", 0.01)
    return Bed(fake)


def process(state: InstanceState = ACTIVE, **what: int) -> InstanceStatus:
    return instance("i-1", state, **what)


EMPTYING = "i-1: 1 left, 0 moving, 0 moved"
LIMITED = (*DRAIN, "--deadline", "30")
STAYS = f"i-1 timed out after 30s: 1 request cannot move ({NO_ROOM})"
TAKEN_BACK = "was taken back before it was over"
SAME, NEW = {"incarnation": 1, "pid": 70}, {"incarnation": 1, "pid": 71}


def stuck(**fields: Any) -> DrainReport:
    return report(cannot_move=(STUCK,), **fields)


COURSES = {
    "until it is safe to delete": (
        (DRAIN, process(), 0),
        (
            report(num_moving=1, silent=("f-1",)),
            report(num_requests_left=1, cannot_move=(STUCK,), estimate_s=14.2),
            report("drained", num_moved=2),
        ),
        (
            "i-1: 2 left, 1 moving, 0 moved, no answer from f-1",
            f"{EMPTYING}, ~14s; 1 request cannot move ({NO_ROOM})",
            "i-1: safe to delete (2 moved)",
        ),
    ),
    "until it is removed at its deadline": (
        (REMOVE, None, 0),
        (leaving(**LATE), None),
        (EMPTYING, "i-1: removed"),
    ),
    "until the next process serves, also if a new controller counts incarnations anew": (
        (RESTART, process(**NEW), 0),
        (restarting(), restarting("restarting", num_moved=1), None),
        (EMPTYING, "i-1: restarting", "i-1: restarted (1 moved)"),
    ),
    "after a deadline, which was about emptying it": (
        (RESTART, process(incarnation=2, pid=71), 0),
        (restarting("restarting", deadline_s=-60.0, on_deadline="abort"),) * 2 + (None,),
        ("i-1: restarting", "i-1: restarted (0 moved)"),
    ),
    "past its deadline, and it goes on": (
        (LIMITED, None, 124),
        (stuck(**LATE),),
        (f"drain {STAYS}; it goes on", "try:"),
    ),
    "given up by the controller soon after its deadline": (
        (LIMITED, process(), 124),
        (stuck(on_deadline="abort", **LATE), None),
        (f"drain {STAYS}; it was given up", "scale +1      or      llumctl drain i-1 --deadline"),
    ),
    "taken back": (
        (DRAIN, process(), 1),
        (report(), None),
        (f"the drain of i-1 {TAKEN_BACK}", "llumctl events --kind operator"),
    ),
    "a restart that was taken back: the process is the same": (
        (RESTART, process(**SAME), 1),
        (restarting(), None),
        (f"the restart of i-1 {TAKEN_BACK}", "llumctl status"),
    ),
    "a restart whose new process failed": (
        (RESTART, process(FAILED, **NEW), 1),
        (restarting(), None),
        ("i-1 was restarted, and its new process could not start", "llumctl logs i-1 "),
    ),
}
"""The command, the instance in the end and the exit code; all reports, of which None means that
the drain is no more; the last lines of stderr, or parts of them."""


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
def test_it_is_followed_to_its_end(bed: Bed, capsys: Captured, course: Any) -> None:
    (command, after, code), (first, *later), said = course
    bed.fake.status = cluster(instance("i-0"), *filter(None, (after,)))
    bed.begun = first
    assert bed.follows(command, *later) == code
    captured = capsys.readouterr()
    told = captured.err.splitlines()
    assert all(part in line for part, line in zip(said, told[-len(said) :], strict=True)), told
    assert code or len(told) == len(said)
    row = captured.out.splitlines()[1].split()
    assert row[0] == "i-1"
    assert code != 124 or row[-3:-1] == ["passed", "no"]
    assert ("/v1/status" in bed.fake.asked) == (later[-1:] == [None]), "a status is large"


def test_what_is_ordered_and_detached_is_not_followed(bed: Bed, capsys: Captured) -> None:
    for command, options, body in (
        (DRAIN, "", {"deadline_s": None, "on_deadline": "keep", "with_ids": []}),
        (
            DRAIN,
            "--deadline 30 --on-deadline abort --force",
            {"deadline_s": 30.0, "on_deadline": "abort", "with_ids": [], "force": True},
        ),
        (REMOVE, "--within 2m --force", {"within_s": 120.0, "force": True, "warm_s": 0.0}),
        (REMOVE, "--warm 10s", {"within_s": 30.0, "warm_s": 10.0}),
        (RESTART, "--warm 1m", {"deadline_s": None, "now": False, "warm_s": 60.0}),
        (
            RESTART,
            "--now -m leak",
            {"deadline_s": None, "now": True, "reason": "leak", "warm_s": 0.0},
        ),
    ):
        bed.fake.ordered.clear()
        assert run([*command, *options.split(), "-y", "--detach"]) == 0
        assert bed.fake.bodies() == [COMMON | body]
        assert bed.fake.asked == []
        header, row = capsys.readouterr().out.splitlines()
        assert header.split()[:5] == ["ID", "STATE", "LEFT", "MOVING", "MOVED"]
        assert row.split()[:5] == ["i-1", "draining", "2", "1", "0"]


def test_a_controller_that_is_away_is_waited_for_and_a_cluster_that_is_stopped_is_not(
    bed: Bed, cli: Cli
) -> None:
    def come_back() -> None:
        bed.fake.until_asked_again("/v1/drains")
        bed.fake.stop()
        bed.fake.drains = [report("drained")]
        bed.fake.start()

    with meanwhile(come_back):
        captured = cli(*DRAIN, "-y")
    assert captured.err.splitlines()[-1] == "i-1: safe to delete (0 moved)"

    def end() -> None:
        bed.fake.until_asked_again("/v1/drains")
        run_state.remove("default")

    with meanwhile(end):
        captured = cli(*DRAIN, "-y", code=3)
    assert "cluster default is not running" in captured.err


def test_ctrl_c_leaves_it_going(bed: Bed, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_self: instances.DrainWatch) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(instances.DrainWatch, "until_over", interrupt)
    for command, what, tried in (
        (DRAIN, "drain", "status --wait=drained=i-1      or      llumctl uncordon i-1"),
        (REMOVE, "drain", "uncordon i-1"),
        (RESTART, "restart", "status --wait=instance/i-1=active"),
    ):
        told = f"no longer watching: the {what} goes on (i-1)\ntry:   llumctl {tried}\n"
        assert cli(*command, "-y", code=130).err == told
    assert len(bed.fake.ordered) == 3


# -- dry runs and formats -----------------------------------------------------------------


def test_a_dry_run_shows_the_plan(bed: Bed, cli: Cli) -> None:
    title, *table = cli(*DRAIN, "--dry-run", code=10).out.split("\n\n")[1].splitlines()
    assert title == "i-1:"
    assert [line.split(maxsplit=5)[4:] for line in table] == [
        ["TO", "WHY-NOT"],
        ["i-0", "-"],
        ["-", NO_ROOM],
    ]
    bed.plan = report(dry_run=True)
    assert run([*DRAIN, "--dry-run"]) == 0, "it is draining already"
    assert [body["dry_run"] for body in bed.fake.bodies()] == [True, True]


def test_the_formats(bed: Bed, cli: Cli) -> None:
    def told(format_: str) -> str:
        return cli(*DRAIN, "--dry-run", "-o", format_, code=10).out

    found = json.loads(told("json"))
    assert found == json.loads(DrainList(drains=(bed.plan,)).model_dump_json())
    assert json.loads(told("jsonl")) == found["drains"][0]
    assert told("name") == "i-1\n"
    assert "REVISION" in told("wide").splitlines()[0]


def test_several_one_after_the_other(bed: Bed, capsys: Captured, cli: Cli) -> None:
    """Each on the revision that the one before left; what was begun before a refusal is said."""
    bed.begun = report("drained", revision=8)
    assert run(["drain", "i-1", "i-2", "i-1", "-y", "--detach", "--if-revision", "7"]) == 0
    assert [body["if_revision"] for body in bed.fake.bodies()] == [7, 8]
    assert [body["with_ids"] for body in bed.fake.bodies()] == [["i-2"], ["i-1"]]
    assert len(capsys.readouterr().out.splitlines()) == 3
    bed.fake.orders["POST /v1/instances/i-2/drain"] = lambda _: refused(
        "last_instance", 409, "i-2 is the last one"
    )
    assert cli("drain", "i-1", "i-2", "-y", code=5).err.startswith(
        "draining has begun: i-1 (llumctl uncordon i-1)\nerror: i-2 is the last one\n"
    )


# -- the question -------------------------------------------------------------------------


def test_without_a_terminal_it_does_not_act(bed: Bed, cli: Cli) -> None:
    error, hint = cli(*REMOVE, code=5).err.splitlines()
    assert error.endswith(" asks before it acts, and there is no terminal to ask on")
    typed = "llumctl drain i-1 --remove --within 30s"
    assert hint == f"try:   {typed} --dry-run      then      {typed} -y"
    assert all(body["dry_run"] for body in bed.fake.bodies()), "it only planned"


def test_it_asks_with_what_it_would_do(bed: Bed, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []
    monkeypatch.setattr(output, "check_terminal", lambda *_: None)
    monkeypatch.setattr(output, "ask", questions.append)
    left = "left: 1 of 2 serving instances, 450 of their 1000 blocks free"
    told = cli(*DRAIN, "--detach").err.splitlines()[-2:]
    assert told == ["i-1: 2 requests: 1 move now, 1 wait for room", left]
    bed.plan = report("active", plan=REPLAYED, dry_run=True, num_requests_left=1)
    told = cli(*RESTART, "--now", "--detach").err.splitlines()[-2:]
    assert told == ["i-1: 1 request would be replayed elsewhere", left]
    assert questions == ["Drain i-1?", "Restart i-1 at once?"]
    asked = [(body["dry_run"], body["if_revision"]) for body in bed.fake.bodies()]
    assert asked == [(True, None), (False, 4)] * 2, "the answer is about what was shown"


def test_the_answer_is_about_the_oldest_of_the_plans(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something changed between the first plan and the second."""
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    monkeypatch.setattr(output, "ask", lambda _: None)
    bed.fake.orders["POST /v1/instances/i-2/drain"] = lambda body: (
        200,
        report(instance_id="i-2", revision=9, dry_run=body["dry_run"], changes=True),
    )
    assert run(["drain", "i-1", "i-2", "--detach"]) == 0
    ordered = [body["if_revision"] for body in bed.fake.bodies() if not body["dry_run"]]
    assert ordered == [4, 4]


@pytest.mark.process
@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ("y\n", 0, "i-1  draining"),
        ("\x04", 5, "error: the answer was not yes: nothing was changed"),
        ("\x03", 130, "interrupted: nothing was changed"),
    ],
)
def test_an_answer_on_a_terminal(bed: Bed, answer: str, code: int, words: str) -> None:
    with terminal(*DRAIN, "--detach") as screen:
        screen.until("cmpl-3", "Drain i-1? [y/N] ")
        screen.press(answer)
        assert screen.process.wait(LIMIT_S) == code
    assert words in screen.text
    assert len(bed.fake.ordered) == 1 + (code == 0)


# -- uncordon -----------------------------------------------------------------------------


def test_a_drain_is_taken_back(bed: Bed, cli: Cli) -> None:
    bed.fake.drains = [report("drained")]
    assert run(["uncordon", "i-1", "--dry-run"]) == 10
    captured = cli("uncordon", "i-1", "-m", "done", "--if-revision", "4")
    assert captured.err == ""
    assert captured.out.endswith("i-1: drain taken back, gets new requests again\n")
    planned, ordered = bed.fake.bodies("undrain")
    assert planned["dry_run"]
    assert ordered == {"reason": "done", "if_revision": 4, "dry_run": False}
    assert cli("uncordon", "i-1", "-o", "name") == ("", "nothing to change\n")


def test_of_several_it_says_what_was_done_before_one_failed(bed: Bed, cli: Cli) -> None:
    bed.fake.drains = [report()]
    gone = refused("no_such_instance", 404, "there is no instance 'i-2'")
    undrain = "POST /v1/instances/i-2/undrain"
    bed.fake.orders[undrain] = lambda _: gone
    assert cli("uncordon", "i-1", "i-2", code=4).err.startswith("error: there is no instance 'i-2'")
    bed.fake.orders["POST /v1/instances/i-2/uncordon"] = bed.uncordon
    planned = refused("not_draining", 409, "nobody drains it")
    bed.fake.orders[undrain] = lambda body: planned if body["dry_run"] else gone
    assert cli("uncordon", "i-1", "i-2", code=4).err.startswith(
        "i-1: drain taken back, gets new requests again\nerror: there is no instance 'i-2'\n"
    )
