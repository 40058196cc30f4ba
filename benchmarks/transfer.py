"""The throughput of one link between two processes of this machine, by the size of a slice.

Each side has blocks of the embedded model's size in main memory (128 KiB; `HostBlocks`, as in
vLLM's engine) and does nothing else. A round copies one stage of `--blocks` blocks, and one stage
of a single block, as a last stage may have. `gather` and `scatter` are shares of the wall time of
the big stage; they overlap with sending, and with each other.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from rich import box
from rich.table import Table

from benchmarks import results
from controller.adapters.tcp.transfer import TcpKvTransfer
from controller.adapters.vllm.kv_blocks import HostBlocks
from controller.ports.engine import Peer, StageCopy

KIB = 1 << 10
NUM_LAYERS = 4
BLOCK_BYTES = 128 * KIB
SLICES_KIB = (128, 256, 512, 1024, 2048, 4096, 8192)
PEERS = (Peer("source", 1, ""), Peer("destination", 1, ""))

Figures = dict[str, float]


class TimedBlocks(HostBlocks):
    """Measures the time of its copies."""

    def __init__(self, num_blocks: int) -> None:
        row = BLOCK_BYTES // NUM_LAYERS // 4
        super().__init__([torch.rand(num_blocks, row) for _ in range(NUM_LAYERS)], num_blocks)
        self.copy_time_s = 0.0

    def gather(self, block_ids: Sequence[int], into: torch.Tensor) -> memoryview:
        began_s = time.perf_counter()
        filled = super().gather(block_ids, into)
        self.copy_time_s += time.perf_counter() - began_s
        return filled

    def scatter(self, block_ids: Sequence[int], buffer: torch.Tensor) -> None:
        began_s = time.perf_counter()
        super().scatter(block_ids, buffer)
        self.copy_time_s += time.perf_counter() - began_s


class Side:
    """One end of the link: its transfer, and a pipe for messages to the other end."""

    def __init__(self, rank: int, pipe: Connection, num_blocks: int, slice_bytes: int) -> None:
        torch.set_num_threads(1)
        self.other = PEERS[1 - rank]
        self.blocks = TimedBlocks(num_blocks)
        self.transfer = TcpKvTransfer(lambda: PEERS[rank], "127.0.0.1", slice_bytes)
        self.transfer.start(self.blocks, self.tell)
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.on_ask: Callable[[str, int], None] = lambda stage_id, num_blocks: None
        self.left_alone = asyncio.Event()
        self._pipe = pipe
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._read)

    def say(self, kind: str, *content: Any) -> None:
        self._pipe.send((kind, *content))

    def _read(self) -> None:
        try:
            while self._pipe.poll():
                self._hear(*self._pipe.recv())
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self.left_alone.set()
            self.answers.put_nowait(None)

    async def answer(self) -> Any:
        found = await self.answers.get()
        if self.left_alone.is_set():
            raise SystemExit("the other process has ended")
        if isinstance(found, SystemExit):
            raise found
        return found

    def _hear(self, kind: str, *content: Any) -> None:
        match kind, *content:
            case ("told", frames):
                self.transfer.told(self.other, frames)
            case ("ask", stage_id, num_blocks):
                self.on_ask(stage_id, num_blocks)
            case ("failed", why):
                self.answers.put_nowait(SystemExit(f"a copy failed: {why}"))
            case (_, answer):
                self.answers.put_nowait(answer)

    def tell(self, _: Peer, frames: Sequence[Any]) -> None:
        with contextlib.suppress(OSError):  # the other side has ended
            self.say("told", list(frames))

    async def close(self) -> None:
        await self.transfer.close()
        asyncio.get_running_loop().remove_reader(self._pipe.fileno())


def main() -> int:
    options = _options()
    measured: dict[str, list[Figures]] = {}
    for size_kib in options.slices:
        measured[f"{size_kib} KiB"] = _measure(size_kib * KIB, options.blocks, options.rounds)
    medians = {
        name: {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        for name, rounds in measured.items()
    }
    console = results.make_console()
    console.print(_table(medians, measured, options.blocks))
    figures = {"num_blocks": options.blocks, "medians": medians, "rounds": measured}
    console.print(f"written to {results.write('transfer', figures)}")
    return 0


def _measure(slice_bytes: int, num_blocks: int, rounds: int) -> list[Figures]:
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_receive_all, args=(there, num_blocks, slice_bytes))
    process.start()
    there.close()
    try:
        return asyncio.run(_send_all(here, num_blocks, slice_bytes, rounds))
    finally:
        here.close()
        process.join(20)
        process.kill()


async def _send_all(
    pipe: Connection, num_blocks: int, slice_bytes: int, rounds: int
) -> list[Figures]:
    side = Side(0, pipe, num_blocks, slice_bytes)
    try:
        await side.answer()  # the other side is ready
        side.transfer.warm_up(side.other)
        await _copy(side, "warm-up", num_blocks)
        return [await _round(side, n, num_blocks) for n in range(rounds)]
    finally:
        await side.close()


async def _round(side: Side, number: int, num_blocks: int) -> Figures:
    whole_s, gather_s, scatter_s = await _copy(side, f"{number}/all", num_blocks)
    one_s, _, _ = await _copy(side, f"{number}/one", 1)
    return {
        "mb_per_s": num_blocks * BLOCK_BYTES / whole_s / 1e6,
        "copy_ms": whole_s * 1e3,
        "gather_share": gather_s / whole_s,
        "scatter_share": scatter_s / whole_s,
        "one_block_ms": one_s * 1e3,
    }


async def _copy(side: Side, stage_id: str, num_blocks: int) -> tuple[float, float, float]:
    """Seconds until the other side said that it has everything, and those of gathering and
    scattering."""
    side.say("ask", stage_id, num_blocks)
    await side.answer()  # the other side expects the stage
    side.blocks.copy_time_s = 0.0
    began_s = time.perf_counter()
    await side.transfer.send(side.other, stage_id, range(num_blocks))
    scatter_s = await side.answer()
    return time.perf_counter() - began_s, side.blocks.copy_time_s, scatter_s


def _receive_all(pipe: Connection, num_blocks: int, slice_bytes: int) -> None:
    asyncio.run(_serve(pipe, num_blocks, slice_bytes))


async def _serve(pipe: Connection, num_blocks: int, slice_bytes: int) -> None:
    side = Side(1, pipe, num_blocks, slice_bytes)

    def over(copy: "asyncio.Future[StageCopy]") -> None:
        if (error := copy.exception()) is not None:
            side.say("failed", str(error))
        else:
            side.say("received", side.blocks.copy_time_s)

    def expect(stage_id: str, num_blocks: int) -> None:
        side.blocks.copy_time_s = 0.0
        copy = side.transfer.receive(side.other, stage_id, range(num_blocks))
        copy.add_done_callback(over)
        side.say("expecting", stage_id)

    side.on_ask = expect
    side.say("ready", "")
    await side.left_alone.wait()
    await side.close()


def _table(medians: dict[str, Figures], rounds: dict[str, list[Figures]], num_blocks: int) -> Table:
    title = f"one link, {num_blocks} blocks of 128 KiB, medians of the rounds"
    table = Table(title=title, box=box.SIMPLE)
    table.add_column("slice")
    for column in ("MB/s", "(range)", "gather", "scatter", "all, ms", "one block, ms"):
        table.add_column(column, justify="right")
    for name, found in medians.items():
        table.add_row(
            name,
            f"{found['mb_per_s']:.0f}",
            results.spread([one["mb_per_s"] for one in rounds[name]], ".0f"),
            f"{found['gather_share']:.0%}",
            f"{found['scatter_share']:.0%}",
            f"{found['copy_ms']:.1f}",
            f"{found['one_block_ms']:.2f}",
        )
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=235, help="of 128 KiB; 235: 7,500 tokens")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--slices", type=int, nargs="+", default=SLICES_KIB, help="in KiB")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
