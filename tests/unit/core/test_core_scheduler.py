"""Single histories of the scheduler, then random ones; `test_core_dispatch` has others."""

import random
from dataclasses import replace
from unittest import mock

import pytest

from controller.core import scheduler_events as events
from controller.core.admission.instance_pool import LOST_AFTER_S
from controller.core.admission.placement import Placement
from controller.core.admission.policies import SchedulerConfig
from controller.core.emptying.openness import Cooling, Openness
from controller.core.load import closed
from controller.core.load.snapshot import Unreported
from controller.core.scheduler import GlobalScheduler
from controller.core.settings import HoldingConfig
from tests.unit.core.core_builders import (
    DRAINS,
    any_event,
    few_seeds,
    queued,
    request,
    running,
    scheduler_with,
    status,
)

CONFIG = SchedulerConfig(max_held_reqs=3, hold_timeout_s=30.0, stall_timeout_s=10.0)
STARTED, SERVES = events.InstanceStarted("a", 1), status("a")
DIED, DRAINED = events.InstanceDied("a", 1), events.ClosedBy("a", DRAINS)
STARTED_AGAIN = events.InstanceStarted("a", 2)


def _scheduler(*instance_ids: str) -> GlobalScheduler:
    """With idle instances that started and reported at 0 s."""
    scheduler = GlobalScheduler(CONFIG)
    for instance_id in instance_ids:
        _feed(scheduler, 0.0, events.InstanceStarted(instance_id, 1), status(instance_id))
    return scheduler


def _feed(scheduler: GlobalScheduler, now_s: float, *told: events.Event):
    instructions: list[events.Instruction] = []
    for event in told:
        instructions += scheduler.handle(event, now_s)
        scheduler.check()
    return instructions


def _placed(instructions: list[events.Instruction]) -> list[tuple[str, str]]:
    """(request, instance) of the dispatches; fails on anything else."""
    assert all(isinstance(instruction, events.Dispatch) for instruction in instructions)
    return [(x.request_id, x.instance_id) for x in instructions if isinstance(x, events.Dispatch)]


def test_a_request_goes_at_once_to_the_freest_instance() -> None:
    scheduler = _scheduler("a", "b")
    _feed(scheduler, 1.0, status("a", requests=[running("x", 50)]))
    (dispatch,) = _feed(scheduler, 1.0, request("r", tokens=160))
    assert dispatch == events.Dispatch("r", "f", "b", incarnation=1, seq=1)
    assert dict(dispatch.candidates) == {"a": 16 * 50, "b": 16 * 100}
    for each in "ab":
        _feed(scheduler, 1.0, status(each, requests=[running("x", 100), queued("q", 90)]))
    assert _placed(_feed(scheduler, 1.0, request("s"))) == [("s", "a")], "all are overloaded"


def test_unreported_requests_count_until_a_status_names_them() -> None:
    scheduler = _scheduler("a", "b")
    placed = _placed(_feed(scheduler, 0.0, *(request(f"r{i}", tokens=160) for i in range(4))))
    assert placed == [("r0", "a"), ("r1", "b"), ("r2", "a"), ("r3", "b")]
    record = scheduler.instances["a"]
    for seen, unreported in ((0, Unreported(2, 20)), (1, Unreported(1, 10)), (2, Unreported())):
        _feed(scheduler, 0.0, status("a", seen=seen))
        assert record.unreported == unreported
    assert scheduler.instances["b"].unreported == Unreported(2, 20)
    _feed(scheduler, 0.0, request("other's", frontend_id="g", tokens=160), events.FrontendDied("f"))
    unreported = [each.unreported for each in scheduler.instances.values()]
    assert unreported == [Unreported(1, 10), Unreported()]
    _feed(scheduler, 0.0, status("a", seen=500))
    (dispatch,) = _feed(scheduler, 0.0, request("r"))
    assert (dispatch.instance_id, dispatch.seq) == ("a", 501), "a predecessor gave 500"


def test_a_dispatch_that_never_arrives_is_not_charged_for_ever() -> None:
    scheduler = _scheduler("a")
    _feed(scheduler, 1.0, request("lost", tokens=160))
    _feed(scheduler, 5.0, request("late", tokens=320))
    record = scheduler.instances["a"]
    _feed(scheduler, LOST_AFTER_S + 0.5, status("a"))
    assert record.unreported == Unreported(2, 30), "it may still come"
    _feed(scheduler, LOST_AFTER_S + 1.0, status("a"))
    assert record.unreported == Unreported(1, 20)


