"""Steps of a batch that only decodes and stays as it is, in closed form.

While every running request decodes and none can be admitted, each step adds one token to each of
them. So time, tokens and blocks after any number of such steps follow from their values before the
first one, and nobody has to walk the batch for each step.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Self

from controller.core.value import value
from controller.model.profile import LatencyProfile
from controller.model.request import RequestState


@value
class DecodeStretch:
    """At most `num_steps` steps: then a request ends, or the next step lacks a block.

    Step i (from 1 on) takes `first_s` + (i - 1) * `growth_s`. `num_due[r]` requests have room for
    fewer than r tokens more in their blocks, so that they take one within r steps.
    """

    num_steps: int
    num_running: int
    num_free_blocks: int
    first_s: float
    growth_s: float
    num_due: Sequence[int]

    @classmethod
    def of(
        cls,
        running: Sequence[RequestState],
        profile: LatencyProfile,
        block_size: int,
        num_free_blocks: int,
    ) -> Self | None:
        """None if one of them is in its prefill, caches blocks, or has a whole free block, as one
        has that has just moved in; and if not even one step can be run."""
        with_room = [0] * block_size
        num_context_tokens, least_left = 0, 1 << 62
        for r in running:
            num_computed = r.num_computed
            room = r.num_slots - num_computed
            if r.in_prefill or room >= block_size or r.block_hash is not None:
                return None
            with_room[room] += 1
            num_context_tokens += num_computed
            num_left = r.end_tokens - r.num_tokens
            if num_left < least_left:
                least_left = num_left
        num_running = len(running)
        num_due = [0, *accumulate(with_room)]
        num_rounds, num_blocks_left = divmod(num_free_blocks, num_running)
        fit = num_rounds * block_size + bisect_right(num_due, num_blocks_left) - 1
        if fit < 1:
            return None
        return cls(
            min(least_left, fit),
            num_running,
            num_free_blocks,
            profile.step_time_s((), num_running, num_context_tokens + num_running),
            profile.decode_per_context_token_s * num_running,
            num_due,
        )

    def time_s(self, num_steps: int) -> float:
        """How long the first `num_steps` take."""
        return num_steps * (self.first_s + self.growth_s * (num_steps - 1) / 2)

    def last_step_s(self, num_steps: int) -> float:
        """How long the last one of `num_steps` takes."""
        return self.first_s + self.growth_s * (num_steps - 1)

    def num_steps_within(self, time_s: float) -> int:
        """How many steps are over after `time_s`."""
        first_s, growth_s, most = self.first_s, self.growth_s, self.num_steps
        square_s = growth_s / 2
        linear_s = first_s - square_s
        if square_s:
            root = math.sqrt(linear_s * linear_s + 4 * square_s * (time_s if time_s > 0.0 else 0.0))
            num_steps = int((root - linear_s) / (2 * square_s))
        else:
            num_steps = int(time_s / linear_s)
        # The root is rounded, so that it may be one step off. `time_s` is written out: each status
        # comes here, and with the calls it took twice as long.
        while num_steps < most and (num_steps + 1) * (first_s + growth_s * num_steps / 2) <= time_s:
            num_steps += 1
        while num_steps > 0 and num_steps * (first_s + growth_s * (num_steps - 1) / 2) > time_s:
            num_steps -= 1
        return num_steps if num_steps < most else most

    def num_taken_blocks(self, num_steps: int) -> int:
        """How many blocks the batch takes in the first `num_steps`."""
        num_rounds, rest = divmod(num_steps, len(self.num_due) - 1)
        return num_rounds * self.num_running + self.num_due[rest]
