"""What the scheduler stores between decisions changes no decision."""

from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.admission.instance_pool import MAX_CANDIDATES, MAX_RANKS, InstanceRecord
from controller.core.admission.policies import POLICIES, History, Policy, SchedulerConfig
from controller.core.load.snapshot import Level
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import (
    ClosedBy,
    Dispatch,
    DispatchCancelled,
    DispatchRequested,
    Event,
    InstanceDied,
    InstanceRemoved,
    InstanceStalled,
    InstanceStarted,
    Instruction,
    StatusReported,
    Ticked,
)
from tests.unit.core.core_builders import (
    CORDONED,
    DRAINS,
    THREE_LEVELS,
    queued,
    request,
    running,
    status,
)
from tests.unit.core.dispatch_oracle import Candidate, choose_for

IDS = [f"i-{index}" for index in range(12)]  # i-10 comes before i-2
RANKS = range(-MAX_RANKS, MAX_RANKS)


class SimpleBoard:
    """Asks everybody each time, as in `dispatch_oracle`."""

    def __init__(self, records: dict[str, InstanceRecord], config: SchedulerConfig) -> None:
        self._records = records
        self._config = config
        self._ready: list[InstanceRecord] = []

    def forget(self) -> None: ...

    def changed(self, record: InstanceRecord) -> None: ...

    def check(self) -> None: ...

    def __len__(self) -> int:
        return len(self._ready)

    def any_schedulable(self) -> bool:
        self._ready = [r for r in self._records.values() if r.schedulable]
        return bool(self._ready)

    def choose(
        self, request: DispatchRequested, level: Level, history: History
    ) -> tuple[InstanceRecord, tuple[tuple[str, float], ...]]:
        policy = POLICIES[self._config.policy]
        candidates = [Candidate(r.snapshot, r.unreported) for r in self._ready if r.snapshot]
        choice = choose_for(request, level, policy, candidates, self._config.levels, history)
        assert choice is not None
        sign = 1 if policy.low_is_better else -1
        best = sorted(
            choice.scores.items(),
            key=lambda each: (each[0] != choice.instance_id, sign * each[1], each[0]),
        )
        named = tuple((instance_id, round(score, 1)) for instance_id, score in best)
        return self._records[choice.instance_id], named[:MAX_CANDIDATES]


def _pair(policy: str) -> tuple[GlobalScheduler, GlobalScheduler]:
    config = SchedulerConfig(levels=THREE_LEVELS, policy=policy)
    simple = GlobalScheduler(config)
    simple._pool._board = SimpleBoard(simple._pool._records, config)
    return GlobalScheduler(config), simple


@st.composite
def steps(draw: st.DrawFn) -> tuple[float, Event]:
    """Seconds that pass, and what happens then; mostly statuses and requests."""
    name = draw(st.sampled_from(IDS))
    held, waits = draw(st.integers(0, 60)), draw(st.integers(0, 2))
    rank = draw(st.sampled_from([0, 1, 2, 7]))
    requests = [running("x", held, rank)] if held else []
    requests += [queued(f"q{i}", 30) for i in range(waits)]
    asked = replace(
        request(
            f"r{draw(st.integers(0, 1000))}",
            rank=draw(st.sampled_from([0, 0, 1, 2, *RANKS])),
            tokens=draw(st.integers(1, 900)),
        ),
        session=draw(st.sampled_from(["", "alice", "bob"])),
        prefix_hashes=draw(st.sampled_from([(), (1,), (1, 2), (1, 2, 3), (4,), (4, 5)])),
        prefix_hash_tokens=300,
    )
    report = status(
        name,
        requests=requests,
        seen=draw(st.sampled_from([0, 1, 3, 10**6])),
        draining=draw(st.integers(0, 9)) == 0,
    )
    seldom = [
        InstanceStarted(name, draw(st.integers(1, 3))),
        InstanceDied(name, 1),
        InstanceRemoved(name),
        InstanceStalled(name, draw(st.integers(1, 2)), over=draw(st.booleans())),
        ClosedBy(name, DRAINS),
        ClosedBy(name, CORDONED),
        ClosedBy(name),
        DispatchCancelled(asked.request_id, "f"),
        Ticked(),
    ]
    event = draw(st.sampled_from([report, report, report, asked, asked, asked, *seldom]))
    return draw(st.sampled_from([0.0, 0.0, 0.0, 0.5])), event


