"""Late binding at the controller; the test plays the instances, of 64 blocks of 16 tokens each."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from controller.core.load.snapshot import QueueHead
from controller.core.scheduler_events import DispatchCancelled
from controller.core.settings import HoldingConfig, ReschedulingConfig
from controller.runtime.controller.roster import LiveConfig
from controller.runtime.messages.move_messages import HeadMoveOrdered, RoomOrdered
from controller.runtime.messages.requests import Dispatched, DispatchWithdrawn
from tests.unit.runtime.controller_bed import CONFIG, Bed
from tests.unit.runtime.fakes import FakeNetwork, settle, virtual_time

HOLDING = HoldingConfig(room_to_grow_tokens=0, max_held_reqs=3, evict_margin_steps=0.0)
PLUS = LiveConfig(
    replace(CONFIG, policy="llumnix+", holding=HOLDING, hold_timeout_s=0.5),
    rescheduling=ReschedulingConfig(interval_s=3600.0),
)
FULL = {"free": 4, "num_running": 20}


pytestmark = virtual_time


@pytest.fixture
async def bed(network: FakeNetwork) -> AsyncIterator[Bed]:
    """Both instances have four blocks left, and `r0`, which needs ten, is held."""
    bed = await Bed.serving(network)
    bed.controller.configure(PLUS)
    for instance_id in ("i-0", "i-1"):
        await bed.reports(instance_id, **FULL)
    bed.asks("r0")
    await settle()
    yield bed
    bed.controller.scheduler.check()


def sent(bed: Bed) -> list[tuple[str, str]]:
    found = [told.dispatch for told in bed.f0.received(Dispatched)]
    return [(each.request_id, each.instance_id) for each in found]


def kept_and_other(bed: Bed) -> tuple[str, str]:
    (kept,) = bed.controller.scheduler.placement.reserved
    (other,) = {"i-0", "i-1"} - {kept}
    return kept, other


async def round_of(bed: Bed) -> None:
    bed.controller.rescheduler.round()
    await settle()


async def test_a_held_request_goes_with_the_status_that_has_room_for_it(bed: Bed) -> None:
    assert (bed.controller.scheduler.num_waiting, sent(bed)) == (1, [])
    await bed.reports("i-1", free=9, num_running=20)
    assert sent(bed) == []
    await bed.reports("i-1", free=10, num_running=20)
    assert sent(bed) == [("r0", "i-1")]
    assert bed.f0.received(Dispatched)[0].dispatch.policy == "llumnix+"


async def test_without_late_binding_all_that_was_held_goes_at_once(bed: Bed) -> None:
    bed.asks("r1")
    await settle()
    other = replace(PLUS.scheduler, policy="vllm-dp", holding=None)
    bed.controller.configure(replace(PLUS, scheduler=other))
    assert bed.controller.scheduler.num_waiting == 0
    await settle()
    assert sorted(sent(bed)) == [("r0", "i-0"), ("r1", "i-1")]


async def test_a_round_orders_room_on_the_kept_instance(bed: Bed) -> None:
    kept, other = kept_and_other(bed)
    await bed.reports(other, free=5, num_running=1)
    await round_of(bed)
    (ordered,) = bed.peers[kept].received(RoomOrdered)
    order = ordered.order
    assert (order.request_id, order.frontend, order.rank) == ("r0", bed.f0.address, 0)
    assert order.lacking_blocks == 6
    members = bed.controller.roster.members
    assert [each.destination for each in order.openings] == [members[other].ref]
    assert order.openings[0].spare_blocks <= 5
    assert bed.peers[other].received(RoomOrdered) == []


async def test_a_blocked_head_is_sent_where_it_fits(bed: Bed) -> None:
    await bed.reports("i-1", free=9, num_running=20)
    head = QueueHead("h", 0, 5, 0.0)
    await bed.reports("i-0", **FULL, num_queued=1, queued_demand_blocks=5, queue_head=head)
    bed.says("f-0", DispatchWithdrawn(DispatchCancelled("r0", "f-0")))
    await settle()
    await round_of(bed)
    (ordered,) = bed.peers["i-0"].received(HeadMoveOrdered)
    order = ordered.order
    assert (order.request_id, order.destination.instance_id) == ("h", "i-1")
