"""Metrics in Prometheus's format: the controller's page, and what a frontend adds to vLLM's own
metrics.

The controller's `/metrics` is the wire status in Prometheus's text format, with the names and units
of docs/metrics.md, section Prometheus.

A null field has no sample, and no value is infinite. Otherwise a draining instance would have a
freeness of -Inf, which would spoil every sum and mean over instances. Every known label has a
sample from the start on, and a figure about waiting requests is 0 if none waits: a rate needs the 0
before the first event, and a series with gaps cannot be averaged. Labels have few values (ids,
states, levels, kinds of events), so no sentence and no request id is a label.

For each figure of a member there is a row in the tables below. Each figure of the cluster is in the
function for its subject."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, get_args

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from controller.api.text.hints import own_version
from controller.api.wire.status import (
    AutoscaleMode,
    ClusterState,
    ClusterStatus,
    FrontendStatus,
    InstanceState,
    InstanceStatus,
    ReplaysStatus,
)
from controller.core.fleet.autoscaler import ScaleReason
from controller.core.fleet.cluster_spec import LEAVES_BY_MOVES, MOVE_REASONS, ExitReason
from controller.core.migration.move_records import DOWNTIME_BOUNDS_S, MoveLog
from controller.core.record.event_log import EventKind
from controller.core.record.request_record import ENDED, RequestRecord, RequestState
from controller.core.record.verdict import Word
from controller.core.replay.replay_log import LOST_WAYS, Way
from controller.core.replay.replay_machine import ReplayRefusal
from controller.core.scheduler_events import RejectCode

HELD = "held"
"""The state of auto-scaling while an operator's own scaling takes precedence over it, whether
auto-scaling is on or in a dry run."""
_IS_IN_STATE = "1 for the state that it is in, 0 for others"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Samples = Mapping[Any, float | None]
"""For each tuple of label values, the value of the sample."""
Members = Sequence[InstanceStatus] | Sequence[FrontendStatus]


class Figure(NamedTuple):
    name: str
    """The metric's name without the prefix `llumctl_instance_` or `llumctl_frontend_`, and without
    `_total`."""
    field: str
    """A field of InstanceStatus or FrontendStatus."""
    help: str


_MEMBER_GAUGES = (
    Figure("ttft_p99_seconds", "ttft_p99_s", "p99 of the time to first token, last minute"),
    Figure("age_seconds", "age_s", "Time since it was last heard of"),
    Figure("uptime_seconds", "up_s", "Since its process began"),
)
_MEMBER_COUNTERS = (
    Figure("restarts", "num_restarts", "Processes after the first that this controller saw"),
)

INSTANCE_GAUGES = (
    Figure("freeness_steps", "freeness_steps", "Decode steps until memory is full"),
    Figure("virtual_usage_blocks", "virtual_usage_blocks", "KV blocks that are used or claimed"),
    Figure("headroom_blocks", "headroom_blocks", "KV blocks kept free for higher levels"),
    Figure("block_size_tokens", "block_size", "Tokens that a KV block holds"),
    Figure("total_blocks", "num_total_blocks", "KV blocks in all"),
    Figure("free_blocks", "num_free_blocks", "KV blocks that no request holds"),
    Figure("watermark_blocks", "watermark_blocks", "KV blocks kept back from new requests"),
    Figure("kv_cache_usage_ratio", "kv_cache_usage", "Share of the KV blocks in use"),
    Figure("max_running_requests", "max_running_reqs", "Places in the engine's batch"),
    Figure("running_requests", "num_running_reqs", "Requests in the engine's batch"),
    Figure("waiting_requests", "num_waiting_reqs", "Requests in the engine's queue"),
    Figure(
        "unreported_requests",
        "num_unreported_reqs",
        "Requests that were dispatched and are in no status yet",
    ),
    Figure("migrations_in_requests", "num_moves_in", "Requests that are being moved to it"),
    Figure("migrations_out_requests", "num_moves_out", "Requests that are being moved from it"),
    Figure(
        "replays_in_requests",
        "num_replays_in",
        "Requests that were lost with others and are to go on there",
    ),
    Figure(
        "replays_out_requests",
        "num_replays_out",
        "Requests that were lost with it and have had no token since",
    ),
    Figure("step_seconds", "step_time_s", "Duration of the last engine step"),
    Figure("step_limit_seconds", "step_limit_s", "How long a step may take beside decodes; 0: any"),
    Figure("backlog_seconds", "backlog_s", "Time to compute the prompts that it has"),
    Figure("cpu_cores", "cpu_cores", "Cores that its process kept busy over the last second"),
    *_MEMBER_GAUGES,
)
INSTANCE_LEVEL_GAUGES = (
    Figure(
        "running_requests",
        "num_running_by_level",
        "Requests of a priority level in the engine's batch",
    ),
    Figure("waiting_requests", "num_waiting_by_level", "Requests of a priority level in its queue"),
    Figure("headroom_blocks", "headroom_by_level_blocks", "KV blocks kept free for a level"),
    Figure("ttft_p99_seconds", "ttft_p99_by_level_s", "p99 of the time to first token of a level"),
)
"""Each of these fields is a dictionary by level, and the level becomes a label."""
INSTANCE_COUNTERS = (
    Figure("evictions", "num_evictions", "Requests that lost their blocks, in this process"),
    Figure("prompt_tokens", "num_prompt_tokens", "Tokens of requests that entered the batch"),
    Figure("cached_tokens", "num_cached_tokens", "Those of them that its prefix cache had"),
    Figure("fetched_tokens", "num_fetched_tokens", "Tokens copied from other prefix caches"),
    Figure("loaded_tokens", "num_loaded_tokens", "Tokens copied from its host cache"),
    Figure("steps", "num_steps", "Engine steps of this process"),
    Figure("busy_seconds", "busy_s", "Time of the engine steps of this process"),
    *_MEMBER_COUNTERS,
)
FRONTEND_GAUGES = (
    Figure("live_requests", "num_live_reqs", "Requests asked for or running"),
    Figure("tpot_p99_seconds", "tpot_p99_s", "p99 of the time per output token, last minute"),
    *_MEMBER_GAUGES,
)
FRONTEND_COUNTERS = _MEMBER_COUNTERS


MIRROR_GAUGES = (
    Figure("mirrored_tokens", "tokens", "Mean output tokens of requests and of their copies"),
    Figure("mirrored_ttft_seconds", "ttft_s", "Mean time to first token of them"),
    Figure("mirrored_latency_seconds", "latency_s", "Mean time to the end of their answers"),
)
"""Of MirrorStatus, where the copy's figure has the same name after `copy_`."""


