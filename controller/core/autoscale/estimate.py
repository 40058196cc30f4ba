"""What latencies the next minute would have with another number of instances.

A request's share of an instance is what its latencies go by. With R running requests on S instances
that serve, and N instances,

    growth(N)  = max(1, R / N) / max(1, R / S)
    TPOT(N)    = P99 of the last minute * growth(N)
    TTFT(N)    = the larger of max(P99 of the last minute, the longest wait so far) * growth(N)
                 and waiting requests / (first tokens per second of the last minute * N / S)

It takes all of a step's time for proportional to the batch. A step has a fixed part too, so that
TPOT grows by less than this when an instance goes, which is the safe side; and falls by less when
one comes, so that one more decision may follow. A request that has an instance for itself gains
nothing by another one.
"""

from dataclasses import dataclass
from enum import StrEnum

WINDOW_S = 60.0


class Target(StrEnum):
    TTFT = "ttft"
    TPOT = "tpot"


@dataclass(frozen=True, slots=True)
class RecentLatencies:
    """What clients saw in the last minute. None: nobody saw one."""

    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None
    num_first_tokens: int = 0
    longest_wait_s: float = 0.0
    """Of the requests that wait now."""
    settled: bool = True
    """Whether as many instances served in all of that minute as now: else its percentiles tell of
    another cluster."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """The requests, and the instances that serve."""

    num_running: int
    num_waiting: int
    num_serving: int


@dataclass(frozen=True, slots=True)
class Estimate:
    ttft_s: float | None = None
    tpot_s: float | None = None

    def of(self, target: Target) -> float | None:
        return self.ttft_s if target is Target.TTFT else self.tpot_s


NOTHING_KNOWN = Estimate()


def estimate(recent: RecentLatencies, crowd: Crowd, num_instances: int) -> Estimate:
    """The P99 of the next minute with `num_instances`; None where nothing is known. It does not
    rise with the number of instances, nor fall with a latency, a wait or the waiting requests."""
    if not crowd.num_serving or num_instances < 1:
        return NOTHING_KNOWN
    share = max(1.0, crowd.num_running / crowd.num_serving)
    growth = max(1.0, crowd.num_running / num_instances) / share
    ttft_p99_s = recent.ttft_p99_s if recent.settled else None
    tpot_p99_s = recent.tpot_p99_s if recent.settled else None
    known = [] if ttft_p99_s is None else [ttft_p99_s * growth]
    if crowd.num_waiting:
        known.append(recent.longest_wait_s * growth)
        if recent.num_first_tokens:
            per_s = recent.num_first_tokens / WINDOW_S * num_instances / crowd.num_serving
            known.append(crowd.num_waiting / per_s)
    return Estimate(max(known, default=None), None if tpot_p99_s is None else tpot_p99_s * growth)
