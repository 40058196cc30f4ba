"""One replay of one request."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replay:
    """A request that was lost with `source_id` and begins `attempt` elsewhere with `num_tokens` to
    compute."""

    source_id: str
    num_tokens: int
    attempt: int
    cause_id: str
