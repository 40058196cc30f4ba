"""The controller's rounds and late binding, with instances that the test plays, of 64 blocks of 16
tokens each."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from controller.core.load.snapshot import QueueHead
from controller.core.scheduler_events import DispatchCancelled
from controller.core.settings import HoldingConfig, ReschedulingConfig
from controller.runtime.controller.roster import LiveConfig
from controller.runtime.messages.codec import decode
from controller.runtime.messages.move_messages import (
    HeadMoveOrdered,
    ReliefFruitless,
    ReliefOrdered,
    RoomOrdered,
)
from controller.runtime.messages.requests import Dispatched, DispatchWithdrawn
from tests.unit.runtime.controller_bed import CONFIG, HERE, Bed
from tests.unit.runtime.fakes import FakeNetwork, settle, virtual_time

# Rounds are the tests'.
NEVER = ReschedulingConfig(interval_s=3600.0)
BUSY = {"free": 4, "num_running": 20}  # 16 * 4 / 20: 3.2 steps
FULL = {"free": 20, "num_running": 10}  # 32 steps


pytestmark = virtual_time


@pytest.fixture
async def bed(network: FakeNetwork) -> AsyncIterator[Bed]:
    bed = Bed(network, num_instances=4)
    bed.controller.rescheduler.configure(NEVER, bed.controller.rescheduler.levels)
    await bed.serve()
    await bed.reports("i-2", free=60)
    await bed.reports("i-1", free=50)
    yield bed
    bed.task.cancel()


async def orders(bed: Bed) -> dict[str, tuple[str, ReliefOrdered] | None]:
    """What each instance was told in one round: (its destination or nothing, all of it)."""
    bed.controller.rescheduler.round()
    await settle()
    told = {}
    for instance_id, peer in bed.peers.items():
        if found := peer.received(ReliefOrdered):
            order = found[-1]  # another configuration begins a round of its own
            to = order.relief.destination.instance_id if order.relief else ""
            told[instance_id] = (to, order)
        peer.inbox.clear()
    return told


async def told(bed: Bed) -> dict[str, str]:
    return {instance_id: to for instance_id, (to, _) in (await orders(bed)).items()}


async def test_the_lowest_source_gets_the_freest_destination(bed: Bed) -> None:
    assert await told(bed) == {}
    await bed.reports("i-0", **FULL)
    await bed.reports("i-1", **BUSY)
    await bed.reports("i-2", free=60, num_running=1)
    found = await orders(bed)
    assert {instance_id: to for instance_id, (to, _) in found.items()} == {
        "i-1": "i-3",
        "i-0": "i-2",
    }
    relief = found["i-1"][1].relief
    assert relief is not None
    assert relief.destination == bed.controller.roster.members["i-3"].ref
    assert relief.snapshot == bed.controller.scheduler.instances["i-3"].snapshot
    assert 0 <= relief.snapshot_age_s < 60
    assert (relief.source_freeness, relief.destination_freeness) == (3.2, 1024.0)
    assert relief.candidates == (("i-3", 1024.0), ("i-2", 960.0), ("i-0", 32.0), ("i-1", 3.2))
    assert (relief.levels, relief.config) == (bed.controller.rescheduler.levels, NEVER)
    assert found["i-0"][1].round_id == found["i-1"][1].round_id


async def test_who_is_not_paired_any_more_is_told_once(bed: Bed) -> None:
    await bed.reports("i-0", **BUSY)
    assert await told(bed) == {"i-0": "i-3"}
    assert await told(bed) == {"i-0": "i-3"}, "an order lasts for a round or two"
    await bed.reports("i-0", free=40, num_running=10)
    assert await told(bed) == {"i-0": ""}
    assert await told(bed) == {}


async def fruitless(bed: Bed, source_id: str, destination_id: str, incarnation: int = 1) -> None:
    said = ReliefFruitless("round-1", source_id, 1, destination_id, incarnation)
    bed.says(source_id, said)
    await settle()


async def test_a_pair_that_came_to_nothing_is_left_out_for_a_while(bed: Bed) -> None:
    machine = bed.controller.rescheduler.machine
    machine.rules = replace(machine.rules, config=ReschedulingConfig())
    await bed.reports("i-0", **BUSY)
    await bed.reports("i-1", **FULL)
    await fruitless(bed, "i-0", "i-3", incarnation=7)
    assert await told(bed) == {"i-0": "i-3", "i-1": "i-2"}, "of another incarnation"
    await fruitless(bed, "i-0", "i-3")
    assert await told(bed) == {"i-0": "i-2", "i-1": "i-3"}
    await asyncio.sleep(1.0)
    assert await told(bed) == {"i-0": "i-3", "i-1": "i-2"}


async def test_orders_do_not_pile_up_for_one_that_does_not_read(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    monkeypatch.setattr(
        bed.network.mailboxes[HERE],
        "send",
        lambda address, frame, *_, droppable=False: sent.append((decode(frame), droppable)),
    )
    await bed.reports("i-0", **BUSY)
    bed.controller.rescheduler.round()
    assert [drop for message, drop in sent if isinstance(message, ReliefOrdered)] == [True]


async def test_a_round_that_fails_is_not_the_last_one(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And a shorter interval counts at once."""
    rescheduler, rounds = bed.controller.rescheduler, []

    def fails() -> None:
        rounds.append(asyncio.get_running_loop().time())
        raise KeyError("no such pairing")

    monkeypatch.setattr(rescheduler, "round", fails)
    rescheduler.configure(replace(NEVER, interval_s=0.01), rescheduler.levels)
    await asyncio.sleep(1.0)
    assert len(rounds) > 3
    assert "a round of rescheduling failed" in caplog.text


