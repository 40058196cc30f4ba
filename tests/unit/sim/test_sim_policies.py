"""Policies by name, the settings of the live cluster applied to them, and which blocks of prompts
are the same."""

from dataclasses import replace

import pytest

from controller.api.settings.table import kinds
from controller.core.load.snapshot import DEFAULT_LEVELS
from controller.core.settings import (
    AutoscaleConfig,
    HoldingConfig,
    MigrationSettings,
    ReschedulingConfig,
    with_fixed,
)
from controller.sim.cluster import SimCluster
from controller.sim.request_run import BlockNames
from controller.sim.setup import (
    SIM_POLICIES,
    ClusterSetup,
    setting_names,
    sim_policy,
    with_settings,
)
from controller.sim.workload.trace import Trace, TraceRequest
from tests.unit.sim.runs import A10, SMALL, column, run

MOVING = {"llumnix", "llumnix+", "llumnix-base"}
BY_RANK = {"llumnix", "llumnix+", "dispatch-only"}
ROWS = [(n / 11, 1 + n * 37 % 300, 1 + n * 53 % 200) for n in range(120)]


def _trace(*, ranks: bool = False) -> Trace:
    return Trace(
        "test", [TraceRequest(*row, n % 5 == 0 if ranks else 0) for n, row in enumerate(ROWS)]
    )


def _num_steps(cluster: SimCluster) -> list[int]:
    return [each.num_steps for each in cluster.instances.values()]


@pytest.mark.parametrize("name", list(SIM_POLICIES))
def test_each_policy_serves_everybody_and_moves_and_knows_ranks_if_it_says_so(name: str) -> None:
    cluster, outcome = run(ClusterSetup(SMALL, sim_policy(name), 3), _trace(ranks=True))
    assert len(outcome.rows) == len(ROWS)
    assert (outcome.num_moved > 0) == (name in MOVING)
    assert min(_num_steps(cluster)) > 0
    assert sum(column(outcome, "rank")) == len(ROWS) / 5, "rows have the ranks that were sent"
    setup = ClusterSetup(SMALL, sim_policy(name), 2)
    with_ranks, without = (run(setup, _trace(ranks=ranks))[1] for ranks in (True, False))
    same = column(with_ranks, "ttft_s") == column(without, "ttft_s")
    assert same == (name not in BY_RANK)


STEPS = {
    "power-of-two": [1070, 1203, 1005],
    "least-tokens": [1204, 950, 1063],
    "session-hash": [431, 2021, 834],
    "cache-aware": [1150, 1274, 760],
}
"""The steps of three instances under the policies that only the simulator has. A change means that
figures of the documents change."""


@pytest.mark.parametrize(("name", "num_steps"), STEPS.items())
def test_policies_of_the_simulator_alone_decide_as_before(name: str, num_steps: list[int]) -> None:
    """Seven sessions and five prefixes of 64 tokens come in turn."""
    rows = [
        TraceRequest(
            *row, session=f"client-{n % 7}", prefix_hashes=(n % 5,) if row[1] >= 64 else ()
        )
        for n, row in enumerate(ROWS)
    ]
    setup = ClusterSetup(SMALL, sim_policy(name), 3, prefix_caching=True)
    assert _num_steps(run(setup, Trace("test", rows, 64))[0]) == num_steps
    alone = ClusterSetup(SMALL, sim_policy(name), 1)
    assert len(run(alone, _trace())[1].rows) == len(ROWS)


@pytest.mark.parametrize("name", ["prefix-aware", "cache-aware", "llumnix+"])
def test_prompts_go_where_their_beginning_is_cached_if_anything_is(name: str) -> None:
    """Of two long prompts, each a second time with 100 new tokens: only those are computed."""
    first = [TraceRequest(float(n), 1024, 1, prefix_hashes=(n, n + 10)) for n in (0, 1)]
    again = [TraceRequest(float(n + 2), 1124, 1, prefix_hashes=(n, n + 10, n + 20)) for n in (0, 1)]
    slack = {"holding.slack_tokens": 1000} if name == "llumnix+" else {}
    setup = ClusterSetup(A10, with_settings(sim_policy(name), slack), 2, prefix_caching=True)
    _, outcome = run(setup, Trace("test", [*first, *again], 512))
    expected_s = A10.step_time_s([(100, 1024)], 0, 0)
    assert column(outcome, "ttft_s")[2:] == [pytest.approx(expected_s)] * 2

    def ttfts_without_a_cache(*hashes: int) -> list[float]:
        rows = [TraceRequest(n / 20, 512, 10, prefix_hashes=hashes) for n in range(20)]
        setup = ClusterSetup(A10, sim_policy(name), 3)
        return column(run(setup, Trace("test", rows, 512))[1], "ttft_s")

    assert ttfts_without_a_cache(7) == ttfts_without_a_cache()


def test_vllm_dp_goes_by_what_was_so_100_ms_ago() -> None:
    """The second request is over after 8 ms; a fresh status would show its instance idle."""
    rows = [(0.0, 50, 100), (0.01, 10, 1), (0.05, 10, 5)]
    policy = sim_policy("vllm-dp")
    fresh = with_settings(policy, {"scheduler.status_interval_s": 0.0})
    trace = Trace("test", [TraceRequest(*row) for row in rows])
    (stale_steps, fresh_steps) = (
        _num_steps(run(ClusterSetup(A10, each, 2), trace)[0])[1] for each in (policy, fresh)
    )
    assert (stale_steps, fresh_steps) == (1, 6)


