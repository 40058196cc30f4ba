"""What a frontend knows of its requests: the live requests, and the latest ones that ended.

A request's history is kept here, because the frontend stays the same wherever the request runs.
"""

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from controller.core.load.snapshot import BACKGROUND, Level
from controller.core.migration.move_records import MoveRecord
from controller.core.record.event_log import EventKind, LoggedEvent, Number
from controller.core.record.request_record import (
    ENDED,
    Match,
    RequestRecord,
    RequestState,
    found_order,
    match_names,
)
from controller.core.record.windows import (
    KeptWindows,
    LatencyWindow,
    LatencyWindows,
    Percentiles,
    ServedInAll,
    ServedLately,
    bucket_of,
)
from controller.core.replay.replay_machine import Replay, ReplayRefusal, RequestLoss
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.runtime.messages.requests import RequestsAsked

MAX_HISTORY = 64
"""How many events are kept for a request. The earliest events say where the request came from and
the latest ones where it is, so the events in between are dropped."""


@dataclass(slots=True)
class BookEntry:
    """The counts of one request, and what happened to it."""

    request_id: str
    client_request_id: str
    parent_id: str | None
    level: str
    arrival_time_s: float
    num_prompt_tokens: int
    rank: int = 0
    adapter: str = ""
    state: RequestState = RequestState.DISPATCHING
    instance_id: str | None = None
    incarnation: int | None = None
    num_output_tokens: int = 0
    num_evictions: int = 0
    num_continued: int = 0
    num_moves: int = 0
    num_replays: int = 0
    not_replayable: str = ""
    dispatched: bool = False
    first_token_time_s: float | None = None
    last_token_time_s: float | None = None
    end_time_s: float | None = None
    finish_reason: str | None = None
    owned_since_s: float | None = None
    """When the frontend heard that the instance has taken the request over; None if it got the
    request from the frontend."""
    beginning: list[LoggedEvent] = field(default_factory=list)
    recent: deque[LoggedEvent] = field(default_factory=partial(deque, maxlen=MAX_HISTORY // 2))
    num_forgotten: int = 0

    def remember(self, event: LoggedEvent) -> None:
        if len(self.beginning) < MAX_HISTORY // 2:
            self.beginning.append(event)
        else:
            self.num_forgotten += len(self.recent) == self.recent.maxlen
            self.recent.append(event)

    def record(self, frontend_id: str, model: str, *, history: bool) -> RequestRecord:
        return RequestRecord(
            request_id=self.request_id,
            client_request_id=self.client_request_id,
            parent_id=self.parent_id,
            frontend_id=frontend_id,
            level=self.level,
            state=self.state,
            instance_id=self.instance_id,
            incarnation=self.incarnation,
            arrival_time_s=self.arrival_time_s,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
            num_evictions=self.num_evictions,
            num_continued=self.num_continued,
            first_token_time_s=self.first_token_time_s,
            end_time_s=self.end_time_s,
            finish_reason=self.finish_reason,
            num_moves=self.num_moves,
            num_replays=self.num_replays,
            not_replayable=self.not_replayable,
            rank=self.rank,
            adapter=self.adapter,
            model=model,
            last_token_time_s=self.last_token_time_s,
            history=(*self.beginning, *self.recent) if history else (),
            num_forgotten=self.num_forgotten,
        )

    @property
    def ttft_s(self) -> float | None:
        first_s = self.first_token_time_s
        return None if first_s is None else first_s - self.arrival_time_s

    @property
    def tpot_s(self) -> float | None:
        """The mean time of each further token; None before the end, or without two tokens."""
        first_s, end_s = self.first_token_time_s, self.end_time_s
        if first_s is None or end_s is None or self.num_output_tokens < 2:
            return None
        return (end_s - first_s) / (self.num_output_tokens - 1)

    def outcome(self) -> dict[str, Number]:
        """The figures of a request that has ended."""
        assert self.end_time_s is not None
        ttft_s = self.ttft_s
        return {
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_output_tokens": self.num_output_tokens,
            "num_evictions": self.num_evictions,
            "ttft_s": None if ttft_s is None else round(ttft_s, 4),
            "e2e_latency_s": round(self.end_time_s - self.arrival_time_s, 4),
        }


ALONE = "by the frontend alone: the controller is silent"
NO_LABELS: Mapping[str, str] = {}
FINISHED = RequestState.FINISHED
_OUTCOMES = {"error": RequestState.FAILED, "abort": RequestState.ABORTED}
"""How a request ended, by vLLM's finish reason. With any reason that is not listed, the request
finished as its client wanted."""
_ENDS = {
    RequestState.FINISHED: EventKind.FINISHED,
    RequestState.ABORTED: EventKind.ABORTED,
    RequestState.FAILED: EventKind.FAILED,
}


RecordNow = Callable[[], RequestRecord]
"""Gives a request's record, with history, as it is when it is called."""


class RequestObserver(Protocol):
    """Is told of every request. Latencies count from the request's arrival."""

    def dispatched(self, level: str, queue_time_s: float) -> None: ...

    def first_token(self, level: str, ttft_s: float) -> None: ...

    def replayed(self, level: str, downtime_s: float | None) -> None: ...

    def not_replayed(self, refusal: ReplayRefusal) -> None: ...

    def ended(self, record: RequestRecord) -> None: ...


class RequestBook:
    """`on_event` gets the events for the cluster's log. `observer` is told of every request.
    `model`: the name of their model, if the cluster serves several."""

    def __init__(
        self,
        frontend_id: str,
        level_names: Mapping[int, str],
        on_event: Callable[[LoggedEvent], None] = lambda event: None,
        observer: RequestObserver | None = None,
        max_ended: int = 1000,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        model: str = "",
    ) -> None:
        self._frontend_id = frontend_id
        self._model = model
        self._level_names = {BACKGROUND.rank: BACKGROUND.name, **level_names}
        self._on_event = on_event
        self._observer = observer
        self.on_ended: Callable[[RequestRecord], None] = lambda record: None
        """Called with the record, without history, of each request that has ended."""
        self._max_ended = max_ended
        self._wall_clock, self._clock = wall_clock, clock
        self._live: dict[str, BookEntry] = {}
        self._ended: OrderedDict[str, BookEntry] = OrderedDict()
        self._ttft = LatencyWindows[str]()
        self._tpot = LatencyWindow()
        self._kept = KeptWindows[str]()
        self._num_arrived = self._num_ended = self._num_output_tokens = 0
        self._ttft_counts: dict[str, Counter[int]] = {}
        self._tpot_counts: dict[str, Counter[int]] = {}
        self._targets: Mapping[str, Level] = {}

    def set_targets(self, levels: Iterable[Level]) -> None:
        """Counts goodput by the targets of these levels from now on."""
        self._targets = {level.name: level for level in levels if level.has_targets}

    def served_lately(self) -> ServedLately:
        now_s = self._clock()
        kept = {name: kept for name, kept in self._kept.at(now_s).items() if name in self._targets}
        in_all = ServedInAll(
            self._num_arrived,
            self._num_ended,
            self._num_output_tokens,
            self._ttft_counts,
            self._tpot_counts,
        )
        tpot_p99_s = self._tpot.percentile(0.99, now_s)
        return ServedLately(self.ttft_p99(), tpot_p99_s, self._ttft.count(now_s), kept, in_all)

    def ttft_p99(self) -> Percentiles[str]:
        """The P99 time to first token of the last minute, over all requests and by level."""
        return self._ttft.percentiles(0.99, self._clock())

    def arrived(
        self,
        request: DispatchRequested,
        client_request_id: str,
        parent_id: str | None,
        adapter: str = "",
    ) -> RecordNow:
        """`adapter`: the name of its LoRA adapter, if it has one. Returns a function that gives the
        request's record with history, also after the book has forgotten the request."""
        self._num_arrived += 1
        self._live[request.request_id] = entry = BookEntry(
            request.request_id,
            client_request_id,
            parent_id,
            self.level_name(request.rank),
            request.arrival_time_s,
            request.num_prompt_tokens,
            request.rank,
            adapter,
        )
        return partial(entry.record, self._frontend_id, self._model, history=True)

    def dispatched(self, dispatch: Dispatch, replay: Replay | None = None) -> None:
        """Notes that a request has got its first instance, or the instance for its replay. A
        decision that this frontend made alone is also an event for the cluster's log."""
        entry = self._live.get(dispatch.request_id)
        if entry is None:
            return
        if self._observer and not entry.dispatched:
            self._observer.dispatched(entry.level, self._wall_clock() - entry.arrival_time_s)
        entry.state, entry.dispatched = RequestState.WAITING, True
        entry.instance_id, entry.incarnation = dispatch.instance_id, dispatch.incarnation
        entry.owned_since_s = None
        alone = dispatch.seq == 0
        numbers: dict[str, Number] = {f"score_of_{id_}": s for id_, s in dispatch.candidates}
        labels = {"by": "frontend" if alone else "controller"}
        if dispatch.policy:
            numbers["num_candidates"] = dispatch.num_considered
            labels["policy"] = dispatch.policy
        reason, cause_id = ALONE if alone else "by the controller", None
        if replay is not None:
            reason = f"again, as it was lost with {replay.source_id}; {reason}"
            cause_id = replay.cause_id
        event = self._event(entry, EventKind.DISPATCHED, reason, numbers, cause_id, labels=labels)
        entry.remember(event)
        if alone:
            self._on_event(event)

    def happened(self, event: LoggedEvent) -> None:
        """Notes an instance's event: it admitted or evicted a request, or did not move it."""
        entry = self._live.get(event.request_id or "")
        if entry is None or (event.instance_id, event.incarnation) != (
            entry.instance_id,
            entry.incarnation,
        ):
            return
        if event.kind is EventKind.EVICTED:
            entry.state = RequestState.EVICTED
            entry.num_evictions += 1
        elif event.kind is EventKind.ADMITTED:
            entry.state = RequestState.RUNNING
            entry.num_continued += event.labels.get("exact") == "continued"
        entry.remember(event)

    def find(self, request_id: str) -> RequestRecord | None:
        """The request's record without history; None if it is unknown or forgotten."""
        entry = self._live.get(request_id) or self._ended.get(request_id)
        return (
            None if entry is None else entry.record(self._frontend_id, self._model, history=False)
        )

    def level_name(self, rank: int) -> str:
        return self._level_names.get(rank, str(rank))

    def level_changed(
        self, request_id: str, rank: int, cause_id: str, actor: str, reason: str
    ) -> None:
        entry = self._live[request_id]
        previous, entry.level, entry.rank = entry.level, self.level_name(rank), rank
        why = f"from {previous} to {entry.level}" + (f": {reason}" if reason else "")
        labels = {"previous": previous, "level": entry.level}
        if reason:
            labels["reason"] = reason
        event = self._event(
            entry, EventKind.PRIORITY_CHANGED, why, {"rank": rank}, cause_id, actor, labels
        )
        entry.remember(event)
        self._on_event(event)

    def moved(self, request_id: str, instance_id: str, incarnation: int) -> None:
        if entry := self._live.get(request_id):
            entry.instance_id, entry.incarnation = instance_id, incarnation
            entry.owned_since_s = self._wall_clock()

    def move_timed(self, record: MoveRecord, step_time_s: float, downtime_s: float | None) -> None:
        """Notes that the destination's first token came after a step of `step_time_s`, and
        `downtime_s` after the token before it; None if there was no token before. If the request
        waited for memory meanwhile, its move was not the reason for the downtime."""
        if record.waited:
            downtime_s = None
        entry = self._live.get(record.request_id)
        if entry is None:
            return
        excess_s = None if downtime_s is None else max(0.0, downtime_s - step_time_s)
        since_s = entry.owned_since_s if entry.instance_id == record.destination_id else None
        numbers: dict[str, Number] = {
            "downtime_s": downtime_s,
            "excess_s": excess_s,
            "step_time_s": step_time_s,
            "since_commit_s": None if since_s is None else self._wall_clock() - since_s,
            **record.numbers(),
        }
        event = self._event(
            entry,
            EventKind.MIGRATED,
            f"from {record.source_id} to {record.destination_id}: {record.reason}",
            numbers,
            record.migration_id,
            labels=record.labels(),
        )
        entry.remember(event)
        entry.num_moves += 1
        self._on_event(event)

    # -- replays -------------------------------------------------------------------------

    def marked(self, request_id: str, mark: ReplayRefusal) -> None:
        """Notes why the request cannot be replayed, or why it cannot be replayed once it has
        outputs."""
        if entry := self._live.get(request_id):
            entry.not_replayable = mark

    def lost(self, request_id: str, loss: RequestLoss) -> None:
        """Notes that no instance has the request any more, and that it will go on elsewhere."""
        entry = self._live.get(request_id)
        if entry is None:
            return
        entry.instance_id, entry.incarnation = loss.owner.key
        numbers: dict[str, Number] = {"num_tokens": loss.num_tokens, "silent_s": loss.silent_s}
        self._tell(entry, EventKind.REQUEST_LOST, loss.what, numbers, loss.cause_id)
        entry.state, entry.num_replays = RequestState.DISPATCHING, loss.num_replays
        entry.instance_id = entry.incarnation = None

    def found(self, request_id: str, num_replays: int) -> None:
        """Notes that the request was not lost after all. Where the request is was already noted by
        `moved`."""
        if entry := self._live.get(request_id):
            entry.state, entry.num_replays = RequestState.RUNNING, num_replays
            self._tell(entry, EventKind.REQUEST_FOUND, f"{entry.instance_id} has it after all", {})

    def replayed(self, request_id: str, replay: Replay, downtime_s: float | None) -> None:
        """Notes that the first token since the loss came, `downtime_s` after the token before it;
        None if there was no token before."""
        entry = self._live.get(request_id)
        if entry is None:
            return
        if self._observer:
            self._observer.replayed(entry.level, downtime_s)
        event = self._event(
            entry,
            EventKind.REPLAYED,
            f"from {replay.source_id} to {entry.instance_id}",
            {
                "downtime_s": downtime_s,
                "num_tokens": replay.num_tokens,
                "attempt": replay.attempt,
            },
            replay.cause_id,
            labels={"from": replay.source_id, "to": entry.instance_id or ""},
        )
        entry.remember(event)
        self._on_event(event)

    def not_replayed(self, request_id: str, refusal: ReplayRefusal) -> None:
        """Notes that the request was lost and cannot be replayed, so that it ends."""
        if entry := self._live.get(request_id):
            entry.not_replayable = refusal
            if self._observer:
                self._observer.not_replayed(refusal)

    def emitted(self, request_id: str, num_tokens: int, finish_reason: str | None) -> None:
        entry = self._live.get(request_id)
        if entry is None:
            return
        if num_tokens:
            entry.last_token_time_s = now_s = self._wall_clock()
            if entry.first_token_time_s is None:
                entry.first_token_time_s = now_s
                ttft_s = now_s - entry.arrival_time_s
                if entry.rank != BACKGROUND.rank:  # its first token may come as late as it likes
                    self._ttft.add(self._clock(), ttft_s, entry.level)
                    self._ttft_counts.setdefault(entry.level, Counter())[bucket_of(ttft_s)] += 1
                if self._observer:
                    self._observer.first_token(entry.level, ttft_s)
        entry.num_output_tokens += num_tokens
        self._num_output_tokens += num_tokens
        if finish_reason is not None:
            self.ended(request_id, _OUTCOMES.get(finish_reason, FINISHED), finish_reason)

    def siblings(self, request_id: str) -> tuple[str, ...]:
        """The live request and the other live choices of the client's request. Empty if the request
        is not live."""
        entry = self._live.get(request_id)
        if entry is None or entry.parent_id is None:
            return () if entry is None else (request_id,)
        return tuple(r for r, other in self._live.items() if other.parent_id == entry.parent_id)

    def ended(
        self,
        request_id: str,
        state: RequestState,
        reason: str,
        cause_id: str | None = None,
        actor: str | None = None,
        *,
        labels: Mapping[str, str] = NO_LABELS,
        is_news: bool = True,
    ) -> None:
        """Notes a request's outcome; a second outcome is ignored. `is_news`: whether the event goes
        to the cluster's log."""
        entry = self._live.pop(request_id, None)
        if entry is None:
            return
        entry.state, entry.finish_reason = state, reason
        entry.end_time_s = self._wall_clock()
        self._num_ended += 1
        if (tpot_s := entry.tpot_s) is not None:
            self._tpot.add(self._clock(), tpot_s)
            self._tpot_counts.setdefault(entry.level, Counter())[bucket_of(tpot_s)] += 1
        level = self._targets.get(entry.level)
        if level is not None and state is not RequestState.ABORTED:
            ttft_s = entry.ttft_s
            is_kept = ttft_s is not None and level.is_met(ttft_s, tpot_s)
            self._kept.add(self._clock(), entry.level, is_kept=is_kept and state is FINISHED)
        event = self._event(entry, _ENDS[state], reason, entry.outcome(), cause_id, actor, labels)
        entry.remember(event)
        self._ended[request_id] = entry
        while len(self._ended) > self._max_ended:
            self._ended.popitem(last=False)
        if is_news:
            self._on_event(event)
        record = entry.record(self._frontend_id, self._model, history=False)
        if self._observer:
            self._observer.ended(record)
        self.on_ended(record)

    def refused(self, request_id: str, reason: str) -> None:
        """Notes that no instance takes the request. The event does not go to the cluster's log,
        because the controller sums up refusals there."""
        self.ended(request_id, RequestState.FAILED, reason, is_news=False)

    def answer(self, asked: RequestsAsked) -> tuple[tuple[RequestRecord, ...], int]:
        """The answer to a question about requests: the matching ones in listing order, and how many
        match in all."""
        matching = [
            entry.record(self._frontend_id, self._model, history=asked.history)
            for entry in (*self._live.values(), *self._ended.values())
            if _matches(entry, asked)
        ]
        matching.sort(key=partial(found_order, asked.matching))
        return tuple(matching[: asked.max_requests]), len(matching)

    def _tell(
        self,
        entry: BookEntry,
        kind: EventKind,
        reason: str,
        numbers: Mapping[str, Number],
        cause_id: str | None = None,
    ) -> None:
        """Adds an event to the request's history and to the cluster's log."""
        event = self._event(entry, kind, reason, numbers, cause_id)
        entry.remember(event)
        self._on_event(event)

    def _event(
        self,
        entry: BookEntry,
        kind: EventKind,
        reason: str,
        numbers: Mapping[str, Number],
        cause_id: str | None = None,
        actor: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
    ) -> LoggedEvent:
        return LoggedEvent(
            kind,
            self._wall_clock(),
            cause_id or f"arrive-{entry.request_id}",
            reason,
            instance_id=entry.instance_id,
            incarnation=entry.incarnation,
            frontend_id=self._frontend_id,
            request_id=entry.request_id,
            level=entry.level,
            actor=actor,
            numbers=numbers,
            labels=labels,
        )


def _matches(entry: BookEntry, asked: RequestsAsked) -> bool:
    names = (entry.request_id, entry.client_request_id, entry.parent_id)
    return (
        (asked.request_ids is None or entry.request_id in asked.request_ids)
        and (asked.instance_id is None or entry.instance_id == asked.instance_id)
        and (not asked.states or entry.state in asked.states)
        and (asked.matching is None or match_names(asked.matching, *names) is not Match.NONE)
        # An answer about one instance contains ended requests only if `states` names them.
        and (asked.instance_id is None or bool(asked.states) or entry.state not in ENDED)
    )
