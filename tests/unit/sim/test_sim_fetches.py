"""Cached prefixes that simulated instances fetch from each other."""

from dataclasses import replace

import pytest

from controller.core.migration.handover import HandoverView
from controller.model.profile import load_profile
from controller.sim.cluster import SimCluster
from controller.sim.outcome import Outcome
from controller.sim.setup import ClusterSetup, Fault, sim_policy
from controller.sim.workload.trace import Trace, TraceRequest

H100 = load_profile("h100-llama-8b-256k")
SIZE = 512
SHARED = 60_416
NUM_AT_ONCE = 8


def trace() -> Trace:
    """One prompt, and some seconds later several at once that begin with it."""
    shared = tuple(range(SHARED // SIZE))
    rows = [TraceRequest(0.0, SHARED, 20, prefix_hashes=shared)]
    for number in range(NUM_AT_ONCE):
        own = tuple(range(1000 * (number + 1), 1000 * (number + 1) + 10))
        rows.append(TraceRequest(8.0, SHARED + 10 * SIZE, 20, prefix_hashes=shared + own))
    return Trace("shared", rows, SIZE)


def ran(
    *,
    fetches: bool = True,
    faults: tuple[Fault, ...] = (),
    link: float = 10e9,
    num: int = 3,
    played: Trace | None = None,
    host_cache_bytes: int = 0,
) -> Outcome:
    policy = sim_policy("llumnix+")
    assert policy.holding is not None
    policy = replace(policy, holding=replace(policy.holding, fetches=fetches))
    profile = replace(H100, copy_bytes_per_s=link)
    cluster = SimCluster(
        ClusterSetup(
            profile,
            policy,
            num,
            prefix_caching=True,
            faults=faults,
            host_cache_bytes=host_cache_bytes,
        )
    )
    outcome = cluster.run(played or trace())
    end_s = cluster.events.now_s + 60
    cluster.events.run(lambda: cluster.events.now_s > end_s)  # copies that nobody waits for
    check_blocks(cluster)
    return outcome


def check_blocks(cluster: SimCluster) -> None:
    for instance in cluster.instances.values():
        if instance.alive:
            instance.engine.check()
            status = instance.engine.snapshot("", 0)
            assert status.num_free_blocks == status.num_total_blocks, "blocks are lost"
            assert not instance.fetching


def ttfts_s(outcome: Outcome) -> list[float]:
    rows = zip(outcome.rows.columns["arrival_s"], outcome.rows.columns["ttft_s"], strict=True)
    return sorted(ttft for arrival, ttft in rows if arrival)


def test_prompts_that_begin_alike_are_fetched_and_come_sooner() -> None:
    with_fetches, without = ran(), ran(fetches=False)
    assert with_fetches.num_fetched_tokens in (SHARED, 2 * SHARED)
    assert without.num_fetched_tokens == 0
    assert sum(ttfts_s(with_fetches)) < 0.9 * sum(ttfts_s(without))


def test_over_a_slow_link_nothing_is_fetched() -> None:
    assert ran(link=1e9).num_fetched_tokens == 0


@pytest.mark.parametrize("after_s", [0.001, 0.1, 0.3, 0.6, 0.9, 1.2])
@pytest.mark.parametrize("kind", ["kill", "slow-links", "slow-steps", "drain"])
@pytest.mark.parametrize("instance_id", ["i-0", "i-1"])
def test_a_fetch_that_fails_costs_time_and_nothing_else(
    kind: str, after_s: float, instance_id: str
) -> None:
    outcome = ran(faults=(Fault(8.0 + after_s, kind, instance_id, factor=30.0),))
    num_lost = outcome.num_failed
    assert len(outcome.rows) + num_lost == NUM_AT_ONCE + 1
    assert num_lost == 0 or kind == "kill"


NUM_SESSIONS = 9


def sessions(num_instances: int = 1) -> Trace:
    """More sessions than the prefix caches hold, each of which comes back once."""
    number_of = range(num_instances * NUM_SESSIONS)
    rows = [
        TraceRequest(10.0 * place, SHARED, 20, prefix_hashes=tuple(names))
        for place, number in enumerate([*number_of, *number_of])
        for names in [range(1000 * number, 1000 * number + 118)]
    ]
    return Trace("sessions", rows, SIZE)


def test_what_the_prefix_cache_has_dropped_is_loaded_from_the_host_cache() -> None:
    loaded = ran(num=1, played=sessions(), host_cache_bytes=200 << 30)
    computed = ran(num=1, played=sessions())
    assert loaded.num_loaded_tokens > (NUM_SESSIONS - 1) * 0.9 * SHARED
    assert computed.num_loaded_tokens == 0
    assert sum(ttfts_s(loaded)[:NUM_SESSIONS]) < 0.3 * sum(ttfts_s(computed)[:NUM_SESSIONS])


def test_a_host_cache_that_is_too_small_has_dropped_them_too() -> None:
    assert ran(num=1, played=sessions(), host_cache_bytes=20 << 30).num_loaded_tokens == 0


@pytest.mark.parametrize("after_s", [0.001, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("kind", ["kill", "slow-steps", "drain"])
def test_a_load_that_fails_costs_time_and_nothing_else(kind: str, after_s: float) -> None:
    fault = Fault(20.0 * NUM_SESSIONS + after_s, kind, "i-0", factor=30.0)
    outcome = ran(num=2, played=sessions(2), host_cache_bytes=200 << 30, faults=(fault,))
    assert len(outcome.rows) + outcome.num_failed == 4 * NUM_SESSIONS
    assert outcome.num_failed == 0 or kind == "kill"


def test_instances_fetch_what_another_one_has_in_its_host_cache() -> None:
    first, *rest = sessions(2).requests[: 2 * NUM_SESSIONS]
    again = [replace(first, arrival_s=200.0) for _ in range(4)]
    played = Trace("again", [first, *rest, *again], SIZE)
    outcome = ran(num=2, played=played, host_cache_bytes=200 << 30)
    assert outcome.num_loaded_tokens + outcome.num_fetched_tokens >= SHARED - SIZE


# -- handovers -------------------------------------------------------------------------------------


def leaving(
    limit_s: float, *, faults: tuple[Fault, ...] = ()
) -> tuple[Outcome, list[HandoverView]]:
    """Four sessions run on two instances. One of these leaves, and the sessions come back."""
    sessions = [tuple(range(1000 * n, 1000 * n + 118)) for n in range(4)]
    times_s = [0.0, 10.0, 20.0, 30.0, 60.0, 70.0, 80.0, 90.0]
    rows = [
        TraceRequest(time_s, SHARED, 20, prefix_hashes=names)
        for time_s, names in zip(times_s, sessions * 2, strict=True)
    ]
    setup = ClusterSetup(H100, sim_policy("llumnix+"), 2, prefix_caching=True, faults=faults)
    cluster, views = SimCluster(setup), list[HandoverView]()

    def leave() -> None:
        leaver = cluster.instances["i-1"]

        def handed_over(view: HandoverView) -> None:
            views.append(view)
            cluster.remove(leaver)

        cluster.drain(leaver)
        cluster.hand_over(leaver, limit_s, handed_over)

    cluster.events.at(50.0, leave)
    outcome = cluster.run(Trace("leaving", rows, SIZE))
    check_blocks(cluster)
    return outcome, views


def test_an_instance_that_leaves_hands_over_what_it_has() -> None:
    warm, (handed_over,) = leaving(10.0)
    cold, (nothing,) = leaving(0.0)
    assert (handed_over.num_prompts, handed_over.complete) == (2, True)
    assert warm.num_handed_over_tokens == handed_over.num_tokens == 2 * (SHARED - SIZE)
    assert (nothing.num_prompts, nothing.complete) == (0, False)
    assert cold.num_handed_over_tokens == 0
    assert max(warm.rows.columns["ttft_s"][4:]) < 0.2 * max(cold.rows.columns["ttft_s"][4:])


@pytest.mark.parametrize("after_s", [0.001, 0.1, 0.3, 0.6, 0.9])
@pytest.mark.parametrize(
    ("kind", "instance_id"), [("kill", "i-1"), ("slow-links", "i-0"), ("slow-links", "i-1")]
)
def test_a_handover_that_fails_loses_no_request(
    kind: str, instance_id: str, after_s: float
) -> None:
    fault = Fault(50.0 + after_s, kind, instance_id, factor=30.0)
    outcome, views = leaving(2.0, faults=(fault,))
    assert (len(outcome.rows), outcome.num_failed) == (8, 0)
    assert len(views) == (kind != "kill"), "it ends, unless its source does"


def test_a_new_instance_is_filled_by_the_others() -> None:
    rows = [
        TraceRequest(10.0 * place, SHARED, 20, prefix_hashes=names)
        for place, number in enumerate([0, 1, 2, 3, 9, 0])
        for names in [tuple(range(1000 * number, 1000 * number + 118))]
    ]
    cluster = SimCluster(ClusterSetup(H100, sim_policy("llumnix+"), 1, prefix_caching=True))
    cluster.events.at(35.0, lambda: cluster.launch(cluster.new_id()))
    outcome = cluster.run(Trace("new", rows, SIZE))
    newcomer = cluster.instances["i-1"]
    half = newcomer.status().num_total_blocks * newcomer.engine.config.block_size // 2
    assert half <= outcome.num_handed_over_tokens <= half + SHARED
    assert cluster.events.now_s < 100, "the run ends with the last request"
