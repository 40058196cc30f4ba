"""Live migration beside stop-and-copy and recompute, on real engines, in one run.

A streaming request of a given length moves to and fro between two instances. Downtime is the time
between the last token of one instance and the first token of the other, as its frontend saw it.
Excess is the downtime less the step that computed that first token. Stop-and-copy is the same move
with only one stage. Recompute is how long a request of that length waits for its first token, as a
move by abort and resend would have to. The others' steps are the gaps in streams that do not move.

The configuration file that LLUMCTL_CONFIG names can choose another model and other settings. The
model must take 8,192 tokens.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import httpx
from rich import box
from rich.table import Table

from benchmarks import results
from benchmarks.engine_plan import make_plan
from benchmarks.moved_streams import MigrationCluster, MovedStreams, is_old
from benchmarks.servers import ServerError, control_of, running
from benchmarks.token_stream import (
    CONTEXT_TOKENS,
    StreamEndedError,
    TokenStream,
    prompt_that_lives,
    time_left_s,
)
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError, NotFoundError
from controller.api.interrupts import stops_interrupt
from controller.api.operations.on_cluster import SetSettings, SettingsPatch

# How long a request stands still while it moves, beside stop-and-copy and recompute

NUM_WARM_UP = 2
# The stream that moves is replaced sooner than the others, since its outputs move too.
MAX_SAID_TOKENS = 170
MAX_MOVE_TRIES = 5


@dataclass(frozen=True, slots=True)
class Case:
    """A case with `num_others` streams on each instance. `prefill`: whether the destination
    computes a prompt of 7,500 tokens while the request moves there."""

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
        """Measures live moves and stop-and-copy in turn, so that both run under the same
        conditions."""
        others: list[TokenStream] = []
        moving: TokenStream | None = None
        samples: dict[str, list[Sample]] = {"live": [], "stop-and-copy": []}
        try:
            for index in range(repeats + NUM_WARM_UP):
                for kind, max_stages in (("live", None), ("stop-and-copy", 1)):
                    for _ in range(MAX_MOVE_TRIES):
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
        """Measures how long requests of that length wait for their first token."""
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
        """The same streams, or new ones in place of all if any is old: nobody would notice if one
        ended."""
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
        """Returns None if the figures did not come, or if the request grew old before there was a
        prefill on the destination."""
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
        """A stream with a long prompt whose prefill runs on that instance. Dispatch chooses the
        instance, so requests are sent until one is there."""
        while True:
            stream = self._streams.begin(7500, 1)
            began_s = time.perf_counter()
            while time.perf_counter() - began_s < 0.25:
                await asyncio.sleep(0.01)
                with contextlib.suppress(NotFoundError):  # the request is not there yet
                    found = await self._streams.status(stream)
                    if found.instance_id == instance_id and found.state == "running":
                        return stream
            await stream.stop()


# How much a move slows the steps of the requests beside it

# 7,500 tokens are 30 MB in the embedded model, which take 2 s at the lowest limit.
LIMITS_BYTES_PER_S = (None, 200_000_000, 100_000_000, 50_000_000, 25_000_000, 15_000_000)
QUIET_S = 0.75
MOVING_S = 1.0
MOVING_TOKENS = 7500
# Besides copying its bytes, a move takes some steps and two calls of the control API. If engines,
# frontend and client share two cores, the client may get the answers late.
MOVE_S = 0.5
NUM_OTHERS = 3
# If a stream ends before its round despite the estimate, the round is repeated with more time.
MAX_ROUND_TRIES = 4
MORE_TIME = 1.5


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Tokens per second of the other streams before, during and after a series of moves, and the
    share of the time during which a move was under way (between two moves the client waits for an
    answer)."""

    before_per_s: float
    during_per_s: float
    after_per_s: float
    busy_share: float
    durations_s: list[float]
    num_tokens: int
    """The length of the prompt that moved, which lets the stream live long enough."""

    @property
    def num_moves(self) -> int:
        return len(self.durations_s)

    @property
    def move_s(self) -> float:
        return statistics.median(self.durations_s)

    @property
    def slowdown(self) -> float:
        """How much longer their steps are while a move is under way."""
        without_per_s = (self.before_per_s + self.after_per_s) / 2
        return (without_per_s / self.during_per_s - 1) / self.busy_share


class Slowdowns:
    def __init__(self, streams: MovedStreams, kv_bytes_per_token: int) -> None:
        self._streams = streams
        self._moving_bytes = MOVING_TOKENS * kv_bytes_per_token

    async def measure(self, limit: float | None, repeats: int) -> dict[str, Any]:
        """Counts the tokens of three other streams on each instance while a long prompt moves to
        and fro, and while nothing moves. It counts for at least a second, as tokens reach a client
        in bursts."""
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
        for num_failed in range(MAX_ROUND_TRIES):
            try:
                return await self._try(needed_s(limit, self._moving_bytes) * MORE_TIME**num_failed)
            except StreamEndedError as error:
                print(f"    another try: {error}", flush=True)
        raise RuntimeError(
            f"in each of {MAX_ROUND_TRIES} tries a stream ended before its round did"
        )

    async def _try(self, lives_s: float) -> Slowdown:
        others: list[TokenStream] = []
        moving = None
        try:
            others = await self._streams.others(NUM_OTHERS)
            # This is the time of steps without the request that moves; with it they are longer.
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
        """How long the stream goes on, by the frontend's count of its tokens: a client that shares
        its cores with the engines reads tokens later than they are made."""
        found = await self._streams.status(stream)
        return time_left_s(stream.num_tokens, found.num_output_tokens, step_s)

    async def _limit(self, max_bytes_per_s: float | None) -> None:
        patch = SettingsPatch(changes={"migration.max_bytes_per_s": float(max_bytes_per_s or 0)})
        await asyncio.to_thread(self._streams.control.send, SetSettings(patch))


