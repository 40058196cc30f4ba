"""What source and destination of a move say to each other.

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

from dataclasses import dataclass
from enum import StrEnum

from controller.core.value import value


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
    """`stage` counts from 0; `num_blocks` counts those of earlier stages and of the prefix cache
    too; `rank` is set only if it changed during the move."""

    verb: Verb
    stage: int = 0
    num_blocks: int = 0
    last: bool = False
    """Of PRE_ALLOC: the request stops for this stage."""
    hop: int = 0
    code: str = ""
    """Of ABORT and REFUSED: why."""
    rank: int | None = None
    change: int = 0
    """Of PRIORITY and its answer: the change's number, from 1. An older change is ignored."""


@dataclass(frozen=True, slots=True)
class MoveTiming:
    """Seconds. `lease_s`: a destination that hears nothing for so long frees what it holds; the
    source says something every quarter of it. The source gives up a stage that takes longer
    than `stage_timeout_s` beyond what the bandwidth limit makes it take, and a destination that
    does not answer for `answer_timeout_s`; once the request is out of the batch
    `suspended_timeout_s` is all that the last copy has. A destination refuses a stage for which it
    is not ready within `reserve_timeout_s`, before its source gives up."""

    retry_s: float = 0.2
    answer_timeout_s: float = 2.0
    stage_timeout_s: float = 30.0
    reserve_timeout_s: float = 20.0
    suspended_timeout_s: float = 2.0
    lease_s: float = 10.0
    memory_s: float = 60.0
    """How long a move that is over is remembered, for what comes late."""


DEFAULT_TIMING = MoveTiming()


class IllegalMoveError(Exception):
    """An event that cannot come in this state. The machine is unchanged."""
