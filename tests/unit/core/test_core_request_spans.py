"""A request's record as a receipt and as spans."""

from dataclasses import replace
from typing import Any

import pytest

from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.record.request_record import RequestRecord, RequestState
from controller.core.record.request_spans import (
    MAX_NAMED_INSTANCES,
    RequestSpan,
    receipt_of,
    story_of,
)

ARRIVED_S = 1000.0


def event(kind: EventKind, after_s: float, instance_id: str = "i-0", **more: Any) -> LoggedEvent:
    numbers = {name: value for name, value in more.items() if not isinstance(value, str)}
    labels = {name.rstrip("_"): value for name, value in more.items() if isinstance(value, str)}
    return LoggedEvent(
        kind,
        ARRIVED_S + after_s,
        "cause",
        "the reason",
        instance_id=instance_id,
        numbers=numbers,
        labels=labels,
    )


DISPATCHED = event(EventKind.DISPATCHED, 1.0, policy="llumnix+")
ADMITTED = event(EventKind.ADMITTED, 2.0, num_tokens=10, num_cached_tokens=4)
FINISHED = event(EventKind.FINISHED, 9.0)


def record(*history: LoggedEvent, **what: Any) -> RequestRecord:
    known = RequestRecord(
        request_id="r",
        client_request_id="cmpl-r",
        parent_id=None,
        frontend_id="f-0",
        level="normal",
        state=RequestState.FINISHED,
        instance_id="i-0",
        incarnation=1,
        arrival_time_s=ARRIVED_S,
        num_prompt_tokens=10,
        num_output_tokens=5,
        num_evictions=0,
        first_token_time_s=ARRIVED_S + 3.0,
        end_time_s=ARRIVED_S + 9.0,
        finish_reason="length",
        history=history,
    )
    return replace(known, **what)


def parts(found: RequestRecord) -> dict[str, tuple[float, float]]:
    """When each part began and ended, after the request's arrival."""
    spans = story_of(found, ARRIVED_S + 20.0).spans
    assert len({span.name for span in spans}) == len(spans)
    return {s.name: (s.begin_s - ARRIVED_S, s.end_s - ARRIVED_S) for s in spans}


def part(found: RequestRecord, name: str) -> RequestSpan:
    (span,) = (each for each in story_of(found, ARRIVED_S + 20.0).spans if each.name == name)
    return span


def test_the_phases_follow_one_another() -> None:
    story = story_of(record(DISPATCHED, ADMITTED, FINISHED), ARRIVED_S + 20.0)
    assert (story.begin_s, story.end_s, story.error) == (ARRIVED_S, ARRIVED_S + 9.0, "")
    assert parts(record(DISPATCHED, ADMITTED, FINISHED)) == {
        "queue": (0.0, 2.0),
        "prefill": (2.0, 3.0),
        "decode": (3.0, 9.0),
    }
    assert [(m.name, m.time_s) for m in story.moments] == [("dispatched", ARRIVED_S + 1.0)]
    assert story.moments[0].attributes["policy"] == "llumnix+"
    assert story.attributes["num_cached_tokens"] == 4
    assert story.attributes["ttft_s"] == 3.0


