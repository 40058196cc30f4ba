"""`llumctl requests`: the list and its order, and one request with the decisions about it."""

import json
from typing import Any

import pytest

from controller.api.wire.requests import (
    Considered,
    DispatchStep,
    Explanation,
    ForgottenStep,
    MoveStage,
    MoveStep,
    NotMovedStep,
    OtherStep,
    PriorityStep,
    RequestDetail,
    RequestList,
    RequestState,
    RequestStatus,
    Step,
    Waiting,
)
from controller.api.wire.status import HeldPlaceStatus
from tests.unit.cli_support import Cli, facts
from tests.unit.fake_controller import ARRIVAL_S, FakeController, event, request_fields

Captured = pytest.CaptureFixture[str]
WAITING = RequestState.WAITING

pytestmark = pytest.mark.usefixtures("utc")


def request(id_: str, **fields: Any) -> RequestStatus:
    return RequestStatus(**request_fields(id_, **fields))


LISTED = (
    request("r-1", movable=False, why_not_movable="in_prefill"),
    request("r-2", state=WAITING, ttft_s=None, instance_id=None, movable=True),
    request("r-3", state=RequestState.FINISHED, finish_reason="stop"),
)
HELD = HeldPlaceStatus(
    place=3, why="kept", demand_blocks=688, instance_id="i-3", lacking_blocks=198
)


def rows(cli: Captured, *options: str) -> list[dict[str, str]]:
    header, *lines = cli.out("requests", *options).splitlines()
    return [dict(zip(header.split(), line.split(), strict=True)) for line in lines]


# -- the list -----------------------------------------------------------------------------


def test_a_row_each_in_the_order_of_the_controller(fake: FakeController, cli: Cli) -> None:
    fake.requests = RequestList(requests=LISTED, num_matching=3)
    first, waiting, _ = rows(cli)
    assert list(first.values()) == [
        *("r-1", "cmpl-r-1", "running", "normal", "i-0"),
        *("12s", "34ms", "120", "33", "1", "in_prefill"),
    ]
    assert (waiting["INSTANCE"], waiting["TTFT"], waiting["MOVABLE"]) == ("-", "-", "yes")
    last = rows(cli, "-o", "wide")[-1]
    assert (last["FRONTEND"], last["ARRIVED"]) == ("f-0", "22:13:20.000")
    assert (last["PARENT"], last["END"]) == ("-", "stop")
    assert (last["BLOCKS"], last["LAST"]) == ("-", "-")


def test_of_several_models_each_request_names_its_model(fake: FakeController, cli: Cli) -> None:
    fake.requests = RequestList(requests=(request("r-1", model="small"),), num_matching=1)
    (row,) = rows(cli)
    assert list(row)[2:4] == ["MODEL", "STATE"]
    assert row["MODEL"] == "small"


def test_machine_formats_of_the_list(fake: FakeController, cli: Cli) -> None:
    assert cli.out("requests", "-o", "name") == cli.out("requests", "-o", "jsonl") == ""
    fake.requests = RequestList(requests=LISTED, num_matching=3)
    ids = ["r-1", "r-2", "r-3"]
    assert cli.out("requests", "-o", "name").split() == ids
    lines = map(json.loads, cli.out("requests", "-o", "jsonl").splitlines())
    assert [(row["id"], row["schema_version"]) for row in lines] == [(id_, 1) for id_ in ids]
    whole = json.loads(cli.out("requests", "-o", "json"))
    assert (whole["schema_version"], whole["num_matching"]) == (1, 3)


def test_filters_go_to_the_controller(fake: FakeController, cli: Cli) -> None:
    cli.out("requests", "--instance", "i-0", "--state", "running, evicted", "-n", "7")
    asked = "/v1/requests?limit=7&state=running&state=evicted&movable=true&instance=i-0"
    assert fake.asked == [asked]


def test_what_is_missing_is_said(fake: FakeController, cli: Cli) -> None:
    silent = ("f-1", "f-2")
    fake.requests = RequestList(requests=LISTED, num_matching=250, silent_frontends=silent)
    first, _, last = cli("requests", "-o", "name").err.splitlines()
    assert first == "frontend f-1 did not answer: its requests are missing"
    assert last == "3 of 250 requests; more: --limit 250"


def test_what_the_controller_holds_has_its_place_there(fake: FakeController, cli: Cli) -> None:
    waiting = request("r-7", state=WAITING, ttft_s=None, instance_id=None, held=HELD)
    fake.requests = RequestList(requests=(LISTED[0], waiting), num_matching=2)
    runs, row = rows(cli)
    assert (row["STATE"], row["INSTANCE"], row["PLACE"]) == ("waiting", "controller", "3")
    assert (row["NEEDS"], row["KEPT"], row["WHY"]) == ("688", "i-3", "kept")
    assert [runs[name] for name in ("PLACE", "NEEDS", "KEPT", "WHY")] == ["-"] * 4


# -- one request --------------------------------------------------------------------------

