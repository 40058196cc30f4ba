"""The process of the engine that is measured: it makes the engine as an instance does, measures,
and says what it finds.

`python -P -m controller.main.profile.engine_process DESCRIPTOR` reads its task, a line of JSON,
from stdin, and writes a line of JSON for each message to the descriptor. stdin stays open as long
as its parent lives: at its end this process ends, whatever it does.
"""

import gc
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from controller.main.profile.link import measure_link
from controller.main.profile.measure import CoreClock, DrivenEngine, grid_of, measure
from controller.main.profile.points import EngineSizes, Measured

if TYPE_CHECKING:
    from controller.adapters.vllm.engine import VllmEngine


class Task(msgspec.Struct, frozen=True):
    """`with_link`: whether the KV link is measured too."""

    engine_args: dict[str, Any]
    num_rounds: int
    status_interval_s: float
    with_link: bool


class Said(msgspec.Struct, frozen=True, tag=True):
    text: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """`detail`: the exception's type and its text. `doing`: what failed."""

    doing: str
    detail: str


class NoLink(msgspec.Struct, frozen=True, tag=True):
    """This engine's KV cache cannot be copied, so nothing else was measured either."""


class Done(msgspec.Struct, frozen=True, tag=True):
    measured: Measured


Message = Said | Failed | NoLink | Done


def main(descriptor: int) -> None:
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=Task)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def send(message: Message) -> None:
        os.write(descriptor, msgspec.json.encode(message) + b"\n")

    doing = "the engine could not start"
    try:
        from controller.adapters.vllm.engine import TrialRequests, VllmEngine

        engine = VllmEngine(task.engine_args, lambda text: send(Said(text)))
        gc.freeze()  # as an instance does
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
    """Of an engine that is idle."""
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


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1 << 10):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
