"""Puts on record that requests wait at the controller: rarely, as in an overload most of them do.

held, held_ended   once each, from the time when some have waited for a while until none has for a
                   while
instance_kept      once for a request whose instance has been kept for a while
overtaken          when 10, 100, 1,000 ... went ahead of a request while it was the first
"""

from controller.core.holding.held_queue import Key
from controller.core.holding.placement import Placement
from controller.core.holding.view import HeldPlace
from controller.core.record.event_log import EventKind, Number
from controller.core.scheduler import GlobalScheduler
from controller.runtime.controller.journal import Journal

HELD_S = 2.0
"""At high load some are held for a moment all the time: that is how late binding works."""
QUIET_S = 10.0
KEPT_S = 5.0
EVERY_S = 10.0
"""At most one event of a kind about a request within so long."""
FEWEST_OVERTAKING = 10


class HoldingWatch:
    def __init__(self, scheduler: GlobalScheduler, journal: Journal) -> None:
        self._scheduler = scheduler
        self._journal = journal
        self._since_s: float | None = None
        """Since when something is held without a pause of QUIET_S."""
        self._last_s = 0.0
        """When something was held last."""
        self._most = 0
        self._on_record = False
        self._num_times = 0
        self._kept: dict[str, tuple[Key, float, bool]] = {}
        """By instance: for which request, since when, and whether that is on record."""
        self._told_overtaken: tuple[Key | None, int] = (None, 0)
        self._may_tell_s = dict.fromkeys((EventKind.INSTANCE_KEPT, EventKind.OVERTAKEN), 0.0)

    def tick(self, now_s: float) -> None:
        self._look_at_all(now_s)
        placement = self._scheduler.placement
        if placement is None:
            self._kept.clear()
            return
        self._look_at_kept(placement, now_s)
        self._look_at_first(placement, now_s)

    def _look_at_all(self, now_s: float) -> None:
        num_held = self._scheduler.num_held
        if num_held:
            self._since_s = now_s if self._since_s is None else self._since_s
            self._last_s, self._most = now_s, max(self._most, num_held)
            if not self._on_record and now_s - self._since_s >= HELD_S:
                self._on_record = True
                self._num_times += 1
                self._tell_all(EventKind.HELD, "requests wait at the controller", now_s)
        elif self._since_s is not None and not self._on_record:
            self._since_s, self._most = None, 0
        elif self._since_s is not None and now_s - self._last_s >= QUIET_S:
            self._tell_all(EventKind.HELD_ENDED, "none waits at the controller", self._last_s)
            self._since_s, self._most, self._on_record = None, 0, False

    def _tell_all(self, kind: EventKind, reason: str, until_s: float) -> None:
        assert self._since_s is not None
        numbers: dict[str, Number] = {"lasted_s": round(until_s - self._since_s, 1)}
        if kind is EventKind.HELD:
            numbers["num_held"] = self._scheduler.num_held
        else:
            numbers["num_held_at_most"] = self._most
        self._journal.holding(kind, f"held-{self._num_times}", reason, numbers)

    def _look_at_kept(self, placement: Placement, now_s: float) -> None:
        before, self._kept = self._kept, {}
        places: dict[str, HeldPlace] | None = None
        for instance_id, key in placement.reserved.items():
            known = before.get(instance_id)
            if known is None or known[0] != key:
                known = (key, now_s, False)
            _, since_s, told = known
            if (
                not told
                and now_s - since_s >= KEPT_S
                and now_s >= self._may_tell_s[EventKind.INSTANCE_KEPT]
            ):
                if places is None:
                    places = self._scheduler.kept(now_s)
                found = places.get(instance_id)
                if found is not None and found.held.key == key:
                    told = True
                    self._tell_kept(found, now_s - since_s)
                    self._may_tell_s[EventKind.INSTANCE_KEPT] = now_s + EVERY_S
            self._kept[instance_id] = (key, since_s, told)

    def _tell_kept(self, found: HeldPlace, kept_s: float) -> None:
        held = found.held
        self._journal.holding(
            EventKind.INSTANCE_KEPT,
            f"arrive-{held.request_id}",
            "nothing else goes there",
            {
                "kept_s": round(kept_s, 1),
                "needed_blocks": held.demand_blocks,
                "lacking_blocks": found.lacking_blocks,
            },
            request_id=held.request_id,
            frontend_id=held.key[0],
            instance_id=found.instance_id,
        )

    def _look_at_first(self, placement: Placement, now_s: float) -> None:
        first = placement.queue.first()
        if first is None:
            return
        key, told = self._told_overtaken
        number = placement.num_overtaken.get(first.key, 0)
        least = FEWEST_OVERTAKING if key != first.key else max(FEWEST_OVERTAKING, 10 * told)
        if number < least or now_s < self._may_tell_s[EventKind.OVERTAKEN]:
            return
        self._may_tell_s[EventKind.OVERTAKEN] = now_s + EVERY_S
        self._told_overtaken = (first.key, 10 ** (len(str(number)) - 1))
        self._journal.holding(
            EventKind.OVERTAKEN,
            f"arrive-{first.request_id}",
            "others fitted where it does not",
            {
                "num_went_ahead": number,
                "waited_s": round(now_s - first.since_s, 1),
                "needed_blocks": first.demand_blocks,
            },
            request_id=first.request_id,
            frontend_id=first.key[0],
        )
