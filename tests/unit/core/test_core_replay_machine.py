"""What a frontend does with requests whose instance is gone: every state and event of the machine;
`test_core_routes` plays random histories. And lost requests as the cluster counts them."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from controller.core.fleet.cluster_spec import ExitReason
from controller.core.load.snapshot import InstanceRef
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.replay import replay_machine as replays
from controller.core.replay.replay_log import MAX_RECENT, ReplayLog, Way
from controller.core.replay.replay_machine import SENTENCES, ReplayRefusal, why_not
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.core.settings import ReplayConfig

I0 = InstanceRef("i-0", 1, "mem://i-0")
I1 = InstanceRef("i-1", 1, "mem://i-1")
LOSS = replays.Lost("r", I0, "instance i-0 died", 0.5)


ARRIVED = replays.Arrived(DispatchRequested("r", "f-0", 10, 0, 5.0), (b"x",))
DISPATCHED = replays.Dispatched(Dispatch("r", "f-0", "i-1", 1, 9), I1)


def refused(*, retryable: bool = True, attempt: int = 0) -> replays.Refused:
    return replays.Refused("r", I0, "restarted", retryable, attempt, None)


@dataclass
class Bed:
    machine: replays.ReplayMachine = field(default_factory=replays.ReplayMachine)
    now_s: float = 100.0

    def take(self, *events: replays.Event) -> list[replays.Instruction]:
        """The instructions of the last of them."""
        told: list[replays.Instruction] = []
        for event in events:
            told = list(self.machine.handle(event, self.now_s))
            self.machine.check()
        return told

    @property
    def state(self) -> replays.CopyState:
        return self.machine.state("r")


@pytest.fixture
def bed() -> Bed:
    bed = Bed()
    bed.take(ARRIVED)
    return bed


def kinds(told: list[replays.Instruction]) -> list[type]:
    return [type(each) for each in told]


STANDBY, ASKING = replays.CopyState.STANDBY, replays.CopyState.ASKING
PAUSING, OVER = replays.CopyState.PAUSING, replays.CopyState.OVER
REACHED: dict[replays.CopyState, tuple[replays.Event, ...]] = {
    STANDBY: (),
    ASKING: (LOSS,),
    PAUSING: (LOSS, replays.NotDispatched("r")),
    OVER: (replays.Over("r"),),
}
WOKEN, FOUND = replays.Woken("r", 100.0 + replays.ASK_AGAIN_S), replays.Found("r")
TABLE: dict[tuple[replays.CopyState, replays.Event], tuple[replays.CopyState, list[type]]] = {
    (STANDBY, LOSS): (ASKING, [replays.RecordLoss, replays.Ask]),
    (STANDBY, refused()): (PAUSING, [replays.RecordLoss, replays.WakeAt]),
    (STANDBY, refused(retryable=False)): (OVER, [replays.Refuse]),
    (STANDBY, replays.Over("r")): (OVER, []),
    (PAUSING, WOKEN): (ASKING, [replays.Ask]),
    (PAUSING, FOUND): (STANDBY, [replays.RecordFound, replays.CallOff]),
    (PAUSING, replays.Over("r")): (OVER, [replays.CallOff]),
    (ASKING, replays.NotDispatched("r")): (PAUSING, [replays.WakeAt]),
    (ASKING, DISPATCHED): (STANDBY, [replays.Send]),
    (ASKING, replays.NotSent("r")): (OVER, [replays.Fail]),
    (ASKING, FOUND): (STANDBY, [replays.RecordFound, replays.CallOff]),
    (ASKING, replays.Over("r")): (OVER, [replays.CallOff]),
}
EVENTS = (
    LOSS,
    refused(),
    refused(retryable=False),
    WOKEN,
    FOUND,
    replays.NotDispatched("r"),
    DISPATCHED,
    replays.NotSent("r"),
    replays.Over("r"),
    replays.Delivered("r", (1, 2)),
    replays.Taken("r", 0),
    replays.Taken("r", 1),
)


@pytest.mark.parametrize("state", replays.CopyState)
def test_each_event_in_each_state(state: replays.CopyState) -> None:
    for event in EVENTS:
        bed = Bed()
        bed.take(ARRIVED, *REACHED[state])
        assert bed.state is state
        told = bed.take(event)
        late = [replays.Decline] if isinstance(event, replays.Dispatched) else []
        assert (bed.state, kinds(told)) == TABLE.get((state, event), (state, late)), event


def test_after_each_refusal_it_waits_twice_as_long_and_that_is_no_replay(bed: Bed) -> None:
    waits = []
    for attempt in range(replays.MAX_REFUSALS):
        record, wake = bed.take(refused(attempt=attempt))
        assert record.loss.num_replays == 0
        waits.append(wake.time_s - bed.now_s)
        assert bed.take(replays.Woken("r", wake.time_s - 0.01)) == [], "of an earlier wait"
        bed.take(replays.Woken("r", wake.time_s), DISPATCHED)
    assert waits == pytest.approx([0.05 * 2**n for n in range(replays.MAX_REFUSALS)])
    assert bed.take(refused(attempt=replays.MAX_REFUSALS)) == [
        replays.Refuse("r", "restarted", True)
    ]


def test_a_token_ends_the_row_of_refusals(bed: Bed) -> None:
    for attempt in range(replays.MAX_REFUSALS + 3):
        _, wake = bed.take(replays.Delivered("r", (attempt,)), refused(attempt=attempt))
        bed.take(replays.Woken("r", wake.time_s), DISPATCHED)


def test_a_request_that_was_found_was_not_replayed(bed: Bed) -> None:
    assert bed.take(LOSS, replays.Found("r"))[0] == replays.RecordFound("r", 0)
    bed.take(LOSS, DISPATCHED)
    found = bed.take(refused(attempt=1), replays.Found("r"))[0]
    assert found == replays.RecordFound("r", 1), "the refusal had not counted as one"


def test_a_host_that_dies_takes_no_request_with_it(bed: Bed) -> None:
    """Its instances are noticed one after the other, and the request is sent to each of them."""
    bed.machine.config = ReplayConfig(max_replays=1)
    for _ in range(replays.MAX_NOT_TAKEN + 1):
        record, ask = bed.take(LOSS)
        assert record.loss.num_replays == 1, "the one that had it"
        assert isinstance(ask, replays.Ask)
        bed.take(DISPATCHED, replays.Taken("r", 0))  # the first attempt was
        assert bed.take(refused(attempt=0)) == []
    (fail,) = bed.take(LOSS)
    assert isinstance(fail, replays.Fail), "nobody ever says that it has it"
    assert fail.refusal is ReplayRefusal.TOO_OFTEN


def test_patience_begins_when_an_instance_is_asked_for(bed: Bed) -> None:
    bed.machine.config = ReplayConfig(patience_s=1.0)
    told = bed.take(refused())
    while kinds(told) != [replays.Fail]:
        wake = told[-1]
        bed.now_s = wake.time_s
        told = bed.take(replays.Woken("r", wake.time_s), replays.NotDispatched("r"))
    assert bed.now_s == pytest.approx(100.05 + 1.0)
    (fail,) = told
    assert fail.refusal is ReplayRefusal.NO_INSTANCE
    assert fail.message == (
        "restarted, and it cannot be replayed: no instance could take it in time; send it again"
    )


def test_tokens_that_come_while_it_waits_may_rule_the_replay_out() -> None:
    bed = Bed()
    marked = bed.take(replace(ARRIVED, mark=ReplayRefusal.MULTIMODAL))
    assert marked == [replays.Mark("r", ReplayRefusal.MULTIMODAL)]
    assert kinds(bed.take(LOSS)) == [replays.RecordLoss, replays.Ask], "it has no outputs"
    told = bed.take(replays.Delivered("r", (1,)), DISPATCHED)
    assert kinds(told) == [replays.Decline, replays.Fail]


def test_copies_are_dropped_beyond_their_limit_and_sent_as_they_are() -> None:
    """The prompt has 10 tokens."""
    bed = Bed()
    bed.machine.config = ReplayConfig(max_tokens_kept=13)
    assert bed.take(ARRIVED, replays.Delivered("r", (1, 2, 3))) == []
    assert bed.machine.num_copied_tokens == 13
    ask = bed.take(LOSS)[1]
    assert (ask.request.num_prompt_tokens, ask.request.replayed) == (13, True)
    (sent,) = bed.take(DISPATCHED)
    assert (sent.frames, list(sent.outputs), sent.replay.attempt) == ((b"x",), [1, 2, 3], 1)
    assert bed.take(replays.Delivered("r", (4,))) == [replays.Mark("r", ReplayRefusal.NOT_KEPT)]
    assert bed.machine.num_copied_tokens == 0
    assert kinds(bed.take(LOSS)) == [replays.Fail]
    bed.machine.config = ReplayConfig(max_tokens_kept=9)
    assert bed.take(ARRIVED) == [replays.Mark("r", ReplayRefusal.NOT_KEPT)]


# -- which requests are replayed after the death of their instance -------------------------


ALLOWED, OFF = ReplayConfig(max_replays=2), ReplayConfig(max_replays=0)
MULTIMODAL, NOT_KEPT = ReplayRefusal.MULTIMODAL, ReplayRefusal.NOT_KEPT


@pytest.mark.parametrize(
    ("config", "num_replays", "num_outputs", "mark", "refusal"),
    [
        (ALLOWED, 1, 7, None, None),
        (ALLOWED, 2, 7, None, ReplayRefusal.TOO_OFTEN),
        (OFF, 0, 0, None, ReplayRefusal.OFF),
        # An input that cannot be sent beside outputs: the request may begin anew.
        (ALLOWED, 0, 0, MULTIMODAL, None),
        (ALLOWED, 0, 1, MULTIMODAL, MULTIMODAL),
        (ALLOWED, 0, 0, NOT_KEPT, NOT_KEPT),
    ],
)
def test_why_one_is_not_replayed(config, num_replays, num_outputs, mark, refusal) -> None:
    assert why_not(config, num_replays, num_outputs, mark) is refusal


def test_each_refusal_has_its_sentence() -> None:
    assert set(SENTENCES) == set(ReplayRefusal)


# -- lost requests, by the reports of frontends and the controller -------------------------------


CAUSE = "lost-i-0-1"


def event(kind: EventKind, request_id: str = "r", **more: Any) -> LoggedEvent:
    cause_id = more.pop("cause_id", CAUSE)
    return LoggedEvent(kind, 0.0, cause_id, frontend_id="f-0", request_id=request_id, **more)


def lost_event(request_id: str = "r", silent_s: float | None = 0.5) -> LoggedEvent:
    numbers = {"num_tokens": 40, "silent_s": silent_s}
    return event(EventKind.REQUEST_LOST, request_id, instance_id="i-0", numbers=numbers)


def replayed_event(request_id: str = "r", downtime_s: float | None = 2.0) -> LoggedEvent:
    numbers = {"num_tokens": 40, "downtime_s": downtime_s}
    labels = {"from": "i-0", "to": "i-1"}
    more = {"instance_id": "i-1", "numbers": numbers, "labels": labels}
    return event(EventKind.REPLAYED, request_id, **more)


def test_a_replay_from_the_loss_to_its_first_token() -> None:
    log = ReplayLog()
    log.noted(lost_event(), 10.0)
    (replay,) = log.under_way.values()
    assert (replay.source_id, replay.destination_id, replay.num_tokens) == ("i-0", "", 40)
    assert replay.since_s == 9.5, "the client waits since its last token"
    assert log.num_by_instance() == ({}, {"i-0": 1})
    log.noted(event(EventKind.DISPATCHED, instance_id="i-1", cause_id="arrive-r"), 10.1)
    assert replay.destination_id == "i-1"
    assert log.num_by_instance() == ({"i-1": 1}, {"i-0": 1})
    log.noted(replayed_event(), 11.0)
    assert not log.under_way
    (ended,) = log.recent
    assert (ended.way, ended.source_id, ended.destination_id) == (Way.REPLAYED, "i-0", "i-1")
    assert (ended.pause_s, ended.ended_s) == (2.0, 11.0)
    assert log.counts() == {(Way.REPLAYED, ExitReason.DEATH): 1}
    assert log.last_minute(70.9) == (1, 0)
    assert log.last_minute(72.0) == (0, 0)


def test_the_ways() -> None:
    log = ReplayLog()
    for request_id in ("a", "b", "c", "d"):
        log.noted(lost_event(request_id), 0.0)
    log.noted(replayed_event("a"), 1.0)
    log.noted(replayed_event("b", downtime_s=None), 1.0)
    log.noted(event(EventKind.FAILED, "c", labels={"from": "i-0", "code": "too_often"}), 1.0)
    log.noted(event(EventKind.ABORTED, "d", cause_id="arrive-d"), 1.0)
    # One that never could be replayed_event counts too; other failures do not.
    log.noted(event(EventKind.FAILED, "e", labels={"from": "i-0", "code": "off"}), 1.0)
    log.noted(event(EventKind.FAILED, "f", cause_id="arrive-f"), 1.0)
    assert not log.under_way, "a client that left is none of them"
    assert {way: number for (way, _), number in log.counts().items()} == {
        Way.REPLAYED: 1,
        Way.DISPATCHED_AGAIN: 1,
        Way.FAILED: 2,
    }
    assert log.last_minute(2.0) == (2, 2)
    assert [each.code for each in log.recent][-2:] == ["too_often", "off"]


def test_why_the_instance_is_gone_may_be_known_before_or_after() -> None:
    log = ReplayLog()
    log.noted(lost_event("a"), 0.0)
    log.noted(replayed_event("a"), 0.1)
    assert log.reason(CAUSE) is ExitReason.DEATH, "until anything else is known"
    log.died("i-0", 1, ExitReason.FENCED)
    log.died("i-0", 1, ExitReason.DEATH)
    log.noted(lost_event("b"), 0.2)
    log.noted(replayed_event("b"), 0.3)
    assert log.counts() == {(Way.REPLAYED, ExitReason.FENCED): 2}


def test_one_that_is_lost_twice_is_silent_since_the_first_time_until_it_is_forgotten() -> None:
    for kind in (EventKind.FRONTEND_DIED, EventKind.EVENTS_LOST, EventKind.REQUEST_FOUND):
        log = ReplayLog()
        log.noted(lost_event(silent_s=None), 5.0)
        log.noted(event(EventKind.DISPATCHED, instance_id="i-1"), 5.1)
        log.noted(lost_event(silent_s=None), 8.0)
        assert log.under_way["r"].since_s == 5.0
        assert log.under_way["r"].destination_id == ""
        log.noted(event(kind), 9.0)
        assert not log.under_way, kind
        assert not log.counts()


def test_the_last_ones_are_kept() -> None:
    log = ReplayLog()
    for number in range(MAX_RECENT + 5):
        log.noted(lost_event(f"r-{number}"), 0.0)
        log.noted(replayed_event(f"r-{number}"), 1.0)
    assert len(log.recent) == MAX_RECENT
    assert log.recent[-1].request_id == f"r-{MAX_RECENT + 4}"
    assert sum(log.counts().values()) == MAX_RECENT + 5
