"""A sender without the cluster's key gets nothing into an inbox and does it no harm."""

import asyncio
import contextlib
import logging
import os
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from controller.adapters.zmq import zmq_mailbox
from controller.adapters.zmq.zmq_mailbox import ClusterKey, ZmqMailbox, new_secret_key
from controller.runtime.messages.codec import decode, encode
from controller.runtime.messages.members import StatusPull
from controller.runtime.messages.requests import AbortRequests
from tests.unit.mailbox_support import PATIENCE_S, Inbox

SECRET = new_secret_key()
OWN = (zmq.curve_public(SECRET.encode()), SECRET.encode())
FOREIGN = zmq.curve_keypair()
Open = Callable[..., Inbox]

# How a handshake ends that is cut without a word: by who notices first.
CUT = {zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL}

# ZMTP 3.1: signature, version, mechanism, as-server, filler.
GREETING = b"\xff" + bytes(8) + b"\x7f" + bytes([3, 1]) + b"%b" + bytes(32)
CURVE_GREETING = GREETING % b"CURVE".ljust(20, b"\0")
NULL_GREETING = GREETING % b"NULL".ljust(20, b"\0")
HELLO_BODY = b"\x05HELLO" + bytes([1, 0]) + bytes(72) + os.urandom(32) + bytes(8) + bytes(80)
NULL_READY = b"\x04\x19\x05READY\x0bSocket-Type" + struct.pack(">I", 4) + b"PUSH"


@pytest.fixture
async def inboxes() -> AsyncIterator[Open]:
    made: list[Inbox] = []

    def make(secret: str = SECRET) -> Inbox:
        made.append(Inbox(ClusterKey(secret) if secret else None))
        return made[-1]

    yield make
    for inbox in made:
        await inbox.mailbox.close()


class Bare:
    """Plain ZeroMQ sockets, in a context of their own."""

    def __init__(self) -> None:
        self._context = zmq.asyncio.Context()
        self._sockets: list[zmq.asyncio.Socket] = []

    def socket(self, kind: int) -> zmq.asyncio.Socket:
        self._sockets.append(self._context.socket(kind))
        return self._sockets[-1]

    def writer(
        self, server_public: bytes | None, client: tuple[bytes, bytes] | None
    ) -> zmq.asyncio.Socket:
        out = self.socket(zmq.PUSH)
        if server_public and client:
            out.curve_serverkey = server_public
            out.curve_publickey, out.curve_secretkey = client
        return out

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
async def bare() -> AsyncIterator[Bare]:
    sockets = Bare()
    yield sockets
    sockets.close()


async def answer_to(out: zmq.asyncio.Socket, address: str) -> zmq.Event:
    """How the handshake of a writer that has something to send ended."""
    ends = (
        zmq.EVENT_HANDSHAKE_SUCCEEDED
        | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    )
    monitor = out.get_monitor_socket(ends)
    out.connect(address)
    for _ in range(10):
        out.send(b"injected", zmq.NOBLOCK)
    event = await asyncio.wait_for(recv_monitor_message(monitor), PATIENCE_S)
    out.disable_monitor()
    monitor.close(linger=0)
    return zmq.Event(event["event"])


async def still_serves(inbox: Inbox, friend: Inbox) -> None:
    """A message of the friend's arrives, and no other message has arrived."""
    number = len(inbox.messages)
    friend.mailbox.send(inbox.address, b"friend %d" % number)
    await inbox.until(lambda i: len(i.messages) > number)
    assert inbox.heads == [b"friend %d" % n for n in range(number + 1)]


async def test_who_has_the_key_gets_in(bare: Bare, inboxes: Open) -> None:
    inbox = inboxes()
    out = bare.writer(OWN[0], OWN)
    assert await answer_to(out, inbox.address) == zmq.EVENT_HANDSHAKE_SUCCEEDED
    await inbox.until(lambda i: i.heads == [b"injected"] * 10)


