"""How long a request that decodes on an instance waits for each of its tokens.

A step that also computes prompts takes as long as it may, T; a step that only decodes takes t. The
prompts that an instance has now keep it busy for its backlog W. So of the next seconds the share w,
W divided by that time and at most 1, goes into long steps, a stream gets w / T + (1 - w) / t tokens
per second, and its mean gap between two tokens is the inverse of that. Only the backlog tells which
instance will be slow: prompts come in bursts, and a history knows of them too late.
"""

from controller.core.load.snapshot import InstanceSnapshot


def token_gap_s(snapshot: InstanceSnapshot, ahead_s: float, decode_step_s: float = 0.0) -> float:
    """The mean gap between two tokens of a request that decodes on the instance, over the next
    `ahead_s`, in seconds; 0: not known. `decode_step_s`: how long a step takes that only decodes,
    if nothing decodes there now."""
    short_s = snapshot.decode_step_s or decode_step_s
    if not short_s:
        return 0.0
    whole_s = snapshot.prefill_speed.token_s * snapshot.max_step_tokens
    long_s = max(snapshot.step_limit_s or whole_s, short_s)
    share = min(1.0, snapshot.backlog_s / ahead_s)
    return 1.0 / (share / long_s + (1.0 - share) / short_s)
