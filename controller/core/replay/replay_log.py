"""The requests that were lost with an instance, as the cluster counts them: where each one is now,
and how it ended. Times are by the caller's clock.

All of this is learned from events. The request's frontend reports the loss and the first token
after it, and in between the controller reports the instance to which the request is sent. If events
of a frontend were lost, all replays of its requests are forgotten.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from controller.core.fleet.cluster_spec import ExitReason
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.record.windows import CountWindow

MAX_RECENT = 16
MAX_DEATHS = 1024
LOST = "lost-"
"""The prefix of the cause of all events that follow from a loss."""


class Way(StrEnum):
    """How a lost request went on, or that it failed. `dispatched_again`: the request had no token
    yet, and was sent again unchanged."""

    MOVED = "moved"
    REPLAYED = "replayed"
    DISPATCHED_AGAIN = "dispatched_again"
    FAILED = "failed"


LOST_WAYS = (Way.REPLAYED, Way.DISPATCHED_AGAIN, Way.FAILED)


@dataclass(slots=True)
class ReplayUnderWay:
    """A lost request that has not gone on or ended yet. `num_tokens`: how many tokens have to be
    computed again. `since_s`: when the client's last token came, or, if there was none, when the
    request was lost."""

    request_id: str
    frontend_id: str
    source_id: str
    cause_id: str
    num_tokens: int
    since_s: float
    destination_id: str = ""
    """The instance that is to run the request; empty while no instance has it."""


@dataclass(frozen=True, slots=True)
class EndedReplay:
    """A lost request that went on, or ended in an error. `code`: why a request that failed could
    not be replayed. `pause_s`: None if the request had no token before the loss, or never had one
    again."""

    request_id: str
    source_id: str
    destination_id: str
    cause_id: str
    way: Way
    code: str
    num_tokens: int
    pause_s: float | None
    ended_s: float


class ReplayLog:
    def __init__(self) -> None:
        self.under_way: dict[str, ReplayUnderWay] = {}
        """The lost requests that have not gone on or ended yet, by request id; the oldest loss
        comes first."""
        self.recent: deque[EndedReplay] = deque(maxlen=MAX_RECENT)
        """The replays that ended, the newest last."""
        self._num_by_cause: Counter[tuple[Way, str]] = Counter()
        """How many lost requests ended, by (way, id of the loss), for instances whose reason for
        being gone is not known yet. `died` moves these numbers to `_num_by_reason`."""
        self._num_by_reason: Counter[tuple[Way, ExitReason]] = Counter()
        self._deaths: OrderedDict[str, ExitReason] = OrderedDict()
        self._went_on, self._failed_lately = CountWindow(), CountWindow()
        """How many lost requests went on, and how many failed, within the last minute."""
        self._handlers: Mapping[EventKind, Callable[[LoggedEvent, float], None]] = {
            EventKind.REQUEST_LOST: self._lost,
            EventKind.REQUEST_FOUND: self._over,
            EventKind.DISPATCHED: self._dispatched,
            EventKind.REPLAYED: self._replayed,
            EventKind.FAILED: self._failed,
            EventKind.FINISHED: self._over,
            EventKind.ABORTED: self._over,
            EventKind.FRONTEND_DIED: self._forget_those_of,
            EventKind.EVENTS_LOST: self._forget_those_of,
        }

    def is_about(self, kind: EventKind) -> bool:
        return kind in self._handlers

    def noted(self, event: LoggedEvent, now_s: float) -> None:
        """Takes an event of the cluster's log into account."""
        if handle := self._handlers.get(event.kind):
            handle(event, now_s)

    def died(self, instance_id: str, incarnation: int, reason: ExitReason) -> None:
        """Notes why an incarnation is gone. Frontends may already have reported that its requests
        are lost."""
        cause_id = f"{LOST}{instance_id}-{incarnation}"
        self._deaths.setdefault(cause_id, reason)
        if len(self._deaths) > MAX_DEATHS:
            self._deaths.popitem(last=False)
        for way, cause in [key for key in self._num_by_cause if key[1] == cause_id]:
            self._num_by_reason[way, reason] += self._num_by_cause.pop((way, cause))

    def reason(self, cause_id: str) -> ExitReason:
        """Why the instance of this loss is gone. Until another reason is known, the reason is a
        death."""
        return self._deaths.get(cause_id, ExitReason.DEATH)

    def counts(self) -> Counter[tuple[Way, ExitReason]]:
        """The number of lost requests since this log began whose outcome is known: a count for each
        pair of an outcome (`Way`) and the reason why the instance is gone."""
        found = Counter(self._num_by_reason)
        for (way, cause_id), number in self._num_by_cause.items():
            found[way, self.reason(cause_id)] += number
        return found

    def last_minute(self, now_s: float) -> tuple[int, int]:
        """How many lost requests went on, and how many ended in an error, in the last minute."""
        return self._went_on.total(now_s), self._failed_lately.total(now_s)

    def num_by_instance(self) -> tuple[Counter[str], Counter[str]]:
        """How many replays are under way, counted by the instance to which they go, and by the
        instance with which they were lost."""
        replays: Iterable[ReplayUnderWay] = self.under_way.values()
        to = Counter(each.destination_id for each in replays if each.destination_id)
        return to, Counter(each.source_id for each in replays)

    # -- events ----------------------------------------------------------------------------

    def _lost(self, event: LoggedEvent, now_s: float) -> None:
        """Notes a lost request. A request that is lost again before it has another token has been
        silent since its first loss."""
        request_id = event.request_id or ""
        known = self.under_way.get(request_id)
        since_s = now_s - (event.numbers.get("silent_s") or 0.0)
        self.under_way[request_id] = ReplayUnderWay(
            request_id,
            event.frontend_id or "",
            event.instance_id or "",
            event.cause_id,
            int(event.numbers.get("num_tokens") or 0),
            since_s if known is None else min(since_s, known.since_s),
        )

    def _dispatched(self, event: LoggedEvent, _now_s: float) -> None:
        if known := self.under_way.get(event.request_id or ""):
            known.destination_id = event.instance_id or ""

    def _replayed(self, event: LoggedEvent, now_s: float) -> None:
        pause_s = event.numbers.get("downtime_s")
        way = Way.DISPATCHED_AGAIN if pause_s is None else Way.REPLAYED
        self._end(event, way, now_s, event.labels.get("to", ""), pause_s)

    def _failed(self, event: LoggedEvent, now_s: float) -> None:
        if event.cause_id.startswith(LOST) or event.request_id in self.under_way:
            self._end(event, Way.FAILED, now_s, "", None)

    def _over(self, event: LoggedEvent, _now_s: float) -> None:
        self.under_way.pop(event.request_id or "", None)

    def _forget_those_of(self, event: LoggedEvent, _now_s: float) -> None:
        if event.frontend_id:
            self.under_way = {
                key: each
                for key, each in self.under_way.items()
                if each.frontend_id != event.frontend_id
            }

    def _end(
        self, event: LoggedEvent, way: Way, now_s: float, to: str, pause_s: float | None
    ) -> None:
        request_id = event.request_id or ""
        known = self.under_way.pop(request_id, None)
        cause_id = known.cause_id if known is not None else event.cause_id
        source_id = known.source_id if known is not None else event.labels.get("from", "")
        num_tokens = event.numbers.get("num_tokens") or (known.num_tokens if known else 0)
        code = event.labels.get("code", "")
        self.recent.append(
            EndedReplay(
                request_id, source_id, to, cause_id, way, code, int(num_tokens), pause_s, now_s
            )
        )
        lately = self._failed_lately if way is Way.FAILED else self._went_on
        lately.add(1, now_s)
        if cause_id in self._deaths:
            self._num_by_reason[way, self._deaths[cause_id]] += 1
        else:
            self._num_by_cause[way, cause_id] += 1
