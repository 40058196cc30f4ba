"""Picks that go by more of a request than its level."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from controller.core.dispatch.history import History, SeenPrefixes
from controller.core.dispatch.newcomer import Newcomer
from controller.core.dispatch.picks import (
    pick_by_session,
    pick_least_work,
    pick_longest_match,
    pick_lower_of_two,
)
from controller.core.load.snapshot import NORMAL
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_config import SchedulerConfig
from controller.core.scheduler_events import (
    Dispatch,
    DispatchRequested,
    InstanceDied,
    InstanceRemoved,
    InstanceStarted,
)
from tests.unit.core.core_builders import status

IDS = [f"i-{number}" for number in range(8)]
EQUAL = [0.0] * len(IDS)
NUM_TOKENS = 10_000
NOTHING = History()


def _newcomer(*prefix_hashes: int, session: str = "", tokens: int = 400) -> Newcomer:
    return Newcomer("r", NORMAL, tokens, session, prefix_hashes, 100 if prefix_hashes else 0)


def _seen(**prompts: tuple[int, ...]) -> History:
    history = History()
    for instance_id, prefix_hashes in prompts.items():
        history.prefixes.note(instance_id, _newcomer(*prefix_hashes), NUM_TOKENS)
    return history


# -- power of two choices --------------------------------------------------------------------


def _pair(request_id: str, ids: list[str]) -> set[int]:
    """The two places of which the lower score is taken: the winner, and what beats it least."""
    newcomer = Newcomer(request_id, NORMAL, 1)
    scores = [0.0] * len(ids)
    first = pick_lower_of_two(ids, scores, newcomer, NOTHING)
    scores[first] = 1.0
    return {first, pick_lower_of_two(ids, scores, newcomer, NOTHING)}


@given(st.text(max_size=20), st.integers(2, 8))
def test_two_different_instances_are_drawn_by_the_requests_id(request_id, num_instances) -> None:
    pair = _pair(request_id, IDS[:num_instances])
    assert len(pair) == 2
    assert pair == _pair(request_id, IDS[:num_instances])


def test_the_lower_of_the_two_is_taken_and_of_equal_ones_the_first() -> None:
    for number in range(50):
        pair = _pair(f"r-{number}", IDS)
        newcomer = Newcomer(f"r-{number}", NORMAL, 1)
        rising = [float(place) for place in range(len(IDS))]
        assert pick_lower_of_two(IDS, rising, newcomer, NOTHING) == min(pair)
        assert pick_lower_of_two(IDS, rising[::-1], newcomer, NOTHING) == max(pair)
        assert pick_lower_of_two(IDS, EQUAL, newcomer, NOTHING) == min(pair)


def test_every_pair_is_drawn_about_as_often() -> None:
    drawn = Counter(frozenset(_pair(f"r-{number}", IDS[:4])) for number in range(3000))
    assert len(drawn) == 6
    assert all(400 < count < 600 for count in drawn.values())


def test_the_draw_is_the_same_in_every_process() -> None:
    """Written down: Python's own hash of a text is salted."""
    picks = [
        pick_lower_of_two(IDS, EQUAL, Newcomer(f"r-{n}", NORMAL, 1), NOTHING) for n in range(6)
    ]
    assert picks == [1, 3, 1, 2, 2, 4]


def test_one_instance_needs_no_draw() -> None:
    assert pick_lower_of_two(["i-0"], [5.0], _newcomer(), NOTHING) == 0


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


def test_sessions_spread_and_load_does_not_matter() -> None:
    counts = Counter(_home(f"client-{number}", IDS) for number in range(4000))
    assert all(400 < counts[instance_id] < 600 for instance_id in IDS)
    busy = [float(place) for place in range(len(IDS))]
    for number in range(20):
        newcomer = _newcomer(session=f"client-{number}")
        assert IDS[pick_by_session(IDS, busy, newcomer, NOTHING)] == _home(newcomer.session, IDS)


def test_without_a_session_the_least_loaded() -> None:
    assert pick_by_session(IDS[:3], [5.0, 2.0, 9.0], _newcomer(), NOTHING) == 1


# -- prefixes --------------------------------------------------------------------------------


def test_work_that_a_prefix_spares_is_weighed_against_load() -> None:
    history = _seen(b=(1, 2, 3))
    newcomer = _newcomer(1, 2, 9)
    assert pick_least_work(["a", "b"], [1000.0, 1199.0], newcomer, history) == 1
    assert pick_least_work(["a", "b"], [1000.0, 1200.0], newcomer, history) == 0
    assert pick_least_work(["a", "b"], [1000.0, 1199.0], _newcomer(), history) == 0


