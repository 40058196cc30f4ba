"""What may go on elsewhere after its instance died: limits, reasons why not, and one loss."""

from dataclasses import dataclass
from enum import StrEnum

from controller.core.instance_ref import InstanceRef
from controller.core.settings import ReplayConfig


class ReplayRefusal(StrEnum):
    """Why a request cannot be replayed. A request without output is dispatched again as it came,
    whatever it is. One with outputs must go on with exactly the tokens that it would have had."""

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


@dataclass(frozen=True, slots=True)
class Replay:
    """A request that was lost with `source_id` and begins `attempt` elsewhere with `num_tokens` to
    compute."""

    source_id: str
    num_tokens: int
    attempt: int
    cause_id: str


@dataclass(frozen=True, slots=True)
class RequestLoss:
    """A request that no instance has any more, as `owner` is gone. `what` happened, in words.
    `num_tokens` are to be computed elsewhere. `silent_s`: since the client's last token; None if
    there was none."""

    owner: InstanceRef
    what: str
    num_tokens: int
    silent_s: float | None
    num_replays: int

    @property
    def cause_id(self) -> str:
        return cause_of(self.owner)


def cause_of(lost: InstanceRef) -> str:
    return f"lost-{lost.instance_id}-{lost.incarnation}"
