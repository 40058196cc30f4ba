"""The outcome of a run: a row for each request that ended, samples over time, and figures that are
computed from both: percentiles of latencies, the cost of evictions, how full the memory was, and
whether the run reached a steady state. Also the figures of several seeds: means with 95 %
intervals, ratios, and means of ratios.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.core.load.snapshot import InstanceSnapshot, Level
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
        """Adds a row for a request that has finished."""
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
    """Averages over time, with one sample every `sample_s`. Shares are of all KV blocks.
    `num_instances` counts the instances that cost, including instances that start or drain."""

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
    num_failed_by_rank: Counter[int] = field(default_factory=Counter)
    num_moved: int = 0
    num_failed_moves: dict[str, int] = field(default_factory=dict)
    downtimes_s: list[float] = field(default_factory=list)
    num_launched: int = 0
    """Instances that auto-scaling launched."""
    num_removed: int = 0
    num_fetched_tokens: int = 0
    """Tokens of prompts whose KV was copied from the cache of another instance."""
    num_loaded_tokens: int = 0
    """Tokens of prompts whose KV was copied from the host cache of their own instance."""
    num_handed_over_tokens: int = 0
    """Tokens whose KV was copied to an instance before a request asked for them: from one that
    leaves, or to a new one."""
    num_steps: int = 0
    busy_s: float = 0.0
    """The time of all steps of all instances."""
    duration_s: float = 0.0
    """The virtual time until the last request ended."""

    @property
    def num_failed(self) -> int:
        return self.num_failed_by_rank.total()


# -- fragmentation ---------------------------------------------------------------------------------


def fragmented_blocks(
    snapshots: Sequence[InstanceSnapshot], waiting_demands: Iterable[int] = ()
) -> int:
    """Free memory that no request can use because it is not in one place: the demands of blocked
    queue heads, the smallest first, while their sum fits into the cluster's free blocks.
    `waiting_demands`: the demands of blocked requests that wait at the controller."""
    blocked = list(waiting_demands)
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
"""The shares at which a curve has quantiles; they are finer in the tail."""
NUM_MOMENTS = 60


@dataclass(frozen=True, slots=True)
class Spread:
    """The mean, percentiles and maximum of some values. Percentiles are interpolated between the
    two nearest values."""

    mean: float
    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of the requests that have finished. A spread is None if no request has this
    value: for example, only requests with at least two output tokens have `tpot_s` and
    `longest_pause_s`.

    `preemption_loss_s` is the mean over all finished requests, most of which lose nothing. A held
    request is overtaken when a later request of at most its rank is dispatched before it.
    `longest_overtaken_s`: the longest time for which one request was overtaken. `most_overtaking`:
    the largest number of requests that overtook one request.
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
    goodput: float | None = None
    """The share of the requests that kept the targets of their level; of all requests together,
    those that failed did not. None if no level has a target."""


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
    ends with the last arrival, and is 0 if nobody looked until then. `tokens_per_s`: the output
    tokens in that time; None if all requests arrive at once. `downtime_s` is None without
    moves. `num_launched` and `num_removed` are instances, by auto-scaling. `steady` is None if the
    run was too short to tell (`is_steady`).
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
    tokens_per_s: float | None
    num_launched: int
    num_removed: int
    steady: bool | None
    duration_s: float
    num_steps: int
    curves: Curves


def summarize(
    outcome: Outcome,
    arrivals_s: Sequence[float],
    warm_up: float = 0.0,
    levels: Sequence[Level] = (),
) -> Summary:
    """Computes the figures of a run. `arrivals_s`: the arrivals of the whole trace, ascending. The
    first requests (`warm_up` is their share) are left out of all figures except the number of
    failed requests, the number of moves, and the duration. `levels`: those of the policy, with the
    targets for goodput. A request of another rank belongs to the level of rank 0.

    Raises:
        ValueError: the share is not from 0 to below 1.
    """
    if not 0 <= warm_up < 1:
        raise ValueError(f"the warm-up must be a share from 0 to below 1, not {warm_up:g}")
    begin_s = arrivals_s[int(warm_up * len(arrivals_s))]
    columns = {name: np.array(column) for name, column in outcome.rows.columns.items()}
    tokens_per_s = _tokens_per_s(columns, begin_s, arrivals_s[-1])
    counted = columns["arrival_s"] >= begin_s
    columns = {name: column[counted] for name, column in columns.items()}
    ranks = np.unique(columns["rank"])
    sampled, last_s = outcome.sampled, arrivals_s[-1]
    over_time = _means(sampled, begin_s, last_s)
    return Summary(
        all=_figures(columns, levels, outcome.num_failed),
        by_rank={
            int(rank): _figures(
                {name: column[columns["rank"] == rank] for name, column in columns.items()},
                levels,
                outcome.num_failed_by_rank[int(rank)],
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
        tokens_per_s=tokens_per_s,
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


def _tokens_per_s(columns: dict[str, Values], begin_s: float, end_s: float) -> float | None:
    """The output tokens that came in this time, for each second. Those after the first token of a
    request count as if they came evenly."""
    if end_s <= begin_s:
        return None
    first_s = columns["arrival_s"] + columns["ttft_s"]
    decode_s = np.maximum(columns["e2e_latency_s"] - columns["ttft_s"], 1e-9)

    def num_until(moment_s: float) -> Values:
        later = (columns["num_output_tokens"] - 1) * np.clip((moment_s - first_s) / decode_s, 0, 1)
        return np.where(moment_s >= first_s, 1.0 + later, 0.0)

    return float((num_until(end_s) - num_until(begin_s)).sum()) / (end_s - begin_s)


def _goodput(columns: dict[str, Values], levels: Sequence[Level], num_failed: int) -> float | None:
    num = len(columns["rank"]) + num_failed
    if not num or not any(level.has_targets for level in levels):
        return None
    by_rank = {level.rank: level for level in levels}
    kept = (
        by_rank.get(int(rank), by_rank[0]).is_met(ttft_s, tpot_s)
        for rank, ttft_s, tpot_s in zip(
            columns["rank"], columns["ttft_s"], columns["tpot_s"], strict=True
        )
    )
    return sum(kept) / num


def _figures(
    columns: dict[str, Values], levels: Sequence[Level] = (), num_failed: int = 0
) -> Figures:
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
        goodput=_goodput(columns, levels, num_failed),
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
    quantiles: list[float] = np.quantile(values, SHARES).tolist()
    return tuple(quantiles)


# -- steady state ----------------------------------------------------------------------------------
#
# Did the queues and the memory stop filling?
#
# Above saturation queues grow in proportion to the time since the load began. So within the second
# half of the arrivals they grow by two thirds of their mean in that half; below saturation they
# come and go. The same holds for the memory in use while a cluster still fills, as it does for
# minutes where outputs are long. A growth of half as much, one third of the mean, counts as
# growing.
#
# A long queue is no steady state either, even if it does not grow, when a request in it waits for a
# large part of the run: then the queue is left over from an earlier time, and the run ends before
# the next queue would have formed.

MAX_GROWTH = 1 / 3
"""A growth by more than this share of the mean counts as growing."""
FEW_WAITING = 1.0
"""A growth by less than this many waiting requests per instance does not count."""
FILLS = 0.02
"""A growth of the memory in use by less than this share of all blocks does not count."""
MAX_STANDING = 0.1
"""At most this share of the requests that arrive in the second half may wait, on average. That is,
a request may wait a tenth of the time of the second half."""
MIN_SAMPLES = 16


def is_steady(sampled: Sampled, arrivals_s: Sequence[float]) -> bool | None:
    """Whether the run reached a steady state. `arrivals_s`: when the requests arrived, ascending.
    None: the second half of the arrivals has too few samples to tell.

    Growth is the slope of a straight line through the samples of the second half, by least squares.
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


