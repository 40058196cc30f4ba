"""How fast an engine computes, as its own steps show: nobody has to measure a profile for that."""

from collections.abc import Sequence

from controller.core.load.snapshot import NOT_MEASURED, PrefillSpeed

LEAST_TOKENS = 32
"""A step with fewer tokens of prompts says little: most of its time does not depend on them."""
KEPT = 0.98
"""How much an earlier step counts after a further one: the last 50 steps count most."""
ENOUGH_TOKENS = 2048
"""So many tokens of prompts must have been computed before there is an estimate."""
DECODE_KEPT = 0.9


class StepTimes:
    """The time of a step is taken to be proportional to the tokens of prompts in it and to the
    pairs of tokens that their attention compares (`PrefillSpeed`). Both factors are fitted by least
    squares, which large steps decide. `decode_step_s`: how long steps take that only decode; 0 if
    there was none."""

    def __init__(self) -> None:
        self.decode_step_s = 0.0
        self._num_tokens = 0
        self._tokens2 = self._tokens_pairs = self._pairs2 = 0.0
        self._tokens_s = self._pairs_s = 0.0

    def stepped(self, prefill: Sequence[tuple[int, int]], num_decoding: int, time_s: float) -> None:
        """Takes in a step. `prefill`: as for `LatencyProfile.step_time_s`, for each prompt (the
        tokens computed in this step, the tokens computed before)."""
        tokens = sum(num_new for num_new, _ in prefill)
        if not tokens and num_decoding:
            known_s = self.decode_step_s or time_s
            self.decode_step_s = DECODE_KEPT * known_s + (1 - DECODE_KEPT) * time_s
        if tokens < LEAST_TOKENS:
            return
        pairs = sum(num_new * (num_new + 2 * num_before) for num_new, num_before in prefill)
        self._num_tokens += tokens
        self._tokens2 = KEPT * self._tokens2 + tokens * tokens
        self._tokens_pairs = KEPT * self._tokens_pairs + tokens * pairs
        self._pairs2 = KEPT * self._pairs2 + pairs * pairs
        self._tokens_s = KEPT * self._tokens_s + tokens * time_s
        self._pairs_s = KEPT * self._pairs_s + pairs * time_s

    @property
    def prefill_speed(self) -> PrefillSpeed:
        """`NOT_MEASURED` before enough was computed."""
        if self._num_tokens < ENOUGH_TOKENS:
            return NOT_MEASURED
        determinant = self._tokens2 * self._pairs2 - self._tokens_pairs**2
        only_tokens_s = self._tokens_s / self._tokens2
        if determinant < 1e-3 * self._tokens2 * self._pairs2:
            return PrefillSpeed(only_tokens_s, 0.0)  # all steps were alike
        pair_s = (self._tokens2 * self._pairs_s - self._tokens_pairs * self._tokens_s) / determinant
        token_s = (self._tokens_s - pair_s * self._tokens_pairs) / self._tokens2
        if pair_s < 0 or token_s <= 0:
            return PrefillSpeed(only_tokens_s, 0.0)
        return PrefillSpeed(token_s, pair_s)
