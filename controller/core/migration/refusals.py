"""Why a request does not move, or why a move failed: the one list of codes, and the one check
(`refusal_of`) whether a request may leave its instance now.

Everything that moves a request, or shows whether it can move, asks this check: orders by hand,
relief, room, drains and their forecast, `llumctl requests`, live and simulated. The engine says
what it knows of the request (`MoveFacts`), and the instance's table of moves (`move_table.py`) adds
the rest; neither of them decides.

Codes are used in messages, events and metrics; `why` gives the sentence of a code. Its other
properties are in the same list:

    lasts       The request never moves.
    passes      The reason ends by itself within a few steps.
    elsewhere   Another destination may take the request.
    cools       The destination failed, and is avoided for a while (`emptying/openness.py`). A
                full one is not at fault, nor one that takes all bytes while the bandwidth limit
                lets few through.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from controller.core.value import value


class MoveRefusal(StrEnum):
    """Why a request cannot move, as its source or its destination reports it."""

    # Reasons in the request, as its source reports them.
    UNKNOWN = "unknown"
    IN_PREFILL = "in_prefill"
    MOVING = "moving"
    MULTIMODAL = "multimodal"
    PROMPT_EMBEDS = "prompt_embeds"
    POOLING = "pooling"
    STREAMED_PROMPT = "streamed_prompt"
    THINKING_BUDGET = "thinking_budget"
    # Reasons in the source's engine.
    SPECULATIVE = "speculative"
    KV_GROUPS = "kv_groups"
    PARALLEL = "parallel"
    ATTACHED = "attached"
    # Reasons at the destination.
    FINGERPRINT = "fingerprint"
    MODEL_RUNNER = "model_runner"
    RANKS = "ranks"
    VLLM_VERSION = "vllm_version"
    NO_BLOCKS = "no_blocks"
    NO_SLOT = "no_slot"
    NO_ADAPTER = "no_adapter"
    NO_ADAPTER_SLOT = "no_adapter_slot"
    NOT_TAKEN = "not_taken"
    TOO_MANY_MOVES = "too_many_moves"
    DRAINING = "draining"


class ReliefRefusal(StrEnum):
    """The request could move, but relief leaves it where it is for now."""

    HEADROOM = "headroom"
    MOVED_LATELY = "moved_lately"
    MOVES_OFTEN = "moves_often"
    ENDS_FIRST = "ends_first"
    WOULD_OVERLOAD = "would_overload"
    COSTS_MORE = "costs_more"
    GAINS_LITTLE = "gains_little"
    TOO_LATE = "too_late"


# -- the check ---------------------------------------------------------------------------


@value
class MoveFacts:
    """What an engine knows of a request of its own that may keep it from moving.

    `in_prefill`: the request runs, and its prompt is still being computed. `leaving`: a move has
    pinned blocks of the request, or has taken it out of the batch or the queue. `never`: why the
    request can never move: because of what it is, or because its engine moves no requests.
    """

    in_prefill: bool = False
    leaving: bool = False
    never: MoveRefusal | None = None


MOVABLE = MoveFacts()
"""The facts by which the request may move. They are also used for a request whose engine has not
been asked yet."""


def refusal_of(
    facts: MoveFacts | None, *, moving: bool = False, has_place: bool = True
) -> MoveRefusal | None:
    """Why a request cannot leave its instance now; None if it can.

    `facts`: None if the instance does not run the request. `moving`: a move of the request, from or
    to this instance, is not final. `has_place`: the instance may begin one more move; a caller
    whose move may wait for its turn passes True.
    """
    if facts is None:
        return MoveRefusal.UNKNOWN
    if moving or facts.leaving:
        return MoveRefusal.MOVING
    if facts.never is not None:
        return facts.never
    if facts.in_prefill:
        return MoveRefusal.IN_PREFILL
    return None if has_place else MoveRefusal.TOO_MANY_MOVES


# -- two engines -------------------------------------------------------------------------
# An engine's fingerprint is a text of named parts, such as "runner=v1 ranks=2".


def differing_parts(source: str, destination: str) -> frozenset[str]:
    """The names of the parts in which two fingerprints differ.

    `files` identifies the weights less closely than `weights` does, and counts only where `weights`
    differs, as it does between engines with different numbers of ranks."""
    differing = frozenset(
        part.partition("=")[0] for part in {*source.split()} ^ {*destination.split()}
    )
    return differing - {"files"} if "weights" not in differing else differing


def refusal_between(
    source: str, destination: str, *, allow_inexact: bool = False
) -> MoveRefusal | None:
    """Why no request can move between two engines with these fingerprints; None if requests can.
    The most telling difference counts.

    With `allow_inexact`, requests can move between engines of the same model whose parallel sizes
    or versions of vLLM differ."""
    differing = differing_parts(source, destination)
    if not differing:
        return None
    if not source or not destination:  # an engine that moves no requests
        return MoveRefusal.FINGERPRINT
    if "runner" in differing:
        return MoveRefusal.MODEL_RUNNER
    if differing - {"ranks", "vllm", "weights"} or differing == {"weights"}:
        return MoveRefusal.FINGERPRINT
    if allow_inexact:
        return None
    return MoveRefusal.RANKS if "ranks" in differing else MoveRefusal.VLLM_VERSION


# -- the list ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reason:
    sentence: str
    lasts: bool = False
    passes: bool = False
    elsewhere: bool = False
    cools: bool = False


def _lasting(sentence: str) -> Reason:
    return Reason(sentence, lasts=True)


def _there(sentence: str) -> Reason:
    return Reason(sentence, elsewhere=True)


def _failed(sentence: str) -> Reason:
    return Reason(sentence, elsewhere=True, cools=True)


REASONS: Mapping[str, Reason] = {
    MoveRefusal.UNKNOWN: Reason("the instance does not run this request"),
    MoveRefusal.IN_PREFILL: Reason("its prompt is still being computed", passes=True),
    MoveRefusal.MOVING: Reason("it is being moved already", passes=True),
    MoveRefusal.MULTIMODAL: _lasting("it has multimodal input"),
    MoveRefusal.PROMPT_EMBEDS: _lasting("its prompt is given as embeddings"),
    MoveRefusal.POOLING: _lasting("it is not a generation"),
    MoveRefusal.STREAMED_PROMPT: _lasting("its prompt is still being streamed in"),
    MoveRefusal.THINKING_BUDGET: _lasting(
        "vLLM's first model runner counts its thinking budget, and would begin anew elsewhere"
    ),
    MoveRefusal.SPECULATIVE: _lasting("the engine decodes speculatively, and not by n-grams"),
    MoveRefusal.KV_GROUPS: _lasting("the model has a kind of KV layers that cannot be copied"),
    MoveRefusal.PARALLEL: _lasting(
        "the way in which the engine divides its KV blocks among processes is not supported; the "
        "instance's log says more"
    ),
    MoveRefusal.ATTACHED: _lasting(
        "it runs on an attached server, whose KV blocks cannot be copied"
    ),
    MoveRefusal.FINGERPRINT: _there("the KV blocks of the two engines are not alike"),
    MoveRefusal.MODEL_RUNNER: _there("the two engines run different model runners of vLLM"),
    MoveRefusal.RANKS: _there(
        "the two engines have different parallel sizes, and migration.allow_inexact is off"
    ),
    MoveRefusal.VLLM_VERSION: _there(
        "the two engines run different versions of vLLM, and migration.allow_inexact is off"
    ),
    MoveRefusal.NO_BLOCKS: _there("the destination has not enough free blocks"),
    MoveRefusal.NO_SLOT: _there("the destination's batch is full"),
    MoveRefusal.NO_ADAPTER: _there("its LoRA adapter is not loaded there"),
    MoveRefusal.NO_ADAPTER_SLOT: _there(
        "as many other LoRA adapters are in use there as a step can have (max_loras)"
    ),
    MoveRefusal.NOT_TAKEN: _there("the destination's engine cannot take it"),
    MoveRefusal.TOO_MANY_MOVES: _there("as many moves as allowed are under way there"),
    MoveRefusal.DRAINING: _there("the destination is draining"),
    # Relief leaves the request where it is.
    ReliefRefusal.HEADROOM: Reason("it has a headroom here: others make room for it"),
    ReliefRefusal.MOVED_LATELY: Reason("it left that instance a short while ago"),
    ReliefRefusal.MOVES_OFTEN: Reason("it has moved as often as it may within a minute"),
    ReliefRefusal.ENDS_FIRST: Reason("it ends before it could be moved"),
    ReliefRefusal.WOULD_OVERLOAD: Reason("the destination would become a source itself"),
    ReliefRefusal.TOO_LATE: Reason("it cannot be copied before its instance goes"),
    ReliefRefusal.COSTS_MORE: Reason("copying it takes longer than what it frees would last"),
    ReliefRefusal.GAINS_LITTLE: Reason("its tokens would not come enough sooner there"),
    # The move began, and the destination failed.
    "no_answer": _failed("the destination did not answer in time"),
    "not_ready": _failed("the destination did not get ready for it in time"),
    "destination_died": _failed("the destination died"),
    "transfer": _failed("the copy did not get through"),
    "lease_expired": _failed("the destination heard nothing of the source for too long"),
    "kv_mismatch": _failed("the KV blocks of the two sides differ"),
    # The move began, and failed for another reason.
    "too_slow": Reason(
        "the copy took too long: by the bandwidth limit, or a long step of the engine"
    ),
    "not_applied": Reason("the destination's engine did not take the request's state"),
    "forgotten": Reason("the destination does not know this move any more"),
    "evicted": Reason("it lost its blocks to memory pressure"),
    "admitted": Reason("it entered the batch meanwhile"),
    "finished": Reason("it finished meanwhile"),
    "client_left": Reason("its client left"),
    "drain_cancelled": Reason("the drain was cancelled"),
    "plan_failed": Reason("another move of the same plan failed, and half a plan makes no room"),
    "no_plan": Reason("no set of requests that may leave would free enough and fit elsewhere"),
    "plan_too_large": Reason("it would take more moves than one instance may have at a time"),
    "source_died": Reason("the source died"),
    "timed_out": Reason("the move is not over yet"),
    # An order by hand was not begun.
    "not_asked": Reason("its source could not be asked"),
    "no_turn": Reason("as many moves as allowed were under way all the time"),
    "queue_full": Reason("too many moves wait for their turn already"),
    "no_moves": Reason("no moves are allowed"),
    "closed": _there("the destination was closed to it while it waited for its turn"),
    "source_closed": Reason("no move may begin at its source any more"),
    "no_destination": Reason("no instance can take it"),
}


def reason_of(code: str) -> Reason:
    """The reason that has this code. An unknown code, which comes from another version, is shown as
    it is, and has no other property."""
    return REASONS.get(code) or Reason(code.replace("_", " "))


def why(code: str) -> str:
    """The sentence for a code; empty for an empty code."""
    return reason_of(code).sentence