@pytest.mark.parametrize(
    ("server_public", "client", "answers"),
    [
        (None, None, CUT),
        (FOREIGN[0], FOREIGN, CUT),
        (FOREIGN[0], OWN, CUT),
        (OWN[0], FOREIGN, {zmq.EVENT_HANDSHAKE_FAILED_AUTH}),
    ],
    ids=["no keys", "all foreign", "foreign server key", "foreign client key"],
)
async def test_a_stranger_gets_nothing_in(
    bare: Bare,
    inboxes: Open,
    server_public: bytes | None,
    client: tuple[bytes, bytes] | None,
    answers: set[zmq.Event],
) -> None:
    inbox, friend = inboxes(), inboxes()
    await still_serves(inbox, friend)
    for _ in range(3):
        out = bare.writer(server_public, client)
        assert await answer_to(out, inbox.address) in answers
        await still_serves(inbox, friend)
    await still_serves(inbox, inboxes())
    assert friend.lost == []


async def test_a_foreign_client_key_is_told_without_the_key(
    bare: Bare, inboxes: Open, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = inboxes()
    await answer_to(bare.writer(OWN[0], FOREIGN), inbox.address)
    assert caplog.messages == ["a connection from 127.0.0.1 has a foreign key"]


async def test_an_inbox_without_a_handler_admits_nobody(
    bare: Bare, inboxes: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, friend = bare.socket(zmq.PULL), inboxes()
    monkeypatch.setattr(zmq_mailbox, "ZAP_ADDRESS", "inproc://where-nobody-asks")
    door = ClusterKey(SECRET).guard(inbox)
    inbox.bind("tcp://127.0.0.1:*")
    address = inbox.getsockopt_string(zmq.LAST_ENDPOINT)
    friend.mailbox.send(address, b"a message")
    await friend.until(lambda i: i.lost == [address])
    assert await inbox.poll(0) == 0
    door.close()


@pytest.mark.parametrize("droppable", [False, True])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(SECRET, new_secret_key()), (SECRET, ""), ("", SECRET)],
    ids=["another cluster's", "they have none", "we have none"],
)
async def test_a_peer_with_another_key_is_lost_once_and_not_tried_again(
    inboxes: Open, ours: str, theirs: str, droppable: bool
) -> None:
    a, b = inboxes(ours), inboxes(theirs)
    accepted = b.mailbox._inbox.get_monitor_socket(zmq.EVENT_ACCEPTED)
    for round_ in (1, 2):
        a.mailbox.send(b.address, b"a secret", droppable=droppable)
        a.mailbox.send(b.address, b"another", droppable=droppable)
        await a.until(lambda i, n=round_: len(i.lost) == n)
        assert a.mailbox._peers == {}, "its socket, which would try again, is closed"
    await still_serves(b, inboxes(theirs))
    connections = 0
    while await accepted.poll(0):
        await recv_monitor_message(accepted)
        connections += 1
    assert connections == 3
    assert a.lost == [b.address] * 2
    b.mailbox._inbox.disable_monitor()
    accepted.close(linger=0)


async def test_a_flood_of_strangers_does_not_stop_it(bare: Bare, inboxes: Open) -> None:
    inbox, friend = inboxes(), inboxes()
    await still_serves(inbox, friend)
    host, port = inbox.address.removeprefix("tcp://").split(":")
    async with contextlib.AsyncExitStack() as stack:
        for number in range(200):
            _, stream = await asyncio.open_connection(host, port)
            stack.callback(stream.close)
            stream.write([b"", b"\xff" * 9, CURVE_GREETING, os.urandom(500)][number % 4])
        for number in range(60):  # libzmq tries again and again, each 0.1 s
            out = bare.writer(*[(None, None), (FOREIGN[0], FOREIGN)][number % 2])
            out.connect(inbox.address)
            out.send(b"injected", zmq.NOBLOCK)
        for _ in range(100):
            await still_serves(inbox, friend)
        await still_serves(inbox, inboxes())
    assert friend.lost == []


async def open_door(inbox: Inbox) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = inbox.address.removeprefix("tcp://").split(":")
    return await asyncio.open_connection(host, port)


