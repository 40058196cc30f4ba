"""What the scheduler stores between decisions changes no decision, and makes them cheap."""

import random
from collections.abc import Sequence
from unittest import mock

import pytest

from controller.core import scheduler_events as events
from controller.core.admission.instance_pool import MAX_CANDIDATES, MAX_RANKS
from controller.core.admission.policies import POLICIES, History, Policy, SchedulerConfig
from controller.core.load.snapshot import Level
from controller.core.scheduler import GlobalScheduler
from tests.unit.core.core_builders import (
    THREE_LEVELS,
    any_event,
    request,
    scheduler_with,
    status,
)
from tests.unit.core.dispatch_oracle import Candidate, choose_for


class AskingEverybody:
    """The decision that a scheduler should make, by asking each of its instances anew. It remembers
    the scheduler's decisions, as the scheduler does."""

    def __init__(self, scheduler: GlobalScheduler, policy: Policy) -> None:
        self.scheduler = scheduler
        self.policy = policy
        self.history = History()
        self.asked: dict[str, events.DispatchRequested] = {}

    def expected(self, asked: events.DispatchRequested) -> tuple[object, ...] | None:
        """The instance, the candidates that are named, and how many were considered; None if
        nobody may take the request."""
        records = [each for each in self.scheduler.instances.values() if each.schedulable]
        candidates = [Candidate(r.snapshot, r.unreported) for r in records if r.snapshot]
        levels = {each.rank: each for each in THREE_LEVELS}
        level = levels.get(asked.rank, Level("unknown", asked.rank))
        choice = choose_for(asked, level, self.policy, candidates, THREE_LEVELS, self.history)
        if choice is None:
            return None
        sign = 1 if self.policy.low_is_better else -1
        best = sorted(
            choice.scores.items(),
            key=lambda each: (each[0] != choice.instance_id, sign * each[1], each[0]),
        )
        named = tuple((instance_id, round(score, 1)) for instance_id, score in best)
        return choice.instance_id, named[:MAX_CANDIDATES], len(records)

    def handle(self, event: events.Event, now_s: float) -> Sequence[events.Instruction]:
        name = getattr(event, "instance_id", "")
        before = self.scheduler.instances.get(name)
        if isinstance(event, events.DispatchRequested):
            self.asked[event.request_id] = event
        told = self.scheduler.handle(event, now_s)
        record = self.scheduler.instances.get(name)
        if record is not before or (record is not None and not record.alive):
            self.history.prefixes.forget(name)
        for each in told:
            if isinstance(each, events.Dispatch):
                self.history.last = each.instance_id
                chosen = self.scheduler.instances[each.instance_id].snapshot
                if self.policy.by_prefix and chosen is not None:
                    self.history.note(chosen, self.asked[each.request_id])
        return told


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_decision_is_that_of_asking_everybody(policy: str) -> None:
    dice, now_s, num_compared = random.Random(policy), 0.0, 0
    ids = [f"i_{index}" for index in range(12)]
    config = SchedulerConfig(levels=THREE_LEVELS, policy=policy)
    scheduler = scheduler_with(config, **dict.fromkeys(ids, 0))
    everybody = AskingEverybody(scheduler, POLICIES[policy])
    for number in range(1500):
        now_s += dice.choice((0.0, 0.0, 0.0, 0.5))
        event = any_event(dice, scheduler, number, ids)
        is_request = isinstance(event, events.DispatchRequested)
        expected = everybody.expected(event) if is_request else None
        told = everybody.handle(event, now_s)
        scheduler.check()
        if expected is not None:
            (found,) = told
            assert (found.instance_id, found.candidates, found.num_considered) == expected
            assert found.policy == policy
            num_compared += 1
    assert num_compared > 100


def test_only_scores_that_changed_are_computed_and_few_ranks_are_kept() -> None:
    """What keeps a decision among 1,024 instances at about 25 us (measured on one shared core)."""
    counted = mock.Mock(side_effect=POLICIES["llumnix"].score)
    policy = Policy("counted", counted, POLICIES["llumnix"].pick)
    scheduler = GlobalScheduler(SchedulerConfig(policy="counted"), policies={"counted": policy})
    for index in range(64):
        scheduler.handle(events.InstanceStarted(f"i{index:02}", 1), 0.0)
        scheduler.handle(status(f"i{index:02}"), 0.0)
    assert counted.call_count == 0
    for number, expected in enumerate([65, 66, 67]):  # that of whoever got it, too
        scheduler.handle(request(f"r{number}"), 0.0)
        assert counted.call_count == expected
    scheduler.handle(status("i40"), 0.0)
    scheduler.handle(request("r9"), 0.0)
    assert counted.call_count == 69
    for rank in range(-100, 101):
        scheduler.handle(request(f"r{rank}", rank=rank), 0.0)
    counted.reset_mock()
    scheduler.handle(status("i40"), 0.0)
    assert 1 <= counted.call_count <= MAX_RANKS
