"""The transfer between processes: killed and stopped peers, over mailboxes with a key."""

import asyncio
import signal
import socket
import struct

import psutil

from tests.contract.tcp_processes import PeerProcess, begin, close, copy, peer_processes

LOOPBACK = "127.0.0.1"
MANY = 1600
"""Blocks of 64 KiB: 100 MiB, more than sockets and buffers hold."""


async def ask(peer: PeerProcess) -> None:
    """Answered by the process's event loop."""
    await asyncio.wait_for(peer.digest(1), 10)


async def loses(peer: PeerProcess, stage_id: str, name: str) -> None:
    """The process hears of the other's end by the link or by the mailbox, whichever is first."""
    (why,) = await peer.says("failed", stage_id)
    assert why == f"{name} is gone" or why.startswith("the link broke"), why


async def test_a_killed_peer_fails_what_is_under_way_with_it_and_nothing_else() -> None:
    async with peer_processes() as processes:
        names = ("a", "b", "destination", "source")
        started = [await processes.start(name, LOOPBACK, MANY) for name in names]
        a, b, destination, source = started
        await processes.introduce()
        a.do("fill", 1)
        source.do("fill", 2)
        await copy(a, b, "a/0", 100)
        a.do("limit", 50e6)  # 2 s for all
        source.do("limit", 50e6)

        await begin(a, destination, "a/1", MANY)
        await begin(a, destination, "a/2", 10)
        await destination.says("scattering")
        destination.signal(signal.SIGKILL)
        for stage_id in "a/1", "a/2":
            await loses(a, stage_id, "destination")
        a.do("limit", None)
        await copy(a, b, "a/3", 200)

        await begin(source, b, "s/0", MANY)
        await b.says("scattering")
        b.do("receive", "source", "s/1", 5)
        await b.says("expecting", "s/1")
        source.signal(signal.SIGKILL)
        for stage_id in "s/0", "s/1":
            await loses(b, stage_id, "source")
        await copy(a, b, "a/4", 300)
        await copy(b, a, "b/0", 50)
        for peer in a, b:
            await close(peer)


async def test_a_stopped_destination_holds_up_nothing_but_its_link() -> None:
    async with peer_processes() as processes:
        a, b, c = [await processes.start(name, LOOPBACK, MANY) for name in ("a", "b", "c")]
        await processes.introduce()
        a.do("fill", 1)
        await copy(a, c, "c/0", 10)
        await copy(a, b, "b/0", 10)

        c.do("receive", "a", "c/1", MANY)
        await c.says("expecting", "c/1")
        c.signal(signal.SIGSTOP)
        a.do("send", "c", "c/1", MANY)
        a.do("send", "c", "c/2", 5)
        await copy(a, b, "b/1", 100)
        await ask(a)
        assert not a.said("sent", "c/1"), "it went into the buffers"
        for stage_id in "c/1", "c/2":
            a.do("cancel", stage_id)
            assert await a.says("failed", stage_id) == ["cancelled"]

        c.signal(signal.SIGCONT)
        assert await c.says("failed", "c/1") == ["its source gave up"]
        await copy(a, c, "c/3", 200)

        c.signal(signal.SIGSTOP)
        a.do("send", "c", "c/4", MANY)
        a.do("forget", "c")
        assert await a.says("failed", "c/4") == ["c is gone"]
        await close(a)


async def test_a_stopped_source_holds_up_nothing_but_its_link() -> None:
    async with peer_processes() as processes:
        a, b, c = [await processes.start(name, LOOPBACK, MANY) for name in ("a", "b", "c")]
        await processes.introduce()
        c.do("fill", 1)
        b.do("fill", 2)
        c.do("limit", 20e6)
        await begin(c, a, "c/1", MANY)
        await a.says("scattering")
        c.signal(signal.SIGSTOP)
        await ask(a)
        a.do("cancel", "c/1")
        assert await a.says("failed", "c/1") == ["cancelled"]
        await copy(b, a, "b/1", 100)
        c.do("limit", None)
        c.signal(signal.SIGCONT)
        await c.says("sent", "c/1")
        await copy(c, a, "c/2", 200)

        c.do("limit", 20e6)
        await begin(c, a, "c/3", MANY)
        await a.says("scattering")
        c.signal(signal.SIGSTOP)
        a.do("forget", "c")
        assert await a.says("failed", "c/3") == ["c is gone"]
        await close(a)


async def test_strangers_neither_end_a_process_nor_keep_moves_out() -> None:
    """When links were Gloo's, either of two things ended the process: a message for a place that
    does not exist, and one connection more than the process had descriptors for."""
    async with peer_processes() as processes:
        a, b = [await processes.start(name, LOOPBACK, 100) for name in "ab"]
        await processes.introduce()
        a.do("fill", 1)
        strangers = []
        for peer in a, b:
            process = psutil.Process(peer.pid)
            inbox = int(peer.address.rpartition(":")[2])
            (port,) = {
                each.laddr.port
                for each in process.net_connections()
                if each.status == psutil.CONN_LISTEN and each.laddr.port != inbox
            }
            for number in range(10):
                stranger = socket.create_connection((LOOPBACK, port))
                stranger.sendall(struct.pack("<q6Q", number, 8 << 20, 1, 7, 0, 8 << 20, 0))
                strangers.append(stranger)
            limit = process.rlimit(psutil.RLIMIT_NOFILE)
            process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds() + 20, limit[1]))
            strangers += [socket.create_connection((LOOPBACK, port)) for _ in range(60)]
            process.rlimit(psutil.RLIMIT_NOFILE, limit)
        await copy(a, b, "a/0", 100)
        for stranger in strangers:
            stranger.close()
        for peer in a, b:
            await close(peer)
