"""What a request's record says to its client and to a tracing system: a receipt, and spans.

A span is a part of a request's life with a beginning and an end. All times are by the frontend's
clock, but for those of `admitted`, `evicted` and `prefix_fetched`, which are by the clock of the
instance's machine. So that no difference of clocks turns a span around, every time is brought into
the request's life, and a phase begins where the one before it ends.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controller.core.record.event_log import EventKind, LoggedEvent, Number
from controller.core.record.request_record import RequestRecord, RequestState

MAX_NAMED_INSTANCES = 16
"""A receipt names at most so many instances: proxies limit the size of headers."""

# -- the receipt ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Receipt:
    """How a client's request was served, which may be several requests for the cluster (several
    prompts, or `n` > 1)."""

    instances: tuple[str, ...]
    """The instances that had the requests last, in the order of the requests, each once; at most
    MAX_NAMED_INSTANCES of them."""
    queue_s: float
    """From the arrival until the request was in the batch of its first instance, as far as that is
    known: until it had an instance, if its engine has not begun it yet. Of several requests, the
    longest time."""
    num_cached_tokens: int | None
    """How many tokens of the prompts the prefix caches had, together; None before the engine has
    begun all of them."""
    num_moves: int
    num_replays: int


def receipt_of(records: Sequence[RequestRecord]) -> Receipt | None:
    """The receipt as of now; None if no request has got an instance yet."""
    named = dict.fromkeys(each.instance_id for each in records if each.instance_id)
    queues_s = [_queue_s(each) for each in records]
    known_s = [queue_s for queue_s in queues_s if queue_s is not None]
    if not named or not known_s:
        return None
    cached = [num_cached_tokens(each) for each in records]
    all_known = [number for number in cached if number is not None]
    return Receipt(
        tuple(named)[:MAX_NAMED_INSTANCES],
        max(known_s),
        sum(all_known) if len(all_known) == len(cached) else None,
        sum(each.num_moves for each in records),
        sum(each.num_replays for each in records),
    )


def num_cached_tokens(record: RequestRecord) -> int | None:
    """How many tokens of its prompt the cache of its first instance had; None before that."""
    admitted = _first(record.history, EventKind.ADMITTED)
    found = None if admitted is None else admitted.numbers.get("num_cached_tokens")
    return None if found is None else int(found)


def _queue_s(record: RequestRecord) -> float | None:
    begun = _first(record.history, EventKind.ADMITTED) or _first(
        record.history, EventKind.DISPATCHED
    )
    return None if begun is None else max(0.0, begun.time_s - record.arrival_time_s)


def _first(history: Iterable[LoggedEvent], kind: EventKind) -> LoggedEvent | None:
    return next((event for event in history if event.kind is kind), None)


# -- spans ---------------------------------------------------------------------------------

Value = str | float | int | bool


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened in no time, as it stands in the request's history."""

    name: str
    time_s: float
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class RequestSpan:
    """A part of a request's life. Times are seconds since the epoch. `error`: why this part came to
    nothing; empty if it did not."""

    name: str
    begin_s: float
    end_s: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class RequestStory:
    """A request's life: its own figures, what happened at one time, and its parts."""

    begin_s: float
    end_s: float
    attributes: Mapping[str, Value]
    moments: tuple[Moment, ...]
    spans: tuple[RequestSpan, ...]
    error: str = ""


QUEUE, PREFILL, DECODE = "queue", "prefill", "decode"
EVICTED, MOVE, REPLAY = "evicted", "move", "replay"
_ENDS = frozenset({EventKind.FINISHED, EventKind.ABORTED, EventKind.FAILED})
_IN_SPANS = _ENDS | {
    EventKind.ADMITTED,
    EventKind.EVICTED,
    EventKind.MIGRATED,
    EventKind.MIGRATION_FAILED,
    EventKind.REQUEST_LOST,
    EventKind.REPLAYED,
}
"""The events of a history that spans tell. All others are moments."""


def story_of(record: RequestRecord, now_s: float) -> RequestStory:
    """The story of a request, from its record with history. `now_s`: the end of a request that has
    not ended."""
    begin_s = record.arrival_time_s
    end_s = max(begin_s, now_s if record.end_time_s is None else record.end_time_s)
    life = _Life(begin_s, end_s)
    failed = record.state is RequestState.FAILED
    return RequestStory(
        begin_s,
        end_s,
        _figures(record),
        tuple(
            Moment(str(event.kind), life.within(event.time_s), attributes_of(event))
            for event in record.history
            if event.kind not in _IN_SPANS
        ),
        (*_phases(record, life), *_episodes(record.history, life)),
        (record.finish_reason or "failed") if failed else "",
    )


@dataclass(frozen=True, slots=True)
class _Life:
    begin_s: float
    end_s: float

    def within(self, time_s: float) -> float:
        return min(max(time_s, self.begin_s), self.end_s)


