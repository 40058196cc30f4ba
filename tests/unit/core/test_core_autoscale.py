"""Auto-scaling, rule by rule. Instances have 100 blocks of 16 tokens, so an idle one has room for
1,600 tokens; the range is [160, 960] steps."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controller.core.fleet.autoscaler import ScaleDecision, ScaleReason, ScaleState, decide
from controller.core.fleet.outlook import ClusterLoad
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.settings import AutoscaleConfig
from tests.unit.core.core_builders import queued, request_lists, running, snapshot_of

AT_ONCE = AutoscaleConfig(up_persistence_s=0, down_persistence_s=0)


def instance(
    instance_id: str, num_running: int = 0, held_blocks: int = 0, *queued_blocks: int
) -> InstanceSnapshot:
    """`held_blocks` are those of one request."""
    requests = [running(f"r{n}", held_blocks) for n in range(num_running)]
    waiting = [queued(f"q{n}", blocks) for n, blocks in enumerate(queued_blocks)]
    return snapshot_of([*requests, *waiting], instance_id=instance_id)


def cluster(*schedulable: InstanceSnapshot, block_size: int = 16) -> ClusterLoad:
    return ClusterLoad(schedulable, block_size, new_capacity_blocks=100)


def check(
    load: ClusterLoad, config: AutoscaleConfig = AT_ONCE, state: ScaleState | None = None
) -> ScaleDecision:
    """A check that is due, at 1,000 s."""
    decision, _ = decide(config, state or ScaleState(1000.0), load, 1000.0)
    assert decision is not None
    return decision


def checks(
    loads: Sequence[ClusterLoad], config: AutoscaleConfig
) -> list[tuple[ScaleReason, int, str | None]]:
    """One check after the other, each when it is due."""
    state = ScaleState(0.0)
    found = []
    for load in loads:
        decision, state = decide(config, state, load, state.next_check_s)
        assert decision is not None
        found.append((decision.reason, decision.num_added, decision.removed_id))
    return found


BUSY = instance("a", 9, 10)  # 90 of 100 blocks: 16 * 10 / 9 = 17.8 steps
IDLE = instance("b")


class TestFreeness:
    def test_the_cluster_is_one_pool(self) -> None:
        load = cluster(instance("a", 4, 20, 5, 8), instance("b", 1, 30))
        assert load.free_blocks == (100 - 80 - 13) + (100 - 30)
        assert load.num_requests == 4 + 2 + 1
        assert load.freeness() == 16 * 77 / 7 == 176

    def test_prefills_count_to_their_end_and_the_watermark_is_no_room(self) -> None:
        prefilling = replace(instance("a", 2, 10), fill_blocks=15, watermark_blocks=5)
        assert cluster(prefilling).freeness() == 16 * (100 - 5 - 20 - 15) / 2 == 480

    def test_what_is_held_is_queued(self) -> None:
        load = replace(cluster(instance("a", 4, 10)), num_waiting=1, waiting_demand_blocks=70)
        assert load.freeness() == 16 * -10 / 5 == -32

    def test_an_idle_cluster(self) -> None:
        assert cluster(instance("a"), instance("b")).freeness() == 3200

    def test_priorities_keep_no_headroom(self) -> None:
        high = snapshot_of([running("r", 20, rank=1)])
        assert cluster(high).freeness() == 16 * 80

    def test_what_starts_is_empty(self) -> None:
        load = replace(cluster(BUSY), num_starting=2)
        assert load.freeness() == 16 * 10 / 9
        assert load.freeness_started() == 16 * 210 / 9
        assert load.freeness_started(1) == 16 * 310 / 9


class TestUp:
    def test_one_is_enough(self) -> None:
        decision = check(cluster(BUSY))
        assert decision == ScaleDecision(
            ScaleReason.LOW_FREENESS,
            num_requests=9,
            freeness_steps=16 * 10 / 9,
            freeness_started_steps=16 * 10 / 9,
            freeness_less_steps=16 * -90 / 9,
            num_added=1,
        )

    @pytest.mark.parametrize(
        ("num_waiting", "num_added"),
        # For 160 steps a request must have 10 blocks free. The 9 that run lack 80, and each held
        # one, which wants 30 itself, 40 more: 80, 120, 200, 240, 280, 320, 1,280.
        [(0, 1), (1, 2), (3, 2), (4, 3), (5, 3), (6, 4), (30, 4)],
    )
    def test_as_many_as_bring_it_back_into_the_range(
        self, num_waiting: int, num_added: int
    ) -> None:
        load = replace(
            cluster(BUSY), num_waiting=num_waiting, waiting_demand_blocks=30 * num_waiting
        )
        assert check(load).num_added == num_added

    def test_the_lower_end_is_in_the_range(self) -> None:
        at_the_end = instance("a", 5, 10)  # 16 * 50 / 5 = 160
        assert check(cluster(at_the_end)).reason is ScaleReason.IN_RANGE
        assert check(cluster(instance("a", 5, 10, 1))).num_added == 1

    def test_a_settable_step(self) -> None:
        load = replace(cluster(BUSY), num_waiting=30, waiting_demand_blocks=900)
        assert check(load, replace(AT_ONCE, max_added=7)).num_added == 7
        assert check(load, replace(AT_ONCE, max_added=1)).num_added == 1

    def test_at_most_the_maximum(self) -> None:
        load = replace(cluster(BUSY), num_waiting=30, waiting_demand_blocks=900)
        assert check(load, replace(AT_ONCE, max_instances=3)).num_added == 2
        at_maximum = check(load, replace(AT_ONCE, max_instances=1))
        assert (at_maximum.reason, at_maximum.num_added) == (ScaleReason.AT_MAXIMUM, 0)

    def test_one_that_stalls_or_is_drained_by_an_operator_keeps_its_place(self) -> None:
        load = replace(cluster(BUSY), num_unavailable=1)
        assert check(load, replace(AT_ONCE, max_instances=3)).num_added == 1
        assert check(load, replace(AT_ONCE, max_instances=2)).reason is ScaleReason.AT_MAXIMUM

    def test_what_starts_already_is_enough(self) -> None:
        load = replace(cluster(BUSY), num_starting=1)
        assert check(load).reason is ScaleReason.IN_RANGE
        more = replace(load, num_waiting=1, waiting_demand_blocks=30)
        assert check(more).num_added == 1, "one starts, and two are needed"

    def test_all_of_a_cluster_that_starts_again_counts(self) -> None:
        load = replace(cluster(), num_starting=2, num_waiting=20, waiting_demand_blocks=200)
        decision = check(load)
        assert (decision.num_added, decision.freeness_less_steps) == (2, None)
        assert decision.freeness_steps == 16 * -200 / 20


class TestDown:
    def test_one_with_the_fewest_running(self) -> None:
        load = cluster(instance("a", 2, 1), instance("b", 1, 1), instance("c", 1, 9, 1, 1))
        decision = check(load)
        # 300 blocks less 14, less the 100 of b: 186 for 6 requests
        assert decision.freeness_less_steps == 16 * (300 - 14 - 100) / 6
        assert (decision.reason, decision.removed_id) == (ScaleReason.IN_RANGE, None)
        down = check(load, replace(AT_ONCE, down_above_steps=495))
        assert (down.reason, down.removed_id) == (ScaleReason.HIGH_FREENESS, "b")
        assert down.num_added == 0

    def test_ties_by_id(self) -> None:
        load = cluster(instance("c", 1, 1), instance("b", 1, 1), instance("d", 1, 1))
        assert check(load).removed_id == "b"

    def test_it_must_stay_above_the_upper_end(self) -> None:
        load = cluster(instance("a", 1, 40), IDLE)  # without b: 16 * 60 / 1 = 960
        assert check(load).reason is ScaleReason.IN_RANGE
        assert check(cluster(instance("a", 1, 39), IDLE)).removed_id == "b"

    def test_the_requests_of_the_one_that_goes_are_kept(self) -> None:
        load = cluster(instance("a", 1, 20), instance("b", 1, 20))  # 16 * (200 - 40 - 100) / 2
        assert check(load).freeness_less_steps == 480

    def test_its_own_memory_is_taken_away(self) -> None:
        large = snapshot_of([running("r", 10)], instance_id="a", total_blocks=500)
        assert check(cluster(large, IDLE)).freeness_less_steps == 16 * (590 - 100)
        busy = snapshot_of([running("r", 10)], instance_id="b")
        idle = snapshot_of([], instance_id="a", total_blocks=500)
        assert check(cluster(idle, busy)).freeness_less_steps == 16 * (590 - 500)

    def test_not_below_the_minimum(self) -> None:
        load = cluster(instance("a", 1, 1), IDLE)
        assert check(load).removed_id == "b"
        at_minimum = check(load, replace(AT_ONCE, min_instances=2))
        assert (at_minimum.reason, at_minimum.removed_id) == (ScaleReason.AT_MINIMUM, None)

    def test_what_only_starts_replaces_nothing(self) -> None:
        """A third one starts again after it died: it may take long, or fail."""
        load = replace(cluster(instance("a", 1, 1), IDLE), num_starting=1)
        assert check(load).removed_id == "b"
        config = replace(AT_ONCE, min_instances=2)
        assert check(load, config).reason is ScaleReason.AT_MINIMUM
        half = replace(cluster(instance("a", 1, 50), IDLE), num_starting=1)
        assert check(half).reason is ScaleReason.IN_RANGE, "16 * 150 with the third, 800 without"

    def test_held_requests_count(self) -> None:
        load = replace(cluster(IDLE, instance("a")), num_waiting=2, waiting_demand_blocks=10)
        assert check(load).reason is ScaleReason.IN_RANGE  # 16 * 90 / 2 = 720


class TestNoTraffic:
    @pytest.mark.parametrize("block_size", [16, 1])
    def test_to_the_minimum_however_small_an_instance_is(self, block_size: int) -> None:
        """With blocks of one token an idle instance has 100 steps, which is below the range."""
        instances = [instance(name) for name in "abc"]
        config = replace(AT_ONCE, min_instances=2)
        all_three, two = cluster(*instances), cluster(*instances[1:])
        found = check(replace(all_three, block_size=block_size), config)
        assert (found.reason, found.removed_id) == (ScaleReason.NO_TRAFFIC, "a")
        at_minimum = check(replace(two, block_size=block_size), config)
        assert (at_minimum.reason, at_minimum.num_added) == (ScaleReason.AT_MINIMUM, 0)

    def test_what_is_held_is_traffic(self) -> None:
        load = replace(
            cluster(block_size=1), num_starting=2, num_waiting=1, waiting_demand_blocks=60
        )
        assert check(load).num_added == 1, "one block of 200 is 140, below 160"


class TestBounds:
    def test_below_the_minimum_at_once_and_to_the_full(self) -> None:
        config = AutoscaleConfig(min_instances=8, up_persistence_s=60)
        load = replace(cluster(IDLE), num_starting=1)
        decision = check(load, config)
        assert (decision.reason, decision.num_added) == (ScaleReason.BELOW_MINIMUM, 6)

    def test_one_that_stalls_is_no_instance_of_the_minimum(self) -> None:
        load = replace(cluster(IDLE), num_unavailable=1)
        config = replace(AT_ONCE, min_instances=2)
        assert check(load, config).num_added == 1
        full = check(load, replace(config, max_instances=2))
        assert (full.reason, full.num_added) == (ScaleReason.AT_MAXIMUM, 0)

    def test_above_the_maximum_one_by_one_at_once(self) -> None:
        config = AutoscaleConfig(max_instances=2, down_persistence_s=60)
        busy = [replace(BUSY, instance_id=name) for name in "abc"]
        decision = check(cluster(*busy), config)
        assert (decision.reason, decision.removed_id) == (ScaleReason.ABOVE_MAXIMUM, "a")
        unavailable = replace(cluster(*busy[:2]), num_unavailable=1)
        assert check(unavailable, config).removed_id == "a"
        kept = check(unavailable, replace(config, min_instances=2))
        assert (kept.reason, kept.removed_id) == (ScaleReason.LOW_LATELY, None)


class TestTimes:
    def test_the_first_check_and_the_next(self) -> None:
        config = AutoscaleConfig()
        state = ScaleState.first(config, 7.0)
        assert decide(config, state, cluster(BUSY), 106.9) == (None, state)
        decision, state = decide(config, state, cluster(BUSY), 107.5)
        assert decision is not None
        assert decide(config, state, cluster(BUSY), 117.4) == (None, state)
        assert decide(config, state, cluster(BUSY), 117.5)[0] is not None

    def test_low_for_the_persistence_time(self) -> None:
        config = AutoscaleConfig(up_persistence_s=20)
        lately, up = (ScaleReason.LOW_LATELY, 0, None), (ScaleReason.LOW_FREENESS, 1, None)
        assert checks([cluster(BUSY)] * 4, config) == [lately, lately, up, up]

    def test_a_check_within_the_range_begins_it_anew(self) -> None:
        fine = cluster(instance("a", 5, 10))
        loads = [cluster(BUSY), fine, cluster(BUSY), cluster(BUSY)]
        reasons = [reason for reason, _, _ in checks(loads, AutoscaleConfig())]
        assert reasons == [
            ScaleReason.LOW_LATELY,
            ScaleReason.IN_RANGE,
            ScaleReason.LOW_LATELY,
            ScaleReason.LOW_FREENESS,
        ]

    def test_high_for_the_persistence_time(self) -> None:
        config = AutoscaleConfig(down_persistence_s=20)
        free = cluster(instance("a", 1, 1), IDLE)
        lately, down = (ScaleReason.HIGH_LATELY, 0, None), (ScaleReason.HIGH_FREENESS, 0, "b")
        assert checks([free, free, free], config) == [lately, lately, down]
        begun_anew = [free, free, cluster(BUSY, IDLE), free]
        assert checks(begun_anew, config)[-1] == lately

    def test_never_while_an_action_is_pending(self) -> None:
        """Not below the minimum either, nor above the maximum. The time counts meanwhile."""
        pending = replace(cluster(BUSY), action_pending=True)
        config = AutoscaleConfig()
        assert check(pending, replace(config, min_instances=5)).reason is ScaleReason.PENDING
        above = replace(cluster(BUSY, IDLE), action_pending=True)
        assert check(above, replace(config, max_instances=1)).reason is ScaleReason.PENDING
        idle = replace(cluster(IDLE, instance("a")), action_pending=True)
        assert check(idle, AT_ONCE).removed_id is None
        assert checks([pending, pending, cluster(BUSY)], config) == [
            (ScaleReason.PENDING, 0, None),
            (ScaleReason.PENDING, 0, None),
            (ScaleReason.LOW_FREENESS, 1, None),
        ]


class TestKept:
    LEAVING = replace(cluster(BUSY), leaving_id="c")

    def test_one_that_drains_stays_when_the_load_calls_for_one_more(self) -> None:
        decision = check(self.LEAVING)
        assert (decision.reason, decision.kept_id) == (ScaleReason.LOW_FREENESS, "c")
        assert (decision.num_added, decision.removed_id) == (0, None)

    def test_only_after_the_persistence_time(self) -> None:
        config = AutoscaleConfig(up_persistence_s=20)
        state = ScaleState(0.0)
        kept = []
        for _ in range(3):
            decision, state = decide(config, state, self.LEAVING, state.next_check_s)
            assert decision is not None
            kept.append((decision.reason, decision.kept_id))
        pending = (ScaleReason.PENDING, None)
        assert kept == [pending, pending, (ScaleReason.LOW_FREENESS, "c")]

    def test_at_once_below_the_minimum(self) -> None:
        load = replace(cluster(IDLE), leaving_id="c")
        decision = check(load, AutoscaleConfig(min_instances=2))
        assert (decision.reason, decision.kept_id) == (ScaleReason.BELOW_MINIMUM, "c")

    def test_no_second_one_goes_meanwhile(self) -> None:
        load = replace(cluster(IDLE, instance("a")), leaving_id="c")
        decision = check(load)
        assert (decision.reason, decision.removed_id) == (ScaleReason.PENDING, None)


class TestFailedStarts:
    def test_none_is_started_for_a_while_after_one_could_not_start(self) -> None:
        failed = replace(cluster(BUSY), last_failed_start_s=701.0)
        assert check(failed).reason is ScaleReason.START_FAILED
        below = check(failed, replace(AT_ONCE, min_instances=2))
        assert (below.reason, below.num_added) == (ScaleReason.START_FAILED, 0)
        assert check(replace(failed, last_failed_start_s=700.0)).num_added == 1

    def test_it_keeps_none_from_going(self) -> None:
        failed = replace(cluster(instance("a", 1, 1), IDLE), last_failed_start_s=999.0)
        assert check(failed).removed_id == "b"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"up_below_steps": 961.0}, "up_below_steps"),
        ({"up_below_steps": float("nan")}, "up_below_steps"),
        ({"min_instances": 0}, "min_instances"),
        ({"min_instances": 17}, "min_instances"),
        ({"max_added": 0}, "max_added"),
        ({"check_interval_s": 0.0}, "check_interval_s"),
        ({"first_check_after_s": -1.0}, "first_check_after_s"),
        ({"up_persistence_s": -1.0}, "up_persistence_s"),
        ({"down_persistence_s": float("nan")}, "down_persistence_s"),
        ({"retry_failed_start_s": -1.0}, "retry_failed_start_s"),
        ({"cold_start_s": -1.0}, "cold_start_s"),
    ],
)
def test_a_configuration_that_is_wrong(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replace(AutoscaleConfig(), **changes)


@st.composite
def configs(draw: st.DrawFn) -> AutoscaleConfig:
    least, low = draw(st.integers(1, 5)), draw(st.integers(0, 400))
    return AutoscaleConfig(
        up_below_steps=low,
        down_above_steps=low + draw(st.integers(0, 800)),
        min_instances=least,
        max_instances=least + draw(st.integers(0, 8)),
        max_added=draw(st.integers(1, 5)),
        up_persistence_s=draw(st.sampled_from([0.0, 10.0, 25.0])),
        down_persistence_s=draw(st.sampled_from([0.0, 10.0, 25.0])),
    )


@st.composite
def loads(draw: st.DrawFn) -> ClusterLoad:
    """Instances of unequal size, some over their memory."""
    schedulable = [
        snapshot_of(
            draw(request_lists()), instance_id=f"i-{n}", total_blocks=draw(st.integers(1, 300))
        )
        for n in range(draw(st.integers(0, 8)))
    ]
    return ClusterLoad(
        schedulable,
        16,
        new_capacity_blocks=draw(st.integers(1, 300)),
        num_waiting=(num_waiting := draw(st.integers(0, 5))),
        waiting_demand_blocks=num_waiting * draw(st.integers(1, 60)),
        num_starting=draw(st.integers(0, 3)),
        num_unavailable=draw(st.integers(0, 3)),
        action_pending=draw(st.integers(0, 4)) == 0,
        leaving_id=draw(st.sampled_from([None, None, "i-99"])),
    )


@given(config=configs(), load=loads(), since=st.sampled_from([None, 990.0, 0.0]))
def test_whatever_the_load(config: AutoscaleConfig, load: ClusterLoad, since: float | None) -> None:
    state = ScaleState(1000.0, since, since)
    decision = check(load, config, state)
    assert decision == check(load, config, state)
    num_serving = len(load.schedulable)
    num_in_all = num_serving + load.num_starting + load.num_unavailable
    changes = (decision.num_added, decision.removed_id, decision.kept_id)
    assert sum(map(bool, changes)) <= 1
    if load.leaving_id is not None:
        assert (decision.num_added, decision.removed_id) == (0, None)
    if decision.kept_id:
        assert decision.kept_id == load.leaving_id
        return
    if load.action_pending:
        assert decision.reason is ScaleReason.PENDING
        assert (decision.num_added, decision.removed_id) == (0, None)
    if decision.num_added:
        assert num_in_all + decision.num_added <= config.max_instances
    if decision.removed_id:
        assert decision.removed_id in {each.instance_id for each in load.schedulable}
        assert num_serving - 1 >= config.min_instances
    if decision.reason is ScaleReason.LOW_FREENESS:
        assert decision.num_added <= config.max_added
        fewer = load.freeness_started(decision.num_added - 1)
        assert fewer < config.up_below_steps, "no more than it takes"
    if decision.reason is ScaleReason.HIGH_FREENESS:
        kept = [each for each in load.schedulable if each.instance_id != decision.removed_id]
        (gone,) = (each for each in load.schedulable if each.instance_id == decision.removed_id)
        moved = replace(
            load,
            schedulable=kept,
            num_waiting=load.num_waiting + gone.num_running + gone.num_queued,
            waiting_demand_blocks=load.waiting_demand_blocks
            + gone.num_used_blocks
            + gone.fill_blocks
            + gone.queued_demand_blocks,
        )
        assert moved.freeness() == decision.freeness_less_steps
        assert moved.freeness() > config.down_above_steps >= config.up_below_steps
        again = check(moved, replace(config, up_persistence_s=0))
        assert again.reason is not ScaleReason.LOW_FREENESS


@given(
    config=configs(),
    num_instances=st.integers(1, 14),
    num_requests=st.integers(0, 60),
    blocks=st.integers(1, 60),
    capacity=st.integers(1, 300),
)
def test_a_load_that_stays_is_followed_in_one_direction_to_a_rest(
    config: AutoscaleConfig, num_instances: int, num_requests: int, blocks: int, capacity: int
) -> None:
    """All requests run on the first instance: F_scale does not look at where they are."""
    assume(config.min_instances <= num_instances <= config.max_instances)
    state = ScaleState(0.0)
    sizes = [num_instances]
    for _ in range(80):
        idle = [snapshot_of(instance_id=f"i-{n}", total_blocks=capacity) for n in range(sizes[-1])]
        full = replace(
            idle[0],
            num_free_blocks=capacity - num_requests * blocks,
            num_running=num_requests,
        )
        load = ClusterLoad([full, *idle[1:]], 16, new_capacity_blocks=capacity)
        decision, state = decide(config, state, load, state.next_check_s)
        assert decision is not None
        sizes.append(sizes[-1] + decision.num_added - (decision.removed_id is not None))
    assert sizes == sorted(sizes) or sizes == sorted(sizes, reverse=True)
    assert len(set(sizes[-10:])) == 1, "it rests"
    assert config.min_instances <= min(sizes) <= max(sizes) <= config.max_instances
    last = sizes[-1]
    freeness = 16 * (last * capacity - num_requests * blocks) / max(1, num_requests)
    if num_requests == 0:
        assert last == config.min_instances
    elif last < config.max_instances:
        assert freeness >= config.up_below_steps
    less = 16 * ((last - 1) * capacity - num_requests * blocks) / max(1, num_requests)
    assert last == config.min_instances or less <= config.down_above_steps
