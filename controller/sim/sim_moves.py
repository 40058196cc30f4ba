"""Live moves in virtual time: carries out what the machines of source and destination instruct, and
notes which instance owns each request that moves, as its frontend does in a live cluster.

`core.migration` decides, as in a live cluster; the model plays the engines. Messages take
`message_s` and are never lost, copies queue on the source's link, and every death is known at once.

What the model does not have never fails here: fingerprints and state always fit, and grammars are
always compiled before they are needed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from controller.core.emptying.relief import Candidate
from controller.core.load.snapshot import InstanceRef, blocks_for
from controller.core.migration import destination as dst
from controller.core.migration import source as src
from controller.core.migration.destination import DestinationMove
from controller.core.migration.ownership import Epoch, Loss, Ownership
from controller.core.migration.prefix_fetch import HOST_BYTES_PER_S
from controller.core.migration.protocol import (
    CancelCopy,
    MoveMessage,
    MoveTiming,
    Say,
    SetRank,
    StageCopied,
    StageLost,
    Verb,
    blocks_to_reserve,
    is_last,
)
from controller.core.migration.refusals import MoveRefusal, refusal_of
from controller.core.migration.source import SourceMove, SourceState
from controller.model.model_moves import MovingState
from controller.sim.event_queue import Action, EventQueue
from controller.sim.instance import SimInstance
from controller.sim.request_run import RequestRun

TIMING = MoveTiming(memory_s=0.0)
"""The time limits of moves. No message comes late, so a move that is over is forgotten at once."""
# To look up a member of an enum takes a call, and every message needs this one.
_COMMIT, _PRE_ALLOCATED = Verb.COMMIT, Verb.PRE_ALLOCATED


class Links:
    """The links: each instance sends over one link, one copy after the other. Also what all moves
    share: the frontend, and a heartbeat at which they check their time limits."""

    def __init__(
        self,
        events: EventQueue,
        bytes_per_s: float,
        message_s: float,
        on_lost: Callable[[RequestRun], None],
    ) -> None:
        self.message_s = message_s
        """How long a message takes."""
        self.bytes_per_s = bytes_per_s
        self.slowdown: dict[str, float] = {}
        """For each source, the factor by which its copies take longer."""
        self.owners = Owners(events, message_s, on_lost)
        self.numbers = count()
        self.under_way: dict[SimMove, None] = {}
        """The moves where one side waits for something."""
        self._events = events
        self._free_s: dict[str, float] = {}
        self._beats = False

    def bandwidth(self, source_id: str) -> float:
        """The bandwidth of the source's link, in bytes per second."""
        return self.bytes_per_s / self.slowdown.get(source_id, 1.0)

    def load(self, instance_id: str, num_bytes: int, loaded: Action) -> None:
        """Copies from the instance's host cache into its KV blocks."""
        events, bus = self._events, f"{instance_id}/host"
        begins_s = max(events.now_s, self._free_s.get(bus, 0.0))
        self._free_s[bus] = ends_s = begins_s + num_bytes / HOST_BYTES_PER_S
        events.at(ends_s, loaded)

    def copy(self, source_id: str, num_bytes: int, sent: Action, arrived: Action) -> None:
        """`sent` is called when the last byte has left the source. A copy that is called off
        meanwhile still takes its time on the link."""
        events = self._events
        begins_s = max(events.now_s, self._free_s.get(source_id, 0.0))
        ends_s = begins_s + num_bytes / self.bandwidth(source_id)
        self._free_s[source_id] = ends_s
        events.at(ends_s, sent)
        events.at(ends_s + self.message_s, arrived)

    def send(self, reach: Action) -> None:
        """Sends a message, which is never lost."""
        self._events.at(self._events.now_s + self.message_s, reach)

    def watch(self, move: "SimMove") -> None:
        """Until `unwatch` the move ticks when nothing has happened to it for a while."""
        self.under_way[move] = None
        if not self._beats:
            self._beats = True
            self._events.after(TIMING.retry_s, self._beat)

    def unwatch(self, move: "SimMove") -> None:
        self.under_way.pop(move, None)

    def _beat(self) -> None:
        if not self.under_way:
            self._beats = False
            return
        # No limit of the machines is shorter than `retry_s`.
        before_s = self._events.now_s - TIMING.retry_s
        for move in [each for each in self.under_way if each.touched_s <= before_s]:
            move.tick()
        self._events.after(TIMING.retry_s, self._beat)


