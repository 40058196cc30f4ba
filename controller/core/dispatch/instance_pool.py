"""The instances that requests are dispatched to: what each reports, what was sent there since, and
which of them gets a request.

The pool is a part of the global scheduler (`core.scheduler`), which says when a request goes; the
pool says to which instance.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import assert_never

from controller.core.admission.policies import History, Policy
from controller.core.dispatch.instance_record import InstanceRecord
from controller.core.dispatch.score_board import ScoreBoard
from controller.core.load.closed import OPEN, Reasons
from controller.core.load.room import Room
from controller.core.load.snapshot import InstanceSnapshot, Level
from controller.core.scheduler_config import SchedulerConfig
from controller.core.scheduler_events import (
    ClosedBy,
    Dispatch,
    DispatchRequested,
    FrontendDied,
    InstanceDied,
    InstanceRemoved,
    InstanceStalled,
    InstanceStarted,
    StatusReported,
)

PoolEvent = (
    InstanceStarted | InstanceDied | InstanceRemoved | InstanceStalled | ClosedBy | FrontendDied
)
"""An event after which other instances may be schedulable, or have other scores."""


class InstancePool:
    def __init__(self, config: SchedulerConfig, policies: Mapping[str, Policy]) -> None:
        self._policies = policies
        self._records: dict[str, InstanceRecord] = {}
        self.instances: Mapping[str, InstanceRecord] = MappingProxyType(self._records)
        """By instance id, for others to look at."""
        self._ordered: dict[str, Reasons] = {}
        self.ordered: Mapping[str, Reasons] = MappingProxyType(self._ordered)
        """What the spec has against instances, known or not; others are not named."""
        self._history = History()
        self.configure(config)

    def configure(self, config: SchedulerConfig) -> None:
        """The pool goes by this from now on."""
        self._config = config
        self._policy = self._policies[config.policy]
        self._level_by_rank = {level.rank: level for level in config.levels}
        self._board = ScoreBoard(
            self._records,
            self._policy,
            config.levels,
            config.holding.room_to_grow_tokens if config.holding is not None else None,
        )

    # -- what happens to instances -------------------------------------------------------

    def handle(self, event: PoolEvent) -> None:
        match event:
            case InstanceStarted():
                self._on_started(event)
            case InstanceDied():
                self._on_died(event)
            case InstanceRemoved():
                self._records.pop(event.instance_id, None)
                self._ordered.pop(event.instance_id, None)
                self._history.prefixes.forget(event.instance_id)
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
        """Takes a status in. Returns whether something may fit now that did not before."""
        record = self._records.get(event.snapshot.instance_id)
        if record is not None and record.alive and record.incarnation == event.snapshot.incarnation:
            record.report(event.snapshot, event.last_dispatch_seq, now_s)
            return self._board.changed(record)
        return False

    def _on_started(self, event: InstanceStarted) -> None:
        known = self._records.get(event.instance_id)
        if known is None or event.incarnation > known.incarnation:
            self._records[event.instance_id] = InstanceRecord(
                event.instance_id,
                event.incarnation,
                self._ordered.get(event.instance_id, OPEN),
            )
            self._history.prefixes.forget(event.instance_id)

    def _on_died(self, event: InstanceDied) -> None:
        record = self._records.get(event.instance_id)
        if record is not None and event.incarnation >= record.incarnation:
            # The record stays: it refuses what the dead incarnation still sends.
            record.die()
            self._history.prefixes.forget(event.instance_id)

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
        """With late binding: of all schedulable instances by id, after `any_schedulable`."""
        return self._board.rooms

    def score_of(self, rank: int) -> Callable[[str], float]:
        """What tells the score of a schedulable instance by its id, for a request of this rank;
        until anything changes."""
        return self._board.score_of(self._level(rank))

    def cached(self, request: DispatchRequested) -> Callable[[str], int] | None:
        """How many tokens of the request an instance has seen, by the instance's id. None of a
        request that was seen nowhere, as nobody knows its prefixes."""
        if not request.prefix_hashes:
            return None
        return lambda instance_id: self._history.prefixes.num_matched_tokens(instance_id, request)

    def choice(self, request: DispatchRequested) -> str:
        """The instance that `dispatch` would choose. Changes nothing."""
        return self._board.pick(request, self._level(request.rank), self._history).instance_id

    def dispatch(self, request: DispatchRequested, now_s: float) -> Dispatch:
        """To the policy's choice, after `any_schedulable` was true."""
        level, history = self._level(request.rank), self._history
        candidates: tuple[tuple[str, float], ...] = ()
        if self._config.names_candidates:
            chosen, candidates = self._board.choose(request, level, history)
        else:
            chosen = self._board.pick(request, level, history)
        history.last = chosen.instance_id
        if self._policy.by_prefix:
            assert chosen.snapshot is not None
            history.note(chosen.snapshot, request)
        return self._send(request, chosen, candidates, now_s)

    def dispatch_to(
        self, instance_id: str, request: DispatchRequested, now_s: float, *, by_prefix: bool
    ) -> Dispatch:
        """To a schedulable instance that late binding chose. `by_prefix`: the request's prompt is
        remembered as sent there."""
        chosen = self._records[instance_id]
        if by_prefix:
            assert chosen.snapshot is not None
            self._history.note(chosen.snapshot, request)
        score = self.score_of(request.rank)(instance_id)
        candidates = ((instance_id, round(score, 1)),)
        return self._send(request, chosen, candidates, now_s)

    def _send(
        self,
        request: DispatchRequested,
        chosen: InstanceRecord,
        candidates: tuple[tuple[str, float], ...],
        now_s: float,
    ) -> Dispatch:
        seq = chosen.dispatch(request.num_prompt_tokens, request.frontend_id, now_s)
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
