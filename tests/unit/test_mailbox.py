"""The ZeroMQ mailbox between two users in one process, and with a process that is killed."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

from controller.adapters.zmq.zmq_mailbox import (
    HIGH_WATER_MARK,
    MAX_PER_TURN,
    ClusterKey,
    ZmqMailbox,
    new_secret_key,
)
from controller.runtime.messages.codec import decode, encode
from controller.runtime.messages.members import StatusPull
from controller.runtime.messages.requests import AbortRequests
from tests.unit.mailbox_support import PATIENCE_S, Inbox

Open = Callable[..., "Inbox"]


@pytest.fixture(params=["open", "guarded"])
def secret(request: pytest.FixtureRequest) -> str:
    """Everything that a mailbox promises holds without a key (no secret) and with one."""
    return new_secret_key() if request.param == "guarded" else ""


@pytest.fixture
def key(secret: str) -> ClusterKey | None:
    return ClusterKey(secret) if secret else None


@pytest.fixture
async def inboxes(key: ClusterKey | None) -> AsyncIterator[Callable[..., Inbox]]:
    made: list[Inbox] = []

    def make(**options: Any) -> Inbox:
        made.append(Inbox(key, **options))
        return made[-1]

    yield make
    for inbox in made:
        await inbox.mailbox.close()


async def test_messages_arrive_whole_and_in_order(inboxes: Open) -> None:
    a, b = inboxes(), inboxes()
    big = os.urandom(300_000)  # beyond what is copied on sending
    for number in range(2000):
        payload = [big, b"", memoryview(b"x%d" % number)] if number % 100 == 0 else []
        a.mailbox.send(b.address, b"%d" % number, payload)
    await b.until(lambda i: len(i.messages) == 2000)
    assert b.heads == [b"%d" % n for n in range(2000)]
    assert b.messages[1900] == (b"1900", [big, b"", b"x1900"])
    assert b.messages[1901] == (b"1901", [])


async def test_addresses_may_be_of_ipv6(inboxes: Open) -> None:
    a, b = inboxes(host="::1"), inboxes(host="::1")
    assert a.address.startswith("tcp://[::1]:")
    a.mailbox.send(b.address, b"hello")
    await b.until(lambda inbox: inbox.heads == [b"hello"])


async def test_both_directions_and_several_senders(inboxes: Open) -> None:
    a, b, c = inboxes(), inboxes(), inboxes()
    for number in range(100):
        a.mailbox.send(c.address, b"a%d" % number)
        b.mailbox.send(c.address, b"b%d" % number)
        c.mailbox.send(a.address, b"c%d" % number)
    await c.until(lambda i: len(i.messages) == 200)
    await a.until(lambda i: len(i.messages) == 100)
    for sender in (b"a", b"b"):
        mine = [head for head in c.heads if head[:1] == sender]
        assert mine == [sender + b"%d" % n for n in range(100)]


async def test_only_droppable_messages_drop_while_the_peer_lags(inboxes: Open) -> None:
    a, b = inboxes(), inboxes(start=False)
    filler = bytes(10_000)
    total = 5 * HIGH_WATER_MARK
    for number in range(total):
        a.mailbox.send(b.address, b"status %d" % number, [filler], droppable=True)
        a.mailbox.send(b.address, b"token %d" % number, [filler])
        if number % 50 == 0:
            await asyncio.sleep(0.001)  # slower than the wire: only the inbox is in the way
    b.start()
    await b.until(lambda i: i.heads.count(b"token %d" % (total - 1)) == 1)
    tokens = [head for head in b.heads if head.startswith(b"token")]
    assert tokens == [b"token %d" % n for n in range(total)]
    statuses = [int(head.split()[1]) for head in b.heads if head.startswith(b"status")]
    assert HIGH_WATER_MARK <= len(statuses) < total
    assert statuses == sorted(set(statuses))


async def test_a_peer_that_closes_is_reported_once(inboxes: Open) -> None:
    a, b = inboxes(), inboxes()
    a.mailbox.send(b.address, b"one")
    a.mailbox.send(b.address, b"two", droppable=True)
    await b.until(lambda i: len(i.messages) == 2)
    await b.mailbox.close()
    await a.until(lambda i: i.lost == [b.address])
    a.mailbox.send(b.address, b"three", droppable=True)  # as a Hello would
    c = inboxes()
    a.mailbox.send(c.address, b"four")
    await c.until(lambda i: len(i.messages) == 1)
    assert a.lost == [b.address]


async def test_a_peer_that_was_never_there_is_lost_with_what_must_not_wait(
    inboxes: Open,
) -> None:
    a = inboxes()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    a.mailbox.send(nobody, b"a request")
    await a.until(lambda i: bool(i.lost))
    assert a.lost == [nobody]


async def test_droppable_messages_wait_for_a_controller_to_come(
    inboxes: Open, key: ClusterKey | None
) -> None:
    a = inboxes()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    a.mailbox.send(f"tcp://127.0.0.1:{port}", b"hello", droppable=True)
    got: list[bytes] = []
    arrived = asyncio.Event()

    def on_message(head: bytes | memoryview, _payload: Sequence[memoryview]) -> None:
        got.append(bytes(head))
        arrived.set()

    controller = ZmqMailbox("127.0.0.1", port, key)
    try:
        controller.start(on_message, lambda address: None)
        await asyncio.wait_for(arrived.wait(), PATIENCE_S)
    finally:
        await controller.close()
    assert got == [b"hello"]
    assert a.lost in ([], [f"tcp://127.0.0.1:{port}"]), "only by its end here"


async def test_what_waits_for_a_forgotten_peer_is_discarded(inboxes: Open) -> None:
    a, b = inboxes(), inboxes()
    a.mailbox.send(b.address, b"one")
    await b.until(lambda i: len(i.messages) == 1)
    a.mailbox.forget(b.address)
    a.mailbox.forget(b.address)
    await b.mailbox.close()
    c = inboxes()
    a.mailbox.send(c.address, b"x")
    await c.until(lambda i: len(i.messages) == 1)
    assert a.lost == [], "a forgotten peer's end is nobody's business"


async def test_a_forgotten_peer_can_be_written_to_again(inboxes: Open) -> None:
    a, b = inboxes(), inboxes()
    a.mailbox.send(b.address, b"one")
    await b.until(lambda i: len(i.messages) == 1)
    a.mailbox.forget(b.address)
    a.mailbox.send(b.address, b"two")
    await b.until(lambda i: len(i.messages) == 2)
    assert b.heads == [b"one", b"two"]


async def test_a_malformed_message_is_logged_and_the_next_one_is_heard(
    inboxes: Open, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = inboxes(), inboxes(start=False)
    heard: list[object] = []
    done = asyncio.Event()

    def on_message(head: bytes | memoryview, _payload: Sequence[memoryview]) -> None:
        heard.append(decode(head))
        if isinstance(heard[-1], StatusPull):
            done.set()

    b.mailbox.start(on_message, b.on_lost)
    with caplog.at_level(logging.ERROR):
        for bad in (b"", b"\xc1", b"not msgpack", encode(AbortRequests(("r",)))[:-1]):
            a.mailbox.send(b.address, bad)
        a.mailbox.send(b.address, encode(AbortRequests(("r",))), [b"odd payload"])
        a.mailbox.send(b.address, encode(StatusPull()))
        await asyncio.wait_for(done.wait(), PATIENCE_S)
    assert heard == [AbortRequests(("r",)), StatusPull()]
    told = [record.getMessage().split(":")[0] for record in caplog.records]
    assert told == ["message refused"] * 4


PEER = """
import asyncio, os, sys
from controller.adapters.zmq.zmq_mailbox import ClusterKey
from controller.adapters.zmq.zmq_mailbox import ZmqMailbox

