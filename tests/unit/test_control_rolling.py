"""Rolling restarts on the control API: what is special in their orders, and how they are shown."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.api.errors import UsageError
from controller.api.operations.on_cluster import DismissRolling, Rolling, StopRolling
from controller.api.wire.status import RollingReport
from controller.core.fleet.cluster_spec import EngineChange
from tests.unit.control_bed import Bed, bed_of


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    async with bed_of() as found:
        yield found


async def test_a_dry_run_says_the_turn_and_what_each_restart_takes(bed: Bed) -> None:
    plan = await bed.does(Rolling, dry_run=True, at_once=2)
    assert (plan.state, plan.left, plan.at_once) == ("none", ("i-0", "i-1", "i-2"), 2)
    assert [(each.instance_id, each.num_requests, each.num_blocks) for each in plan.plan] == [
        ("i-0", 1, 10),
        ("i-1", 0, 0),
        ("i-2", 0, 0),
    ]
    assert (plan.changes, plan.changes_engine) == (True, False)


async def test_a_rolling_restart_is_shown_and_stopped(bed: Bed) -> None:
    begun = await bed.does(Rolling, reason="a patch", deadline_s=60)
    assert (begun.state, begun.left, begun.reason) == ("going", ("i-0", "i-1", "i-2"), "a patch")
    assert bed.outcomes()[0] == ("restart --rolling, each within 1m00s", "begun")
    async with asyncio.timeout(5):
        while not (shown := (await bed.get("rolling-restart", RollingReport))).under_way:
            bed.controller.rolling.tick()
            await asyncio.sleep(0.01)
    (turn,) = shown.under_way
    assert (turn.instance_id, turn.state, turn.num_requests_left) == ("i-0", "draining", 1)
    assert (await bed.status()).rolling == shown
    assert (await bed.does(StopRolling, dry_run=True)).state == "going"
    stopped = await bed.does(StopRolling, reason="no")
    assert (stopped.state, stopped.why) == ("stopped", "stopped: no")
    assert stopped.left == ("i-0", "i-1", "i-2")
    assert bed.controller.keeper.spec.drains == {}


async def test_a_rolling_restart_is_dismissed_once_it_is_over(bed: Bed) -> None:
    assert not (await bed.does(DismissRolling)).changes, "there was none"
    await bed.does(Rolling)
    assert await bed.refused(DismissRolling) == (409, "rolling")
    await bed.does(StopRolling)
    planned = await bed.does(DismissRolling, dry_run=True)
    assert (planned.changes, planned.dismissed) == (True, False)
    assert (await bed.does(DismissRolling)).dismissed
    assert not (await bed.does(DismissRolling)).changes


async def test_where_only_one_serves_it_needs_force(bed: Bed) -> None:
    for instance_id in ("i-1", "i-2"):
        await bed.client.post(f"/v1/instances/{instance_id}/drain")
    assert await bed.refused(Rolling) == (409, "last_instance")
    assert (await bed.does(Rolling, force=True)).state == "going"


async def test_engine_arguments_are_checked_planned_and_recorded() -> None:
    seen: list[tuple[object, ...]] = []

    def check(given: Any, before: Any, after: Any) -> None:
        seen.append((given, before, after))
        if "dtype" in given:
            raise UsageError("engine.dtype cannot be changed", "llumctl down")

    wanted = {"max_num_seqs": 64, "enforce_eager": None}
    async with bed_of(check_engine=check) as bed:
        plan = await bed.does(Rolling, dry_run=True, engine_args=wanted)
        assert (plan.engine_args, plan.changes_engine) == ({"max_num_seqs": 64}, True)
        assert seen == [(wanted, {}, {"max_num_seqs": 64})]
        assert await bed.refused(Rolling, engine_args={"dtype": "half"}) == (400, "bad_setting")
        assert bed.revision == 0
        begun = await bed.does(Rolling, engine_args=wanted, at_once=2)
        assert begun.engine_args == {"max_num_seqs": 64}
        order = bed.controller.rolling.order
        assert order is not None
        assert order.engine == EngineChange(1, {"max_num_seqs": 64})
        assert bed.outcomes()[0][0] == (
            "restart --rolling --at-once 2"
            " --engine-arg max_num_seqs=64 --engine-arg enforce_eager=null"
        )


async def test_the_status_shows_which_instances_have_which_arguments(bed: Bed) -> None:
    assert (await bed.status()).engine_changes == ()
    await bed.does(Rolling, engine_args={"speed": 2})
    order, keeper = bed.controller.rolling.order, bed.controller.keeper
    assert order is not None
    keeper.change(keeper.spec.with_rolling(order, engines={"i-1": order.engine}))
    found = (await bed.status()).engine_changes
    assert [(each.generation, each.instances, each.is_clusters) for each in found] == [
        (0, ("i-0", "i-2"), True),
        (1, ("i-1",), False),
    ]
