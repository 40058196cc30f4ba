"""The ZeroMQ mailbox between users in one process, and senders without the cluster's key: they get
nothing into an inbox and do it no harm."""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils.monitor import recv_monitor_message

from controller.adapters.zmq import zmq_mailbox
from controller.adapters.zmq.zmq_mailbox import (
    HIGH_WATER_MARK,
    MAX_PART_BYTES,
    MAX_PER_TURN,
    ClusterKey,
    Doorkeeper,
    ZmqMailbox,
    cut,
    joined,
    new_secret_key,
)
from controller.ports.processes import OnMessage
from controller.runtime.messages.codec import decode, encode
from controller.runtime.messages.members import StatusPull
from controller.runtime.messages.requests import AbortRequests

PATIENCE_S = 10.0
SECRET = new_secret_key()


class Inbox:
    """A started mailbox and the messages that it got. `hear` sees each of them first."""

    def __init__(
        self,
        key: ClusterKey | None,
        start: bool = True,
        hear: OnMessage = lambda *_: None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.mailbox = ZmqMailbox(host, port, key)
        self.address = self.mailbox.address
        self.messages: list[tuple[bytes, list[bytes]]] = []
        self.lost: list[str] = []
        self._hear = hear
        self._changed = asyncio.Event()
        if start:
            self.start()

    def start(self) -> None:
        self.mailbox.start(self._on_message, self._on_lost)

    def _on_message(self, head: bytes | memoryview, payload: Sequence[memoryview]) -> None:
        self._hear(head, payload)
        self.messages.append((bytes(head), [bytes(part) for part in payload]))
        self._changed.set()

    def _on_lost(self, address: str) -> None:
        self.lost.append(address)
        self._changed.set()

    async def until(self, condition: Callable[["Inbox"], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    async def until_heads(self, *heads: bytes) -> None:
        await self.until(lambda _: self.heads[-len(heads) :] == [*heads])

    @property
    def heads(self) -> list[bytes]:
        return [head for head, _ in self.messages]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


Open = Callable[..., Inbox]


@pytest.fixture
async def inboxes() -> AsyncIterator[Open]:
    """Opens inboxes, with the cluster's secret or with another; the empty secret is no key."""
    made: list[Inbox] = []

    def make(secret: str = SECRET, **options: Any) -> Inbox:
        made.append(Inbox(ClusterKey(secret) if secret else None, **options))
        return made[-1]

    yield make
    for inbox in made:
        await inbox.mailbox.close()


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


def test_frames_may_be_of_any_kind() -> None:
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
async def test_only_droppable_messages_drop_while_the_peer_lags(inboxes: Open) -> None:
    filler, total = bytes(10_000), 2 * HIGH_WATER_MARK + 500
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


async def test_what_must_not_wait_is_lost_with_a_peer_that_was_never_there(inboxes: Open) -> None:
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


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

# How a handshake ends that is cut without a word: by who notices first.

# ZMTP 3.1: signature, version, mechanism, as-server, filler.
GREETING = b"\xff" + bytes(8) + b"\x7f" + bytes([3, 1]) + b"%b" + bytes(32)
CURVE_GREETING = GREETING % b"CURVE".ljust(20, b"\0")
NULL_GREETING = GREETING % b"NULL".ljust(20, b"\0")
HELLO_BODY = b"\x05HELLO" + bytes([1, 0]) + bytes(72) + os.urandom(32) + bytes(8) + bytes(80)
NULL_READY = b"\x04\x19\x05READY\x0bSocket-Type" + struct.pack(">I", 4) + b"PUSH"


@pytest.fixture
def plain() -> Iterator[zmq.asyncio.Context]:
    """Of sockets that are no mailbox's."""
    context = zmq.asyncio.Context()
    yield context
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
    plain: zmq.asyncio.Context, inboxes: Open, caplog: pytest.LogCaptureFixture
) -> None:
    inbox, friend = inboxes(), inboxes()
    await still_serves(inbox, friend)
    out = plain.socket(zmq.PUSH)
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
    out.close(linger=0)
    await still_serves(inbox, friend)
    await still_serves(inbox, inboxes())
    assert caplog.messages == ["a connection from 127.0.0.1 has a foreign key"]


async def test_an_inbox_without_a_handler_admits_nobody(
    plain: zmq.asyncio.Context, inboxes: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, friend = plain.socket(zmq.PULL), inboxes()
    monkeypatch.setattr(zmq_mailbox, "ZAP_ADDRESS", "inproc://where-nobody-asks")
    door = ClusterKey(SECRET).guard(inbox)
    inbox.bind("tcp://127.0.0.1:*")
    address = inbox.getsockopt_string(zmq.LAST_ENDPOINT)
    friend.mailbox.send(address, b"a message")
    await friend.until(lambda _: friend.lost == [address])
    assert await inbox.poll(0) == 0
    door.close()
    inbox.close(linger=0)


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
    stays = asyncio.ensure_future(strangers[-1][0].read())
    await asyncio.sleep(0)
    assert not stays.done()
    stays.cancel()
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
