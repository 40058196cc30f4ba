"""How long a stream lives: what it says ends when the model's context is full, so a long prompt
leaves it little time, and on a fast machine less than a measurement takes."""

CONTEXT_TOKENS = 8160
"""The embedded model's, less what a sampled step may be ahead."""
MARGIN = 1.5
"""Steps vary; the time that is needed is an estimate."""


def prompt_that_lives(wanted_tokens: int, needed_s: float, step_s: float) -> int:
    """The longest prompt, up to the one wanted, of a stream that still speaks `needed_s` after its
    first token, one token every `step_s`. Raises ValueError if none does."""
    num_output_tokens = round(MARGIN * needed_s / step_s)
    if num_output_tokens >= CONTEXT_TOKENS:
        raise ValueError(f"no stream lives {needed_s:.1f} s at {step_s * 1000:.2f} ms per token")
    return min(wanted_tokens, CONTEXT_TOKENS - num_output_tokens)


def time_left_s(num_output_tokens: int, num_said: int, step_s: float) -> float:
    """Of a stream that has said so many of its tokens."""
    return max(0, num_output_tokens - num_said) * step_s
