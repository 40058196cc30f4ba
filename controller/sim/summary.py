"""One run in figures: latencies by percentiles, what evictions cost, how full the memory was."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.sim.outcome import Outcome, Sampled
from controller.sim.steady import is_steady

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
    the run was too short to tell (`steady.is_steady`).
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