# -- late binding -------------------------------------------------------------------------


HOLDING = HoldingConfig(room_to_grow_tokens=0, max_held_reqs=3, evict_margin_steps=0.0)
PLUS = LiveConfig(
    replace(CONFIG, policy="llumnix+", holding=HOLDING, hold_timeout_s=0.5),
    rescheduling=ReschedulingConfig(interval_s=3600.0),
)
CROWDED = {"free": 4, "num_running": 20}


@pytest.fixture
async def holding(network: FakeNetwork) -> AsyncIterator[Bed]:
    """Both instances have four blocks left, and `r0`, which needs ten, is held."""
    holding = await Bed.serving(network)
    holding.controller.configure(PLUS)
    for instance_id in ("i-0", "i-1"):
        await holding.reports(instance_id, **CROWDED)
    holding.asks("r0")
    await settle()
    yield holding
    holding.controller.scheduler.check()


def sent(holding: Bed) -> list[tuple[str, str]]:
    found = [told.dispatch for told in holding.f0.received(Dispatched)]
    return [(each.request_id, each.instance_id) for each in found]


async def round_of(holding: Bed) -> None:
    holding.controller.rescheduler.round()
    await settle()


async def test_a_held_request_goes_with_the_status_that_has_room_for_it(holding: Bed) -> None:
    assert (holding.controller.scheduler.num_waiting, sent(holding)) == (1, [])
    await holding.reports("i-1", free=9, num_running=20)
    assert sent(holding) == []
    await holding.reports("i-1", free=10, num_running=20)
    assert sent(holding) == [("r0", "i-1")]
    assert holding.f0.received(Dispatched)[0].dispatch.policy == "llumnix+"


async def test_without_late_binding_all_that_was_held_goes_at_once(holding: Bed) -> None:
    holding.asks("r1")
    await settle()
    other = replace(PLUS.scheduler, policy="vllm-dp", holding=None)
    holding.controller.configure(replace(PLUS, scheduler=other))
    assert holding.controller.scheduler.num_waiting == 0
    await settle()
    assert sorted(sent(holding)) == [("r0", "i-0"), ("r1", "i-1")]


async def test_a_round_orders_room_on_the_kept_instance(holding: Bed) -> None:
    (kept,) = holding.controller.scheduler.placement.reserved
    (other,) = {"i-0", "i-1"} - {kept}
    await holding.reports(other, free=5, num_running=1)
    await round_of(holding)
    (ordered,) = holding.peers[kept].received(RoomOrdered)
    order = ordered.order
    assert (order.request_id, order.frontend, order.rank) == ("r0", holding.f0.address, 0)
    assert order.lacking_blocks == 6
    members = holding.controller.roster.members
    assert [each.destination for each in order.openings] == [members[other].ref]
    assert order.openings[0].spare_blocks <= 5
    assert holding.peers[other].received(RoomOrdered) == []


async def test_a_blocked_head_is_sent_where_it_fits(holding: Bed) -> None:
    await holding.reports("i-1", free=9, num_running=20)
    head = QueueHead("h", 0, 5, 0.0)
    await holding.reports("i-0", **CROWDED, num_queued=1, queued_demand_blocks=5, queue_head=head)
    holding.says("f-0", DispatchWithdrawn(DispatchCancelled("r0", "f-0")))
    await settle()
    await round_of(holding)
    (ordered,) = holding.peers["i-0"].received(HeadMoveOrdered)
    order = ordered.order
    assert (order.request_id, order.destination.instance_id) == ("h", "i-1")
