"""A client that reaches an instance's port for blocks, and does not know a link's key, gets nothing
and has no effect: no block is sent to it, none of its blocks is scattered, and moves continue.
"""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import pytest

from controller.adapters.tcp import link_stream
from controller.adapters.tcp.link_stream import PROOF_BYTES, link_id
from tests.unit.tcp.instances import (
    PATIENCE_S,
    SLICE_BYTES,
    Instance,
    begin,
    copy,
    error_of,
    outcome,
    until,
)
from tests.unit.tcp.test_tcp_faults import num_opened, only_link


@pytest.fixture
async def open_streams() -> AsyncIterator[list[asyncio.StreamWriter]]:
    made: list[asyncio.StreamWriter] = []
    yield made
    for stream in made:
        stream.close()
        with contextlib.suppress(OSError):
            await stream.wait_closed()


async def knock(
    streams: list[asyncio.StreamWriter], instance: Instance, says: bytes = b""
) -> asyncio.StreamReader:
    assert instance.transfer._ends is not None
    host, _, port = instance.transfer._ends.door.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    streams.append(writer)
    writer.write(says)
    return reader


async def is_turned_away(stranger: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(stranger.read(), PATIENCE_S) == b""
    except ConnectionError:
        return True


async def invited(source: Instance, destination: Instance) -> tuple[str, "asyncio.Future[object]"]:
    """The link's name, once its destination waits for it and its source does not know that yet."""
    source.held = []
    sent, _ = begin(source, destination, "m/0", 9)
    await until(lambda: bool(source.held))
    return only_link(destination.transfer._receiving).name, sent


def let_in(source: Instance) -> None:
    held, source.held = source.held, None
    for message in held or ():
        source.hear(*message)


FOR_A_LINK = {
    "a wrong proof": bytes(PROOF_BYTES),
    "a proof and more": b"x" * (PROOF_BYTES + SLICE_BYTES),
}


@pytest.mark.parametrize("proof", FOR_A_LINK.values(), ids=FOR_A_LINK)
async def test_a_stranger_who_comes_first_does_not_take_the_place(
    source: Instance,
    destination: Instance,
    open_streams: list[asyncio.StreamWriter],
    proof: bytes,
) -> None:
    name, sent = await invited(source, destination)
    for _ in range(3):
        assert await is_turned_away(await knock(open_streams, destination, link_id(name) + proof))
    assert source.blocks.touched == destination.blocks.touched == []
    let_in(source)
    await outcome(sent)
    await copy(source, destination, "m/1")
    assert num_opened(source) == 1


# A stranger's words to Gloo: a number, and a message for a place that there is not. They ended the
# process when links were Gloo's.
TO_GLOO = struct.pack("<q6Q", 0, 8 << 20, 1, 7, 0, 8 << 20, 0)


@pytest.mark.parametrize(
    "words",
    [TO_GLOO, b"GET / HTTP/1.1\r\n" * 10, bytes(link_stream.GREETING_BYTES), b"\xff" * 10_000],
    ids=["Gloo", "HTTP", "zeros", "noise"],
)
async def test_noise_is_turned_away(
    source: Instance,
    destination: Instance,
    open_streams: list[asyncio.StreamWriter],
    words: bytes,
) -> None:
    for instance in source, destination:
        assert await is_turned_away(await knock(open_streams, instance, words))
    await copy(source, destination, "m/0")
    for instance in source, destination:
        assert await is_turned_away(await knock(open_streams, instance, words))
    await copy(source, destination, "m/1")
    assert num_opened(source) == 1


async def test_what_opened_a_link_opens_none_again(
    source: Instance, destination: Instance, open_streams: list[asyncio.StreamWriter]
) -> None:
    await copy(source, destination, "m/0")
    link = only_link(destination.transfer._receiving)
    greeting = link_id(link.name) + link._key.proof_of_source()
    received = destination.transfer.receive(source.peer, "m/1", range(3))
    assert await is_turned_away(await knock(open_streams, destination, greeting))
    only_link(source.transfer._sending).break_off("for this test")
    await until(lambda: not destination.transfer._links)
    why = await error_of(received)  # whichever comes first: the mailbox's word, or the end of TCP
    assert "the other end of the link is over" in why or "the link broke" in why
    assert await is_turned_away(await knock(open_streams, destination, greeting))
    await copy(source, destination, "m/2")


async def test_who_takes_the_destinations_place_is_sent_no_block(
    source: Instance, destination: Instance
) -> None:
    said = bytearray()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.extend(await reader.readexactly(link_stream.GREETING_BYTES))
        writer.write(bytes(PROOF_BYTES))
        with contextlib.suppress(ConnectionError):
            said.extend(await reader.read())
        writer.close()

    async with await asyncio.start_server(impostor, "127.0.0.1", 0) as listener:
        name, sent = await invited(source, destination)
        ((peer, (kind, named, _, secret)),) = source.held or ()
        assert (bytes(kind), bytes(named)) == (b"here", name.encode())
        address = b"127.0.0.1:%d" % listener.sockets[0].getsockname()[1]
        source.held = [(peer, (kind, named, address, secret))]
        let_in(source)
        assert "does not know its key" in await error_of(sent)
    assert len(said) == link_stream.GREETING_BYTES
    assert source.blocks.touched == destination.blocks.touched == []
    await copy(source, destination, "m/1")
    assert num_opened(source) == 2


async def test_of_too_many_strangers_the_oldest_leave(
    source: Instance,
    destination: Instance,
    open_streams: list[asyncio.StreamWriter],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_stream, "MAX_STRANGERS", 4)
    strangers = [await knock(open_streams, destination, b"x" * (n % 40)) for n in range(30)]
    for stranger in strangers[:-4]:
        assert await is_turned_away(stranger)
    await copy(source, destination, "m/0")
    assert destination.transfer._ends is not None
    assert len(destination.transfer._ends.door._strangers) <= 4


async def test_a_stranger_who_says_too_little_leaves(
    destination: Instance,
    open_streams: list[asyncio.StreamWriter],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_stream, "GREETING_TIMEOUT_S", 0.05)
    for words in b"", b"x":
        assert await is_turned_away(await knock(open_streams, destination, words))
