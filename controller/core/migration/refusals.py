"""Why a request cannot move, or a destination cannot take it, in a word and in a sentence."""

from enum import StrEnum


class MoveRefusal(StrEnum):
    # Of the request, said by its source.
    UNKNOWN = "unknown"
    IN_PREFILL = "in_prefill"
    MOVING = "moving"
    MULTIMODAL = "multimodal"
    PROMPT_EMBEDS = "prompt_embeds"
    POOLING = "pooling"
    STREAMED_PROMPT = "streamed_prompt"
    # Of the engine.
    SPECULATIVE = "speculative"
    KV_GROUPS = "kv_groups"
    MODEL_RUNNER = "model_runner"
    PARALLEL = "parallel"
    # Of the destination.
    FINGERPRINT = "fingerprint"
    NO_BLOCKS = "no_blocks"
    NO_SLOT = "no_slot"
    NO_ADAPTER = "no_adapter"
    NOT_TAKEN = "not_taken"
    TOO_MANY_MOVES = "too_many_moves"
    DRAINING = "draining"


LASTING = frozenset(
    {
        MoveRefusal.MULTIMODAL,
        MoveRefusal.PROMPT_EMBEDS,
        MoveRefusal.POOLING,
        MoveRefusal.STREAMED_PROMPT,
        MoveRefusal.SPECULATIVE,
        MoveRefusal.KV_GROUPS,
        MoveRefusal.MODEL_RUNNER,
        MoveRefusal.PARALLEL,
    }
)
"""A request that its source refuses for one of these never moves."""

SENTENCES = {
    MoveRefusal.UNKNOWN: "the instance does not run this request",
    MoveRefusal.IN_PREFILL: "its prompt is still being computed",
    MoveRefusal.MOVING: "it is being moved already",
    MoveRefusal.MULTIMODAL: "it has multimodal input",
    MoveRefusal.PROMPT_EMBEDS: "its prompt is given as embeddings",
    MoveRefusal.POOLING: "it is not a generation",
    MoveRefusal.STREAMED_PROMPT: "its prompt is still being streamed in",
    MoveRefusal.SPECULATIVE: "the engine decodes speculatively",
    MoveRefusal.KV_GROUPS: "the model has more than one group of KV layers",
    MoveRefusal.MODEL_RUNNER: "the engine runs vLLM's second model runner",
    MoveRefusal.PARALLEL: "the engine spreads its KV blocks over several processes",
    MoveRefusal.FINGERPRINT: "the KV blocks of the two engines are not alike",
    MoveRefusal.NO_BLOCKS: "the destination has not enough free blocks",
    MoveRefusal.NO_SLOT: "the destination's batch is full",
    MoveRefusal.NO_ADAPTER: "its LoRA adapter is not loaded there",
    MoveRefusal.NOT_TAKEN: "the destination's engine cannot take it",
    MoveRefusal.TOO_MANY_MOVES: "as many moves as allowed are under way there",
    MoveRefusal.DRAINING: "the destination is draining",
}