@pytest.mark.parametrize(
    ("history", "refusal"),
    [
        ([STARTED, status("a", incarnation=2)], "no_status"),
        ([STARTED_AGAIN, SERVES], "no_status"),
        ([STARTED, DRAINED, SERVES], "draining"),
        ([DRAINED, STARTED, SERVES], "draining"),
        # Until it says so itself: it refuses moves still.
        ([STARTED, SERVES, DRAINED, events.ClosedBy("a")], "draining"),
        ([STARTED, SERVES, DRAINED, events.ClosedBy("a"), SERVES], None),
        ([STARTED, SERVES, DRAINED, events.InstanceStalled("a", 1)], "stalled"),
        ([DRAINED, events.InstanceRemoved("a"), STARTED, SERVES], None),
        ([STARTED, SERVES, DIED, STARTED, SERVES], "not_serving"),
        ([STARTED, SERVES, events.InstanceDied("a", 2)], "not_serving"),
        ([STARTED, SERVES, STARTED_AGAIN], "no_status"),
        ([STARTED_AGAIN, status("a", incarnation=2), DIED], None),
    ],
)
def test_who_is_schedulable(history: list[events.Event], refusal: str | None) -> None:
    scheduler = GlobalScheduler(CONFIG)
    _feed(scheduler, 0.0, *history)
    record = scheduler.instances["a"]
    assert next(iter(record.closed_by), None) == refusal
    assert record.reports is not any(each.stops_sending for each in record.closed_by)
    assert len(_feed(scheduler, 0.0, request("r"))) == (refusal is None)


def test_a_stalled_instance_comes_back_by_its_status_or_when_that_is_told() -> None:
    scheduler = _scheduler("a")
    record = scheduler.instances["a"]
    for back in (status("a"), events.InstanceStalled("a", 1, over=True)):
        _feed(scheduler, 10.0, events.InstanceStalled("a", 2), events.InstanceStalled("b", 1))
        assert record.schedulable, "of another incarnation"
        _feed(scheduler, 10.0, events.InstanceStalled("a", 1))
        assert (record.reports, record.may_send, record.may_receive) == (False, False, False)
        assert _feed(scheduler, 10.5, request("r")) == []
        assert _placed(_feed(scheduler, 11.0, back)) == [("r", "a")]


def test_an_unknown_instance_is_nobody() -> None:
    scheduler = GlobalScheduler(CONFIG)
    told = SERVES, events.InstanceStalled("a", 1), DIED, events.InstanceRemoved("a")
    assert _feed(scheduler, 0.0, *told) == []
    assert not scheduler.instances


def test_held_requests_go_by_rank_then_arrival_then_id_and_spread() -> None:
    scheduler = _scheduler("x", "y")
    _feed(scheduler, 0.0, *(events.InstanceStalled(each, 1) for each in "xy"))
    asked = [
        request("late", arrival=3.0),
        request("b", arrival=1.0),
        request("a", arrival=1.0),
        request("unknown-high", arrival=8.0, rank=5),
        request("low", arrival=0.0, rank=-1),
    ]
    scheduler.reconfigure(replace(CONFIG, max_held_reqs=5), 0.0)
    _feed(scheduler, 0.0, *asked)
    released = _placed(_feed(scheduler, 1.0, status("y")))
    assert [x for x, _ in released] == ["unknown-high", "a", "b", "late", "low"]
    assert {instance_id for _, instance_id in released} == {"y"}, "x still stalls"
    _feed(scheduler, 1.0, status("x"))
    assert _placed(_feed(scheduler, 1.0, request("r"))) == [("r", "x")]


def test_a_request_is_held_once_per_frontend_until_it_is_cancelled_or_its_frontend_dies() -> None:
    scheduler = GlobalScheduler(CONFIG)
    _feed(scheduler, 0.0, request("x"), request("x", tokens=9), request("y"), request("y"))
    _feed(scheduler, 0.0, request("x", frontend_id="g"))
    assert scheduler.reconfigure(replace(CONFIG, max_held_reqs=1), 0.0) == []
    assert scheduler.num_waiting == 3, "those that are held stay"
    for name in ("x", "never"):
        _feed(scheduler, 0.0, events.DispatchCancelled(name, "f"))
    assert scheduler.num_waiting == 2
    _feed(scheduler, 0.0, events.FrontendDied("f"), events.FrontendDied("nobody"))
    assert _feed(scheduler, 0.0, STARTED, SERVES) == [events.Dispatch("x", "g", "a", 1, seq=1)]


