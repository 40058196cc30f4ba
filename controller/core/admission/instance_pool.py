"""The instances to which requests are dispatched: what each instance reports, what was sent to it
since its last report, and which instance gets a request.

The pool is a part of the global scheduler (`core.scheduler`). The scheduler decides when a request
is sent, and the pool decides to which instance. It has a record of each instance, and a board with
the scores and rooms of the schedulable ones.
"""

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import assert_never

from controller.core.admission.first_token import copy_for
from controller.core.admission.policies import FetchSource, History, Policy, Prompt, SchedulerConfig
from controller.core.load.cached_prefixes import PREFIX_TOKENS, num_alone
from controller.core.load.closed import (
    OPEN,
    Closed,
    Reasons,
    stop_arrivals,
    stop_requests,
    stop_sending,
)
from controller.core.load.freeness import NOTHING_UNREPORTED, Room
from controller.core.load.snapshot import (
    BACKGROUND,
    NOT_MEASURED,
    InstanceSnapshot,
    Level,
    PrefillSpeed,
    Unreported,
)
from controller.core.scheduler_events import (
    THE_EARLIER_FETCH,
    AskCache,
    ClosedBy,
    Dispatch,
    DispatchRequested,
    Fetch,
    FrontendDied,
    InstanceDied,
    InstanceRemoved,
    InstanceStalled,
    InstanceStarted,
    StatusReported,
)

NEVER = 3
"""What `wait_for` returns for an instance that cannot run the request."""
LOST_AFTER_S = 10.0
"""How long after its dispatch a request counts as lost if no status counts it: its frontend died,
or the message was lost. A request reaches its instance within milliseconds."""


@dataclass(slots=True)
class _OnItsWay:
    seq: int
    demand_blocks: int
    frontend_id: str
    sent_s: float
    adapter: int
    prefill_s: float
    """How long the instance probably computes the prompt."""
    begins_s: float
    """When it can begin: after the fetch of its prefix, or at once."""


