"""The schedulable instances, their scores and rooms, kept from one decision to the next.

To ask each of 1,024 instances in Python took 160 us where no score had changed, and 720 where all
had. So the list of schedulable instances is kept until one comes, goes or stalls, and a score is
computed when its instance reports or is sent a request: 0.4 us of a status, which takes many times
that to receive. A decision then only searches for the best score, in C, and for the candidates that
it names; the outcome is as if each instance had been asked.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence

from controller.core.admission.policies import History, Policy
from controller.core.dispatch.instance_record import InstanceRecord
from controller.core.load.room import Room
from controller.core.load.snapshot import Level
from controller.core.scheduler_events import DispatchRequested

MAX_CANDIDATES = 8
"""The decision names this many of the instances that were considered for a request."""
MAX_RANKS = 8
"""Scores are kept for this many ranks at most: a request may name any rank, and each kept rank adds
work to every status."""


class ScoreBoard:
    """`records` are the scheduler's own, by id. The scheduler calls `changed` after a status or a
    dispatch, and `forget` after any other change of a record. It keeps rooms only with a
    `room_to_grow_tokens`."""

    def __init__(
        self,
        records: Mapping[str, InstanceRecord],
        policy: Policy,
        levels: Sequence[Level],
        room_to_grow_tokens: int | None = None,
    ) -> None:
        self._records = records
        self._policy = policy
        self._levels = levels
        self._is_known = False
        self._ready: list[InstanceRecord] = []
        """The schedulable instances, ids ascending."""
        self._ids: tuple[str, ...] = ()
        self._places: dict[str, int] = {}
        self._room_to_grow_tokens = room_to_grow_tokens
        self.rooms: dict[str, Room] = {}
        """With late binding: of all schedulable instances by id, after `any_schedulable`. A room is
        kept as a score is: to make 16 of them took as long as to place a request."""
        self._short: set[str] = set()
        """Instances that are short of memory, of those in `rooms`."""
        self._scores: dict[int, tuple[Level, list[float]]] = {}
        """Scores by rank, parallel to `_ready`, for the ranks that were asked for."""

    def __len__(self) -> int:
        """How many instances `choose` chooses from."""
        return len(self._ready)

    def forget(self) -> None:
        """An instance came or went, or may take requests from now on, or may no longer."""
        self._is_known = False

    def changed(self, record: InstanceRecord) -> bool:
        """The instance reported, or was sent a request. Returns whether something may fit now that
        did not before, or lacks less."""
        if not self._is_known:
            return True
        place = self._places.get(record.instance_id)
        if (place is not None) != record.schedulable:
            self._is_known = False
            return True
        if place is None:
            return False
        for level, scores in self._scores.values():
            scores[place] = self._score(record, level)
        if self._room_to_grow_tokens is None:
            return True
        before, room = self.rooms[record.instance_id], self._room(record)
        self.rooms[record.instance_id] = room
        return self._note_shortage(room) or room.exceeds(before)

    def any_schedulable(self) -> bool:
        if not self._is_known:
            self._look()
        return bool(self._ready)

    def choose(
        self, request: DispatchRequested, level: Level, history: History
    ) -> tuple[InstanceRecord, tuple[tuple[str, float], ...]]:
        """Chooses for a new request, after `any_schedulable` was true, and names the chosen
        instance and the best others with their scores. Changes nothing of the history."""
        scores = self._scores_for(level)
        place = self._policy.pick(self._ids, scores, request, history)
        find = heapq.nsmallest if self._policy.low_is_better else heapq.nlargest
        best = find(MAX_CANDIDATES, range(len(scores)), key=scores.__getitem__)
        named = [place, *(other for other in best if other != place)][:MAX_CANDIDATES]
        return self._ready[place], tuple((self._ids[at], round(scores[at], 1)) for at in named)

    def pick(self, request: DispatchRequested, level: Level, history: History) -> InstanceRecord:
        """The instance that `choose` chooses."""
        scores = self._scores_for(level)
        return self._ready[self._policy.pick(self._ids, scores, request, history)]

    def score_of(self, level: Level) -> Callable[[str], float]:
        """What tells the score of a schedulable instance by its id, for a request of this level;
        until anything changes."""
        scores, places = self._scores_for(level), self._places
        return lambda instance_id: scores[places[instance_id]]

    def _scores_for(self, level: Level) -> list[float]:
        known = self._scores.get(level.rank)
        return self._begin(level) if known is None else known[1]

    def _look(self) -> None:
        ready = [record for record in self._records.values() if record.schedulable]
        ready.sort(key=lambda record: record.instance_id)
        self._ready = ready
        self._ids = tuple(record.instance_id for record in ready)
        self._places = {instance_id: place for place, instance_id in enumerate(self._ids)}
        self._scores.clear()
        if self._room_to_grow_tokens is not None:
            self.rooms = {record.instance_id: self._room(record) for record in ready}
            self._short = {room.instance_id for room in self.rooms.values() if room.below_half_free}
            self._make_rooms()
        self._is_known = True

    def _begin(self, level: Level) -> list[float]:
        if len(self._scores) == MAX_RANKS:
            self._scores.clear()
        scores = [self._score(record, level) for record in self._ready]
        self._scores[level.rank] = level, scores
        return scores

    def _score(self, record: InstanceRecord, level: Level) -> float:
        assert record.snapshot is not None
        return self._policy.score(record.snapshot, level, self._levels, record.unreported)

    def _room(self, record: InstanceRecord) -> Room:
        assert record.snapshot is not None
        assert self._room_to_grow_tokens is not None
        tokens, by_step = self._room_to_grow_tokens, not self._short
        return Room.of(record.snapshot, tokens, record.unreported, by_step=by_step)

    def _note_shortage(self, room: Room) -> bool:
        """Returns whether memory is short nowhere any more: all rooms are others then, as they are
        when it becomes short somewhere."""
        if room.below_half_free == (room.instance_id in self._short):
            return False
        was_short = bool(self._short)
        (self._short.add if room.below_half_free else self._short.discard)(room.instance_id)
        if was_short == bool(self._short):
            return False
        self._make_rooms()
        return was_short

    def _make_rooms(self) -> None:
        """In the same dictionary: somebody may be placing requests in it."""
        self.rooms.update((record.instance_id, self._room(record)) for record in self._ready)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        if not self._is_known:
            return
        assert list(self._ids) == sorted(self._places) == [r.instance_id for r in self._ready]
        for place, record in enumerate(self._ready):
            assert self._records[record.instance_id] is record
            for level, scores in self._scores.values():
                assert scores[place] == self._score(record, level), "a kept score is out of date"
            if self._room_to_grow_tokens is not None:
                room = self.rooms[record.instance_id]
                assert room.below_half_free == (room.instance_id in self._short)
                assert room == self._room(record), "a kept room is out of date"