def test_who_waits_for_too_long_is_refused_at_its_time_and_under_a_shorter_limit_sooner() -> None:
    scheduler = GlobalScheduler(CONFIG)

    def refused(now_s: float) -> list[str]:
        told = scheduler.handle(events.Ticked(), now_s)
        assert {each.code for each in told} <= {events.RejectCode.UNAVAILABLE}
        return [each.request_id for each in told]

    scheduler.handle(request("a"), 0.0)
    scheduler.handle(request("high", rank=1), 0.0)
    assert refused(1.0) == []
    scheduler.handle(request("b"), 10.0)
    scheduler.handle(request("a", rank=1), 20.0)  # held since 0 s all the same
    assert refused(29.9) == []
    assert refused(30.0) == ["a", "high"]
    scheduler.handle(request("c"), 35.0)
    assert refused(39.9) == []
    assert refused(40.0) == ["b"]
    scheduler.reconfigure(replace(CONFIG, hold_timeout_s=10.0), 44.0)
    assert refused(44.9) == []
    assert refused(45.0) == ["c"]
    scheduler.handle(request("d"), 101.0)
    assert refused(110.9) == []
    assert refused(111.0) == ["d"]


# -- random histories ------------------------------------------------------------------------

IDS = ("a", "b", "c", "d")
HOLDING = HoldingConfig(
    room_to_grow_tokens=32, reserved_share=0.5, reserve_after_s=1.0, share_doubles_s=20.0
)
full_place = Placement.place


def always_searching(placement, rooms, score, prompt_of, now_s, adapter_wait_of, **_):
    return full_place(placement, rooms, score, prompt_of, now_s, adapter_wait_of)


@pytest.mark.parametrize("seed", few_seeds(6, 20))
def test_each_request_is_answered_once_and_all_agree_who_is_open(seed: int) -> None:
    """A status that leaves no more room than before starts no search, which changes no decision."""
    dice, now_s, cooling = random.Random(seed), 0.0, Cooling()
    config = SchedulerConfig(holding=HOLDING)
    short, full = (scheduler_with(config, a=0, b=0, c=0, d=0) for _ in range(2))
    openness = Openness(short, cooling)
    waits, num_waiting = dict[str, str](), 0
    """By request, its frontend."""
    for number in range(600):
        now_s += dice.choice((0.0, 0.02, 0.5))
        one, other = dice.sample(IDS, 2)
        if dice.random() < 0.05:
            cooling.failed(one, other, now_s)
        each = any_event(dice, short, number, IDS)
        match each:
            case events.DispatchRequested():
                waits[each.request_id] = each.frontend_id
            case events.DispatchCancelled() if waits.get(each.request_id) == each.frontend_id:
                del waits[each.request_id]
            case events.FrontendDied(frontend_id):
                waits = {key: each for key, each in waits.items() if each != frontend_id}
        found = short.handle(each, now_s)
        with (
            mock.patch.object(Placement, "place", always_searching),
            mock.patch.object(Placement, "is_settled", return_value=False),
        ):
            assert full.handle(each, now_s) == found
        assert short.placement.reserved == full.placement.reserved  # type: ignore[union-attr]
        assert short.help_blocked() == full.help_blocked()
        short.check()
        for answer in found:
            if isinstance(answer, events.AskCache):
                continue
            assert waits.pop(answer.request_id) == answer.frontend_id, "sent or refused once"
        assert short.num_waiting == len(waits), "none is lost"
        num_waiting += len(waits)

        against = {each: openness.closed_by(each, now_s) for each in IDS}
        get_requests = {s.instance_id for s in short.schedulable_snapshots()}
        assert get_requests == {i for i in IDS if not closed.stop_requests(against[i])}
        sent_to = {each.instance_id for each in found if isinstance(each, events.Dispatch)}
        assert sent_to <= get_requests
        send = {s.instance_id for s in openness.sources()}
        assert send == {i for i in IDS if not closed.stop_sending(against[i])}
        for source_id in (one, other):
            take = {s.instance_id for s in openness.destinations(now_s, source_id)}
            from_it = {i: openness.closed_by(i, now_s, source_id) for i in IDS}
            assert take == {i for i in IDS if not closed.stop_arrivals(from_it[i])}
            assert not take & openness.closed_to_moves(now_s)
    assert num_waiting > 100