def render(of_models: Mapping[str, "ClusterMetrics"]) -> bytes:
    """Renders the controller's page, from the metrics of each model by name. With several models
    each sample has the label `model`."""
    if len(of_models) == 1:
        (only,) = of_models.values()
        return generate_latest(only)
    return generate_latest(ModelMetrics(of_models))


class ClusterMetrics(Collector):
    """The metrics of one model. `event_counts`: how many events of each kind there were since the
    controller started. Kinds without any event may be missing."""

    def __init__(
        self, status: ClusterStatus, event_counts: Mapping[EventKind, int], move_log: MoveLog
    ) -> None:
        self._status = status
        self._event_counts = event_counts
        self._move_log = move_log

    def collect(self) -> Iterator[Metric]:
        status = self._status
        yield from _of_cluster(status)
        yield from _held(status)
        yield _goodput(status)
        yield from _autoscale(status)
        yield from _overload(status)
        yield from _traffic(status)
        yield _events(self._event_counts)
        yield from _moves(len(status.moves), self._move_log)
        yield from _replays(status.replays)
        for kind, members, gauges, counters in (
            ("instance", status.instances, INSTANCE_GAUGES, INSTANCE_COUNTERS),
            ("frontend", status.frontends, FRONTEND_GAUGES, FRONTEND_COUNTERS),
        ):
            yield from _of_members(kind, members, gauges, counters)
        yield from _by_level(status)
        yield _adapters(status)
        yield from _queue_heads(status.instances)


class ModelMetrics(Collector):
    def __init__(self, of_models: Mapping[str, ClusterMetrics]) -> None:
        self._of_models = of_models

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        for model, metrics in self._of_models.items():
            for metric in metrics.collect():
                known = found.setdefault(metric.name, metric)
                labelled = [
                    each._replace(labels={"model": model, **each.labels}) for each in metric.samples
                ]
                known.samples = labelled if known is metric else [*known.samples, *labelled]
        yield from found.values()


