"""Auto-scaling at the controller: what it sees, what it has done, and when it must not."""

import asyncio

import pytest

from controller.core.emptying.claims import Remove
from controller.core.fleet.autoscaler import ACTOR, Outcome, ScaleReason
from controller.core.fleet.cluster_spec import RollingOrder
from controller.core.record.event_log import EventKind
from tests.unit.runtime.autoscale_bed import AutoscaleBed
from tests.unit.runtime.fakes import FakeNetwork, virtual_time

pytestmark = virtual_time


@pytest.fixture
async def bed(network: FakeNetwork) -> AutoscaleBed:
    return AutoscaleBed(network)


async def test_a_load_that_rises_gets_instances_as_many_as_it_wants(bed: AutoscaleBed) -> None:
    """12 requests of 10 blocks want 240 blocks for 160 steps each: 4 instances of 64 blocks."""
    bed.num_requests = 12
    await bed.begin_playing()
    await asyncio.sleep(2)
    assert bed.launcher.launched[-2:] == ["i-2", "i-3"]
    assert bed.there == ["i-0", "i-1"], "they start"
    await asyncio.sleep(10)
    assert bed.there == ["i-0", "i-1", "i-2", "i-3"]
    assert len(bed.launcher.launched) == 1 + 4
    (said,) = bed.told()
    assert (said.kind, said.actor) == (EventKind.AUTOSCALED, ACTOR)
    assert said.reason == "add 2: the cluster has 11 steps, fewer than 160"
    assert (said.numbers["num_added"], said.numbers["num_wanted"]) == (2, 4)
    took_s = bed.autoscaling.cold_start_s
    assert took_s == pytest.approx(1.9, abs=0.3), "two were there at once, two took 3.5 s"


async def test_off_does_nothing_and_a_dry_run_only_says_so(bed: AutoscaleBed) -> None:
    bed.num_requests = 12
    await bed.begin_playing("off")
    await asyncio.sleep(5)
    assert (bed.checked, bed.told()) == (None, [])
    bed.set_mode("dry-run")
    await asyncio.sleep(10)
    assert len(bed.launcher.launched) == 1 + 2
    assert [said.kind for said in bed.told()] == [EventKind.AUTOSCALE_PLANNED]
    assert (bed.checked.outcome, bed.checked.num_wanted) == (Outcome.WOULD, 4)
    assert bed.keeper.spec.revision == 0


async def test_an_operators_scale_wins_until_it_is_released(bed: AutoscaleBed) -> None:
    await bed.begin_playing("off")
    assert bed.autoscaling.hold("ana", 3) is None, "nothing is to be held"
    bed.set_mode("on")
    hold = bed.autoscaling.hold("ana", 3)
    plan = bed.controller.scaling.plan(3, force=False)
    bed.controller.scaling.carry_out(plan, bed.claim(Remove), hold)
    await asyncio.sleep(10)
    assert bed.there == ["i-0", "i-1", "i-2"], "there is no request, and they stay"
    assert bed.autoscaling.held == hold
    assert [each.kind for each in bed.told()] == [EventKind.AUTOSCALE_PLANNED]
    bed.restart_controller()
    await asyncio.sleep(10)
    assert bed.there == ["i-0", "i-1", "i-2"]
    bed.keeper.change(bed.keeper.spec.with_settings({}, releases=True))
    await asyncio.sleep(20)
    assert bed.there == ["i-2"]


async def test_a_controller_that_starts_again_goes_on_with_what_is_pending(
    bed: AutoscaleBed,
) -> None:
    bed.num_requests, bed.cold_start_s = 12, 20.0
    await bed.begin_playing()
    await asyncio.sleep(3)
    assert bed.keeper.spec.instance_ids == ("i-0", "i-1", "i-2", "i-3")
    bed.restart_controller()
    assert set(bed.launcher.launched) == {"f-0", "i-0", "i-1", "i-2", "i-3"}
    await asyncio.sleep(15)
    assert bed.checked.decision.reason is ScaleReason.PENDING
    await asyncio.sleep(30)
    assert bed.there == ["i-0", "i-1", "i-2", "i-3"]


async def test_one_that_drains_stays_when_the_load_comes_back(network: FakeNetwork) -> None:
    bed = AutoscaleBed(network, 3)
    await bed.begin_playing(min_instances=2)
    bed.runs("i-0", "r-1")  # at its frontend: it is not drained
    await asyncio.sleep(4)
    assert list(bed.keeper.spec.drains) == ["i-0"]
    assert bed.checked.decision.reason is ScaleReason.PENDING
    bed.num_requests = 9
    await asyncio.sleep(3)
    assert bed.keeper.spec.drains == {}
    assert bed.told()[-1].reason.startswith("keep i-0: ")
    assert len(bed.launcher.launched) == 1 + 3


