"""What a frontend may spend on replays."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    max_replays: int = 3
    """How often one request may begin anew after a death; 0: never. A request that makes engines
    die takes one more instance with it than this says."""
    max_tokens_kept: int = 16_000_000
    """Tokens of prompts and outputs that one frontend keeps for replays in all: 4 bytes for an
    output token, 3 to 5 for one of a prompt."""
    patience_s: float = 30.0
    """A lost request gets its error if no instance can take it for so long."""