def _of_cluster(status: ClusterStatus) -> Iterator[Metric]:
    version = own_version() or "unknown"
    yield _gauge("build_info", "llumctl's version", ("version",), {(version,): 1})
    about = (status.cluster, status.model, status.engine, status.policy)
    names = ("name", "model", "engine", "policy")
    yield _gauge("cluster_info", "What the cluster serves, and how", names, {about: 1})
    states = {(each,): status.state is each for each in ClusterState}
    yield _gauge("cluster_state", _IS_IN_STATE, ("state",), states)
    said = None if status.verdict is None else status.verdict.word
    words = {(word,): word == said for word in Word}
    yield _gauge("verdict", "1 for the word that says how it is, 0 for others", ("word",), words)
    yield _gauge("uptime_seconds", "Since this controller started", (), {(): status.uptime_s})
    since_s = {(): status.cluster_uptime_s}
    yield _gauge("cluster_uptime_seconds", "Since the cluster was started", (), since_s)


def _adapters(status: ClusterStatus) -> Metric:
    numbers = {
        (each.name, state): len(instances)
        for each in status.adapters
        for state, instances in (
            ("loaded", each.loaded_on),
            ("failed", each.failed_on),
            ("in_use", each.in_use_on),
        )
    }
    what = "Instances that have a LoRA adapter loaded, cannot use it, or have requests with it"
    return _gauge("adapter_instances", what, ("adapter", "state"), numbers)


def _events(counts: Mapping[EventKind, int]) -> Metric:
    numbers = {(kind,): counts.get(kind, 0) for kind in EventKind}
    return _counter("events", "Events since this controller started", ("kind",), numbers)


def _goodput(status: ClusterStatus) -> Metric:
    return _gauge(
        "level_goodput_ratio",
        "Share of the requests that ended in the last minute and kept the targets of their level",
        ("level",),
        {(each.name,): each.goodput for each in status.levels if each.goodput is not None},
    )


def _held(status: ClusterStatus) -> Iterator[Metric]:
    held = status.held
    number = {(): status.num_held_reqs}
    yield _gauge("held_requests", "Requests that wait at the controller", (), number)
    none = dict.fromkeys((level.name for level in status.levels), 0)
    by_level = none | (held.num_by_level if held else {})
    yield _gauge(
        "held_level_requests",
        "Requests of a priority level that wait at the controller",
        ("level",),
        {(level,): number for level, number in by_level.items()},
    )
    yield _gauge(
        "held_demand_blocks",
        "KV blocks that the requests at the controller need together",
        (),
        {(): (held and held.demand_blocks) or 0},
    )
    yield _gauge(
        "held_oldest_wait_seconds",
        "Time since the first of the requests at the controller arrived",
        (),
        {(): held.oldest_wait_s if held else 0},
    )
    yield _gauge(
        "held_head_lacking_blocks",
        "KV blocks that the first request at the controller lacks, on the instance kept for it",
        (),
        {(): (held and held.head.lacking_blocks) or 0},
    )
    yield _gauge(
        "instance_kept_requests",
        "1 if the instance is kept free for a request at the controller",
        ("instance_id",),
        {
            (each.id,): each.kept_for is not None
            for each in status.instances
            if each.num_running_reqs is not None
        },
    )


def _autoscale(status: ClusterStatus) -> Iterator[Metric]:
    """Before the first check, the wanted number of instances is their present number, and F_scale
    has no sample."""
    found = status.autoscale
    wanted = found.num_instances if found.num_wanted is None else found.num_wanted
    planned = {(): found.num_instances}
    yield _gauge(
        "autoscale_wanted_instances", "Instances that auto-scaling wants", (), {(): wanted}
    )
    yield _gauge("autoscale_planned_instances", "Instances that exist or start", (), planned)
    yield _gauge(
        "autoscale_freeness_steps",
        "F_scale of the instances that serve, at the last check",
        (),
        {(): None if found.last is None else found.last.freeness_steps},
    )
    present = found.mode if found.held is None else HELD
    states = {(each,): present == each for each in (*get_args(AutoscaleMode), HELD)}
    yield _gauge("autoscale_state", _IS_IN_STATE, ("state",), states)
    checks = {(reason,): found.num_checks_by_reason.get(reason, 0) for reason in ScaleReason}
    yield _counter("autoscale_checks", "Checks of the load, by their outcome", ("reason",), checks)


