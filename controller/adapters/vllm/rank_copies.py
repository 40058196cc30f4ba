"""Copies of KV blocks between the caches of an engine's worker processes and one buffer that they
share with the engine's process: `RankBlocks`, the KvBlocks of an engine with several ranks.

Copies do not go through vLLM's queue, in which they would wait for steps. `serve_copies` runs in
each worker (by `collective_rpc`) and starts a thread there. The engine's process connects to it by
a Unix socket in a private folder, which is deleted as soon as all ranks are connected. Over this
connection it sends, for each buffer, the buffer's memory (a memfd) and one end of a pair of
sockets; the other end carries the orders for this buffer. In the worker a thread serves each
buffer, until its socket is closed.

A rank reads and writes its own columns of the rows (`kv_blocks.py`), directly between its cache and
the buffer. On a GPU it goes through a buffer on the device and pinned memory, as in an engine of
one process.

Each copy names a step that the engine had dispatched when the copy's blocks were given to a copier,
or later. Workers count their steps, and a copy waits until that step was launched; on a GPU its
stream also waits for the step's end. Nothing here has a time limit: until all ranks have answered,
one of them may still touch the blocks. A worker that hangs also stops the engine's steps, and a
worker that dies closes its sockets.

The part for GPUs is UNTESTED on a real GPU in several processes.

Touch points of vLLM: v1/executor/abstract.py `collective_rpc`, `execute_model`;
v1/worker/worker_base.py `model_runner`, `rank`; v1/worker/gpu_model_runner.py `execute_model`,
`device`."""

import contextlib
import logging
import mmap
import os
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from controller.adapters.vllm import worker_side
from controller.adapters.vllm.kv_blocks import (
    BlockRows,
    Columns,
    CudaBlocks,
    LayerShard,
    caches_of,
    columns_of,
    distinct_caches,
)
from controller.adapters.vllm.process_setup import folder_of_sockets

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 60.0
"""How long a worker waits for the engine's process to connect."""
SWITCH_INTERVAL_S = 0.0005
"""How long a thread of a worker keeps the GIL while another one wants it. Python's 5 ms would
lengthen a copy by that for each layer, because the thread of the steps has the GIL most of the
time."""
_MAX_MESSAGE_BYTES = 1 << 16
_ORDER = struct.Struct("<qq")
"""The head of an order for a buffer: what to do, and after which step. The block ids follow, as
int64."""
_GATHER, _SCATTER = 0, 1
_DONE, _FAILED = b"+", b"-"
"""The first byte of an answer. A result or an error's text follows."""
_KEPT_EVENTS = 64
"""A copy that names an older step waits for the oldest of these steps."""


class _NewBuffer(msgspec.Struct, array_like=True, frozen=True, tag="buffer"):
    num_rows: int
    row_bytes: int
    starts: tuple[int, ...]
    gathered: tuple[bool, ...]


class _Draw(msgspec.Struct, array_like=True, frozen=True, tag="draw"):
    """Asks for the state of a random generator with this seed after so many tokens."""

    seed: int
    num_tokens: int


_message_decoder = msgspec.msgpack.Decoder(_NewBuffer | _Draw)