class SimMove:
    """One move, from its order to its end, as its source sees it. `on_over` is called with whether
    the request has moved."""

    __slots__ = (
        "_num_pinned",
        "_num_reserved",
        "arrival",
        "block_bytes",
        "candidate",
        "destination",
        "events",
        "failure",
        "forgotten",
        "is_over",
        "links",
        "machine",
        "migration_id",
        "num_copied",
        "num_outputs",
        "on_over",
        "plan",
        "queued",
        "request_id",
        "reserved_s",
        "run",
        "source",
        "suspended",
        "touched_s",
    )

    def __init__(
        self,
        run: RequestRun,
        candidate: Candidate,
        source: SimInstance,
        destination: SimInstance,
        links: Links,
        events: EventQueue,
        block_bytes: int,
        on_over: Callable[["SimMove", bool], None],
        plan: Sequence["SimMove"] = (),
    ) -> None:
        self.run = run
        self.candidate = candidate
        self.source = source
        self.destination = destination
        self.links = links
        self.events = events
        self.block_bytes = block_bytes
        self.on_over = on_over
        self.plan = plan
        self.request_id = run.request.request_id
        self.migration_id = f"{next(links.numbers)}"
        self.machine = SourceMove(run.hop, events.now_s, TIMING)
        self.arrival: SimArrival | None = None
        self.touched_s = events.now_s
        """When something last happened to one of the two sides."""
        self.reserved_s: float | None = None
        """When the source heard that the destination has reserved blocks for the request."""
        self.num_copied = 0
        """How many of the request's blocks the destination has, cached or copied."""
        self.is_over = False
        self.failure = ""
        self.forgotten = False
        """Whether the source has forgotten the move."""
        self.queued = False
        """Whether the request was queued at the first look; then nothing is copied."""
        self.num_outputs = 0
        """How many outputs the request had at the first look."""
        self.suspended: MovingState | None = None
        """Set while the request is out of the batch or the queue."""
        self._num_pinned = 0
        """How many full blocks are pinned, from the request's first block on."""
        self._num_reserved = 0

    @property
    def epoch(self) -> Epoch:
        """The epoch in which the request runs at the source, or last ran there."""
        return Epoch(0, self.machine.hop)

    def begin(self) -> None:
        left = self.source.moves.leave(self.request_id, lambda: self)
        if isinstance(left, MoveRefusal):
            refusal = str(left)
            self.events.after(0.0, lambda: self.end(False, refusal))
            return
        self.links.watch(self)
        self._carry_out(self.machine.start())

    def cut(self, failure: str = "source_died") -> None:
        """One end of the move has died, or both. `failure`: why the move failed, unless an end that
        is alive decides how it ends."""
        arrival = self.arrival
        if arrival is not None and not self.destination.alive:
            arrival.settle()
        if self.source.alive:
            self.handle(src.DestinationDied())
            return
        if arrival is not None:
            arrival.handle(dst.SourceDied())
        if arrival is None or not self.destination.alive or arrival.machine.over:
            self.end(False, failure)
        self.settle()

    def cancel(self, failure: str) -> None:
        """Cancels the move before the request has stopped; afterwards the request leaves anyway."""
        self.handle(src.MoveCancelled(failure))

    def tick(self) -> None:
        if self.source.alive:
            self._carry_out(self.machine.tick(self.events.now_s))
        if self.arrival is not None:
            self.arrival.tick()
        self.settle()

    def handle(self, event: object) -> None:
        if not self.source.alive:
            return
        machine = self.machine
        now_s = self.touched_s = self.events.now_s
        if instructions := machine.handle(event, now_s):
            self._carry_out(instructions)
        if machine.state in src.OVER:
            self.settle()

    def receive(self, message: MoveMessage) -> None:
        """Takes a message of the destination."""
        if message.verb is _PRE_ALLOCATED and self.reserved_s is None:
            self.num_copied = message.num_blocks
            self.reserved_s = self.events.now_s
        self.handle(message)

    def settle(self) -> None:
        """Forgets the move at the source once the source has done its part."""
        if not self.forgotten and (
            not self.source.alive or self.machine.forgettable(self.events.now_s)
        ):
            self.forgotten = True
            self.source.moves.forget(self)
        if self.forgotten and (self.arrival is None or self.arrival.forgotten):
            self.links.unwatch(self)

    def end(self, moved: bool, failure: str) -> None:
        """The move is closed: by its source, or by its destination if the source is dead."""
        if not self.is_over:
            self.is_over, self.failure = True, failure
            self.on_over(self, moved)

    def _carry_out(self, instructions: src.Instructions) -> None:
        source = self.source
        for instruction in instructions:
            match instruction:
                case Say():
                    reach = self._arrive if self.arrival is None else self.arrival.receive
                    self.links.send(partial(reach, instruction.message))
                case src.PlanStage():
                    source.between_steps(self._plan)
                case src.CopyStage():
                    self._copy(instruction.stage)
                case src.AnnounceMove():
                    self.links.owners.announce(
                        self.run, source.ref, self.destination.ref, instruction.hop
                    )
                case src.Suspend():
                    source.between_steps(self._suspend)
                case src.Release():
                    source.between_steps(self._release)
                case src.Unpin():
                    source.between_steps(self._unpin)
                case src.Close():
                    moved = instruction.outcome is SourceState.MIGRATED
                    self.end(moved, instruction.code)
                case src.Resume():
                    self.run.hop = instruction.hop
                    source.between_steps(self._resume)
                case src.AskFence():
                    self.links.owners.fence(self.run, source.ref, instruction.hop, self._fenced)
                case CancelCopy():
                    # the copy's bytes still take their time on the link, although nobody uses them
                    pass
                case SetRank() | src.TellLost():
                    raise AssertionError(f"{instruction}: ranks do not change, and no word is late")

    def _arrive(self, message: MoveMessage) -> None:
        """Hands the destination a message that was sent before the destination knew of the move."""
        if self.arrival is not None:
            self.arrival.receive(message)
        elif self.destination.alive and self.source.alive:
            self.arrival = SimArrival(self)
            self.arrival.begin(message, self.destination.moves.arrive(self.arrival))

    def _fenced(self, fenced: bool) -> None:
        if self.machine.state is SourceState.FENCING:
            self.handle(src.EpochFenced() if fenced else src.AlreadyMoved())

    # -- between two steps of the source ---------------------------------------------------

    def _plan(self) -> None:
        if self.machine.over:
            return
        engine, stage = self.source.engine, self.machine.stage
        if stage == 0:
            if (refusal := refusal_of(engine.moves.facts(self.request_id))) is not None:
                self.handle(src.CannotMove(str(refusal)))
                return
            num_prompt_tokens = self.run.request.num_prompt_tokens
            self.num_outputs = engine.num_tokens(self.request_id) - num_prompt_tokens
            if engine.moves.is_queued(self.request_id):
                self.queued = True
                self.handle(src.StagePlanned(0, True))
                return
        if not self._pin():
            self.handle(src.CannotMove("evicted"))
            return
        last = is_last(self._num_pinned - self.num_copied, stage)
        num_tokens = engine.num_tokens(self.request_id)
        self._num_reserved = blocks_to_reserve(num_tokens, engine.config.block_size, last=last)
        self.handle(src.StagePlanned(self._num_reserved, last))

    def _pin(self) -> bool:
        """Pins the request's full blocks. False while the request does not decode."""
        num_full = self.source.engine.moves.pin(self.request_id, self._num_pinned)
        if num_full is None:
            return False
        self._num_pinned = num_full
        return True

    def _copy(self, stage: int) -> None:
        """Copies full blocks that are not at the destination yet. Once the request is suspended,
        copies all blocks that hold computed tokens."""
        if self.queued:
            self.handle(StageCopied(stage))
            return
        num_held = self._num_pinned
        if self.suspended is not None:
            block_size = self.source.engine.config.block_size
            num_held = blocks_for(self.suspended.num_tokens - 1, block_size)
        num_blocks = max(0, min(num_held, self._num_reserved) - self.num_copied)
        assert self.arrival is not None
        copied = StageCopied(stage)
        self.links.copy(
            self.source.instance_id,
            num_blocks * self.block_bytes,
            partial(self._copied, copied, num_blocks),
            partial(self.arrival.handle, copied),
        )

    def _copied(self, copied: StageCopied, num_blocks: int) -> None:
        self.num_copied += num_blocks
        self.handle(copied)

    def _suspend(self) -> None:
        if self.machine.state is not SourceState.SUSPENDING:
            return
        engine = self.source.engine
        if engine.moves.is_queued(self.request_id) != self.queued:
            admitted = src.CannotMove("admitted")
            self.handle(admitted if self.queued else src.RequestEvicted())
            return
        if not self.queued:
            if not self._pin():
                self.handle(src.RequestEvicted())
                return
            num_tokens = engine.num_tokens(self.request_id)
            if blocks_for(num_tokens, engine.config.block_size) > self._num_reserved:
                self.handle(src.RequestOutgrew())
                return
            self.source.stop_decoding(self.run)
        self.suspended = engine.moves.suspend(self.request_id)
        assert self.suspended is not None
        self.handle(src.RequestSuspended())

    def _resume(self) -> None:
        if self.suspended is None:
            return
        self.suspended, run = None, self.run
        self.source.engine.moves.resume(self.request_id)
        # the request ran at the destination, which died
        if self.request_id not in self.source.runs:
            self.destination.stop_decoding(run)
            run.moves.pop()
            run.changed_over = False
            self.source.arrive(run, decoding=not self.queued)
        elif not self.queued:
            self.source.decode_on(run)
        self.links.owners.runs_at(run, self.source.ref, run.hop)

    def _release(self) -> None:
        self.source.engine.moves.release(self.request_id)

    def _unpin(self) -> None:
        self.source.engine.moves.unpin(self.request_id)


