"""Requests on real engines in this process, and moves between them as the protocol makes them."""

import functools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.adapters.embedded_model.model_folder import EOS_ID
from controller.adapters.vllm.engine import VllmEngine
from controller.core.load.snapshot import blocks_for
from controller.core.migration.refusals import MoveRefusal, refusal_of
from controller.ports.engine import Frames, ReservedBlocks, SuspendedRequest

THOUGHTS = {"reasoning_start_str": "[think]", "reasoning_end_str": "[so]"}
BUFFER_BLOCKS = 4  # fewer than most moves need: a buffer is used again


@dataclass
class Told:
    """What a request's frontend was told, by all engines."""

    num_logprobs: int | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    """Of the prompt's tokens."""
    finish_reason: str | None = None
    prefill_stats: list[Any] = field(default_factory=list)


def check_alike(told: Told, alone: Told) -> None:
    assert (told.tokens, told.finish_reason) == (alone.tokens, alone.finish_reason)
    assert told.logprobs == alone.logprobs
    assert told.prompt_logprobs == alone.prompt_logprobs


def alike(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Log-probabilities, except for the last digit. On a GPU those of a request in a batch are up
    to 2e-6 off those of the request alone, moved or not, so they may be rounded differently."""
    return len(some) == len(others) and all(
        (ids, rank) == (other_ids, other_rank)
        and all(abs(a - b) < 1.5e-4 for a, b in zip(values, other_values, strict=True))
        for (ids, values, rank), (other_ids, other_values, other_rank) in zip(
            some, others, strict=True
        )
    )


_BESIDE = {"cache_salt", "lora_request", "trace_headers"}
"""The fields of a request that are not among its sampling parameters."""


def message(
    request_id: str,
    model_path: Path,
    num_prompt_tokens: int = 40,
    max_tokens: int = 60,
    *,
    rank: int = 0,
    arrival_s: float = 0.0,
    guided: dict[str, Any] | None = None,
    bad_words: Sequence[str] = (),
    prompt: Sequence[int] | None = None,
    thinking: bool = False,
    **sampling: Any,
) -> Frames:
    """A request as a frontend of vLLM sends it. With `thinking` its answer begins with a thought,
    as `THOUGHTS` marks it."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.serial_utils import MsgpackEncoder
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

    extra = {name: sampling.pop(name) for name in _BESIDE & sampling.keys()}
    params = SamplingParams(
        **{"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": guided is None} | sampling,
        structured_outputs=StructuredOutputsParams(**guided) if guided else None,
        bad_words=list(bad_words) or None,
    )
    params.update_from_generation_config({}, EOS_ID)
    params.update_from_tokenizer(tokenizer(model_path))
    if guided:
        params.structured_outputs._backend = "xgrammar"
        validate_xgrammar_grammar(params)
    dice = random.Random(request_id)
    prompt = list(prompt or (dice.randrange(300, 2000) for _ in range(num_prompt_tokens)))
    if thinking:
        start = THOUGHTS["reasoning_start_str"]
        prompt += tokenizer(model_path).encode(start, add_special_tokens=False)
    request = EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=arrival_s,
        lora_request=extra.get("lora_request"),
        cache_salt=extra.get("cache_salt"),
        trace_headers=extra.get("trace_headers"),
        data_parallel_rank=None,
        priority=-rank,
    )
    return [bytes(frame) for frame in MsgpackEncoder().encode(request)]


@functools.cache
def tokenizer(model_path: Path) -> Any:
    from vllm.tokenizers import get_tokenizer

    return get_tokenizer(str(model_path))


def evict(engine: VllmEngine, request_id: str) -> None:
    """Evicts as vLLM does when a running request needs a block."""
    request = engine._scheduler.requests[request_id]
    engine._scheduler.running.remove(request)
    engine._scheduler._preempt_request(request, time.monotonic())


def num_free(engine: VllmEngine) -> int:
    return engine.snapshot("i-0", 1).num_free_blocks


def copy_prefix(source: VllmEngine, to: VllmEngine, request: Any, num_tokens: int) -> int:
    """Copies into one engine what another one, or its own host cache, has of a prompt that was
    prepared for it. Returns the number of blocks."""
    assert source.prefixes is not None
    assert to.prefixes is not None
    reserved = to.prefixes.reserve("in", request, num_tokens)
    assert reserved is not None
    if not reserved.block_ids:
        return 0
    lent = source.prefixes.lend("out", reserved.names)
    frm, there = source.moves.blocks, to.moves.blocks
    outgoing, incoming = (each.buffer(len(reserved.block_ids)) for each in (frm, there))
    there.writable(incoming, len(lent))[:] = frm.gather(lent, outgoing)
    there.scatter(reserved.block_ids[: len(lent)], incoming)
    source.prefixes.take_back("out")
    to.prefixes.store("in", len(lent))
    return len(lent)


def settle(engine: VllmEngine) -> None:
    """Ends all copies to the host cache."""
    assert engine.host_cache is not None
    engine.host_cache.turn(lambda: (), wait=True)
    engine.host_cache.check()


