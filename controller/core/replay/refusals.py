"""Why a request cannot be replayed, in a word and in a sentence.

A request without output is dispatched again as it came, whatever it is. One with outputs must go
on with exactly the tokens that it would have had.
"""

from enum import StrEnum

from controller.core.replay.config import ReplayConfig


class ReplayRefusal(StrEnum):
    OFF = "off"
    TOO_OFTEN = "too_often"
    NOT_KEPT = "not_kept"
    NO_INSTANCE = "no_instance"
    NOT_TAKEN = "not_taken"
    # Of the request, known when it comes.
    MULTIMODAL = "multimodal"
    PROMPT_EMBEDS = "prompt_embeds"
    STREAMED_PROMPT = "streamed_prompt"


SENTENCES = {
    ReplayRefusal.OFF: "replays are switched off",
    ReplayRefusal.TOO_OFTEN: "it was replayed as often as allowed",
    ReplayRefusal.NOT_KEPT: "too many tokens were kept for replays already",
    ReplayRefusal.NO_INSTANCE: "no instance could take it in time",
    ReplayRefusal.NOT_TAKEN: "the engine cannot go on with it",
    ReplayRefusal.MULTIMODAL: "it has multimodal input",
    ReplayRefusal.PROMPT_EMBEDS: "its prompt is given as embeddings",
    ReplayRefusal.STREAMED_PROMPT: "its prompt was streamed in",
}

ALWAYS = frozenset({ReplayRefusal.OFF, ReplayRefusal.TOO_OFTEN, ReplayRefusal.NOT_KEPT})
"""Those that count for a request without output too."""


def why_not(
    config: ReplayConfig,
    num_replays: int,
    num_output_tokens: int,
    mark: ReplayRefusal | None,
) -> ReplayRefusal | None:
    """Why a request whose instance died is not replayed now; None if it is. `num_replays`: so
    often it was before. `mark`: what was known beforehand."""
    if config.max_replays == 0:
        return ReplayRefusal.OFF
    if num_replays >= config.max_replays:
        return ReplayRefusal.TOO_OFTEN
    if mark is not None and (num_output_tokens or mark in ALWAYS):
        return mark
    return None
