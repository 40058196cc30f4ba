"""How long a step of an engine takes, by what it computes, and how many tokens of prompts it may
compute so that it does not take longer than it should.

All requests of a step share two costs, one pass over the weights and one pass over the KV cache
(attention). Prefills and decodes go through the same pass:

    pass over the weights    prefilling n tokens     prefill_base + prefill_per_token * n
                             decoding                decode_base
                             both in one step        the larger one: the weights are read once, and
                                                     memory is read while the GPU computes
    attention                prefill of n after c    prefill_per_token_squared * (n^2 + 2 n c)
                                                     + decode_per_context_token * c
                             decode                  decode_per_context_token * tokens in it
    each decoding request                            decode_per_request

So a step that only prefills or only decodes takes exactly the time that was measured for it, and
more work never takes less time. A sum of the two formulas would count the pass over the weights
twice in a mixed step; on an A10 with LLaMA-7B that is 35 ms for every chunk. Each chunk of a prompt
reads the KV of the tokens before it anew, so many small chunks take longer than a few large ones.

`StepTimes` finds how fast an engine computes by its own steps: nobody has to measure a profile for
that.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from controller.core.load.snapshot import Level, PrefillSpeed
from controller.core.value import value

LEAST_TOKENS = 32
"""A step with fewer tokens of prompts says little: most of its time does not depend on them."""
KEPT = 0.98
"""How much an earlier step counts after a further one: the last 50 steps count most."""
ENOUGH_TOKENS = 2048
"""So many tokens of prompts must have been computed before there is an estimate."""
DECODE_KEPT = 0.9
UNKNOWN_CHUNK_TOKENS = 256
"""How many tokens of prompts a step computes while requests decode, until it is known how long they
take."""
LIMIT_IN_DECODE_STEPS = 7.0
"""By default a step may take this many times as long as a step that decodes one request."""
LIMIT_IN_PRESENT_STEPS = 4.0
"""And so many times as long as one that decodes what decodes now. Otherwise little of a step would
be left for prompts beside many long streams, and prompts would wait for longer and longer. On
Mooncake's conversations at 8.4/s (simulated, 8 H100, one seed) the mean TTFT is 3.3 s without this
rule, 3.1, 2.0 and 1.7 s with 2, 3 and 4 steps, and 1.5 s without any limit."""
MAX_LOOKED_AT = 8
"""Of so many waiting prompts it is looked up how much of them is cached, before a step's tokens are
counted."""
LEAST_CHUNK_TOKENS = 64
"""A step in which prompts wait computes at least so many tokens of them, however long it takes."""

LEAST_PROMPT_SHARE = 0.01


@value
class StepLimit:
    """How long steps may take while requests decode. `step_time_s`: 0 is `default_limit_s`, None is
    any time. `by_rank_s`: at most so long while requests of these ranks run."""

    step_time_s: float | None = None
    by_rank_s: Mapping[int, float] = field(default_factory=dict)

    @property
    def is_any(self) -> bool:
        """Whether steps may always take any time."""
        return self.step_time_s is None and not self.by_rank_s

    def limit_s(self, ranks: Iterable[int], default_s: float) -> float | None:
        """The limit beside requests of these ranks; None: any time."""
        limits_s = [self.by_rank_s[rank] for rank in ranks if rank in self.by_rank_s]
        if self.step_time_s is not None:
            limits_s.append(self.step_time_s or default_s)
        return min(limits_s, default=None)

    def longer(self, factor: float) -> "StepLimit":
        """The limit for an engine whose steps take `factor` times as long."""
        step_time_s = None if self.step_time_s is None else self.step_time_s * factor
        return StepLimit(
            step_time_s, {rank: each * factor for rank, each in self.by_rank_s.items()}
        )


ANY_TIME = StepLimit()


def limit_of_steps(step_time_s: float, levels: Iterable[Level], *, late_binding: bool) -> StepLimit:
    """The limit by the setting `scheduler.step_time_s` and the targets of the levels. Only late
    binding (`llumnix+`) limits steps unless an operator sets a time: the other policies are there
    to be compared with, and their authors' instances limited nothing."""
    if not late_binding:
        return StepLimit(step_time_s or None)
    targets_s = {each.rank: each.target_tpot_s for each in levels}
    return StepLimit(
        step_time_s, {rank: each for rank, each in targets_s.items() if each is not None}
    )


def default_limit_s(least_decode_s: float, decode_step_s: float) -> float:
    """How long a step may take by default. `least_decode_s`: how long a step takes that decodes one
    request; `decode_step_s`: that decodes what decodes now."""
    return max(LIMIT_IN_DECODE_STEPS * least_decode_s, LIMIT_IN_PRESENT_STEPS * decode_step_s)