# -- in a worker -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What a worker says of its rank. `address`: where it listens. `problem`: why its blocks cannot
    be copied."""

    shards: tuple[LayerShard, ...] = ()
    address: str = ""
    problem: str = ""


class LaunchedSteps:
    """Counts the steps that a model runner has launched from now on."""

    def __init__(self, runner: Any) -> None:
        self._changed = threading.Condition()
        self._num_launched = 0
        self._num_waiting = 0
        self._device: torch.device = runner.device
        self._events: deque[torch.cuda.Event] = deque(maxlen=_KEPT_EVENTS)
        if self._device.type == "cuda":
            self._launched()
        execute = runner.execute_model

        def counted(*args: Any, **kwargs: Any) -> Any:
            try:
                return execute(*args, **kwargs)
            finally:
                self._launched(1)

        runner.execute_model = counted

    def wait_for(self, step: int) -> torch.cuda.Event | None:
        """Waits until the step was launched. Step 1 is the first one after this object was made.
        Returns an event that was recorded behind the step; None on a CPU, where a step that was
        launched has ended."""
        with self._changed:
            self._num_waiting += 1
            self._changed.wait_for(lambda: self._num_launched >= step)
            self._num_waiting -= 1
            if not self._events:
                return None
            num_after = min(self._num_launched - step, len(self._events) - 1)
            return self._events[-1 - num_after]

    def _launched(self, num: int = 0) -> None:
        event = None
        if self._device.type == "cuda":
            event = torch.cuda.current_stream(self._device).record_event()
        with self._changed:
            self._num_launched += num
            if event is not None:
                self._events.append(event)
            if self._num_waiting:
                self._changed.notify_all()


class CopyServer:
    """Serves the copies of one rank in threads of the worker's process. `address` is the path of
    the Unix socket on which the engine's process connects, once."""

    def __init__(
        self,
        runner: Any,
        num_blocks: int,
        address: str,
        drawn_generator: Callable[[int, int], bytes],
    ) -> None:
        self._runner = runner
        self._num_blocks = num_blocks
        self._drawn_generator = drawn_generator
        self._steps = LaunchedSteps(runner)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen(1)
        self._listener.settimeout(CONNECT_TIMEOUT_S)
        _in_thread(self._accept)

    def _accept(self) -> None:
        with self._listener:
            try:
                engine, _ = self._listener.accept()
            except TimeoutError:
                return
        with engine, contextlib.suppress(OSError):
            engine.settimeout(None)
            while True:
                data, descriptors, _flags, _ = socket.recv_fds(engine, _MAX_MESSAGE_BYTES, 2)
                if not data:
                    return
                message = _message_decoder.decode(data)
                orders = Connection(descriptors[0])
                if isinstance(message, _Draw):
                    _in_thread(self._draw, message, orders)
                else:
                    _in_thread(self._serve, message, orders, descriptors[1])

    def _draw(self, draw: _Draw, answer: Connection) -> None:
        with answer, contextlib.suppress(OSError):
            answer.send_bytes(_outcome(self._drawn_generator, draw.seed, draw.num_tokens))

    def _serve(self, new: _NewBuffer, orders: Connection, memfd: int) -> None:
        columns = Columns(new.row_bytes, new.starts, new.gathered)
        shard: _HostShard | _CudaShard | None = None
        buffer = torch.empty(0)

        def copy(order: bytes) -> bytes:
            nonlocal shard, buffer
            if shard is None:  # here, so that the engine hears of it if memory runs out
                memory = mmap.mmap(memfd, new.num_rows * new.row_bytes)
                rows = torch.frombuffer(memory, dtype=torch.uint8)
                buffer = rows.view(new.num_rows, new.row_bytes)
                shard = self._shard(columns, new.num_rows)
            return self._copy(shard, order, buffer)

        try:
            with orders, contextlib.suppress(EOFError, OSError):
                while True:
                    orders.send_bytes(_outcome(copy, orders.recv_bytes()))
        finally:
            os.close(memfd)

    def _copy(self, shard: "_HostShard | _CudaShard", order: bytes, buffer: torch.Tensor) -> bytes:
        kind, after_step = _ORDER.unpack_from(order)
        ids = np.frombuffer(order, dtype=np.int64, offset=_ORDER.size).copy()
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._num_blocks:
            raise ValueError("a block that does not exist")
        launched = self._steps.wait_for(after_step)
        copy = shard.gather if kind == _GATHER else shard.scatter
        copy(torch.from_numpy(ids), buffer[: len(ids)], launched)
        return b""

    def _shard(self, columns: Columns, num_rows: int) -> "_HostShard | _CudaShard":
        caches, device = caches_of(self._runner), self._runner.device
        if device.type == "cpu":
            return _HostShard(caches, self._num_blocks, columns)
        torch.cuda.set_device(device)  # of this thread
        return _CudaShard(caches, self._num_blocks, columns, device, num_rows)


def _in_thread(function: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=function, args=args, name="kv-copies", daemon=True).start()


def _outcome(function: Callable[..., bytes], *args: Any) -> bytes:
    try:
        return _DONE + function(*args)
    except Exception as error:
        log.exception("a rank could not do what its engine asked for")
        return _FAILED + repr(error).encode()