WHERE = {"from_instance_id": "i-0", "to_instance_id": "i-1", "freeness_steps": 12.4}
WAITED = {"waited_s": 0.3}
CONSIDERED = (
    Considered(instance_id="i-2", figure=700.2),
    Considered(instance_id="i-1", figure=520.0),
    Considered(instance_id="i-3"),
)
STEPS: tuple[Step, ...] = (
    DispatchStep(
        time_s=ARRIVAL_S + 0.002,
        cause_id="arrive-r-1",
        instance_id="i-2",
        by="controller",
        policy="llumnix",
        candidates=CONSIDERED,
        num_considered=16,
    ),
    OtherStep(time_s=ARRIVAL_S + 0.01, what="admitted", instance_id="i-0", figures=WAITED),
    NotMovedStep(
        time_s=ARRIVAL_S + 1,
        code="ends_first",
        why="it ends before it could be moved",
        candidates=CONSIDERED,
        figures={"copy_time_s": 0.25, "left_s": None},
        **WHERE,
    ),
    ForgottenStep(time_s=ARRIVAL_S + 1.1, num_events=7),
    PriorityStep(
        time_s=ARRIVAL_S + 1.5, previous="normal", level="high", actor="ana@head", reason="urgent"
    ),
    MoveStep(
        time_s=ARRIVAL_S + 2,
        kind="migrated",
        reason="queue head",
        candidates=CONSIDERED,
        stages=(MoveStage(num_blocks=9, num_bytes=4000, copy_time_s=0.01),) * 2,
        num_bytes=4096,
        downtime_s=0.024,
        **WHERE,
    ),
    MoveStep(
        time_s=ARRIVAL_S + 3, kind="migration_failed", code="no_blocks", why="no room", **WHERE
    ),
    DispatchStep(time_s=ARRIVAL_S + 4, instance_id="i-0", by="frontend", again=True),
)


def explain(fake: FakeController, *steps: Step, **explanation: Any) -> Explanation:
    """What the controller answers about cmpl-1 from now on."""
    known = {"movable": True, "instance_id": "i-2"} | explanation.pop("request", {})
    history = (event("dispatched", time_s=ARRIVAL_S + 71, incarnation=1, reason="best"),)
    detail = RequestDetail(**request_fields("r-1", **known), history=history)
    request = RequestStatus(**request_fields("r-1", **known))
    found = Explanation(request=request, steps=steps, **explanation)
    fake.details = {"cmpl-1": detail}
    fake.orders = {"GET /v1/requests/r-1/explain": lambda _: (200, found)}
    return found


def explained(cli: Captured, *options: str) -> list[str]:
    """The blocks of what is said about cmpl-1."""
    return cli.out("requests", "cmpl-1", *options).removesuffix("\n").split("\n\n")


def test_each_decision_with_what_it_chose_among(fake: FakeController, cli: Cli) -> None:
    explain(fake, *STEPS, could_move_to="i-3")
    shown, *steps = explained(cli)
    known = facts(shown)
    assert (known["id"], known["state"], known["instance"]) == ("r-1", "running", "i-2")
    assert known["movable"] == "yes; freest that has room: i-3"
    assert [step.splitlines()[0] for step in steps] == [
        "+2ms  dispatched to i-2, the best of 16 by llumnix",
        "+10ms  admitted on i-0",
        "+1.0s  not moved from i-0 to i-1: it ends before it could be moved (ends_first)",
        "+1.1s  7 events are not kept",
        "+1.5s  priority normal -> high by ana@head: urgent",
        "+2.0s  migrated from i-0 to i-1 (queue head)",
        "+3.0s  move from i-0 to i-1 came to nothing: no room",
        "+4.0s  dispatched again to i-0 by its frontend alone: the controller was silent",
    ]
    assert [line.split() for line in steps[0].splitlines()[1:]] == [
        ["INSTANCE", "SCORE"],
        ["i-2", "700", "chosen"],
        ["i-1", "520", "-"],
        ["i-3", "-", "-"],
    ]
    assert steps[1].splitlines()[1:] == ["    waited 300ms"]
    assert steps[2].splitlines()[1:3] == ["    freeness of i-0 12 steps", "    copy time 250ms"]
    assert steps[5].splitlines()[2] == "    2 stages, 4.0 KiB, downtime 24ms"

    _, *steps, history = explained(cli, "-o", "wide")
    assert steps[0].splitlines()[0].endswith("  (arrive-r-1)"), "wide names the causes"
    assert [line.split() for line in history.splitlines()] == [
        ["SINCE", "WHAT", "WHERE", "WHY"],
        ["+1m11s", "dispatched", "i-0/1", "best"],
    ]


def test_whether_it_could_move_and_why_it_waits(fake: FakeController, cli: Cli) -> None:
    waiting = Waiting(code="full", why="no room", figures={"demand_blocks": 118})
    for fields, name, fact in (
        ({"why_not_movable": "its prompt is read"}, "movable", "no: its prompt is read"),
        ({}, "movable", "yes; nowhere has room"),
        ({"waiting": waiting}, "waits", "full: no room; demand 118 blocks"),
        ({"request": {"held": HELD}}, "needs", "688"),
    ):
        explain(fake, **fields)
        (shown,) = explained(cli)
        assert facts(shown)[name] == fact


def test_machine_formats_of_one(fake: FakeController, cli: Cli) -> None:
    explanation = explain(fake, *STEPS)
    found = json.loads(cli.out("requests", "cmpl-1", "-o", "json"))
    assert (found["id"], found["history"][0]["kind"]) == ("r-1", "dispatched")
    assert found["explanation"] == json.loads(explanation.model_dump_json())
    assert json.loads(cli.out("requests", "cmpl-1", "-o", "jsonl")) == found
    assert cli.out("requests", "cmpl-1", "-o", "name") == "r-1\n"


def test_what_comes_from_afar_does_not_drive_the_terminal(fake: FakeController, cli: Cli) -> None:
    explain(fake, OtherStep(time_s=ARRIVAL_S, what="\x1b[2J"), request={"client_id": "\x07"})
    assert all(char.isprintable() or char == "\n" for char in cli.out("requests", "cmpl-1"))


@pytest.mark.usefixtures("fake")
def test_an_unknown_request(cli: Cli) -> None:
    said = "error: there is no request r/9?\ntry:   llumctl requests\n"
    assert cli("requests", "r/9?", code=4) == ("", said)