def _overload(status: ClusterStatus) -> Iterator[Metric]:
    numbers = {(str(code), level.name): 0 for code in RejectCode for level in status.levels}
    numbers |= {(each.reason, each.level): each.num_refused for each in status.refused}
    yield _counter(
        "refused_requests",
        "Requests that the controller refused since it started",
        ("reason", "level"),
        numbers,
    )
    live = {(each.key,): each.num_live_reqs for each in status.keys}
    yield _gauge("key_live_requests", "Live requests of an API key", ("key",), live)
    yield _gauge(
        "key_minute_tokens",
        "Tokens that an API key used in the last minute",
        ("key",),
        {(each.key,): each.num_tokens_last_minute for each in status.keys},
    )
    yield _counter(
        "key_refused_requests",
        "Requests over a limit of their API key, since this controller started",
        ("key",),
        {(each.key,): each.num_refused for each in status.keys},
    )


def _traffic(status: ClusterStatus) -> Iterator[Metric]:
    yield _counter(
        "split_requests",
        "Requests that named this model, by the model that answers them",
        ("to",),
        {(each.model,): each.num_reqs for each in status.split},
    )
    outcomes = {
        (each.model, outcome): number
        for each in status.mirrors
        for outcome, number in (
            ("compared", each.num_compared),
            ("failed", each.num_failed),
            ("left_out", each.num_left_out),
        )
    }
    what = "Copies of this model's requests that ended, or were left out for want of places"
    yield _counter("mirrored_requests", what, ("to", "outcome"), outcomes)
    for name, field, help_text in MIRROR_GAUGES:
        means = {
            (each.model, of): getattr(each, f"{prefix}{field}")
            for each in status.mirrors
            for of, prefix in (("original", ""), ("copy", "copy_"))
        }
        yield _gauge(name, help_text, ("to", "of"), means)


def _moves(num_moves: int, log: MoveLog) -> Iterator[Metric]:
    under_way = {(): num_moves}
    yield _gauge("migrations_in_flight_requests", "Requests that are being moved", (), under_way)
    yield _counter(
        "migrations_ended",
        "Moves that ended since this controller began",
        ("outcome", "reason"),
        {
            (outcome, reason): log.num_by_reason[outcome, reason]
            for outcome in log.num_by_outcome
            for reason in MOVE_REASONS
        },
    )
    yield _counter(
        "migrations_copied_bytes",
        "KV blocks copied between instances since this controller began",
        (),
        {(): log.num_bytes},
    )
    downtimes = HistogramMetricFamily(
        "llumctl_migration_downtime_seconds",
        "Time from the source's last token to the destination's first",
    )
    bounds = [*(str(bound) for bound in DOWNTIME_BOUNDS_S), "+Inf"]
    buckets = list(zip(bounds, accumulate(log.num_downtimes), strict=True))
    downtimes.add_metric([], buckets, log.sum_downtimes_s)
    yield downtimes


def _replays(replays: ReplaysStatus) -> Iterator[Metric]:
    yield _gauge(
        "replays_in_flight_requests",
        "Requests that were lost with an instance and have no token since",
        (),
        {(): replays.num_replaying},
    )
    numbers = {(str(Way.MOVED), str(reason)): 0 for reason in LEAVES_BY_MOVES}
    numbers |= {(str(way), str(reason)): 0 for way in LOST_WAYS for reason in ExitReason}
    numbers |= {(each.way, each.reason): each.num_saved for each in replays.saved}
    yield _counter(
        "saved_requests",
        "Requests that left an instance or were lost with it, since this controller started",
        ("way", "reason"),
        numbers,
    )


def _of_members(
    kind: str, members: Members, gauges: Iterable[Figure], counters: Iterable[Figure]
) -> Iterator[Metric]:
    states = {(each.id, state): each.state is state for each in members for state in InstanceState}
    yield _gauge(f"{kind}_state", _IS_IN_STATE, (f"{kind}_id", "state"), states)
    for make, figures in ((_gauge, gauges), (_counter, counters)):
        for figure in figures:
            samples = {(each.id,): getattr(each, figure.field) for each in members}
            yield make(f"{kind}_{figure.name}", figure.help, (f"{kind}_id",), samples)


