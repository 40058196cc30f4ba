"""Live migration beside stop-and-copy and recompute, on real engines, in one run.

A streaming request of a given length moves to and fro between two instances. Downtime is what
its frontend saw between the last token of one instance and the first of the other; excess is the
downtime less the step that computed that first token. Stop-and-copy is the same move with one
stage only. Recompute is what a request of that length waits for its first token: what a move by
abort and resend would cost. The others' steps are the gaps in streams that do not move.
"""

import argparse
import asyncio
import contextlib
import random
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
from benchmarks.lifetimes import CONTEXT_TOKENS, prompt_that_lives, time_left_s
from benchmarks.process_groups import signals_interrupt
from benchmarks.servers import LlumctlServer, ServerError, running
from benchmarks.token_stream import TokenStream
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError, NotFoundError
from controller.api.state import run_state
from controller.api.wire.moves import MigrateRequest, MigrationReport
from controller.api.wire.settings import SettingsPatch

LENGTHS = (256, 1024, 3500, 7500)
OTHER_LENGTH = 128
NUM_WARM_UP = 2
FIRST_WORD_ID = 300
# 7,500 tokens are 30 MB in the embedded model; the slowest limit takes them 2 s.
LIMITS_BYTES_PER_S = (None, 200_000_000, 100_000_000, 50_000_000, 25_000_000, 15_000_000)
KV_BYTES = 256 << 20
# A prefill of 7,500 tokens takes steps of 512: about what a GPU's takes beside its decode steps.
STEP_TOKENS = 512
QUIET_S = 0.75
MOVING_S = 1.0
MOVING_TOKENS = 7500
BYTES_PER_TOKEN = 4096
# Beside its bytes a move takes some steps; and the control API is asked, twice for each.
MOVE_S = 0.5
# What the others say: about all that the model takes after their prompts.
OTHER_TOKENS = CONTEXT_TOKENS - OTHER_LENGTH
# A stream that has said so much of what it may is replaced before the next measurement; the one
# that moves sooner, as what it has said moves too.
OLD_SHARE = 0.4
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


class MigrationCluster(LlumctlServer):
    """A block that is found in the destination's prefix cache is not copied: there would be
    nothing to measure."""

    def _command(self) -> list[str]:
        arguments = ("enable_prefix_caching=false", f"max_num_batched_tokens={STEP_TOKENS}")
        return [*super()._command(), *(p for a in arguments for p in ("--engine-arg", a))]

    def _environment(self) -> dict[str, str]:
        """Nothing moves but what is measured."""
        return {**super()._environment(), "LLUMCTL_MIGRATION_ENABLED": "false"}


