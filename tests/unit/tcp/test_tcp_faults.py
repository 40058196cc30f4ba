"""Cancelled and failed copies: blocks are released, futures end, and the link continues or is made
again.
"""

import asyncio

import pytest

from controller.adapters.tcp import transfer as tcp_link
from controller.adapters.tcp.link_stream import PROOF_BYTES, TAKEN, Connection, LinkKey, new_secret
from controller.adapters.tcp.transfer import (
    DEPTH,
    HEADER_BYTES,
    Kind,
    SliceHeader,
    TcpKvTransfer,
    stage_key,
)
from controller.ports.engine import Peer
from tests.unit.tcp.instances import (
    BLOCK_BYTES,
    PATIENCE_S,
    SLICE_BYTES,
    Instance,
    Make,
    begin,
    copy,
    error_of,
    greeting_of,
    link_threads,
    num_opened,
    outcome,
    until,
)

SLICE = SLICE_BYTES // BLOCK_BYTES


class PlayedSource:
    """A source whose messages and bytes the test writes itself."""

    peer = Peer("i-7", 1, "at i-7")

    def __init__(self, destination: Instance) -> None:
        self.destination = destination
        self.num_links = 0

    def open(self) -> Connection:
        """A link, up to the destination's proof."""
        to = self.destination.peer
        self.num_links += 1
        name = f"i-7/1>{to.instance_id}/{to.incarnation}#{self.num_links}"
        secret = new_secret()
        opening = (b"open", name.encode(), b"%d" % SLICE_BYTES, secret)
        self.destination.hear(self.peer, opening)
        _, _, address, their_secret = self.destination.said(b"here")[-1]
        connection = Connection.to(address.decode(), PATIENCE_S)
        connection.send(greeting_of((name, LinkKey(name, secret, their_secret))))
        return connection


# -- stalled -----------------------------------------------------------------------------------


async def test_a_link_that_waits_for_its_peer_is_told_from_one_at_its_limit(
    source: Instance, destination: Instance
) -> None:
    def stalled_s() -> float:
        return source.transfer.stalled_s(destination.peer)

    assert stalled_s() == 0.0
    source.transfer.max_bytes_per_s = 1.0
    sent, received = begin(source, destination, "m/0", 2 * SLICE)
    await until(lambda: len(destination.blocks.touched) == 1 and stalled_s() == 0.0)
    for _ in range(20):
        await asyncio.sleep(0.005)
        assert stalled_s() == 0.0, "the limit holds it up, not the peer"
    source.transfer.cancel("m/0")
    assert await error_of(sent) == "cancelled"
    assert await error_of(received) == "its source gave up"
    source.transfer.max_bytes_per_s = None
    destination.blocks.gate.clear()
    sent, received = begin(source, destination, "m/1", 20 * SLICE)
    await until(lambda: stalled_s() > 0.2)
    destination.blocks.gate.set()
    await asyncio.gather(outcome(sent), outcome(received))
    assert stalled_s() == 0.0


# -- cancelled ---------------------------------------------------------------------------------


async def test_a_send_is_cancelled_at_once_in_its_queue_and_in_a_full_link(
    source: Instance, destination: Instance
) -> None:
    destination.blocks.gate.clear()
    sent, received = begin(source, destination, "m/0", 20 * SLICE)
    waits, waits_there = begin(source, destination, "m/1", 4, first=90)
    await until(lambda: len(source.blocks.touched) == DEPTH)  # the link is full now
    for stage_id, future in ("m/1", waits), ("m/0", sent):
        source.transfer.cancel(stage_id)
        assert await error_of(future) == "cancelled"
    destination.blocks.gate.set()
    for future in received, waits_there:
        assert await error_of(future) == "its source gave up"
    assert all(block < 90 for blocks in source.blocks.touched for block in blocks)
    await copy(source, destination, "m/2")
    assert num_opened(source) == 1


