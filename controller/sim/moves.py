"""Live moves in virtual time: staged copies while the request decodes on, then a short stop.

The rules are the core's (`core.migration.stages`) and the engines' part is the model's. What the
two state machines of the live cluster add, for messages that get lost and processes that die, has
nothing to do here: a move whose other end dies is over at once.

    reserve     the destination keeps blocks, or refuses
    stage       the full blocks of so far are copied; the request decodes on
    last stage  room for what the request grows meanwhile; it stops, the rest is copied
    commit      the destination runs it in its next step, the source forgets it

A queued request has nothing to copy: it leaves one queue for the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from controller.core.load.snapshot import blocks_for
from controller.core.migration.refusals import MoveRefusal
from controller.core.migration.stages import blocks_to_reserve, is_last
from controller.core.rescheduling.candidate import Candidate
from controller.model.moves import MovingState
from controller.sim.event_queue import EventQueue
from controller.sim.instance import SimInstance
from controller.sim.request_run import RequestRun


class Links:
    """Each instance sends over one link, one copy after the other."""

    def __init__(self, events: EventQueue, bytes_per_s: float, message_s: float) -> None:
        self.message_s = message_s
        """How long a message is on its way."""
        self.bytes_per_s = bytes_per_s
        self.slowdown: dict[str, float] = {}
        """By source: how many times as long its copies take."""
        self._events = events
        self._free_s: dict[str, float] = {}

    def bandwidth(self, source_id: str) -> float:
        """In bytes per second."""
        return self.bytes_per_s / self.slowdown.get(source_id, 1.0)

    def copy(self, source_id: str, num_bytes: int, then: Callable[[], None]) -> None:
        begins_s = max(self._events.now_s, self._free_s.get(source_id, 0.0))
        ends_s = begins_s + num_bytes / self.bandwidth(source_id)
        self._free_s[source_id] = ends_s
        self._events.at(ends_s + self.message_s, then)


@dataclass(slots=True, eq=False)
class SimMove:
    """One move, from its order to its end. `on_over` is told whether the request has moved. `plan`:
    the moves that make room together, itself among them; they all begin, or none."""

    run: RequestRun
    candidate: Candidate
    source: SimInstance
    destination: SimInstance
    links: Links
    events: EventQueue
    block_bytes: int
    on_over: Callable[["SimMove", bool], None]
    plan: Sequence["SimMove"] = ()
    reserved_s: float | None = None
    """Since when the destination's statuses count the request."""
    num_copied: int = 0
    """Blocks that the destination has."""
    is_over: bool = False
    failure: str = ""
    _stage: int = 0
    _suspended: MovingState | None = field(default=None)

    @property
    def _id(self) -> str:
        return self.run.request.request_id

    def begin(self) -> None:
        if self.candidate.queued:
            self._ask(lambda: self._reserve(0))
        else:
            self.source.between_steps(self._first_stage)

    def cut(self, failure: str) -> None:
        """One end has died: the other one forgets the move."""
        self._refused(failure)

    def cancel(self, failure: str) -> None:
        """Before the request has stopped; else it leaves all the same, as live ones do."""
        if self._suspended is None:
            self._refused(failure)

    # -- running requests ------------------------------------------------------------------

    def _first_stage(self) -> None:
        if self.is_over:
            return
        num_full = self._pin()
        if num_full is not None:
            self._ask(lambda: self._reserve(num_full))

    def _reserve(self, num_blocks: int) -> None:
        moves = self.destination.engine.moves
        request = self.run.request
        num_outputs = self.candidate.num_tokens - request.num_prompt_tokens
        found = moves.reserve(request, num_outputs, num_blocks)
        if isinstance(found, MoveRefusal):
            self._tell(lambda: self._refused(found))
            return
        self.reserved_s = self.events.now_s
        if self.candidate.queued:
            self._tell(lambda: self.source.between_steps(self._hand_over_queued))
        else:
            self.num_copied = found
            self._tell(lambda: self._copy(num_blocks, self._next_stage))

    def _copy(self, num_blocks: int, then: Callable[[], None]) -> None:
        """Copies up to `num_blocks` in all."""
        if self.is_over:
            return
        num_bytes = max(0, num_blocks - self.num_copied) * self.block_bytes
        self.num_copied = max(self.num_copied, num_blocks)
        self._stage += 1
        self.links.copy(self.source.instance_id, num_bytes, then)

    def _next_stage(self) -> None:
        if not self.is_over:
            self.source.between_steps(self._look)

    def _look(self) -> None:
        """Between two steps of the source: one more stage, or the last one."""
        if self.is_over:
            return
        num_full = self._pin()
        if num_full is None:
            return
        last = is_last(num_full - self.num_copied, self._stage)
        num_tokens = self.source.engine.num_tokens(self._id)
        num_blocks = blocks_to_reserve(num_tokens, self.source.engine.config.block_size, last=last)
        self._ask(lambda: self._extend(max(num_blocks, num_full), last))

    def _extend(self, num_blocks: int, last: bool) -> None:
        if not self.destination.engine.moves.extend(self._id, num_blocks):
            self._tell(lambda: self._refused(MoveRefusal.NO_BLOCKS))
        elif last:
            self._tell(lambda: self.source.between_steps(self._stop))
        else:
            self._tell(lambda: self._copy(num_blocks, self._next_stage))

    def _stop(self) -> None:
        """The request leaves the batch; what the destination lacks is copied."""
        if self.is_over or self._pin() is None:
            return
        state = self.source.engine.moves.suspend(self._id)
        assert state is not None
        self._suspended = state
        self.source.stop_decoding(self.run)
        num_blocks = blocks_for(state.num_tokens - 1, self.source.engine.config.block_size)
        self._copy(num_blocks, lambda: self.destination.between_steps(self._commit))

    def _commit(self) -> None:
        if self.is_over:
            return
        assert self._suspended is not None
        moves, bs = self.destination.engine.moves, self.destination.engine.config.block_size
        if not moves.extend(self._id, blocks_for(self._suspended.num_tokens - 1, bs)):
            self._tell(lambda: self._refused(MoveRefusal.NO_BLOCKS))
            return
        moves.commit(self._id, self._suspended)
        self._moved(decoding=True)
        self._tell(lambda: self.source.between_steps(self._release))

    def _release(self) -> None:
        moves = self.source.engine.moves
        moves.release(self._id)
        moves.unpin(self._id)

    # -- queued requests -------------------------------------------------------------------

    def _hand_over_queued(self) -> None:
        moves = self.source.engine.moves
        if self.is_over:
            return
        if moves.refusal(self._id) is not None or not moves.is_queued(self._id):
            self._refused("admitted")
            return
        state = moves.suspend(self._id)
        assert state is not None
        self._suspended = state
        self._ask(self._commit_queued)

    def _commit_queued(self) -> None:
        assert self._suspended is not None
        self.destination.engine.moves.commit(self._id, self._suspended)
        self._moved(decoding=False)
        self._tell(lambda: self.source.between_steps(self._release))

    # -- both ------------------------------------------------------------------------------

    def _pin(self) -> int | None:
        """How many full blocks the request has; ends the move if it does not decode any more."""
        num_full = self.source.engine.moves.pin(self._id, self.num_copied)
        if num_full is None:
            self._refused("evicted" if self._id in self.source.runs else "finished")
        return num_full

    def _ask(self, action: Callable[[], None]) -> None:
        """Has the destination do something between two of its steps, a message away."""

        def ask() -> None:
            if not self.is_over:
                self.destination.between_steps(lambda: None if self.is_over else action())

        self.events.after(self.links.message_s, ask)

    def _tell(self, action: Callable[[], None]) -> None:
        self.events.after(self.links.message_s, action)

    def _refused(self, failure: str) -> None:
        if self.is_over:
            return
        self._end(False, str(failure))
        self.source.between_steps(self._give_up_source)
        if self.reserved_s is not None:
            self.destination.between_steps(lambda: self.destination.engine.moves.cancel(self._id))

    def _give_up_source(self) -> None:
        moves = self.source.engine.moves
        if self._suspended is not None:
            was_running = not self._suspended.queued
            moves.resume(self._id)
            if was_running and self._id in self.source.runs:
                self.source.decode_on(self.run)
        moves.unpin(self._id)

    def _moved(self, *, decoding: bool) -> None:
        run = self.source.depart(self._id)
        run.moves.append((self.source.instance_id, self.events.now_s))
        run.changed_over = decoding
        self.destination.arrive(run, decoding=decoding)
        self._end(True, "")

    def _end(self, moved: bool, failure: str) -> None:
        self.is_over, self.failure = True, failure
        self.on_over(self, moved)