async def test_never_beyond_what_ray_has_nor_while_ray_is_gone(bed: AutoscaleBed) -> None:
    bed.num_requests = 12
    answers: list[str] = []  # for one instance, and for more

    def no_room(number: int) -> str:
        if not answers:
            raise RuntimeError("the head of Ray is gone")
        return answers[min(number, len(answers)) - 1]

    bed.launcher.no_room = no_room
    await bed.begin_playing()
    await asyncio.sleep(3)
    assert not bed.task.done()
    answers[:] = ["", "no GPU is free"]
    await asyncio.sleep(2)
    assert bed.launcher.launched[-1] == "i-2"
    del answers[0]
    await asyncio.sleep(10)
    assert bed.launcher.launched[-1] == "i-2"
    gone, added, blocked = bed.told()
    assert gone.kind is blocked.kind is EventKind.AUTOSCALE_BLOCKED
    assert gone.reason.endswith("RuntimeError('the head of Ray is gone')")
    assert added.numbers["num_added"] == 1
    assert blocked.reason.endswith("there is no room for one more: no GPU is free")


@pytest.mark.parametrize("how", ["failing", "never"])
async def test_one_that_cannot_start_neither_counts_nor_blocks(bed: AutoscaleBed, how: str) -> None:
    bed.num_requests = 8
    getattr(bed, how).add("i-2")
    await bed.begin_playing(start_timeout_s=20.0, retry_failed_start_s=60.0)
    await asyncio.sleep(40)
    assert bed.launcher.launched[-1] == "i-2"
    assert bed.checked.decision.reason is ScaleReason.START_FAILED
    assert bed.checked.num_wanted == 2
    await asyncio.sleep(60)
    assert bed.keeper.spec.instance_ids == ("i-0", "i-1", "i-3"), "it went for the next one"
    assert bed.there == ["i-0", "i-1", "i-3"]


async def test_a_full_disk_blocks_it_until_there_is_room(bed: AutoscaleBed) -> None:
    bed.disk.is_full = True
    await bed.begin_playing()
    await asyncio.sleep(5)
    assert bed.checked.outcome is Outcome.BLOCKED
    assert bed.told()[-1].reason == "remove i-0: no request runs or waits; no space left"
    bed.disk.is_full = False
    await asyncio.sleep(10)
    assert bed.there == ["i-1"]


async def test_what_frontends_saw_lately_counts_once_the_number_has_settled(
    bed: AutoscaleBed,
) -> None:
    bed.num_requests = 2
    bed.seen = {"ttft_p99_s": 3.0, "tpot_p99_s": 0.05, "num_first_tokens": 60}
    await bed.begin_playing(target_ttft_s=2.0, max_added=1, down_above_steps=170.0)
    await asyncio.sleep(30)
    assert bed.told() == [], "in the first minute nothing is known of two"
    bed.num_requests = 6
    await asyncio.sleep(65)
    assert bed.there == ["i-0", "i-1", "i-2"]
    (added,) = bed.told()
    assert added.reason == (
        "add 1: the P99 TTFT of the next minute is estimated at 3 s, and the target is 2 s"
    )


async def test_prompts_that_take_long_call_for_one_more(bed: AutoscaleBed) -> None:
    bed.num_requests, bed.backlog_s = 2, 1.4
    await bed.begin_playing(max_added=1)
    await asyncio.sleep(30)
    assert bed.told()[0].reason == (
        "add 1: each instance would compute prompts for 1.4 s, longer than 1"
    )


async def test_it_waits_for_a_rolling_restart_to_end(network: FakeNetwork) -> None:
    bed = AutoscaleBed(network, 4)
    await bed.begin_playing("off", min_instances=2)
    rolling = bed.controller.rolling
    rolling.begin(RollingOrder("op-9", 1.0, ()))
    bed.set_mode("on", min_instances=2)
    await asyncio.sleep(10)
    assert bed.launcher.terminated == []
    assert bed.checked.why.endswith("; it waits for the rolling restart to end")
    rolling.stop("stopped", "bo")
    await asyncio.sleep(30)
    assert bed.launcher.terminated == ["i-1"], "i-0 is still away for its restart"