@given(st.sampled_from(list(POLICIES)), st.lists(steps(), min_size=20, max_size=80))
def test_every_decision_is_that_of_asking_everybody(
    policy: str, drawn: list[tuple[float, Event]]
) -> None:
    kept, simple = _pair(policy)
    now_s = 0.0
    first: list[Event] = [InstanceStarted(name, 1) for name in IDS]
    first += [status(name) for name in IDS]
    for passed_s, event in [*((0.0, event) for event in first), *drawn]:
        now_s += passed_s
        found = kept.handle(event, now_s)
        kept.check()
        expected = simple.handle(event, now_s)
        assert found == expected
        assert _considered(found) == _considered(expected)


def _considered(instructions: list[Instruction]) -> list[object]:
    return [
        (x.candidates, x.policy, x.num_considered) for x in instructions if isinstance(x, Dispatch)
    ]


def test_one_that_stalls_is_chosen_no_more_and_comes_back() -> None:
    scheduler, _ = _pair("round-robin")
    for name in ("a", "b"):
        scheduler.handle(InstanceStarted(name, 1), 0.0)
        scheduler.handle(status(name), 0.0)
    chosen = []
    for now_s, stalls, reporting in (
        (1.0, "", "ab"),
        (5.0, "", "b"),
        (7.0, "a", ""),
        (8.0, "", "a"),
    ):
        for name in stalls:
            scheduler.handle(InstanceStalled(name, 1), now_s)
        for name in reporting:
            scheduler.handle(status(name), now_s)
        for number in range(2):
            [found] = scheduler.handle(request(f"{now_s}-{number}"), now_s)
            assert isinstance(found, Dispatch)
            chosen.append(found.instance_id)
    assert chosen == ["a", "b", "a", "b", "b", "b", "a", "b"]


def _counting(score: mock.Mock) -> GlobalScheduler:
    """With 64 instances that have reported."""
    policy = Policy("counted", score, POLICIES["llumnix"].pick)
    scheduler = GlobalScheduler(SchedulerConfig(policy="counted"), policies={"counted": policy})
    for index in range(64):
        scheduler.handle(InstanceStarted(f"i{index:02}", 1), 0.0)
        scheduler.handle(status(f"i{index:02}"), 0.0)
    return scheduler


def test_nobody_is_asked_whether_it_may_take_a_request() -> None:
    scheduler = _counting(mock.Mock(side_effect=POLICIES["llumnix"].score))
    scheduler.handle(request("r0"), 0.0)
    board = scheduler._pool._board
    with mock.patch.object(board, "_look", side_effect=board._look) as looked:
        scheduler.handle(status("i40"), 1.0)
        scheduler.handle(request("r1"), 1.0)
        scheduler.handle(DispatchCancelled("r0", "f"), 1.0)
        scheduler.handle(Ticked(), 1.0)
        scheduler.handle(request("r2"), 1.0)
    assert not looked.mock_calls


def test_ranks_that_nobody_knows_cost_nothing_for_ever() -> None:
    score = mock.Mock(side_effect=POLICIES["llumnix"].score)
    scheduler = _counting(score)
    for rank in range(-100, 101):
        scheduler.handle(request(f"r{rank}", rank=rank), 0.0)
    num_kept = len(scheduler._pool._board._scores)
    assert 1 <= num_kept <= MAX_RANKS
    scheduler.check()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("llumnix", ["i9", "i8", "i7", "i6", "i5", "i4", "i3", "i2"]),
        ("prefix-aware", ["i9", "i8", "i7", "i6", "i5", "i4", "i3", "i2"]),
        ("round-robin", ["i2", "i0", "i1", "i3", "i4", "i5", "i6", "i7"]),
    ],
)
def test_the_chosen_one_leads_the_best_of_all_that_were_considered(
    policy: str, expected: list[str]
) -> None:
    scheduler = GlobalScheduler(SchedulerConfig(policy=policy))
    for index in range(10):  # the higher its number, the freer
        scheduler.handle(InstanceStarted(f"i{index}", 1), 0.0)
        scheduler.handle(status(f"i{index}", requests=[running("x", 30 - index)]), 0.0)
    scheduler._pool._history.last = "i1"
    [found] = scheduler.handle(request("r"), 0.0)
    assert isinstance(found, Dispatch)
    assert [instance_id for instance_id, _ in found.candidates] == expected
    assert (found.instance_id, found.policy, found.num_considered) == (expected[0], policy, 10)


def test_events_that_the_property_draws_are_all_that_there_are() -> None:
    """A new event that changes who may take requests belongs into `steps`."""
    drawn = {
        *(StatusReported, DispatchRequested, InstanceStarted, InstanceDied, InstanceRemoved),
        *(InstanceStalled, ClosedBy, DispatchCancelled, Ticked),
    }
    assert {x.__name__ for x in set(Event.__args__) - drawn} == {"FrontendDied", "KeysTold"}
