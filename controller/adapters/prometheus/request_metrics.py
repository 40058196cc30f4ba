"""What a frontend measures of its requests, by priority level.

The metrics are in the registry that vLLM's own `/metrics` route serves, so that one page shows
both. Times are observed when they are known (the first token's at once); tokens, evictions and
outcomes when a request ends.
"""

from collections.abc import Iterable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from controller.core.record.request_record import ENDED, RequestRecord, RequestState
from controller.core.replay.replay_machine import ReplayRefusal


def _ladder(first_s: float, last_s: float) -> tuple[float, ...]:
    """Bucket bounds, six to a decade. Neighbours are at most 5:3 apart, which bounds the error of
    a percentile read from them."""
    bounds = (round(step * 10.0**power, 9) for power in range(-6, 5) for step in _STEPS)
    return tuple(bound for bound in bounds if first_s <= bound <= last_s)


_STEPS = (1, 1.5, 2, 3, 5, 7.5)

DISPATCH_BUCKETS_S = _ladder(0.0005, 30)
"""Two messages on one machine, up to the default `hold_timeout_s`."""
TTFT_BUCKETS_S = _ladder(0.01, 150)
"""A short prompt on an idle GPU, up to minutes in a queue."""
TPOT_BUCKETS_S = _ladder(0.001, 2)
"""A small model on a fast GPU, up to a crowded batch of a CPU."""
PAUSE_BUCKETS_S = _ladder(0.01, 50)
"""A few tokens computed again on an idle instance, up to a full cluster that lost one."""
E2E_BUCKETS_S = _ladder(0.1, 1500)
"""A few tokens, up to long generations that were evicted on their way."""


class RequestMetrics:
    """`levels`: names of the priority levels; their series start at 0.

    Raises ValueError if the registry has these metrics already.
    """

    def __init__(self, levels: Iterable[str], registry: CollectorRegistry = REGISTRY) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(
                f"llumctl_request_{name}", text, ["level"], registry=registry, buckets=buckets
            )

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"llumctl_{name}", text, ["level", *labels], registry=registry)

        self._dispatch = histogram(
            "dispatch_seconds", "Arrival until an instance was chosen", DISPATCH_BUCKETS_S
        )
        self._ttft = histogram("ttft_seconds", "Arrival until the first token", TTFT_BUCKETS_S)
        self._tpot = histogram(
            "tpot_seconds", "Mean time per token after the first, of finished", TPOT_BUCKETS_S
        )
        self._e2e = histogram(
            "e2e_latency_seconds", "Arrival until the last token, of finished", E2E_BUCKETS_S
        )
        self._pauses = histogram(
            "replay_pause_seconds",
            "Pause of a stream from the last token before a loss to the first after it",
            PAUSE_BUCKETS_S,
        )
        self._replays = counter("request_replays", "Requests lost and gone on elsewhere")
        self._not_replayed = Counter(
            "llumctl_replay_failures",
            "Requests lost and ended, by the reason against a replay",
            ["reason"],
            registry=registry,
        )
        self._ended = counter("requests_ended", "Requests that ended", "outcome")
        self._prompt_tokens = counter("request_prompt_tokens", "Prompt tokens of ended requests")
        self._output_tokens = counter("request_output_tokens", "Output tokens of ended requests")
        self._evictions = counter("request_evictions", "Evictions of ended requests")
        for level in levels:
            self._start_at_zero(level)
        for refusal in ReplayRefusal:
            self._not_replayed.labels(refusal)

    def dispatched(self, level: str, waited_s: float) -> None:
        """A new request got its first instance `waited_s` after it arrived."""
        self._dispatch.labels(level).observe(max(0.0, waited_s))

    def first_token(self, level: str, ttft_s: float) -> None:
        self._ttft.labels(level).observe(max(0.0, ttft_s))

    def replayed(self, level: str, downtime_s: float | None) -> None:
        """A lost request has its first token again. `downtime_s`: since the token before; None:
        there was none."""
        self._replays.labels(level).inc()
        if downtime_s is not None:
            self._pauses.labels(level).observe(max(0.0, downtime_s))

    def not_replayed(self, refusal: ReplayRefusal) -> None:
        self._not_replayed.labels(refusal).inc()

    def ended(self, record: RequestRecord) -> None:
        """A request's one terminal outcome. Raises ValueError if it has not ended."""
        if record.state not in ENDED:
            raise ValueError(f"a request that is {record.state} has not ended")
        level = record.level
        self._ended.labels(level, record.state).inc()
        self._prompt_tokens.labels(level).inc(record.num_prompt_tokens)
        self._output_tokens.labels(level).inc(record.num_output_tokens)
        self._evictions.labels(level).inc(record.num_evictions)
        if record.state is RequestState.FINISHED and record.end_time_s is not None:
            # Wall-clock times: a clock set back makes no negative durations.
            self._e2e.labels(level).observe(max(0.0, record.end_time_s - record.arrival_time_s))
            if record.num_output_tokens > 1 and record.first_token_time_s is not None:
                decoding_s = max(0.0, record.end_time_s - record.first_token_time_s)
                self._tpot.labels(level).observe(decoding_s / (record.num_output_tokens - 1))

    def _start_at_zero(self, level: str) -> None:
        for histogram in (self._dispatch, self._ttft, self._tpot, self._e2e, self._pauses):
            histogram.labels(level)
        counters = (self._prompt_tokens, self._output_tokens, self._evictions, self._replays)
        for counter in counters:
            counter.labels(level)
        for outcome in sorted(ENDED):
            self._ended.labels(level, outcome)