class SimArrival:
    """One move, as its destination sees it, from its first message on."""

    __slots__ = (
        "_num_cached",
        "_state",
        "epoch",
        "forgotten",
        "holds_something",
        "machine",
        "migration_id",
        "move",
        "request_id",
    )

    def __init__(self, move: SimMove) -> None:
        self.move = move
        self.migration_id, self.request_id = move.migration_id, move.request_id
        self.machine = DestinationMove(move.events.now_s, TIMING)
        self.epoch = Epoch(0, move.machine.hop + 1)
        """The epoch in which the request will run here."""
        self.forgotten = False
        self.holds_something = False
        """Whether the engine has a reservation of this move."""
        self._num_cached = 0
        self._state: MovingState | None = None

    def begin(self, message: MoveMessage, refusal: MoveRefusal | None) -> None:
        """Begins with the first message. `refusal`: the instance's own reason not to take the
        request."""
        instructions = self.machine.start(message)
        if refusal is not None:
            self.handle(dst.NotReserved(refusal))
        else:
            self._carry_out(instructions)

    def receive(self, message: MoveMessage) -> None:
        """Takes a message of the source."""
        if message.verb is _COMMIT and self._state is None:
            self._state = self.move.suspended
        self.handle(message)

    def handle(self, event: object) -> None:
        move, machine = self.move, self.machine
        if not move.destination.alive:
            return
        now_s = move.touched_s = move.events.now_s
        if instructions := machine.handle(event, now_s):
            self._carry_out(instructions)
        if machine.state in dst.OVER:
            self.settle()

    def tick(self) -> None:
        if self.move.destination.alive:
            self._carry_out(self.machine.tick(self.move.events.now_s))
        self.settle()

    def settle(self) -> None:
        """Forgets the move at the destination once the destination has done its part."""
        move, machine = self.move, self.machine
        if self.forgotten:
            return
        if move.destination.alive:
            if machine.state not in dst.OVER:
                return
            if not move.source.alive:
                move.end(machine.state is dst.DestinationState.COMMITTED, machine.code)
            if not machine.forgettable(move.events.now_s):
                return
        self.forgotten = True
        move.destination.moves.forget_arrival(self)
        move.settle()

    def _carry_out(self, instructions: dst.Instructions) -> None:
        move = self.move
        destination = move.destination
        for instruction in instructions:
            match instruction:
                case Say():
                    move.links.send(partial(move.receive, instruction.message))
                case dst.Reserve():
                    destination.between_steps(partial(self._reserve, instruction))
                case dst.Receive():
                    if move.queued:
                        self.handle(StageCopied(instruction.stage))
                case dst.Apply():
                    destination.between_steps(self._commit)
                case dst.TellFrontend():
                    self._tell_frontend(instruction)
                case dst.Free():
                    destination.between_steps(self._free)
                case CancelCopy():
                    self.handle(StageLost(self.machine.stage, "called off"))
                case dst.Drop():
                    destination.between_steps(partial(self._drop, instruction.hop))
                case SetRank() | dst.EndRequest():
                    raise AssertionError(
                        f"{instruction}: ranks do not change, and no client leaves"
                    )

    def _tell_frontend(self, told: dst.TellFrontend) -> None:
        move = self.move
        if not told.moved:
            move.links.owners.not_moved(move.run, self.epoch.hop)
        elif move.source.alive:
            move.links.owners.runs_at(move.run, move.destination.ref, told.hop)
        else:
            move.links.owners.confirm(move.run, move.destination, told.hop)

    # -- between two steps of the destination ----------------------------------------------

    def _reserve(self, wanted: dst.Reserve) -> None:
        move, moves = self.move, self.move.destination.engine.moves
        if wanted.stage > 0:
            if moves.extend(move.request_id, wanted.num_blocks):
                self.handle(dst.Reserved(self._num_cached))
            else:
                self.handle(dst.NotReserved(MoveRefusal.NO_BLOCKS))
            return
        reserved = moves.reserve(move.run.request, move.num_outputs, wanted.num_blocks)
        if isinstance(reserved, MoveRefusal):
            self.handle(dst.NotReserved(reserved))
            return
        self.holds_something, self._num_cached = True, reserved
        self.handle(dst.Reserved(reserved))

    def _free(self) -> None:
        if self.holds_something:
            self.holds_something = False
            self.move.destination.engine.moves.cancel(self.move.request_id)

    def _commit(self) -> None:
        move, state, hop = self.move, self._state, self.machine.hop
        destination, run = move.destination, move.run
        assert state is not None
        destination.engine.moves.commit(move.request_id, state)
        self.holds_something = False
        if run.hop < hop:  # otherwise the source has the request back
            move.source.runs.pop(move.request_id, None)
            run.hop = hop
            run.moves.append((move.source.instance_id, move.events.now_s))
            run.changed_over = not state.queued
            destination.arrive(run, decoding=not state.queued)
        self.handle(dst.CommitApplied())

    def _drop(self, hop: int) -> None:
        """Takes the request from the destination, because another instance owns it. Must be called
        between two steps, so that no step runs the request any more."""
        move = self.move
        destination, run = move.destination, move.run
        if run.hop <= hop and destination.runs.pop(move.request_id, None) is not None:
            destination.stop_decoding(run)
        destination.engine.abort([move.request_id])