class Readers:
    """The frontend of some engines: sends requests, gathers their outputs, moves requests."""

    def __init__(self, model_path: Path, *engines: VllmEngine) -> None:
        self.model_path = model_path
        self.engines = engines
        self.messages: dict[str, Frames] = {}
        self.prepared: dict[str, Any] = {}
        """The request, prepared for the engine to which it moves."""
        self.told: dict[str, Told] = {}
        self.at: dict[str, VllmEngine] = {}

    # -- without moves ---------------------------------------------------------------------

    def add(self, request_id: str, engine: VllmEngine | None = None, **options: Any) -> None:
        engine = engine or self.engines[0]
        self.messages[request_id] = message(request_id, self.model_path, **options)
        self.told[request_id] = Told(options.get("logprobs"))
        self.at[request_id] = engine
        engine.add(engine.prepare(self.messages[request_id], 0))

    def step(self, *engines: VllmEngine) -> list[str]:
        """One step of each engine (of all) that has work. Returns the requests that got tokens."""
        emitted = []
        for engine in engines or self.engines:
            for outputs in engine.step() if engine.has_work() else ():
                for out in outputs.body.outputs:
                    self._tell(out)
                    emitted.append(out.request_id)
        return emitted

    def run(self, request_id: str, num_tokens: int) -> None:
        """Runs until the request has this many tokens, or has finished."""
        told = self.told[request_id]
        while len(told.tokens) < num_tokens and told.finish_reason is None:
            self.step()

    def finish(self) -> dict[str, list[int]]:
        while any(engine.has_work() for engine in self.engines):
            self.step()
        return {request_id: told.tokens for request_id, told in self.told.items()}

    def _tell(self, out: Any) -> None:
        told = self.told[out.request_id]
        assert told.finish_reason is None, f"{out.request_id} goes on after its end"
        told.tokens += out.new_token_ids
        if told.num_logprobs is not None:
            # As many as the most that any request of its batch wants; its reader cuts them.
            ids, values, ranks = (array.tolist() for array in out.new_logprobs[:3])
            end = told.num_logprobs + 1
            told.logprobs += [
                (i[:end], [round(value, 4) for value in vs[:end]], rank)
                for i, vs, rank in zip(ids, values, ranks, strict=True)
            ]
        if out.new_prompt_logprobs_tensors is not None:
            of_prompt = out.new_prompt_logprobs_tensors.logprobs[:, 0].tolist()
            told.prompt_logprobs += [round(value, 4) for value in of_prompt]
        if out.prefill_stats is not None:
            told.prefill_stats.append(out.prefill_stats)
        if out.finish_reason is not None:
            told.finish_reason = str(out.finish_reason)

    # -- moves -----------------------------------------------------------------------------

    def move(
        self,
        request_id: str,
        to: VllmEngine,
        *,
        num_stages: int = 0,
        between: Callable[[], object] | None = None,
        corrupt: Callable[[memoryview], None] | None = None,
    ) -> MoveRefusal | ReservedBlocks | None:
        """`num_stages` copies while the request continues to decode, then the cut. Between two
        stages all engines make a step, or `between` is called. A move to the same engine is
        possible too: the id comes back to an engine that has just released it. Returns a refusal,
        what was reserved at the end, or None if the request ended on the way."""
        source = self.at[request_id]
        frm, there = source.moves, to.moves
        refusal = refusal_of(frm.facts(request_id))
        if refusal is not None:
            return refusal
        if source is to:
            return self._move_to_itself(request_id, corrupt)
        try:
            found = self._carry(request_id, to, num_stages, between or self.step, corrupt)
        finally:
            frm.unpin(request_id)
        if found is None:
            there.cancel(request_id)
        elif isinstance(found, ReservedBlocks):
            self.at[request_id] = to
        return found

    def _carry(
        self,
        request_id: str,
        to: VllmEngine,
        num_stages: int,
        between: Callable[[], object],
        corrupt: Callable[[memoryview], None] | None,
    ) -> MoveRefusal | ReservedBlocks | None:
        source = self.at[request_id]
        frm, there = source.moves, to.moves
        queued = frm.is_queued(request_id)
        reserved: ReservedBlocks | MoveRefusal | None = None
        num_copied = 0
        for _ in range(0 if queued else num_stages):
            pinned = frm.pin(request_id, num_copied)
            if pinned is None:
                return None
            num_blocks = num_copied + len(pinned.block_ids)
            if not num_blocks:
                break  # nothing to copy before the cut
            reserved = self._reserve(request_id, source, to, num_blocks, reserved)
            if not isinstance(reserved, ReservedBlocks):
                return reserved
            self._copy(source, to, pinned.block_ids, reserved, num_copied, corrupt)
            num_copied = num_blocks
            between()
            if request_id not in source._scheduler.requests:
                return None
        if reserved is None:
            num_tokens = source._scheduler.requests[request_id].num_tokens
            num_blocks = 0 if queued else blocks_for(num_tokens, to.block_size)
            reserved = self._reserve(request_id, source, to, num_blocks, None)
            if isinstance(reserved, MoveRefusal):
                return reserved
        self._compiled(request_id, to)
        suspended = self._suspend(request_id) if queued == frm.is_queued(request_id) else None
        if suspended is None:
            return None
        if not queued:
            reserved = there.extend(request_id, blocks_for(suspended.num_tokens, to.block_size))
            if reserved is None:
                frm.resume(request_id)
                return None
            rest = suspended.block_ids[num_copied:]
            self._copy(source, to, rest, reserved, num_copied, corrupt, suspended.tail_ids)
        there.commit(request_id, suspended.state)
        frm.release(request_id)
        return reserved

    def reserve(self, request_id: str, to: VllmEngine) -> None:
        """Reserves what the request needs now."""
        source = self.at[request_id]
        num_tokens = source._scheduler.requests[request_id].num_tokens
        num_blocks = blocks_for(num_tokens, to.block_size)
        found = self._reserve(request_id, source, to, num_blocks, None)
        assert isinstance(found, ReservedBlocks)

    def replay(self, request_id: str, to: VllmEngine) -> None:
        """The request's engine has died, and the request continues at `to`. Raises ValueError if it
        cannot."""
        self.at[request_id].abort([request_id])
        outputs = self.told[request_id].tokens
        self.prepared[request_id] = prepared = to.prepare(self.messages[request_id], 0)
        self._compiled(request_id, to)
        to.moves.reenter(prepared, outputs, to.moves.drawn_generator(prepared, len(outputs)))
        self.at[request_id] = to

    def _suspend(self, request_id: str) -> SuspendedRequest | None:
        """Suspends the request once a step in flight has given it its token."""
        source = self.at[request_id]
        suspended = source.moves.suspend(request_id)
        while suspended is None and request_id in source.moves._suspended:
            self.step(source)
            if request_id in source._scheduler.requests:
                suspended = source.moves.suspend(request_id)
        return suspended

    def _move_to_itself(self, request_id: str, corrupt: Any) -> ReservedBlocks | MoveRefusal | None:
        engine = self.at[request_id]
        moves, blocks = engine.moves, engine.moves.blocks
        if not engine.snapshot("i-0", 1).num_free_blocks and not moves.is_queued(request_id):
            return MoveRefusal.NO_BLOCKS  # it may need one for its next token
        outputs = moves.outputs(request_id)
        suspended = self._suspend(request_id)
        if suspended is None:
            return None
        ids = suspended.tail_ids + suspended.block_ids
        buffer = blocks.buffer(max(1, len(ids)))
        content = blocks.gather(ids, buffer)
        if corrupt is not None:
            corrupt(content)
        moves.release(request_id)
        num_blocks = blocks_for(suspended.num_tokens, engine.block_size)
        self.prepared[request_id] = prepared = engine.prepare(self.messages[request_id], 0)
        self._compiled(request_id, engine)
        reserved = moves.reserve(prepared, outputs, num_blocks if ids else 0)
        assert isinstance(reserved, ReservedBlocks), reserved
        # What the prefix cache says it has is left as it is, unless it shall be wrong.
        blocks.scatter((reserved.tail_ids + reserved.block_ids)[: len(ids)], buffer)
        moves.commit(request_id, suspended.state)
        return reserved

    def _reserve(
        self, request_id: str, source: VllmEngine, to: VllmEngine, num_blocks: int, held: Any
    ) -> ReservedBlocks | MoveRefusal | None:
        if held is not None:
            return to.moves.extend(request_id, num_blocks)
        self.prepared[request_id] = prepared = to.prepare(self.messages[request_id], 0)
        return to.moves.reserve(prepared, source.moves.outputs(request_id), num_blocks)

    def _compiled(self, request_id: str, to: VllmEngine) -> None:
        """Waits until the request's grammar is compiled, which nothing waits for at the commit."""
        compiling = to.moves.compiling(self.prepared[request_id])
        if compiling is not None:
            compiling.exception(timeout=60)

    def _copy(
        self,
        source: VllmEngine,
        to: VllmEngine,
        block_ids: Sequence[int],
        reserved: ReservedBlocks,
        first: int,
        corrupt: Callable[[memoryview], None] | None,
        tail_ids: Sequence[int] = (),
    ) -> None:
        """Copies the tail, and the blocks of the request from `first` on without those that the
        destination has."""
        num_cached = max(0, reserved.num_cached - first)
        pairs = list(zip(block_ids, reserved.block_ids[first:], strict=False))[num_cached:]
        if tail_ids:
            pairs += zip(tail_ids, reserved.tail_ids, strict=True)
        frm, there = source.moves.blocks, to.moves.blocks
        assert frm.block_bytes == there.block_bytes
        outgoing, incoming = frm.buffer(BUFFER_BLOCKS), there.buffer(BUFFER_BLOCKS)
        for start in range(0, len(pairs), BUFFER_BLOCKS):
            part = pairs[start : start + BUFFER_BLOCKS]
            sent = frm.gather([mine for mine, _ in part], outgoing)
            assert sent.nbytes == len(part) * frm.block_bytes
            arrived = there.writable(incoming, len(part))
            arrived[:] = sent
            if corrupt is not None:
                corrupt(arrived)
            there.scatter([theirs for _, theirs in part], incoming)