class InstanceRecord:
    """What the global scheduler knows about one incarnation of one instance. The scheduler mutates
    it; everybody else only reads.

    A dispatched request is not in the instance's status at once. Until a status names the request's
    sequence number or a later one, this record counts the request. Otherwise all requests of a
    burst between two statuses would go to the instance that was freest before it.
    """

    __slots__ = (
        "_reported_ready_s",
        "_unreported",
        "alive",
        "closed_by",
        "fetched_s",
        "fingerprint",
        "incarnation",
        "instance_id",
        "is_shut",
        "last_dispatch_seq",
        "last_report_s",
        "loaded_s",
        "may_receive",
        "may_send",
        "num_cached_tokens",
        "ordered",
        "ready_s",
        "schedulable",
        "sent_s",
        "snapshot",
        "stalled",
        "unreported",
    )

    def __init__(
        self,
        instance_id: str,
        incarnation: int,
        ordered: Reasons = OPEN,
        fingerprint: str = "",
    ) -> None:
        self.instance_id = instance_id
        self.incarnation = incarnation
        self.fingerprint = fingerprint
        self.alive = True
        self.stalled = False
        """True after `fleet.liveness` said that the instance is stalled, until the instance reports
        again."""
        self.snapshot: InstanceSnapshot | None = None
        """The last status of this incarnation."""
        self.ordered = ordered
        """The reasons of the spec against the instance. If only the instance's status says that it
        drains, it counts as draining too, so that a drain ends when the instance itself says so."""
        self.last_report_s = float("-inf")
        self.last_dispatch_seq = 0
        """The last sequence number given out to this incarnation."""
        self.unreported = NOTHING_UNREPORTED
        self._unreported: deque[_OnItsWay] = deque()
        """The requests that `unreported` sums up, with ascending sequence numbers."""
        self._reported_ready_s = float("-inf")
        """Like `ready_s`, without the unreported requests."""
        self.ready_s = float("-inf")
        """When the instance will have computed all prompts that it has or gets. Prompts are
        computed one after the other, so a new one is computed from then on."""
        self.fetched_s = float("-inf")
        """When the prefixes that it fetches from other instances will have arrived."""
        self.loaded_s = float("-inf")
        """When it will have loaded what it loads from its host cache."""
        self.num_cached_tokens = 0
        """How many tokens its prefix cache has, by its reports."""
        self.sent_s = float("-inf")
        """When other instances will have fetched what they fetch from here."""
        self._sum_up()

    def _sum_up(self) -> None:
        """Computes the reasons after a change of anything that they depend on. They are stored
        because every decision asks for them."""
        self.closed_by: tuple[Closed, ...] = self._reasons()
        """The reasons against the instance. People are told the first reason: a draining instance
        that hangs is called stalled, because it does not drain."""
        self.schedulable = not stop_requests(self.closed_by)
        """Whether the instance may get requests."""
        self.may_receive = not stop_arrivals(self.closed_by)
        """Whether moves may go to the instance, as far as `closed_by` knows."""
        self.may_send = not stop_sending(self.closed_by)
        """Whether moves may begin at the instance."""
        drains = self.snapshot is not None and self.snapshot.draining
        self.is_shut = drains or stop_requests(self.ordered)
        """Whether the instance gets no requests because somebody ordered it."""

    def _reasons(self) -> tuple[Closed, ...]:
        reasons = set(self.ordered)
        if not self.alive:
            reasons.add(Closed.NOT_SERVING)
        elif self.snapshot is None:
            reasons.add(Closed.NO_STATUS)
        else:
            if self.stalled:
                reasons.add(Closed.STALLED)
            if self.snapshot.draining:
                reasons.add(Closed.DRAINING)
        return tuple(each for each in Closed if each in reasons) if reasons else ()

    @property
    def reports(self) -> bool:
        """Whether the instance serves and reports."""
        return self.alive and self.snapshot is not None and not self.stalled

    def report(
        self, snapshot: InstanceSnapshot, last_dispatch_seq: int, now_s: float, age_s: float = 0.0
    ) -> None:
        """Takes a status of this incarnation, which is `age_s` old. From now on, requests that the
        status counts are not unreported any more. Neither are requests that were dispatched more
        than `LOST_AFTER_S` ago."""
        before, self.snapshot = self.snapshot, self._as_ordered(snapshot)
        self.last_report_s = now_s
        is_measured = snapshot.prefill_speed.token_s > 0
        backlog_s = snapshot.backlog_s if is_measured else _estimated_backlog_s(snapshot)
        self._reported_ready_s = self.ready_s = now_s - age_s + backlog_s
        if self.stalled or before is None or before.draining != self.snapshot.draining:
            self.stalled = False
            self._sum_up()
        # After a restart the scheduler goes on with the numbers of its predecessor. If it began
        # below the numbers that the instance has seen, its requests would count as reported before
        # they were sent.
        self.last_dispatch_seq = max(self.last_dispatch_seq, last_dispatch_seq)
        pending, num_before = self._unreported, len(self._unreported)
        lost_s = now_s - LOST_AFTER_S
        while pending and (pending[0].seq <= last_dispatch_seq or pending[0].sent_s <= lost_s):
            pending.popleft()
        if len(pending) != num_before:
            self._account()
        elif pending:
            self._count_ready()

    def dispatch(
        self,
        request: DispatchRequested,
        num_cached_tokens: int,
        now_s: float,
        begins_s: float | None = None,
    ) -> int:
        """Accounts for one dispatched request; returns its sequence number. The instance must have
        reported. `num_cached_tokens`: how many tokens of the prompt it probably need not compute.
        `begins_s`: when they will be there, if it fetches them."""
        begins_s = now_s if begins_s is None else begins_s
        assert self.snapshot is not None
        self.last_dispatch_seq += 1
        speed = speed_of(self.snapshot)
        prefill_s = speed.time_s(num_cached_tokens, request.num_prompt_tokens)
        demand_blocks = self.snapshot.demand_for(request.num_prompt_tokens)
        self._unreported.append(
            _OnItsWay(
                self.last_dispatch_seq,
                demand_blocks,
                request.frontend_id,
                now_s,
                request.adapter,
                prefill_s,
                begins_s,
            )
        )
        self.ready_s = max(self.ready_s, begins_s) + prefill_s
        self.unreported = Unreported(
            self.unreported.num_requests + 1, self.unreported.demand_blocks + demand_blocks
        )
        return self.last_dispatch_seq

    def wait_for(self, request: DispatchRequested) -> int:
        """Whether a request would wait here for its LoRA adapter. 0: no. 1: until the requests with
        another adapter have left the batch. 2: until the adapter is loaded. `NEVER`: the instance
        cannot run the request. The instance must have reported."""
        snapshot, adapter = self.snapshot, request.adapter
        assert snapshot is not None
        if snapshot.is_attached and (adapter or request.hosted_only):
            return NEVER
        if not adapter:
            return 0
        if adapter in snapshot.failed_adapters:
            return NEVER
        if adapter not in snapshot.adapters:
            return 2
        on_their_way = (each.adapter for each in self._unreported if each.adapter)
        live = {adapter, *snapshot.live_adapters, *on_their_way}
        return int(len(live) > snapshot.max_live_adapters)

    def order(self, reasons: Reasons) -> None:
        """Sets the reasons of the spec against the instance, whatever its status still says."""
        self.ordered = reasons
        if self.snapshot is not None:
            self.snapshot = self._as_ordered(self.snapshot)
        self._sum_up()

    def stall(self, *, over: bool) -> None:
        """Notes that the instance is stalled or, with `over`, that it is not stalled any more
        although it has not reported."""
        self.stalled = not over
        self._sum_up()

    def _as_ordered(self, snapshot: InstanceSnapshot) -> InstanceSnapshot:
        drains = Closed.DRAINING in self.ordered and not snapshot.draining
        return replace(snapshot, draining=True) if drains else snapshot

    def frontend_died(self, frontend_id: str) -> None:
        """Forgets the unreported requests of a dead frontend, which will not send them."""
        self._unreported = deque(e for e in self._unreported if e.frontend_id != frontend_id)
        self._account()

    def die(self) -> None:
        """Notes that this incarnation is dead: it gets no requests any more, but its last status
        can still be read."""
        self.alive = False
        self._sum_up()
        self._unreported.clear()
        self._account()

    def _account(self) -> None:
        pending = self._unreported
        self.unreported = (
            Unreported(len(pending), sum(each.demand_blocks for each in pending))
            if pending
            else NOTHING_UNREPORTED
        )
        self._count_ready()

    def _count_ready(self) -> None:
        ready_s = self._reported_ready_s
        for each in self._unreported:  # `max` would take twice as long, at each status
            begins_s = each.begins_s
            ready_s = (begins_s if begins_s > ready_s else ready_s) + each.prefill_s
        self.ready_s = ready_s

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert self.closed_by == self._reasons(), "not summed up"
        seqs = [each.seq for each in self._unreported]
        assert seqs == sorted(set(seqs)), "sequence numbers out of order"
        assert not seqs or 1 <= seqs[0] <= seqs[-1] <= self.last_dispatch_seq
        assert self.unreported.num_requests == len(seqs)
        demands = [each.demand_blocks for each in self._unreported]
        assert self.unreported.demand_blocks == sum(demands)
        assert self.alive or not seqs, "a dead incarnation owes no report"
        if self.snapshot is None:
            assert not seqs, "dispatched before the first status"
            return
        assert self.snapshot.instance_id == self.instance_id
        assert self.snapshot.incarnation == self.incarnation
        assert self.snapshot.draining or Closed.DRAINING not in self.ordered


