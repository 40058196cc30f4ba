"""Lost requests, as the cluster counts them from the reports of frontends and the controller."""

from typing import Any

from controller.core.fleet.cluster_spec import ExitReason
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.replay.replay_log import MAX_RECENT, ReplayLog, Way

CAUSE = "lost-i-0-1"


def event(kind: EventKind, request_id: str = "r", **more: Any) -> LoggedEvent:
    cause_id = more.pop("cause_id", CAUSE)
    return LoggedEvent(kind, 0.0, cause_id, frontend_id="f-0", request_id=request_id, **more)


def lost(request_id: str = "r", silent_s: float | None = 0.5) -> LoggedEvent:
    numbers = {"num_tokens": 40, "silent_s": silent_s}
    return event(EventKind.REQUEST_LOST, request_id, instance_id="i-0", numbers=numbers)


def replayed(request_id: str = "r", downtime_s: float | None = 2.0) -> LoggedEvent:
    numbers = {"num_tokens": 40, "downtime_s": downtime_s}
    labels = {"from": "i-0", "to": "i-1"}
    more = {"instance_id": "i-1", "numbers": numbers, "labels": labels}
    return event(EventKind.REPLAYED, request_id, **more)


def test_a_replay_from_the_loss_to_its_first_token() -> None:
    log = ReplayLog()
    log.noted(lost(), 10.0)
    (replay,) = log.under_way.values()
    assert (replay.source_id, replay.destination_id, replay.num_tokens) == ("i-0", "", 40)
    assert replay.since_s == 9.5, "the client waits since its last token"
    assert log.num_by_instance() == ({}, {"i-0": 1})
    log.noted(event(EventKind.DISPATCHED, instance_id="i-1", cause_id="arrive-r"), 10.1)
    assert replay.destination_id == "i-1"
    assert log.num_by_instance() == ({"i-1": 1}, {"i-0": 1})
    log.noted(replayed(), 11.0)
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
        log.noted(lost(request_id), 0.0)
    log.noted(replayed("a"), 1.0)
    log.noted(replayed("b", downtime_s=None), 1.0)
    log.noted(event(EventKind.FAILED, "c", labels={"from": "i-0", "code": "too_often"}), 1.0)
    log.noted(event(EventKind.ABORTED, "d", cause_id="arrive-d"), 1.0)
    # One that never could be replayed counts too; other failures do not.
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
    log.noted(lost("a"), 0.0)
    log.noted(replayed("a"), 0.1)
    assert log.reason(CAUSE) is ExitReason.DEATH, "until anything else is known"
    log.died("i-0", 1, ExitReason.FENCED)
    log.died("i-0", 1, ExitReason.DEATH)
    log.noted(lost("b"), 0.2)
    log.noted(replayed("b"), 0.3)
    assert log.counts() == {(Way.REPLAYED, ExitReason.FENCED): 2}


def test_one_that_is_lost_twice_is_silent_since_the_first_time_until_it_is_forgotten() -> None:
    for kind in (EventKind.FRONTEND_DIED, EventKind.EVENTS_LOST, EventKind.REQUEST_FOUND):
        log = ReplayLog()
        log.noted(lost(silent_s=None), 5.0)
        log.noted(event(EventKind.DISPATCHED, instance_id="i-1"), 5.1)
        log.noted(lost(silent_s=None), 8.0)
        assert log.under_way["r"].since_s == 5.0
        assert log.under_way["r"].destination_id == ""
        log.noted(event(kind), 9.0)
        assert not log.under_way, kind
        assert not log.counts()


def test_the_last_ones_are_kept() -> None:
    log = ReplayLog()
    for number in range(MAX_RECENT + 5):
        log.noted(lost(f"r-{number}"), 0.0)
        log.noted(replayed(f"r-{number}"), 1.0)
    assert len(log.recent) == MAX_RECENT
    assert log.recent[-1].request_id == f"r-{MAX_RECENT + 4}"
    assert sum(log.counts().values()) == MAX_RECENT + 5
