"""What is avoided for a while. An instance has one state, so dispatch, rounds, moves by hand and
statuses cannot disagree about it."""

import random
from collections.abc import Sequence

import pytest

from controller.core import scheduler_events as events
from controller.core.admission.policies import SchedulerConfig
from controller.core.emptying.by_hand import MovesByHand
from controller.core.emptying.openness import Avoided, Cooling, Openness
from controller.core.emptying.rounds import OrderRelief, ReliefRounds, RoundDue, RoundRules
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceRef
from controller.core.scheduler import GlobalScheduler
from controller.core.settings import HoldingConfig, ReschedulingConfig
from tests.unit.core.core_builders import any_event


def test_one_that_failed_cools_for_its_source_only() -> None:
    cooling = Cooling(30.0)
    for number in (1, 1, 3):  # though its link may be what is broken
        cooling.failed("i-0", f"i-{number}", 100.0)
    assert cooling.remaining_s("i-1", 100.0, "i-0") == 30.0
    assert cooling.remaining_s("i-1", 129.5, "i-0") == 0.5
    assert cooling.remaining_s("i-1", 130.0, "i-0") == 0.0
    for destination_id, source_id in (("i-1", "i-2"), ("i-1", None), ("i-2", "i-0")):
        assert cooling.remaining_s(destination_id, 100.0, source_id) == 0.0
    assert list(cooling.pairs(129.5)) == [("i-0", "i-1"), ("i-0", "i-3")]
    assert list(cooling.pairs(130.0)) == []


def test_one_that_failed_with_two_sources_or_died_cools_for_all() -> None:
    cooling = Cooling(30.0)
    cooling.failed("i-0", "i-1", 100.0)
    cooling.failed("i-2", "i-1", 120.0)
    assert cooling.remaining_s("i-1", 125.0) == cooling.remaining_s("i-1", 125.0, "i-3") == 25.0
    assert cooling.remaining_s("i-1", 150.0) == 0.0
    cooling.failed("i-0", "i-1", 150.0)
    assert cooling.remaining_s("i-1", 150.0) == 0.0, "two that lie far apart are single ones"
    cooling.failed("i-0", "i-1", 160.0)
    assert cooling.remaining_s("i-1", 180.0, "i-0") == 10.0, "another one begins anew"
    cooling.died("i-1", 190.0)
    assert (cooling.remaining_s("i-1", 200.0), cooling.remaining_s("i-2", 200.0)) == (20.0, 0.0)


def test_avoided_until_a_moment_with_why() -> None:
    avoided: Avoided[str] = Avoided()
    avoided.avoid("r-1", 10.0, "evicted")
    avoided.avoid("r-2", 9.0)
    assert (avoided.why("r-1", 9.5), avoided.remaining_s("r-1", 9.5)) == ("evicted", 0.5)
    assert list(avoided.at(9.5)) == ["r-1"]
    assert (avoided.why("r-1", 10.0), avoided.remaining_s("r-1", 10.0)) == ("", 0.0)
    assert not avoided.at(10.0)


IDS = ("a", "b", "c", "d", "e")


class Cluster:
    """A `ClusterView` and the `Instances` of moves by hand, on one scheduler."""

    def __init__(self, dice: random.Random) -> None:
        holding = HoldingConfig(room_to_grow_tokens=32, reserved_share=0.5)
        config = SchedulerConfig(
            policy="llumnix",
            holding=holding if dice.random() < 0.7 else None,
        )
        self.scheduler = GlobalScheduler(config)
        self.cooling = Cooling()
        self.openness = Openness(self.scheduler, self.cooling)
        self.closed_to_moves = self.openness.closed_to_moves
        self.destinations, self.closed_by = self.openness.destinations, self.openness.closed_by
        rules = RoundRules(ReschedulingConfig(), DEFAULT_LEVELS)
        self.rounds = ReliefRounds(self, self.cooling, rules, "x")
        self.by_hand = MovesByHand(self, self.cooling, DEFAULT_LEVELS, 4, "x")

    def statuses(self, _now_s):
        return list(self.openness.sources())

    def status_age_s(self, _instance_id, _now_s):
        return 0.0

    def help_blocked(self, may_move):
        return self.scheduler.help_blocked(may_move)

    def has_moves_left(self, _instance_id):
        return True

    def ref(self, instance_id):
        return InstanceRef(instance_id, self.scheduler.instances[instance_id].incarnation, "")

    def frontend_of(self, _order):
        return "f"

    def num_moves(self, _instance_id):
        return 0


@pytest.mark.parametrize("seed", range(30))
def test_whoever_asks_hears_the_same(seed: int) -> None:
    dice, now_s = random.Random(seed), 0.0
    cluster = Cluster(dice)
    scheduler, openness = cluster.scheduler, cluster.openness
    for number in range(400):
        now_s += dice.uniform(0.0, 0.4)
        one, other = dice.sample(IDS, 2)
        sent: Sequence[events.Instruction] = ()
        if dice.random() < 0.07:
            cluster.cooling.failed(one, other, now_s)
        else:
            sent = scheduler.handle(any_event(dice, scheduler, number, IDS), now_s)
        scheduler.check()
        against = {each: openness.closed_by(each, now_s) for each in IDS}
        for dispatch in sent:
            if isinstance(dispatch, events.Dispatch):
                assert not any(r.stops_requests for r in against[dispatch.instance_id])

        get_requests = {s.instance_id for s in scheduler.schedulable_snapshots()}
        send = {s.instance_id for s in openness.sources()}
        for each in scheduler.instances:
            assert (each in get_requests) is not any(r.stops_requests for r in against[each])
            assert (each in send) is not any(r.stops_sending for r in against[each])
        takes = {s.instance_id for s in openness.destinations(now_s, one)}
        from_one = {each: openness.closed_by(each, now_s, one) for each in IDS}
        assert takes == {each for each in IDS if not any(r.stops_arrivals for r in from_one[each])}
        chosen = cluster.by_hand.choose(one, 1, now_s)
        assert chosen is None or chosen in takes

        for order in cluster.rounds.handle(RoundDue(), now_s):
            if isinstance(order, OrderRelief):
                destination_id = order.order.destination.instance_id
                assert not any(r.stops_arrivals for r in against[destination_id])
                assert not any(r.stops_sending for r in against[order.source_id])
        cluster.rounds.check()
