"""The process of the engine that is measured: it makes the engine as an instance does, measures its
steps and its KV link, and sends the results.

`python -P -m controller.main.profile.engine_process DESCRIPTOR` reads its task, a line of JSON,
from stdin, and writes a line of JSON for each message to the descriptor. stdin stays open as long
as the parent lives. When stdin ends, this process ends, whatever it does.

Steps are measured at the points of a grid. Every round goes through the whole grid, so that other
work on the machine affects all points alike. The value of a point is the median over the rounds. A
batch grows from one request to as many as fit, and its decode steps are timed at each size. The
steps in which the batch grows are the mixed steps, if all new prompts fit into one step. No mixed
steps can be measured with an engine that launches a step before the last one has ended: a call of
`step` then covers parts of two steps. (On an H100 such a call took 2.7 ms for a prompt of 64 tokens
together with a decode that takes 6 ms alone.)

The KV link is measured with stages, as a move copies them, to another process on this machine. The
source gathers blocks of the engine, all of them free. The other process only has blocks in main
memory. Within one process a copy was a fifth faster (1.5 GB/s instead of 1.2), and one block took
half as long, because no other process had to be woken. Of the rounds, the fastest counts: several
threads wait for each other here, so a wait for a core cannot be told from a copy."""

import asyncio
import contextlib
import gc
import itertools
import multiprocessing
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, repeat, takewhile
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from controller.adapters.tcp.transfer import TcpKvTransfer
from controller.core.load.snapshot import blocks_for
from controller.main.profile.points import (
    Done,
    EngineSizes,
    Failed,
    LinkFigures,
    Measured,
    Message,
    NoLink,
    Point,
    Said,
    Step,
    StepPoints,
    Task,
)
from controller.ports.engine import Engine, Frames, KvBlocks, Peer, TransferError

if TYPE_CHECKING:
    from controller.adapters.vllm.engine import VllmEngine

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Linux's account of a thread has three numbers: nanoseconds on a core, nanoseconds of waiting for
a core, and a count."""
MAX_SCHEDSTAT_BYTES = 128
SHORTEST = 64
"""The number of tokens in the shortest prompt, unless the engine takes no long prompts."""
CONTEXT_FACTOR = 8
STEPS_PER_RUNG = 7
"""How many decode steps are timed at one size of the batch. The number is odd, so that the median
is the time of one of them."""

Report = Callable[[str], None]
Rung = tuple[int, int]
"""A size of the batch: the number of tokens in each prompt, and the number of requests."""
MakeRequest = Callable[[str, int, int], Frames]
"""Encodes a request: its id, its number of prompt tokens, and its largest number of outputs."""

HOST = "127.0.0.1"
SOURCE, DESTINATION = Peer("source", 1, ""), Peer("destination", 1, "")
TOLD, READY, EXPECT, EXPECTING = "told", "ready", "expect", "expecting"
RECEIVED, FAILED = "received", "failed"
STAGE_BYTES = 32 << 20
"""The size of a stage. With the embedded model such a stage has some 8,000 tokens; with a large
model it is like one of a move's last stages."""
NUM_LINK_ROUNDS = 10
START_TIMEOUT_S = 120.0
"""The other process has to import torch in this time."""
COPY_TIMEOUT_S = 60.0
END_TIMEOUT_S = 20.0


def main(descriptor: int) -> None:
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=Task)
    threading.Thread(target=end_with_parent, daemon=True).start()

    def send(message: Message) -> None:
        os.write(descriptor, msgspec.json.encode(message) + b"\n")

    doing = "the engine could not start"
    try:
        from controller.adapters.vllm.engine import TrialRequests, VllmEngine

        engine = VllmEngine(task.engine_args, lambda text: send(Said(text)))
        gc.freeze()  # an instance does the same
        sizes = sizes_of(engine)
        if task.with_link and not sizes.kv_block_bytes:
            send(NoLink())
            return
        doing = "the engine could not be measured"
        requests = TrialRequests(engine.vocab_size)
        clock = CoreClock()
        with DrivenEngine(engine, requests, task.status_interval_s, clock) as driven:
            points = measure(
                driven, sizes, grid_of(sizes), task.num_rounds, lambda text: send(Said(text))
            )
        waited_ratio = clock.waited_ratio
        link = None
        if task.with_link:
            send(Said("copying over the KV link"))
            link = measure_link(engine.moves.blocks, sizes.num_total_blocks)
        send(Done(Measured(sizes, points, link, waited_ratio)))
        engine.shutdown()
    except Exception as error:
        send(Failed(doing, f"{type(error).__name__}: {error}"))
        raise


