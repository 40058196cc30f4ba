"""Late binding at the controller; the test plays the instances, of 64 blocks of 16 tokens each."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from controller.core.load.snapshot import QueueHead
from controller.core.scheduler_events import DispatchCancelled, RejectCode
from controller.core.settings import HoldingConfig, ReschedulingConfig
from controller.runtime.controller.roster import LiveConfig
from controller.runtime.messages.move_messages import HeadMoveOrdered, ReliefOrdered, RoomOrdered
from controller.runtime.messages.requests import Dispatched, DispatchWithdrawn, Refused
from tests.unit.runtime.controller_bed import CONFIG, Bed
from tests.unit.runtime.fakes import FakeNetwork, settle

HOLDING = HoldingConfig(room_to_grow_tokens=0, max_held_reqs=3, evict_margin_steps=0.0)
PLUS = LiveConfig(
    replace(CONFIG, policy="llumnix+", holding=HOLDING, hold_timeout_s=0.5),
    rescheduling=ReschedulingConfig(interval_s=3600.0),
)
FULL = {"free": 4, "num_running": 20}


@pytest.fixture
async def bed(network: FakeNetwork) -> AsyncIterator[Bed]:
    """Both instances have four blocks left, and `r0`, which needs ten, is held."""
    bed = Bed(network)
    await bed.serve()
    bed.controller.configure(PLUS)
    for instance_id in ("i-0", "i-1"):
        await bed.reports(instance_id, **FULL)
    bed.asks("r0")
    await settle()
    yield bed
    bed.controller.scheduler.check()
    bed.task.cancel()


def sent(bed: Bed) -> list[tuple[str, str]]:
    found = [told.dispatch for told in bed.f0.received(Dispatched)]
    return [(each.request_id, each.instance_id) for each in found]


async def test_a_held_request_goes_with_the_status_that_has_room_for_it(bed: Bed) -> None:
    assert (bed.controller.scheduler.num_waiting, sent(bed)) == (1, [])
    await bed.reports("i-1", free=9, num_running=20)
    assert sent(bed) == []
    await bed.reports("i-1", free=10, num_running=20)
    assert sent(bed) == [("r0", "i-1")]
    assert bed.f0.received(Dispatched)[0].dispatch.policy == "llumnix+"


async def test_it_is_held_for_longer_than_the_timeout_that_is_for_dead_clusters(bed: Bed) -> None:
    await asyncio.sleep(1.0)
    assert bed.f0.received(Refused) == []
    assert bed.controller.scheduler.num_waiting == 1


async def test_one_too_many_is_refused_as_overloaded(bed: Bed) -> None:
    for name in ("r1", "r2", "r3"):
        bed.asks(name)
    refused = (await bed.f0.receive(Refused)).reject
    assert (refused.request_id, refused.code) == ("r3", RejectCode.OVERLOADED)
    assert bed.controller.scheduler.num_waiting == 3


async def test_without_late_binding_all_that_was_held_goes_by_the_policy_as_it_is_then(
    bed: Bed,
) -> None:
    bed.asks("r1")
    await settle()
    other = replace(PLUS.scheduler, policy="vllm-dp", holding=None)
    bed.controller.configure(replace(PLUS, scheduler=other))
    assert bed.controller.scheduler.num_waiting == 0
    await settle()
    assert sorted(sent(bed)) == [("r0", "i-0"), ("r1", "i-1")]


async def test_other_settings_of_late_binding_keep_what_is_held(bed: Bed) -> None:
    other = replace(PLUS.scheduler, holding=replace(HOLDING, max_held_reqs=1, overtaking=False))
    bed.controller.configure(replace(PLUS, scheduler=other))
    bed.asks("r1", tokens=16)
    assert (await bed.f0.receive(Refused)).reject.request_id == "r1"
    assert bed.controller.scheduler.num_waiting == 1


async def test_no_instance_is_relieved_towards_one_that_is_kept(bed: Bed) -> None:
    placement = bed.controller.scheduler.placement
    assert placement is not None
    (kept,) = placement.reserved
    (other,) = {"i-0", "i-1"} - {kept}
    await bed.reports(kept, free=9, num_running=1)  # 144 steps
    bed.controller.rescheduler.round()
    await settle()
    assert placement.reserved
    assert bed.peers[other].received(ReliefOrdered) == []
    await bed.reports(kept, free=10, num_running=1)
    await bed.reports(kept, free=9, num_running=1, seen=1)
    assert not placement.reserved
    bed.controller.rescheduler.round()
    await settle()
    (order,) = bed.peers[other].received(ReliefOrdered)
    assert order.relief is not None
    assert order.relief.destination.instance_id == kept


async def test_a_round_orders_room_on_the_kept_instance(bed: Bed) -> None:
    placement = bed.controller.scheduler.placement
    assert placement is not None
    (kept,) = placement.reserved
    (other,) = {"i-0", "i-1"} - {kept}
    await bed.reports(other, free=5, num_running=1)
    bed.controller.rescheduler.round()
    await settle()
    (ordered,) = bed.peers[kept].received(RoomOrdered)
    order = ordered.order
    assert (order.request_id, order.frontend, order.rank) == ("r0", bed.f0.address, 0)
    assert order.lacking_blocks == 6
    members = bed.controller.roster.members
    assert [each.destination for each in order.openings] == [members[other].ref]
    assert order.openings[0].spare_blocks <= 5
    assert bed.peers[other].received(RoomOrdered) == []


async def test_no_room_is_made_towards_one_that_failed_or_is_busy_moving(bed: Bed) -> None:
    placement = bed.controller.scheduler.placement
    assert placement is not None
    (kept,) = placement.reserved
    (other,) = {"i-0", "i-1"} - {kept}
    await bed.reports(other, free=5, num_running=1)
    bed.controller.configure(replace(PLUS, rescheduling=replace(PLUS.rescheduling, max_moves=0)))
    bed.controller.rescheduler.round()
    await settle()
    assert bed.peers[kept].received(RoomOrdered) == []
    bed.controller.configure(replace(PLUS, rescheduling=ReschedulingConfig(enabled=False)))
    bed.controller.rescheduler.round()
    await settle()
    assert bed.peers[kept].received(RoomOrdered) == []
    bed.controller.configure(PLUS)
    bed.controller.operator_moves.cooling.failed(kept, other, bed.controller.now_s())
    bed.controller.rescheduler.round()
    await settle()
    assert bed.peers[kept].received(RoomOrdered) == []


async def test_a_blocked_head_is_sent_where_it_fits(bed: Bed) -> None:
    await bed.reports("i-1", free=9, num_running=20)
    head = QueueHead("h", 0, 5, 0.0)
    await bed.reports("i-0", **FULL, num_queued=1, queued_demand_blocks=5, queue_head=head)
    bed.says("f-0", DispatchWithdrawn(DispatchCancelled("r0", "f-0")))
    await settle()
    bed.controller.rescheduler.round()
    await settle()
    (ordered,) = bed.peers["i-0"].received(HeadMoveOrdered)
    order = ordered.order
    assert (order.request_id, order.destination.instance_id) == ("h", "i-1")