def _by_level(status: ClusterStatus) -> Iterator[Metric]:
    """Every level has a sample for every instance that has reported, except for latencies."""
    none = dict.fromkeys((level.name for level in status.levels), 0)
    for figure in INSTANCE_LEVEL_GAUGES:
        samples: dict[tuple[str, str], float] = {}
        for instance in status.instances:
            found: dict[str, float] = getattr(instance, figure.field)
            if instance.num_running_reqs is not None and not figure.name.endswith("_seconds"):
                found = none | found
            samples |= {(instance.id, level): value for level, value in found.items()}
        labels = ("instance_id", "level")
        yield _gauge(f"instance_level_{figure.name}", figure.help, labels, samples)


def _queue_heads(instances: Iterable[InstanceStatus]) -> Iterator[Metric]:
    heads = {(each.id,): each.queue_head for each in instances if each.num_waiting_reqs is not None}
    yield _gauge(
        "instance_queue_head_waited_seconds",
        "Since the first request in the queue arrived; 0 if nothing waits",
        ("instance_id",),
        {labels: head.waited_s if head else 0 for labels, head in heads.items()},
    )
    yield _gauge(
        "instance_queue_head_demand_blocks",
        "KV blocks that the first request in the queue needs; 0 if nothing waits",
        ("instance_id",),
        {labels: head.demand_blocks if head else 0 for labels, head in heads.items()},
    )


def _family(
    make: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    labels: Sequence[str],
    samples: Samples,
) -> Metric:
    """Makes one metric. A value that is None or infinite gets no sample."""
    family = make(f"llumctl_{name}", text, labels=labels)
    for values, number in samples.items():
        if number is not None and math.isfinite(number):
            family.add_metric(values, number)
    return family


_gauge = partial(_family, GaugeMetricFamily)
_counter = partial(_family, CounterMetricFamily)


# -- a frontend's requests -------------------------------------------------------------------------
# What a frontend measures about its requests, by priority level.
#
# The metrics are in the registry that vLLM's own `/metrics` route serves, so that one page shows
# both. Times are recorded as soon as they are known; tokens, evictions and outcomes are recorded
# when a request ends.


def _ladder(first_s: float, last_s: float) -> tuple[float, ...]:
    """The bounds of buckets, six to a decade. The ratio of neighbours is at most 5:3, which limits
    the error of a percentile that is computed from the buckets."""
    bounds = (round(step * 10.0**power, 9) for power in range(-6, 5) for step in _STEPS)
    return tuple(bound for bound in bounds if first_s <= bound <= last_s)


_STEPS = (1, 1.5, 2, 3, 5, 7.5)

DISPATCH_BUCKETS_S = _ladder(0.0005, 30)
"""From two messages on one machine up to the default `hold_timeout_s`."""
TTFT_BUCKETS_S = _ladder(0.01, 150)
"""From a short prompt on an idle GPU up to minutes in a queue."""
TPOT_BUCKETS_S = _ladder(0.001, 2)
"""From a small model on a fast GPU up to a crowded batch on a CPU."""
PAUSE_BUCKETS_S = _ladder(0.01, 50)
"""From a few tokens that an idle instance computes again, up to a full cluster that lost an
instance."""
E2E_BUCKETS_S = _ladder(0.1, 1500)
"""From a few tokens up to long generations that were evicted on their way."""