@value
class StepCosts:
    """The constants of the time of a step, in seconds."""

    prefill_base_s: float
    prefill_per_token_s: float
    prefill_per_token_squared_s: float
    decode_base_s: float
    decode_per_context_token_s: float
    decode_per_request_s: float

    def time_s(
        self, prefill: Sequence[tuple[int, int]], num_decoding: int, num_context_tokens: int
    ) -> float:
        """The time of one step; 0 for an empty step.

        `prefill`: for each prompt or chunk, (the tokens computed in this step, the tokens computed
        before). `num_decoding`: the number of requests that decode one token each.
        `num_context_tokens`: the sum of the tokens that these requests have."""
        if num_decoding:
            weights_s = self.decode_base_s
            rest_s = (
                self.decode_per_request_s * num_decoding
                + self.decode_per_context_token_s * num_context_tokens
            )
        else:
            weights_s = rest_s = 0.0
        if prefill:
            num_tokens = num_pairs = num_read = 0
            for num_new, num_before in prefill:
                num_tokens += num_new
                num_pairs += num_new * (num_new + 2 * num_before)
                num_read += num_before
            prefill_s = self.prefill_base_s + self.prefill_per_token_s * num_tokens
            weights_s = max(weights_s, prefill_s)
            rest_s += self.prefill_per_token_squared_s * num_pairs
            rest_s += self.decode_per_context_token_s * num_read
        return weights_s + rest_s

    def prefill_speed(self, max_step_tokens: int) -> PrefillSpeed:
        """How fast prompts are computed in steps of so many tokens."""
        token_s = self.prefill_per_token_s + self.prefill_base_s / max_step_tokens
        return PrefillSpeed(token_s, self.prefill_per_token_squared_s)

    def prompt_tokens_within(
        self,
        limit_s: float,
        prompts: Iterable[tuple[int, int]],
        num_decoding: int,
        num_context_tokens: int,
    ) -> int:
        """How many tokens of these prompts a step computes at most, in their order, so that it
        takes no longer than `limit_s`; at least `LEAST_CHUNK_TOKENS`.

        `prompts`: for each, (the tokens that are still to be computed, the tokens computed
        before)."""
        num_tokens = 0
        left_s = limit_s - self.decode_per_request_s * num_decoding
        left_s -= self.decode_per_context_token_s * num_context_tokens
        base_s = self.decode_base_s if num_decoding else 0.0
        for num_left, num_before in prompts:
            left_s -= self.decode_per_context_token_s * num_before
            num_new = self._within(left_s, base_s, num_tokens, num_before)
            if num_new < num_left:
                num_tokens += num_new
                break
            num_tokens += num_left
            left_s -= self.prefill_per_token_squared_s * num_left * (num_left + 2 * num_before)
        return max(LEAST_CHUNK_TOKENS, num_tokens)

    def prompt_share(self, limit_s: float, num_decoding: int, num_context_tokens: int) -> float:
        """The share of their time that steps of `limit_s` have for prompts, beside these requests:
        at most 1, and at least `LEAST_PROMPT_SHARE` and what `LEAST_CHUNK_TOKENS` take."""
        left_s = limit_s - self.prefill_base_s - self.decode_per_request_s * num_decoding
        left_s -= self.decode_per_context_token_s * num_context_tokens
        least_s = LEAST_CHUNK_TOKENS * self.prefill_per_token_s
        return min(1.0, max(left_s / limit_s, least_s / limit_s, LEAST_PROMPT_SHARE))

    def _within(self, left_s: float, base_s: float, num_tokens: int, num_before: int) -> int:
        """How many tokens of a prompt fit into `left_s`, after `num_tokens` of earlier ones, with
        the pass over the weights. The pass takes the longer of two times, so the tokens must fit
        with either of them."""
        square_s, token_s = self.prefill_per_token_squared_s, self.prefill_per_token_s
        pairs_s = 2 * square_s * num_before
        prefill_s = self.prefill_base_s + token_s * num_tokens
        return math.floor(
            min(
                _root(square_s, pairs_s + token_s, left_s - prefill_s),
                _root(square_s, pairs_s, left_s - base_s),
            )
        )


def _root(square_s: float, linear_s: float, time_s: float) -> float:
    """The largest n with `square_s` n^2 + `linear_s` n <= `time_s`; 0 if there is no time, and at
    most `NO_BOUND`."""
    if time_s <= 0:
        return 0.0
    if square_s:
        root = math.sqrt(linear_s * linear_s + 4 * square_s * time_s)
        return min(NO_BOUND, 2 * time_s / (linear_s + root))
    return min(NO_BOUND, time_s / linear_s) if linear_s else NO_BOUND


NO_BOUND = 1e9


