"""What source and destination of a move share: their messages, their time limits, the sizes of the
stages, and the rules of both machines.

Every message names its move and both incarnations (the shell's envelope) and may be lost, late
or doubled. So each question is repeated until it is answered, and a repeated question gets the
same answer:

    PRE_ALLOC   have `num_blocks` blocks in all before `stage`;
                if it is the `last`, be ready for COMMIT too     -> PRE_ALLOCATED, REFUSED
    COMMIT      the request is yours, in `hop`                   -> COMMITTED, REFUSED
    ABORT       the move is off: free the blocks; drop the
                request if it was COMMITTED, as the source
                fenced a later hop                               -> ABORTED
    END         the client left: end the request if it is yours  -> ENDED
    PRIORITY    it has `rank` from now on                        -> PRIORITY_SET
    (to a question repeated while the engine is in a long step,
    or the request's grammar is being compiled)                    WORKING
    COMMITTED   (is repeated in its turn until the source has
                freed its copy)                                  -> ACKNOWLEDGED
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from controller.core.load.snapshot import blocks_for
from controller.core.value import value

# -- Messages ----------------------------------------------------------------------------


class Verb(StrEnum):
    PRE_ALLOC = "pre_alloc"
    COMMIT = "commit"
    ABORT = "abort"
    END = "end"
    PRIORITY = "priority"
    ACKNOWLEDGED = "noted"
    WORKING = "working"
    PRE_ALLOCATED = "pre_allocated"
    REFUSED = "refused"
    COMMITTED = "committed"
    ABORTED = "aborted"
    ENDED = "ended"
    PRIORITY_SET = "priority_set"


FROM_SOURCE = frozenset(
    {Verb.PRE_ALLOC, Verb.COMMIT, Verb.ABORT, Verb.END, Verb.PRIORITY, Verb.ACKNOWLEDGED}
)


@value
class MoveMessage:
    """`stage` counts from 0; `num_blocks` also counts the blocks of earlier stages and of the
    prefix cache; `rank` is set only if it changed during the move."""

    verb: Verb
    stage: int = 0
    num_blocks: int = 0
    last: bool = False
    """In PRE_ALLOC: the request stops for this stage."""
    hop: int = 0
    code: str = ""
    """In ABORT and REFUSED: the reason."""
    rank: int | None = None
    change: int = 0
    """In PRIORITY and its answer: the change's number, from 1. An older change is ignored."""


# -- Time limits -------------------------------------------------------------------------

# All time limits after which something of a move ends, including the limits of links and frontends.
# `check` asserts their order.
OPEN_TIMEOUT_S = 5.0
"""How long a link between two instances waits for a connection, for an answer, and for a proof of
identity."""
STALL_TIMEOUT_S = 10.0
"""If a slice does not move for this long, its link breaks and all stages on it fail. Cancelled
stages end long before that, because a slice that hangs is only a copy of their blocks."""
UNCLEAR_S = 5.0
"""If the owner of a request dies during a move, its frontend asks for this long where the request
is; then the request counts as lost.
"""


@dataclass(frozen=True, slots=True)
class MoveTiming:
    """The time limits of both machines, in seconds."""

    retry_s: float = 0.2
    """A question is repeated after this time without an answer."""
    answer_timeout_s: float = 2.0
    """The source gives up a destination that does not answer for this long. If the destination has
    taken nothing of a copy for half of this time, the copy counts as stalled."""
    suspended_timeout_s: float = 2.0
    """How long the final copy may take. The limit is short because the request is out of the batch
    meanwhile."""
    lease_s: float = 10.0
    """A destination that hears nothing for this long frees what it holds. The source sends at least
    one message in each quarter of this time."""
    reserve_timeout_s: float = 20.0
    """A destination refuses a stage for which it is not ready within this time."""
    stage_timeout_s: float = 30.0
    """The source gives up a stage that takes this much longer than the time that the bandwidth
    limit alone requires. For the same time it also believes a destination which says that its
    engine is in a long step."""
    memory_s: float = 60.0
    """How long a move that is over is remembered, because messages of it may come late."""

    def check(self) -> None:
        """Raises AssertionError if a limit ends something that another limit should have ended
        before."""
        assert 4 * self.retry_s <= self.answer_timeout_s, "a few lost messages end a move"
        assert 4 * self.retry_s <= self.lease_s / 4, "the lease outlasts no lost word of the source"
        assert self.answer_timeout_s / 2 < self.suspended_timeout_s, "a stalled copy looks slow"
        assert self.answer_timeout_s < UNCLEAR_S, "the frontend gives up before the source asks it"
        assert self.suspended_timeout_s < STALL_TIMEOUT_S, "a link breaks for one last copy"
        assert self.suspended_timeout_s < self.lease_s, "what a stopped request needs is freed"
        assert self.stage_timeout_s > STALL_TIMEOUT_S, "a stage ends before its link is known to"
        assert self.stage_timeout_s > 3 * OPEN_TIMEOUT_S, "a stage ends before its link opens"
        assert self.reserve_timeout_s < self.stage_timeout_s, "the source gives up first"
        assert self.stage_timeout_s < self.memory_s, "an answer comes when the move is forgotten"


