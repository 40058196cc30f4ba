"""What an engine model does between two steps when a request moves to or from it.

The rules are the same as in `controller.ports.engine`, but only numbers of blocks and tokens are
modelled; the adapter handles the contents. A move affects other requests only by the blocks and the
places in the batch that it holds. A real engine's steps get a little slower while it copies (the
paper: 1.5 to 3.1%), which is not modelled."""

from collections.abc import Callable

from controller.core.emptying.relief import Candidate
from controller.core.load.snapshot import blocks_for
from controller.core.migration.refusals import MOVABLE, MoveFacts, MoveRefusal
from controller.core.value import value
from controller.model.engine_state import (
    EngineState,
    Hold,
    ModelRequest,
    Pin,
    RequestState,
    num_held,
)


@value
class MovingState:
    """What a destination has to know of a suspended request. `num_tokens`: the tokens of its prompt
    and outputs. `evicted` is set only if the request is queued."""

    num_tokens: int
    rank: int
    queued: bool
    evicted: bool


# One object serves all requests, because each status needs the facts of every request.
_LEAVING, _IN_PREFILL = MoveFacts(leaving=True), MoveFacts(in_prefill=True)


class ModelMoves:
    def __init__(self, engine_state: EngineState) -> None:
        self._state = engine_state

    def set_rank(self, request_id: str, rank: int) -> None:
        """Changes the rank of a request that is here and not arriving, if there is one."""
        engine_state = self._state
        request = engine_state.requests.get(request_id)
        if request is None:
            return
        if request.queued:
            engine_state.waiting.set_rank(request, rank)
        else:
            engine_state.change_rank(request, rank)

    # -- source --------------------------------------------------------------------------

    def facts(self, request_id: str) -> MoveFacts | None:
        request = self._state.requests.get(request_id)
        return None if request is None else self._facts(request)

    def is_queued(self, request_id: str) -> bool:
        """Whether the request is in the queue. Raises KeyError if it is not here."""
        return self._state.requests[request_id].queued

    def candidates(self, num_tokens_left: Callable[[str], int | None]) -> list[Candidate]:
        """All requests except the arriving ones. `num_tokens_left`: how many tokens a request may
        still emit, as far as a real scheduler would know; only the model knows when the request
        really ends."""
        return [
            Candidate(  # by position: with names it takes three times as long
                request_id,
                request.rank,
                request.num_tokens,
                request.num_blocks,
                self._num_freed_blocks(request) if request.cached else request.num_blocks,
                request.queued,
                request.evicted and request.queued,
                request.arrival_time_s,
                num_tokens_left(request_id),
                None,
                False,
                (),
                self._facts(request),
                0,
                request.num_tokens - request.num_prompt_tokens,
            )
            for request_id, request in self._state.requests.items()
        ]

    def pin(self, request_id: str, first_block: int) -> int | None:
        """Keeps the request's full blocks from `first_block` on in use until `unpin`.

        Returns how many full blocks the request has in all. Returns None while the request does not
        decode; the blocks that were pinned before stay pinned then."""
        engine_state = self._state
        request = engine_state.requests.get(request_id)
        if request is None or request.in_prefill or request_id in engine_state.suspended:
            return None
        num_full = request.num_computed // engine_state.config.block_size
        pin = engine_state.pins.setdefault(request_id, Pin())
        if request.segment_at is None:
            pin.add(first_block, num_full)
        else:
            before, pin.cached = pin.cached, [Hold(h.run, h.end_block) for h in request.cached]
            engine_state.pool.hold(pin.cached)
            engine_state.pool.give_back(0, before)
        return num_full

    def unpin(self, request_id: str) -> None:
        """Unpins all blocks that were pinned for the request, if any."""
        pin = self._state.pins.pop(request_id, None)
        if pin is not None:
            self._state.pool.give_back(pin.num_left, pin.cached)

    def suspend(self, request_id: str) -> MovingState | None:
        """Takes the request out of the batch or the queue; the request keeps its blocks and its
        place.

        Returns None while the request is in prefill. Raises KeyError if the request is not here,
        and ValueError if it is suspended already."""
        engine_state = self._state
        request = engine_state.requests[request_id]
        if self._is_suspended(request):
            raise ValueError(f"request {request_id} is suspended already")
        if request.queued:
            engine_state.waiting.set_aside(request)
        elif request.in_prefill:
            return None
        else:
            engine_state.running.remove(request)
            engine_state.suspended[request_id] = request
        return MovingState(request.num_tokens, request.rank, request.queued, request.evicted)

    def resume(self, request_id: str) -> None:
        """Puts a suspended request back into its place in the queue, or into the batch, where the
        next step serves it. Does nothing if the request is not suspended."""
        request = self._suspended(request_id)
        if request is None:
            return
        if request.queued:
            self._state.waiting.put_back(request)
        else:
            del self._state.suspended[request_id]
            self._state.put_in_front(request)

    def release(self, request_id: str) -> bool:
        """Forgets a suspended request, which another engine has now. Returns False if the request
        is not suspended."""
        if self._suspended(request_id) is None:
            return False
        self._state.forget(request_id)
        return True

    # -- destination ---------------------------------------------------------------------

    def reserve(
        self, request: ModelRequest, num_outputs: int, num_blocks: int
    ) -> int | MoveRefusal:
        """Reserves a place in the batch and `num_blocks` blocks for a request that has
        `num_outputs` outputs. With 0 blocks it reserves neither.

        Returns how many of the blocks, counted from the first, were in the prefix cache. The blocks
        that running prefills will still take are left free. The watermark is left free too, as on
        an admission, unless the engine has no other request in its batch."""
        engine_state = self._state
        try:
            state = engine_state.new_state(request)
        except ValueError:
            return MoveRefusal.NOT_TAKEN
        state.num_tokens += num_outputs
        if state.num_tokens >= state.end_tokens:
            return MoveRefusal.NOT_TAKEN
        if num_blocks:
            if engine_state.num_free_places <= 0:
                return MoveRefusal.NO_SLOT
            cached = engine_state.find_cached(state, num_blocks)
            num_missing = num_blocks - num_held(cached) + engine_state.pool.num_used_again(cached)
            if num_missing > self._num_free_for(state):
                return MoveRefusal.NO_BLOCKS
            engine_state.hold(state, cached)
            engine_state.take(state, num_blocks)
            engine_state.enter(state)
        engine_state.arriving[request.request_id] = state
        return state.num_cached

    def extend(self, request_id: str, num_blocks: int) -> bool:
        """Reserves more blocks, up to `num_blocks` in all, and leaves the same blocks free as
        `reserve` does. Returns False if too few blocks are free, or if the request is to be queued.
        Raises KeyError if the request is not arriving."""
        engine_state = self._state
        state = engine_state.arriving[request_id]
        num_missing = num_blocks - state.num_blocks
        if num_missing <= 0:
            return True
        if not state.num_blocks or num_missing > self._num_free_for(state):
            return False
        engine_state.take(state, num_blocks)
        return True

    def cancel(self, request_id: str) -> None:
        """Frees whatever was reserved for the request."""
        state = self._state.arriving.pop(request_id, None)
        if state is not None and state.num_blocks:
            self._state.leave(state)

    def commit(self, request_id: str, moved: MovingState) -> None:
        """The request belongs to this engine from now on. A queued request goes to its place in the
        queue. Any other request is in the next step, which computes only its next token; reserved
        blocks that it does not need for that are freed.

        Raises KeyError if the request is not arriving, and ValueError, without any change, if
        `moved` does not fit the reservation."""
        engine_state, bs = self._state, self._state.config.block_size
        state = engine_state.arriving[request_id]
        if not state.num_tokens <= moved.num_tokens < state.end_tokens:
            raise ValueError(f"request {request_id} cannot have {moved.num_tokens} tokens")
        if moved.queued != (state.num_blocks == 0):
            raise ValueError(f"request {request_id} is queued on one side only")
        if not moved.queued and blocks_for(moved.num_tokens - 1, bs) > state.num_blocks:
            raise ValueError(
                f"request {request_id} has {moved.num_tokens} tokens, but {state.num_blocks} "
                "blocks are kept for it"
            )
        del engine_state.arriving[request_id]
        engine_state.requests[request_id] = state
        state.num_tokens = moved.num_tokens
        if moved.queued:
            state.rank, state.evicted = moved.rank, moved.evicted
            engine_state.waiting.push(state)
            return
        engine_state.change_rank(state, moved.rank)
        num_excess = state.num_blocks - blocks_for(moved.num_tokens, bs)
        if num_excess > 0:
            engine_state.pool.give_back(num_excess, ())
            state.num_blocks -= num_excess
        state.num_slots = state.num_blocks * bs
        state.in_prefill = False
        state.num_computed = moved.num_tokens - 1
        state.num_new = 1
        if state.segment_at is not None:
            engine_state.remember_full(state, state.num_computed)
        engine_state.put_in_front(state)

    # ------------------------------------------------------------------------------------

    def _facts(self, request: RequestState) -> MoveFacts:
        if request.request_id in self._state.pins or self._is_suspended(request):
            return _LEAVING
        return _IN_PREFILL if request.in_prefill and not request.queued else MOVABLE

    def _num_freed_blocks(self, request: RequestState) -> int:
        """The number of blocks that no other request references; a pin of this request does not
        count."""
        pin = self._state.pins.get(request.request_id)
        pinned = {hold.run: hold.end_block for hold in pin.cached} if pin is not None else {}
        num_shared = first_block = 0
        for hold in request.cached:
            if len(hold.run.ends) > 1:
                others = list(hold.run.ends)
                others.remove(hold.end_block)
                if hold.run in pinned:
                    others.remove(pinned[hold.run])
                if others:
                    num_shared += max(0, min(hold.end_block, others[-1]) - first_block)
            first_block = hold.end_block
        return request.num_blocks - num_shared

    def _num_free_for(self, arriving: RequestState) -> int:
        engine_state = self._state
        num_others = (
            len(engine_state.running) + engine_state.num_kept_places - (arriving.num_blocks > 0)
        )
        watermark_blocks = engine_state.config.watermark_blocks if num_others else 0
        return engine_state.pool.num_free - watermark_blocks - engine_state.fill_blocks()

    def _is_suspended(self, request: RequestState) -> bool:
        if request.queued:
            return self._state.waiting.is_aside(request)
        return request.request_id in self._state.suspended

    def _suspended(self, request_id: str) -> RequestState | None:
        request = self._state.requests.get(request_id)
        return request if request is not None and self._is_suspended(request) else None
