"""Copies between instances of one process: bytes, order, sizes, limits."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.adapters.tcp.block_loads import SLICE_BYTES as LOAD_SLICE_BYTES
from controller.adapters.tcp.transfer import RateLimit
from controller.ports.engine import Peer, TransferError
from tests.unit.tcp.instances import (
    BLOCK_BYTES,
    SLICE_BYTES,
    Instance,
    Make,
    begin,
    copy,
    num_opened,
    outcome,
    until,
)

SLICE = SLICE_BYTES // BLOCK_BYTES


@pytest.mark.parametrize(
    ("num_blocks", "spare"),
    [(1, 0), (SLICE - 1, 3), (SLICE, 0), (SLICE, 1), (SLICE + 1, 0), (5 * SLICE + 3, 2)],
)
async def test_every_byte_arrives_in_its_place(
    source: Instance, destination: Instance, num_blocks: int, spare: int
) -> None:
    """A stage may have fewer blocks than places."""
    order = random.Random(num_blocks)
    taken = order.sample(range(100), num_blocks)
    places = order.sample(range(100), num_blocks + spare)
    received = destination.transfer.receive(source.peer, "m/0", places)
    sent = source.transfer.send(destination.peer, "m/0", taken)
    for done in await outcome(sent), await outcome(received):
        assert (done.num_blocks, done.num_bytes) == (num_blocks, num_blocks * BLOCK_BYTES)
        assert done.copy_time_s > 0
    filled = places[:num_blocks]
    assert destination.blocks.content(filled) == source.blocks.content(taken)
    assert not any(destination.blocks.content([n for n in range(100) if n not in filled]))
    assert max(map(len, source.blocks.touched)) <= SLICE


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_block_larger_than_a_slice_goes_alone(make: Make, host: str) -> None:
    size = {"num_blocks": 3, "block_bytes": 2 * SLICE_BYTES, "host": host}
    source, destination = make("i-0", **size), make("i-1", **size)
    source.blocks.number()
    await copy(source, destination, "m/0", 3)
    assert source.blocks.touched == [(0,), (1,), (2,)]


async def test_a_stage_without_blocks(source: Instance, destination: Instance, make: Make) -> None:
    """For no places it needs no answer."""
    received = destination.transfer.receive(source.peer, "m/0", range(3))
    sent = source.transfer.send(destination.peer, "m/0", ())
    nobody = Peer("i-9", 1, "at i-9")
    sent_to_nobody = source.transfer.send(nobody, "m/1", ())
    received_from_nobody = source.transfer.receive(nobody, "m/2", ())
    make("i-5", block_bytes=0)  # an engine with several ranks, whose requests cannot move
    for each in sent, received, sent_to_nobody, received_from_nobody:
        assert (await outcome(each)).num_blocks == 0
    assert destination.blocks.touched == source.blocks.touched == []


async def test_a_link_is_opened_once_and_before_it_is_needed(
    source: Instance, destination: Instance
) -> None:
    source.transfer.warm_up(destination.peer)
    source.transfer.warm_up(destination.peer)
    await copy(source, destination, "m/0")
    await copy(source, destination, "m/1")
    assert num_opened(source) == 1


async def test_the_limit_holds_back_all_but_the_first_slice_and_no_other_link(
    source: Instance, destination: Instance, make: Make
) -> None:
    """At a byte per second the second slice is due in an hour."""
    third = make("i-2")
    third.blocks.number(2)
    source.transfer.max_bytes_per_s = 1.0
    sent, received = begin(source, destination, "m/0", 3 * SLICE)
    await until(lambda: len(destination.blocks.touched) == 1)
    assert len(source.blocks.touched) == 1
    await copy(third, source, "m/1", SLICE)
    assert not sent.done()
    source.transfer.max_bytes_per_s = None
    assert (await outcome(sent)).num_blocks == 3 * SLICE
    await outcome(received)


async def test_a_load_copies_within_an_instance_until_it_is_cancelled(
    source: Instance, make: Make
) -> None:
    taken, places = [3, 1, 2], [7, 9, 8]
    done = await outcome(source.transfer.load("m/0", taken, places))
    assert (done.num_blocks, done.num_bytes) == (3, 3 * BLOCK_BYTES)
    assert source.blocks.content(places) == source.blocks.content(taken)
    assert (await outcome(source.transfer.load("m/1", (), ()))).num_blocks == 0
    # Each of these blocks is as large as a slice of a load.
    large = make("i-5", num_blocks=5, block_bytes=LOAD_SLICE_BYTES)
    large.blocks.gate.clear()
    held = large.transfer.load("m/2", [0, 1], [2, 3])
    waits = large.transfer.load("m/3", [0], [4])
    await until(lambda: large.blocks.touched)
    for stage_id in "m/2", "m/3":
        large.transfer.cancel(stage_id)
    large.blocks.gate.set()
    for cancelled in held, waits:
        with pytest.raises(TransferError, match="cancelled"):
            await cancelled
    assert large.blocks.touched == [(0,), (2,)], "it ends with its slice"


async def test_a_stage_is_under_way_once(source: Instance, destination: Instance) -> None:
    received = destination.transfer.receive(source.peer, "m/0", range(3))
    with pytest.raises(ValueError, match="m/0 is under way"):
        destination.transfer.receive(source.peer, "m/0", range(3))
    await outcome(source.transfer.send(destination.peer, "m/0", range(3)))
    await outcome(received)


# -- the limit ----------------------------------------------------------------------------


def test_the_next_take_waits_for_the_one_before_and_a_rest_saves_nothing_up() -> None:
    limit = RateLimit()
    assert limit.wait_s(100.0, 1000) == 0
    limit.take(500)
    assert limit.wait_s(100.0, 1000) == 0.5
    assert limit.wait_s(100.25, 1000) == 0.25
    assert limit.wait_s(3600.0, 1000) == 0
    limit.take(100)
    assert limit.wait_s(3600.0, 1000) == 0.1


def test_a_new_limit_holds_at_once() -> None:
    limit = RateLimit()
    limit.wait_s(0.0, 1)
    limit.take(1000)
    assert limit.wait_s(0.0, 1) == 1000
    assert limit.wait_s(0.0, 1000) == 1
    for unlimited in (None, 0):
        assert limit.wait_s(0.0, unlimited) == 0
        limit.take(1 << 40)
    assert limit.wait_s(0.0, None) == 0
    assert limit.wait_s(0.0, 1) == 0  # what went without a limit is not owed later


@given(
    st.floats(1e4, 1e9),
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 10**7)), min_size=1, max_size=20),
)
def test_never_more_than_the_limit_and_one_take(
    max_bytes_per_s: float, takes: list[tuple[float, int]]
) -> None:
    """The sender waits as told, and sometimes longer."""
    limit, now_s, total = RateLimit(), 0.0, 0
    for number, (rest_s, num_bytes) in enumerate(takes):
        now_s += rest_s if number else 0.0
        while (wait_s := limit.wait_s(now_s, max_bytes_per_s)) > 1e-9:
            now_s += wait_s
        limit.take(num_bytes)
        assert total <= now_s * max_bytes_per_s * (1 + 1e-6) + 1
        total += num_bytes
