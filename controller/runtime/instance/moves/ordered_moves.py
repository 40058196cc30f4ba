"""Answers the controller's questions to a source: to move a request, to plan that, and which
requests cannot move."""

from functools import partial

from controller.core.load.snapshot import blocks_for
from controller.core.migration.move_records import CopyRates, MovePlan, MoveRecord
from controller.core.migration.refusals import MoveFacts, MoveRefusal, refusal_of
from controller.ports.engine import Engine
from controller.runtime.instance.moves.host import MoveHost
from controller.runtime.instance.moves.instance_moves import InstanceMoves
from controller.runtime.messages.move_messages import (
    MoveAnswered,
    MoveAsked,
    MoveRefusalAsked,
    MoveRefusalsAnswered,
)


class OrderedMoves:
    """Copy times are estimated by the last moves of this source."""

    def __init__(
        self,
        host: MoveHost,
        instance_moves: InstanceMoves,
        rates: CopyRates,
        controller_address: str,
    ) -> None:
        self._host = host
        self._moves = instance_moves
        self._rates = rates
        self._controller_address = controller_address

    def asked(self, asked: MoveAsked) -> None:
        order = asked.order
        if not asked.dry_run:
            begun = self._moves.begin(order, partial(self._on_closed, asked.query_id))
            if isinstance(begun, MoveRefusal):
                self._answer(MoveAnswered(asked.query_id, begun))
            return
        self._host.between_steps(
            partial(self._plan, order.request_id), partial(self._on_planned, asked)
        )

    def refusals_asked(self, asked: MoveRefusalAsked) -> None:
        def facts(engine: Engine) -> dict[str, MoveFacts | None]:
            return {id_: engine.moves.facts(id_) for id_ in asked.request_ids}

        def answer(found: dict[str, MoveFacts | None]) -> None:
            refusals = tuple(self._moves.refusals(found).items())
            answered = MoveRefusalsAnswered(asked.query_id, refusals)
            self._host.send(self._controller_address, answered)

        self._host.between_steps(facts, answer)

    def _plan(self, request_id: str, engine: Engine) -> tuple[MoveFacts | None, int, int]:
        """Runs on the engine's thread. Returns the request's facts, and how many tokens and blocks
        a move would copy: none of one that is queued or cannot move."""
        moves = engine.moves
        facts = moves.facts(request_id)
        if refusal_of(facts) is not None or moves.is_queued(request_id):
            return facts, 0, 0
        pinned = moves.pin(request_id, 0)
        moves.unpin(request_id)
        if pinned is None:
            return None, 0, 0
        return facts, pinned.num_tokens, blocks_for(pinned.num_tokens, engine.block_size)

    def _on_planned(self, asked: MoveAsked, found: tuple[MoveFacts | None, int, int]) -> None:
        facts, num_tokens, num_blocks = found
        # A move by hand would wait for its turn.
        refusal = self._moves.refusal(asked.order.request_id, facts, waits=True)
        if refusal is not None:
            self._answer(MoveAnswered(asked.query_id, refusal))
            return
        num_bytes = num_blocks * self._host.blocks.block_bytes
        bytes_per_s = self._rates.bytes_per_s(asked.order.destination.instance_id)
        copy_time_s = num_bytes / bytes_per_s if bytes_per_s else None
        plan = MovePlan(num_tokens, num_blocks, num_bytes, copy_time_s)
        self._answer(MoveAnswered(asked.query_id, "", plan))

    def _on_closed(self, query_id: str, record: MoveRecord) -> None:
        self._rates.measured(record)
        self._answer(MoveAnswered(query_id, record.code, record=record))

    def _answer(self, answered: MoveAnswered) -> None:
        self._host.send(self._controller_address, answered)