async def is_cut(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), PATIENCE_S)
    return True


async def test_a_stranger_who_claims_a_large_frame_is_cut(inboxes: Open) -> None:
    """libzmq reserves the memory that a frame claims, and kept the beginning of the frame for 30
    s."""
    inbox, friend = inboxes(), inboxes()
    await still_serves(inbox, friend)
    for claimed in (zmq_mailbox.MAX_WIRE_BYTES + 1, 8 << 30):
        reader, stream = await open_door(inbox)
        stream.write(CURVE_GREETING + b"\x06" + struct.pack(">Q", claimed) + b"\x05HELLO")
        assert await is_cut(reader)
        stream.close()
    await still_serves(inbox, friend)
    assert friend.lost == []


async def test_a_stranger_who_says_nothing_is_cut(
    inboxes: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq_mailbox, "HANDSHAKE_TIMEOUT_S", 0.05)
    inbox = inboxes()
    monkeypatch.undo()
    silent = [await open_door(inbox) for _ in range(3)]
    silent[1][1].write(CURVE_GREETING[:20])
    silent[2][1].write(CURVE_GREETING + b"\x04\xc8\x05HELLO")
    for reader, stream in silent:
        assert await is_cut(reader)
        stream.close()
    await still_serves(inbox, inboxes())


async def test_of_too_many_strangers_the_oldest_are_shown_out(
    inboxes: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq_mailbox, "MAX_STRANGERS", 8)
    inbox, friend = inboxes(), inboxes()
    await still_serves(inbox, friend)
    strangers = [await open_door(inbox) for _ in range(50)]
    for reader, _ in strangers[:-8]:
        assert await is_cut(reader)
    await still_serves(inbox, friend)
    await still_serves(inbox, inboxes())
    stays = asyncio.ensure_future(strangers[-1][0].read())
    await asyncio.sleep(0)
    assert not stays.done()
    stays.cancel()
    for _, stream in strangers:
        stream.close()
    assert friend.lost == [], "it came first and has shown the key"