# -- several seeds ---------------------------------------------------------------------------------


_T = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
)
"""97.5 % quantiles of Student's t for 1 to 20 degrees of freedom."""
_Z = 1.959964
"""The 97.5 % quantile of the normal distribution."""

Pair = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and the interval in which the true mean lies with 95 % confidence; `low` and `high`
    are None if there is only one value."""

    mean: float
    low: float | None
    high: float | None
    num_values: int


def t_quantile(num_degrees: int) -> float:
    """The value below which 97.5 % of Student's t distribution lies.

    Raises:
        ValueError: there is no degree of freedom.
    """
    if num_degrees < 1:
        raise ValueError(f"a t distribution has at least 1 degree of freedom, not {num_degrees}")
    if num_degrees <= len(_T):
        return _T[num_degrees - 1]
    # The expansion of Cornish and Fisher; from 21 degrees on it is right to four places.
    v, z = float(num_degrees), _Z
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3


def mean_of(values: Sequence[float]) -> Interval:
    """The mean over seeds. Raises ValueError if there are no values."""
    if not values:
        raise ValueError("there is no mean of no values")
    return _interval(np.array(values, float), float(np.mean(values)))


def ratio_of_means(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """The mean of `above` divided by the mean of `below`; both have one value for each seed, in the
    same order. None if one of the means is not positive, or would not be without one of the
    seeds."""
    return geometric_mean_ratio([(above, below)])


def geometric_mean_ratio(pairs: Sequence[Pair]) -> Interval | None:
    """The geometric mean of the ratios of means, for example of several workloads, which all have
    the same seeds. None if one of the means is not positive, or would not be without one of the
    seeds.

    Raises:
        ValueError: there is no pair, or the pairs do not all have the same number of seeds.
    """
    num_seeds = {len(values) for pair in pairs for values in pair}
    if len(num_seeds) != 1 or 0 in num_seeds:
        raise ValueError("ratios need figures of the same seeds, and at least one")
    tables = [(np.array(above, float), np.array(below, float)) for above, below in pairs]

    def logarithm(kept: NDArray[np.bool_]) -> float:
        means = [(float(above[kept].mean()), float(below[kept].mean())) for above, below in tables]
        if any(mean <= 0 for pair in means for mean in pair):
            return math.nan
        return float(np.mean([math.log(above / below) for above, below in means]))

    interval = _jackknife(num_seeds.pop(), logarithm)
    if math.isnan(interval.mean):
        return None
    low, high = (None if end is None else math.exp(end) for end in (interval.low, interval.high))
    return Interval(math.exp(interval.mean), low, high, interval.num_values)


def _jackknife(num: int, figure: Callable[[Any], float]) -> Interval:
    """The mean and the interval of `figure`, which gets a mask of the seeds to keep. The mean is
    nan if any of the figures is."""
    whole = figure(np.ones(num, bool))
    if num == 1:
        return Interval(whole, None, None, 1)
    without = np.array([figure(np.arange(num) != left_out) for left_out in range(num)])
    pseudo = num * whole - (num - 1) * without
    return _interval(pseudo, whole if np.isfinite(pseudo).all() else math.nan)


def _interval(values: NDArray[np.float64], middle: float) -> Interval:
    num = len(values)
    if num < 2:
        return Interval(middle, None, None, num)
    half = t_quantile(num - 1) * float(values.std(ddof=1)) / math.sqrt(num)
    return Interval(middle, middle - half, middle + half, num)
