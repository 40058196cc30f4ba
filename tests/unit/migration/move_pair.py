"""One move between two instances, step by step: the machines, with as little as possible around
them.

What a runner would do is done here on a few counters, in order. So a test goes to any point of a
move, lets something go wrong there and sees how everything ends.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from controller.core.load.snapshot import InstanceRef
from controller.core.migration import destination as dst
from controller.core.migration import source as src
from controller.core.migration.destination import DestinationMove, DestinationState
from controller.core.migration.destination import Instruction as DestinationInstruction
from controller.core.migration.ownership import Epoch, Loss, Ownership
from controller.core.migration.protocol import (
    DEFAULT_TIMING,
    CancelCopy,
    MoveMessage,
    Say,
    SetRank,
    StageCopied,
    StageLost,
    Verb,
)
from controller.core.migration.source import Instruction as SourceInstruction
from controller.core.migration.source import SourceMove, SourceState

SOURCE = InstanceRef("source", 1, "s")
DESTINATION = InstanceRef("destination", 1, "d")
NUM_TOKENS = 80
"""That the client has when the request stops."""

KEPT, RESUMED, MOVED, ENDED, LOST = "kept", "resumed", "moved", "ended", "lost"


class Pair:
    """`todo` has everything under way, the oldest first: messages, bytes, engine work."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.todo: deque[tuple[str, Any]] = deque()
        self.source = SourceMove(hop=0, now_s=0.0)
        self.destination: DestinationMove | None = None
        self.ownership: Ownership[str] = Ownership(SOURCE)
        self.ownership.offer(SOURCE, Epoch(0, 0), 0, NUM_TOKENS, "all so far")
        self.source_alive = self.destination_alive = True
        self.stalled = False
        """The link between the two: what they say and send waits."""
        self.stalled_s = 0.0
        """For so long the destination took none of the bytes."""
        self.slow = False
        """The same of what they send, but that the destination takes all that comes."""
        self.copy_time_s = 0.0
        """What the bandwidth limit makes a stage take."""
        self.frontend_stalled = False
        self.loses: Callable[[MoveMessage], bool] = lambda _said: False
        self.doubles: Callable[[MoveMessage], bool] = lambda _said: False
        self.num_lost = 0

        self.at_source = "batch"
        self.source_hop = 0
        self.source_rank = 0
        self.pinned = False
        self.at_destination = ""
        self.destination_rank = 0
        self.num_reserved = 0
        self.no_blocks_from_stage = 99
        self.expected_stage: int | None = None
        self.client = "reads"
        self.sent: list[MoveMessage] = []
        self.source_did: list[SourceInstruction] = []
        self.destination_did: list[DestinationInstruction] = []
        self._carry_out_source(self.source.start())

    # -- what can be done to it ----------------------------------------------------------

    def go_to(self, position: Callable[["Pair"], bool]) -> "Pair":
        for _ in range(200):
            if position(self):
                return self
            if not self.step():
                self.pass_time(0.1)
        raise AssertionError("the move does not come there")

    def settle(self) -> None:
        """Until all is quiet and both sides have forgotten the move; then nothing may be left."""
        self.pass_time(DEFAULT_TIMING.lease_s * 2 + DEFAULT_TIMING.memory_s)
        assert not self.todo
        if self.source_alive:
            assert self.source.forgettable(self.now_s), self.source.state
            assert not self.pinned, "pinned for a move that is over"
            assert self.at_source != "suspended", "suspended for ever"
        if self.destination is not None and self.destination_alive:
            assert self.destination.forgettable(self.now_s), self.destination.state
            assert self.num_reserved == 0, "reserved for a move that is over"
            assert self.expected_stage is None, "the receiver still writes"

    def pass_time(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        self.run()
        while self.now_s < until_s - 1e-9:
            self.now_s += 0.1
            self.stalled_s = self.stalled_s + 0.1 if self.stalled else 0.0
            if self.source_alive:
                self._carry_out_source(self.source.tick(self.now_s, self.stalled_s))
            if self.destination is not None and self.destination_alive:
                self._carry_out_destination(self.destination.tick(self.now_s))
            self.run()

    def run(self) -> None:
        """All that can be done without time passing."""
        for _ in range(10_000):
            if not self.step():
                return
        raise AssertionError("it never comes to rest")

    def run_destination(self) -> None:
        """What it has to do with itself, while all else waits."""
        for each in [each for each in self.todo if each[0] in ("destination_works", "link_end")]:
            self.todo.remove(each)
            getattr(self, f"_{each[0]}")(each[1])

    def step(self) -> bool:
        """The oldest thing that can be done now."""
        waits = ("to_destination", "to_source", "copy", "bytes") if self.stalled else ()
        if self.slow:
            waits = (*waits, "copy", "bytes")
        if self.frontend_stalled:
            waits = (*waits, "fence_asked", "moved_told", "lost_told")
        for index, (kind, what) in enumerate(self.todo):
            if kind not in waits:
                del self.todo[index]
                getattr(self, f"_{kind}")(what)
                self.check()
                return True
        return False

    def tell_source(self, event: object) -> None:
        if self.source_alive:
            self._carry_out_source(self.source.handle(event, self.now_s))
            self.check()

    def tell_destination(self, event: object) -> None:
        if self.destination is not None and self.destination_alive:
            self._carry_out_destination(self.destination.handle(event, self.now_s))
            self.check()

    def source_dies(self) -> None:
        self.source_alive = False
        self._keep_only("destination_works", "moved_told")
        self.at_source, self.pinned = "", False
        self.tell_destination(dst.SourceDied())
        self._link_ends()
        self._frontend_hears_of_death(SOURCE)

    def destination_dies(self) -> None:
        self.destination_alive = False
        self._keep_only("source_works", "fence_asked")
        self.at_destination, self.num_reserved, self.expected_stage = "", 0, None
        self.tell_source(src.DestinationDied())
        self._frontend_hears_of_death(DESTINATION)

    def _keep_only(self, *kinds: str) -> None:
        self.todo = deque(each for each in self.todo if each[0] in kinds)

    def client_leaves(self) -> None:
        """Its frontend tells all that may hold something of the request."""
        self.client = "left"
        for holder in self.ownership.holders:
            self.engine_aborts_at(holder)

    def engine_aborts_at(self, holder: InstanceRef) -> None:
        if holder == SOURCE:
            if self.at_source:
                self.at_source = ""
            self.tell_source(src.RequestEnded("client_left"))
        else:
            self.at_destination = ""
            self.tell_destination(dst.ClientLeft())

    def request_finishes(self) -> None:
        """On whichever instance its tokens count."""
        if self.at_destination:
            hop = self.destination_hop
            self.ownership.offer(DESTINATION, Epoch(0, hop), NUM_TOKENS, 1, "the last token")
            self.at_destination, self.client = "", "finished"
        else:
            assert self.at_source
            self.at_source, self.client = "", "finished"
            self.tell_source(src.RequestEnded("finished"))

    def evict(self) -> None:
        self.tell_source(src.RequestEvicted())

    # -- how it ended --------------------------------------------------------------------

    @property
    def stage(self) -> int:
        assert self.destination is not None
        return self.destination.stage

    @property
    def destination_hop(self) -> int:
        assert self.destination is not None
        return self.destination.hop

    @property
    def outcome(self) -> str:
        """By who runs it and whom the client reads, not by what the machines say of it."""
        if self.client in ("left", "finished"):
            assert not self.at_source
            assert not self.at_destination
            return ENDED
        if self.client == "error":
            return LOST
        if self.at_destination:
            assert not self.at_source, "on both"
            assert self.client_reads(DESTINATION, self.destination_hop)
            return MOVED
        assert self.at_source == "batch"
        assert self.client_reads(SOURCE, self.source_hop)
        return RESUMED if self.source_hop else KEPT

    def client_reads(self, sender: InstanceRef, hop: int) -> bool:
        begins = self.ownership.order.next_index
        delivered = self.ownership.offer(sender, Epoch(0, hop), begins, 1, "next")
        return [each.item for each in delivered or ()] == ["next"]

    def verbs(self, *among: Verb) -> list[Verb]:
        return [message.verb for message in self.sent if message.verb in among]

    def check(self) -> None:
        self.source.check()
        self.ownership.check()
        if self.destination is None:
            return
        self.destination.check()
        if self.destination.state in (DestinationState.ABORTED, DestinationState.COMMITTED):
            assert self.expected_stage is None, "freed under the receiver's hands"

    # -- the shells ----------------------------------------------------------------------

    def _carry_out_source(self, instructions: list[SourceInstruction]) -> None:
        self.source_did += instructions
        for instruction in instructions:
            match instruction:
                case Say(message=message):
                    self._put("to_destination", message)
                case src.AnnounceMove(hop=hop):
                    self.ownership.announce(DESTINATION, Epoch(0, hop))
                case src.AskFence(hop=hop):
                    self.todo.append(("fence_asked", hop))
                case src.PlanStage() | src.Suspend():
                    self.todo.append(("source_works", instruction))
                case src.CopyStage(stage=stage):
                    self.todo.append(("copy", stage))
                case CancelCopy():
                    self._cancel_copy()
                case src.TellLost(hop=hop):
                    self.todo.append(("lost_told", hop))
                case src.Resume(hop=hop):
                    self.at_source, self.source_hop = "batch", hop
                case src.Release():
                    assert self.at_source == "suspended"
                    self.at_source = ""
                case src.Unpin():
                    self.pinned = False
                case SetRank(rank=rank):
                    self.source_rank = rank

    def _source_works(self, instruction: SourceInstruction) -> None:
        over = self.source.over
        match instruction:
            case src.PlanStage(stage=stage):
                if not over:
                    self.pinned = True
                    self.tell_source(src.StagePlanned(5 + 2 * stage, stage == 1, self.copy_time_s))
            case src.Suspend():
                if self.source.state is SourceState.SUSPENDING:
                    self.at_source = "suspended"
                    self.tell_source(src.RequestSuspended())

    def _fence_asked(self, hop: int) -> None:
        if self.client == "reads":
            granted = self.ownership.fence(SOURCE, Epoch(0, hop))
            if granted is not None and self.source.state is SourceState.FENCING:
                self.tell_source(src.EpochFenced() if granted else src.AlreadyMoved())
        else:
            self.engine_aborts_at(SOURCE)

    def _lost_told(self, hop: int) -> None:
        if self.client == "reads" and self.ownership.lost_in(Epoch(0, hop)):
            self.client = "error"

    def _copy(self, stage: int) -> None:
        self.tell_source(StageCopied(stage))
        self.todo.append(("bytes", stage))

    def _bytes(self, stage: int) -> None:
        if self.expected_stage == stage:
            self.expected_stage = None
            self.tell_destination(StageCopied(stage))

    def _cancel_copy(self) -> None:
        """The link's other end hears of it."""
        self.todo = deque(each for each in self.todo if each[0] not in ("copy", "bytes"))
        self.todo.append(("link_end", None))

    def _link_end(self, _nothing: object) -> None:
        self._link_ends()

    def _link_ends(self) -> None:
        stage, self.expected_stage = self.expected_stage, None
        if stage is not None:
            self.tell_destination(StageLost(stage, "transfer"))

    def _carry_out_destination(self, instructions: list[DestinationInstruction]) -> None:
        self.destination_did += instructions
        for instruction in instructions:
            match instruction:
                case Say(message=message):
                    self._put("to_source", message)
                case dst.Reserve() | dst.Apply():
                    self.todo.append(("destination_works", instruction))
                case dst.Receive(stage=stage):
                    self.expected_stage = stage
                case CancelCopy():
                    self.todo.append(("link_end", None))
                case dst.Free():
                    self.num_reserved = 0
                    self._forget_reserve()
                case dst.Drop(hop=hop):
                    assert hop == self.destination_hop
                    self.at_destination = ""
                case dst.EndRequest():
                    self.at_destination = ""
                case SetRank(rank=rank):
                    self.destination_rank = rank
                case dst.TellFrontend(moved=True, hop=hop):
                    self.todo.append(("moved_told", hop))
                case dst.TellFrontend(moved=False):
                    if self.ownership.disowned(Epoch(0, 1)):
                        self.client = "error"

    def _forget_reserve(self) -> None:
        self.todo = deque(
            each
            for each in self.todo
            if each[0] != "destination_works" or not isinstance(each[1], dst.Reserve)
        )

    def _destination_works(self, instruction: DestinationInstruction) -> None:
        match instruction:
            case dst.Reserve(stage=stage) if stage >= self.no_blocks_from_stage:
                self.tell_destination(dst.NotReserved("no_blocks"))
            case dst.Reserve(num_blocks=num_blocks):
                self.num_reserved = num_blocks
                self.tell_destination(dst.Reserved())
            case dst.Apply(rank=rank):
                self.num_reserved, self.at_destination = 0, "batch"
                self.destination_rank = self.destination_rank if rank is None else rank
                self.tell_destination(dst.CommitApplied())

    def _put(self, way: str, message: MoveMessage) -> None:
        self.sent.append(message)
        if self.loses(message):
            self.num_lost += 1
            return
        self.todo.append((way, message))
        if self.doubles(message):
            self.todo.append((way, replace(message)))

    def _to_destination(self, message: MoveMessage) -> None:
        if not self.destination_alive:
            return
        if self.destination is None:
            if message.verb is Verb.PRE_ALLOC:
                self.destination = DestinationMove(self.now_s)
                self._carry_out_destination(self.destination.start(message))
            elif message.verb is Verb.ABORT:
                self._put("to_source", MoveMessage(Verb.ABORTED))
            return
        self.tell_destination(message)

    def _to_source(self, message: MoveMessage) -> None:
        self.tell_source(message)

    def _moved_told(self, hop: int) -> None:
        if self.client == "reads":
            self.ownership.moved(DESTINATION, Epoch(0, hop), NUM_TOKENS)
            if self.destination_alive and self.ownership.is_read_from(DESTINATION, Epoch(0, hop)):
                self.tell_destination(dst.OwnerConfirmed())
        else:
            self.engine_aborts_at(DESTINATION)

    def _frontend_hears_of_death(self, dead: InstanceRef) -> None:
        if self.client != "reads":
            return
        match self.ownership.lost(*dead.key):
            case Loss.REQUEST:
                self.client = "error"
            case Loss.ASK:
                self.tell_destination(dst.OwnerAsked())
                self.run()


# -- points of a move ----------------------------------------------------------------------


def _state(source: SourceState, destination: DestinationState | None) -> Callable[[Pair], bool]:
    def there(pair: Pair) -> bool:
        known = pair.destination.state if pair.destination else None
        return (pair.source.state, known) == (source, destination)

    return there


def _commit_lost_once(pair: Pair) -> bool:
    pair.loses = lambda message: message.verb is Verb.COMMIT
    if _state(SourceState.COMMITTING, DestinationState.HOLDING)(pair):
        pair.loses = lambda _said: False
        return True
    return False


def _fencing(lost: Verb) -> Callable[[Pair], bool]:
    """Whatever the source sent, or the destination said, was lost; the frontend is slow."""

    def there(pair: Pair) -> bool:
        pair.loses = lambda message: message.verb is lost
        pair.frontend_stalled = True
        if pair.source.state is not SourceState.FENCING:
            return False
        pair.loses = lambda _said: False
        return True

    return there


_S, _D = SourceState, DestinationState
POSITIONS: dict[str, dict[str, Callable[[Pair], bool]]] = {
    "pre_allocate": {
        "planning": _state(_S.PLANNING, None),
        "asking": _state(_S.PRE_ALLOCATING, None),
        "reserving": _state(_S.PRE_ALLOCATING, _D.RESERVING),
        "reserved": _state(_S.PRE_ALLOCATING, _D.RECEIVING),
    },
    "copying": {
        "copying": _state(_S.COPYING, _D.RECEIVING),
        "sent": _state(_S.PLANNING, _D.RECEIVING),
        "next_stage": _state(_S.PRE_ALLOCATING, _D.HOLDING),
        "next_stage_reserving": lambda pair: (
            pair.source.stage == 1 and _state(_S.PRE_ALLOCATING, _D.RESERVING)(pair)
        ),
        "suspending": _state(_S.SUSPENDING, _D.RECEIVING),
    },
    "suspended": {"suspended": _state(_S.SUSPENDED, _D.RECEIVING)},
    "commit_unheard": {
        "sent": _state(_S.COMMITTING, _D.RECEIVING),
        "lost_once": _commit_lost_once,
        "fencing": _fencing(Verb.COMMIT),
    },
    "commit_heard": {
        "applying": _state(_S.COMMITTING, _D.APPLYING),
        "applied": _state(_S.COMMITTING, _D.COMMITTED),
        "fencing": _fencing(Verb.COMMITTED),
    },
    "committed": {"committed": _state(_S.MIGRATED, _D.COMMITTED)},
}


def at(column: str, position: str) -> Pair:
    """The frontend answers again from here on."""
    pair = Pair().go_to(POSITIONS[column][position])
    pair.frontend_stalled = False
    return pair