def test_where_the_kernel_does_not_tell_nobody_is_shown_out() -> None:
    class Silent:
        def getsockopt(self, *_: int) -> bytes:
            return bytes(100)

    assert zmq_mailbox.has_shown_the_key(Silent())


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xff",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
        bytes(1000),
        b"\xff" * 1000,
        b"\x01\x00hi\x00injected",  # ZMTP 1.0 and a frame
        NULL_GREETING + NULL_READY + b"\x00\x08injected",
        CURVE_GREETING + b"\x00\x08injected",
        CURVE_GREETING + NULL_READY + b"\x00\x08injected",
        CURVE_GREETING + b"\x04\xc8" + HELLO_BODY,
        CURVE_GREETING + b"\x04\x06\x05HELLO",
        CURVE_GREETING + b"\x04\x0a\x08INITIATE",
        CURVE_GREETING + b"\x04\x09\x07MESSAGE\x00",
        CURVE_GREETING + b"\x06" + struct.pack(">Q", 1 << 62) + b"\x05HELLO",
        CURVE_GREETING + b"\x02" + struct.pack(">Q", (1 << 64) - 1) + b"x",
        CURVE_GREETING + bytes(range(256)) * 40,
    ],
)
async def test_garbage_does_no_harm(
    inboxes: Open, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    inbox, friend = inboxes(), inboxes()
    await still_serves(inbox, friend)
    host, port = inbox.address.removeprefix("tcp://").split(":")
    for part in (garbage, garbage[: len(garbage) // 2]):
        reader, stream = await asyncio.open_connection(host, port)
        with contextlib.suppress(OSError):  # cut while we still wrote
            stream.write(part)
            stream.write_eof()
            await asyncio.wait_for(reader.read(), PATIENCE_S)  # until the inbox has closed it
        stream.close()
        await still_serves(inbox, friend)
    assert friend.lost == []
    assert caplog.messages == []


async def test_the_wire_tells_nothing_and_cannot_be_replayed(inboxes: Open) -> None:
    inbox, friend = inboxes(), inboxes()
    host, port = inbox.address.removeprefix("tcp://").split(":")
    written, tasks = bytearray(), set()

    async def tap(reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        there, forth = await asyncio.open_connection(host, port)
        tasks.add(asyncio.create_task(copy(there, back)))
        await copy(reader, forth, written)

    async def copy(
        source: asyncio.StreamReader, sink: asyncio.StreamWriter, record: bytearray | None = None
    ) -> None:
        while part := await source.read(4096):
            if record is not None:
                record.extend(part)
            sink.write(part)
        sink.close()

    async with await asyncio.start_server(tap, "127.0.0.1", 0) as listener:
        through = f"tcp://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        friend.mailbox.send(through, b"a prompt in plain words")
        await inbox.until(lambda i: i.heads == [b"a prompt in plain words"])
        friend.mailbox.forget(through)
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
    assert len(written) > 300
    assert b"plain words" not in written
    reader, stream = await asyncio.open_connection(host, port)
    stream.write(written)
    stream.write_eof()
    with contextlib.suppress(OSError):
        await asyncio.wait_for(reader.read(), PATIENCE_S)
    stream.close()
    friend.mailbox.send(inbox.address, b"after")
    await inbox.until(lambda i: b"after" in i.heads)
    assert inbox.heads == [b"a prompt in plain words", b"after"]


@pytest.mark.parametrize(
    "foreign",
    [
        ["InstanceKilled", "sk-4242"],
        ["InstanceKilled sk-4242"],
        ["AbortRequests", "sk-4242"],
        ["AbortRequests", ["r", 1, "sk-4242"]],
        ["Hello", {"sk-4242": 1}],
        {"type": "AbortRequests", "request_ids": ["sk-4242"]},
        "sk-4242",
        4242,
        [["sk-4242"]],
    ],
)
async def test_what_is_no_message_of_ours_is_refused_and_not_quoted(
    inboxes: Open, caplog: pytest.LogCaptureFixture, foreign: object
) -> None:
    friend = inboxes()
    heard: list[object] = []
    done = asyncio.Event()

    def on_message(head: bytes | memoryview, _payload: Sequence[memoryview]) -> None:
        heard.append(decode(head))
        if heard[-1] == StatusPull():
            done.set()

    heard_by = ZmqMailbox("127.0.0.1", key=ClusterKey(SECRET))
    heard_by.start(on_message, friend.on_lost)
    sent = msgspec.msgpack.encode(foreign)
    try:
        friend.mailbox.send(heard_by.address, encode(AbortRequests(("r",))))
        friend.mailbox.send(heard_by.address, sent)
        friend.mailbox.send(heard_by.address, encode(StatusPull()))
        await asyncio.wait_for(done.wait(), PATIENCE_S)
    finally:
        await heard_by.close()
    assert heard == [AbortRequests(("r",)), StatusPull()]
    assert caplog.messages == [
        f"message refused: {len(sent)} bytes are not a message of the cluster"
    ]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "4242" not in caplog.text
    assert "InstanceKilled" not in caplog.text


def test_a_key_does_not_show_and_a_wrong_one_is_refused() -> None:
    key = ClusterKey(SECRET)
    assert SECRET not in f"{key} {key!r}"
    assert OWN[0].decode() not in f"{key} {key!r}"
    assert len(SECRET) == 40
    assert new_secret_key() != new_secret_key()
    for bad in ("", SECRET[:-1], SECRET + "0", " " * 40):
        with pytest.raises((zmq.ZMQError, ValueError)):
            ClusterKey(bad)


def test_a_descriptor_that_has_become_a_files_is_not_kept() -> None:
    """The event of a connection that was closed meanwhile names the descriptor of its successor."""
    with Path(os.devnull).open() as file:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(3):
            zmq_mailbox.Doorkeeper()._accepted(file.fileno())
        assert len(list(Path("/proc/self/fd").iterdir())) == before
