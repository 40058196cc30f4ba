"""Moves that an instance begins by its own choice, on the controller's orders: carries out what the
machine that chooses (`core.emptying.relieving`) instructs.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from statistics import median

from controller.core.emptying.relief import Candidate, PastMoves
from controller.core.emptying.relieving import (
    BeginMove,
    CancelMove,
    DrainEnded,
    Event,
    Fenced,
    Instruction,
    Look,
    Looked,
    MoveBegan,
    MoveEnded,
    MoveRefused,
    PeerLost,
    ReliefGiven,
    ReliefWithdrawn,
    RelievingSource,
    RoomGiven,
    TellFruitless,
    TellNotMoved,
    TellRoomNotMade,
    considered,
    known,
)
from controller.core.instance_ref import InstanceRef
from controller.core.load.freeness import finite
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.migration.move_records import CopyRates, MoveOrder, MoveRecord
from controller.core.migration.refusals import MoveRefusal, why
from controller.core.migration.source import MoveCancelled, SourceState
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.ports.engine import Engine
from controller.runtime.instance.moves.host import MoveHost
from controller.runtime.instance.moves.instance_moves import InstanceMoves
from controller.runtime.messages.move_messages import (
    HeadMoveOrdered,
    MoveAnswered,
    ReliefFruitless,
    ReliefOrdered,
    RoomOrdered,
)

# A destination's snapshot is so much older than the controller's note of its arrival: one way on
# the network and a turn of both loops. Without this, requests that were just sent there would be
# taken for counted in it.
STATUS_LAG_S = 0.02
NUM_STEPS_MEASURED = 15


class ChosenMoves:
    """Used on the event loop's thread."""

    def __init__(
        self,
        host: MoveHost,
        instance_moves: InstanceMoves,
        rates: CopyRates,
        block_size: int,
        controller_address: str,
    ) -> None:
        self._host = host
        self._moves = instance_moves
        self._rates = rates
        self._controller_address = controller_address
        self.step_times_s: deque[float] = deque(maxlen=NUM_STEPS_MEASURED)
        here = _Here(host, instance_moves, rates, block_size, self.step_times_s)
        self.machine = RelievingSource(here, secrets.token_hex(3))

    # -- what happens --------------------------------------------------------------------

    def relief_ordered(self, ordered: ReliefOrdered) -> None:
        order = ordered.relief
        if order is None:
            self._handle(ReliefWithdrawn())
            return
        taken_s = self._host.now_s() - order.snapshot_age_s - STATUS_LAG_S
        self._handle(ReliefGiven(ordered.round_id, order, taken_s))

    def room_ordered(self, ordered: HeadMoveOrdered | RoomOrdered) -> None:
        self._handle(RoomGiven(ordered.order))

    def peer_lost(self, is_lost: Callable[[InstanceRef], bool]) -> None:
        self._handle(PeerLost(is_lost))

    def drain_ended(self) -> None:
        self._handle(DrainEnded())

    def fenced(self) -> None:
        self._handle(Fenced())

    def _on_closed(self, record: MoveRecord) -> None:
        self._host.send(self._controller_address, MoveAnswered("", record.code, record=record))
        moved = record.outcome == SourceState.MIGRATED
        self._rates.measured(record)
        self._handle(MoveEnded(record.migration_id, moved, record.code))

    # -- what is to be done --------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        """A move that begins comes last, and its answer is the next event: in a loop, as a drain
        may begin hundreds in one look."""
        following: Event | None = event
        while following is not None:
            instructions = self.machine.handle(following, self._host.now_s())
            following = None
            for instruction in instructions:
                if isinstance(instruction, BeginMove):
                    following = self._begin(instruction)
                else:
                    self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Look():
                self._host.between_steps(self._look, self._looked)
            case CancelMove(migration_id=migration_id, code=code):
                if (move := self._moves.outgoing.get(migration_id)) is not None:
                    move.handle(MoveCancelled(code))
            case TellFruitless(round_id=round_id, destination=to):
                me = self._host.me
                pair = me.instance_id, me.incarnation, to.instance_id, to.incarnation
                self._host.send(self._controller_address, ReliefFruitless(round_id, *pair))
            case TellNotMoved():
                if (live := self._host.requests.get(instruction.refused.request_id)) is not None:
                    self._host.tell(_not_moved(instruction, self._host.me), live.frontend)
            case TellRoomNotMade(order=order):
                live = self._host.requests.get(order.request_id)
                if frontend := order.frontend or (live.frontend if live is not None else ""):
                    self._host.tell(_room_not_made(instruction, self._host.me), frontend)

    def _look(self, engine: Engine) -> tuple[InstanceSnapshot, Sequence[Candidate]]:
        """Runs on the engine's thread."""
        me = self._host.me
        return engine.snapshot(me.instance_id, me.incarnation), engine.moves.candidates()

    def _looked(self, found: tuple[InstanceSnapshot, Sequence[Candidate]]) -> None:
        snapshot, candidates = found
        snapshot = replace(snapshot, draining=self._moves.draining)
        self._handle(Looked(snapshot, known(candidates, self._moves, self._past_moves)))

    def _past_moves(self, request_id: str) -> PastMoves:
        return self._host.requests[request_id].past_instances.ages(self._host.now_s())

    def _begin(self, begin: BeginMove) -> MoveBegan | MoveRefused:
        order = MoveOrder(
            begin.migration_id, begin.candidate.request_id, begin.destination, begin.reason
        )
        move = self._moves.begin(order, self._on_closed, begin.figures)
        if isinstance(move, MoveRefusal):
            return MoveRefused(begin.migration_id, move)
        return MoveBegan(begin.migration_id)


