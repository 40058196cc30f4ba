"""The pick that depends on prompts, and what is remembered of prompts."""

from hypothesis import given
from hypothesis import strategies as st

from controller.core.admission.policies import (
    History,
    SchedulerConfig,
    SeenPrefixes,
    pick_least_work,
)
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import (
    Dispatch,
    DispatchRequested,
    InstanceDied,
    InstanceRemoved,
    InstanceStarted,
)
from tests.unit.core.core_builders import status

IDS = [f"i-{number}" for number in range(8)]
NUM_TOKENS = 10_000


def _newcomer(*prefix_hashes: int, tokens: int = 400) -> DispatchRequested:
    num_hash_tokens = 100 if prefix_hashes else 0
    return DispatchRequested("r", "f-0", tokens, 0, 0.0, "", prefix_hashes, num_hash_tokens)


def _seen(**prompts: tuple[int, ...]) -> History:
    history = History()
    for instance_id, prefix_hashes in prompts.items():
        history.prefixes.note(instance_id, _newcomer(*prefix_hashes), NUM_TOKENS)
    return history


def test_work_that_a_prefix_spares_is_weighed_against_load() -> None:
    history = _seen(b=(1, 2, 3))
    newcomer = _newcomer(1, 2, 9)
    assert pick_least_work(["a", "b"], [1000.0, 1199.0], newcomer, history) == 1
    assert pick_least_work(["a", "b"], [1000.0, 1200.0], newcomer, history) == 0
    assert pick_least_work(["a", "b"], [1000.0, 1199.0], _newcomer(), history) == 0


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