DEFAULT_TIMING = MoveTiming()


class IllegalMoveError(Exception):
    """An event that cannot come in this state. The machine is unchanged."""


# -- The stages --------------------------------------------------------------------------

LAST_STAGE_BLOCKS = 2
"""Each stage copies the blocks that became full during the stage before it, so stages shrink. The
last stage stops the request, so it begins when only this many blocks are left; one more block costs
less than another round trip."""
MAX_STAGES = 12
"""The most stages of a move. It bounds a copy that never catches up, for example because of a tight
bandwidth limit."""


def is_last(num_full_blocks_left: int, stage: int, max_stages: int = MAX_STAGES) -> bool:
    """Whether this stage is the last one. With `max_stages` 1 a move is a stop-and-copy."""
    return num_full_blocks_left <= LAST_STAGE_BLOCKS or stage >= max_stages - 1


def blocks_to_reserve(num_tokens: int, block_size: int, *, last: bool) -> int:
    """How many blocks to reserve in all: the full ones so far. Before the last stage, one reserves
    room for `block_size` more tokens than there are, because the request decodes on until the
    answer comes."""
    if last:
        return blocks_for(num_tokens + block_size, block_size)
    return num_tokens // block_size


# -- Events and instructions of both sides ------------------------------------------------


@value
class StageCopied:
    stage: int


@value
class StageLost:
    """The stage's bytes will not come. Either the copy failed, or the receiver let go of the blocks
    because it was told to."""

    stage: int
    code: str


@value
class Say:
    """Send a message to the other side of the move."""

    message: MoveMessage


@value
class CancelCopy:
    """Cancel the copy of the stage under way."""


@value
class SetRank:
    """Change the request's rank on this engine, in any state of the request."""

    rank: int


# -- The rules ---------------------------------------------------------------------------

State = TypeVar("State", bound=StrEnum)
Trigger = Verb | type
"""A message triggers a rule by its verb, any other event by its type."""


@dataclass(frozen=True, slots=True)
class Rule(Generic[State]):
    """Which states may follow when an event comes in a state, and what is done. An event without a
    rule raises an error and changes nothing. So messages that may come late have rules too, which
    ignore them. `act(machine, event)` returns the instructions, and also the next state where `to`
    has several."""

    to: tuple[State, ...]
    act: Callable[[Any, Any], Any]


Table = Mapping[tuple[State, Trigger], Rule[State]]


def trigger_of(event: object) -> Trigger:
    return event.verb if isinstance(event, MoveMessage) else type(event)


def follow(table: Table[State], state: State, machine: object, event: object) -> Any:
    """Returns (next state, instructions). Raises IllegalMoveError if there is no rule."""
    # The same as `trigger_of`, written out because simulations run this line a hundred thousand
    # times.
    trigger = event.verb if type(event) is MoveMessage else type(event)
    try:
        rule = table[state, trigger]
    except KeyError:
        raise IllegalMoveError(f"{event} in state {state}") from None
    to = rule.to
    if len(to) == 1:
        return to[0], rule.act(machine, event)
    state, instructions = rule.act(machine, event)
    if state not in to:
        raise AssertionError(f"{event} led to {state}, which its rule does not name")
    return state, instructions