class Bench:
    def __init__(self, plan: Any, http: httpx.AsyncClient, control: ControlClient) -> None:
        self._model = plan.served_model_name
        self._vocab_size = plan.vocab_size
        self._http = http
        self._control = control
        self._dice = random.Random(1)

    def stream(self, num_tokens: int, num_output_tokens: int) -> TokenStream:
        words = range(FIRST_WORD_ID, self._vocab_size)
        prompt = self._dice.choices(words, k=num_tokens)
        return TokenStream(self._http, self._model, prompt, num_output_tokens)

    async def where(self, stream: TokenStream) -> str:
        found = await asyncio.to_thread(self._control.request, stream.reference)
        assert found.instance_id is not None
        return str(found.instance_id)

    async def move(
        self, stream: TokenStream, to: str, max_stages: int | None = None
    ) -> MigrationReport:
        wanted = MigrateRequest(to=to, max_stages=max_stages, reason="benchmark")
        report = await asyncio.to_thread(self._control.migrate, stream.reference, wanted)
        if report.outcome != "migrated":
            raise RuntimeError(f"the move ended as {report.outcome}: {report.code}")
        return report

    async def place(self, streams: Sequence[TokenStream], to: str) -> None:
        for stream in streams:
            await stream.wait_tokens(2)
            if await self.where(stream) != to:
                await self.move(stream, to)

    async def limit(self, max_bytes_per_s: float | None) -> None:
        patch = SettingsPatch(changes={"migration.max_bytes_per_s": float(max_bytes_per_s or 0)})
        await asyncio.to_thread(self._control.change_settings, patch)

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

    async def _young_others(self, others: list[TokenStream], num_on_each: int) -> list[TokenStream]:
        """The same, or new ones for all if any is old: one that ended would be missed by nobody."""
        if others and not any(map(is_old, others)):
            return others
        for stream in others:
            await stream.stop()
        found = [self.stream(OTHER_LENGTH, OTHER_TOKENS) for _ in range(2 * num_on_each)]
        await self.place(found[:num_on_each], "i-0")
        await self.place(found[num_on_each:], "i-1")
        return found

    async def _young_moving(self, moving: TokenStream | None, num_tokens: int) -> TokenStream:
        if moving is not None:
            if len(moving.token_times_s) <= MAX_SAID_TOKENS and not is_old(moving):
                return moving
            await moving.stop()
        found = self.stream(num_tokens, min(4000, CONTEXT_TOKENS - num_tokens))
        await found.wait_tokens(2)
        return found

    async def _one_move(
        self, moving: TokenStream, case: Case, max_stages: int | None
    ) -> Sample | None:
        """None: its figures did not come, or the request grew old while a prefill was sought."""
        here = await self.where(moving)
        there = "i-1" if here == "i-0" else "i-0"
        prefill = None
        if case.prefill:
            prefill = await self._prefill_on(there)
        try:
            if is_old(moving):
                return None
            report = await self.move(moving, there, max_stages)
        finally:
            if prefill is not None:
                await prefill.stop()
        attempt = report.attempts[-1]
        if report.downtime_s is None or report.excess_s is None:
            return None
        await moving.wait_tokens(len(moving.token_times_s) + 3)
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
            stream = self.stream(7500, 1)
            began_s = time.perf_counter()
            while time.perf_counter() - began_s < 0.25:
                await asyncio.sleep(0.01)
                with contextlib.suppress(NotFoundError):  # not there yet
                    found = await asyncio.to_thread(self._control.request, stream.reference)
                    if found.instance_id == instance_id and found.state == "running":
                        return stream
            await stream.stop()

    async def recompute(self, num_tokens: int, num_others: int, repeats: int) -> list[float]:
        others: list[TokenStream] = []
        taken_s = []
        try:
            for _ in range(repeats):
                others = await self._young_others(others, num_others)
                began_s = time.perf_counter()
                stream = self.stream(num_tokens, 1)
                await stream.wait_tokens(1)
                taken_s.append(stream.token_times_s[0] - began_s)
                await stream.stop()
        finally:
            for stream in others:
                await stream.stop()
        return taken_s

    async def slowdown(self, limit: float | None, repeats: int) -> dict[str, Any]:
        """Tokens of three others on each instance while a long prompt moves to and fro, and while
        nothing moves. Counted over a second or more: tokens reach a client in bursts."""
        await self.limit(limit)
        rounds: list[Slowdown] = []
        try:
            for _ in range(repeats):
                rounds.append(await self._slowdown_once(limit))
        finally:
            await self.limit(None)
        return {
            "max_bytes_per_s": limit,
            "num_moves": sum(each.num_moves for each in rounds),
            "num_tokens": round(statistics.median(each.num_tokens for each in rounds)),
            "duration_s": statistics.median(each.move_s for each in rounds),
            "slowdown": statistics.median(each.slowdown for each in rounds),
            "rounds": [asdict(each) for each in rounds],
        }

    async def _slowdown_once(self, limit: float | None) -> Slowdown:
        others: list[TokenStream] = []
        moving = None
        try:
            others = await self._young_others([], 3)
            # Of the steps without the one that moves: with it they are longer.
            step_s = len(others) / await self._rate(others, QUIET_S)
            num_tokens = prompt_that_lives(MOVING_TOKENS, needed_s(limit), step_s)
            moving = self.stream(num_tokens, CONTEXT_TOKENS - num_tokens)
            await moving.wait_tokens(2)
            here = await self.where(moving)
            before = await self._rate(others, QUIET_S)
            began_s, num_before = time.perf_counter(), _num_tokens(others)
            durations_s: list[float] = []
            while time.perf_counter() - began_s < MOVING_S and (
                not durations_s or left_s(moving, step_s) > max(durations_s) + MOVE_S + QUIET_S
            ):
                here = "i-1" if here == "i-0" else "i-0"
                report = await self.move(moving, here)
                durations_s.append(report.attempts[-1].duration_s or 0.0)
            taken_s = time.perf_counter() - began_s
            during = (_num_tokens(others) - num_before) / taken_s
            after = await self._rate(others, QUIET_S)
            if any(left_s(stream, step_s) == 0 for stream in (moving, *others)):
                raise RuntimeError("a stream ended before its round did")
        finally:
            for stream in (*([moving] if moving else []), *others):
                await stream.stop()
        busy_share = sum(durations_s) / taken_s
        return Slowdown(before, during, after, busy_share, durations_s, num_tokens)

    async def _rate(self, streams: Sequence[TokenStream], for_s: float) -> float:
        began_s, num_before = time.perf_counter(), _num_tokens(streams)
        await asyncio.sleep(for_s)
        return (_num_tokens(streams) - num_before) / (time.perf_counter() - began_s)


