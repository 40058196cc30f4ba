"""A client that reaches an instance's port for blocks, and does not know a link's key, gets nothing
and has no effect: no block is sent to it, none of its blocks is scattered, and moves continue.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from controller.adapters.tcp import link_stream
from controller.adapters.tcp.link_stream import (
    GREETING_BYTES,
    PROOF_BYTES,
    LinkKey,
    link_id,
    new_secret,
)
from tests.unit.tcp.instances import (
    PATIENCE_S,
    SLICE_BYTES,
    Instance,
    begin,
    copy,
    error_of,
    greeting_of,
    last_link,
    num_opened,
    outcome,
    until,
)


@pytest.fixture
async def open_streams() -> AsyncIterator[list[asyncio.StreamWriter]]:
    made: list[asyncio.StreamWriter] = []
    yield made
    for stream in made:
        stream.close()
        with contextlib.suppress(OSError):
            await stream.wait_closed()


async def knock(
    streams: list[asyncio.StreamWriter], destination: Instance, says: bytes = b""
) -> asyncio.StreamReader:
    """Connects to the port that the destination has told its sources."""
    _, _, address, _ = destination.said(b"here")[-1]
    host, _, port = address.decode().rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    streams.append(writer)
    writer.write(says)
    return reader


async def is_turned_away(stranger: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(stranger.read(), PATIENCE_S) == b""
    except ConnectionError:
        return True


async def invited(source: Instance, destination: Instance) -> "asyncio.Future[object]":
    """A copy whose destination waits for the link, and whose source does not know that yet."""
    source.held = []
    sent, _ = begin(source, destination, "m/0", 9)
    await until(lambda: bool(source.held))
    return sent


def test_each_link_and_each_end_has_a_proof_of_its_own() -> None:
    one, other = new_secret(), new_secret()
    keys = [
        LinkKey("a>b#1", one, other),
        LinkKey("a>b#2", one, other),
        LinkKey("a>b#1", other, one),
        LinkKey("a>b#1", one, new_secret()),
        LinkKey("a>b#1", new_secret(), other),
    ]
    proofs = {key.proof_of_source() for key in keys} | {key.proof_of_destination() for key in keys}
    assert len(proofs) == 2 * len(keys)


async def test_a_stranger_who_comes_first_does_not_take_the_place(
    source: Instance, destination: Instance, open_streams: list[asyncio.StreamWriter]
) -> None:
    sent = await invited(source, destination)
    name = link_id(last_link(source, destination)[0])
    noise = bytes(GREETING_BYTES), b"\xff" * 10_000
    for words in (*noise, name + bytes(PROOF_BYTES), name + b"x" * (PROOF_BYTES + SLICE_BYTES)):
        assert await is_turned_away(await knock(open_streams, destination, words))
    assert source.blocks.touched == destination.blocks.touched == []
    source.hear_what_was_held()
    await outcome(sent)
    await copy(source, destination, "m/1")
    assert num_opened(source) == 1


async def test_what_opened_a_link_opens_none_again(
    source: Instance, destination: Instance, open_streams: list[asyncio.StreamWriter]
) -> None:
    await copy(source, destination, "m/0")
    greeting = greeting_of(last_link(source, destination))
    assert await is_turned_away(await knock(open_streams, destination, greeting))
    received = destination.transfer.receive(source.peer, "m/1", range(3))
    source.transfer.forget(destination.peer)
    why = await error_of(received)  # whichever comes first: the mailbox's word, or the end of TCP
    assert "the other end of the link is over" in why or "the link broke" in why
    assert await is_turned_away(await knock(open_streams, destination, greeting))
    await copy(source, destination, "m/2")


@pytest.mark.parametrize(
    ("knows_the_key", "why"),
    [(False, "does not know its key"), (True, "the link broke: ")],
    ids=["does not know the link's key", "knows it, and leaves"],
)
async def test_who_takes_the_destinations_place(
    source: Instance, destination: Instance, knows_the_key: bool, why: str
) -> None:
    said = bytearray()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.extend(await reader.readexactly(GREETING_BYTES))
        _, key = last_link(source, destination)
        writer.write(key.proof_of_destination() if knows_the_key else bytes(PROOF_BYTES))
        with contextlib.suppress(ConnectionError):
            said.extend(await reader.read(1 if knows_the_key else -1))
        writer.close()

    async with await asyncio.start_server(impostor, "127.0.0.1", 0) as listener:
        sent = await invited(source, destination)
        ((peer, (kind, named, _, secret)),) = source.held or ()
        address = b"127.0.0.1:%d" % listener.sockets[0].getsockname()[1]
        source.held = [(peer, (kind, named, address, secret))]
        source.hear_what_was_held()
        assert why in await error_of(sent)
    assert len(said) == GREETING_BYTES + knows_the_key
    assert destination.blocks.touched == []
    assert bool(source.blocks.touched) == knows_the_key
    # What begins before the destination has heard that this link is over ends with it.
    async with asyncio.timeout(PATIENCE_S):
        while destination.transfer._links:
            await asyncio.sleep(0.001)
    await copy(source, destination, "m/1")
    assert num_opened(source) == 2


async def test_of_too_many_strangers_the_oldest_leave(
    source: Instance,
    destination: Instance,
    open_streams: list[asyncio.StreamWriter],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await copy(source, destination, "m/0")
    monkeypatch.setattr(link_stream, "MAX_STRANGERS", 4)
    strangers = [await knock(open_streams, destination, b"x" * (n % 40)) for n in range(30)]
    for stranger in strangers[:-4]:
        assert await is_turned_away(stranger)
    assert not any(stranger.at_eof() for stranger in strangers[-4:])
    await copy(source, destination, "m/1")


async def test_a_stranger_who_says_too_little_leaves(
    source: Instance,
    destination: Instance,
    open_streams: list[asyncio.StreamWriter],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await copy(source, destination, "m/0")
    monkeypatch.setattr(link_stream, "GREETING_TIMEOUT_S", 0.05)
    for words in b"", b"x":
        assert await is_turned_away(await knock(open_streams, destination, words))
