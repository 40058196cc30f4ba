"""How long the steps of vLLM's scheduler take, and how many tokens of prompts each may compute so
that the requests that decode beside them do not wait for longer than they should.

vLLM reads its budget of tokens, `max_num_scheduled_tokens`, at the beginning of each `schedule`,
and gives it to the running requests in their order. So the budget is set before each step, with a
token for each request that decodes, and these requests go first: otherwise a prompt would take
their tokens. With asynchronous scheduling a step is scheduled while the one before it computes;
vLLM has counted that one's tokens as computed by then.

Touch points of vLLM: v1/core/sched/scheduler.py `running`, `waiting`, `schedule`, `requests`,
`max_num_scheduled_tokens`, `need_mamba_block_aligned_split`; v1/core/sched/request_queue.py
`_heap`; v1/core/sched/output.py `num_scheduled_tokens`, `total_num_scheduled_tokens`; v1/request.py
`is_prefill_chunk`, `num_tokens`, `num_computed_tokens`; config/scheduler.py
`enable_chunked_prefill`; config/speculative.py `num_speculative_tokens`."""

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from controller.adapters.vllm.scheduler_side import in_any_order
from controller.core.load.snapshot import NOT_MEASURED, PrefillSpeed
from controller.core.load.step_times import (
    ANY_TIME,
    LEAST_CHUNK_TOKENS,
    MAX_LOOKED_AT,
    UNKNOWN_CHUNK_TOKENS,
    StepTimes,
    default_limit_s,
)

COUNTED_EVERY = 8
"""Of the steps that only decode, the tokens of the requests are counted in every eighth: that takes
20 us for 256 requests."""
ANY = 1 << 30


class _Scheduled(NamedTuple):
    """A step that vLLM has scheduled. `prefill`: for each prompt (the tokens in this step, the
    tokens computed before). `num_context_tokens`: of the requests that decode; None: not
    counted."""

    scheduled: Any
    prefill: list[tuple[int, int]]
    num_decoding: int
    num_context_tokens: int | None
    began_s: float