class RequestMetrics:
    """The metrics of a frontend's requests. `levels`: the names of the priority levels; their
    series start at 0. `models`: the names of its models, if there are several; then each series has
    the label `model`, and `of` gives what counts the requests of a model.

    Raises ValueError if the registry already has these metrics."""

    def __init__(
        self,
        levels: Iterable[str],
        registry: CollectorRegistry = REGISTRY,
        models: Sequence[str] = (),
    ) -> None:
        self._model: tuple[str, ...] = ()
        """The first label of each series, if there are several models."""
        first = ["model"] if models else []

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(
                f"llumctl_request_{name}",
                text,
                [*first, "level"],
                registry=registry,
                buckets=buckets,
            )

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"llumctl_{name}", text, [*first, *labels], registry=registry)

        self._dispatch = histogram(
            "dispatch_seconds", "Time from arrival until an instance was chosen", DISPATCH_BUCKETS_S
        )
        self._ttft = histogram(
            "ttft_seconds", "Time from arrival until the first token", TTFT_BUCKETS_S
        )
        self._tpot = histogram(
            "tpot_seconds",
            "Mean time per token after the first, of finished requests",
            TPOT_BUCKETS_S,
        )
        self._e2e = histogram(
            "e2e_latency_seconds",
            "Time from arrival to the last token, of finished requests",
            E2E_BUCKETS_S,
        )
        self._pauses = histogram(
            "replay_pause_seconds",
            "Pause of a stream from the last token before a loss to the first after it",
            PAUSE_BUCKETS_S,
        )
        self._replays = counter(
            "request_replays", "Requests that were lost and went on elsewhere", "level"
        )
        self._not_replayed = counter(
            "replay_failures",
            "Requests that were lost and ended, by the reason against a replay",
            "reason",
        )
        self._ended = counter("requests_ended", "Requests that ended", "level", "outcome")
        self._prompt_tokens = counter(
            "request_prompt_tokens", "Prompt tokens of ended requests", "level"
        )
        self._output_tokens = counter(
            "request_output_tokens", "Output tokens of ended requests", "level"
        )
        self._evictions = counter("request_evictions", "Evictions of ended requests", "level")
        self._continued = counter(
            "request_continued",
            "Times that the state of ended requests was computed again: later tokens may differ",
            "level",
        )
        names = tuple(levels)
        for each in map(self.of, models) if models else (self,):
            each._start_at_zero(names)

    def of(self, model: str) -> "RequestMetrics":
        """The same metrics, which count for this one of several models."""
        found = copy(self)
        found._model = (model,)
        return found

    def dispatched(self, level: str, waited_s: float) -> None:
        """A new request has got its first instance `waited_s` after it arrived."""
        self._dispatch.labels(*self._model, level).observe(max(0.0, waited_s))

    def first_token(self, level: str, ttft_s: float) -> None:
        self._ttft.labels(*self._model, level).observe(max(0.0, ttft_s))

    def replayed(self, level: str, downtime_s: float | None) -> None:
        """A lost request has got its first token after the loss. `downtime_s`: the time since the
        token before that; None if there was no token before."""
        self._replays.labels(*self._model, level).inc()
        if downtime_s is not None:
            self._pauses.labels(*self._model, level).observe(max(0.0, downtime_s))

    def not_replayed(self, refusal: ReplayRefusal) -> None:
        self._not_replayed.labels(*self._model, refusal).inc()

    def ended(self, record: RequestRecord) -> None:
        """Records how a request ended; each request ends once. Raises ValueError if it has not
        ended."""
        if record.state not in ENDED:
            raise ValueError(f"a request that is {record.state} has not ended")
        level = record.level
        self._ended.labels(*self._model, level, record.state).inc()
        self._prompt_tokens.labels(*self._model, level).inc(record.num_prompt_tokens)
        self._output_tokens.labels(*self._model, level).inc(record.num_output_tokens)
        self._evictions.labels(*self._model, level).inc(record.num_evictions)
        self._continued.labels(*self._model, level).inc(record.num_continued)
        if record.state is RequestState.FINISHED and record.end_time_s is not None:
            # These are wall-clock times. If the clock was set back, the duration counts as 0.
            self._e2e.labels(*self._model, level).observe(
                max(0.0, record.end_time_s - record.arrival_time_s)
            )
            if record.num_output_tokens > 1 and record.first_token_time_s is not None:
                decoding_s = max(0.0, record.end_time_s - record.first_token_time_s)
                self._tpot.labels(*self._model, level).observe(
                    decoding_s / (record.num_output_tokens - 1)
                )

    def _start_at_zero(self, levels: Iterable[str]) -> None:
        by_level = (self._dispatch, self._ttft, self._tpot, self._e2e, self._pauses)
        counters = (self._prompt_tokens, self._output_tokens, self._evictions, self._continued)
        for level in levels:
            for each in (*by_level, *counters, self._replays):
                each.labels(*self._model, level)
            for outcome in sorted(ENDED):
                self._ended.labels(*self._model, level, outcome)
        for refusal in ReplayRefusal:
            self._not_replayed.labels(*self._model, refusal)
