"""What a frontend knows of its requests."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from controller.core.load.snapshot import BACKGROUND, Level
from controller.core.migration.move_records import MoveRecord, StageRecord
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.record.request_record import RequestRecord, RequestState
from controller.core.record.windows import Kept
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.runtime.frontend.request_book import MAX_HISTORY, RequestBook
from controller.runtime.messages.requests import RequestsAsked


@dataclass
class Bed:
    now_s: float = 1000.0
    events: list[LoggedEvent] = field(default_factory=list)
    observed: list[tuple[str, str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.book = RequestBook(
            "f-0",
            {0: "normal", 1: "high"},
            self.events.append,
            self,
            max_ended=3,
            wall_clock=lambda: self.now_s,
            clock=lambda: self.now_s,
        )

    def dispatched(self, level: str, queue_time_s: float) -> None:
        self.observed.append(("dispatched", level, queue_time_s))

    def first_token(self, level: str, ttft_s: float) -> None:
        self.observed.append(("first token", level, ttft_s))

    def ended(self, record: RequestRecord) -> None:
        self.observed.append((record.state.value, record.level, record.end_time_s or 0.0))

    def arrive(self, request_id: str, rank: int = 0, parent_id: str | None = None) -> None:
        client_id = f"client-{request_id}" if parent_id is None else parent_id
        self.book.arrived(
            DispatchRequested(request_id, "f-0", 10, rank, self.now_s), client_id, parent_id
        )

    def send(self, request_id: str, instance_id: str = "i-0", *, tell: bool = False) -> None:
        scores = ((instance_id, 80.0), ("i-9", 3.0))
        seq, policy = (0, "") if tell else (1, "llumnix")
        self.book.dispatched(
            Dispatch(request_id, "f-0", instance_id, 1, seq, scores, policy, num_considered=12)
        )

    def happened(self, request_id: str, kind: EventKind, incarnation: int = 1) -> None:
        where = {"instance_id": "i-0", "incarnation": incarnation, "request_id": request_id}
        self.book.happened(LoggedEvent(kind, self.now_s, "step-i-0-1-7", **where))

    def one(self, request_id: str) -> RequestRecord:
        (record,), num = self.ask(matching=request_id, history=True)
        assert num == 1
        return record

    def ask(self, **what: Any) -> tuple[tuple[RequestRecord, ...], int]:
        everything = {"instance_id": None, "states": (), "matching": None, "history": False}
        asked = RequestsAsked("q", **{**everything, "max_requests": 100, **what})
        return self.book.answer(asked)

    def ids(self, **what: Any) -> list[str]:
        return [record.request_id for record in self.ask(**what)[0]]


@pytest.fixture
def bed() -> Bed:
    return Bed()


@pytest.fixture
def sent(bed: Bed) -> Bed:
    """`r` is on i-0."""
    bed.arrive("r")
    bed.send("r")
    return bed


def test_the_life_of_a_request(bed: Bed) -> None:
    bed.arrive("r", rank=1)
    states = [bed.one("r").state]
    bed.now_s += 0.25
    bed.send("r")
    states.append(bed.one("r").state)
    for kind in (EventKind.ADMITTED, EventKind.EVICTED, EventKind.ADMITTED):
        bed.happened("r", kind)
        states.append(bed.one("r").state)
        bed.now_s += 0.25
        bed.book.emitted("r", 1, None)
    bed.now_s += 2.0
    bed.book.emitted("r", 4, "length")
    assert states == ["dispatching", "waiting", "running", "evicted", "running"]
    record = bed.one("r")
    assert (record.state, record.finish_reason, record.level) == ("finished", "length", "high")
    assert (record.num_output_tokens, record.num_evictions) == (7, 1)
    assert (record.first_token_time_s, record.end_time_s) == (1000.5, 1003.0)
    assert record.last_token_time_s == 1003.0
    kinds = [event.kind.value for event in record.history]
    assert kinds == ["dispatched", "admitted", "evicted", "admitted", "finished"]
    first = record.history[0]
    assert first.numbers == {"score_of_i-0": 80.0, "score_of_i-9": 3.0, "num_candidates": 12}
    assert first.labels == {"by": "controller", "policy": "llumnix"}
    (told,) = bed.events
    assert (told.kind, told.cause_id) == (EventKind.FINISHED, "arrive-r")
    assert told.numbers["ttft_s"] == 0.5
    assert bed.observed == [
        ("dispatched", "high", 0.25),
        ("first token", "high", 0.5),
        ("finished", "high", 1003.0),
    ]


def test_an_end_comes_once(bed: Bed) -> None:
    bed.arrive("r")
    bed.book.ended("r", RequestState.FAILED, "i-0 died", "lost-i-0-1")
    bed.book.ended("r", RequestState.ABORTED, "the client left")
    bed.book.emitted("r", 3, "stop")
    assert [(e.kind, e.reason, e.cause_id) for e in bed.events] == [
        (EventKind.FAILED, "i-0 died", "lost-i-0-1")
    ]
    assert bed.one("r").num_output_tokens == 0


@pytest.mark.parametrize(
    ("finish_reason", "state"), [("stop", "finished"), ("error", "failed"), ("abort", "aborted")]
)
def test_how_the_engine_ended_it(sent: Bed, finish_reason: str, state: str) -> None:
    sent.book.emitted("r", 1, finish_reason)
    assert (sent.one("r").state, sent.one("r").finish_reason) == (state, finish_reason)
    assert [event.kind.value for event in sent.events] == [state]


def test_only_where_it_runs_can_say_what_happened_to_it(bed: Bed) -> None:
    bed.arrive("r")
    bed.happened("r", EventKind.ADMITTED)
    bed.send("r", tell=True)
    bed.happened("r", EventKind.EVICTED, incarnation=2)
    assert bed.one("r").state is RequestState.WAITING
    assert [event.kind for event in bed.one("r").history] == [EventKind.DISPATCHED]
    (event,) = bed.events
    assert event.labels == {"by": "frontend"}, "the controller does not know of it"


def timed(request_id: str, migration_id: str = "m-1") -> tuple[MoveRecord, float]:
    stages = (StageRecord(6, 6000, 0.01), StageRecord(1, 1000, 0.002))
    ids = (migration_id, request_id, "i-0", "i-1", "by hand")
    return MoveRecord(*ids, "migrated", "", 100, 2, 0.05, stages), 0.02


def test_a_request_that_moved_is_where_it_went_and_tells_of_it(sent: Bed) -> None:
    sent.happened("r", EventKind.ADMITTED)
    sent.book.moved("r", "i-1", 4)
    assert sent.one("r").num_moves == 0, "it has no token from there yet"
    sent.now_s += 0.25
    sent.book.move_timed(*timed("r"), 0.024)
    sent.book.moved("gone", "i-1", 1)
    sent.book.move_timed(*timed("gone"), 0.1)
    found = sent.one("r")
    assert (found.instance_id, found.incarnation, found.num_moves) == ("i-1", 4, 1)
    assert found.state is RequestState.RUNNING
    event = found.history[-1]
    assert sent.events == [event], "the cluster hears of it"
    assert (event.kind, event.cause_id) == (EventKind.MIGRATED, "m-1")
    assert event.reason == "from i-0 to i-1: by hand"
    assert (event.instance_id, event.incarnation) == ("i-1", 4)
    assert (event.numbers["downtime_s"], event.numbers["num_bytes"]) == (0.024, 7000)
    assert event.numbers["excess_s"] == pytest.approx(0.004)
    assert event.numbers["since_commit_s"] == 0.25
    sent.happened("r", EventKind.EVICTED)
    assert sent.one("r").num_evictions == 0, "i-0 has it no more"


def test_a_request_that_moved_before_its_first_token_was_not_down(sent: Bed) -> None:
    sent.book.moved("r", "i-1", 1)
    sent.book.move_timed(*timed("r"), None)
    numbers = sent.one("r").history[-1].numbers
    assert (numbers["downtime_s"], numbers["excess_s"]) == (None, None)


def test_a_record_is_given_also_after_the_book_has_forgotten_its_request(bed: Bed) -> None:
    asked = DispatchRequested("kept", "f-0", 10, 0, bed.now_s)
    record = bed.book.arrived(asked, "client-kept", None)
    assert record().state is RequestState.DISPATCHING
    bed.book.ended("kept", RequestState.FINISHED, "stop")
    for number in range(5):
        bed.arrive(f"r-{number}")
        bed.book.ended(f"r-{number}", RequestState.FINISHED, "stop")
    assert bed.ids(matching="kept") == []
    found = record()
    assert (found.state, found.client_request_id) == (RequestState.FINISHED, "client-kept")
    assert [event.kind.value for event in found.history] == ["finished"]


def test_which_are_listed_and_in_what_order(bed: Bed) -> None:
    for request_id in ("a", "b", "c", "d", "e"):
        bed.arrive(request_id)
    for request_id in ("b", "c"):
        bed.send(request_id)
    bed.send("d", "i-1")
    bed.happened("c", EventKind.ADMITTED)
    bed.book.ended("e", RequestState.ABORTED, "the client left")
    assert bed.ids() == ["c", "b", "d", "a", "e"]
    assert bed.ids(instance_id="i-0") == ["c", "b"]
    assert bed.ids(states=(RequestState.ABORTED, RequestState.RUNNING)) == ["c", "e"]
    listed, num = bed.ask(max_requests=2)
    assert ([record.request_id for record in listed], num) == (["c", "b"], 5)
    bed.book.ended("c", RequestState.FINISHED, "stop")
    assert bed.ids(instance_id="i-0") == ["b"], "an instance's requests are those it has now"
    assert bed.ids(instance_id="i-0", states=(RequestState.FINISHED,)) == ["c"]


def test_by_which_names_one_is_found(bed: Bed) -> None:
    bed.arrive("0_p-1", parent_id="p")
    bed.arrive("x")
    assert bed.ids(matching="client-x") == ["x"]
    assert all(bed.ids(matching=named) == ["0_p-1"] for named in ("0_p", "p", "0_"))
    assert bed.ids(matching="nothing") == []


def test_the_ended_are_bounded_and_so_are_histories(bed: Bed) -> None:
    for n in range(5):
        bed.arrive(f"r{n}")
        bed.now_s += 1.0
        bed.book.ended(f"r{n}", RequestState.FINISHED, "stop")
    assert bed.ids() == ["r4", "r3", "r2"]
    bed.arrive("long")
    bed.send("long")
    for _ in range(MAX_HISTORY):
        bed.happened("long", EventKind.ADMITTED)
        bed.happened("long", EventKind.EVICTED)
    history = [event.kind for event in bed.one("long").history]
    assert len(history) == MAX_HISTORY
    assert (history[0], history[-1]) == (EventKind.DISPATCHED, EventKind.EVICTED)


def test_the_p99_of_ttft(bed: Bed) -> None:
    assert bed.book.ttft_p99().all_s is None
    for n in range(3):
        bed.arrive(f"r{n}")
    for n in range(3):
        bed.now_s += 1.0
        for _ in range(2):
            bed.book.emitted(f"r{n}", 1, None)
    assert bed.book.ttft_p99().all_s == 3.0
    bed.now_s += 61.0
    assert bed.book.ttft_p99().all_s is None


def test_the_first_token_of_a_line_of_a_batch_may_come_late(bed: Bed) -> None:
    bed.arrive("line", BACKGROUND.rank)
    bed.now_s += 100.0
    bed.book.emitted("line", 1, "stop")
    served = bed.book.served_lately()
    assert (served.ttft_p99.all_s, served.in_all.ttft) == (None, {})
    assert served.in_all.num_output_tokens == 1
    assert bed.one("line").level == "background"


def test_goodput_counts_who_kept_the_targets_of_its_level(bed: Bed) -> None:
    """A client that leaves proves nothing, and a failure is a miss."""
    levels = [Level("normal", 0), Level("high", 1, target_ttft_s=1.0, target_tpot_s=0.1)]
    bed.book.set_targets(levels)

    def serve(
        request_id: str, ttft_s: float, tpot_s: float, ends: str = "stop", rank: int = 1
    ) -> None:
        bed.arrive(request_id, rank)
        bed.send(request_id)
        bed.now_s += ttft_s
        bed.book.emitted(request_id, 1, None)
        bed.now_s += 10 * tpot_s
        bed.book.emitted(request_id, 10, ends)

    serve("kept", 0.9, 0.09)
    serve("late", 1.1, 0.05)
    serve("slow", 0.1, 0.11)
    serve("failed", 0.1, 0.05, "error")
    serve("left", 0.1, 0.05, "abort")
    serve("other", 9.0, 1.0, rank=0)
    assert bed.book.served_lately().kept_targets == {"high": Kept(1, 4)}
    bed.book.set_targets(levels[:1])
    assert bed.book.served_lately().kept_targets == {}, "no targets any more"
    bed.book.set_targets(levels)
    bed.now_s += 61.0
    assert bed.book.served_lately().kept_targets == {"high": Kept(0, 0)}
    assert (Kept(1, 4) + Kept(2, 4)).share == 0.375
    assert Kept().share is None


def test_one_token_has_no_time_between_tokens() -> None:
    level = Level("high", 1, target_ttft_s=1.0, target_tpot_s=0.1)
    assert level.is_met(0.5, None)
    assert Level("fast", 1, target_tpot_s=0.1).is_met(99.0, 0.1)
    assert not Level("normal", 0).has_targets
