"""The ZeroMQ mailbox between two users in one process, and with a process that is killed."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.adapters.zmq.zmq_mailbox import (
    HIGH_WATER_MARK,
    MAX_PART_BYTES,
    MAX_PER_TURN,
    cut,
    joined,
    new_secret_key,
)
from tests.unit.mailbox_support import Open, opening


@pytest.fixture(params=["open", "guarded"])
def secret(request: pytest.FixtureRequest) -> str:
    """Everything that a mailbox promises holds without a key (no secret) and with one."""
    return new_secret_key() if request.param == "guarded" else ""


@pytest.fixture
async def inboxes(secret: str) -> AsyncIterator[Open]:
    async with opening(secret) as open_:
        yield open_


def nobody_s_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


# -- frames in parts ----------------------------------------------------------------------

EDGES = [0, 1, MAX_PART_BYTES - 1, MAX_PART_BYTES, MAX_PART_BYTES + 1, 2 * MAX_PART_BYTES]
SIZES = st.sampled_from([*EDGES, 5 * MAX_PART_BYTES + 7])


@given(st.lists(SIZES, min_size=1, max_size=6))
def test_frames_of_any_size_come_back_from_their_parts(sizes: list[int]) -> None:
    frames = [bytes([n]) * size for n, size in enumerate(sizes)]
    sent = cut(frames)
    assert all(len(part) <= MAX_PART_BYTES for part in sent)
    assert joined([memoryview(part) for part in sent]) == frames


def test_small_frames_are_sent_as_they_are_and_frames_may_be_of_any_kind() -> None:
    frames = [b"head", b"", bytes(MAX_PART_BYTES - 1)]
    assert all(part is frame for part, frame in zip(cut(frames), frames, strict=True))
    words = memoryview(bytes(range(8)) * MAX_PART_BYTES).cast("Q")
    parts = [memoryview(part) for part in cut([bytearray(b"x"), words])]
    assert joined(parts) == [b"x", words.tobytes()]


def test_a_frame_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="the last frame is incomplete"):
        joined([memoryview(b"head"), memoryview(bytes(MAX_PART_BYTES))])


# -- messages -----------------------------------------------------------------------------


async def test_messages_of_each_sender_arrive_whole_and_in_order(inboxes: Open) -> None:
    a, b, c = inboxes(), inboxes(), inboxes()
    big = os.urandom(300_000)  # beyond what is copied on sending
    sent = [
        (b"%d" % number, [big, b"", b"x%d" % number] if number % 100 == 0 else [])
        for number in range(1000)
    ]
    sent += [(b"large", [bytes([size % 251]) * size, b"tail"]) for size in (*EDGES, 8 << 20)]
    for head, payload in sent:
        a.mailbox.send(c.address, b"a" + head, [memoryview(part) for part in payload])
        b.mailbox.send(c.address, b"b" + head)
    await c.until(lambda _: len(c.messages) == 2 * len(sent))
    assert [each for each in c.messages if each[0][:1] == b"a"] == [
        (b"a" + head, payload) for head, payload in sent
    ]
    assert [head for head in c.heads if head[:1] == b"b"] == [b"b" + head for head, _ in sent]


async def test_addresses_may_be_of_ipv6(inboxes: Open) -> None:
    a, b = inboxes(host="::1"), inboxes(host="::1")
    assert a.address.startswith("tcp://[::1]:")
    a.mailbox.send(b.address, b"hello")
    await b.until_heads(b"hello")


@pytest.mark.long
async def test_only_droppable_messages_drop_while_the_peer_lags() -> None:
    filler, total = bytes(10_000), 2 * HIGH_WATER_MARK + 500
    async with opening(new_secret_key()) as inboxes:
        a, b = inboxes(), inboxes(start=False)
        for number in range(total):
            a.mailbox.send(b.address, b"status %d" % number, [filler], droppable=True)
            a.mailbox.send(b.address, b"token %d" % number, [filler])
            if number % 50 == 0:
                await asyncio.sleep(0.001)  # slower than the wire: only the inbox is in the way
        b.start()
        last = b"token %d" % (total - 1)
        await b.until(lambda _: bool(b.messages) and b.messages[-1][0] == last)
        tokens = [head for head in b.heads if head.startswith(b"token")]
        assert tokens == [b"token %d" % n for n in range(total)]
        statuses = [int(head.split()[1]) for head in b.heads if head.startswith(b"status")]
        assert HIGH_WATER_MARK <= len(statuses) < total
        assert statuses == sorted(set(statuses))


async def test_a_full_inbox_holds_up_nothing_else(inboxes: Open) -> None:
    a, b = inboxes(), inboxes(start=False)
    total = HIGH_WATER_MARK - 100
    for number in range(total):
        a.mailbox.send(b.address, b"%d" % number)
    num_turns = 0
    b.start()
    while len(b.messages) < total:
        num_turns += 1
        await asyncio.sleep(0)
    assert num_turns >= total / MAX_PER_TURN


# -- peers that come and go -----------------------------------------------------------------


async def test_a_peer_that_closes_is_reported_once(inboxes: Open) -> None:
    a, b = inboxes(), inboxes()
    a.mailbox.send(b.address, b"one")
    a.mailbox.send(b.address, b"two", droppable=True)
    await b.until(lambda _: len(b.messages) == 2)
    await b.mailbox.close()
    await a.until(lambda _: a.lost == [b.address])
    a.mailbox.send(b.address, b"three", droppable=True)  # as a Hello would
    c = inboxes()
    a.mailbox.send(c.address, b"four")
    await c.until_heads(b"four")
    assert a.lost == [b.address]


async def test_what_must_not_wait_is_lost_with_a_peer_that_was_never_there(
    inboxes: Open,
) -> None:
    a, port = inboxes(), nobody_s_port()
    a.mailbox.send(f"tcp://127.0.0.1:{port}", b"a request")
    await a.until(lambda _: a.lost == [f"tcp://127.0.0.1:{port}"])
    b = inboxes()
    b.mailbox.send(f"tcp://127.0.0.1:{port}", b"hello", droppable=True)
    controller = inboxes(port=port)
    await controller.until_heads(b"hello")
    assert b.lost == [], "a droppable message waits for a controller to come"


async def test_a_forgotten_peer_s_end_is_not_told_and_it_can_be_written_to_again(
    inboxes: Open,
) -> None:
    a, b, c = inboxes(), inboxes(), inboxes()
    for head in (b"one", b"two"):
        a.mailbox.send(b.address, head)
        await b.until_heads(head)
        a.mailbox.forget(b.address)
        a.mailbox.forget(b.address)
    await b.mailbox.close()
    a.mailbox.send(c.address, b"x")
    await c.until_heads(b"x")
    assert a.lost == []
