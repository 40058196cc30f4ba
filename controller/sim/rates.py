"""Two rates of a cluster: the rate at which it saturates, by arithmetic alone, and the rate of its
knee, by a search over runs."""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.model.profile import LatencyProfile, Mode
from controller.sim.workload.trace import Trace, hashes_of

# -- saturation ------------------------------------------------------------------------------------
#
# An instance that is saturated has its memory full of running requests. How many requests these are
# follows from the tokens that a request holds while it decodes; how long a step with them takes
# follows from the profile. So a request costs its share of each of its decode steps, and the time
# that its prefill adds. The cost of evictions and the waste by fragmentation are left out.
#
# With prefix caches, a beginning of a prompt that an earlier prompt had too costs neither prefill
# nor memory. The estimate assumes one cache for all instances, as large as all their memory, that
# keeps what was used last. So it is an upper bound: real caches lose blocks to running requests,
# and each instance has its own.

Values = NDArray[np.float64]


def saturation_rate(
    trace: Trace,
    profile: LatencyProfile,
    num_instances: int,
    mode: Mode = "chunked",
    *,
    prefix_caching: bool = False,
) -> float:
    """The most requests per second that `num_instances` can serve, if their lengths are as in the
    trace."""
    prompts = np.array([request.num_prompt_tokens for request in trace.requests], float)
    steps = np.array([request.num_output_tokens for request in trace.requests], float) - 1
    cached = np.zeros_like(prompts)
    if prefix_caching:
        num_tokens = num_instances * profile.num_total_blocks * profile.block_size
        cached = np.array(list(_cached_tokens(trace, num_tokens, profile.block_size)), float)
    decode_s = float(steps.mean()) * _step_share_s(prompts, cached, steps, profile)
    prefill_s = float(_prefill_s(prompts, cached, profile, mode).mean())
    return num_instances / (prefill_s + decode_s)


def _step_share_s(
    prompts: Values,
    cached: Values,
    steps: Values,
    profile: LatencyProfile,
) -> float:
    """The time of a decode step of a full instance, divided by the number of requests in it."""
    num_steps = float(steps.sum())
    if not num_steps:
        return 0.0
    # A request holds one token more after each step, and half of its last block is empty.
    held = float((steps * (prompts + steps / 2)).sum()) / num_steps + profile.block_size / 2
    own = held - float((steps * cached).sum()) / num_steps
    num_blocks = profile.num_total_blocks * (1 - profile.watermark_ratio)
    batch = min(profile.max_num_running, max(1.0, num_blocks * profile.block_size / own))
    step_s = (
        profile.decode_base_s
        + profile.decode_per_request_s * batch
        + profile.decode_per_context_token_s * batch * held
    )
    return step_s / batch


def _prefill_s(prompts: Values, cached: Values, profile: LatencyProfile, mode: Mode) -> Values:
    """What each prompt adds to the time of the steps. A chunk shares its step with decodes, so that
    the weights are read once for both; a prefill of the other mode has a step of its own."""
    computed = prompts - cached
    num_chunks = np.ceil(computed / profile.max_num_batched_tokens)
    weights_s = num_chunks * profile.prefill_base_s + profile.prefill_per_token_s * computed
    if mode == "chunked":
        weights_s = np.maximum(0.0, weights_s - num_chunks * profile.decode_base_s)
    prefills_s: Values = weights_s + profile.prefill_per_token_squared_s * (prompts**2 - cached**2)
    return prefills_s


def _cached_tokens(trace: Trace, num_tokens: int, block_size: int) -> Iterator[int]:
    """How many tokens of each prompt are in a cache of `num_tokens` tokens. The last token of a
    prompt is always computed."""
    size = trace.prefix_hash_tokens
    seen: OrderedDict[int, None] = OrderedDict()
    for request in trace.requests:
        hashes, num_hits = request.prefix_hashes, 0
        for each in hashes:
            if each not in seen:
                break
            num_hits += 1
        for each in reversed(hashes_of(request)):  # so that an end is forgotten before a beginning
            seen[each] = None
            seen.move_to_end(each)
        while len(seen) * size > num_tokens:
            seen.popitem(last=False)
        num_cached = min(num_hits * size, request.num_prompt_tokens - 1)
        yield num_cached // block_size * block_size


# -- the knee --------------------------------------------------------------------------------------
#
# The highest rate that a cluster serves with a given P99 TTFT. Below the knee the P99 TTFT is the
# prefill of a long prompt; above it the queues grow. The change happens within a few percent of the
# rate. So loads are compared at the same distance from the knee.

TARGET_S = 30.0
"""The P99 TTFT at which INFaaS++ has its knee."""
TOLERANCE = 0.005
"""The search ends when its bracket is as narrow as this share of the rate."""
STEP = 1.1
MAX_POINTS = 24


@dataclass(frozen=True, slots=True)
class Knee:
    """`points` are all rates that were tried, ascending, with the P99 TTFT at each in seconds."""

    rate: float
    points: tuple[tuple[float, float], ...]


def knee(p99_at: Callable[[float], float], begin_rate: float, target_s: float = TARGET_S) -> Knee:
    """Finds the highest rate at which `p99_at` is at most `target_s`. From `begin_rate` the search
    goes in steps of a tenth until the target is between two rates; then it bisects, in the
    logarithm of the rate.

    The rate found is interpolated between the last two, as the logarithm of P99 grows between them.

    Raises:
        ValueError: `begin_rate` or the target is not positive, or no bracket is found.
    """
    if not 0 < begin_rate < math.inf or not 0 < target_s < math.inf:
        raise ValueError("the knee is sought from a positive rate, for a positive target")
    tried: dict[float, float] = {}

    def meets(rate: float) -> bool:
        tried[rate] = p99_at(rate)
        return tried[rate] <= target_s

    below = above = begin_rate
    if meets(begin_rate):
        while meets(above := above * STEP):
            below = above
            _check(tried, target_s)
    else:
        while not meets(below := below / STEP):
            above = below
            _check(tried, target_s)
    while above / below - 1 > TOLERANCE:
        middle = math.sqrt(below * above)
        if meets(middle):
            below = middle
        else:
            above = middle
    points = tuple(sorted(tried.items()))
    return Knee(_between(below, above, tried, target_s), points)


def _check(tried: dict[float, float], target_s: float) -> None:
    if len(tried) >= MAX_POINTS:
        low, high = min(tried), max(tried)
        raise ValueError(
            f"P99 TTFT does not cross {target_s:g} s from {low:.3g} to {high:.3g} requests/s"
        )


def _between(below: float, above: float, tried: dict[float, float], target_s: float) -> float:
    low_s, high_s = tried[below], tried[above]
    if not 0 < low_s < high_s:
        return below
    share = math.log(target_s / low_s) / math.log(high_s / low_s)
    return below * math.pow(above / below, share)
