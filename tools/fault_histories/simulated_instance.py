"""An instance of the simulation: an engine, and a runner that carries out what its machines
instruct.

Work for the engine queues up and is done between two steps. Its results are heard of later, in
order, and messages may come in between. The engine may hang while the event loop goes on.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from controller.core.emptying import relieving
from controller.core.emptying.relief import Candidate
from controller.core.emptying.relieving import RelievingSource
from controller.core.fleet.incarnations import has_to_drop
from controller.core.load.snapshot import InstanceRef, InstanceSnapshot
from controller.core.migration import destination as dst
from controller.core.migration import source as src
from controller.core.migration.destination import DestinationState
from controller.core.migration.move_records import MoveRecord
from controller.core.migration.move_table import MoveTable
from controller.core.migration.ownership import FIRST_EPOCH, Epoch
from controller.core.migration.protocol import FROM_SOURCE, MoveMessage, Verb
from controller.core.migration.refusals import MoveRefusal
from controller.core.migration.source import SourceState
from controller.core.replay import reentry_machine as reentry
from controller.core.replay.reentry_machine import ReentryMachine
from controller.runtime.messages.codec import wire_version
from controller.runtime.messages.members import (
    AdaptersSet,
    DrainSet,
    EngineInfo,
    Hello,
    InstanceLost,
    Phase,
    StatusPull,
    StatusPushed,
    StatusPushSet,
    StepTimeSet,
    Welcome,
)
from controller.runtime.messages.move_messages import (
    HandoverEnded,
    HandoverOrdered,
    HeadMoveOrdered,
    MoveAnswered,
    MoveAsked,
    MoveLimitsSet,
    MoveRefusalAsked,
    MoveRefusalsAnswered,
    ReliefFruitless,
    ReliefOrdered,
    RoomOrdered,
)
from controller.runtime.messages.requests import DispatchUnused, ReplayTaken, RequestRefused
from tools.fault_histories.simulated_engine import BLOCK_SIZE, Output, SimulatedEngine
from tools.fault_histories.simulated_messages import (
    CONTROLLER,
    Abort,
    Add,
    Emitted,
    FenceAnswered,
    LostThere,
    Missing,
    Moved,
    MoveEnvelope,
    Network,
    NotMoved,
    OwnerAsked,
    OwnerConfirmed,
    Unread,
)
from tools.fault_histories.simulated_moves import Incoming, Live, Outgoing, Violation

STATUS_LAG_S = 0.02
STEP_S = 0.25
LONG_TURN_S = 2.0
"""After so long away the engine makes no step until the controller has said who it is by now."""
ANSWER_S = 1.0


class Instance(MoveTable[Outgoing, Incoming]):
    """One process. What may begin or arrive, and who is asked about what, the real table of moves
    decides; what leaves by the controller's orders the real machine at a source."""

    leaves_at_s: float | None = None
    """When it will be ended, as the controller says."""
    max_bytes_per_s = None
    block_size = BLOCK_SIZE
    block_bytes = 1
    step_time_s = STEP_S

    def __init__(
        self,
        instance_id: str,
        nonce: str,
        engine: SimulatedEngine,
        network: Network,
        max_moves: int,
    ) -> None:
        self.live: dict[str, Live] = {}
        super().__init__(self.live, max_moves)
        self.instance_id, self.nonce, self.address = instance_id, nonce, f"{instance_id}#{nonce}"
        self.incarnation = 0
        self.engine, self.network = engine, network
        self.phase: Phase = "starting"
        self.python = ""
        self.ends_at_s: float | None = None
        """When the process will be ended, whatever anybody says."""
        self.machine = ""
        self.hangs_until_s = 0.0
        """The engine; the loop goes on."""
        self.finished: dict[str, Live] = {}
        self.relieving = RelievingSource(self, nonce)
        self.reentry = ReentryMachine()
        self.entering: dict[int, Add] = {}
        """By the numbers of the machine's entries."""
        self._num_entries = 0
        self._stepped_s = network.now_s
        self._waits_until_s: float | None = None
        """After a long turn: for the controller's word."""
        self._last_dispatch_seq = 0
        self._num_steps = 0
        self._status_wanted = True
        self._reported_s = network.now_s
        self._work: deque[tuple[Callable[[], Any], Callable[[Any], None] | None]] = deque()
        self._done: deque[Callable[[], None]] = deque()

    @property
    def now_s(self) -> float:
        return self.network.now_s

    @property
    def ref(self) -> InstanceRef:
        return InstanceRef(self.instance_id, self.incarnation, self.address)

    @property
    def is_serving(self) -> bool:
        return self.phase == "active"

    @property
    def is_welcome(self) -> bool:
        """Whether a controller may know it as a destination. Before its Welcome it has no
        incarnation yet, and an order for a move always names one."""
        return self.is_serving and self.incarnation > 0

    @property
    def is_empty(self) -> bool:
        """Nothing is here, and nothing is remembered."""
        engine = self.engine
        held = engine.requests or engine.pins or engine.reserved or self.live or self.entering
        return self.quiet and not (held or self._work or self._done)

    # -- the engine's thread -------------------------------------------------------------

    def between_steps(
        self, work: Callable[[], Any], then: Callable[[Any], None] | None = None
    ) -> None:
        self._work.append((work, then))

    def engine_turn(self) -> None:
        """Does all that was asked for, and a step; the results are not heard of yet."""
        if not self.is_serving or self.now_s < self.hangs_until_s:
            return
        while self._work:
            work, then = self._work.popleft()
            result = work()
            if then is not None:
                self._done.append(partial(then, result))
        if self._is_unclear():
            return
        outputs, evicted = self.engine.step()
        self._num_steps += bool(outputs)
        for output in outputs:
            self._done.append(partial(self._on_output, output))
        for request_id in evicted:
            self._done.append(partial(self._on_evicted, request_id))
        since_s = self.now_s - self._reported_s
        if self._status_wanted or evicted or since_s >= (0.5 if self.engine.requests else 1.0):
            self._status_wanted, self._reported_s = False, self.now_s
            snapshot = self.engine.snapshot(self.instance_id, self.incarnation)
            self._done.append(partial(self._report, snapshot, self._last_dispatch_seq))

    def _is_unclear(self) -> bool:
        """The engine was away for long: another may have taken its place meanwhile."""
        stepped_s, self._stepped_s = self._stepped_s, self.now_s
        if self._waits_until_s is not None:
            if self.now_s < self._waits_until_s:
                return True
            self._waits_until_s = None
        elif self.now_s - stepped_s >= LONG_TURN_S:
            self._waits_until_s = self.now_s + ANSWER_S
            self._done.append(partial(self.say_hello, asks=True))
            return True
        return False

    def evict_one(self) -> None:
        if (request_id := self.engine.evict_one()) is not None:
            self.network.note("evicted", request_id, self.address)
            self._done.append(lambda: self._on_evicted(request_id))

    def account(self, seq: int) -> None:
        """Lets the next status count a dispatch."""

        def count() -> None:
            self._last_dispatch_seq = max(self._last_dispatch_seq, seq)
            self._status_wanted = True

        self.between_steps(count)

    def push_status(self) -> None:
        def want() -> None:
            self._status_wanted = True

        self.between_steps(want)

    # -- the loop ------------------------------------------------------------------------

    def loop_turn(self) -> None:
        while self._done:
            self._done.popleft()()
        self.tick_moves(self.now_s, lambda move: move.tick())

    def _on_output(self, output: Output) -> None:
        live = self.live.get(output.request_id)
        if live is None:  # dropped or given away in the meantime
            return
        if output.first_index != len(live.tokens):
            raise Violation(f"{output.request_id} skips or repeats a token at {self.address}")
        live.tokens.append(output.token)
        emitted = Emitted(
            output.request_id, live.epoch, output.first_index, (output.token,), output.finished
        )
        self.tell(live.frontend, emitted)
        if output.finished:
            self.finished[output.request_id] = self.live.pop(output.request_id)
            if move := self.under_way(output.request_id):
                move.handle(src.RequestEnded("finished"))

    def _on_evicted(self, request_id: str) -> None:
        if move := self.under_way(request_id):
            move.handle(src.RequestEvicted())

    def _report(self, snapshot: InstanceSnapshot, last_dispatch_seq: int) -> None:
        moves = tuple(each.in_flight() for each in self._leaving.values() if not each.machine.over)
        status = StatusPushed(
            replace(snapshot, draining=self.draining),
            last_dispatch_seq,
            self._num_steps,
            self.step_time_s,
            moves=moves,
            num_moves_in=self.num_moves_in,
        )
        self.tell(CONTROLLER, status, droppable=True)

    def tell(self, address: str, body: Any, *, droppable: bool = False) -> None:
        self.network.send(self.ref, address, body, droppable=droppable)

    def set_rank(self, request_id: str, rank: int) -> None:
        self.between_steps(lambda: self.engine.set_rank(request_id, rank))

    # -- the controller ------------------------------------------------------------------

    def begin_serving(self) -> None:
        self.phase, self._stepped_s = "active", self.now_s
        self.say_hello()

    def say_hello(self, *, asks: bool = False) -> None:
        ends_at_s = self.ends_at_s
        hello = Hello(
            wire_version(),
            "instance",
            self.instance_id,
            self.nonce,
            self.incarnation,
            self.address,
            "node",
            1,
            self.phase,
            info=EngineInfo(128, self.engine.num_blocks + 1, BLOCK_SIZE, ("generate",)),
            num_live_reqs=len(self.live),
            asks=asks,
            leaves_in_s=None if ends_at_s is None else ends_at_s - self.now_s,
            machine=self.machine,
            machine_leaves_in_s=self.network.machine_leaves_in_s(self.machine),
            machine_leaves_why="a file",
            fingerprint=f"vllm={self.python}",
            python=self.python,
        )
        self.tell(CONTROLLER, hello, droppable=True)

    def _controller_said(self, message: Any) -> None:
        match message:
            case Welcome(nonce=self.nonce, incarnation=incarnation, fenced=fenced):
                known, self.incarnation = self.incarnation, incarnation
                if has_to_drop(known, incarnation, drops=fenced) and self.is_serving:
                    self.fence()
                self._waits_until_s = None if self._waits_until_s is None else self.now_s
            case InstanceLost(instance_id=instance_id, incarnation=incarnation):
                self._peer_lost(lambda peer: peer.key == (instance_id, incarnation))
            case ReliefOrdered(round_id=round_id, relief=None):
                self._relieve(relieving.ReliefWithdrawn())
            case ReliefOrdered(round_id=round_id, relief=order) if order is not None:
                taken_s = self.now_s - order.snapshot_age_s - STATUS_LAG_S
                self._relieve(relieving.ReliefGiven(round_id, order, taken_s))
            case HeadMoveOrdered(order=head):
                self._relieve(relieving.RoomGiven(head))
            case RoomOrdered(order=room):
                self._relieve(relieving.RoomGiven(room))
            case DrainSet(draining=draining, leaves_in_s=leaves_in_s):
                self.draining = draining
                self.leaves_at_s = None if leaves_in_s is None else self.now_s + leaves_in_s
                if not draining:
                    self._relieve(relieving.DrainEnded())
                self.push_status()
            case MoveAsked(query_id=query_id, order=order):
                self._move_asked(query_id, order.migration_id, order.request_id, order.destination)
            case MoveRefusalAsked(query_id=query_id, request_ids=request_ids):
                self.between_steps(
                    lambda: {each: self.engine.facts(each) for each in request_ids},
                    lambda facts: self.tell(
                        CONTROLLER,
                        MoveRefusalsAnswered(query_id, tuple(self.refusals(facts).items())),
                    ),
                )
            case MoveLimitsSet(max_moves=max_moves):
                self.max_moves = max_moves
            case StatusPull():
                self.push_status()
            case DispatchUnused(incarnation=incarnation, dispatch_seq=seq):
                if incarnation == self.incarnation:
                    self.account(seq)
            case HandoverOrdered(cause_id=cause_id):  # the engines here cache nothing
                self.tell(CONTROLLER, HandoverEnded(cause_id, self.ref, 0, 0, True, 0.0))
            case StatusPushSet() | StepTimeSet() | AdaptersSet() | Welcome():
                pass
            case _:
                raise Violation(f"an instance is told {message}")

    # -- moves ---------------------------------------------------------------------------

    def begin_move(
        self,
        migration_id: str,
        request_id: str,
        to: InstanceRef,
        reason: str = "by_hand",
        on_closed: Callable[[MoveRecord], None] = lambda _record: None,
    ) -> Outgoing | MoveRefusal:
        """Whatever begins a move does it here."""
        move = self.leave(
            request_id,
            lambda: Outgoing(self, migration_id, self.live[request_id], to, reason, on_closed),
        )
        if isinstance(move, Outgoing):
            move.begin()
        return move

    def _move_asked(
        self, query_id: str, migration_id: str, request_id: str, to: InstanceRef
    ) -> None:
        def answer(record: MoveRecord) -> None:
            self.tell(CONTROLLER, MoveAnswered(query_id, record.code, record=record))

        begun = self.begin_move(migration_id, request_id, to, on_closed=answer)
        if isinstance(begun, MoveRefusal):
            self.tell(CONTROLLER, MoveAnswered(query_id, begun))

    def _relieve(self, event: relieving.Event) -> None:
        following: relieving.Event | None = event
        while following is not None:
            instructions = self.relieving.handle(following, self.now_s)
            following = None
            for instruction in instructions:
                match instruction:
                    case relieving.Look():
                        self.between_steps(self._look, self._looked)
                    case relieving.BeginMove():
                        following = self._begin_chosen(instruction)
                    case relieving.CancelMove(migration_id=migration_id, code=code):
                        if (move := self.outgoing.get(migration_id)) is not None:
                            move.handle(src.MoveCancelled(code))
                    case relieving.TellFruitless(round_id=round_id, destination=to):
                        told = ReliefFruitless(round_id, *self.ref.key, *to.key)
                        self.tell(CONTROLLER, told)
        self.relieving.check()

    def _begin_chosen(
        self, begin: relieving.BeginMove
    ) -> relieving.MoveBegan | relieving.MoveRefused:
        migration_id, request_id = begin.migration_id, begin.candidate.request_id
        begun = self.begin_move(
            migration_id, request_id, begin.destination, begin.reason, self._chosen_closed
        )
        refused = isinstance(begun, MoveRefusal)
        self.network.note("chosen", request_id, self.address, begin.reason, str(begun) * refused)
        if isinstance(begun, MoveRefusal):
            return relieving.MoveRefused(migration_id, begun)
        return relieving.MoveBegan(migration_id)

    def _chosen_closed(self, record: MoveRecord) -> None:
        self.tell(CONTROLLER, MoveAnswered("", record.code, record=record))
        moved = record.outcome == SourceState.MIGRATED
        self._relieve(relieving.MoveEnded(record.migration_id, moved, record.code))

    def _look(self) -> tuple[InstanceSnapshot, list[Candidate]]:
        """On the engine's thread."""
        return (
            self.engine.snapshot(self.instance_id, self.incarnation),
            self.engine.candidates(),
        )

    def _looked(self, found: tuple[InstanceSnapshot, list[Candidate]]) -> None:
        snapshot, candidates = found
        snapshot = replace(snapshot, draining=self.draining)
        known = relieving.known(candidates, self, lambda r: self.live[r].ages(self.now_s))
        self._relieve(relieving.Looked(snapshot, known))

    def bytes_per_s(self, _destination_id: str) -> float | None:
        return None

    def leaving_for(self) -> Collection[str]:
        leaving = self._leaving.values()
        return {move.to.instance_id for move in leaving if not move.machine.over}

    def reserved_s(self, migration_id: str) -> float | None:
        move = self.outgoing.get(migration_id)
        return None if move is None else move.reserved_s

    def cancel_moves(self, migration_ids: Sequence[str]) -> None:
        for migration_id in migration_ids:
            self.outgoing[migration_id].handle(src.MoveCancelled("cancelled"))

    def change_rank(self, request_id: str, rank: int) -> None:
        """Said to whoever the request's frontend takes for its owner."""
        if request_id not in self.live:
            return
        if move := self.under_way(request_id):
            move.handle(src.PriorityChanged(rank))
        else:
            self.set_rank(request_id, rank)

    # -- who is gone ---------------------------------------------------------------------

    def address_lost(self, address: str) -> None:
        """A peer is gone. If it was a frontend, nobody reads the tokens of its requests."""
        self._peer_lost(lambda peer: peer.address == address)
        for arriving in list(self.incoming.values()):
            if arriving.arriving.frontend == address:
                arriving.handle(dst.ClientLeft())
        orphans = [r for r, live in self.live.items() if live.frontend == address]
        for request_id in (*orphans, *self.reentry.of_frontend(address)):
            self._abort(request_id)

    def _peer_lost(self, is_lost: Callable[[InstanceRef], bool]) -> None:
        self._relieve(relieving.PeerLost(is_lost))
        for move in list(self.outgoing.values()):
            if is_lost(move.to):
                move.handle(src.DestinationDied())
        for arriving in list(self.incoming.values()):
            if is_lost(arriving.source):
                arriving.handle(dst.SourceDied())

    def fence(self) -> None:
        """Another incarnation begins: no request and no move of this one goes on."""
        self.network.note("fenced", self.address)
        self._relieve(relieving.Fenced())
        for move in list(self.outgoing.values()):
            if move.machine.state in src.IN_DOUBT:
                self.forget(move)
                move.unpin()
        given_back = MoveMessage(Verb.ABORT, code="fenced")
        for arriving in list(self.incoming.values()):
            applying = arriving.machine.state is DestinationState.APPLYING
            arriving.handle(given_back if applying else dst.ClientLeft())
        for request_id in (*self.live, *self.reentry.request_ids):
            self._abort(request_id)

    # -- requests ------------------------------------------------------------------------

    def drop(self, request_id: str, epoch: Epoch) -> None:
        live = self.live.get(request_id)
        if live is not None and live.epoch == epoch:
            del self.live[request_id]
            self.between_steps(lambda: self.engine.drop(request_id))

    def end(self, request_id: str, epoch: Epoch) -> None:
        live = self.live.get(request_id)
        if live is None:
            self._client_left(request_id, epoch)
        elif live.epoch.attempt <= epoch.attempt:
            self._abort_here(request_id)

    def _abort(self, request_id: str) -> None:
        self._reenter(reentry.Aborted((request_id,)))
        self._abort_here(request_id)

    def _abort_here(self, request_id: str) -> None:
        live = self.live.pop(request_id, None)
        self.between_steps(lambda: self.engine.abort(request_id))
        self.push_status()
        self._client_left(request_id, FIRST_EPOCH if live is None else live.epoch)

    def _client_left(self, request_id: str, epoch: Epoch) -> None:
        """A request that is not here any more is followed to where it went last, if it went in that
        hop or later; otherwise it would be followed in a circle."""
        if move := self.under_way(request_id) or self.last_away(request_id, epoch):
            move.handle(src.RequestEnded("client_left"))
        for arriving in list(self.incoming.values()):
            if arriving.request_id == request_id:
                arriving.handle(dst.ClientLeft())

    def _take_in(self, add: Add) -> None:
        if add.incarnation != self.incarnation or not self.is_serving:
            why = "its instance has restarted; send it again"
            refused = RequestRefused(add.request_id, why, True, add.epoch.attempt)
            self.tell(add.frontend, refused)
        elif self.is_outdated(add.request_id, add.epoch.attempt, self._epoch_here(add.request_id)):
            self.account(add.seq)
        elif add.epoch.attempt:
            self.tell(add.frontend, ReplayTaken(add.request_id, add.epoch.attempt))
            self._num_entries += 1
            self.entering[self._num_entries] = add
            came = reentry.Came(
                self._num_entries, add.request_id, add.epoch.attempt, add.frontend, add.seq
            )
            self._reenter(came)
        else:
            asked = add.asked
            self.live[asked.request_id] = Live(asked, FIRST_EPOCH, [], add.frontend)
            self.account(add.seq)
            self.between_steps(lambda: self.engine.add(asked))

    def _epoch_here(self, request_id: str) -> Epoch | None:
        live = self.live.get(request_id)
        return None if live is None else live.epoch

    def _reenter(self, event: reentry.Event) -> None:
        for instruction in self.reentry.handle(event, self.now_s):
            match instruction:
                case reentry.Drop(request_id):
                    self._abort_here(request_id)
                case reentry.Prepare(number):
                    delay_s = self.network.uniform(0.0, 0.4)
                    self.network.later(self.address, delay_s, partial(self._prepared, number))
                case reentry.WakeAt(number, time_s):
                    woken = partial(self._woken, number)
                    self.network.later(self.address, time_s - self.now_s, woken)
                case reentry.EndEarlier(request_id, epoch):
                    self.end(request_id, epoch)
                case reentry.PutIn(number):
                    add = self.entering[number]
                    self.between_steps(
                        partial(self.engine.reenter, add.asked, add.outputs),
                        partial(self._entered, number),
                    )
                case reentry.Begin(number):
                    add = self.entering.pop(number)
                    live = Live(add.asked, add.epoch, list(add.outputs), add.frontend)
                    self.live[add.request_id] = live
                case reentry.Refuse(number):
                    raise Violation(f"{self.entering[number].request_id} is not taken anew")
                case reentry.CallOff(number):
                    del self.entering[number]
                case reentry.Account(seq):
                    self.account(seq)
        self.reentry.check()

    def _prepared(self, number: int) -> None:
        if (add := self.entering.get(number)) is not None:
            self._reenter(reentry.Prepared(number, self.is_arriving(add.request_id)))

    def _entered(self, number: int, _none: object) -> None:
        self._reenter(reentry.Entered(number, None))

    def _woken(self, number: int) -> None:
        if (add := self.entering.get(number)) is not None:
            self._reenter(reentry.Woken(number, self.is_arriving(add.request_id)))

    # -- messages ------------------------------------------------------------------------

    def receive(self, _sender: InstanceRef, body: Any) -> None:
        match body:
            case Add():
                self._take_in(body)
            case _ if not self.is_serving:
                if isinstance(body, Welcome):
                    self._controller_said(body)
                elif isinstance(body, MoveAsked):
                    refused = MoveAnswered(body.query_id, MoveRefusal.UNKNOWN)
                    self.tell(CONTROLLER, refused)
            case Abort(request_id=request_id):
                self._abort(request_id)
            case Unread(request_id=request_id, epoch=epoch):
                self._unread(request_id, epoch)
            case Missing() as missing:
                self._send_again(missing)
            case MoveEnvelope(arriving=arriving, destination=to) if (
                arriving is not None and to.key != self.ref.key
            ):
                pass  # for an earlier incarnation
            case MoveEnvelope() as envelope if envelope.message.verb in FROM_SOURCE:
                self._source_said(envelope)
            case MoveEnvelope() as envelope:
                self._destination_said(envelope)
            case FenceAnswered(request_id=request_id, epoch=epoch, fenced=fenced):
                if move := self.fencing(request_id, epoch):
                    move.handle(src.EpochFenced() if fenced else src.AlreadyMoved())
            case OwnerConfirmed(request_id=request_id, epoch=epoch):
                move_here = self.asked_about(request_id, epoch)
                if move_here is not None and move_here.machine.over:
                    move_here.handle(dst.OwnerConfirmed())
            case OwnerAsked() as asked_for:
                self._owner_asked(asked_for)
            case _:
                self._controller_said(body)

    def _unread(self, request_id: str, epoch: Epoch) -> None:
        """What another may have by now, or has, is left alone."""
        live = self.live.get(request_id)
        if live is None or live.epoch != epoch or self.handed_on(request_id, epoch):
            return
        self._abort_here(request_id)
        self.tell(live.frontend, LostThere(request_id, epoch))

    def _send_again(self, missing: Missing) -> None:
        live = self.live.get(missing.request_id) or self.finished.get(missing.request_id)
        if live is not None:
            first = missing.first_index
            tokens = tuple(live.tokens[first : missing.end_index])
            if tokens:
                again = Emitted(missing.request_id, live.epoch, first, tokens, False)
                self.tell(live.frontend, again)

    def _source_said(self, envelope: MoveEnvelope) -> None:
        known = self.incoming.get(envelope.migration_id)
        verb = envelope.message.verb
        if known is not None:
            known.receive(envelope)
        elif verb is Verb.PRE_ALLOC and envelope.arriving is not None:
            move = Incoming(self, envelope)
            move.begin(envelope.message, self.arrive(move))
        elif verb is not Verb.ACKNOWLEDGED:
            answers = {
                Verb.ABORT: Verb.ABORTED,
                Verb.END: Verb.ENDED,
                Verb.PRIORITY: Verb.PRIORITY_SET,
            }
            answer = MoveMessage(answers.get(verb, Verb.REFUSED), change=envelope.message.change)
            self._reply(envelope, envelope.source, answer)

    def _destination_said(self, envelope: MoveEnvelope) -> None:
        if move := self.outgoing.get(envelope.migration_id):
            move.receive(envelope.message)
        elif envelope.message.verb is Verb.COMMITTED:
            acknowledged = MoveMessage(Verb.ACKNOWLEDGED, envelope.message.stage)
            self._reply(envelope, envelope.destination, acknowledged)

    def _reply(self, envelope: MoveEnvelope, to: InstanceRef, message: MoveMessage) -> None:
        reply = MoveEnvelope(
            envelope.migration_id,
            envelope.request_id,
            envelope.source,
            envelope.destination,
            message,
        )
        self.tell(to.address, reply)

    def _owner_asked(self, asked: OwnerAsked) -> None:
        if arriving := self.asked_about(asked.request_id, asked.epoch):
            arriving.handle(dst.OwnerAsked())
            return
        live = self.live.get(asked.request_id)
        same = live is not None and live.epoch.attempt == asked.epoch.attempt
        if live is not None and same and live.epoch >= asked.epoch:
            moved = Moved(asked.request_id, self.ref, live.epoch, len(live.tokens))
            self.tell(asked.frontend, moved)
        else:
            self.tell(asked.frontend, NotMoved(asked.request_id, asked.epoch))

    # -- what must hold at any time --------------------------------------------------------

    def check(self) -> None:
        self.engine.check()
        for move in self.outgoing.values():
            move.machine.check()
        for arriving in self.incoming.values():
            arriving.machine.check()
        if self._work or self._done:
            return  # what the machines asked for is not done yet
        self._check_reservations()
        self._check_source()

    def _check_reservations(self) -> None:
        holding = {m.request_id for m in self.incoming.values() if m.holds_something}
        if holding != set(self.engine.reserved):
            raise Violation("blocks are reserved for no move that is known")
        for move in self.incoming.values():
            state = move.machine.state
            if move.machine.over and move.holds_something:
                raise Violation(f"a move that is {state} holds reserved blocks")
            holds = move.holds_something or state is DestinationState.RESERVING
            if not move.machine.over and not holds:
                raise Violation(f"a move that is {state} holds nothing, but takes a slot")

    def _check_source(self) -> None:
        stopped = (SourceState.SUSPENDED, *src.IN_DOUBT)
        moving = {m.request_id: m for m in self.outgoing.values() if not m.machine.over}
        if not set(self.engine.pins) <= set(moving):
            raise Violation("blocks are pinned for no move under way")
        for request_id, request in self.engine.requests.items():
            if request.place == "suspended":
                move = moving.get(request_id)
                if move is None or move.machine.state not in stopped:
                    raise Violation(f"{request_id} is suspended, and nobody will resume it")
