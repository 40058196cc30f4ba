"""Moves that an instance began by its own choice, and what is remembered of them: who is on its way
where, and whose last move failed.

Requests that the destination's snapshot does not count yet must be added to it by whoever chooses
the next one.
"""

import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.core.holding.room_moves import PLAN_FAILED
from controller.core.instance_ref import InstanceRef
from controller.core.migration.order import MoveOrder
from controller.core.migration.record import MoveRecord
from controller.core.migration.refusals import MoveRefusal
from controller.core.migration.source_terms import MoveCancelled, SourceState
from controller.core.record.event_log import Number
from controller.core.rescheduling.candidate import Candidate
from controller.runtime.instance.moves.host import MoveHost
from controller.runtime.instance.moves.instance_moves import InstanceMoves
from controller.runtime.instance.moves.links import Links
from controller.runtime.instance.moves.outgoing import OutgoingMove
from controller.runtime.messages.moves import MoveAnswered

# A request whose move failed is not tried again for so long, unless the request itself was the
# reason. The controller avoids destinations that fail.
FAILED_AGAIN_S = 1.0
DRAIN_CANCELLED = "drain_cancelled"
_TRY_AT_ONCE = frozenset({"evicted", "admitted", DRAIN_CANCELLED, PLAN_FAILED})


@dataclass(slots=True)
class _Sent:
    candidate: Candidate
    destination: InstanceRef
    reason: str
    then: Callable[[MoveRecord], None]
    move: OutgoingMove | None
    """None once it is over, as a move holds the request's prompt."""
    reserved_s: float | None = None
    closed_s: float | None = None

    def counted_s(self) -> float | None:
        """When the destination's snapshots began to count the request: once its blocks were
        reserved, or, if it was queued, once it had moved."""
        if self.candidate.queued:
            return self.closed_s
        return self.reserved_s if self.move is None else self.move.reserved_s

    def close(self, now_s: float) -> None:
        if self.move is not None:
            self.reserved_s, self.move, self.closed_s = self.move.reserved_s, None, now_s


class ChosenMoves:
    """Used on the event loop's thread."""

    def __init__(
        self, host: MoveHost, instance_moves: InstanceMoves, links: Links, controller_address: str
    ) -> None:
        self._host = host
        self._moves = instance_moves
        self.links = links
        self._controller_address = controller_address
        self._epoch = secrets.token_hex(3)
        """Makes migration ids unique: destinations remember moves for longer than a process takes
        to start again."""
        self._numbers = itertools.count(1)
        self._sent: dict[str, _Sent] = {}
        """By migration id: requests on their way, or moved and perhaps not yet in the destination's
        snapshot."""
        self._failed: dict[str, tuple[str, float]] = {}
        """By request id: why its last move failed, and when."""

    def begin(
        self,
        chosen: Candidate,
        destination: InstanceRef,
        reason: str,
        figures: Mapping[str, Number],
        then: Callable[[MoveRecord], None],
    ) -> OutgoingMove | MoveRefusal:
        """Begins a move, or returns why it may not begin; `then` gets its record when it is
        over."""
        self._forget_old()
        migration_id = f"m-{self._host.me.instance_id}-{self._epoch}-{next(self._numbers)}"
        order = MoveOrder(migration_id, chosen.request_id, destination, reason)
        move = self._moves.begin(order, self._on_closed, figures)
        if not isinstance(move, MoveRefusal):
            self._sent[migration_id] = _Sent(chosen, destination, reason, then, move)
        return move

    def cancel(self, migration_ids: Iterable[str], code: str) -> None:
        """A request whose COMMIT is sent leaves all the same."""
        for migration_id in migration_ids:
            sent = self._sent.get(migration_id)
            if sent is not None and sent.move is not None:
                sent.move.handle(MoveCancelled(code))

    def because_of(self, reason: str) -> list[str]:
        """The ids of the moves under way that have this reason."""
        sent = self._sent.items()
        return [id_ for id_, each in sent if each.move is not None and each.reason == reason]

    def fenced(self) -> None:
        """Forgets all moves: those in doubt will have no end here."""
        self._sent.clear()

    # -- what is known -------------------------------------------------------------------

    def sent_to(self, destination: InstanceRef) -> list[Candidate]:
        key = destination.key
        return [sent.candidate for sent in self._sent.values() if sent.destination.key == key]

    def known(self, seen: Sequence[Candidate]) -> list[Candidate]:
        """Adds what only the llumlet knows of the candidates: earlier moves and failures. Most have
        neither and are returned as they are."""
        now_s, requests = self._host.now_s(), self._host.requests
        self._failed = {
            request_id: (code, at_s)
            for request_id, (code, at_s) in self._failed.items()
            if at_s > now_s - FAILED_AGAIN_S
        }
        leaving = {move.request_id for move in self._moves.in_flight()}
        moving = self._moves.moving_ids()
        known = []
        for candidate in seen:
            live = requests.get(candidate.request_id)
            if live is None or candidate.request_id in leaving:
                # A request that has ended since is still counted in the snapshot, as if it left.
                known.append(replace(candidate, outgoing=True))
                continue
            moves, refusal = live.past_instances.ages(now_s), candidate.refusal
            if candidate.request_id in moving:  # its source has not let go of it yet
                refusal = MoveRefusal.MOVING
            elif not refusal and (failed := self._failed.get(candidate.request_id)):
                refusal, _ = failed
            if moves or refusal != candidate.refusal:
                candidate = replace(candidate, refusal=refusal, moves=moves)
            known.append(candidate)
        return known

    def forget_ended(self) -> None:
        """The next snapshot of any destination is long after the moves that are over."""
        self._sent = {id_: sent for id_, sent in self._sent.items() if sent.move is not None}

    def forget_counted(self, destination: InstanceRef, taken_s: float) -> None:
        """Forgets requests that a snapshot of the destination of then counts, and old moves
        elsewhere."""
        self._forget_old()
        for migration_id, sent in list(self._sent.items()):
            counted_s = sent.counted_s()
            here = sent.destination.key == destination.key
            if here and counted_s is not None and counted_s <= taken_s:
                del self._sent[migration_id]

    def _forget_old(self) -> None:
        old_s = self._host.now_s() - FAILED_AGAIN_S
        self._sent = {
            id_: sent
            for id_, sent in self._sent.items()
            if sent.closed_s is None or sent.closed_s > old_s
        }

    def _on_closed(self, record: MoveRecord) -> None:
        now_s = self._host.now_s()
        self._host.send(self._controller_address, MoveAnswered("", record.code, record=record))
        sent = self._sent.get(record.migration_id)
        if record.outcome == SourceState.MIGRATED:
            self.links.measured(record)
            if sent is not None:
                sent.close(now_s)
        else:
            self._sent.pop(record.migration_id, None)
            if record.code not in _TRY_AT_ONCE:
                self._failed[record.request_id] = (record.code, now_s)
        if sent is not None:
            sent.then(record)
