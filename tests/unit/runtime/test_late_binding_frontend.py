"""A frontend whose requests wait for room, on virtual time: each instance has room for one more
request of 160 tokens."""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from controller.core.admission.asking import AT_LEAST_EVERY_S, CONTROLLER_SILENCE_S
from controller.runtime.messages.members import Directory
from controller.runtime.messages.requests import AddRequest, DispatchAsked
from tests.unit.runtime.fakes import FakeNetwork, directory, idle_snapshot, settle, virtual_time
from tests.unit.runtime.router_bed import Bed

FULL = [
    replace(idle_snapshot(i, free=3 + room), num_running=2) for i, room in (("i-0", 2), ("i-1", 1))
]
HOLDING: Directory = msgspec.structs.replace(
    directory(*FULL), controller="one", room_to_grow_tokens=48
)


def arrived(bed: Bed) -> list[tuple[str, str]]:
    found = [
        (a.request_id, i) for i, peer in bed.instances.items() for a in peer.received(AddRequest)
    ]
    return sorted(found)


def asked(bed: Bed) -> list[str]:
    return [told.asked.request_id for told in bed.controller.received(DispatchAsked)]


async def keep_telling(bed: Bed, told: Directory = HOLDING) -> None:
    while True:
        bed.say(told)
        await asyncio.sleep(0.4)


pytestmark = virtual_time


@pytest.fixture
async def bed(network: FakeNetwork) -> Bed:
    bed = Bed(network)
    await bed.know(HOLDING)
    return bed


async def test_what_a_dead_controller_held_goes_in_order(bed: Bed) -> None:
    """A block each, as far as it fits, and then one after the other."""
    tasks = [bed.submit(f"r{n}") for n in range(6)]
    await settle()
    bed.network.lose("mem://controller")
    await asyncio.sleep(0.9 * CONTROLLER_SILENCE_S)
    assert arrived(bed) == []
    await asyncio.sleep(0.3 * CONTROLLER_SILENCE_S)
    assert arrived(bed) == [("r0", "i-0"), ("r1", "i-0"), ("r2", "i-1")]
    for num in (4, 5, 6):
        await asyncio.sleep(1.05 * AT_LEAST_EVERY_S)
        assert [r for r, _ in arrived(bed)] == [f"r{n}" for n in range(num)]
    await asyncio.gather(*tasks)


async def test_a_new_controller_is_asked_at_once_and_nothing_goes_without_it(bed: Bed) -> None:
    telling = asyncio.create_task(keep_telling(bed))
    for n in range(3):
        bed.submit(f"r{n}")
    await asyncio.sleep(10.0)
    telling.cancel()
    bed.controller.inbox.clear()
    await bed.know(msgspec.structs.replace(HOLDING, controller="two"))
    assert asked(bed) == ["r0", "r1", "r2"]
    assert arrived(bed) == []