def sizes_of(engine: "VllmEngine") -> EngineSizes:
    """The sizes of an engine that has no requests."""
    found = engine.snapshot("profile", 1)
    return EngineSizes(
        block_size=found.block_size,
        num_total_blocks=found.num_total_blocks,
        watermark_blocks=found.watermark_blocks,
        max_num_running=engine.max_num_running,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_chunk_tokens=engine.max_chunk_tokens,
        max_model_len=engine.max_model_len,
        kv_block_bytes=engine.moves.blocks.block_bytes,
    )


def end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1 << 10):
        pass
    os._exit(1)


class UnexpectedError(RuntimeError):
    """The engine did not do what was expected; the message says what it did."""


@dataclass(frozen=True, slots=True)
class TakenStep:
    time_s: float
    work: Step
    """The work of the step, as far as its outputs show it. A prompt counts as a whole in the step
    that ends it; earlier chunks do not count."""


class DrivenEngine:
    """An engine whose steps are timed. It gets requests and makes steps as in an instance.

    A step lasts from the end of the step before it to its own end. So its time includes what an
    instance does on the engine's thread between two steps, while another thread encodes outputs.
    Nothing is sent anywhere.

    `status_interval_s`: how often an instance goes through its requests for a status. `clock` is in
    seconds."""

    def __init__(
        self,
        engine: Engine,
        make_request: MakeRequest,
        status_interval_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._make = make_request
        self._status_interval_s = status_interval_s
        self._clock = clock
        self._ids = map("profile-{}".format, itertools.count())
        self._prompts: dict[str, int] = {}
        self._num_emitted: dict[str, int] = {}
        self._since_s = self._looked_s = clock()
        self._encoding = ThreadPoolExecutor(1)
        engine.take_events()  # drops events of earlier use

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._encoding.shutdown()

    @property
    def contexts(self) -> list[int]:
        """The number of tokens of each request that decodes."""
        return [self._prompts[each] + n for each, n in self._num_emitted.items() if n]

    @property
    def num_pending(self) -> int:
        """How many requests have no token yet."""
        return sum(not n for n in self._num_emitted.values())

    def add(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Adds a request. The next step counts from now."""
        request_id = next(self._ids)
        frames = self._make(request_id, num_prompt_tokens, max_tokens)
        prepared = self._engine.prepare(frames, 0)
        self._engine.add(prepared)
        self._prompts[request_id] = num_prompt_tokens
        self._num_emitted[request_id] = 0
        self._since_s = self._clock()

    def step(self) -> TakenStep:
        """Runs one step. Raises UnexpectedError if a request was evicted or failed, or if nothing
        is left to do."""
        if not self._engine.has_work():
            raise UnexpectedError("the engine has lost a request")
        outputs = self._engine.step()
        for event in self._engine.take_events():
            if event.kind == "evicted":
                raise UnexpectedError("the engine evicted a request")
        prefill: list[tuple[int, int]] = []
        num_decoding = num_context_tokens = 0
        for output in outputs:
            self._encoding.submit(self._engine.encode, output.body)
            for emitted in output.emitted:
                prompt = self._prompts[emitted.request_id]
                if num_before := self._num_emitted[emitted.request_id]:
                    num_decoding += 1
                    num_context_tokens += prompt + num_before
                else:
                    prefill.append((prompt, 0))
                self._num_emitted[emitted.request_id] += emitted.num_tokens
                if emitted.finish_reason not in (None, "length"):
                    raise UnexpectedError(f"a request ended by {emitted.finish_reason}")
                if emitted.finish_reason:
                    self._forget(emitted.request_id)
        self._look()
        now_s = self._clock()
        took_s, self._since_s = now_s - self._since_s, now_s
        return TakenStep(took_s, Step(tuple(prefill), num_decoding, num_context_tokens))

    def clear(self) -> None:
        """Ends all requests, and everything that the engine has begun for them."""
        self._engine.abort(list(self._prompts))
        for request_id in list(self._prompts):
            self._forget(request_id)
        while self._engine.has_work():
            self._engine.step()
        self._engine.take_events()

    def _forget(self, request_id: str) -> None:
        del self._prompts[request_id], self._num_emitted[request_id]

    def _look(self) -> None:
        now_s = self._clock()
        if now_s - self._looked_s >= self._status_interval_s:
            self._looked_s = now_s
            self._engine.snapshot("profile", 1)


class CoreClock:
    """A clock that stops while its thread waits for a core that other processes use. It must be
    made and called on one thread.

    Such waits are caused by other work on the machine, not by the engine. On two cores with a load
    of 12 the embedded model's steps took five times as long by the wall clock, and a fit of its
    decode steps was off by 15% in the median; without the waits it was off by 2.5%. On a quiet
    machine, and if Linux's account is missing, this is the wall clock. The clock does not notice
    waits of other threads for which the engine's thread waits (OMP_NUM_THREADS above 1)."""

    def __init__(self) -> None:
        self._file: int | None = None
        if SCHEDSTAT.exists():
            self._file = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        self._began_s, self._began_waited_s = time.perf_counter(), self._waited_s()

    def __call__(self) -> float:
        waited_s = self._waited_s()
        while True:
            now_s, before_s = time.perf_counter(), waited_s
            waited_s = self._waited_s()
            if waited_s == before_s:
                return now_s - waited_s
            # A wait between the two readings would be in only one of them. On a busy machine this
            # gave steps of negative length.

    @property
    def waited_ratio(self) -> float:
        """The part of the time since this clock was made that was spent waiting."""
        waited_s = self._waited_s() - self._began_waited_s
        return waited_s / (time.perf_counter() - self._began_s)

    def _waited_s(self) -> float:
        if self._file is None:
            return 0.0
        return int(os.pread(self._file, MAX_SCHEDSTAT_BYTES, 0).split()[1]) / 1e9


@dataclass(frozen=True, slots=True)
class Grid:
    lengths: tuple[int, ...]
    """The lengths of single prompts."""
    contexts: tuple[int, ...]
    """The lengths of prompts in the batches that grow and decode."""


def measure(
    engine: DrivenEngine, sizes: EngineSizes, grid: Grid, num_rounds: int, report: Report
) -> StepPoints:
    """The times of steps at all points of the grid. Raises UnexpectedError."""
    prefill: dict[int, list[float]] = defaultdict(list)
    decode: dict[Rung, list[TakenStep]] = defaultdict(list)
    mixed: dict[Rung, list[TakenStep]] = defaultdict(list)
    report("warming up")
    _prefill_s(engine, grid.lengths[-1])
    launches_ahead = _launches_ahead(engine, sizes, grid.lengths[0])
    for number in range(1, num_rounds + 1):
        report(f"round {number} of {num_rounds}: prompts of up to {grid.lengths[-1]:,} tokens")
        for num_tokens in grid.lengths:
            prefill[num_tokens].append(_prefill_s(engine, num_tokens))
        for context in grid.contexts:
            report(f"round {number} of {num_rounds}: batches of prompts of {context:,} tokens")
            _grow(engine, sizes, context, decode, mixed)
    return StepPoints(
        tuple(
            Point(
                tuple(Step((chunk,)) for chunk in chunks_of(n, sizes.max_chunk_tokens)),
                median(times),
            )
            for n, times in prefill.items()
        ),
        tuple(_point(steps) for steps in decode.values()),
        () if launches_ahead else tuple(_point(steps) for steps in mixed.values()),
        round(fmean(map(_excess, decode.values())), 4) if decode else 0.0,
    )


def _launches_ahead(engine: DrivenEngine, sizes: EngineSizes, num_tokens: int) -> bool:
    """Whether the engine launches steps ahead: a prompt's token then comes with a later call of
    `step` than the call that computes the end of the prompt."""
    engine.add(num_tokens, 1)
    num_steps = 0
    while engine.num_pending:
        engine.step()
        num_steps += 1
    engine.clear()
    return num_steps > len(chunks_of(num_tokens, sizes.max_chunk_tokens))


def _prefill_s(engine: DrivenEngine, num_tokens: int) -> float:
    """The seconds from a prompt's admission to its token, on an engine that has nothing else to
    do."""
    engine.add(num_tokens, 1)
    took_s = 0.0
    while engine.num_pending:
        took_s += engine.step().time_s
    engine.clear()
    return took_s


def _grow(
    engine: DrivenEngine,
    sizes: EngineSizes,
    prompt: int,
    decode: dict[Rung, list[TakenStep]],
    mixed: dict[Rung, list[TakenStep]],
) -> None:
    """Lets a batch grow, and adds the measured steps to `decode` and `mixed`. The tokens that are
    decoded meanwhile make the contexts a little longer."""
    wanted = 1
    while (size := next_batch(sizes, engine.contexts, prompt, wanted)) is not None:
        num_before = len(engine.contexts)
        num_new = size - num_before
        for _ in range(num_new):
            engine.add(prompt, sizes.max_model_len - prompt)
        while engine.num_pending:
            step = engine.step()
            if _is_mixed(step, num_before, num_new, prompt, sizes):
                mixed[prompt, size].append(step)
        for _ in range(STEPS_PER_RUNG):
            step = engine.step()
            if step.work.num_decoding != size:
                raise UnexpectedError(f"{step.work.num_decoding} of {size} requests decoded")
            decode[prompt, size].append(step)
        wanted = size * 2
    engine.clear()


def _is_mixed(
    step: TakenStep, num_before: int, num_new: int, prompt: int, sizes: EngineSizes
) -> bool:
    """Whether this step computed all new prompts as a whole, and also decoded the other
    requests."""
    in_one_step = num_new * prompt + num_before <= sizes.max_num_batched_tokens
    whole = in_one_step and prompt <= sizes.max_chunk_tokens
    work = step.work
    return whole and len(work.prefill) == num_new and 0 < work.num_decoding == num_before


def _excess(steps: list[TakenStep]) -> float:
    times_s = [step.time_s for step in steps]
    return fmean(times_s) / median(times_s) - 1


def _point(steps: list[TakenStep]) -> Point:
    """One point for many steps of the same batch. Its context grows evenly, so the median of the
    contexts belongs to the median of the times."""
    first = steps[0].work
    context = round(median(step.work.num_context_tokens for step in steps))
    work = Step(first.prefill, first.num_decoding, context)
    return Point((work,), median(step.time_s for step in steps))


def grid_of(sizes: EngineSizes) -> Grid:
    """The grid for these sizes. The lengths begin with SHORTEST and double up to the longest that
    fits. The contexts of batches grow eightfold, up to half of the longest length."""
    longest = min(sizes.max_model_len - 1, _room_blocks(sizes) * sizes.block_size - 1)
    shortest = SHORTEST
    while shortest > 1 and shortest * 2 * CONTEXT_FACTOR > longest:
        shortest //= 2
    lengths = _grown(shortest, 2, longest)
    if not lengths or longest > lengths[-1]:
        lengths = (*lengths, longest)
    return Grid(lengths, _grown(shortest, CONTEXT_FACTOR, (longest + 1) // 2 + 1))


def next_batch(sizes: EngineSizes, contexts: Sequence[int], prompt: int, wanted: int) -> int | None:
    """The next size of the batch: `wanted`, or as many requests as fit with all tokens that they
    will have when their steps have been timed. None if no further request fits. `contexts`: the
    tokens of each request that decodes now."""
    for size in range(min(wanted, sizes.max_num_running), len(contexts), -1):
        num_new = size - len(contexts)
        budget = max(1, sizes.max_num_batched_tokens - len(contexts))
        num_steps = -(-num_new * prompt // budget) + STEPS_PER_RUNG + 2
        tokens = [*(n + num_steps for n in contexts), *repeat(prompt + num_steps, num_new)]
        blocks = sum(blocks_for(n, sizes.block_size) for n in tokens)
        if max(tokens) < sizes.max_model_len and blocks <= _room_blocks(sizes):
            return size
    return None


def chunks_of(num_tokens: int, max_chunk_tokens: int) -> tuple[tuple[int, int], ...]:
    """The chunks of a prompt that is computed alone: for each step, the tokens in it and the tokens
    before it."""
    return tuple(
        (min(max_chunk_tokens, num_tokens - before), before)
        for before in range(0, num_tokens, max_chunk_tokens)
    )


def _grown(first: int, factor: int, below: int) -> tuple[int, ...]:
    powers = accumulate(repeat(factor, 64), lambda n, by: n * by, initial=first)
    return tuple(takewhile(lambda n: n < below, powers))


def _room_blocks(sizes: EngineSizes) -> int:
    return sizes.num_total_blocks - sizes.watermark_blocks


def measure_link(blocks: KvBlocks, num_blocks: int) -> LinkFigures:
    """Measures the KV link. `num_blocks`: the engine's blocks without the first one, which vLLM
    keeps empty. Raises TransferError."""
    num_copied = max(1, min(STAGE_BYTES // blocks.block_bytes, num_blocks))
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=receive_all, args=(there, blocks.block_bytes, num_copied), daemon=True
    )
    process.start()
    there.close()
    try:
        return asyncio.run(_measure(here, blocks, num_copied))
    finally:
        here.close()
        process.join(END_TIMEOUT_S)
        process.kill()


async def _measure(pipe: Connection, blocks: KvBlocks, num_copied: int) -> LinkFigures:
    end = LinkEnd(SOURCE, DESTINATION, pipe, blocks)
    try:
        await end.hear(START_TIMEOUT_S)  # the other process is ready
        await _copy(end, "warm-up", num_copied)
        stages, single = [], []
        for number in range(NUM_LINK_ROUNDS):
            stages.append(await _copy(end, f"{number}/all", num_copied))
            single.append(await _copy(end, f"{number}/one", 1))
    finally:
        await end.close()
    return LinkFigures(num_copied * blocks.block_bytes, min(stages), min(single))


async def _copy(end: "LinkEnd", stage_id: str, num_blocks: int) -> float:
    """The seconds until the other process says that it has the whole stage."""
    end.say(EXPECT, (stage_id, num_blocks))
    await end.hear(COPY_TIMEOUT_S)  # the other process expects the stage
    began_s = time.perf_counter()
    await end.transfer.send(DESTINATION, stage_id, range(1, num_blocks + 1))
    kind, why = await end.hear(COPY_TIMEOUT_S)
    if kind == FAILED:
        raise TransferError(f"the other process did not get a stage: {why}")
    return time.perf_counter() - began_s


class LinkEnd:
    """One end of a link between two processes. It is made and closed on an event loop.

    Messages of the kind TOLD belong to the transfer itself; instances send them by their mailboxes.
    `hear` returns all other messages."""

    def __init__(self, me: Peer, other: Peer, pipe: Connection, blocks: KvBlocks) -> None:
        self.transfer = TcpKvTransfer(lambda: me, HOST)
        self.transfer.start(blocks, self._tell)
        self._other = other
        self._pipe = pipe
        self._heard: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._read)

    def say(self, kind: str, content: Any = None) -> None:
        with contextlib.suppress(OSError):  # the other end is gone; `hear` will report it
            self._pipe.send((kind, content))

    async def hear(self, timeout_s: float | None = None) -> tuple[str, Any]:
        """The next message. Raises TransferError if the other end is gone, or has sent nothing for
        `timeout_s`."""
        try:
            found = await asyncio.wait_for(self._heard.get(), timeout_s)
        except TimeoutError:
            raise TransferError(f"nothing came from the other end in {timeout_s:.0f} s") from None
        if found is None:
            raise TransferError("the process at the other end is gone")
        return found

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe.fileno())
        await self.transfer.close()

    def _tell(self, _: Peer, frames: Sequence[Any]) -> None:
        self.say(TOLD, [bytes(frame) for frame in frames])

    def _read(self) -> None:
        try:
            while self._pipe.poll():
                kind, content = self._pipe.recv()
                if kind == TOLD:
                    self.transfer.told(self._other, content)
                else:
                    self._heard.put_nowait((kind, content))
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._heard.put_nowait(None)


def receive_all(pipe: Connection, block_bytes: int, num_blocks: int) -> None:
    """Runs in the process at the destination: receives each stage that the source announces, until
    the source is gone."""
    from controller.adapters.vllm.kv_blocks import spare_blocks

    asyncio.run(_receive_all(pipe, spare_blocks(block_bytes, num_blocks)))


async def _receive_all(pipe: Connection, blocks: KvBlocks) -> None:
    end = LinkEnd(DESTINATION, SOURCE, pipe, blocks)
    end.say(READY)
    with contextlib.suppress(TransferError):
        while True:
            _, (stage_id, num_blocks) = await end.hear()
            copy = end.transfer.receive(SOURCE, stage_id, range(num_blocks))
            end.say(EXPECTING)
            try:
                await copy
            except TransferError as error:
                end.say(FAILED, str(error))
            else:
                end.say(RECEIVED)
    await end.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