@pytest.mark.parametrize(
    ("history", "what", "expected"),
    [
        ((), {"first_token_time_s": None}, {"queue": (0.0, 9.0)}),
        (
            (DISPATCHED, ADMITTED),
            {"first_token_time_s": None},
            {"queue": (0.0, 2.0), "prefill": (2.0, 9.0)},
        ),
        ((DISPATCHED,), {}, {"queue": (0.0, 3.0), "decode": (3.0, 9.0)}),
        (
            (DISPATCHED, ADMITTED),
            {"end_time_s": None, "state": RequestState.RUNNING},
            {"queue": (0.0, 2.0), "prefill": (2.0, 3.0), "decode": (3.0, 20.0)},
        ),
    ],
)
def test_phases_that_were_not_reached_or_not_told(
    history: tuple[LoggedEvent, ...], what: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert parts(record(*history, **what)) == expected


@pytest.mark.parametrize("late_s", [-50.0, 50.0])
def test_another_machine_s_clock_turns_no_span_around(late_s: float) -> None:
    evicted, again = event(EventKind.EVICTED, 4.0), event(EventKind.ADMITTED, 5.0)
    skewed = [replace(e, time_s=e.time_s + late_s) for e in (ADMITTED, evicted, again)]
    found = record(DISPATCHED, *skewed, FINISHED)
    for span in story_of(found, ARRIVED_S + 20.0).spans:
        assert ARRIVED_S <= span.begin_s <= span.end_s <= ARRIVED_S + 9.0
    assert parts(found)["queue"][1] == parts(found)["prefill"][0]


def test_a_move_lasts_from_its_first_copy_to_the_destination_s_first_token() -> None:
    figures = {"downtime_s": 0.05, "duration_s": 0.4, "since_commit_s": 0.1, "num_stages": 2}
    moved = event(EventKind.MIGRATED, 5.0, "i-1", from_="i-0", to="i-1", **figures)
    span = part(record(DISPATCHED, ADMITTED, moved, FINISHED, num_moves=1), "move")
    assert (span.begin_s, span.end_s) == (pytest.approx(ARRIVED_S + 4.5), ARRIVED_S + 5.0)
    assert span.attributes["from"] == "i-0"
    assert span.attributes["downtime_s"] == 0.05
    assert span.error == ""


def test_a_move_that_failed_is_an_error_of_its_own() -> None:
    failed = event(EventKind.MIGRATION_FAILED, 5.0, duration_s=0.4, why="it took too long")
    found = record(DISPATCHED, ADMITTED, failed, FINISHED)
    span = part(found, "move")
    assert (span.begin_s, span.end_s) == (pytest.approx(ARRIVED_S + 4.6), ARRIVED_S + 5.0)
    assert span.error == "it took too long"
    assert story_of(found, 0.0).error == ""


def test_an_eviction_lasts_until_the_request_is_in_the_batch_again() -> None:
    evicted = event(EventKind.EVICTED, 4.0)
    found = record(DISPATCHED, ADMITTED, evicted, event(EventKind.ADMITTED, 6.0), FINISHED)
    assert parts(found)["evicted"] == (4.0, 6.0)
    assert parts(record(DISPATCHED, ADMITTED, evicted, FINISHED))["evicted"] == (4.0, 9.0)


def test_a_replay_lasts_from_the_loss_to_the_next_token() -> None:
    lost = event(EventKind.REQUEST_LOST, 4.0, num_tokens=12)
    again = event(EventKind.DISPATCHED, 4.5, "i-1")
    replayed = event(EventKind.REPLAYED, 6.0, "i-1", to="i-1", from_="i-0", attempt=1)
    found = record(DISPATCHED, ADMITTED, lost, again, replayed, FINISHED, num_replays=1)
    assert parts(found)["replay"] == (4.0, 6.0)
    assert part(found, "replay").attributes["to"] == "i-1"
    lost_again = replace(lost, time_s=ARRIVED_S + 5.0)
    twice = record(DISPATCHED, ADMITTED, lost, again, lost_again, again, replayed, FINISHED)
    spans = [s for s in story_of(twice, 0.0).spans if s.name == "replay"]
    assert [(s.begin_s - ARRIVED_S, s.end_s - ARRIVED_S) for s in spans] == [(4.0, 5.0), (5.0, 6.0)]
    assert [s.error for s in spans] == ["lost again", ""]


def test_a_loss_that_was_none_or_that_was_the_end() -> None:
    lost = event(EventKind.REQUEST_LOST, 4.0, num_tokens=12)
    found = record(DISPATCHED, ADMITTED, lost, event(EventKind.REQUEST_FOUND, 5.0), FINISHED)
    assert parts(found)["replay"] == (4.0, 5.0)
    failed = event(EventKind.FAILED, 9.0)
    what = {"state": RequestState.FAILED, "finish_reason": "its instance was lost"}
    ended = record(DISPATCHED, ADMITTED, lost, failed, **what)
    assert parts(ended)["replay"] == (4.0, 9.0)
    assert part(ended, "replay").error == "the reason"
    assert story_of(ended, 0.0).error == "its instance was lost"


def test_a_receipt_adds_up_what_one_answer_took() -> None:
    first = record(DISPATCHED, ADMITTED, FINISHED, num_moves=1)
    late = replace(ADMITTED, time_s=ARRIVED_S + 2.5)
    second = record(DISPATCHED, late, FINISHED, num_moves=2, num_replays=1, instance_id="i-1")
    receipt = receipt_of([first, second, first])
    assert receipt is not None
    assert receipt.instances == ("i-0", "i-1")
    assert (receipt.queue_s, receipt.num_cached_tokens) == (2.5, 12)
    assert (receipt.num_moves, receipt.num_replays) == (4, 1)


def test_a_receipt_before_the_engine_has_begun_or_without_an_instance() -> None:
    begun = receipt_of([record(DISPATCHED)])
    assert begun is not None
    assert (begun.queue_s, begun.num_cached_tokens) == (1.0, None)
    assert receipt_of([record(instance_id=None)]) is None
    assert receipt_of([]) is None
    many = receipt_of([record(DISPATCHED, instance_id=f"i-{n}") for n in range(100)])
    assert many is not None
    assert len(many.instances) == MAX_NAMED_INSTANCES
