"""The policies' choices, and that what the scheduler stores between decisions changes none of them
and makes them cheap."""

import random
from collections.abc import Sequence
from unittest import mock

import pytest

from controller.core import scheduler_events as events
from controller.core.admission.instance_pool import MAX_CANDIDATES, MAX_RANKS
from controller.core.admission.policies import (
    POLICIES,
    History,
    Policy,
    SchedulerConfig,
    find_policy,
    pick_least_work,
)
from controller.core.load.cached_prefixes import CacheReport
from controller.core.load.snapshot import (
    DEFAULT_LEVELS,
    NORMAL,
    Level,
    Unreported,
)
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import (
    DispatchRequested,
)
from tests.unit.core.core_builders import (
    THREE_LEVELS,
    RequestSnapshot,
    any_event,
    queued,
    request,
    running,
    scheduler_with,
    snapshot_of,
    status,
)
from tests.unit.core.dispatch_oracle import Candidate, choose, choose_for


def _candidate(
    instance_id: str, *requests: RequestSnapshot, unreported: Unreported | None = None
) -> Candidate:
    snapshot = snapshot_of(requests, instance_id=instance_id, total_blocks=1000)
    return Candidate(snapshot, unreported or Unreported())


def test_scores_count_what_was_sent_and_is_not_reported() -> None:
    requests = [running("x", 30), running("y", 20), queued("p", 10), queued("q", 5)]
    for name, expected in (
        ("infaas++", 16 * 30 / 6),
        ("prefix-aware", 16 * (30 + 20 + 15 + 5)),
        ("vllm-dp", 4 * (2 + 2) + 2),
    ):
        score = POLICIES[name].score
        assert score(snapshot_of(requests), NORMAL, (), Unreported(2, 5)) == expected


@pytest.mark.parametrize(
    ("name", "expected", "scores"),
    [
        ("llumnix", "c", {"a": 16 * 900 / 1, "b": 16 * 940 / 3, "c": 16 * 950 / 1}),
        ("infaas++", "c", {"a": 16 * 900 / 1, "b": 16 * 940 / 3, "c": 16 * 950 / 1}),
        ("prefix-aware", "c", {"a": 1600, "b": 960, "c": 800}),
        ("vllm-dp", "a", {"a": 1, "b": 9, "c": 4}),
        ("round-robin", "a", {"a": 0, "b": 0, "c": 0}),
    ],
)
def test_each_policy_has_its_own_favourite(name, expected, scores) -> None:
    candidates = [
        _candidate("a", running("x", 100)),
        _candidate("b", running("x", 20), queued("p", 20), queued("q", 20)),
        _candidate("c", queued("p", 50)),
    ]
    choice = choose(POLICIES[name], candidates, NORMAL, DEFAULT_LEVELS)
    assert choice.instance_id == expected
    assert choice.scores == scores


@pytest.mark.parametrize(
    ("last", "expected"),
    [(None, "b"), ("a", "b"), ("b", "d"), ("c", "d"), ("d", "f"), ("f", "b"), ("z", "b")],
)
def test_round_robin_goes_on_after_the_last_choice_even_if_it_is_gone(last, expected) -> None:
    candidates = [_candidate(instance_id) for instance_id in "fbd"]
    choice = choose(POLICIES["round-robin"], candidates, NORMAL, DEFAULT_LEVELS, last)
    assert choice.instance_id == expected


def test_an_unknown_policy_is_refused_with_a_hint() -> None:
    for name, hint in (("lumnix", "did you mean 'llumnix'"), ("kv", "valid are llumnix")):
        with pytest.raises(ValueError, match=hint):
            find_policy(name)
    assert find_policy("vllm-dp").name == "vllm-dp"


# -- the pick that depends on prompts, and what is remembered of prompts -------------------


IDS = [f"i-{number}" for number in range(8)]
NUM_TOKENS = 10_000


def _newcomer(*prefix_hashes: int, tokens: int = 400) -> DispatchRequested:
    num_hash_tokens = 100 if prefix_hashes else 0
    return DispatchRequested("r", "f-0", tokens, 0, 0.0, "", prefix_hashes, num_hash_tokens)


def _seen(**prompts: tuple[int, ...]) -> History:
    history = History()
    for instance_id, prefix_hashes in prompts.items():
        history.prefixes.report(instance_id, CacheReport(1, prefix_hashes), 0.0)
    return history


def test_work_that_a_prefix_spares_is_weighed_against_load() -> None:
    history = _seen(b=(1, 2, 3))
    newcomer = _newcomer(1, 2, 9)
    assert pick_least_work(["a", "b"], [1000.0, 1199.0], newcomer, history) == 1
    assert pick_least_work(["a", "b"], [1000.0, 1200.0], newcomer, history) == 0
    assert pick_least_work(["a", "b"], [1000.0, 1199.0], _newcomer(), history) == 0
    short = _newcomer(1, 2, 3, tokens=250)
    assert history.matched(short)["b"] == 250, "no longer than the prompt"


# -- what is stored between decisions --------------------------------------------------------


class AskingEverybody:
    """The decision that a scheduler should make, by asking each of its instances anew. It remembers
    the latest decision, as the scheduler does."""

    def __init__(self, scheduler: GlobalScheduler, policy: Policy) -> None:
        self.scheduler = scheduler
        self.policy = policy
        self.history = History()
        self.history.prefixes = scheduler._pool._history.prefixes

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
        told = self.scheduler.handle(event, now_s)
        for each in told:
            if isinstance(each, events.Dispatch):
                self.history.last = each.instance_id
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