class _HostShard:
    """Copies between a rank's caches in main memory and a shared buffer."""

    def __init__(self, caches: Sequence[torch.Tensor], num_blocks: int, columns: Columns) -> None:
        self._rows = BlockRows(caches, num_blocks, columns)

    def gather(self, block_ids: torch.Tensor, rows: torch.Tensor, _launched: None) -> None:
        self._rows.gather(block_ids, rows.view(self._rows.dtype))

    def scatter(self, block_ids: torch.Tensor, rows: torch.Tensor, _launched: None) -> None:
        self._rows.scatter(block_ids, rows.view(self._rows.dtype))


class _CudaShard:
    """Copies between a rank's caches on a GPU and a shared buffer. The pinned memory between them
    has only the rank's own columns, side by side."""

    def __init__(
        self,
        caches: Sequence[torch.Tensor],
        num_blocks: int,
        columns: Columns,
        device: torch.device,
        num_rows: int,
    ) -> None:
        self._blocks = CudaBlocks(caches, num_blocks, device)
        self._staged = self._blocks.buffer(num_rows)
        self._columns: list[tuple[slice, slice, bool]] = []
        """The columns in pinned memory, those in the buffer, and whether they are gathered."""
        begin = 0
        for cache, start, gathered in zip(
            distinct_caches(caches), columns.starts, columns.gathered, strict=True
        ):
            size = cache.numel() // num_blocks * cache.itemsize
            here, there = slice(begin, begin + size), slice(start, start + size)
            self._columns.append((here, there, gathered))
            begin += size

    def gather(
        self, block_ids: torch.Tensor, rows: torch.Tensor, launched: torch.cuda.Event
    ) -> None:
        if not any(gathered for _, _, gathered in self._columns):
            return  # other ranks hold the same, as with latent attention
        self._blocks.order_after(launched)
        self._blocks.gather(block_ids.tolist(), self._staged)
        pinned = self._pinned(len(rows))
        for here, there, gathered in self._columns:
            if gathered:
                rows[:, there].copy_(pinned[:, here])

    def scatter(
        self, block_ids: torch.Tensor, rows: torch.Tensor, launched: torch.cuda.Event
    ) -> None:
        self._blocks.order_after(launched)
        pinned = self._pinned(len(rows))
        for here, there, _gathered in self._columns:
            pinned[:, here].copy_(rows[:, there])
        self._blocks.scatter(block_ids.tolist(), self._staged)

    def _pinned(self, num_rows: int) -> torch.Tensor:
        return self._staged.pinned[:num_rows].view(torch.uint8)


def serve_copies(worker: Any, folder: str, num_blocks: int) -> RankFacts:
    """Runs in each worker's process, between two steps. It does not raise errors: vLLM would leave
    the answers of other ranks in its queues."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    address = str(Path(folder, str(worker.rank)))
    try:
        shards = tuple(layer.shard for layer in worker_side.cached_layers(worker))
        CopyServer(
            worker.model_runner, num_blocks, address, partial(worker_side.drawn_generator, worker)
        )
    except FileNotFoundError:
        return RankFacts(problem="it runs on another machine, which has no such folder")
    except Exception as error:
        log.exception("the blocks of this rank cannot be copied")
        return RankFacts(problem=repr(error))
    return RankFacts(shards, address)


# -- in the engine's process -----------------------------------------------------------------------


class RanksApartError(Exception):
    """The blocks of the ranks cannot be copied, for example because a rank cannot be reached from
    the engine's process."""


class DispatchedSteps:
    """Counts the steps that an executor has dispatched from now on."""

    def __init__(self, executor: Any) -> None:
        self.num = 0
        execute = executor.execute_model

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.num += 1
            return execute(*args, **kwargs)

        executor.execute_model = counted


@dataclass(frozen=True, slots=True)
class SharedBuffer:
    memory: memoryview
    num_rows: int
    orders: tuple[Connection, ...]
    """To each rank. They close with the buffer, and then the ranks free their part."""


