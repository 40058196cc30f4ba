"""A request's history as the decisions that made it."""

from typing import Any

import pytest

from controller.adapters.http.requests import event_model
from controller.api.explain import explain
from controller.api.wire.requests import (
    Event,
    Explanation,
    ForgottenStep,
    MoveStep,
    NotMovedStep,
    OtherStep,
)
from controller.core.migration.move_records import MoveRecord, StageRecord
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.record.request_record import RequestRecord, RequestState
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.runtime.frontend.request_book import MAX_HISTORY, RequestBook
from controller.runtime.messages.requests import RequestsAsked
from tools import synthetic_cluster as synthetic

DECISION = {
    "source_freeness_steps": -4.0,
    "destination_freeness_steps": 300.0,
    "saved_s": 0.5,
    "freeness_of_i-1": 300.0,
    "freeness_of_i-2": 250.5,
}


def book() -> RequestBook:
    """r has been dispatched to i-0."""
    found = RequestBook("f-0", {0: "normal", 1: "high"}, wall_clock=lambda: 7.0)
    found.arrived(DispatchRequested("r", "f-0", 100, 0, 5.0), "client-r", None)
    scores = (("i-0", 80.0), ("i-1", 3.0))
    found.dispatched(Dispatch("r", "f-0", "i-0", 1, 1, scores, "llumnix", num_considered=9))
    return found


def record(found: RequestBook) -> RequestRecord:
    (only,), _ = found.answer(RequestsAsked("q", None, (), "r", True, 1))
    return only


def steps(found: RequestBook) -> tuple[Any, ...]:
    its = record(found)
    return explain([event_model(event) for event in its.history], its.num_forgotten)


def move(outcome: str = "migrated", code: str = "", **decision: float) -> MoveRecord:
    stages = (StageRecord(9, 3686, 0.01), StageRecord(1, 410, 0.002))
    return MoveRecord(
        "m-i-0-1-1", "r", "i-0", "i-1", "queue head", outcome, code, 153, 2, 0.05, stages, decision
    )


def test_a_dispatch_names_who_chose_among_whom() -> None:
    found = book()
    (step,) = steps(found)
    considered = [("i-0", 80.0), ("i-1", 3.0)]
    assert (step.cause_id, step.instance_id, step.by) == ("arrive-r", "i-0", "controller")
    assert [(each.instance_id, each.figure) for each in step.candidates] == considered
    assert (step.policy, step.num_considered) == ("llumnix", 9)
    # A replay is a dispatch again, and its frontend may have been alone.
    found.dispatched(Dispatch("r", "f-0", "i-2", 1, seq=0))
    again = steps(found)[1]
    assert (again.by, again.again, again.policy) == ("frontend", True, "")
    assert (again.candidates, again.num_considered) == ((), 0)


def test_a_move_names_both_sides_the_round_and_what_it_took() -> None:
    found = book()
    found.moved("r", "i-1", 1)
    found.move_timed(move(**DECISION), 0.02, 0.0244)
    step = steps(found)[1]
    assert isinstance(step, MoveStep)
    assert (step.kind, step.reason, step.code, step.why) == ("migrated", "queue head", "", "")
    assert (step.from_instance_id, step.to_instance_id) == ("i-0", "i-1")
    assert (step.freeness_steps, step.downtime_s, step.num_bytes) == (-4.0, 0.0244, 4096)
    considered = [("i-1", 300.0), ("i-2", 250.5)]
    assert [(each.instance_id, each.figure) for each in step.candidates] == considered
    assert [(each.num_blocks, each.num_bytes) for each in step.stages] == [(9, 3686), (1, 410)]
    assert step.figures["saved_s"] == 0.5
    assert step.figures["excess_s"] == pytest.approx(0.0044)
    assert not any(name.startswith(("freeness_of", "stage_")) for name in step.figures)


def happened(found: RequestBook, kind: EventKind, **about: Any) -> None:
    found.happened(
        LoggedEvent(kind, 8.0, "c-1", instance_id="i-0", incarnation=1, request_id="r", **about)
    )


def test_a_move_that_came_to_nothing_or_did_not_begin_says_why() -> None:
    found, ended = book(), move("kept", "no_blocks")
    why = "the destination has not enough free blocks"
    about = {"numbers": ended.numbers(), "labels": ended.labels()}
    happened(found, EventKind.MIGRATION_FAILED, reason=f"{why}; queue head", **about)
    labels = {"from": "i-0", "to": "i-1", "code": "ends_first", "why": "it ends before that"}
    numbers = {**DECISION, "left_s": 0.1}
    happened(found, EventKind.NOT_MOVED, reason="to i-1: ...", numbers=numbers, labels=labels)
    _, failed, step = steps(found)
    assert (failed.kind, failed.code, failed.why) == ("migration_failed", "no_blocks", why)
    assert (failed.reason, failed.to_instance_id) == ("queue head", "i-1")
    assert isinstance(step, NotMovedStep)
    assert (step.code, step.why) == ("ends_first", "it ends before that")
    assert (step.from_instance_id, step.to_instance_id) == ("i-0", "i-1")
    assert (step.figures["left_s"], step.freeness_steps) == (0.1, -4.0)
    assert [each.instance_id for each in step.candidates] == ["i-1", "i-2"]


def test_a_priority_says_what_it_was_and_who_asked_and_all_else_is_told_as_it_was() -> None:
    found = book()
    found.level_changed("r", 1, "op-1", "ana@host", "a demo")
    happened(found, EventKind.ADMITTED, reason="into the batch", numbers={"num_tokens": 100})
    found.ended("r", RequestState.FINISHED, "stop")
    changed, admitted, finished = steps(found)[1:]
    assert (changed.previous, changed.level, changed.actor) == ("normal", "high", "ana@host")
    assert (changed.cause_id, changed.reason) == ("op-1", "a demo")
    assert isinstance(admitted, OtherStep)
    assert (admitted.what, admitted.instance_id) == ("admitted", "i-0")
    assert (admitted.reason, admitted.figures) == ("into the batch", {"num_tokens": 100})
    assert (finished.what, finished.reason) == ("finished", "stop")


def test_what_was_forgotten_stands_where_it_stood() -> None:
    found = book()
    for _ in range(MAX_HISTORY - 1):
        happened(found, EventKind.EVICTED)
    assert not any(isinstance(step, ForgottenStep) for step in steps(found))
    for _ in range(7):
        happened(found, EventKind.EVICTED)
    told = steps(found)
    assert len(told) == MAX_HISTORY + 1
    (place,) = [n for n, step in enumerate(told) if isinstance(step, ForgottenStep)]
    assert (place, told[place].num_events) == (MAX_HISTORY // 2, 7)
    assert record(found).num_forgotten == 7


def test_steps_survive_the_wire_also_of_an_event_of_a_later_version() -> None:
    found = book()
    found.move_timed(move(**DECISION), 0.02, 0.0244)
    happened(found, EventKind.NOT_MOVED, labels={"code": "headroom", "why": "it has one"})
    found.level_changed("r", 1, "op-1", "ana", "")
    (later,) = explain([Event(kind="teleported", time_s=1.0, cause_id="c", reason="so")])
    assert (later.kind, getattr(later, "what", "")) == ("other", "teleported")
    (request,) = synthetic.requests("i-0", 1).requests[:1]
    explanation = Explanation(request=request, steps=(*steps(found), later))
    assert Explanation.model_validate_json(explanation.model_dump_json()) == explanation
