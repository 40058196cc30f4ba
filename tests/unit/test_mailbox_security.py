"""A sender without the cluster's key gets nothing into an inbox and does it no harm."""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from controller.adapters.zmq import zmq_mailbox
from controller.adapters.zmq.zmq_mailbox import ClusterKey, Doorkeeper, new_secret_key
from controller.runtime.messages.codec import decode, encode
from controller.runtime.messages.members import StatusPull
from controller.runtime.messages.requests import AbortRequests
from tests.unit.mailbox_support import PATIENCE_S, Inbox, Open, opening

SECRET = new_secret_key()
Bare = Callable[[int], zmq.asyncio.Socket]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

# How a handshake ends that is cut without a word: by who notices first.

# ZMTP 3.1: signature, version, mechanism, as-server, filler.
GREETING = b"\xff" + bytes(8) + b"\x7f" + bytes([3, 1]) + b"%b" + bytes(32)
CURVE_GREETING = GREETING % b"CURVE".ljust(20, b"\0")
NULL_GREETING = GREETING % b"NULL".ljust(20, b"\0")
HELLO_BODY = b"\x05HELLO" + bytes([1, 0]) + bytes(72) + os.urandom(32) + bytes(8) + bytes(80)
NULL_READY = b"\x04\x19\x05READY\x0bSocket-Type" + struct.pack(">I", 4) + b"PUSH"


@pytest.fixture
async def inboxes() -> AsyncIterator[Open]:
    async with opening(SECRET) as open_:
        yield open_


@pytest.fixture
def bare() -> Iterator[Bare]:
    """Makes plain ZeroMQ sockets, in a context of their own."""
    context, made = zmq.asyncio.Context(), []

    def socket(kind: int) -> zmq.asyncio.Socket:
        made.append(context.socket(kind))
        return made[-1]

    yield socket
    context.destroy(linger=0)


async def connected(inbox: Inbox) -> Connection:
    return await asyncio.open_connection("127.0.0.1", inbox.port)


async def is_cut(connection: Connection) -> bool:
    """Waits for that."""
    reader, stream = connection
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), PATIENCE_S)
    stream.close()
    return True


async def still_serves(inbox: Inbox, friend: Inbox) -> None:
    """A message of the friend's arrives, and no other message has arrived."""
    number = len(inbox.messages)
    friend.mailbox.send(inbox.address, b"friend %d" % number)
    await inbox.until(lambda _: len(inbox.messages) > number)
    assert inbox.heads == [b"friend %d" % n for n in range(number + 1)]
    assert friend.lost == []


@asynccontextmanager
async def tapped(inbox: Inbox) -> AsyncIterator[tuple[str, list[bytearray]]]:
    """An address that leads to the inbox, and what was written there, by connection."""
    written: list[bytearray] = []
    tasks: set[asyncio.Task[None]] = set()

    async def tap(reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        there, forth = await connected(inbox)
        written.append(bytearray())
        tasks.add(asyncio.create_task(copy(there, back, bytearray())))
        await copy(reader, forth, written[-1])

    async def copy(
        source: asyncio.StreamReader, sink: asyncio.StreamWriter, record: bytearray
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while part := await source.read(4096):
                record.extend(part)
                sink.write(part)
        sink.close()

    async with await asyncio.start_server(tap, "127.0.0.1", 0) as listener:
        yield f"tcp://127.0.0.1:{listener.sockets[0].getsockname()[1]}", written
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)


# -- keys -----------------------------------------------------------------------------------


async def test_who_knows_the_public_key_alone_gets_nothing_in(
    bare: Bare, inboxes: Open, caplog: pytest.LogCaptureFixture
) -> None:
    inbox, friend = inboxes(), inboxes()
    await still_serves(inbox, friend)
    out = bare(zmq.PUSH)
    out.curve_serverkey = zmq.curve_public(SECRET.encode())
    out.curve_publickey, out.curve_secretkey = zmq.curve_keypair()
    monitor = out.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    )
    out.connect(inbox.address)
    out.send(b"injected", zmq.NOBLOCK)
    event = await asyncio.wait_for(recv_monitor_message(monitor), PATIENCE_S)
    assert event["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH
    out.disable_monitor()
    monitor.close(linger=0)
    await still_serves(inbox, friend)
    await still_serves(inbox, inboxes())
    assert caplog.messages == ["a connection from 127.0.0.1 has a foreign key"]


async def test_an_inbox_without_a_handler_admits_nobody(
    bare: Bare, inboxes: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, friend = bare(zmq.PULL), inboxes()
    monkeypatch.setattr(zmq_mailbox, "ZAP_ADDRESS", "inproc://where-nobody-asks")
    door = ClusterKey(SECRET).guard(inbox)
    inbox.bind("tcp://127.0.0.1:*")
    address = inbox.getsockopt_string(zmq.LAST_ENDPOINT)
    friend.mailbox.send(address, b"a message")
    await friend.until(lambda _: friend.lost == [address])
    assert await inbox.poll(0) == 0
    door.close()


@pytest.mark.parametrize("droppable", [False, True])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(SECRET, new_secret_key()), (SECRET, ""), ("", SECRET)],
    ids=["another cluster's", "they have none", "we have none"],
)
async def test_a_peer_with_another_key_is_lost_and_forgotten(
    inboxes: Open, ours: str, theirs: str, droppable: bool
) -> None:
    a, b = inboxes(ours), inboxes(theirs)
    async with tapped(b) as (address, connections):
        for number in (1, 2):
            a.mailbox.send(address, b"a secret", droppable=droppable)
            a.mailbox.send(address, b"another", droppable=droppable)
            await a.until(lambda _, number=number: len(a.lost) == number)
        await still_serves(b, inboxes(theirs))
        assert a.lost == [address] * 2, "once for each time that it was written to"
        assert b"a secret" not in b"".join(connections)


