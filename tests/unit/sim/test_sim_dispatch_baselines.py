"""Dispatch policies that only the simulator has: their loads and their picks."""

import pytest

from controller.core.admission.policies import History
from controller.core.load.cached_prefixes import CacheReport
from controller.core.load.snapshot import DEFAULT_LEVELS, NORMAL
from controller.core.scheduler_events import DispatchRequested
from controller.sim.baselines import DISPATCH, pick_by_session, pick_longest_match
from tests.unit.core.core_builders import queued, running, snapshot_of
from tests.unit.core.dispatch_oracle import Candidate, choose

IDS = [f"i-{number}" for number in range(8)]
NOTHING = History()


def _newcomer(*prefix_hashes: int, session: str = "") -> DispatchRequested:
    num_hash_tokens = 100 if prefix_hashes else 0
    return DispatchRequested("r", "f-0", 400, 0, 0.0, session, prefix_hashes, num_hash_tokens)


def _seen(**prompts: tuple[int, ...]) -> History:
    history = History()
    for instance_id, prefix_hashes in prompts.items():
        history.prefixes.report(instance_id, CacheReport(1, prefix_hashes), 0.0)
    return history


# -- measures of load ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected", "scores"),
    [
        ("kv-ratio", "c", {"a": 0.1, "b": 0.06, "c": 0.05}),
        ("queue-length", "a", {"a": 0, "b": 2, "c": 1}),
        ("num-requests", "a", {"a": 1, "b": 3, "c": 1}),
        ("least-tokens", "c", {"a": 1600, "b": 960, "c": 800}),
        ("session-hash", "c", {"a": 1600, "b": 960, "c": 800}),
        ("cache-aware", "a", {"a": 1, "b": 3, "c": 1}),
    ],
)
def test_each_policy_has_its_own_favourite(
    name: str, expected: str, scores: dict[str, float]
) -> None:
    there = {
        "a": [running("x", 100)],
        "b": [running("x", 20), queued("p", 20), queued("q", 20)],
        "c": [queued("p", 50)],
    }
    candidates = [
        Candidate(snapshot_of(requests, instance_id=instance_id, total_blocks=1000))
        for instance_id, requests in there.items()
    ]
    choice = choose(DISPATCH[name], candidates, NORMAL, DEFAULT_LEVELS)
    assert choice is not None
    assert (choice.instance_id, choice.scores) == (expected, scores)


# -- sessions --------------------------------------------------------------------------------


def _home(session: str, ids: list[str]) -> str:
    return ids[pick_by_session(ids, [0.0] * len(ids), _newcomer(session=session), NOTHING)]


def test_a_session_stays_unless_its_own_instance_goes() -> None:
    sessions = [f"client-{number}" for number in range(200)]
    homes = {session: _home(session, IDS) for session in sessions}
    assert set(homes.values()) == set(IDS)
    left = [i for i in IDS if i != "i-3"]
    for session, home in homes.items():
        if home == "i-3":
            assert _home(session, left) in left
        else:
            assert _home(session, left) == home


# -- prefixes --------------------------------------------------------------------------------


def test_the_longest_match_from_the_beginning_or_if_short_where_least_is_remembered() -> None:
    history = _seen(a=(1, 2), b=(1, 2, 3), c=(8, 2, 3, 4))
    newcomer = _newcomer(1, 2, 3, 4)
    assert pick_longest_match(["a", "b", "c"], [0.0, 50.0, 0.0], newcomer, history) == 1
    history = _seen(a=(1, 2), b=(5,))
    assert pick_longest_match(["a", "b"], [0.0, 0.0], _newcomer(1, 7, 8, 9), history) == 1


def test_load_alone_decides_once_the_instances_are_out_of_balance() -> None:
    history, newcomer = _seen(a=(1, 2, 3, 4)), _newcomer(1, 2, 3, 4)
    assert pick_longest_match(["a", "b"], [100.0, 36.0], newcomer, history) == 0
    assert pick_longest_match(["a", "b"], [101.0, 36.0], newcomer, history) == 1
    assert pick_longest_match(["a", "b"], [300.0, 200.0], newcomer, history) == 0
    assert pick_longest_match(["a", "b"], [9.0, 8.0], _newcomer(), history) == 1