@pytest.mark.parametrize("side", ["source", "destination"])
async def test_a_cancelled_copy_is_over_when_its_blocks_are_let_go(
    source: Instance, destination: Instance, side: str
) -> None:
    one = source if side == "source" else destination
    one.blocks.gate.clear()
    sent, received = begin(source, destination, "m/0", 5 * SLICE)
    ours = sent if side == "source" else received
    await until(lambda: bool(one.blocks.touched))
    for stage_id in "m/0", "m/0", "unknown":
        one.transfer.cancel(stage_id)
    await asyncio.sleep(0.02)
    assert not ours.done(), "a thread still has its hands on the blocks"
    one.blocks.gate.set()
    assert await error_of(ours) == "cancelled"
    assert len(one.blocks.touched) == 1
    if side == "source":
        assert await error_of(received) == "its source gave up"
    else:
        await outcome(sent)  # what nobody expects any more is dropped
    await copy(source, destination, "m/1")
    assert num_opened(source) == 1


@pytest.mark.parametrize("num_slices", range(6))
async def test_cancelled_after_any_slice_by_either_side(
    source: Instance, destination: Instance, num_slices: int
) -> None:
    for name, side in ("send", source), ("receive", destination):
        for one in source, destination:
            one.blocks.touched.clear()
        sent, received = begin(source, destination, f"{name}/0", 5 * SLICE)
        await until(lambda side=side: len(side.blocks.touched) >= num_slices)
        side.transfer.cancel(f"{name}/0")
        done = await asyncio.gather(outcome(sent), outcome(received), return_exceptions=True)
        touched = [len(one.blocks.touched) for one in (source, destination)]
        await copy(source, destination, f"{name}/1")
        for one, before, ended in zip((source, destination), touched, done, strict=True):
            if isinstance(ended, Exception):
                assert len(one.blocks.touched) - 3 <= before + 1
    assert num_opened(source) == 1, "a cancelled stage costs no link"


async def test_who_stops_waiting_does_no_harm(source: Instance, destination: Instance) -> None:
    """Nor does it to forget an incarnation that is not a predecessor of the present one."""
    sent, received = begin(source, destination, "m/0", 3)
    sent.cancel()
    await outcome(received)
    source.transfer.forget(Peer("i-1", 4, "at i-1"))
    await copy(source, destination, "m/1")


@pytest.mark.parametrize("side", ["source", "destination"])
async def test_blocks_that_cannot_be_touched(
    source: Instance, destination: Instance, side: str
) -> None:
    one = source if side == "source" else destination
    one.blocks.missing = 7
    sent, received = begin(source, destination, "m/0", 2 * SLICE)
    if side == "source":
        assert "could not be read: KeyError(7)" in await error_of(sent)
        assert await error_of(received) == "its source gave up"
    else:
        assert "could not be written: KeyError(7)" in await error_of(received)
        await outcome(sent)
    one.blocks.missing = None
    await copy(source, destination, "m/1")
    assert num_opened(source) == 1


# -- what should not come --------------------------------------------------------------------


async def test_a_stage_that_nobody_expects_is_dropped_and_said_to_be_gone(
    source: Instance, destination: Instance
) -> None:
    await outcome(source.transfer.send(destination.peer, "m/0", range(2 * SLICE)))
    await copy(source, destination, "m/1")  # behind it on the link
    late = destination.transfer.receive(source.peer, "m/0", range(2 * SLICE))
    assert "came before it was expected" in await error_of(late)


async def test_more_blocks_than_places(source: Instance, destination: Instance) -> None:
    received = destination.transfer.receive(source.peer, "m/0", range(SLICE + 1))
    await outcome(source.transfer.send(destination.peer, "m/0", range(SLICE + 2)))
    assert "in place of those after" in await error_of(received)
    assert destination.blocks.touched == [tuple(range(SLICE))]
    await copy(source, destination, "m/1")


async def test_slices_out_of_step(destination: Instance) -> None:
    played = PlayedSource(destination)
    with played.open() as connection:
        for stage_id, first in ("m/0", 5), ("m/1", 0):
            received = destination.transfer.receive(played.peer, stage_id, range(10))
            header = SliceHeader(Kind.LAST, stage_key(stage_id), first, 1, BLOCK_BYTES)
            connection.send(header.encode() + b"x" * BLOCK_BYTES)
            if first:
                assert "in place of those after 0" in await error_of(received)
        assert (await outcome(received)).num_blocks == 1, "the link goes on"
    assert destination.blocks.content([0]) == b"x" * BLOCK_BYTES