async def test_the_wire_tells_nothing_and_cannot_be_replayed(inboxes: Open) -> None:
    inbox, friend = inboxes(), inboxes()
    async with tapped(inbox) as (address, connections):
        friend.mailbox.send(address, b"friend 0")
        await inbox.until_heads(b"friend 0")
        friend.mailbox.forget(address)
    (written,) = connections
    assert len(written) > 300
    assert b"friend" not in written
    reader, stream = await connected(inbox)
    stream.write(written)
    stream.write_eof()
    assert await is_cut((reader, stream))
    await still_serves(inbox, friend)


def test_a_key_does_not_show_and_a_wrong_one_is_refused() -> None:
    key = ClusterKey(SECRET)
    assert SECRET not in f"{key} {key!r}"
    assert len(SECRET) == 40
    assert new_secret_key() != new_secret_key()
    for bad in ("", SECRET[:-1], SECRET + "0", " " * 40):
        with pytest.raises((zmq.ZMQError, ValueError)):
            ClusterKey(bad)


# -- strangers --------------------------------------------------------------------------------


async def test_a_stranger_who_claims_a_large_frame_is_cut(inboxes: Open) -> None:
    """libzmq reserves the memory that a frame claims, and kept the beginning of the frame for 30
    s."""
    inbox, friend = inboxes(), inboxes()
    await still_serves(inbox, friend)
    for claimed in (zmq_mailbox.MAX_WIRE_BYTES + 1, 8 << 30):
        stranger = await connected(inbox)
        stranger[1].write(CURVE_GREETING + b"\x06" + struct.pack(">Q", claimed) + b"\x05HELLO")
        assert await is_cut(stranger)
    await still_serves(inbox, friend)


async def test_a_stranger_who_says_nothing_is_cut(
    inboxes: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq_mailbox, "HANDSHAKE_TIMEOUT_S", 0.2)
    inbox = inboxes()
    monkeypatch.undo()
    silent = [await connected(inbox) for _ in range(3)]
    silent[1][1].write(CURVE_GREETING[:20])
    silent[2][1].write(CURVE_GREETING + b"\x04\xc8\x05HELLO")
    for each in silent:
        assert await is_cut(each)
    await still_serves(inbox, inboxes())


async def test_of_too_many_strangers_the_oldest_are_shown_out(
    inboxes: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq_mailbox, "MAX_STRANGERS", 8)
    inbox, friend = inboxes(), inboxes()
    await still_serves(inbox, friend)
    strangers = [await connected(inbox) for _ in range(50)]
    for each in strangers[:-8]:
        assert await is_cut(each)
    await still_serves(inbox, friend)  # it came first and has shown the key
    await still_serves(inbox, inboxes())
    assert not strangers[-1][0].at_eof()
    for _, stream in strangers[-8:]:
        stream.close()