# -- who owns a request ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Known:
    """What the frontend was told about one request. `source`: where the request ran first. `notes`:
    what instances reported, in the order of the times. Each note is (when the frontend hears it,
    the instance that owns the request now or soon, in which hop, whether that instance owns it
    already)."""

    run: RequestRun
    source: InstanceRef
    notes: list[tuple[float, InstanceRef, int, bool]]
    made: Ownership[None] | None = None
    """The request's ownership; None until it is needed."""

    @property
    def ownership(self) -> Ownership[None]:
        if self.made is None:
            self.made = Ownership(self.source)
        return self.made


class Owners:
    """The frontend in virtual time, as far as moves need one: who owns each request that moves.

    As long as all instances live, their reports change nothing. So a report is only noted, with the
    time at which it is heard; it is read when an instance has died or a source asks for its request
    back. `on_lost`: called with a request that no instance has any more."""

    def __init__(
        self, events: EventQueue, message_s: float, on_lost: Callable[[RequestRun], None]
    ) -> None:
        self._events = events
        self._message_s = message_s
        self._on_lost = on_lost
        self._known: dict[str, _Known] = {}
        """The requests that moved or may have moved, by request id, until they end."""

    # -- what instances tell ---------------------------------------------------------------

    def announce(self, run: RequestRun, source: InstanceRef, to: InstanceRef, hop: int) -> None:
        """Notes that a move has begun: `to` may soon own the request, under hop number `hop`. The
        frontend hears of it one message delay later."""
        known = self._known.get(run.request.request_id)
        if known is None:
            known = self._known[run.request.request_id] = _Known(run, source, [])
        known.notes.append((self._events.now_s + self._message_s, to, hop, False))

    def runs_at(self, run: RequestRun, owner: InstanceRef, hop: int) -> None:
        """Notes that the request runs at `owner`, in `hop`; its next token from `owner` says the
        same. Does nothing for a request whose move was never announced."""
        if known := self._known.get(run.request.request_id):
            known.notes.append((self._events.now_s + self._message_s, owner, hop, True))

    def confirm(self, run: RequestRun, owner: SimInstance, hop: int) -> None:
        """Does the same as `runs_at`; the owner also hears whether the frontend reads the request
        from it."""
        self.runs_at(run, owner.ref, hop)
        self._after_a_message(lambda: self._confirm(run, owner, Epoch(0, hop)))

    def not_moved(self, run: RequestRun, hop: int) -> None:
        """Notes that the destination that was asked does not have the request in `hop`, and never
        will."""
        self._after_a_message(lambda: self._disowned(run, Epoch(0, hop)))

    def fence(
        self, run: RequestRun, source: InstanceRef, hop: int, then: Callable[[bool], None]
    ) -> None:
        """Decides a fence: the source wants the request back in `hop`. Two messages later `then`
        gets whether the source has it back. A source that was taken for dead gets no answer."""

        def ask() -> None:
            known = self._read(run.request.request_id)
            fenced = known.ownership.fence(source, Epoch(0, hop)) if known is not None else None
            if fenced is not None:
                self._after_a_message(lambda: then(fenced))

        self._after_a_message(ask)

    def ended(self, request_id: str) -> None:
        self._known.pop(request_id, None)

    # -- dead instances --------------------------------------------------------------------

    def died(
        self, dead: SimInstance, had: Iterable[RequestRun], instances: Iterable[SimInstance]
    ) -> list[RequestRun]:
        """The requests that are lost with the dead instance: some of the requests that it had, and
        some that may have been moving to it. `instances`: the instances that are alive."""
        lost = [run for run in had if run.request.request_id not in self._known]
        living = {each.ref: each for each in instances}
        for request_id in list(self._known):
            known = self._read(request_id)
            assert known is not None
            match known.ownership.lost(*dead.ref.key):
                case Loss.REQUEST:
                    lost.append(known.run)
                case Loss.ASK:
                    assert known.ownership.to_ask is not None
                    ref, epoch = known.ownership.to_ask
                    self._ask(known.run, living[ref], epoch)
        return lost

    def _ask(self, run: RequestRun, asked: SimInstance, epoch: Epoch) -> None:
        def ask() -> None:
            if not asked.alive:
                return
            request_id = run.request.request_id
            if arriving := asked.moves.asked_about(request_id, epoch):
                arriving.handle(dst.OwnerAsked())
            elif asked.runs.get(request_id) is run and run.hop >= epoch.hop:
                self.confirm(run, asked, run.hop)
            else:
                self.not_moved(run, epoch.hop)

        self._after_a_message(ask)

    # --------------------------------------------------------------------------------------

    def _confirm(self, run: RequestRun, owner: SimInstance, epoch: Epoch) -> None:
        known = self._read(run.request.request_id)
        if known is not None and not known.ownership.is_read_from(owner.ref, epoch):
            return

        def confirmed() -> None:
            arriving = owner.moves.asked_about(run.request.request_id, epoch)
            if owner.alive and arriving is not None and arriving.machine.over:
                arriving.handle(dst.OwnerConfirmed())

        self._after_a_message(confirmed)

    def _disowned(self, run: RequestRun, epoch: Epoch) -> None:
        known = self._read(run.request.request_id)
        if known is not None and known.ownership.disowned(epoch):
            self._on_lost(run)

    def _read(self, request_id: str) -> _Known | None:
        """What the frontend knows of the request now, from everything that it has heard."""
        known = self._known.get(request_id)
        if known is None:
            return None
        notes, ownership = known.notes, known.ownership
        while notes and notes[0][0] <= self._events.now_s:
            _, owner, hop, is_there = notes.pop(0)
            if is_there:
                ownership.moved(owner, Epoch(0, hop), 0)
            else:
                ownership.announce(owner, Epoch(0, hop))
        ownership.check()
        return known

    def _after_a_message(self, action: Callable[[], None]) -> None:
        self._events.after(self._message_s, action)
