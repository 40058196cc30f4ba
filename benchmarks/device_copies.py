"""What moves cost on a GPU: copies of KV blocks, alone and beside steps.

Blocks have the size of LLaMA-7B's (16 tokens, 32 layers of 32 heads, 16 bits: 8 MiB) in caches like
those of vLLM's FlashAttention. The first table has the speed of gather and scatter in CudaBlocks by
the number of blocks, beside a plain copy of as many bytes from and to pinned memory, which is the
limit of the bus. The second one shows how much longer a step of matrix products (about as long as a
decode step of that model) takes while another thread gathers or scatters without a pause.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from rich import box
from rich.table import Table

from benchmarks import results
from controller.adapters.vllm.kv_blocks import CudaBlocks

NUM_LAYERS, HEADS, HEAD_SIZE, BLOCK_TOKENS = 32, 32, 128, 16
HIDDEN, FEED_FORWARD, BATCH = 4096, 11008, 32
SIZES = (1, 4, 16, 64, 256)
ROUNDS = 15
NUM_STEPS = 60
DEVICE = torch.device("cuda", 0)


def main() -> int:
    options = _options()
    if not torch.cuda.is_available():
        print("no GPU here", file=sys.stderr)
        return 1
    shape = (options.blocks, 2, BLOCK_TOKENS, HEADS, HEAD_SIZE)
    caches = [torch.randn(shape, dtype=torch.bfloat16, device=DEVICE) for _ in range(NUM_LAYERS)]
    blocks = CudaBlocks(caches, options.blocks, DEVICE)
    blocks.order_after_steps()
    copies = [_copies(blocks, size, options.blocks) for size in SIZES]
    steps = _steps(blocks, options.blocks)
    console = results.make_console()
    console.print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    console.print(_copy_table(copies))
    console.print(_step_table(steps))
    figures = {"gpu": torch.cuda.get_device_name(0), "copies": copies, "steps": steps}
    console.print(f"written to {results.write('device-copies', figures)}")
    return 0


def _copies(blocks: CudaBlocks, size: int, num_blocks: int) -> dict[str, Any]:
    """Median speeds in MB/s."""
    ids = _scattered(size, num_blocks)
    buffer = blocks.buffer(size)
    plain = torch.empty_like(buffer.on_device)

    def to_host() -> None:
        buffer.pinned.copy_(plain, non_blocking=True)
        torch.cuda.synchronize()

    def to_device() -> None:
        plain.copy_(buffer.pinned, non_blocking=True)
        torch.cuda.synchronize()

    num_bytes = size * blocks.block_bytes
    return {"num_blocks": size, "num_bytes": num_bytes} | {
        name: num_bytes / _median_s(copy) / 1e6
        for name, copy in (
            ("gather", lambda: blocks.gather(ids, buffer)),
            ("scatter", lambda: blocks.scatter(ids, buffer)),
            ("plain to host", to_host),
            ("plain to device", to_device),
        )
    }


def _steps(blocks: CudaBlocks, num_blocks: int) -> list[dict[str, Any]]:
    """Step times alone and beside copies of 4 and of 64 blocks, in turn."""
    step = _step()
    found = []
    for size in (4, 64):
        ids, buffer = _scattered(size, num_blocks), blocks.buffer(size)
        for kind, copy in (
            ("gather", lambda: blocks.gather(ids, buffer)),  # noqa: B023 - used in this round
            ("scatter", lambda: blocks.scatter(ids, buffer)),  # noqa: B023 - used in this round
        ):
            alone = _step_times(step, blocks)
            beside, num_copies, taken_s = _beside(lambda: _step_times(step, blocks), copy)
            again = _step_times(step, blocks)
            quiet_s = statistics.median(alone + again)
            found.append(
                {
                    "kind": kind,
                    "num_blocks": size,
                    "alone_s": quiet_s,
                    "beside_s": statistics.median(beside),
                    "slower": statistics.median(beside) / quiet_s - 1,
                    "mb_per_s": num_copies * size * blocks.block_bytes / taken_s / 1e6,
                }
            )
    return found


def _step() -> Callable[[], None]:
    """The matrix products of a decode step: 13 GB of weights are read."""
    weights = [
        torch.randn(shape, dtype=torch.bfloat16, device=DEVICE)
        for _ in range(NUM_LAYERS)
        for shape in ((HIDDEN, 4 * HIDDEN), (HIDDEN, 2 * FEED_FORWARD), (HIDDEN, FEED_FORWARD))
    ]
    x = torch.randn(BATCH, HIDDEN, dtype=torch.bfloat16, device=DEVICE)
    torch.matmul(x, weights[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            torch.matmul(x, weight)

    def replay() -> None:
        graph.replay()

    return replay


def _step_times(step: Callable[[], None], blocks: CudaBlocks) -> list[float]:
    """Runs steps as an engine's loop does: it waits for each."""
    taken = []
    for _ in range(NUM_STEPS):
        began_s = time.perf_counter()
        step()
        blocks.order_after_steps()
        torch.cuda.current_stream().synchronize()
        taken.append(time.perf_counter() - began_s)
    return taken


def _beside(
    steps: Callable[[], list[float]], copy: Callable[[], Any]
) -> tuple[list[float], int, float]:
    """Returns the times of the steps, the number of copies beside them, and their total time in
    seconds."""
    over = threading.Event()
    num_copies = 0

    def copy_on() -> None:
        nonlocal num_copies
        while not over.is_set():
            copy()
            num_copies += 1

    thread = threading.Thread(target=copy_on)
    began_s = time.perf_counter()
    thread.start()
    try:
        taken = steps()
    finally:
        over.set()
        thread.join()
    return taken, num_copies, time.perf_counter() - began_s


def _scattered(size: int, num_blocks: int) -> list[int]:
    generator = torch.Generator().manual_seed(size)
    return [int(n) for n in torch.randperm(num_blocks, generator=generator)[:size]]


def _median_s(run: Callable[[], Any]) -> float:
    run()
    taken = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began_s)
    return statistics.median(taken)


def _copy_table(copies: list[dict[str, Any]]) -> Table:
    table = Table(title="copies, MB/s (median)", box=box.SIMPLE)
    for column in ("blocks", "MB", "gather", "plain to host", "scatter", "plain to device"):
        table.add_column(column, justify="right")
    for one in copies:
        names = ("gather", "plain to host", "scatter", "plain to device")
        figures = [f"{one[name]:,.0f}" for name in names]
        table.add_row(str(one["num_blocks"]), f"{one['num_bytes'] / 1e6:,.0f}", *figures)
    return table


def _step_table(steps: list[dict[str, Any]]) -> Table:
    table = Table(title="a step beside copies (median)", box=box.SIMPLE)
    for column in ("copies", "blocks each", "alone, ms", "beside, ms", "slower by", "MB/s"):
        table.add_column(column, justify="right")
    for one in steps:
        table.add_row(
            one["kind"],
            str(one["num_blocks"]),
            f"{one['alone_s'] * 1000:.2f}",
            f"{one['beside_s'] * 1000:.2f}",
            f"{one['slower']:+.1%}",
            f"{one['mb_per_s']:,.0f}",
        )
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.device_copies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--blocks", type=int, default=1024, help="of the cache, 8 MiB each")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
