"""Copies between emulated engines, in virtual time: order, time, limits, and how they end."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from controller.adapters.emulated.emulated_engine import DIGEST_BYTES, NOTHING, EmulatedBlocks
from controller.adapters.emulated.emulated_kv import SLICE_S, EmulatedKvTransfer
from controller.core.migration.prefix_fetch import HOST_BYTES_PER_S
from controller.model.profile import load_profile
from controller.ports.engine import Frames, Peer, StageCopy, TransferError
from tests.unit.runtime.fakes import virtual_time

BLOCK_BYTES = 1000
RATE = 100_000.0
"""At this rate a block takes 10 ms."""
PROFILE = replace(load_profile("a10-llama-7b"), copy_bytes_per_s=RATE)


class Side:
    """One instance: its blocks, its transfer, and a mailbox that can be stopped."""

    def __init__(self, name: str, speed: float = 1.0, block_bytes: int = BLOCK_BYTES) -> None:
        self.peer = Peer(name, 1, f"at {name}")
        self.blocks = EmulatedBlocks(block_bytes)
        self.transfer = EmulatedKvTransfer(PROFILE, speed)
        self.others: dict[str, Side] = {}
        self.stopped: list[tuple[Peer, Frames]] | None = None
        self.transfer.start(self.blocks, self.tell)

    def tell(self, peer: Peer, frames: Frames) -> None:
        asyncio.get_running_loop().call_soon(self.others[peer.instance_id].hear, self.peer, frames)

    def hear(self, peer: Peer, frames: Frames) -> None:
        if self.stopped is None:
            self.transfer.told(peer, [memoryview(frame) for frame in frames])
        else:
            self.stopped.append((peer, frames))

    def go_on(self) -> None:
        """As after SIGCONT."""
        missed, self.stopped = self.stopped or [], None
        for peer, frames in missed:
            self.hear(peer, frames)

    def filled(self, num_blocks: int) -> tuple[int, ...]:
        return self.blocks.make([bytes([n + 1]) * DIGEST_BYTES for n in range(num_blocks)])

    def empty(self, num_blocks: int) -> tuple[int, ...]:
        return self.blocks.make([NOTHING] * num_blocks)


def sides(*names: str, speed: float = 1.0) -> list[Side]:
    made = [Side(name, speed) for name in names]
    for side in made:
        side.others = {other.peer.instance_id: other for other in made}
    return made


def begin(
    source: Side, destination: Side, stage_id: str, num_blocks: int
) -> tuple[asyncio.Future[StageCopy], asyncio.Future[StageCopy], tuple[int, ...]]:
    into = destination.empty(num_blocks)
    received = destination.transfer.receive(source.peer, stage_id, into)
    sent = source.transfer.send(destination.peer, stage_id, source.filled(num_blocks))
    return sent, received, into


def contents(side: Side, block_ids: Sequence[int]) -> list[int]:
    return [block[0] for block in side.blocks.contents(block_ids)]


async def fails(future: asyncio.Future[StageCopy], why: str) -> None:
    with pytest.raises(TransferError, match=why):
        await future


def now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("speed", "limit", "takes_s"),
    [(1.0, None, 0.07), (8.0, None, 0.07 / 8), (8.0, RATE / 2, 2 * 0.07 / 8)],
)
@virtual_time
async def test_a_stage_arrives_in_the_profile_s_time(
    speed: float, limit: float | None, takes_s: float
) -> None:
    a, b = sides("a", "b", speed=speed)
    a.transfer.max_bytes_per_s = limit
    a.transfer.warm_up(b.peer)
    began_s = now_s()
    sent, received, into = begin(a, b, "s", 7)
    with pytest.raises(ValueError, match="under way already"):
        a.transfer.send(b.peer, "s", ())
    copies = await asyncio.gather(sent, received)
    assert now_s() - began_s == pytest.approx(takes_s)
    for copy in copies:
        assert (copy.num_blocks, copy.num_bytes) == (7, 7 * BLOCK_BYTES)
        assert copy.copy_time_s == pytest.approx(takes_s)
    assert contents(b, into) == [1, 2, 3, 4, 5, 6, 7]


@virtual_time
async def test_stages_of_one_link_follow_each_other_and_links_do_not_wait() -> None:
    a, b, c = sides("a", "b", "c")
    began_s = now_s()
    done: list[tuple[str, float]] = []
    copies = []
    for there, back, stage_id, num_blocks in (
        (a, b, "first", 5),
        (a, b, "second", 1),
        (a, c, "other", 2),
        (b, a, "back", 3),
    ):
        sent, received, _ = begin(there, back, stage_id, num_blocks)
        sent.add_done_callback(lambda _, name=stage_id: done.append((name, now_s() - began_s)))
        copies += [sent, received]
    found = await asyncio.gather(*copies)
    assert [name for name, _ in done] == ["other", "back", "first", "second"]
    assert [at_s for _, at_s in done] == [pytest.approx(s) for s in (0.02, 0.03, 0.05, 0.06)]
    assert found[2].copy_time_s == pytest.approx(0.01), "the wait for its turn is no copying"


@virtual_time
async def test_the_limit_holds_at_once_when_it_is_set_and_lifted() -> None:
    a, b = sides("a", "b")
    sent, _, _ = begin(a, b, "s", 100)
    began_s = now_s()
    await asyncio.sleep(0.5)
    a.transfer.max_bytes_per_s = RATE / 10
    await asyncio.sleep(1.0)
    assert not sent.done()
    a.transfer.max_bytes_per_s = RATE * 10
    copy = await sent
    # 50 blocks, 10 at a tenth, 40: no faster than the profile.
    assert now_s() - began_s == pytest.approx(0.5 + 1.0 + 0.4, abs=3 * SLICE_S)
    assert copy.copy_time_s == pytest.approx(now_s() - began_s)


@virtual_time
async def test_a_cancelled_send_frees_the_link_and_sends_nothing() -> None:
    """In mid-copy, or before its turn."""
    a, b = sides("a", "b")
    first, received, into = begin(a, b, "first", 50)
    second, _, _ = begin(a, b, "second", 5)
    third, _, _ = begin(a, b, "third", 1)
    await asyncio.sleep(0.1)
    for stage_id in "second", "first", "unknown":
        a.transfer.cancel(stage_id)
    for cancelled in second, first:
        await fails(cancelled, "cancelled")
    began_s = now_s()
    await third
    assert now_s() - began_s == pytest.approx(0.01)
    assert contents(b, into) == [0] * 50
    assert not received.done()
    b.transfer.cancel("first")
    await fails(received, "cancelled")


@virtual_time
async def test_what_is_not_expected_is_refused_and_touches_nothing() -> None:
    a, b, c = sides("a", "b", "c")
    sent, received, into = begin(a, b, "s", 3)
    b.transfer.cancel("s")
    await fails(received, "cancelled")
    await fails(sent, "b does not expect")
    assert contents(b, into) == [0, 0, 0]
    # The name alone is not enough.
    for_a = b.transfer.receive(a.peer, "t", into)
    await fails(c.transfer.send(b.peer, "t", c.filled(3)), "b does not expect")
    await fails(a.transfer.send(b.peer, "t", a.filled(4)), "b does not expect")
    await fails(for_a, "more blocks than expected")
    assert contents(b, into) == [0, 0, 0]


@virtual_time
async def test_a_peer_that_hangs_holds_up_the_link_and_is_told_from_a_slow_link() -> None:
    a, b, c = sides("a", "b", "c")
    assert a.transfer.stalled_s(b.peer) == 0.0
    a.transfer.max_bytes_per_s = BLOCK_BYTES / 60
    b.stopped = []
    sent, received, into = begin(a, b, "s", 1)
    late, _, _ = begin(a, b, "t", 1)
    slow, _, _ = begin(a, c, "u", 1)
    await asyncio.sleep(59.0)
    assert a.transfer.stalled_s(b.peer) == 0.0, "the limit holds it up"
    await asyncio.sleep(5.0)
    assert a.transfer.stalled_s(b.peer) == pytest.approx(4.0, abs=0.1)
    assert a.transfer.stalled_s(c.peer) == 0.0
    assert slow.done()
    assert not sent.done()
    assert not late.done()
    b.go_on()
    assert (await sent).copy_time_s == pytest.approx(64.0, abs=0.1)
    assert (await received).num_blocks == 1
    assert contents(b, into) == [1]
    assert a.transfer.stalled_s(b.peer) == 0.0
    await late


@virtual_time
async def test_a_peer_that_is_gone_fails_what_is_with_it_only() -> None:
    a, b, c = sides("a", "b", "c")
    to_b, _, _ = begin(a, b, "to-b", 3)
    waits, _, _ = begin(a, b, "waits", 3)
    by_b, from_b, _ = begin(b, a, "from-b", 3)
    to_c, _, _ = begin(a, c, "to-c", 3)
    a.transfer.forget(Peer("b", 0, "at b"))
    assert not to_b.done(), "that was another incarnation"
    a.transfer.forget(b.peer)
    for future in (to_b, waits, from_b):
        await fails(future, "b is gone")
    await fails(by_b, "a does not expect the stage")
    await to_c
    # Its next incarnation begins anew.
    b.peer = Peer("b", 2, "at b")
    await begin(a, b, "again", 1)[0]


@virtual_time
async def test_close_ends_everything() -> None:
    a, b = sides("a", "b")
    sent, received, _ = begin(a, b, "s", 3)
    await a.transfer.close()
    await b.transfer.close()
    await fails(sent, "closed")
    await fails(received, "closed")
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual_time
async def test_blocks_that_were_let_go_too_early_fail_the_copy() -> None:
    a, b = sides("a", "b")
    sent, received, into = begin(a, b, "s", 2)
    b.blocks.drop(into)
    await fails(sent, "b does not expect")
    await fails(received, "let go before its copy")
    gone = a.filled(2)
    sent = a.transfer.send(b.peer, "t", gone)
    a.blocks.drop(gone)
    await fails(sent, "let go before its copy")
    await begin(a, b, "u", 1)[0]


@virtual_time
async def test_fewer_blocks_than_expected_fill_the_first_places() -> None:
    """Even if nobody waits any more for what was sent."""
    a, b = sides("a", "b")
    for stage_id, num_sent in (("two", 2), ("none", 0)):
        into = b.empty(5)
        received = b.transfer.receive(a.peer, stage_id, into)
        a.transfer.send(b.peer, stage_id, a.filled(num_sent)).cancel()
        copy = await received
        assert (copy.num_blocks, copy.num_bytes) == (num_sent, num_sent * BLOCK_BYTES)
        assert contents(b, into) == [1, 2, 0, 0, 0][:num_sent] + [0] * (5 - num_sent)


# -- loads from the own host cache -----------------------------------------------------------------

LOADED_S = 0.01
"""How long each of these blocks takes, which are larger."""


def with_host(speed: float = 1.0) -> Side:
    return Side("a", speed, int(HOST_BYTES_PER_S * LOADED_S))


@pytest.mark.parametrize("speed", [1.0, 8.0])
@virtual_time
async def test_loads_follow_each_other_at_the_host_s_rate_whatever_the_limit(speed: float) -> None:
    side = with_host(speed)
    side.transfer.max_bytes_per_s = 1.0
    began_s, into = now_s(), side.empty(7)
    first = side.transfer.load("first", side.filled(7), into)
    second = side.transfer.load("second", side.filled(2), side.empty(2))
    with pytest.raises(ValueError, match="under way already"):
        side.transfer.load("second", (), ())
    copy = await first
    assert now_s() - began_s == pytest.approx(7 * LOADED_S / speed)
    assert (copy.num_blocks, copy.num_bytes) == (7, 7 * side.blocks.block_bytes)
    assert contents(side, into) == [1, 2, 3, 4, 5, 6, 7]
    assert (await second).copy_time_s == pytest.approx(2 * LOADED_S / speed)
    assert (await side.transfer.load("none", (), ())).num_blocks == 0


@virtual_time
async def test_a_load_that_ends_early_writes_nothing_and_lets_the_next_one_go() -> None:
    side = with_host()
    into = side.empty(5)
    cancelled = side.transfer.load("cancelled", side.filled(5), into)
    gone = side.filled(1)
    too_late = side.transfer.load("too late", gone, into)
    last = side.transfer.load("last", side.filled(1), side.empty(1))
    await asyncio.sleep(LOADED_S / 2)
    side.transfer.cancel("cancelled")
    side.blocks.drop(gone)
    await fails(cancelled, "cancelled")
    await fails(too_late, "let go before its copy")
    assert contents(side, into) == [0] * 5
    await last
    closed = side.transfer.load("closed", side.filled(5), into)
    await side.transfer.close()
    await fails(closed, "closed")
    assert asyncio.all_tasks() == {asyncio.current_task()}
