"""How long a request stands still while it moves, beside stop-and-copy and recompute."""

import asyncio
import contextlib
import time
from dataclasses import dataclass

from benchmarks.lifetimes import CONTEXT_TOKENS
from benchmarks.moved_streams import MovedStreams, is_old
from benchmarks.token_stream import TokenStream
from controller.api.errors import NotFoundError

NUM_WARM_UP = 2
# The stream that moves is replaced sooner than others: what it has said moves too.
MAX_SAID_TOKENS = 170
MAX_TRIES = 5


@dataclass(frozen=True, slots=True)
class Case:
    """`num_others` streams on each instance; `prefill`: one of 7,500 tokens is computed on the
    destination while the request moves there."""

    num_tokens: int
    num_others: int
    prefill: bool = False


@dataclass(slots=True)
class Sample:
    downtime_s: float
    excess_s: float
    step_time_s: float
    duration_s: float
    num_stages: int


class Downtimes:
    def __init__(self, streams: MovedStreams) -> None:
        self._streams = streams

    async def measure(self, case: Case, repeats: int) -> dict[str, list[Sample]]:
        """Live moves and stop-and-copy in turn, so that both see the same machine."""
        others: list[TokenStream] = []
        moving: TokenStream | None = None
        samples: dict[str, list[Sample]] = {"live": [], "stop-and-copy": []}
        try:
            for index in range(repeats + NUM_WARM_UP):
                for kind, max_stages in (("live", None), ("stop-and-copy", 1)):
                    for _ in range(MAX_TRIES):
                        others = await self._young_others(others, case.num_others)
                        moving = await self._young_moving(moving, case.num_tokens)
                        sample = await self._one_move(moving, case, max_stages)
                        if sample is not None:
                            break
                    if index >= NUM_WARM_UP and sample is not None:
                        samples[kind].append(sample)
        finally:
            for stream in (*([moving] if moving else []), *others):
                await stream.stop()
        return samples

    async def recompute(self, num_tokens: int, num_others: int, repeats: int) -> list[float]:
        """What requests of that length wait for their first token."""
        others: list[TokenStream] = []
        taken_s = []
        try:
            for _ in range(repeats):
                others = await self._young_others(others, num_others)
                began_s = time.perf_counter()
                stream = self._streams.begin(num_tokens, 1)
                await stream.wait_tokens(1)
                taken_s.append(stream.event_times_s[0] - began_s)
                await stream.stop()
        finally:
            for stream in others:
                await stream.stop()
        return taken_s

    async def _young_others(self, others: list[TokenStream], num_on_each: int) -> list[TokenStream]:
        """The same, or new ones for all if any is old: one that ended would be missed by nobody."""
        if others and not any(map(is_old, others)):
            return others
        for stream in others:
            await stream.stop()
        return await self._streams.others(num_on_each)

    async def _young_moving(self, moving: TokenStream | None, num_tokens: int) -> TokenStream:
        if moving is not None:
            if moving.num_said <= MAX_SAID_TOKENS and not is_old(moving):
                return moving
            await moving.stop()
        found = self._streams.begin(num_tokens, min(4000, CONTEXT_TOKENS - num_tokens))
        await found.wait_tokens(2)
        return found

    async def _one_move(
        self, moving: TokenStream, case: Case, max_stages: int | None
    ) -> Sample | None:
        """None: its figures did not come, or the request grew old while a prefill was sought."""
        here = await self._streams.where(moving)
        there = "i-1" if here == "i-0" else "i-0"
        prefill = None
        if case.prefill:
            prefill = await self._prefill_on(there)
        try:
            if is_old(moving):
                return None
            report = await self._streams.move(moving, there, max_stages)
        finally:
            if prefill is not None:
                await prefill.stop()
        attempt = report.attempts[-1]
        if report.downtime_s is None or report.excess_s is None:
            return None
        await moving.wait_tokens(moving.num_said + 3)
        return Sample(
            report.downtime_s,
            report.excess_s,
            report.downtime_s - report.excess_s,
            attempt.duration_s or 0.0,
            len(attempt.stages),
        )

    async def _prefill_on(self, instance_id: str) -> TokenStream:
        """A long prompt whose prefill runs there: dispatch chooses, so ask until it is so."""
        while True:
            stream = self._streams.begin(7500, 1)
            began_s = time.perf_counter()
            while time.perf_counter() - began_s < 0.25:
                await asyncio.sleep(0.01)
                with contextlib.suppress(NotFoundError):  # not there yet
                    found = await self._streams.status(stream)
                    if found.instance_id == instance_id and found.state == "running":
                        return stream
            await stream.stop()