class RankBlocks:
    """The KvBlocks of an engine with several ranks. `ranks` are the connections to the ranks'
    `CopyServer`s, in the order of `shards`."""

    def __init__(
        self,
        ranks: Sequence[socket.socket],
        shards: Sequence[Sequence[LayerShard]],
        num_dispatched: Callable[[], int],
    ) -> None:
        self._ranks = tuple(ranks)
        try:
            self._columns = columns_of(shards)
        except ValueError as error:
            raise RanksApartError(str(error)) from error
        self._num_dispatched = num_dispatched
        self._after_step = 0
        self._lock = threading.Lock()
        self.block_bytes = self._columns[0].row_bytes

    def order_after_steps(self) -> None:
        """Makes later copies wait until the ranks have launched the steps dispatched so far."""
        self._after_step = self._num_dispatched()

    def buffer(self, num_blocks: int) -> SharedBuffer:
        num_bytes = num_blocks * self.block_bytes
        memfd = os.memfd_create("kv-blocks")
        try:
            os.ftruncate(memfd, num_bytes)
            memory = memoryview(mmap.mmap(memfd, num_bytes))
            orders = tuple(
                self._open(
                    rank,
                    _NewBuffer(num_blocks, columns.row_bytes, columns.starts, columns.gathered),
                    memfd,
                )
                for rank, columns in enumerate(self._columns)
            )
        finally:
            os.close(memfd)
        return SharedBuffer(memory, num_blocks, orders)

    def gather(self, block_ids: Sequence[int], into: SharedBuffer) -> memoryview:
        self._order(_GATHER, block_ids, into)
        return self.writable(into, len(block_ids))

    def scatter(self, block_ids: Sequence[int], buffer: SharedBuffer) -> None:
        self._order(_SCATTER, block_ids, buffer)

    def writable(self, buffer: SharedBuffer, num_blocks: int) -> memoryview:
        if num_blocks > buffer.num_rows:
            raise ValueError(f"{num_blocks} blocks in a buffer for {buffer.num_rows}")
        return buffer.memory[: num_blocks * self.block_bytes]

    def drawn_generator(self, seed: int, num_tokens: int) -> bytes:
        """The state of a generator after so many tokens, which is the same in each rank. Any thread
        may call this, and it may take long."""
        with self._open(0, _Draw(seed, num_tokens)) as answer:
            return _result(0, answer)

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()

    def _open(self, rank: int, message: Any, *descriptors: int) -> Connection:
        """Opens a connection of its own to a thread of the rank."""
        ours, theirs = socket.socketpair()
        with theirs:
            orders = Connection(ours.detach())
            data = msgspec.msgpack.encode(message)
            try:
                with self._lock:
                    socket.send_fds(self._ranks[rank], [data], [theirs.fileno(), *descriptors])
            except OSError as error:
                raise _gone(rank) from error
        return orders

    def _order(self, kind: int, block_ids: Sequence[int], buffer: SharedBuffer) -> None:
        """Lets all ranks copy, and waits until none of them touches the blocks any more."""
        self.writable(buffer, len(block_ids))
        order = _ORDER.pack(kind, self._after_step) + np.array(block_ids, dtype=np.int64).tobytes()
        errors = []
        asked = []
        for rank, orders in enumerate(buffer.orders):
            try:
                orders.send_bytes(order)
                asked.append((rank, orders))
            except OSError:
                errors.append(_gone(rank))
        for rank, orders in asked:
            try:
                _result(rank, orders)
            except RuntimeError as error:
                errors.append(error)
        if errors:
            raise errors[0]


def connect_ranks(executor: Any, num_blocks: int) -> RankBlocks:
    """Lets the workers of an executor serve copies. Must be called between two steps. Raises
    RanksApartError if their blocks cannot be copied."""
    with folder_of_sockets() as folder, contextlib.ExitStack() as on_error:
        facts: list[RankFacts] = executor.collective_rpc(serve_copies, args=(folder, num_blocks))
        steps = DispatchedSteps(executor)
        ranks: list[socket.socket] = []
        for rank, said in enumerate(facts):
            if said.problem:
                raise RanksApartError(f"rank {rank}: {said.problem}")
            ranks.append(on_error.enter_context(_connected(rank, said.address)))
        blocks = RankBlocks(ranks, [said.shards for said in facts], lambda: steps.num)
        on_error.pop_all()
        return blocks


def _connected(rank: int, address: str) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        found.connect(address)
    except OSError as error:
        found.close()
        raise RanksApartError(f"rank {rank} is not in reach of the engine's process") from error
    return found


def _result(rank: int, answers: Connection) -> bytes:
    try:
        answer = answers.recv_bytes()
    except (EOFError, OSError) as error:
        raise _gone(rank) from error
    if answer[:1] == _FAILED:
        raise RuntimeError(f"rank {rank}: {answer[1:].decode()}")
    return answer[1:]


def _gone(rank: int) -> RuntimeError:
    return RuntimeError(f"the process of rank {rank} is gone")