class Steps:
    """`is_arriving`: whether a request is on its way here that will decode at once. `take_entered`:
    whether one has arrived since the last call. `num_expected`: called with the id of a queued
    request, says how many of its tokens the prefix cache had when it came."""

    def __init__(
        self,
        core: Any,
        is_arriving: Callable[[], bool],
        take_entered: Callable[[], bool],
        num_expected: Callable[[str], int],
    ) -> None:
        self.limit = ANY_TIME
        self._scheduler = core.scheduler
        self._is_arriving = is_arriving
        self._take_entered = take_entered
        self._num_expected = num_expected
        self._times = StepTimes()
        config = core.vllm_config
        self._most_tokens: int = self._scheduler.max_num_scheduled_tokens
        self._num_drafts = (
            config.speculative_config.num_speculative_tokens if config.speculative_config else 0
        )
        # Without chunks a prompt that is longer than the budget would never be computed.
        self._can_chunk: bool = config.scheduler_config.enable_chunked_prefill
        # vLLM ends chunks at the ends of blocks there, and leaves a prompt out of a step that has
        # no whole block for it.
        self._least_tokens = LEAST_CHUNK_TOKENS
        if self._scheduler.need_mamba_block_aligned_split:
            self._least_tokens = max(LEAST_CHUNK_TOKENS, config.cache_config.block_size)
        self._under_way: list[_Scheduled] = []
        """The steps that were scheduled, until their tokens are known; with asynchronous scheduling
        there are two."""
        self._ended_s = 0.0
        """When the tokens of the latest step were known."""
        self._num_uncounted = 0

    # -- before and after a step -----------------------------------------------------------

    def set_budget(self) -> None:
        """Sets the budget of the next step. Must be called before each `schedule`."""
        scheduler, budget = self._scheduler, self._most_tokens
        has_entered = self._take_entered()
        if self._is_limited and (scheduler.waiting or self._has_chunks()):
            budget = min(budget, self._budget(has_entered))
        scheduler.max_num_scheduled_tokens = budget

    def scheduled(self, output: Any) -> None:
        """Notes what a step computes. vLLM has counted its tokens as computed by now."""
        num_tokens: dict[str, int] = output.num_scheduled_tokens
        requests, prefill = self._scheduler.requests, list[tuple[int, int]]()
        num_context_tokens: int | None = None
        self._num_uncounted += 1
        chunks = output.total_num_scheduled_tokens > len(num_tokens) * (1 + self._num_drafts)
        if chunks or self._num_uncounted >= COUNTED_EVERY:
            num_context_tokens = self._num_uncounted = 0
            for request_id, number in num_tokens.items():
                num_computed = requests[request_id].num_computed_tokens
                if number > 1 + self._num_drafts:
                    prefill.append((number, num_computed - number))
                else:
                    num_context_tokens += num_computed
        num_decoding = len(num_tokens) - len(prefill)
        work = _Scheduled(output, prefill, num_decoding, num_context_tokens, time.perf_counter())
        self._under_way = [*self._under_way[-3:], work]

    def ended(self, output: Any) -> None:
        """Notes how long a step took whose tokens are known now. The engine began with it when it
        had been scheduled and the step before was over."""
        now_s, before_s = time.perf_counter(), self._ended_s
        self._ended_s = now_s
        for place, each in enumerate(self._under_way):
            if each.scheduled is output:
                del self._under_way[place]
                self._time(each, now_s - max(each.began_s, before_s))
                return

    # -- what is known ---------------------------------------------------------------------

    @property
    def decode_step_s(self) -> float:
        """How long steps take that only decode; 0: there was none."""
        return self._times.decode_step_s

    @property
    def _is_limited(self) -> bool:
        return self._can_chunk and not self.limit.is_any

    @property
    def own_limit_s(self) -> float:
        """How long a step may take while requests decode; 0: any time, or it is not known yet."""
        if not self._is_limited:
            return 0.0
        times = self._times
        default_s = default_limit_s(times.least_decode_s, times.decode_step_s)
        ranks = {-request.priority for request in self._scheduler.running}
        return self.limit.limit_s(ranks, default_s) or 0.0

    def prefill_speed(self) -> PrefillSpeed:
        """How fast the engine computes prompts beside the requests that decode."""
        costs, limit_s = self._times.costs, self.own_limit_s
        if costs is None:
            return NOT_MEASURED
        speed = costs.prefill_speed(self._most_tokens)
        decoding = self._decoding()
        if not decoding or not limit_s:
            return speed
        share = costs.prompt_share(limit_s, len(decoding), _num_context_tokens(decoding))
        return PrefillSpeed(speed.token_s / share, speed.pair_s / share)

    # --------------------------------------------------------------------------------------

    def _time(self, step: _Scheduled, time_s: float) -> None:
        if not step.prefill and step.num_decoding:
            self._times.decoded(time_s)
        if step.num_context_tokens is not None:
            self._times.stepped(step.prefill, step.num_decoding, step.num_context_tokens, time_s)

    def _has_chunks(self) -> bool:
        """Whether a prompt is half computed."""
        return any(request.is_prefill_chunk for request in self._scheduler.running)

    def _budget(self, has_entered: bool) -> int:
        """The first step of a request that moved here is a short one, as the request has already
        waited."""
        decoding = self._decoding()
        if not decoding and not self._is_arriving():
            return ANY
        running = self._scheduler.running
        if len(decoding) < len(running):
            running[:] = [*decoding, *(each for each in running if each.is_prefill_chunk)]
        num_tokens, limit_s = UNKNOWN_CHUNK_TOKENS, self.own_limit_s
        if has_entered:
            num_tokens = self._least_tokens
        elif (costs := self._times.costs) is not None and limit_s:
            num_tokens = costs.prompt_tokens_within(
                limit_s, self._prompts(), len(decoding), _num_context_tokens(decoding)
            )
        return len(decoding) * (1 + self._num_drafts) + max(num_tokens, self._least_tokens)

    def _decoding(self) -> list[Any]:
        return [each for each in self._scheduler.running if not each.is_prefill_chunk]

    def _prompts(self) -> Iterator[tuple[int, int]]:
        """What a step would compute next of prompts, in order: for each, (the tokens that are still
        to be computed, the tokens computed before)."""
        for request in self._scheduler.running:
            if request.is_prefill_chunk:
                num_computed = request.num_computed_tokens
                yield request.num_tokens - num_computed, num_computed
        queued: Sequence[Any] = in_any_order(self._scheduler.waiting)
        for request in heapq.nsmallest(MAX_LOOKED_AT, queued):
            num_found = self._num_expected(request.request_id)
            yield request.num_tokens - num_found, num_found
        yield ANY, 0


def _num_context_tokens(decoding: Sequence[Any]) -> int:
    """The tokens that these requests have in their next step."""
    num_computed: int = sum(request.num_computed_tokens for request in decoding)
    return num_computed + len(decoding)
