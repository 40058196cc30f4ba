"""Relief: on the controller's order an instance moves away requests of its own choice.

With each new order, and whenever a move has ended well, the instance looks at its requests between
two steps and begins moves while `next_move` chooses some and the limits allow. Without an order the
engine is asked nothing. If no request can go, the instance reports the order as fruitless, and the
controller, which sees no requests, pairs it with another destination.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from controller.core.instance_ref import InstanceRef
from controller.core.load.freeness import finite
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.migration.record import MoveRecord
from controller.core.migration.refusals import MoveRefusal
from controller.core.migration.sentences import why
from controller.core.migration.source_terms import SourceState
from controller.core.record.event_log import EventKind, LoggedEvent, Number
from controller.core.rescheduling.candidate import Candidate
from controller.core.rescheduling.move_reasons import MoveReason
from controller.core.rescheduling.refusals import SENTENCES, ReliefRefusal
from controller.core.rescheduling.relief import (
    Decision,
    NotMoved,
    ReliefView,
    next_move,
)
from controller.ports.engine import Engine
from controller.runtime.instance.moves.chosen_moves import DRAIN_CANCELLED, ChosenMoves
from controller.runtime.instance.moves.host import MoveHost
from controller.runtime.instance.moves.instance_moves import InstanceMoves
from controller.runtime.messages.operations import Relief, ReliefFruitless, ReliefOrdered

# An order ends after so many intervals without another order: the controller is gone.
ORDER_INTERVALS = 2
# A destination's snapshot is so much older than the controller's note of its arrival: one way on
# the network and a turn of both loops. Without this, requests that were just sent there would be
# taken for counted in it.
STATUS_LAG_S = 0.02
# An instance writes at most so many events a second about requests that were not moved; 64
# instances then write 128.
MAX_TOLD_PER_S = 2
NUM_STEPS_MEASURED = 15


class ReliefMoves:
    """Used on the event loop's thread."""

    def __init__(
        self,
        host: MoveHost,
        instance_moves: InstanceMoves,
        chosen: ChosenMoves,
        controller_address: str,
    ) -> None:
        self._host = host
        self._moves = instance_moves
        self._chosen = chosen
        self._controller_address = controller_address
        self._order: Relief | None = None
        self._round_id = ""
        self._nothing_came_of_it = False
        """The present order has begun no move so far, and was not reported as fruitless."""
        self._expires_s = 0.0
        self._looking = False
        self.step_times_s: deque[float] = deque(maxlen=NUM_STEPS_MEASURED)
        self._told_s: deque[float] = deque(maxlen=MAX_TOLD_PER_S)

    # -- what happens --------------------------------------------------------------------

    def ordered(self, ordered: ReliefOrdered) -> None:
        self._order, self._round_id = ordered.relief, ordered.round_id
        self._nothing_came_of_it = self._order is not None
        if self._order is None:
            # The next order is an interval away, and its snapshot counts the moves that are over.
            self._chosen.forget_ended()
            return
        now_s = self._host.now_s()
        self._expires_s = now_s + ORDER_INTERVALS * self._order.config.interval_s
        taken_s = now_s - self._order.snapshot_age_s - STATUS_LAG_S
        self._chosen.forget_counted(self._order.destination, taken_s)
        self._look()

    def peer_lost(self, is_lost: Callable[[InstanceRef], bool]) -> None:
        if self._order is not None and is_lost(self._order.destination):
            self._order = None

    def drain_ended(self) -> None:
        """Cancels moves that the drain, or an evacuation, began."""
        for reason in (MoveReason.DRAIN, MoveReason.EVACUATE):
            self._chosen.cancel(self._chosen.because_of(reason), DRAIN_CANCELLED)

    def fenced(self) -> None:
        self._order = None

    # -- decisions -----------------------------------------------------------------------

    def _may_begin(self) -> bool:
        if self._order is None or self._host.now_s() >= self._expires_s:
            return False
        is_full = self._moves.num_moves >= self._moves.max_moves
        return not is_full and not self._link_is_taken(self._order.destination)

    def _link_is_taken(self, to: InstanceRef) -> bool:
        """An instance that will be ended sends one request after the other over a link with a
        bandwidth limit. Copies side by side would all be cut off at its end, and each would measure
        only its share of the link, so that fewer requests seem to arrive in time."""
        if self._moves.leaves_at_s is None or self._host.transfer.max_bytes_per_s is None:
            return False
        return any(move.destination_id == to.instance_id for move in self._moves.in_flight())

    def _look(self) -> None:
        if self._looking or not self._may_begin():
            return
        self._looking = True
        me = self._host.me

        def look(engine: Engine) -> tuple[InstanceSnapshot, Sequence[Candidate]]:
            snapshot = engine.snapshot(me.instance_id, me.incarnation)
            return snapshot, engine.moves.candidates()

        self._host.between_steps(look, self._decide)

    def _decide(self, found: tuple[InstanceSnapshot, Sequence[Candidate]]) -> None:
        """Begins moves; several may come of one look, as each counts as leaving at once."""
        self._looking = False
        snapshot, seen = found
        snapshot = replace(snapshot, draining=self._moves.draining)
        candidates = self._chosen.known(seen)
        while self._may_begin():
            assert self._order is not None
            decision = next_move(self._view(self._order, snapshot, candidates))
            for refused in decision.refused:
                self._tell(refused, self._order)
            chosen = decision.chosen
            if chosen is None:
                self._tell_fruitless(decision, self._order, snapshot)
                return
            refusal = self._begin(chosen, decision, self._order)
            now = replace(chosen, outgoing=refusal is None, refusal=refusal)
            candidates = [now if each is chosen else each for each in candidates]

    def _view(
        self, order: Relief, snapshot: InstanceSnapshot, candidates: Sequence[Candidate]
    ) -> ReliefView:
        to, leaves_at_s = order.destination, self._moves.leaves_at_s
        limit = self._host.transfer.max_bytes_per_s
        bytes_per_s = self._chosen.links.bytes_per_s(to.instance_id)
        if leaves_at_s is not None and limit is not None:
            bytes_per_s = min(limit, bytes_per_s or limit)
        return ReliefView(
            source=snapshot,
            candidates=candidates,
            destination=order.snapshot,
            sent=self._chosen.sent_to(to),
            levels=order.levels,
            config=order.config,
            block_bytes=self._host.blocks.block_bytes,
            bytes_per_s=bytes_per_s,
            step_time_s=median(self.step_times_s) if self.step_times_s else None,
            leaves_in_s=None if leaves_at_s is None else leaves_at_s - self._host.now_s(),
        )

    # -- moves ---------------------------------------------------------------------------

    def _begin(self, chosen: Candidate, decision: Decision, order: Relief) -> MoveRefusal | None:
        figures = {**decision.numbers, **_considered(order)}
        begun = self._chosen.begin(
            chosen, order.destination, decision.reason, figures, self._on_closed
        )
        if isinstance(begun, MoveRefusal):
            return begun
        self._nothing_came_of_it = False
        return None

    def _on_closed(self, record: MoveRecord) -> None:
        if record.outcome == SourceState.MIGRATED:
            self._look()

    # -- words ---------------------------------------------------------------------------

    def _tell_fruitless(
        self, decision: Decision, order: Relief, snapshot: InstanceSnapshot
    ) -> None:
        """Reports, once per order, that no request can go to its destination and none is on its way
        there. If no request was refused, moves to other destinations may be relief enough, so their
        end is awaited first. An instance with an evicted request that waits is a source at any
        freeness."""
        leaving_for = {move.destination_id for move in self._moves.in_flight()}
        is_source = decision.reason or snapshot.num_evicted_queued
        fruitless = decision.refused or (is_source and not leaving_for)
        to, me = order.destination, self._host.me
        if not self._nothing_came_of_it or not fruitless or to.instance_id in leaving_for:
            return
        self._nothing_came_of_it = False
        said = ReliefFruitless(
            self._round_id, me.instance_id, me.incarnation, to.instance_id, to.incarnation
        )
        self._host.send(self._controller_address, said)

    def _tell(self, refused: NotMoved, order: Relief) -> None:
        """Logs, once per request and code, why a request was not moved; not for a prefill, which is
        over soon."""
        live, now_s = self._host.requests.get(refused.request_id), self._host.now_s()
        if live is None or refused.code in live.told or refused.code == MoveRefusal.IN_PREFILL:
            return
        if len(self._told_s) == MAX_TOLD_PER_S and self._told_s[0] > now_s - 1.0:
            return
        self._told_s.append(now_s)
        live.told.add(refused.code)
        me, to = self._host.me, order.destination.instance_id
        event = LoggedEvent(
            EventKind.NOT_MOVED,
            time.time(),
            self._round_id,
            f"to {to}: {_sentence(refused.code)} ({refused.code})",
            instance_id=me.instance_id,
            incarnation=me.incarnation,
            request_id=refused.request_id,
            numbers={
                "source_freeness_steps": finite(order.source_freeness),
                "destination_freeness_steps": order.destination_freeness,
                **refused.numbers,
                **_considered(order),
            },
            labels={
                "from": me.instance_id,
                "to": to,
                "code": refused.code,
                "why": _sentence(refused.code),
            },
        )
        self._host.tell(event, live.frontend)


def _considered(order: Relief) -> dict[str, Number]:
    """Freeness of the instances at the beginning of the round, for an explanation."""
    return {f"freeness_of_{instance_id}": steps for instance_id, steps in order.candidates}


def _sentence(code: str) -> str:
    return SENTENCES[ReliefRefusal(code)] if code in SENTENCES else why(code)