async def main():
    secret = os.environ["SECRET"]
    mailbox = ZmqMailbox("127.0.0.1", key=ClusterKey(secret) if secret else None)
    mailbox.start(lambda head, payload: mailbox.send(sys.argv[1], b"echo " + bytes(head)), print)
    mailbox.send(sys.argv[1], mailbox.address.encode())
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def peer_process(secret: str) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    environ = {**os.environ, "SECRET": secret}
    started: list[subprocess.Popen[bytes]] = []

    def start(address: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", PEER, address], env=environ))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.process
async def test_a_killed_process_is_noticed_at_once_and_once(
    inboxes: Open, peer_process: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    a = inboxes()
    process = peer_process(a.address)
    await a.until(lambda i: len(i.messages) == 1)
    there = a.heads[0].decode()
    a.mailbox.send(there, b"one")
    a.mailbox.send(there, b"two", droppable=True)
    await a.until(lambda i: len(i.messages) == 3)
    assert sorted(a.heads[1:]) == [b"echo one", b"echo two"]
    killed_s = asyncio.get_running_loop().time()
    process.send_signal(signal.SIGKILL)
    await a.until(lambda i: i.lost == [there])
    assert asyncio.get_running_loop().time() - killed_s < 2.0
    process.wait()
    b = inboxes()
    b.mailbox.send(a.address, b"after")
    await a.until(lambda i: i.heads[-1] == b"after")
    assert a.lost == [there]


async def test_a_full_inbox_holds_up_nothing_else(inboxes: Open) -> None:
    a, b = inboxes(), inboxes(start=False)
    total = HIGH_WATER_MARK - 100
    for number in range(total):
        a.mailbox.send(b.address, b"%d" % number)
    num_turns = 0

    def turn() -> None:
        nonlocal num_turns
        num_turns += 1
        asyncio.get_running_loop().call_soon(turn)

    b.start()
    turn()
    await b.until(lambda i: len(i.messages) == total)
    assert num_turns >= total / MAX_PER_TURN