def needed_s(limit: float | None) -> float:
    """From the first token of the request that moves to the end of the round: twice a quiet
    time, and moves, of which the last may begin when their time is almost over."""
    longest_move_s = MOVE_S + (MOVING_TOKENS * BYTES_PER_TOKEN / limit if limit else 0.0)
    return 2 * QUIET_S + MOVING_S + longest_move_s


def left_s(stream: TokenStream, step_s: float) -> float:
    return time_left_s(stream.num_tokens, len(stream.token_times_s), step_s)


def is_old(stream: TokenStream) -> bool:
    return len(stream.token_times_s) > OLD_SHARE * stream.num_tokens


def _num_tokens(streams: Sequence[TokenStream]) -> int:
    return sum(len(stream.token_times_s) for stream in streams)


async def measure(
    plan: Any, control: ControlClient, options: argparse.Namespace, figures: dict[str, Any]
) -> None:
    """Adds to `figures` what is known, case by case."""
    cases = [Case(n, others) for others in (0, 3) for n in options.lengths]
    cases += [Case(n, 0, prefill=True) for n in options.lengths]
    if options.only_slowdown:
        cases = []
    timeout = httpx.Timeout(None, connect=10.0)
    url = f"http://127.0.0.1:{plan.port}"
    async with httpx.AsyncClient(base_url=url, timeout=timeout, trust_env=False) as http:
        bench = Bench(plan, http, control)
        for case in cases:
            samples = await bench.measure(case, options.repeats)
            recompute_s: list[float] = []
            if not case.prefill:
                recompute_s = await bench.recompute(case.num_tokens, case.num_others, 3)
            figures["cases"].append(
                asdict(case)
                | {kind: [asdict(s) for s in found] for kind, found in samples.items()}
                | {"recompute_s": recompute_s}
            )
            print(f"  {case}: done", flush=True)
        for limit in LIMITS_BYTES_PER_S:
            figures["slowdown"].append(await bench.slowdown(limit, options.repeats))
            print(f"  limit {limit}: done", flush=True)


def main() -> int:
    options = _options()
    console = results.make_console()
    plan = make_plan(2)
    plan = replace(plan, engine_args=plan.engine_args | {"kv_cache_memory_bytes": KV_BYTES})
    cluster = MigrationCluster(plan)
    figures: dict[str, Any] = {"cases": [], "slowdown": []}
    code = 0
    try:
        with signals_interrupt(), running(cluster):
            state = run_state.load(plan.cluster)
            assert state is not None
            with ControlClient(state.control_url, state.control_token) as control:
                asyncio.run(measure(plan, control, options, figures))
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    except ServerError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    except (RuntimeError, LlumctlError) as error:
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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.migration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only-slowdown", action="store_true", help="of the others, no downtimes")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
