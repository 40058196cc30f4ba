"""One engine of a cluster whose KV memory is pooled: its batch, and how long each step takes.

Memory is the cluster's affair. The engine says how many blocks its next step takes, and counts what
each request holds by the steps that it has done: a step costs the same however large the batch is.
"""

from controller.core.load.snapshot import blocks_for
from controller.model.profile import LatencyProfile, ModelConfig
from controller.sim.bounds.pooled_future import Future
from controller.sim.request_run import RequestRun
from controller.sim.token_times import TokenTimes


class PooledRequest:
    """`num_tokens`: prompt and outputs that were known when it was admitted last. `num_left`: what
    its prefill still has to compute. `turn` is its place in the cluster's queue.

    While it decodes it has computed `offset` tokens more than its engine has done decode steps.
    """

    __slots__ = ("end_tokens", "engine", "num_left", "num_tokens", "offset", "run", "turn")

    def __init__(self, run: RequestRun, turn: int, num_tokens: int, end_tokens: int) -> None:
        self.run = run
        self.turn = turn
        self.num_tokens = num_tokens
        self.end_tokens = end_tokens
        self.num_left = num_tokens
        self.offset = 0
        self.engine: PooledEngine | None = None


class PooledEngine:
    def __init__(self, number: int, config: ModelConfig, profile: LatencyProfile) -> None:
        self.number = number
        self.times = TokenTimes()
        self.prefilling: dict[PooledRequest, None] = {}
        """In the order in which they were admitted, as `decoding`."""
        self.decoding: dict[PooledRequest, None] = {}
        self.num_steps = 0
        self.in_step = False
        self.num_held_blocks = 0
        self.peak_blocks = 0
        """The most that its requests will hold at once, or more; only an admission raises it."""
        self._config = config
        self._profile = profile
        self._whole_prompts = config.mode == "prefill-first"
        self._num_decodes = 0
        """Decode steps that are over."""
        self._num_context_tokens = 0
        """What the decoding requests have computed so far, together."""
        self._num_due = [0] * config.block_size
        """How many requests need another block for decode step d: by d modulo the block size."""
        self._ending: dict[int, list[PooledRequest]] = {}
        """By the number of decode steps after which they end."""
        self._chunks: dict[PooledRequest, int] = {}
        """Prompt tokens that the step under way computes."""
        self._decodes = False
        """Whether the step under way decodes."""

    @property
    def num_running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def admit(self, request: PooledRequest) -> None:
        request.engine = self
        request.num_left = request.num_tokens
        self.prefilling[request] = None

    # -- steps -----------------------------------------------------------------------------

    def num_blocks_wanted(self) -> int:
        """How many blocks the next step takes."""
        if not self.decoding or (self._whole_prompts and self.prefilling):
            return 0
        return self._num_due[self._num_decodes % self._config.block_size]

    def begin(self) -> float | None:
        """Begins a step and returns how long it takes; None if there is nothing to do."""
        num_decoding = len(self.decoding)
        if self.prefilling:
            self._pick_chunks(0 if self._whole_prompts else num_decoding)
            self._decodes = num_decoding > 0 and not self._whole_prompts
            prefill = [(num, r.num_tokens - r.num_left) for r, num in self._chunks.items()]
        elif num_decoding:
            self._decodes, prefill = True, []
        else:
            return None
        self.in_step = True
        if not self._decodes:
            return self._profile.step_time_s(prefill, 0, 0)
        return self._profile.step_time_s(
            prefill, num_decoding, self._num_context_tokens + num_decoding
        )

    def end(self, now_s: float) -> list[PooledRequest]:
        """Ends the step under way. Returns the requests that have their last token."""
        self.in_step = False
        self.num_steps += 1
        finished: list[PooledRequest] = []
        if self._decodes:
            self._decodes = False
            self._num_decodes += 1
            self._num_context_tokens += len(self.decoding)
            self.times.decoded(now_s)
            for request in self._ending.pop(self._num_decodes, ()):
                self.remove(request)
                finished.append(request)
        if self._chunks:
            for request, num in self._chunks.items():
                request.num_left -= num
                if not request.num_left:
                    del self.prefilling[request]
                    self._prefilled(request, now_s, finished)
            self._chunks.clear()
        return finished

    def _pick_chunks(self, num_decoding: int) -> None:
        """In order of admission: what the step's tokens suffice for, in parts or, where prompts are
        computed whole, at least the first one."""
        budget = self._config.max_num_batched_tokens - num_decoding
        for request in self.prefilling:
            if budget <= 0:
                break
            if self._whole_prompts:
                if self._chunks and request.num_left > budget:
                    break
                num = request.num_left
            else:
                num = min(request.num_left, budget)
            self._chunks[request] = num
            budget -= num

    def _prefilled(
        self, request: PooledRequest, now_s: float, finished: list[PooledRequest]
    ) -> None:
        self.times.prefilled(request.run, now_s)
        num_steps_left = request.end_tokens - request.num_tokens - 1
        if not num_steps_left:
            self.times.leave(request.run)
            finished.append(request)
            return
        request.offset = request.num_tokens - self._num_decodes
        self.decoding[request] = None
        self._num_context_tokens += request.num_tokens
        self._num_due[-request.offset % self._config.block_size] += 1
        self._ending.setdefault(self._num_decodes + num_steps_left, []).append(request)

    # -- requests --------------------------------------------------------------------------

    def remove(self, request: PooledRequest) -> None:
        """Takes out a decoding request: it has ended, or is evicted."""
        del self.decoding[request]
        self._num_context_tokens -= request.offset + self._num_decodes
        self._num_due[-request.offset % self._config.block_size] -= 1
        self.times.leave(request.run)

    def evict(self, request: PooledRequest, now_s: float) -> int:
        """Takes out a request, which keeps its tokens. Returns how many blocks that frees."""
        num_blocks = self.num_blocks(request)
        if request in self.decoding:
            request.num_tokens = request.offset + self._num_decodes + 1
            self.remove(request)
            self._ending[request.end_tokens - 1 - request.offset].remove(request)
        else:
            del self.prefilling[request]
            self._chunks.pop(request, None)
        request.engine = None
        request.run.evict(now_s)
        return num_blocks

    def num_blocks(self, request: PooledRequest) -> int:
        """What the request holds; with what the step under way has taken."""
        num_tokens = (
            request.offset + self._num_decodes + self._decodes
            if request in self.decoding
            else request.num_tokens
        )
        return blocks_for(num_tokens, self._config.block_size)

    # -- the future ------------------------------------------------------------------------

    def future(self, newcomer: PooledRequest | None = None) -> Future:
        """Of the requests here, and of a newcomer.

        Steps count from the one under way on, which is taken as over for all; where prompts are
        computed whole those that do that do not count. Elsewhere a request in its prefill may
        decode at once or only when all prompts before its own are computed: so it grows from now
        on, and leaves as late as it may, except where it is alone: it may then need all blocks that
        there are, and must not seem to need more. Without a newcomer no later future has a higher
        peak.
        """
        config, future = self._config, Future()
        num_done = self._num_decodes + self._decodes
        for r in self.decoding:
            num_computed = r.offset + num_done
            future.add(num_computed, r.end_tokens - 1 - num_computed)
        num_before, least_chunk = 0, config.max_num_batched_tokens - config.max_num_running + 1
        prefilling = (*self.prefilling, *([newcomer] if newcomer is not None else ()))
        is_late = not self._whole_prompts and len(prefilling) + len(self.decoding) > 1
        for r in prefilling:
            num_before += r.num_left - self._chunks.get(r, 0)
            num_late = -(-num_before // least_chunk) if is_late else 0
            future.add(r.num_tokens, r.end_tokens - 1 - r.num_tokens + num_late)
        return future
