"""What a run came to: a row per request that ended, what was sampled over time, and the figures of
both: latencies by percentiles, what evictions cost, how full the memory was, and whether the run
reached a steady state.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from controller.core.load.snapshot import InstanceSnapshot
from controller.sim.request_run import RequestRun

NAMES = (
    "arrival_s",
    "ttft_s",
    "tpot_s",
    "e2e_latency_s",
    "longest_pause_s",
    "preemption_loss_s",
    "num_evictions",
    "num_moves",
    "num_overtaking",
    "overtaken_s",
    "rank",
    "num_prompt_tokens",
    "num_output_tokens",
)


class Rows:
    """One array of floats per name: 1,000,000 requests take 104 MB."""

    def __init__(self) -> None:
        self.columns = {name: array("d") for name in NAMES}

    def __len__(self) -> int:
        return len(self.columns["arrival_s"])

    def add(self, run: RequestRun) -> None:
        """A request that has finished."""
        request = run.request
        assert run.first_token_s is not None
        assert run.finished_s is not None
        arrival_s, num_outputs = request.arrival_time_s, request.max_output_tokens
        decode_s = run.finished_s - run.first_token_s
        values = (
            arrival_s,
            run.first_token_s - arrival_s,
            decode_s / (num_outputs - 1) if num_outputs > 1 else 0.0,
            run.finished_s - arrival_s,
            run.longest_pause_s,
            run.loss_s,
            run.num_evictions,
            len(run.moves),
            run.num_overtaking,
            run.overtaken_s,
            run.traced.rank,
            request.num_prompt_tokens,
            num_outputs,
        )
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)


@dataclass(slots=True)
class Sampled:
    """Averages over time; one look each `sample_s`. Shares are of all KV blocks. `num_instances`
    are those that cost: those that start, and those that drain, among them."""

    times_s: "array[float]" = field(default_factory=lambda: array("d"))
    num_waiting: "array[int]" = field(default_factory=lambda: array("q"))
    num_running: "array[int]" = field(default_factory=lambda: array("q"))
    num_instances: "array[int]" = field(default_factory=lambda: array("q"))
    fragmentation: "array[float]" = field(default_factory=lambda: array("d"))
    used_share: "array[float]" = field(default_factory=lambda: array("d"))


@dataclass(slots=True)
class Outcome:
    rows: Rows = field(default_factory=Rows)
    sampled: Sampled = field(default_factory=Sampled)
    num_failed: int = 0
    num_moved: int = 0
    num_failed_moves: dict[str, int] = field(default_factory=dict)
    downtimes_s: list[float] = field(default_factory=list)
    num_launched: int = 0
    """Instances that auto-scaling launched."""
    num_removed: int = 0
    num_steps: int = 0
    busy_s: float = 0.0
    """What the steps of all instances took together."""
    duration_s: float = 0.0
    """Virtual, until the last request ended."""


# -- fragmentation ---------------------------------------------------------------------------------


def fragmented_blocks(
    snapshots: Sequence[InstanceSnapshot], held_demands: Iterable[int] = ()
) -> int:
    """Free memory that nobody can use: it would do for queue heads, if it were in one place. That
    is the demands of blocked queue heads, the smallest first, while their sum fits the cluster's
    free blocks. `held_demands` are those of blocked requests outside of the instances."""
    blocked = list(held_demands)
    num_free = 0
    for snapshot in snapshots:
        num_free += max(0, snapshot.admissible_blocks)
        head = snapshot.queue_head
        if head is not None and head.demand_blocks > snapshot.admissible_blocks:
            blocked.append(head.demand_blocks)
    total = 0
    for demand in sorted(blocked):
        if total + demand > num_free:
            break
        total += demand
    return total


# -- figures ---------------------------------------------------------------------------------------

Values = NDArray[np.float64]

SHARES = (*(n / 100 for n in range(100)), *(n / 1000 for n in range(991, 1001)))
"""Of which a curve has quantiles: finer where the tail is."""
NUM_MOMENTS = 60


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles are interpolated between the two nearest values."""

    mean: float
    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the requests that have finished. The spreads are None where no request has such a value:
    `tpot_s` and `longest_pause_s` need two output tokens.

    `preemption_loss_s` is the mean over all of these requests, most of which lose nothing.
    `longest_overtaken_s`: how long later requests of at most its rank were dispatched before one
    that was held. `most_overtaking`: how many they were at most.
    """

    num_requests: int
    ttft_s: Spread | None
    tpot_s: Spread | None
    e2e_latency_s: Spread | None
    longest_pause_s: Spread | None
    preemption_loss_s: float
    num_evictions: int
    num_moves: int
    longest_overtaken_s: float
    most_overtaking: int


@dataclass(frozen=True, slots=True)
class Curves:
    """What is drawn: `ttft_s`, `e2e_latency_s` and `longest_pause_s` at each of
    `SHARES`, and the waiting requests and the instances at moments that are evenly spread over the
    arrivals."""

    ttft_s: tuple[float, ...]
    e2e_latency_s: tuple[float, ...]
    longest_pause_s: tuple[float, ...]
    moments_s: tuple[float, ...]
    num_waiting: tuple[float, ...]
    num_instances: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """`by_rank` is empty where all requests have the same rank. What is averaged over time
    (`fragmentation` and `used_share` as shares of all blocks, `num_waiting`, `mean_num_instances`)
    ends with the last arrival, and is 0 if nobody looked until then. `downtime_s` is None without
    moves. `num_launched` and `num_removed` are instances, by auto-scaling. `steady` is None where
    the run was too short to tell (`is_steady`).
    """

    all: Figures
    by_rank: dict[int, Figures]
    num_failed: int
    num_failed_moves: dict[str, int]
    downtime_s: Spread | None
    fragmentation: float
    used_share: float
    num_waiting: float
    mean_num_instances: float
    num_launched: int
    num_removed: int
    steady: bool | None
    duration_s: float
    num_steps: int
    curves: Curves


def summarize(outcome: Outcome, arrivals_s: Sequence[float], warm_up: float = 0.0) -> Summary:
    """`arrivals_s` are those of the whole trace, ascending. Its first `warm_up` (a share) are left
    out of all figures but the number of failed requests and moves, and the duration.

    Raises:
        ValueError: the share is not from 0 to below 1.
    """
    if not 0 <= warm_up < 1:
        raise ValueError(f"the warm-up must be a share from 0 to below 1, not {warm_up:g}")
    begin_s = arrivals_s[int(warm_up * len(arrivals_s))]
    columns = {name: np.array(column) for name, column in outcome.rows.columns.items()}
    counted = columns["arrival_s"] >= begin_s
    columns = {name: column[counted] for name, column in columns.items()}
    ranks = np.unique(columns["rank"])
    sampled, last_s = outcome.sampled, arrivals_s[-1]
    over_time = _means(sampled, begin_s, last_s)
    return Summary(
        all=_figures(columns),
        by_rank={
            int(rank): _figures(
                {name: column[columns["rank"] == rank] for name, column in columns.items()}
            )
            for rank in ranks
            if len(ranks) > 1
        },
        num_failed=outcome.num_failed,
        num_failed_moves=dict(sorted(outcome.num_failed_moves.items())),
        downtime_s=spread(np.array(outcome.downtimes_s)),
        fragmentation=over_time["fragmentation"],
        used_share=over_time["used_share"],
        num_waiting=over_time["num_waiting"],
        mean_num_instances=over_time["num_instances"],
        num_launched=outcome.num_launched,
        num_removed=outcome.num_removed,
        steady=is_steady(sampled, arrivals_s),
        duration_s=outcome.duration_s,
        num_steps=outcome.num_steps,
        curves=_curves(columns, sampled, arrivals_s),
    )


def spread(values: Values) -> Spread | None:
    if not len(values):
        return None
    p50, p99 = np.percentile(values, (50, 99))
    return Spread(float(values.mean()), float(p50), float(p99), float(values.max()))


def _figures(columns: dict[str, Values]) -> Figures:
    num = len(columns["arrival_s"])
    streams = columns["num_output_tokens"] > 1
    return Figures(
        num_requests=num,
        ttft_s=spread(columns["ttft_s"]),
        tpot_s=spread(columns["tpot_s"][streams]),
        e2e_latency_s=spread(columns["e2e_latency_s"]),
        longest_pause_s=spread(columns["longest_pause_s"][streams]),
        preemption_loss_s=float(columns["preemption_loss_s"].sum()) / max(1, num),
        num_evictions=int(columns["num_evictions"].sum()),
        num_moves=int(columns["num_moves"].sum()),
        longest_overtaken_s=float(columns["overtaken_s"].max(initial=0.0)),
        most_overtaking=int(columns["num_overtaking"].max(initial=0.0)),
    )


def _means(sampled: Sampled, begin_s: float, end_s: float) -> dict[str, float]:
    times_s = np.array(sampled.times_s)
    seen = (times_s >= begin_s) & (times_s <= end_s)
    names = ("fragmentation", "used_share", "num_waiting", "num_instances")
    if not seen.any():
        return dict.fromkeys(names, 0.0)
    return {name: float(np.array(getattr(sampled, name))[seen].mean()) for name in names}


def _curves(columns: dict[str, Values], sampled: Sampled, arrivals_s: Sequence[float]) -> Curves:
    moments_s = np.linspace(arrivals_s[0], arrivals_s[-1], NUM_MOMENTS)
    times_s, waiting = np.array(sampled.times_s), np.array(sampled.num_waiting, float)
    instances = np.array(sampled.num_instances, float)
    return Curves(
        ttft_s=_quantiles(columns["ttft_s"]),
        e2e_latency_s=_quantiles(columns["e2e_latency_s"]),
        longest_pause_s=_quantiles(columns["longest_pause_s"]),
        moments_s=tuple(moments_s.tolist()),
        num_waiting=tuple(np.interp(moments_s, times_s, waiting).tolist()),
        num_instances=tuple(np.interp(moments_s, times_s, instances).tolist()),
    )


def _quantiles(values: Values) -> tuple[float, ...]:
    if not len(values):
        return ()
    found: list[float] = np.quantile(values, SHARES).tolist()
    return tuple(found)


# -- steady state ----------------------------------------------------------------------------------
#
# Did the queues and the memory stop filling?
#
# Above saturation queues grow in proportion to the time since the load began. So within the second
# half of the arrivals they grow by two thirds of their mean there; below saturation they come and
# go. The same holds for the memory in use while a cluster still fills, as it does for minutes where
# outputs are long. Half of those two thirds counts as growing.
#
# A long queue is none of a steady state either, whether it grows or not, if a request in it waits
# for a good part of the run: it stands there because of what came before, and the run ends before
# another one would have formed.

MAX_GROWTH = 1 / 3
"""Of the mean."""
FEW_WAITING = 1.0
"""Growth of so many waiting requests per instance is none."""
FILLS = 0.02
"""Growth of the memory in use by less than this share of all blocks is none."""
MAX_STANDING = 0.1
"""Of the requests that arrive in the second half: so many may wait in the mean, that is, a request
may wait a tenth of that time."""
MIN_SAMPLES = 16


def is_steady(sampled: Sampled, arrivals_s: Sequence[float]) -> bool | None:
    """`arrivals_s`: when the requests arrived, ascending. None: the second half of the arrivals
    has too few samples to tell.

    Growth is that of a straight line through the samples of the second half, by least squares.
    """
    times_s = np.array(sampled.times_s)
    middle_s = (arrivals_s[0] + arrivals_s[-1]) / 2
    seen = (times_s >= middle_s) & (times_s <= arrivals_s[-1])
    if not seen.any():
        return None
    waiting = np.array(sampled.num_waiting, float)[seen]
    few = FEW_WAITING * float(np.array(sampled.num_instances)[seen].mean())
    num_arrivals = int((np.array(arrivals_s) >= middle_s).sum())
    if waiting.mean() > max(MAX_STANDING * num_arrivals, few):
        return False
    if np.count_nonzero(seen) < MIN_SAMPLES:
        return None
    return not (
        _grows(times_s[seen], waiting, few)
        or _grows(times_s[seen], np.array(sampled.used_share)[seen], FILLS)
    )


def _grows(times_s: Values, values: Values, least: float) -> bool:
    per_s = float(np.polyfit(times_s - times_s[0], values, 1)[0])
    growth = per_s * float(times_s[-1] - times_s[0])
    return growth > max(MAX_GROWTH * float(values.mean()), least)
