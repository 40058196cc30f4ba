"""How much a move slows the steps of the requests beside it."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.lifetimes import CONTEXT_TOKENS, prompt_that_lives, time_left_s
from benchmarks.moved_streams import MovedStreams
from benchmarks.token_stream import StreamEndedError, TokenStream
from controller.api.operations.on_cluster import SetSettings, SettingsPatch

# 7,500 tokens are 30 MB in the embedded model; the slowest limit takes them 2 s.
LIMITS_BYTES_PER_S = (None, 200_000_000, 100_000_000, 50_000_000, 25_000_000, 15_000_000)
QUIET_S = 0.75
MOVING_S = 1.0
MOVING_TOKENS = 7500
# Beside its bytes a move takes some steps; and the control API is asked, twice for each. Where
# engines, frontend and client share two cores, the client may get the answer late.
MOVE_S = 0.5
NUM_OTHERS = 3
# A round whose stream ended although its time was reckoned is done again with more of it.
MAX_TRIES = 4
MORE_TIME = 1.5


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Tokens per second of the others before, during and after a series of moves, and the share
    of that time in which one was under way (between two, an answer is waited for)."""

    before_per_s: float
    during_per_s: float
    after_per_s: float
    busy_share: float
    durations_s: list[float]
    num_tokens: int
    """Of the prompt that moved: as many as let it live long enough."""

    @property
    def num_moves(self) -> int:
        return len(self.durations_s)

    @property
    def move_s(self) -> float:
        return statistics.median(self.durations_s)

    @property
    def slowdown(self) -> float:
        """Of their steps while one is under way."""
        without_per_s = (self.before_per_s + self.after_per_s) / 2
        return (without_per_s / self.during_per_s - 1) / self.busy_share


class Slowdowns:
    def __init__(self, streams: MovedStreams, kv_bytes_per_token: int) -> None:
        self._streams = streams
        self._moving_bytes = MOVING_TOKENS * kv_bytes_per_token

    async def measure(self, limit: float | None, repeats: int) -> dict[str, Any]:
        """Tokens of three others on each instance while a long prompt moves to and fro, and while
        nothing moves. Counted over a second or more: tokens reach a client in bursts."""
        await self._limit(limit)
        try:
            rounds = [await self._round(limit) for _ in range(repeats)]
        finally:
            await self._limit(None)
        return {
            "max_bytes_per_s": limit,
            "num_moves": sum(each.num_moves for each in rounds),
            "num_tokens": round(statistics.median(each.num_tokens for each in rounds)),
            "duration_s": statistics.median(each.move_s for each in rounds),
            "slowdown": statistics.median(each.slowdown for each in rounds),
            "rounds": [asdict(each) for each in rounds],
        }

    async def _round(self, limit: float | None) -> Slowdown:
        for num_failed in range(MAX_TRIES):
            try:
                return await self._try(needed_s(limit, self._moving_bytes) * MORE_TIME**num_failed)
            except StreamEndedError as error:
                print(f"    another try: {error}", flush=True)
        raise RuntimeError(f"in each of {MAX_TRIES} tries a stream ended before its round did")

    async def _try(self, lives_s: float) -> Slowdown:
        others: list[TokenStream] = []
        moving = None
        try:
            others = await self._streams.others(NUM_OTHERS)
            # Of the steps without the one that moves: with it they are longer.
            step_s = len(others) / await _rate(others, QUIET_S)
            num_tokens = prompt_that_lives(MOVING_TOKENS, lives_s, step_s)
            moving = self._streams.begin(num_tokens, CONTEXT_TOKENS - num_tokens)
            await moving.wait_tokens(2)
            here = await self._streams.where(moving)
            before = await _rate(others, QUIET_S)
            began_s, num_before = time.perf_counter(), _num_said(others)
            durations_s: list[float] = []
            while time.perf_counter() - began_s < MOVING_S and (
                not durations_s
                or await self._left_s(moving, step_s) > max(durations_s) + MOVE_S + QUIET_S
            ):
                here = "i-1" if here == "i-0" else "i-0"
                report = await self._streams.move(moving, here)
                durations_s.append(report.attempts[-1].duration_s or 0.0)
            taken_s = time.perf_counter() - began_s
            during = (_num_said(others) - num_before) / taken_s
            after = await _rate(others, QUIET_S)
            for stream in (moving, *others):
                if await self._left_s(stream, step_s) == 0:
                    raise StreamEndedError(f"{stream.reference} ended before its round did")
        finally:
            for stream in (*([moving] if moving else []), *others):
                await stream.stop()
        busy_share = sum(durations_s) / taken_s
        return Slowdown(before, during, after, busy_share, durations_s, num_tokens)

    async def _left_s(self, stream: TokenStream, step_s: float) -> float:
        """By what the frontend counts: a client that shares its cores with the engines reads
        tokens later than they are made."""
        found = await self._streams.status(stream)
        return time_left_s(stream.num_tokens, found.num_output_tokens, step_s)

    async def _limit(self, max_bytes_per_s: float | None) -> None:
        patch = SettingsPatch(changes={"migration.max_bytes_per_s": float(max_bytes_per_s or 0)})
        await asyncio.to_thread(self._streams.control.send, SetSettings(patch))


def needed_s(limit: float | None, num_bytes: int) -> float:
    """From the first token of the request that moves to the end of the round: twice a quiet
    time, and moves, of which the last may begin when their time is almost over."""
    longest_move_s = MOVE_S + (num_bytes / limit if limit else 0.0)
    return 2 * QUIET_S + MOVING_S + longest_move_s


def _num_said(streams: Sequence[TokenStream]) -> int:
    return sum(stream.num_said for stream in streams)


async def _rate(streams: Sequence[TokenStream], for_s: float) -> float:
    began_s, num_before = time.perf_counter(), _num_said(streams)
    await asyncio.sleep(for_s)
    return (_num_said(streams) - num_before) / (time.perf_counter() - began_s)