UNKNOWN_SPEED = PrefillSpeed(100e-6, 0.0)
"""Taken while an instance has not measured how fast it computes prompts. Between GPUs this differs
by a factor of ten, but it only matters in the first seconds."""


def speed_of(snapshot: InstanceSnapshot) -> PrefillSpeed:
    return snapshot.prefill_speed if snapshot.prefill_speed.token_s else UNKNOWN_SPEED


def _estimated_backlog_s(snapshot: InstanceSnapshot) -> float:
    num_blocks = snapshot.fill_blocks + snapshot.queued_demand_blocks
    return UNKNOWN_SPEED.time_s(0, num_blocks * snapshot.block_size)


MAX_CANDIDATES = 8
"""How many of the considered instances a decision names."""
MAX_RANKS = 8
"""The board has scores for at most this many ranks. A request may name any rank, and each rank with
scores adds work to every status."""


class ScoreBoard:
    """The schedulable instances with their scores and rooms, which are kept from one decision to
    the next.

    Asking each of 1,024 instances in Python took 160 us if no score had changed, and 720 us if all
    had. So the list of schedulable instances stays until one comes, goes or stalls, and a score is
    computed when its instance reports or is sent a request. This adds 0.4 us to each status, a
    small part of what it takes to receive one. A decision then only searches for the best score, in
    C, and for the candidates that it names. The outcome is the same as if each instance had been
    asked.

    `records`: the scheduler's own, by id. The scheduler calls `changed` after a status or a
    dispatch, and `forget` after any other change of a record. There are rooms only with
    `room_to_grow_tokens`.
    """

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
        """The schedulable instances, in the ascending order of their ids."""
        self._ids: tuple[str, ...] = ()
        self._places: dict[str, int] = {}
        self._room_to_grow_tokens = room_to_grow_tokens
        self.rooms: dict[str, Room] = {}
        """With late binding: the rooms of all schedulable instances by id, after a call of
        `any_schedulable`. Like scores, the rooms are kept between decisions: to make 16 rooms anew
        took as long as to place a request."""
        self.fingerprint: str | None = None
        """That of all schedulable instances; None if they differ."""
        self._some_attached = False
        """Whether any of the schedulable instances is an attached server."""
        self._short: set[str] = set()
        """The instances in `rooms` that are short of memory."""
        self._scores: dict[int, tuple[Level, list[float]]] = {}
        """For each rank that was asked for, the level and the scores, in the order of `_ready`."""

    def __len__(self) -> int:
        """The number of instances from which `choose` chooses."""
        return len(self._ready)

    def forget(self) -> None:
        """Drops the list of schedulable instances, because an instance came or went, or began or
        ceased to take requests."""
        self._is_known = False

    def changed(self, record: InstanceRecord) -> bool:
        """Updates the instance's score and room, because it reported or was sent a request. Returns
        whether a request that did not fit before may fit now, or may lack less room than before."""
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
        """Chooses for a new request, once `any_schedulable` has returned True. Returns the chosen
        instance, and the names and scores of it and of the best others. Does not change the
        history."""
        scores = self._scores_for(level)
        place = self._pick(request, scores, history)
        find = heapq.nsmallest if self._policy.low_is_better else heapq.nlargest
        best = find(MAX_CANDIDATES, range(len(scores)), key=scores.__getitem__)
        named = [place, *(other for other in best if other != place)][:MAX_CANDIDATES]
        return self._ready[place], tuple((self._ids[at], round(scores[at], 1)) for at in named)

    def pick(self, request: DispatchRequested, level: Level, history: History) -> InstanceRecord:
        """The instance that `choose` chooses."""
        return self._ready[self._pick(request, self._scores_for(level), history)]

    def _pick(self, request: DispatchRequested, scores: Sequence[float], history: History) -> int:
        """The place of the policy's choice. Only the instances are considered on which the request
        would wait the least for its adapter."""
        if not self.is_choosy(request):
            return self._policy.pick(self._ids, scores, request, history)
        waits = [record.wait_for(request) for record in self._ready]
        least = min(waits)
        places = [place for place, wait in enumerate(waits) if wait == least]
        ids, some = [self._ids[at] for at in places], [scores[at] for at in places]
        return places[self._policy.pick(ids, some, request, history)]

    def is_choosy(self, request: DispatchRequested) -> bool:
        """Whether not all schedulable instances are alike for the request."""
        if not self._is_known:
            self._look()
        return bool(request.adapter) or (request.hosted_only and self._some_attached)

    def score_of(self, level: Level) -> Callable[[str], float]:
        """A function from the id of a schedulable instance to its score, for a request of this
        level; valid until anything changes."""
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
        snapshots = (record.snapshot for record in ready)
        self._some_attached = any(each is not None and each.is_attached for each in snapshots)
        fingerprints = {record.fingerprint for record in ready}
        self.fingerprint = fingerprints.pop() if len(fingerprints) == 1 else None
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
        snapshot = record.snapshot
        return Room.of(
            snapshot,
            tokens,
            record.unreported,
            by_step=by_step,
            ready_s=record.ready_s,
            speed=speed_of(snapshot),
            fetched_s=record.fetched_s,
            loaded_s=record.loaded_s,
            num_cached_tokens=record.num_cached_tokens,
        )

    def _note_shortage(self, room: Room) -> bool:
        """Notes whether the instance is short of memory. Returns whether no instance is short of
        memory any more: then all rooms change, as they also do when the first instance becomes
        short of memory."""
        if room.below_half_free == (room.instance_id in self._short):
            return False
        was_short = bool(self._short)
        (self._short.add if room.below_half_free else self._short.discard)(room.instance_id)
        if was_short == bool(self._short):
            return False
        self._make_rooms()
        return was_short

    def _make_rooms(self) -> None:
        """Makes all rooms anew, in the same dictionary, because a caller may be placing requests by
        that dictionary."""
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