def test_the_longest_match_counts_from_the_beginning_only() -> None:
    history = _seen(a=(1, 2), b=(1, 2, 3), c=(8, 2, 3, 4))
    newcomer = _newcomer(1, 2, 3, 4)
    assert pick_longest_match(["a", "b", "c"], [0.0, 50.0, 0.0], newcomer, history) == 1


def test_a_short_match_goes_where_least_is_remembered() -> None:
    history = _seen(a=(1, 2), b=(5,))
    newcomer = _newcomer(1, 7, 8, 9)
    assert pick_longest_match(["a", "b"], [0.0, 0.0], newcomer, history) == 1


def test_load_alone_decides_once_the_instances_are_out_of_balance() -> None:
    history, newcomer = _seen(a=(1, 2, 3, 4)), _newcomer(1, 2, 3, 4)
    assert pick_longest_match(["a", "b"], [100.0, 36.0], newcomer, history) == 0
    assert pick_longest_match(["a", "b"], [101.0, 36.0], newcomer, history) == 1
    assert pick_longest_match(["a", "b"], [300.0, 200.0], newcomer, history) == 0
    assert pick_longest_match(["a", "b"], [9.0, 8.0], _newcomer(), history) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(IDS), st.lists(st.integers(0, 40), unique=True, max_size=9)),
        max_size=60,
    )
)
def test_what_is_remembered_is_bounded_and_the_latest(prompts) -> None:
    """Against plain lists, the latest used hash first."""
    seen, lists = SeenPrefixes(max_hashes=24), dict[str, list[int]]()
    for instance_id, prefix_hashes in prompts:
        seen.note(instance_id, _newcomer(*prefix_hashes), 700)
        seen.check()
        if not prefix_hashes:
            continue
        old = lists.setdefault(instance_id, [])
        lists[instance_id] = [*prefix_hashes, *(each for each in old if each not in prefix_hashes)]
        lists = {i: each[: 24 // len(lists)] for i, each in lists.items()}
        lists[instance_id] = lists[instance_id][:7]
        for other_id, hashes in lists.items():
            assert seen.num_seen(other_id) == len(hashes)
            for first in range(41):
                expected = 100 if first in hashes else 0
                assert seen.num_matched_tokens(other_id, _newcomer(first)) == expected


def test_a_match_is_no_longer_than_the_prompt() -> None:
    history = _seen(a=(1, 2, 3))
    newcomer = _newcomer(1, 2, 3, tokens=250)
    assert history.prefixes.num_matched_tokens("a", newcomer) == 250


# -- the scheduler ---------------------------------------------------------------------------


def _scheduler() -> GlobalScheduler:
    scheduler = GlobalScheduler(SchedulerConfig(policy="prefix-aware"))
    for instance_id in ("a", "b"):
        scheduler.handle(InstanceStarted(instance_id, 1), 0.0)
        scheduler.handle(status(instance_id), 0.0)
    return scheduler


def _ask(scheduler: GlobalScheduler, request_id: str) -> str:
    asked = DispatchRequested(request_id, "f", 320, 0, 0.0, "", (1, 2, 3, 4), 80)
    [dispatch] = scheduler.handle(asked, 0.0)
    assert isinstance(dispatch, Dispatch)
    return dispatch.instance_id


def test_the_scheduler_remembers_where_it_sent_a_prompt() -> None:
    scheduler = _scheduler()
    assert [_ask(scheduler, f"r{n}") for n in range(3)] == ["a", "a", "b"]


def test_a_new_incarnation_and_a_dead_instance_have_cached_nothing() -> None:
    for event in (InstanceStarted("a", 2), InstanceDied("a", 1), InstanceRemoved("a")):
        scheduler = _scheduler()
        assert _ask(scheduler, "r0") == "a"
        scheduler.handle(event, 0.0)
        assert _ask(scheduler, "r1") == "b"
        scheduler.handle(InstanceStarted("a", 3), 0.0)
        for instance_id, incarnation in (("a", 3), ("b", 1)):  # nothing runs there any more
            scheduler.handle(status(instance_id, incarnation=incarnation, seen=9), 0.0)
        assert _ask(scheduler, "r2") == "b"
