"""At which rate a cluster saturates, by arithmetic alone.

An instance that is saturated has its memory full of running requests. How many those are follows
from the tokens that a request holds while it decodes, and how long a step of them takes from the
profile. So a request costs its share of each of its decode steps, and what its prefill adds. What
evictions cost and what fragmentation wastes is left out.
"""

import numpy as np
from numpy.typing import NDArray

from controller.model.config import Mode
from controller.model.profile import LatencyProfile
from controller.sim.workload.request import Trace

Values = NDArray[np.float64]


def saturation_rate(
    trace: Trace, profile: LatencyProfile, num_instances: int, mode: Mode = "chunked"
) -> float:
    """Requests per second that `num_instances` can serve at most, of lengths as in the trace."""
    prompts = np.array([request.num_prompt_tokens for request in trace.requests], float)
    steps = np.array([request.num_output_tokens for request in trace.requests], float) - 1
    decode_s = float(steps.mean()) * _step_share_s(prompts, steps, profile)
    prefill_s = float(_prefill_s(prompts, profile, mode).mean())
    return num_instances / (prefill_s + decode_s)


def _step_share_s(
    prompts: Values,
    steps: Values,
    profile: LatencyProfile,
) -> float:
    """How long a decode step of a full instance takes, per request in it."""
    num_steps = float(steps.sum())
    if not num_steps:
        return 0.0
    # A request holds one token more after each step, and half of its last block is empty.
    held = float((steps * (prompts + steps / 2)).sum()) / num_steps + profile.block_size / 2
    num_blocks = profile.num_total_blocks * (1 - profile.watermark_ratio)
    batch = min(profile.max_num_running, max(1.0, num_blocks * profile.block_size / held))
    step_s = (
        profile.decode_base_s
        + profile.decode_per_request_s * batch
        + profile.decode_per_context_token_s * batch * held
    )
    return step_s / batch


def _prefill_s(prompts: Values, profile: LatencyProfile, mode: Mode) -> Values:
    """What each prompt adds to the time of the steps. A chunk shares its step with decodes, so that
    the weights are read once for both; a prefill of the other mode has a step of its own."""
    num_chunks = np.ceil(prompts / profile.max_num_batched_tokens)
    weights_s = num_chunks * profile.prefill_base_s + profile.prefill_per_token_s * prompts
    if mode == "chunked":
        weights_s = np.maximum(0.0, weights_s - num_chunks * profile.decode_base_s)
    found: Values = weights_s + profile.prefill_per_token_squared_s * prompts**2
    return found