PoolEvent = (
    InstanceStarted | InstanceDied | InstanceRemoved | InstanceStalled | ClosedBy | FrontendDied
)
"""An event after which other instances may be schedulable, or have other scores."""


class InstancePool:
    def __init__(self, config: SchedulerConfig, policies: Mapping[str, Policy]) -> None:
        self._policies = policies
        self._records: dict[str, InstanceRecord] = {}
        self.instances: Mapping[str, InstanceRecord] = MappingProxyType(self._records)
        """The records by instance id; others only read them."""
        self._ordered: dict[str, Reasons] = {}
        self.ordered: Mapping[str, Reasons] = MappingProxyType(self._ordered)
        """For each instance id, known or not, the reasons of the spec against the instance.
        Instances without such reasons are left out."""
        self._history = History()
        self._latest_prompt: tuple[DispatchRequested, Prompt] | None = None
        """The prompt that was looked up last; None after anything that may change it. A decision
        needs it three times, and with 1,024 instances a look takes 0.2 ms."""
        self.configure(config)

    def configure(self, config: SchedulerConfig) -> None:
        """Sets the configuration from now on."""
        self._config = config
        self._latest_prompt = None
        self._policy = self._policies[config.policy]
        self._level_by_rank = {level.rank: level for level in (BACKGROUND, *config.levels)}
        self._board = ScoreBoard(
            self._records,
            self._policy,
            config.levels,
            config.holding.room_to_grow_tokens if config.holding is not None else None,
        )

    # -- what happens to instances -------------------------------------------------------

    def handle(self, event: PoolEvent) -> None:
        self._latest_prompt = None
        match event:
            case InstanceStarted():
                self._on_started(event)
            case InstanceDied():
                self._on_died(event)
            case InstanceRemoved():
                self._records.pop(event.instance_id, None)
                self._ordered.pop(event.instance_id, None)
                self._history.forget(event.instance_id)
            case ClosedBy(instance_id, reasons):
                self._ordered[instance_id] = reasons
                if not reasons:
                    del self._ordered[instance_id]
                if record := self._records.get(instance_id):
                    record.order(reasons)
            case InstanceStalled(instance_id, incarnation, over):
                record = self._records.get(instance_id)
                if record is not None and record.incarnation == incarnation:
                    record.stall(over=over)
            case FrontendDied():
                for record in self._records.values():
                    record.frontend_died(event.frontend_id)
            case _:
                assert_never(event)
        self._board.forget()

    def report(self, event: StatusReported, now_s: float) -> bool:
        """Takes a status in. Returns whether a request that did not fit before may fit now."""
        self._latest_prompt = None
        snapshot, record = event.snapshot, self._reporting(event)
        if record is not None:
            record.report(snapshot, event.last_dispatch_seq, now_s, event.age_s)
            computes = snapshot.num_queued > 0 or snapshot.fill_blocks > 0
            num_computed = 0 if computes else event.last_dispatch_seq
            self._history.prefixes.settle(record.instance_id, num_computed, now_s)
            return self._board.changed(record)
        return False

    def _reporting(self, event: StatusReported) -> InstanceRecord | None:
        """The record of the incarnation that reports; None if it is dead or not known."""
        record = self._records.get(event.snapshot.instance_id)
        is_current = record is not None and record.incarnation == event.snapshot.incarnation
        return record if record is not None and record.alive and is_current else None

    def report_cache(self, event: StatusReported, now_s: float) -> AskCache | None:
        """Takes in what a status says of the instance's prefix cache and its host cache."""
        self._latest_prompt = None
        record = self._reporting(event)
        if record is None:
            return None
        instance_id, history, asks = record.instance_id, self._history, False
        if event.cache is not None:
            asks = history.prefixes.report(instance_id, event.cache, now_s)
            record.num_cached_tokens = history.prefixes.num_known(instance_id) * PREFIX_TOKENS
        if event.host_cache is not None:
            asks |= history.in_host.report(instance_id, event.host_cache, now_s)
        return AskCache(instance_id, record.incarnation) if asks else None

    def _on_started(self, event: InstanceStarted) -> None:
        known = self._records.get(event.instance_id)
        if known is None or event.incarnation > known.incarnation:
            self._records[event.instance_id] = InstanceRecord(
                event.instance_id,
                event.incarnation,
                self._ordered.get(event.instance_id, OPEN),
                event.fingerprint,
            )
            self._history.forget(event.instance_id)

    def _on_died(self, event: InstanceDied) -> None:
        record = self._records.get(event.instance_id)
        if record is not None and event.incarnation >= record.incarnation:
            # The record stays, so that what the dead incarnation still sends is refused.
            record.die()
            self._history.forget(event.instance_id)

    # -- where a request goes ------------------------------------------------------------

    def any_schedulable(self) -> bool:
        return self._board.any_schedulable()

    def schedulable_snapshots(self) -> list[InstanceSnapshot]:
        """The last snapshots of all instances that may get requests."""
        return [
            record.snapshot
            for record in self._records.values()
            if record.snapshot is not None and record.schedulable
        ]

    @property
    def rooms(self) -> Mapping[str, Room]:
        """With late binding: the rooms of all schedulable instances by id, after a call of
        `any_schedulable`."""
        return self._board.rooms

    def score_of(self, rank: int) -> Callable[[str], float]:
        """A function from the id of a schedulable instance to its score, for a request of this
        rank; valid until anything changes."""
        return self._board.score_of(self._level(rank))

    def prompt(self, request: DispatchRequested) -> Prompt:
        """The request's prompt with what each instance probably has of it. An instance computes at
        least the last token."""
        num_tokens = request.num_prompt_tokens
        if not request.prefix_hashes:
            return Prompt(num_tokens, {})
        if self._latest_prompt is None or self._latest_prompt[0] is not request:
            matched = self._history.matched(request)
            cached = {i: min(n, num_tokens - 1) for i, n in matched.items()}
            found = Prompt(num_tokens, cached)
            holding = self._config.holding
            # The blocks of an adapter have other names on each instance.
            is_copied = not (request.replayed or request.adapter)
            if holding is not None and holding.fetches and is_copied:
                matched = self._history.matched_in_host(request)
                in_host = {i: min(n, num_tokens - 1) for i, n in matched.items()}
                source = self._fetch_source(request, cached, in_host)
                found = Prompt(num_tokens, cached, in_host, source)
            self._latest_prompt = request, found
        return self._latest_prompt[1]

    def work_s(self, request: DispatchRequested) -> float:
        """How long it takes to compute the request's prompt where most of it is cached. 0 for a
        replayed request, whose client has waited already."""
        if request.replayed or not self.rooms:
            return 0.0
        prompt = self.prompt(request)
        num_cached = max(prompt.num_cached.values(), default=0)
        # What decodes slows prompts down for now. The fastest instance says what they take.
        speeds = (room.speed for room in self.rooms.values() if room.speed.token_s)
        speed = min(speeds, key=lambda each: each.token_s, default=NOT_MEASURED)
        return speed.time_s(num_cached, prompt.num_tokens)

    def _fetch_source(
        self,
        request: DispatchRequested,
        num_cached: Mapping[str, int],
        num_in_host: Mapping[str, int],
    ) -> FetchSource | None:
        """The instance that has most of the prompt by now, in its prefix cache or its host cache,
        and of several the one that is first free to send it."""
        if num_in_host:
            both = {**num_cached, **num_in_host}
            num_cached = {i: max(n, num_cached.get(i, 0)) for i, n in both.items()}
        # A draining instance, which may have another engine, lends what it has, too.
        fingerprint, records = self._board.fingerprint, self._records
        alike = {i: n for i, n in num_cached.items() if records[i].fingerprint == fingerprint}
        most = max(alike.values(), default=0)
        best = [records[i] for i, number in alike.items() if number == most]
        if not best:
            return None
        source = min(best, key=lambda record: (record.sent_s, record.instance_id))
        names, size = request.prefix_hashes, request.prefix_hash_tokens
        history = self._history
        number = max(
            history.prefixes.num_reported(source.instance_id, names),
            history.in_host.num_reported(source.instance_id, names),
        )
        num_tokens = min(number * size, request.num_prompt_tokens - 1)
        if not num_tokens or not source.reports:
            return None
        return FetchSource(source.instance_id, num_tokens, source.sent_s)

    def num_cached_tokens(self, instance_id: str) -> int:
        """How many tokens the instance's prefix cache has, by its reports."""
        return self._records[instance_id].num_cached_tokens

    def num_cold_tokens(self, instance_id: str) -> int:
        """How many tokens only this instance has cached."""
        history = self._history
        return num_alone(instance_id, history.prefixes, history.in_host) * PREFIX_TOKENS

    def wait_for(self, request: DispatchRequested) -> Callable[[str], int] | None:
        """Returns a function from an instance's id to `InstanceRecord.wait_for`; None if all
        schedulable instances are alike for the request."""
        if not self._board.is_choosy(request):
            return None
        return lambda instance_id: self._records[instance_id].wait_for(request)

    def may_wait_for_room(self, request: DispatchRequested) -> bool:
        """Whether late binding may choose the instance: any of those that get requests can run the
        request."""
        ready = (each for each in self._records.values() if each.schedulable)
        choosy = self._board.is_choosy(request)
        return not choosy or all(each.wait_for(request) < NEVER for each in ready)

    def choice(self, request: DispatchRequested) -> str:
        """Returns the instance that `dispatch` would choose. Changes nothing."""
        return self._board.pick(request, self._level(request.rank), self._history).instance_id

    def dispatch(self, request: DispatchRequested, now_s: float) -> Dispatch:
        """Dispatches to the policy's choice, once `any_schedulable` has returned True."""
        level, history = self._level(request.rank), self._history
        candidates: tuple[tuple[str, float], ...] = ()
        if self._config.names_candidates:
            chosen, candidates = self._board.choose(request, level, history)
        else:
            chosen = self._board.pick(request, level, history)
        history.last = chosen.instance_id
        return self._send(request, chosen, candidates, now_s)

    def dispatch_to(self, instance_id: str, request: DispatchRequested, now_s: float) -> Dispatch:
        """Dispatches to a schedulable instance that late binding chose."""
        chosen = self._records[instance_id]
        score = self.score_of(request.rank)(instance_id)
        candidates = ((instance_id, round(score, 1)),)
        config, room = self._config.holding, self._board.rooms[instance_id]
        prompt = self.prompt(request)
        copy = None if config is None else copy_for(room, prompt, config, now_s)
        if copy is None:
            prefixes, copied_s = self._history.prefixes, max(chosen.fetched_s, chosen.loaded_s)
            if copied_s > now_s and prefixes.is_being_fetched(instance_id, request.prefix_hashes):
                return self._send(request, chosen, candidates, now_s, THE_EARLIER_FETCH, copied_s)
            return self._send(request, chosen, candidates, now_s)
        num_cached = prompt.num_cached.get(instance_id, 0)
        arrives_s = now_s + copy.arrives_s
        sender = self._records[copy.instance_id]
        if sender is chosen:
            chosen.loaded_s = arrives_s
        else:
            chosen.fetched_s = sender.sent_s = arrives_s
        limit_s = room.backlog_s(now_s) + room.speed.time_s(num_cached, copy.num_tokens)
        fetch = Fetch(sender.instance_id, sender.incarnation, copy.num_tokens, limit_s)
        return self._send(request, chosen, candidates, now_s, fetch, arrives_s)

    def _send(
        self,
        request: DispatchRequested,
        chosen: InstanceRecord,
        candidates: tuple[tuple[str, float], ...],
        now_s: float,
        fetch: Fetch | None = None,
        begins_s: float | None = None,
    ) -> Dispatch:
        num_cached = self.prompt(request).num_cached.get(chosen.instance_id, 0)
        if fetch is not None:
            num_cached = max(num_cached, fetch.num_tokens)
        self._latest_prompt = None
        seq = chosen.dispatch(request, num_cached, now_s, begins_s)
        if self._policy.by_prefix:
            self._history.prefixes.expect(
                chosen.instance_id,
                request.prefix_hashes,
                seq,
                now_s,
                chosen.ready_s,
                fetched=fetch is not None,
            )
        self._board.changed(chosen)
        return Dispatch(
            request.request_id,
            request.frontend_id,
            chosen.instance_id,
            chosen.incarnation,
            seq,
            candidates,
            self._policy.name,
            len(self._board),
            fetch,
        )

    def _level(self, rank: int) -> Level:
        return self._level_by_rank.get(rank) or Level(str(rank), rank)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        self._board.check()
        self._history.prefixes.check()
        for instance_id, record in self._records.items():
            assert record.instance_id == instance_id
            assert record.ordered == self._ordered.get(instance_id, OPEN)
            record.check()
