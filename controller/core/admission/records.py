"""Which events of admission are put on record, and how rarely. In an overload most requests wait
and thousands are refused. If each of them had an event, these events would push all others out of
the log.

    held, held_ended   Once each: from the time when some request has waited for HELD_S until none
                       has waited for QUIET_S.
    instance_kept      Once for a request whose instance has been reserved for KEPT_S.
    overtaken          When 10, 100, 1,000 ... went ahead of a request while it was the first.
    rejected           The first refusal of a reason and rank at once, the others as a number.

At most one event of each of the last three kinds is recorded every EVERY_S; for `rejected`, one of
each reason and rank. The states of waiting:

    IDLE      no request waits
    BRIEF     requests wait, and that is not on record. OVERLOAD after HELD_S; IDLE when none waits
    OVERLOAD  it is on record that requests wait. IDLE when none has waited for QUIET_S
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from controller.core.admission.placement import Placement, WaitingPlace
from controller.core.admission.waiting_requests import Key
from controller.core.record.event_log import EventKind, Number
from controller.core.record.windows import CountWindow
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import Reject, RejectCode, Ticked

HELD_S = 2.0
"""Waits shorter than this are not recorded: at high load some requests always wait for a moment, as
late binding works that way."""
QUIET_S = 10.0
KEPT_S = 5.0
EVERY_S = 10.0
FEWEST_OVERTAKING = 10


@dataclass(frozen=True, slots=True)
class Rejected:
    """The scheduler refused a request."""

    reject: Reject


Event = Ticked | Rejected
"""Time has passed. The scheduler must get each Ticked before this machine does."""


@dataclass(frozen=True, slots=True)
class PutOnRecord:
    kind: EventKind
    cause_id: str
    reason: str
    numbers: Mapping[str, Number]
    request_id: str | None = None
    frontend_id: str | None = None
    instance_id: str | None = None


@dataclass(slots=True)
class Refusals:
    """The refusals of one reason and rank."""

    number: int = 0
    lately: CountWindow = field(default_factory=CountWindow)
    last: Reject | None = None
    num_untold: int = 0
    """How many of `number` no event has counted yet."""
    told_s: float = float("-inf")


class _Waiting(StrEnum):
    IDLE = "idle"
    BRIEF = "brief"
    OVERLOAD = "overload"


@dataclass(slots=True)
class _Reserved:
    key: Key
    since_s: float
    told: bool = False


class AdmissionRecords:
    """Decides what is put on record. Reads `scheduler` and does not change it."""

    def __init__(self, scheduler: GlobalScheduler) -> None:
        self._scheduler = scheduler
        self.refusals: dict[tuple[RejectCode, int], Refusals] = {}
        """The refusals by reason and rank, each with at least one refusal; others may read it."""
        self._waiting = _Waiting.IDLE
        self._since_s = 0.0
        """Unless IDLE: when the waiting began. Pauses shorter than QUIET_S do not end an
        overload."""
        self._last_s = 0.0
        """Unless IDLE: when a request last waited."""
        self._most = 0
        """The most requests that waited at the same time since the waiting began; 0 while IDLE."""
        self._num_overloads = 0
        self._reserved: dict[str, _Reserved] = {}
        """The reserved instances, by instance id, as the placement had them at the latest tick."""
        self._told_overtaken: tuple[Key | None, int] = (None, 0)
        """The latest request that was reported as overtaken, and the power of ten that was reported
        for it."""
        self._may_tell_s = dict.fromkeys((EventKind.INSTANCE_RESERVED, EventKind.OVERTAKEN), 0.0)

    def handle(self, event: Event, now_s: float) -> list[PutOnRecord]:
        """Takes one event in; returns what to put on record now. Mutates."""
        if isinstance(event, Rejected):
            return self._reject(event.reject, now_s)
        told = self._look_at_all(now_s)
        placement = self._scheduler.placement
        if placement is None:
            self._reserved.clear()
        else:
            told += self._look_at_reserved(placement, now_s)
            told += self._look_at_first(placement, now_s)
        for refusals in self.refusals.values():
            told += _tell_refusals(refusals, now_s)
        return told

    def num_last_minute(self, code: RejectCode, rank: int, now_s: float) -> int:
        return self.refusals[code, rank].lately.total(now_s)

    # -- what is refused -----------------------------------------------------------------

    def _reject(self, reject: Reject, now_s: float) -> list[PutOnRecord]:
        refusals = self.refusals.setdefault((reject.code, reject.rank), Refusals())
        refusals.number += 1
        refusals.lately.add(1, now_s)
        refusals.last = reject
        refusals.num_untold += 1
        return _tell_refusals(refusals, now_s)

    # -- what is held --------------------------------------------------------------------

    def _look_at_all(self, now_s: float) -> list[PutOnRecord]:
        num_waiting = self._scheduler.num_waiting
        if num_waiting:
            if self._waiting is _Waiting.IDLE:
                self._waiting, self._since_s = _Waiting.BRIEF, now_s
            self._last_s, self._most = now_s, max(self._most, num_waiting)
            if self._waiting is _Waiting.BRIEF and now_s - self._since_s >= HELD_S:
                self._waiting = _Waiting.OVERLOAD
                self._num_overloads += 1
                reason = "requests wait at the controller"
                return [self._tell_all(EventKind.HELD, reason, "num_held", num_waiting)]
        elif self._waiting is _Waiting.BRIEF:
            self._waiting, self._most = _Waiting.IDLE, 0
        elif self._waiting is _Waiting.OVERLOAD and now_s - self._last_s >= QUIET_S:
            most, self._waiting, self._most = self._most, _Waiting.IDLE, 0
            reason = "none waits at the controller"
            return [self._tell_all(EventKind.HELD_ENDED, reason, "num_held_at_most", most)]
        return []

    def _tell_all(self, kind: EventKind, reason: str, name: str, number: int) -> PutOnRecord:
        lasted_s = round(self._last_s - self._since_s, 1)
        numbers: dict[str, Number] = {"lasted_s": lasted_s, name: number}
        return PutOnRecord(kind, f"held-{self._num_overloads}", reason, numbers)

    def _look_at_reserved(self, placement: Placement, now_s: float) -> list[PutOnRecord]:
        before, self._reserved = self._reserved, {}
        places: dict[str, WaitingPlace] | None = None
        told = []
        for instance_id, key in placement.reserved.items():
            reserved = before.get(instance_id)
            if reserved is None or reserved.key != key:
                reserved = _Reserved(key, now_s)
            self._reserved[instance_id] = reserved
            is_due = now_s - reserved.since_s >= KEPT_S and not reserved.told
            if is_due and now_s >= self._may_tell_s[EventKind.INSTANCE_RESERVED]:
                if places is None:
                    places = self._scheduler.best_reserved()
                place = places.get(instance_id)
                if place is not None and place.waiting.key == key:
                    reserved.told = True
                    self._may_tell_s[EventKind.INSTANCE_RESERVED] = now_s + EVERY_S
                    told.append(_tell_reserved(place, now_s - reserved.since_s))
        return told

    def _look_at_first(self, placement: Placement, now_s: float) -> list[PutOnRecord]:
        first = placement.queue.first()
        if first is None:
            return []
        key, told = self._told_overtaken
        number = placement.num_overtaken.get(first.key, 0)
        least = FEWEST_OVERTAKING if key != first.key else max(FEWEST_OVERTAKING, 10 * told)
        if number < least or now_s < self._may_tell_s[EventKind.OVERTAKEN]:
            return []
        self._may_tell_s[EventKind.OVERTAKEN] = now_s + EVERY_S
        self._told_overtaken = (first.key, 10 ** (len(str(number)) - 1))
        numbers: dict[str, Number] = {
            "num_went_ahead": number,
            "waited_s": round(now_s - first.since_s, 1),
            "needed_blocks": first.demand_blocks,
        }
        return [
            PutOnRecord(
                EventKind.OVERTAKEN,
                f"arrive-{first.request_id}",
                "others fitted where it does not",
                numbers,
                request_id=first.request_id,
                frontend_id=first.key[0],
            )
        ]

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert (self._waiting is _Waiting.IDLE) == (self._most == 0), "how many were held is wrong"
        assert self._waiting is _Waiting.IDLE or self._since_s <= self._last_s
        for refusals in self.refusals.values():
            assert refusals.last is not None
            assert 0 <= refusals.num_untold < refusals.number, "the first is told at once"
        for reserved in self._reserved.values():
            may_tell_s = self._may_tell_s[EventKind.INSTANCE_RESERVED]
            assert not reserved.told or may_tell_s >= reserved.since_s + KEPT_S


def _tell_refusals(refusals: Refusals, now_s: float) -> list[PutOnRecord]:
    last, number = refusals.last, refusals.num_untold
    if last is None or not number or now_s - refusals.told_s < EVERY_S:
        return []
    refusals.num_untold, refusals.told_s = 0, now_s
    numbers: dict[str, Number] = {
        "num_refused": number,
        "rank": last.rank,
        "retry_after_s": last.retry_after_s,
    }
    return [
        PutOnRecord(
            EventKind.REJECTED,
            f"arrive-{last.request_id}",
            str(last.code),
            numbers,
            request_id=last.request_id,
            frontend_id=last.frontend_id,
        )
    ]


def _tell_reserved(place: WaitingPlace, kept_s: float) -> PutOnRecord:
    waiting = place.waiting
    return PutOnRecord(
        EventKind.INSTANCE_RESERVED,
        f"arrive-{waiting.request_id}",
        "nothing else goes there",
        {
            "kept_s": round(kept_s, 1),
            "needed_blocks": waiting.demand_blocks,
            "lacking_blocks": place.lacking_blocks,
        },
        request_id=waiting.request_id,
        frontend_id=waiting.key[0],
        instance_id=place.instance_id,
    )