def needed_s(limit: float | None, num_bytes: int) -> float:
    """The time from the first token of the request that moves until the end of the round: two quiet
    times, and the moves, of which the last may begin when their time is almost over."""
    longest_move_s = MOVE_S + (num_bytes / limit if limit else 0.0)
    return 2 * QUIET_S + MOVING_S + longest_move_s


def _num_said(streams: Sequence[TokenStream]) -> int:
    return sum(stream.num_said for stream in streams)


async def _rate(streams: Sequence[TokenStream], for_s: float) -> float:
    began_s, num_before = time.perf_counter(), _num_said(streams)
    await asyncio.sleep(for_s)
    return (_num_said(streams) - num_before) / (time.perf_counter() - began_s)


# The command

LENGTHS = (256, 1024, 3500, 7500)
KV_BYTES = 256 << 20


async def measure(
    plan: Any, control: ControlClient, options: argparse.Namespace, figures: dict[str, Any]
) -> None:
    """Adds the figures of each case to `figures` as soon as they are known."""
    cases = [Case(n, others) for others in (0, 3) for n in options.lengths]
    cases += [Case(n, 0, prefill=True) for n in options.lengths]
    if options.only_slowdown:
        cases = []
    timeout = httpx.Timeout(None, connect=10.0)
    url = f"http://127.0.0.1:{plan.port}"
    async with httpx.AsyncClient(base_url=url, timeout=timeout, trust_env=False) as http:
        streams = MovedStreams(plan, http, control)
        downtimes, slowdowns = Downtimes(streams), Slowdowns(streams, plan.kv_bytes_per_token)
        for case in cases:
            samples = await downtimes.measure(case, options.repeats)
            recompute_s: list[float] = []
            if not case.prefill:
                recompute_s = await downtimes.recompute(case.num_tokens, case.num_others, 3)
            figures["cases"].append(
                asdict(case)
                | {kind: [asdict(s) for s in found] for kind, found in samples.items()}
                | {"recompute_s": recompute_s}
            )
            print(f"  {case}: done", flush=True)
        for limit in options.limits:
            figures["slowdown"].append(await slowdowns.measure(limit, options.repeats))
            print(f"  limit {limit}: done", flush=True)


def main() -> int:
    options = _options()
    console = results.make_console()
    plan = make_plan(2)
    plan = replace(plan, engine_args=plan.engine_args | {"kv_cache_memory_bytes": options.kv_bytes})
    cluster = MigrationCluster(plan)
    figures: dict[str, Any] = {"cases": [], "slowdown": []}
    code = 0
    try:
        with stops_interrupt(), running(cluster), control_of(plan.cluster) as control:
            asyncio.run(measure(plan, control, options, figures))
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    except ServerError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    except (RuntimeError, ValueError, LlumctlError, httpx.HTTPError) as error:
        console.print(f"[red]cut short: {error}[/red]")
        code = 1
    console.print(_case_table(figures["cases"]))
    console.print(_slowdown_table(figures["slowdown"]))
    console.print(f"written to {results.write('migration', figures)}")
    return code


def _case_table(cases: list[dict[str, Any]]) -> Table:
    table = Table(title="downtime, ms (median)", box=box.SIMPLE)
    for column in (
        *("tokens", "others", "prefill", "live", "excess", "its step", "stop-and-copy"),
        *("recompute", "recompute / live", "stages"),
    ):
        table.add_column(column, justify="right")
    for case in cases:
        live, stop = case["live"], case["stop-and-copy"]
        downtime_s = _median(live, "downtime_s")
        recompute_s = statistics.median(case["recompute_s"]) if case["recompute_s"] else None
        table.add_row(
            str(case["num_tokens"]),
            str(case["num_others"]),
            "yes" if case["prefill"] else "",
            _ms(downtime_s),
            _ms(_median(live, "excess_s")),
            _ms(_median(live, "step_time_s")),
            _ms(_median(stop, "downtime_s")),
            _ms(recompute_s),
            f"{recompute_s / downtime_s:.0f}x" if recompute_s and downtime_s else "",
            f"{_median(live, 'num_stages') or 0:.0f}",
        )
    return table


def _slowdown_table(curve: list[dict[str, Any]]) -> Table:
    table = Table(title="the others' steps while a long prompt moves", box=box.SIMPLE)
    for column in ("limit MB/s", "tokens", "moves", "a move, s", "slowed by"):
        table.add_column(column, justify="right")
    for point in curve:
        limit = point["max_bytes_per_s"]
        table.add_row(
            "none" if limit is None else f"{limit / 1e6:.0f}",
            str(point["num_tokens"]),
            str(point["num_moves"]),
            f"{point['duration_s']:.2f}",
            f"{point['slowdown']:+.1%}",
        )
    return table


def _median(samples: list[dict[str, Any]], name: str) -> float | None:
    return statistics.median(sample[name] for sample in samples) if samples else None


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.1f}"


def _limit(text: str) -> float | None:
    return None if text == "none" else float(text) * 1e6


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.migration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only-slowdown", action="store_true", help="of the others, no downtimes")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument(
        "--kv-bytes", type=int, default=KV_BYTES, help="of an instance's cache; another model's too"
    )
    parser.add_argument(
        "--limits",
        type=_limit,
        nargs="*",
        default=LIMITS_BYTES_PER_S,
        metavar="MB/S",
        help="or none",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
