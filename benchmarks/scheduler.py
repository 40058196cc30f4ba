"""What scheduling costs: the pure core by cluster size, and a controller's loop under load.

For the core it measures a dispatch decision, a rescheduling round, and the choice of one move. For
the loop it measures how late callbacks run, and how long a frontend waits for a dispatch, while 64
instances report every 5 ms. An idle loop shows the lower limit of this machine.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from rich import box
from rich.table import Table

from benchmarks import results
from benchmarks.controller_load import ControllerBench, Load, Seen
from controller.api.interrupts import stops_interrupt
from controller.core.admission.policies import SchedulerConfig
from controller.core.emptying.relief import Candidate, ReliefView, next_move
from controller.core.emptying.rounds import InstanceLoad, pair
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceSnapshot, QueueHead, blocks_for
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import DispatchRequested, InstanceStarted, StatusReported
from controller.core.settings import ReschedulingConfig

# The pure core: decisions, rounds, and the choice of one move. No processes, no messages: values
# in, values out, one thread. Times are of single calls.

# An A10 with LLaMA-7B near the knee of M-M: a step takes 50 ms, each ends with a status, and 16
# instances get 7.5 requests per second. So between two decisions 43 statuses come, for any number
# of instances.
STATUSES_PER_DECISION = round(20 / (7.5 / 16))
BLOCKS_PER_REQUEST = 40
NUM_PROMPT_TOKENS = 256
# A link so fast that a move pays even from a batch of 1,024: the choice ends at the first request.
LINK_BYTES_PER_S = 100e9
LEVELS = DEFAULT_LEVELS
CONFIG = ReschedulingConfig()


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """Seconds of each call; `statuses_s` are per status. A decision is `warm` without a status
    since the last one, `cold` after a status of every instance, and `as_it_runs` after as many as
    come."""

    num_instances: int
    num_running: int
    warm_s: list[float]
    as_it_runs_s: list[float]
    cold_s: list[float]
    statuses_s: list[float]
    round_s: list[float]


@dataclass(frozen=True, slots=True)
class ReliefTimes:
    """Seconds. `chosen`: the first request may move. `refused`: none may, so all are tried."""

    num_candidates: int
    chosen_s: list[float]
    refused_s: list[float]


def core_times(num_instances: int, num_running: int, repeats: int) -> CoreTimes:
    bed = _Bed(num_instances, num_running)
    kinds = {"warm": 0, "as it runs": STATUSES_PER_DECISION, "cold": -1}
    decisions_s: dict[str, list[float]] = {kind: [] for kind in kinds}
    statuses_s: list[float] = []
    for _ in range(repeats):
        for kind, num_statuses in kinds.items():
            statuses = bed.statuses(num_statuses)
            if statuses:
                statuses_s.append(_timed(partial(bed.report, statuses)) / len(statuses))
            decisions_s[kind].append(_timed(partial(bed.decide, bed.request())))
    rounds_s = []
    for _ in range(repeats):
        bed.report(bed.statuses(-1))
        rounds_s.append(_timed(bed.round))
    return CoreTimes(
        num_instances,
        num_running,
        decisions_s["warm"],
        decisions_s["as it runs"],
        decisions_s["cold"],
        statuses_s,
        rounds_s,
    )


def relief_times(num_candidates: int, repeats: int) -> ReliefTimes:
    chosen = _relief_view(num_candidates, None)
    refused = _relief_view(num_candidates, "prefill")
    assert next_move(chosen).chosen is not None
    assert len(next_move(refused).refused) == num_candidates
    return ReliefTimes(
        num_candidates,
        [_timed(partial(next_move, chosen)) for _ in range(repeats)],
        [_timed(partial(next_move, refused)) for _ in range(repeats)],
    )


class _Bed:
    """A scheduler whose instances have all reported, and further statuses."""

    def __init__(self, num_instances: int, num_running: int) -> None:
        self._dice = random.Random(1)
        self._scheduler = GlobalScheduler(SchedulerConfig())
        self._pool = [
            [_status(index, num_running, self._dice) for _ in range(4)]
            for index in range(num_instances)
        ]
        self._numbers = count()
        for index in range(num_instances):
            self._scheduler.handle(InstanceStarted(f"i-{index}", 1), 0.0)
        self.report(self.statuses(-1))

    def statuses(self, number: int) -> list[StatusReported]:
        """Statuses of random instances; with -1, one of each instance. Each instance has got all
        that was sent to it."""
        of = self._pool if number < 0 else self._dice.choices(self._pool, k=number)
        records, chosen = self._scheduler.instances, [self._dice.choice(each) for each in of]
        return [
            replace(each, last_dispatch_seq=records[each.snapshot.instance_id].last_dispatch_seq)
            for each in chosen
        ]

    def request(self) -> DispatchRequested:
        return DispatchRequested(f"r-{next(self._numbers)}", "f-0", NUM_PROMPT_TOKENS, 0, 0.0)

    def report(self, statuses: list[StatusReported]) -> None:
        for status in statuses:
            self._scheduler.handle(status, 1.0)

    def decide(self, request: DispatchRequested) -> None:
        assert self._scheduler.handle(request, 1.0)

    def round(self) -> None:
        loads = [
            InstanceLoad.of(record.snapshot, LEVELS, may_send=True, may_receive=record.schedulable)
            for record in self._scheduler.instances.values()
            if record.snapshot is not None
        ]
        assert pair(loads, CONFIG)


def _status(index: int, num_running: int, dice: random.Random) -> StatusReported:
    """A status. Every second instance is about full and the others are nearly half empty, so that
    each round has pairs; one instance in three has requests of high priority."""
    total_blocks = num_running * BLOCKS_PER_REQUEST * 2
    free_blocks = dice.randint(0, total_blocks // 10) + (index % 2) * (total_blocks // 3)
    num_high = num_running // 10 if dice.random() < 1 / 3 else 0
    num_queued = dice.randint(0, 2)
    head = QueueHead("q", 0, BLOCKS_PER_REQUEST, 0.0) if num_queued else None
    snapshot = InstanceSnapshot(
        f"i-{index}",
        1,
        16,
        total_blocks,
        free_blocks,
        watermark_blocks=total_blocks // 100,
        fill_blocks=dice.randint(0, 20),
        max_num_running=4 * num_running,
        num_running=num_running,
        num_running_by_rank={0: num_running - num_high, 1: num_high} if num_high else {0: 1},
        num_queued=num_queued,
        queued_demand_blocks=num_queued * BLOCKS_PER_REQUEST,
        queue_head=head,
    )
    return StatusReported(snapshot, 0)


def _relief_view(num_candidates: int, refusal: str | None) -> ReliefView:
    """A full instance, and an empty one of the same size."""
    dice = random.Random(1)
    tokens = [dice.randint(64, 1200) for _ in range(num_candidates)]
    blocks = [blocks_for(n, 16) for n in tokens]
    candidates = [
        Candidate(f"r-{n}", 0, tokens[n], blocks[n], blocks[n], queued=False, refusal=refusal)
        for n in range(num_candidates)
    ]
    size = sum(blocks)
    source = InstanceSnapshot("i-0", 1, 16, size, 0, num_running=num_candidates)
    destination = InstanceSnapshot("i-1", 1, 16, size, size)
    return ReliefView(
        source,
        candidates,
        destination,
        (),
        LEVELS,
        CONFIG,
        524_288 * 16,
        LINK_BYTES_PER_S,
        step_time_s=0.05,
    )


def _timed(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def sizes(largest: int) -> Iterator[int]:
    return (size for size in (16, 64, 256, 1024) if size <= largest)


# The command

RUNNING = (10, 1000)
DECISION_TARGET_S = 50e-6
STALL_TARGET_S = 1e-3


def main() -> int:
    options = _options()
    console = results.make_console()
    figures: dict[str, Any] = {"options": vars(options), "core": [], "relief": [], "loop": []}
    try:
        with stops_interrupt():
            if "core" in options.parts:
                figures["core"], figures["relief"] = _core(options)
                console.print(_core_table(figures["core"]))
                console.print(_relief_table(figures["relief"]))
            if "loop" in options.parts:
                figures["loop"] = _loop(options)
                console.print(_loop_table(figures["loop"]))
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    for line in _verdicts(figures):
        console.print(line)
    console.print(f"written to {results.write('scheduler', figures)}")
    return 0


def _core(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    core = [
        _core_figures(core_times(number, num_running, options.repeats))
        for number in sizes(options.largest)
        for num_running in RUNNING
    ]
    relief = [
        _relief_figures(relief_times(number, options.repeats))
        for number in (16, 256, 1024)
        if number <= options.largest
    ]
    return core, relief


def _loop(options: argparse.Namespace) -> list[dict[str, Any]]:
    every_s = options.status_ms / 1000
    loads = (
        Load("nothing", None, 0.0),
        Load("dispatches", None, options.asks),
        Load("statuses", every_s, 0.0),
        Load("both", every_s, options.asks),
    )
    bench = ControllerBench(options.instances)
    try:
        bench.start()
        rounds = [
            bench.measure(load, options.seconds) for _ in range(options.rounds) for load in loads
        ]
    finally:
        bench.stop()
    return [_loop_figures([seen for seen in rounds if seen.load == load]) for load in loads]


def _core_figures(times: CoreTimes) -> dict[str, Any]:
    return {
        "num_instances": times.num_instances,
        "num_running": times.num_running,
        "decision_warm_s": spread(times.warm_s),
        "decision_as_it_runs_s": spread(times.as_it_runs_s),
        "decision_cold_s": spread(times.cold_s),
        "status_s": spread(times.statuses_s),
        "round_s": spread(times.round_s),
    }


def _relief_figures(times: ReliefTimes) -> dict[str, Any]:
    return {
        "num_candidates": times.num_candidates,
        "chosen_s": spread(times.chosen_s),
        "refused_s": spread(times.refused_s),
    }


def _loop_figures(rounds: list[Seen]) -> dict[str, Any]:
    """The figures of all rounds together, and the P99 of each, as some may be disturbed."""
    stall_s = [value for seen in rounds for value in seen.stall_s]
    dispatch_s = [value for seen in rounds for value in seen.dispatch_s]
    duration_s = sum(seen.duration_s for seen in rounds)
    return {
        "load": rounds[0].load.name,
        "stall_s": spread(stall_s),
        "stall_p99_of_rounds_s": [spread(seen.stall_s)["p99"] for seen in rounds],
        "dispatch_s": spread(dispatch_s) if dispatch_s else None,
        "dispatch_p99_of_rounds_s": [
            spread(seen.dispatch_s)["p99"] for seen in rounds if seen.dispatch_s
        ],
        "loop_cores": statistics.fmean(seen.loop_cores for seen in rounds),
        "cores": statistics.fmean(seen.cores for seen in rounds),
        "statuses_per_s": sum(seen.num_statuses for seen in rounds) / duration_s,
        "dispatches_per_s": sum(seen.num_dispatches for seen in rounds) / duration_s,
    }


def spread(values: list[float]) -> dict[str, float]:
    """Median, P99 and maximum. One value in 100 reaches or exceeds the P99."""
    ordered = sorted(values)
    return {
        "p50": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        "max": ordered[-1],
    }


def _verdicts(figures: dict[str, Any]) -> list[str]:
    lines = []
    for row in figures["core"]:
        if row["num_instances"] == 1024:
            median_s = row["decision_as_it_runs_s"]["p50"]
            lines.append(
                f"a decision at 1,024 instances, {row['num_running']:,} running on each:"
                f" {median_s * 1e6:.0f} us, {_met(median_s <= DECISION_TARGET_S)} (50 us)"
            )
    for row in figures["loop"]:
        if row["load"] == "both":
            p99_s = row["stall_s"]["p99"]
            lines.append(f"stall P99: {p99_s * 1e3:.2f} ms, {_met(p99_s <= STALL_TARGET_S)} (1 ms)")
    return lines


def _met(is_met: bool) -> str:
    return "as wanted" if is_met else "[red]more than wanted[/red]"


def _core_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="the core, us: median / P99", box=box.SIMPLE)
    columns = {
        "decision": "decision_as_it_runs_s",
        "no news": "decision_warm_s",
        "all news": "decision_cold_s",
        "a status": "status_s",
        "round": "round_s",
    }
    for column in ("instances", "running each", *columns):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row['num_instances']:,}",
            f"{row['num_running']:,}",
            *(_pair(row[key], 1e6) for key in columns.values()),
        )
    return table


def _relief_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="the choice of one move, us: median / P99", box=box.SIMPLE)
    for column in ("candidates", "the first may move", "none may"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row['num_candidates']:,}", _pair(row["chosen_s"], 1e6), _pair(row["refused_s"], 1e6)
        )
    return table


def _loop_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="a controller's loop, ms", box=box.SIMPLE)
    for column in (
        *("load", "statuses/s", "dispatches/s", "stall P50", "P99", "P99 by round", "max"),
        *("dispatch P50", "P99", "cores, loop", "all"),
    ):
        table.add_column(column, justify="left" if column == "load" else "right")
    for row in rows:
        stall, dispatch = row["stall_s"], row["dispatch_s"]
        by_round = [1e3 * value for value in row["stall_p99_of_rounds_s"]]
        table.add_row(
            row["load"],
            f"{row['statuses_per_s']:,.0f}",
            f"{row['dispatches_per_s']:,.0f}",
            f"{1e3 * stall['p50']:.2f}",
            f"{1e3 * stall['p99']:.2f}",
            results.spread(by_round),
            f"{1e3 * stall['max']:.1f}",
            *(f"{1e3 * dispatch[key]:.2f}" if dispatch else "" for key in ("p50", "p99")),
            f"{row['loop_cores']:.2f}",
            f"{row['cores']:.2f}",
        )
    return table


def _pair(found: dict[str, float], scale: float) -> str:
    return f"{found['p50'] * scale:,.1f} / {found['p99'] * scale:,.1f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scheduler",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", nargs="+", choices=["core", "loop"], default=["core", "loop"])
    parser.add_argument("--largest", type=int, default=1024, help="instances, of the core")
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--instances", type=int, default=64, help="that report to the loop")
    parser.add_argument("--status-ms", type=float, default=5.0, help="of each instance")
    parser.add_argument("--asks", type=float, default=200.0, help="for dispatches, per second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load and round")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