class _Here:
    """This instance as its machine looks at it: a `SourceView`."""

    def __init__(
        self,
        host: MoveHost,
        moves: InstanceMoves,
        rates: CopyRates,
        block_size: int,
        step_times_s: Collection[float],
    ) -> None:
        self._host = host
        self._moves = moves
        self._step_times_s = step_times_s
        self.block_size = block_size
        self.bytes_per_s = rates.bytes_per_s

    @property
    def instance_id(self) -> str:
        return self._host.me.instance_id

    @property
    def block_bytes(self) -> int:
        return self._host.blocks.block_bytes

    @property
    def max_moves(self) -> int:
        return self._moves.max_moves

    @property
    def num_moves(self) -> int:
        return self._moves.num_moves

    @property
    def leaves_at_s(self) -> float | None:
        return self._moves.leaves_at_s

    @property
    def max_bytes_per_s(self) -> float | None:
        return self._host.transfer.max_bytes_per_s

    @property
    def step_time_s(self) -> float | None:
        return median(self._step_times_s) if self._step_times_s else None

    def leaving_for(self) -> Collection[str]:
        return {move.destination_id for move in self._moves.in_flight()}

    def reserved_s(self, migration_id: str) -> float | None:
        move = self._moves.outgoing.get(migration_id)
        return None if move is None else move.reserved_s


# -- words -------------------------------------------------------------------------------


def _not_moved(told: TellNotMoved, me: InstanceRef) -> LoggedEvent:
    refused, order, to = told.refused, told.order, told.order.destination.instance_id
    sentence = why(refused.code)
    return LoggedEvent(
        EventKind.NOT_MOVED,
        time.time(),
        told.round_id,
        f"to {to}: {sentence} ({refused.code})",
        instance_id=me.instance_id,
        incarnation=me.incarnation,
        request_id=refused.request_id,
        numbers={
            "source_freeness_steps": finite(order.source_freeness),
            "destination_freeness_steps": order.destination_freeness,
            **refused.numbers,
            **considered(order),
        },
        labels={"from": me.instance_id, "to": to, "code": refused.code, "why": sentence},
    )


def _room_not_made(told: TellRoomNotMade, me: InstanceRef) -> LoggedEvent:
    order, sentence = told.order, why(told.code)
    failed = ""
    if told.num_moves:
        failed = f"of {told.num_moves} moves one to {told.destination_id} failed: "
    return LoggedEvent(
        EventKind.ROOM_NOT_MADE,
        time.time(),
        order.round_id,
        f"on {me.instance_id}: {failed}{sentence} ({told.code})",
        instance_id=me.instance_id,
        incarnation=me.incarnation,
        request_id=order.request_id,
        numbers={
            "lacking_blocks": order.lacking_blocks,
            "num_movable": told.num_movable,
            "spare_blocks_elsewhere": sum(each.spare_blocks for each in order.openings),
        },
        labels={"code": told.code, "why": sentence},
    )