class StepTimes:
    """Finds the constants of an engine by least squares. Earlier steps count less and less, and an
    error counts relative to the square root of the step's time. First come the constants of the
    steps that only decode; then, from the other steps, those of the rest of their time.
    `decode_step_s`: how long steps take that only decode; `least_decode_s`: how long they took when
    that was shortest. Both are 0 if there was none."""

    def __init__(self) -> None:
        self.decode_step_s = self.least_decode_s = 0.0
        self._num_tokens = 0
        self._decode, self._prefill = _Fit(), _Fit()
        self._costs: StepCosts | None = None

    def decoded(self, time_s: float) -> None:
        """Takes in a step that only decoded."""
        known_s = self.decode_step_s or time_s
        self.decode_step_s = DECODE_KEPT * known_s + (1 - DECODE_KEPT) * time_s
        least_s = self.least_decode_s or self.decode_step_s
        self.least_decode_s = min(least_s, self.decode_step_s)

    def stepped(
        self,
        prefill: Sequence[tuple[int, int]],
        num_decoding: int,
        num_context_tokens: int,
        time_s: float,
    ) -> None:
        """Takes in a step, with the arguments of `StepCosts.time_s`. Of the steps that only decode,
        some are enough."""
        if not prefill and num_decoding:
            self._decode.add((1.0, num_context_tokens, num_decoding), time_s)
            self._costs = None
        num_tokens = sum(num_new for num_new, _ in prefill)
        if num_tokens < LEAST_TOKENS:
            return
        num_pairs = sum(num_new * (num_new + 2 * num_before) for num_new, num_before in prefill)
        _, context_s, request_s = self._decode.constants
        num_read = num_context_tokens + sum(num_before for _, num_before in prefill)
        rest_s = time_s - context_s * num_read - request_s * num_decoding
        self._num_tokens += num_tokens
        self._prefill.add((1.0, num_tokens, num_pairs), max(rest_s, LEAST_SHARE * time_s))
        self._costs = None

    @property
    def costs(self) -> StepCosts | None:
        """None before enough was computed."""
        if self._num_tokens < ENOUGH_TOKENS:
            return None
        if self._costs is None:
            base_s, context_s, request_s = self._decode.constants
            self._costs = StepCosts(*self._prefill.constants, base_s, context_s, request_s)
        return self._costs


LEAST_SHARE = 0.1
"""At least this share of a step's time counts as that of its prompts."""
Row = tuple[float, float, float]
NONE: Row = (0.0, 0.0, 0.0)
SETS = ((0, 1, 2), (1, 2), (0, 1), (0, 2), (1,), (0,), (2,))
"""All sets of constants that may be above zero. Of two that are as good, the first is taken."""
AS_GOOD = 1 - 1e-9
LEAST_DETERMINANT = 1e-6
"""Below this, the steps were too much alike to tell the constants of a set apart. The determinant
is of values that are scaled to have ones on the diagonal."""


class _Fit:
    """Three constants that are not negative, so that their products with the figures of each step
    add up to its time."""

    def __init__(self) -> None:
        self._squares = [[0.0] * 3 for _ in range(3)]
        self._sums = [0.0] * 3
        self._found: Row | None = None

    def add(self, row: Row, time_s: float) -> None:
        for i, each in enumerate(row):
            self._sums[i] = KEPT * self._sums[i] + each
            squares = self._squares[i]
            for j, other in enumerate(row):
                squares[j] = KEPT * squares[j] + each * other / time_s
        self._found = None

    @property
    def constants(self) -> Row:
        """The best constants; with some of them at zero, if that is the best without negative
        ones."""
        if self._found is None:
            found = [(self._explained(each), each) for each in self._solutions()]
            enough = AS_GOOD * max((explained for explained, _ in found), default=0.0)
            self._found = next((each for explained, each in found if explained >= enough), NONE)
        return self._found

    def _solutions(self) -> Iterator[Row]:
        for columns in SETS:
            solution = self._solved(columns)
            if solution is not None and min(solution) >= 0:
                yield solution

    def _explained(self, constants: Row) -> float:
        """How much smaller the sum of the squared errors is than with all constants at zero, for a
        solution of some set."""
        return sum(each * total for each, total in zip(constants, self._sums, strict=True))

    def _solved(self, columns: Sequence[int]) -> Row | None:
        """Gauss's elimination; a set that the steps do not tell apart has no solution."""
        scales = [math.sqrt(self._squares[i][i]) for i in columns]
        if not all(scales):
            return None
        rows = [
            [
                *(
                    self._squares[i][j] / (scale * other)
                    for j, other in zip(columns, scales, strict=True)
                ),
                self._sums[i] / scale,
            ]
            for i, scale in zip(columns, scales, strict=True)
        ]
        for at, row in enumerate(rows):
            if row[at] < LEAST_DETERMINANT:
                return None
            for below in rows[at + 1 :]:
                factor = below[at] / row[at]
                for j in range(at, len(row)):
                    below[j] -= factor * row[j]
        found = [0.0, 0.0, 0.0]
        values = list[float]()
        for at in reversed(range(len(rows))):
            *coefficients, total = rows[at]
            known = zip(coefficients[at + 1 :], reversed(values), strict=True)
            values.append((total - sum(factor * value for factor, value in known)) / rows[at][at])
        for column, scale, found_value in zip(columns, scales, reversed(values), strict=True):
            found[column] = found_value / scale
        return found[0], found[1], found[2]