LINK_ENDS = {
    "nothing more": b"",
    "noise": b"x" * HEADER_BYTES,
    "an unknown kind": SliceHeader(Kind.LAST).encode()[:-1] + bytes([max(Kind) + 1]),
    "half a header": b"\x00" * (HEADER_BYTES // 2),
    "too many blocks": SliceHeader(
        Kind.LAST, bytes(16), 0, SLICE + 1, (SLICE + 1) * BLOCK_BYTES
    ).encode(),
    "blocks of another size": SliceHeader(Kind.LAST, bytes(16), 0, 1, BLOCK_BYTES - 1).encode(),
}


@pytest.mark.parametrize("says", LINK_ENDS.values(), ids=LINK_ENDS)
async def test_what_is_no_slice_breaks_the_link(
    source: Instance, destination: Instance, says: bytes
) -> None:
    played = PlayedSource(destination)
    received = destination.transfer.receive(played.peer, "m/0", range(3))
    with played.open() as connection:
        connection.send(says)
    assert "the link broke" in await error_of(received)
    await until(lambda: len(destination.said(b"over")) == 1)
    await copy(source, destination, "m/1")


async def test_a_link_of_other_blocks_is_not_opened(make: Make) -> None:
    source, destination = make("i-0", block_bytes=SLICE_BYTES + 1), make("i-1")
    sent = source.transfer.send(destination.peer, "m/0", range(1))
    assert "the other end of the link is over" in await error_of(sent)
    assert source.blocks.touched == []


async def test_a_source_that_opens_another_link_has_given_up_what_it_began(
    destination: Instance,
) -> None:
    """What it has not begun may come over the new link."""
    played = PlayedSource(destination)
    begun = destination.transfer.receive(played.peer, "m/0", range(10))
    waits = destination.transfer.receive(played.peer, "m/1", range(20, 30))
    with played.open() as first:
        part = SliceHeader(Kind.MORE, stage_key("m/0"), 0, 1, BLOCK_BYTES)
        first.send(part.encode() + b"x" * BLOCK_BYTES)
        first.receive(bytearray(PROOF_BYTES + len(TAKEN)))
        with played.open() as second:
            assert await error_of(begun) == "its source opened another link"
            whole = SliceHeader(Kind.LAST, stage_key("m/1"), 0, 1, BLOCK_BYTES)
            second.send(whole.encode() + b"y" * BLOCK_BYTES)
            assert (await outcome(waits)).num_blocks == 1
    assert destination.blocks.content([20]) == b"y" * BLOCK_BYTES


# -- broken links ----------------------------------------------------------------------------


async def test_a_slice_that_does_not_move_breaks_the_link(
    source: Instance, destination: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_link, "STALL_TIMEOUT_S", 0.05)
    destination.blocks.gate.clear()
    sent, received = begin(source, destination, "m/0", 20 * SLICE)
    waits, _ = begin(source, destination, "m/1", 1, first=50)
    for future in sent, waits:
        assert "the link broke" in await error_of(future)
    destination.blocks.gate.set()
    await error_of(received)
    monkeypatch.undo()
    await until(lambda: not link_threads())
    await copy(source, destination, "m/2")
    assert num_opened(source) == 2


@pytest.mark.parametrize("side", ["source", "destination"])
async def test_a_forgotten_peer_ends_all_that_is_under_way_with_it(
    source: Instance, destination: Instance, make: Make, side: str
) -> None:
    third = make("i-2")
    await copy(source, third, "t/0")
    source.transfer.max_bytes_per_s = 1.0
    pairs = [begin(source, destination, f"m/{n}", 2 * SLICE, 10 * n) for n in range(3)]
    kept = third.transfer.receive(source.peer, "t/1", range(SLICE))
    await until(lambda: len(destination.blocks.touched) == 1)
    one, other = (destination, source) if side == "source" else (source, destination)
    one.transfer.forget(other.peer)
    source.transfer.max_bytes_per_s = None
    for pair in pairs:
        ours, theirs = reversed(pair) if side == "source" else pair
        assert await error_of(ours) == f"{other.peer.instance_id} is gone"
        await error_of(theirs)
    assert not kept.done()
    await outcome(source.transfer.send(third.peer, "t/1", range(SLICE)))
    await outcome(kept)
    # It was not dead after all. A source sends when it has heard that it is expected.
    received = destination.transfer.receive(source.peer, "n/0", range(5))
    await asyncio.sleep(0)
    assert (await outcome(source.transfer.send(destination.peer, "n/0", range(5)))).num_blocks == 5
    await outcome(received)


async def test_nobody_answers(source: Instance) -> None:
    """The mailbox takes messages while the process does nothing: SIGSTOP before the link is
    open."""
    nobody = Peer("i-9", 1, "at i-9")
    sent = source.transfer.send(nobody, "m/0", range(3))
    received = source.transfer.receive(nobody, "m/1", range(3, 6))
    assert num_opened(source) == 1
    source.transfer.cancel("m/0")
    assert await error_of(sent) == "cancelled"
    source.transfer.forget(nobody)
    assert await error_of(received) == "i-9 is gone"
    assert source.blocks.touched == []


# -- incarnations ----------------------------------------------------------------------------


async def test_a_successor_ends_what_there_was_with_the_one_before(
    source: Instance, destination: Instance, make: Make
) -> None:
    old = destination
    old.blocks.gate.clear()
    sent, received = begin(source, old, "m/0", 20 * SLICE)
    await until(lambda: bool(old.blocks.touched))
    new = make("i-1", incarnation=2)
    await copy(source, new, "m/1")
    assert await error_of(sent) == "i-1 is gone"
    old.blocks.gate.set()
    await error_of(received)
    assert await error_of(source.transfer.send(old.peer, "m/2", range(3))) == "i-1 is gone"
    assert await error_of(source.transfer.receive(old.peer, "m/3", range(3))) == "i-1 is gone"


async def test_a_late_link_is_refused(source: Instance, destination: Instance, make: Make) -> None:
    """The link belongs to an incarnation of its source that has a successor."""
    destination.held = []
    sent = source.transfer.send(destination.peer, "m/0", range(3))
    await until(lambda: len(destination.held or ()) == 1)
    late, destination.held = destination.held, None
    new = make("i-0", incarnation=2)
    new.blocks.number(2)
    await copy(new, destination, "m/1")
    destination.others["i-0"] = source  # the refusal finds its way
    for message in late:
        destination.hear(*message)
    assert "the other end of the link is over" in await error_of(sent)
    destination.others["i-0"] = new
    await copy(new, destination, "m/2")


async def test_a_link_to_an_incarnation_before_is_refused(
    source: Instance, destination: Instance
) -> None:
    destination.peer = Peer("i-1", 2, "at i-1")
    before = Peer("i-1", 1, "at i-1")
    sent = source.transfer.send(before, "m/0", range(3))
    ((_, name, _, _),) = source.said(b"open")
    await until(lambda: bool(destination.said(b"over")))
    source.hear(before, (b"over", name))
    assert "the other end of the link is over" in await error_of(sent)
    assert not destination.said(b"here")


async def test_an_open_that_comes_twice_is_one(source: Instance, destination: Instance) -> None:
    await copy(source, destination, "m/0")
    destination.others = {}
    destination.hear(source.peer, source.said(b"open")[0])
    await copy(source, destination, "m/1")
    assert len(destination.said(b"here")) == 1


# -- the end ---------------------------------------------------------------------------------


async def test_close_ends_everything(source: Instance, destination: Instance) -> None:
    await copy(destination, source, "n/0")
    destination.blocks.gate.clear()
    sent, received = begin(source, destination, "m/0", 20 * SLICE)
    waits = source.transfer.receive(destination.peer, "n/1", range(60, 70))
    await until(lambda: len(destination.blocks.touched) > 3)  # three slices went the other way
    await source.transfer.close()
    for future in sent, waits:
        assert await error_of(future) == "the transfer is closed"
    late = source.transfer.send(destination.peer, "m/1", range(3))
    assert await error_of(late) == "i-1 is gone"
    await source.transfer.close()
    destination.blocks.gate.set()
    assert await error_of(received) == "the other end of the link is over"


async def test_close_before_start() -> None:
    await TcpKvTransfer(lambda: Peer("i-0", 1, ""), "127.0.0.1").close()
