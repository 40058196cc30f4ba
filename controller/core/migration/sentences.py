"""Why a move came to nothing, in a sentence; those of refusals are in `refusals.py`."""

from controller.core.migration.refusals import SENTENCES, MoveRefusal

_FAILURES = {
    "no_answer": "the destination did not answer in time",
    "too_slow": "the copy took too long: by the bandwidth limit, or a long step of the engine",
    "not_ready": "the destination did not get ready for it in time",
    "destination_died": "the destination died",
    "transfer": "the copy did not get through",
    "lease_expired": "the destination heard nothing of the source for too long",
    "kv_mismatch": "the KV blocks of the two sides differ",
    "not_applied": "the destination's engine did not take the request's state",
    "forgotten": "the destination does not know this move any more",
    "evicted": "it lost its blocks to memory pressure",
    "admitted": "it entered the batch meanwhile",
    "finished": "it finished meanwhile",
    "client_left": "its client left",
    "drain_cancelled": "the drain was cancelled",
    "plan_failed": "another move of the same plan failed, and half a plan makes no room",
    "no_plan": "no set of requests that may leave would free enough and fit elsewhere",
    "plan_too_large": "it would take more moves than one instance may have at a time",
    "source_died": "the source died",
    "timed_out": "the move is not over yet",
    "no_turn": "as many moves as allowed were under way all the time",
    "queue_full": "too many moves wait for their turn already",
    "no_moves": "no moves are allowed",
    "no_destination": "no instance can take it",
}


def why(code: str) -> str:
    """The sentence for a code: empty for an empty code; an unknown code is said as it is."""
    if code in SENTENCES:
        return SENTENCES[MoveRefusal(code)]
    return _FAILURES.get(code, code.replace("_", " "))