def test_where_the_kernel_does_not_tell_nobody_is_shown_out() -> None:
    class Silent:
        def getsockopt(self, *_: int) -> bytes:
            return bytes(100)

    assert zmq_mailbox.has_shown_the_key(Silent())


def num_open(name: str) -> int:
    """How many descriptors of this process are of that file."""
    found = (os.path.realpath(each) for each in Path("/proc/self/fd").iterdir())
    return sum(each == name for each in found)


def test_a_descriptor_that_has_become_a_file_s_is_not_kept() -> None:
    """The event of a connection that was closed meanwhile names the descriptor of its successor.
    Two connections follow, of which the first is shown out."""
    context = zmq.Context()
    with contextlib.ExitStack() as stack:
        events = stack.enter_context(context.socket(zmq.PAIR))
        file = stack.enter_context(Path(os.devnull).open())
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        strangers, accepted = [], []
        for _ in range(2):
            strangers.append(stack.enter_context(socket.create_connection(door.getsockname())))
            accepted.append(stack.enter_context(door.accept()[0]))
        keeper = Doorkeeper(max_strangers=1)
        keeper.watch(SimpleNamespace(context=context, monitor=lambda to, _: events.bind(to)))
        before = num_open(os.devnull)
        for each in (file, file, file, *accepted):
            told = struct.pack("=HI", zmq.EVENT_ACCEPTED, each.fileno())
            events.send_multipart([told, b"tcp://127.0.0.1:1"])
        assert strangers[0].recv(1) == b""
        assert num_open(os.devnull) == before
    context.destroy(linger=0)
    keeper.join()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x01\x00hi\x00injected",  # ZMTP 1.0 and a frame
        NULL_GREETING + NULL_READY + b"\x00\x08injected",
        CURVE_GREETING + b"\x00\x08injected",
        CURVE_GREETING + NULL_READY + b"\x00\x08injected",
        CURVE_GREETING + b"\x04\xc8" + HELLO_BODY,
        CURVE_GREETING + b"\x04\x0a\x08INITIATE",
        CURVE_GREETING + b"\x04\x09\x07MESSAGE\x00",
        CURVE_GREETING + b"\x02" + struct.pack(">Q", (1 << 64) - 1) + b"x",
        CURVE_GREETING + bytes(range(256)) * 40,
    ],
)
async def test_garbage_does_no_harm(
    inboxes: Open, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    inbox, friend = inboxes(), inboxes()
    await still_serves(inbox, friend)
    for part in (garbage, garbage[: len(garbage) // 2]):
        stranger = await connected(inbox)
        with contextlib.suppress(OSError):  # cut while we still wrote
            stranger[1].write(part)
            stranger[1].write_eof()
        assert await is_cut(stranger)
        await still_serves(inbox, friend)
    assert caplog.messages == []


# -- messages ---------------------------------------------------------------------------------


async def test_what_is_no_message_of_ours_is_refused_and_not_quoted(
    inboxes: Open, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = (
        *(["InstanceKilled", "sk-4242"], ["AbortRequests", "sk-4242"], [["sk-4242"]]),
        *(["AbortRequests", ["r", 1, "sk-4242"]], {"type": "AbortRequests", "x": "sk-4242"}),
        4242,
    )
    abort = encode(AbortRequests(("r",)))
    bad = [b"", b"\xc1", b"not msgpack", abort[:-1], *map(msgspec.msgpack.encode, foreign)]
    heard: list[object] = []

    def hear(head: bytes | memoryview, _payload: Sequence[memoryview]) -> None:
        heard.append(decode(head))
        if heard[-1] == StatusPull():
            raise RuntimeError("a bug")

    friend, inbox = inboxes(), inboxes(hear=hear)
    for head in (*bad, encode(StatusPull()), abort):
        friend.mailbox.send(inbox.address, head)
    await inbox.until_heads(abort)
    assert heard == [StatusPull(), AbortRequests(("r",))]
    assert caplog.messages == [
        *(f"message refused: {len(each)} bytes are not a message of the cluster" for each in bad),
        "message refused",
    ]
    assert "4242" not in caplog.text
    assert "InstanceKilled" not in caplog.text