# -- settings ----------------------------------------------------------------------------------


def test_settings_by_their_live_names() -> None:
    policy = with_settings(
        sim_policy("llumnix"),
        {
            "migration.guard": "off",
            "migration.source_below_steps": "160",
            "migration.destination_above_steps": 160,
            "migration.victim": "SR",
            "migration.max_moves": "8",
            "scheduler.policy": "least-tokens",
            "scheduler.status_interval_s": "0.05",
            "priority.high.target_load_tokens": "3200",
        },
    )
    defaults = with_fixed(ReschedulingConfig, MigrationSettings())
    assert sim_policy("llumnix").rescheduling == defaults, "the live cluster's"
    changed = {"source_below_steps": 160.0, "destination_above_steps": 160.0, "max_moves": 8}
    assert policy.rescheduling == replace(defaults, guard=False, **changed)
    assert (policy.victim, policy.dispatch, policy.status_age_s) == ("SR", "least-tokens", 0.05)
    normal, high = DEFAULT_LEVELS
    assert policy.levels == (normal, replace(high, target_load_tokens=3200))


def test_late_binding_has_settings_and_comes_and_goes_with_the_dispatch_policy() -> None:
    plus = sim_policy("llumnix+")
    changed = with_settings(plus, {"holding.overtaking": "off", "holding.making_room": False})
    assert changed.holding == HoldingConfig(overtaking=False, making_room=False)
    on = with_settings(sim_policy("llumnix"), {"scheduler.policy": "llumnix+"})
    assert (on.dispatch, on.holding) == ("llumnix+", HoldingConfig())
    off = with_settings(plus, {"scheduler.policy": "llumnix"})
    assert (off.dispatch, off.holding) == ("llumnix", None)


def test_every_live_setting_of_moves_is_known_but_for_those_without_a_meaning_here() -> None:
    live = {f"migration.{name}" for name in kinds(MigrationSettings)}
    here = {name for name in setting_names(sim_policy("llumnix")) if name.startswith("migration")}
    assert live - here == {"migration.max_bytes_per_s", "migration.allow_inexact"}
    own = ("pairing", "victim", "guard", "interval_s", "not_back_s", "gain_ahead_s")
    assert here - live == {f"migration.{name}" for name in own}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("migration.sourcebelow", 1, "did you mean migration.source_below_steps"),
        ("migration.guard", "maybe", "must be true or false"),
        ("migration.max_moves", "2.5", "must be a whole number"),
        ("migration.source_below_steps", "nan", "must be a number"),
        ("migration.source_below_steps", 49, "must not exceed"),
        ("migration.victim", "XY", "must be one of llumnix"),
        ("scheduler.policy", "lumnix", "did you mean 'llumnix'"),
        ("holding.overtaking", False, "llumnix has no setting"),
        ("autoscale.up_below_steps", "961", "must not exceed"),
        ("autoscale.max_instances", "3", "no setting"),
    ],
)
def test_what_a_setting_cannot_be(key: str, value: object, message: str) -> None:
    scaling = replace(sim_policy("llumnix"), autoscale=AutoscaleConfig())
    with pytest.raises(ValueError, match=message):
        with_settings(scaling, {key: value})


def test_a_range_of_auto_scaling_is_set_as_a_whole() -> None:
    """Each end alone would be on the wrong side of the other one's default."""
    scaling = replace(sim_policy("llumnix"), autoscale=AutoscaleConfig())
    for low, high in ((1040.0, 1840.0), (-160.0, 100.0)):
        values = {"autoscale.up_below_steps": low, "autoscale.down_above_steps": high}
        found = with_settings(scaling, values).autoscale
        assert found is not None
        assert (found.up_below_steps, found.down_above_steps) == (low, high)
    with pytest.raises(ValueError, match="no setting"):
        with_settings(sim_policy("llumnix"), {"autoscale.max_added": "2"})


# Which KV blocks of two prompts are the same, by the hashes of their trace


def _names(request_id: str, num_prompt_tokens: int, *prefix_hashes: int) -> BlockNames:
    traced = TraceRequest(0.0, num_prompt_tokens, 5, prefix_hashes=prefix_hashes)
    return BlockNames(request_id, traced, 64, 16)


def _num_shared(one: BlockNames, other: BlockNames) -> int:
    same = [one(index) == other(index) for index in range(20)]
    assert same == sorted(same, reverse=True), "what is shared is a prefix"
    return sum(same)


def test_blocks_are_shared_as_far_as_the_hashes_agree() -> None:
    """Blocks beyond the hashes or the prompt are the request's own."""
    for one, other, num_tokens, num_shared in (
        ((1, 2, 3), (1, 2, 4), 300, 8),
        ((1, 2), (5, 6), 300, 0),
        ((1,), (1,), 300, 4),
        ((1, 2), (1, 2), 100, 6),
    ):
        assert _num_shared(_names("a", num_tokens, *one), _names("b", num_tokens, *other)) == (
            num_shared
        )
