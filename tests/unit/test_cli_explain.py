"""`llumctl requests REQUEST`: the decisions about one, as people read them and as programs do."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.wire import ErrorBody
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
    RequestState,
    RequestStatus,
    Step,
    Waiting,
)
from llumctl.app import run
from tests.unit.cli_support import remember
from tests.unit.fake_controller import FakeController

Captured = pytest.CaptureFixture[str]
ARRIVED_S = 1_700_000_000.0
REQUEST: dict[str, Any] = {
    "id": "r-1",
    "client_id": "cmpl-1",
    "state": RequestState.RUNNING,
    "level": "high",
    "frontend_id": "f-0",
    "instance_id": "i-2",
    "arrival_time_s": ARRIVED_S,
    "age_s": 5.0,
    "num_prompt_tokens": 100,
    "num_output_tokens": 40,
    "movable": True,
}
WHERE = {"from_instance_id": "i-0", "to_instance_id": "i-1", "freeness_steps": 12.4}
CONSIDERED = (
    Considered(instance_id="i-2", figure=700.2),
    Considered(instance_id="i-1", figure=520.0),
    Considered(instance_id="i-3"),
)
STEPS: tuple[Step, ...] = (
    DispatchStep(
        time_s=ARRIVED_S + 0.002,
        cause_id="arrive-r-1",
        instance_id="i-2",
        by="controller",
        policy="llumnix",
        candidates=CONSIDERED,
        num_considered=16,
    ),
    OtherStep(
        time_s=ARRIVED_S + 0.01, what="admitted", instance_id="i-0", figures={"waited_s": 0.3}
    ),
    NotMovedStep(
        time_s=ARRIVED_S + 1,
        code="ends_first",
        why="it ends before it could be moved",
        candidates=CONSIDERED,
        figures={"copy_time_s": 0.25, "left_s": None},
        **WHERE,
    ),
    ForgottenStep(time_s=ARRIVED_S + 1.1, num_events=7),
    PriorityStep(
        time_s=ARRIVED_S + 1.5, previous="normal", level="high", actor="ana@head", reason="urgent"
    ),
    MoveStep(
        time_s=ARRIVED_S + 2,
        cause_id="m-i-0-1-1",
        kind="migrated",
        reason="queue head",
        candidates=CONSIDERED,
        stages=(
            MoveStage(num_blocks=9, num_bytes=4000, copy_time_s=0.01),
            MoveStage(num_blocks=1, num_bytes=96, copy_time_s=0.001),
        ),
        num_bytes=4096,
        downtime_s=0.024,
        **WHERE,
    ),
    MoveStep(
        time_s=ARRIVED_S + 3, kind="migration_failed", code="no_blocks", why="no room", **WHERE
    ),
)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeController]:
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NO_COLOR", "1")
    with FakeController() as served:
        remember(served.url)
        yield served


def tell(fake: FakeController, *steps: Step, **fields: Any) -> Explanation:
    """What the controller answers from now on."""
    request = RequestStatus(**(REQUEST | fields.pop("request", {})))
    found = Explanation(request=request, steps=steps, **fields)
    fake.details = {"cmpl-1": RequestDetail(**dict(request))}
    fake.orders = {"GET /v1/requests/r-1/explain": lambda _: (200, found)}
    return found


def explained(capsys: Captured, *options: str) -> list[str]:
    """The blocks."""
    assert run(["requests", "cmpl-1", *options]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.removesuffix("\n").split("\n\n")


def of(facts: str) -> dict[str, str]:
    rows = (line.partition(" ") for line in facts.splitlines())
    return {name: value.strip() for name, _, value in rows}


def test_each_decision_with_what_it_chose_among(fake: FakeController, capsys: Captured) -> None:
    tell(fake, *STEPS, could_move_to="i-3")
    facts, *steps = explained(capsys)
    known = of(facts)
    assert (known["id"], known["client-id"], known["level"]) == ("r-1", "cmpl-1", "high")
    assert (known["state"], known["instance"]) == ("running", "i-2")
    assert known["movable"] == "yes; freest that has room: i-3"
    assert [step.splitlines()[0] for step in steps] == [
        "+2ms  dispatched to i-2, the best of 16 by llumnix",
        "+10ms  admitted on i-0",
        "+1.0s  not moved from i-0 to i-1: it ends before it could be moved (ends_first)",
        "+1.1s  7 events are not kept",
        "+1.5s  priority normal -> high by ana@head: urgent",
        "+2.0s  migrated from i-0 to i-1 (queue head)",
        "+3.0s  move from i-0 to i-1 came to nothing: no room",
    ]
    assert [line.split() for line in steps[0].splitlines()[1:]] == [
        ["INSTANCE", "SCORE"],
        ["i-2", "700", "chosen"],
        ["i-1", "520", "-"],
        ["i-3", "-", "-"],
    ]
    assert steps[2].splitlines()[1:3] == ["    freeness of i-0 12 steps", "    copy time 250ms"]
    assert steps[2].splitlines()[5].split() == ["i-1", "520", "chosen"]
    assert steps[5].splitlines()[1:4] == [
        "    freeness of i-0 12 steps",
        "    2 stages, 4.0 KiB, downtime 24ms",
        "    INSTANCE  FREENESS",
    ]
    assert steps[1].splitlines()[1:] == ["    waited 300ms"]


def test_wide_names_the_causes(fake: FakeController, capsys: Captured) -> None:
    tell(fake, *STEPS)
    heads = [step.splitlines()[0] for step in explained(capsys, "-o", "wide")[1:-1]]
    assert heads[0].endswith("  (arrive-r-1)")
    assert heads[1] == "+10ms  admitted on i-0"
    assert heads[5].endswith("  (m-i-0-1-1)")


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"why_not_movable": "its prompt is still being computed"}, "no: its prompt is still bei"),
        ({"request": {"movable": None}}, "-"),
        ({}, "yes; nowhere has room"),
    ],
)
def test_whether_it_could_move(
    fake: FakeController, capsys: Captured, fields: dict[str, Any], line: str
) -> None:
    tell(fake, **fields)
    (facts,) = explained(capsys)
    assert of(facts)["movable"].startswith(line)


def test_why_it_waits(fake: FakeController, capsys: Captured) -> None:
    waiting = Waiting(code="fragmented", why="no blocks here", figures={"demand_blocks": 118})
    tell(fake, waiting=waiting, request={"state": "waiting", "movable": None})
    (facts,) = explained(capsys)
    assert of(facts)["waits"] == "fragmented: no blocks here; demand 118 blocks"


def test_what_the_controller_holds(fake: FakeController, capsys: Captured) -> None:
    held = {"place": 1, "why": "kept", "instance_id": "i-3", "lacking_blocks": 198}
    request = {"state": "waiting", "instance_id": None, "movable": None, "held": held}
    tell(fake, waiting=Waiting(code="held", why="the first at the controller"), request=request)
    (facts,) = explained(capsys)
    known = of(facts)
    assert (known["state"], known["instance"]) == ("waiting", "controller")
    assert known["waits"] == "held: the first at the controller"


def test_a_frontend_that_chose_alone(fake: FakeController, capsys: Captured) -> None:
    tell(fake, DispatchStep(time_s=ARRIVED_S, instance_id="i-0", by="frontend", again=True))
    assert explained(capsys)[1:] == [
        "+0ms  dispatched again to i-0 by its frontend alone: the controller was silent"
    ]


def test_the_machine_formats(fake: FakeController, capsys: Captured) -> None:
    told = tell(fake, *STEPS)
    (text,) = explained(capsys, "-o", "json")
    found = json.loads(text)
    assert (found["id"], found["history"]) == ("r-1", [])
    assert found["explanation"] == json.loads(told.model_dump_json())
    (text,) = explained(capsys, "-o", "jsonl")
    assert json.loads(text) == found
    assert explained(capsys, "-o", "name") == ["r-1"]
    assert explained(capsys, "-o", "yaml")[0].startswith("schema_version: 1\n")


def test_what_comes_from_afar_does_not_drive_the_terminal(
    fake: FakeController, capsys: Captured
) -> None:
    tell(fake, OtherStep(time_s=ARRIVED_S, what="\x1b[2J"), request={"client_id": "\x07"})
    assert all(char.isprintable() or char == "\n" for char in "\n\n".join(explained(capsys)))


def test_a_request_that_there_is_not(fake: FakeController, capsys: Captured) -> None:
    body = ErrorBody(code="not_found", message="there is no request 'x'", hint="llumctl requests")
    fake.orders = {"GET /v1/requests/x": lambda _: (404, body)}
    assert run(["requests", "x"]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: there is no request 'x'\ntry:   llumctl requests\n"