def _figures(record: RequestRecord) -> dict[str, Value]:
    first_s, end_s = record.first_token_time_s, record.end_time_s
    figures: dict[str, Value | None] = {
        "request_id": record.request_id,
        "client_request_id": record.client_request_id,
        "state": str(record.state),
        "finish_reason": record.finish_reason,
        "level": record.level,
        "instance": record.instance_id,
        "adapter": record.adapter or None,
        "num_prompt_tokens": record.num_prompt_tokens,
        "num_output_tokens": record.num_output_tokens,
        "num_cached_tokens": num_cached_tokens(record),
        "num_moves": record.num_moves,
        "num_replays": record.num_replays,
        "num_evictions": record.num_evictions,
        "num_forgotten_events": record.num_forgotten or None,
        "ttft_s": None if first_s is None else first_s - record.arrival_time_s,
        "e2e_latency_s": None if end_s is None else end_s - record.arrival_time_s,
    }
    return {name: value for name, value in figures.items() if value is not None}


def _phases(record: RequestRecord, life: _Life) -> Iterable[RequestSpan]:
    """The queue, from the request's arrival until an engine has it in its batch; the prefill, until
    its first token; the decode, until its end. A phase that a request never reached is missing. So
    is its beginning: a request whose admission was not told goes from the queue to the decode."""
    first_s = record.first_token_time_s
    before_decode_s = life.end_s if first_s is None else life.within(first_s)
    admitted = _first(record.history, EventKind.ADMITTED)
    admitted_s = None
    if admitted is not None:
        admitted_s = min(life.within(admitted.time_s), before_decode_s)
    dispatched = _first(record.history, EventKind.DISPATCHED)
    where = {} if dispatched is None else {"instance": dispatched.instance_id or ""}
    queued_until_s = before_decode_s if admitted_s is None else admitted_s
    yield RequestSpan(QUEUE, life.begin_s, queued_until_s, where)
    if admitted is not None and admitted_s is not None:
        yield RequestSpan(PREFILL, admitted_s, before_decode_s, attributes_of(admitted))
    if first_s is not None:
        figures: dict[str, Value] = {"num_output_tokens": record.num_output_tokens}
        yield RequestSpan(DECODE, before_decode_s, life.end_s, figures)


def _episodes(history: Iterable[LoggedEvent], life: _Life) -> Iterable[RequestSpan]:
    """The times in which the request was evicted, moved, or lost and computed again. One that has
    no end goes on until the request's end."""
    evicted: LoggedEvent | None = None
    lost: LoggedEvent | None = None
    for event in history:
        match event.kind:
            case EventKind.EVICTED:
                evicted = event
            case EventKind.ADMITTED if evicted is not None:
                yield _between(EVICTED, evicted, event.time_s, life)
                evicted = None
            case EventKind.MIGRATED | EventKind.MIGRATION_FAILED:
                yield _move(event, life)
            case EventKind.REQUEST_LOST:
                if lost is not None:
                    yield _between(REPLAY, lost, event.time_s, life, error="lost again")
                lost, evicted = event, None
            case EventKind.REQUEST_FOUND if lost is not None:
                yield _between(REPLAY, lost, event.time_s, life)
                lost = None
            case EventKind.REPLAYED if lost is not None:
                yield _between(REPLAY, lost, event.time_s, life, attributes_of(event))
                lost = None
            case kind if kind in _ENDS:
                if evicted is not None:
                    yield _between(EVICTED, evicted, life.end_s, life)
                if lost is not None:
                    yield _between(REPLAY, lost, life.end_s, life, error=event.reason)


def _between(
    name: str,
    first: LoggedEvent,
    end_s: float,
    life: _Life,
    more: Mapping[str, Value] | None = None,
    error: str = "",
) -> RequestSpan:
    begin_s = life.within(first.time_s)
    attributes = {**attributes_of(first), **(more or {})}
    return RequestSpan(name, begin_s, max(begin_s, life.within(end_s)), attributes, error)


def _move(event: LoggedEvent, life: _Life) -> RequestSpan:
    """From the first copy until the first token of the destination, or until the move failed. The
    source measures how long the move took until its commit (or its failure), and the frontend how
    long the token took from there, so no clocks of two machines are compared."""
    end_s = life.within(event.time_s)
    took_s = sum(_number(event, name) for name in ("duration_s", "since_commit_s"))
    failed = event.kind is EventKind.MIGRATION_FAILED
    error = event.labels.get("why") or event.reason if failed else ""
    return RequestSpan(MOVE, life.within(end_s - took_s), end_s, attributes_of(event), error)


def _number(event: LoggedEvent, name: str) -> float:
    return event.numbers.get(name) or 0.0


def attributes_of(event: LoggedEvent) -> dict[str, Value]:
    """The event's figures and labels. An event of a request has no text of the request."""
    found: dict[str, Value] = {"cause_id": event.cause_id}
    if event.instance_id:
        found["instance"] = event.instance_id
    found |= {name: value for name, value in event.labels.items() if value}
    numbers: Mapping[str, Number] = event.numbers
    return found | {name: value for name, value in numbers.items() if value is not None}
