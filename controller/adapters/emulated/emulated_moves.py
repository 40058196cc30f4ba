"""Live moves of an emulated engine's requests (`controller.ports.engine`).

The engine model keeps the state of moves; this module adds the blocks' contents and what else of
a request travels. The answer is a function of the prompt and needs no copy. But a request that
arrives with a wrong KV block answers wrongly from then on, without any other sign, like on a real
engine.

A block's bytes are a digest of all tokens up to its end (`BlockHashes`), so a block that is
swapped, stale, half written or of another request is found. The digests are also the keys under
which the prefix cache finds full blocks. `block_bytes` is the size of the profile's blocks, and
copying takes the time that those would need.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from controller.adapters.emulated import vllm_wire as wire
from controller.adapters.emulated.emulated_request import EmulatedRequest
from controller.core.emptying.relief import Candidate
from controller.core.load.snapshot import blocks_for
from controller.core.migration.refusals import MoveRefusal, why
from controller.model.engine_model import EngineModel
from controller.model.engine_state import ModelRequest
from controller.model.model_moves import MovingState
from controller.ports.engine import Frames, KvBlocks, PinnedBlocks, ReservedBlocks, SuspendedRequest

# -- blocks ----------------------------------------------------------------------------

DIGEST_BYTES = 16
NOTHING = bytes(DIGEST_BYTES)
"""The content of a block that was reserved and is not yet filled."""


class BlockHashes:
    """`hashes(i)` stands for the tokens of blocks 0 to i, prompt and answer, and for the salt:
    equal for two requests exactly if all of these are.

    Hashes are computed when they are asked for, and kept: 16 bytes a block.
    """

    def __init__(
        self, token_at: Callable[[int], int], block_size: int, salt: str | None = None
    ) -> None:
        self._token_at = token_at
        self._block_size = block_size
        self._salt = b"" if salt is None else b"+" + salt.encode()
        self._digests: list[bytes] = []

    def __call__(self, index: int) -> bytes:
        digests, size = self._digests, self._block_size
        while len(digests) <= index:
            first = len(digests) * size
            before = digests[-1] if digests else self._salt
            digests.append(self._digest(before, first, first + size))
        return digests[index]

    def up_to(self, num_tokens: int) -> bytes:
        """The hash of the last block that `num_tokens` tokens touch, filled with those alone."""
        index = (num_tokens - 1) // self._block_size
        before = self(index - 1) if index else self._salt
        return self._digest(before, index * self._block_size, num_tokens)

    def _digest(self, before: bytes, first: int, end: int) -> bytes:
        tokens = array("I", map(self._token_at, range(first, end)))
        return blake2b(before + tokens.tobytes(), digest_size=DIGEST_BYTES).digest()


class EmulatedBlocks:
    """A block gets a number only for a move, and a new one for each move. The engine's thread
    makes and drops blocks; any thread reads and fills them, by single operations of a dict."""

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self._contents: dict[int, bytes] = {}
        self._num_made = 0

    def buffer(self, num_blocks: int) -> bytearray:
        return bytearray(num_blocks * DIGEST_BYTES)

    def gather(self, block_ids: Sequence[int], into: bytearray) -> memoryview:
        """Raises KeyError: a block is not pinned, suspended or reserved any more."""
        filled = self.writable(into, len(block_ids))
        filled[:] = b"".join([self._contents[block_id] for block_id in block_ids])
        return filled

    def scatter(self, block_ids: Sequence[int], buffer: bytearray) -> None:
        """Raises KeyError: a block is not reserved any more."""
        for position, block_id in enumerate(block_ids):
            if block_id not in self._contents:
                raise KeyError(block_id)
            start = position * DIGEST_BYTES
            self._contents[block_id] = bytes(buffer[start : start + DIGEST_BYTES])

    def writable(self, buffer: bytearray, num_blocks: int) -> memoryview:
        return memoryview(buffer)[: num_blocks * DIGEST_BYTES]

    def make(self, contents: Sequence[bytes]) -> tuple[int, ...]:
        first = self._num_made
        self._num_made += len(contents)
        made = range(first, self._num_made)
        self._contents.update(zip(made, contents, strict=True))
        return tuple(made)

    def contents(self, block_ids: Sequence[int]) -> list[bytes]:
        return [self._contents[block_id] for block_id in block_ids]

    def drop(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            del self._contents[block_id]


# -- moves -----------------------------------------------------------------------------


class _Travelling(msgspec.Struct, array_like=True, frozen=True):
    """A suspended request's state. Monotonic clocks differ between hosts, so an event travels
    with its age in place of its time."""

    num_outputs: int
    rank: int
    queued: bool
    evicted: bool
    admitted_before: bool
    wrong_from: int | None
    news: list[wire.RequestEvent]
    prefill_stats: wire.PrefillStats | None


@dataclass(slots=True)
class _Outgoing:
    """Block numbers of a request on its source."""

    live: EmulatedRequest
    hashes: BlockHashes
    pinned: tuple[int, ...] = ()
    suspended: tuple[int, ...] = ()


@dataclass(slots=True)
class _Arriving:
    live: EmulatedRequest
    hashes: BlockHashes
    block_ids: tuple[int, ...]
    num_cached: int


class EmulatedMoves:
    """`live` is the engine's, by id. `on_gone` is called when a request has left the batch."""

    def __init__(
        self, model: EngineModel, live: dict[str, EmulatedRequest], on_gone: Callable[[], None]
    ) -> None:
        profile, block_size = model.profile, model.config.block_size
        self._blocks = EmulatedBlocks(block_size * profile.kv_bytes_per_token)
        self.blocks: KvBlocks = self._blocks
        self.fingerprint = f"emulated {profile.name} {block_size} {profile.kv_bytes_per_token}"
        self._model = model
        self.set_rank = model.moves.set_rank
        self.facts, self.is_queued = model.moves.facts, model.moves.is_queued
        self._live = live
        self._on_gone = on_gone
        self._block_size = block_size
        self._outgoing: dict[str, _Outgoing] = {}
        self._arriving: dict[str, _Arriving] = {}
        self._decoder = msgspec.msgpack.Decoder(_Travelling)

    # -- source --------------------------------------------------------------------------

    def candidates(self) -> Sequence[Candidate]:
        return self._model.moves.candidates(self._num_tokens_left)

    def outputs(self, request_id: str) -> Sequence[int]:
        """Raises KeyError: the request is not here."""
        live = self._live[request_id]
        return [live.output(position) for position in range(live.num_emitted)]

    def pin(self, request_id: str, first_block: int) -> PinnedBlocks | None:
        num_full = self._model.moves.pin(request_id, first_block)
        if num_full is None:
            return None
        live, out = self._live[request_id], self._outgoing_of(request_id)
        block_ids = self._blocks.make([out.hashes(i) for i in range(first_block, num_full)])
        out.pinned += block_ids
        return PinnedBlocks(block_ids, live.num_tokens)

    def unpin(self, request_id: str) -> None:
        self._model.moves.unpin(request_id)
        out = self._outgoing.get(request_id)
        if out is not None:
            self._blocks.drop(out.pinned)
            out.pinned = ()
            self._forget_if_done(request_id, out)

    def suspend(self, request_id: str) -> SuspendedRequest | None:
        moved = self._model.moves.suspend(request_id)
        if moved is None:
            return None
        live, out = self._live[request_id], self._outgoing_of(request_id)
        if not moved.queued:
            out.suspended = self._blocks.make(self._contents(out.hashes, moved.num_tokens - 1))
        now_s = time.monotonic()
        state = _Travelling(
            live.num_emitted,
            moved.rank,
            moved.queued,
            moved.evicted,
            live.admitted_before,
            live.wrong_from,
            [wire.RequestEvent(event.type, now_s - event.timestamp) for event in live.news],
            live.prefill_stats,
        )
        self._on_gone()
        return SuspendedRequest(out.suspended, [msgspec.msgpack.encode(state)], live.num_tokens)

    def resume(self, request_id: str) -> None:
        """Does nothing for a request that is not suspended: it was aborted meanwhile."""
        self._model.moves.resume(request_id)
        self.forget_suspended(request_id)

    def release(self, request_id: str) -> None:
        """Does nothing for a request that is not suspended: it was aborted meanwhile."""
        if self._model.moves.release(request_id):
            self.forget_suspended(request_id)
            del self._live[request_id]
            self._on_gone()

    def forget_suspended(self, request_id: str) -> None:
        """Drops the blocks of a request that was resumed, released or aborted."""
        out = self._outgoing.get(request_id)
        if out is not None:
            self._blocks.drop(out.suspended)
            out.suspended = ()
            self._forget_if_done(request_id, out)

    # -- destination ---------------------------------------------------------------------

    def compiling(self, prepared: EmulatedRequest) -> None:
        """An emulated answer follows no grammar, so there is nothing to compile."""

    def reserve(
        self, prepared: EmulatedRequest, output_token_ids: Sequence[int], num_blocks: int
    ) -> ReservedBlocks | MoveRefusal:
        live, request = prepared, prepared.request
        hashes = block_hashes(live, self._block_size)
        live.num_emitted = len(output_token_ids)
        live.wrong_from = next(
            (i for i, token in enumerate(output_token_ids) if token != live.answer.token(i)), None
        )
        num_cached = self._model.moves.reserve(
            model_request(live, hashes), live.num_emitted, num_blocks
        )
        if isinstance(num_cached, MoveRefusal):
            return num_cached
        cached = [hashes(index) for index in range(num_cached)]
        block_ids = self._blocks.make(cached + [NOTHING] * (num_blocks - num_cached))
        self._arriving[request.request_id] = _Arriving(live, hashes, block_ids, num_cached)
        return ReservedBlocks(block_ids, num_cached)

    def extend(self, request_id: str, num_blocks: int) -> ReservedBlocks | None:
        """Raises KeyError: nothing is reserved for the request."""
        arriving = self._arriving[request_id]
        if not self._model.moves.extend(request_id, num_blocks):
            return None
        num_missing = max(0, num_blocks - len(arriving.block_ids))
        arriving.block_ids += self._blocks.make([NOTHING] * num_missing)
        return ReservedBlocks(arriving.block_ids, arriving.num_cached)

    def cancel(self, request_id: str) -> None:
        self._model.moves.cancel(request_id)
        arriving = self._arriving.pop(request_id, None)
        if arriving is not None:
            self._blocks.drop(arriving.block_ids)

    def commit(self, request_id: str, state: Frames) -> None:
        """Raises KeyError: nothing is reserved for the request."""
        arriving = self._arriving[request_id]
        live = arriving.live
        moved = self._decoded(state)
        num_tokens = len(live.prompt) + moved.num_outputs
        live.wrong_from = moved.wrong_from  # before the model asks for hashes
        self._model.moves.commit(
            request_id, MovingState(num_tokens, moved.rank, moved.queued, moved.evicted)
        )
        del self._arriving[request_id]
        live.num_emitted = moved.num_outputs
        live.admitted_before = moved.admitted_before
        now_s = time.monotonic()
        live.news = [wire.RequestEvent(event.type, now_s - event.timestamp) for event in moved.news]
        live.prefill_stats = moved.prefill_stats
        if not moved.queued:
            expected = self._contents(arriving.hashes, num_tokens - 1)
            found = self._blocks.contents(arriving.block_ids[: len(expected)])
            if found != expected and live.wrong_from is None:
                live.wrong_from = live.num_emitted
        self._blocks.drop(arriving.block_ids)
        self._live[request_id] = live

    # -- replay --------------------------------------------------------------------------

    def drawn_generator(self, prepared: EmulatedRequest, num_output_tokens: int) -> None:
        """An emulated answer is drawn by nobody."""

    def reenter(
        self, prepared: EmulatedRequest, output_token_ids: Sequence[int], generator: None
    ) -> None:
        assert generator is None
        found = self.reserve(prepared, output_token_ids, num_blocks=0)
        if isinstance(found, MoveRefusal):
            raise ValueError(why(found))
        live = self._arriving.pop(prepared.request.request_id).live
        moved = MovingState(live.num_tokens, -live.request.priority, queued=True, evicted=True)
        self._model.moves.commit(live.request.request_id, moved)
        live.admitted_before = True
        self._live[live.request.request_id] = live

    def drop(self, request_id: str) -> None:
        self._model.abort([request_id])
        self.forget_suspended(request_id)
        self._live.pop(request_id, None)
        self._on_gone()

    # ------------------------------------------------------------------------------------

    def _num_tokens_left(self, request_id: str) -> int:
        """How many more tokens the request may get, by the client's limit and the model's."""
        live = self._live[request_id]
        num_left = self._model.config.max_model_len - live.num_tokens
        params = live.request.sampling_params
        limit = params.max_tokens if params else None
        return num_left if limit is None else min(num_left, limit - live.num_emitted)

    def _decoded(self, state: Frames) -> _Travelling:
        try:
            (frame,) = state
            return self._decoder.decode(frame)
        except msgspec.DecodeError as error:
            raise ValueError(f"not the state of an emulated request: {error}") from error

    def _contents(self, hashes: BlockHashes, num_computed: int) -> list[bytes]:
        """Contents of the blocks that hold the first `num_computed` tokens; the last block may be
        partly filled."""
        num_full = num_computed // self._block_size
        contents = [hashes(index) for index in range(num_full)]
        if blocks_for(num_computed, self._block_size) > num_full:
            contents.append(hashes.up_to(num_computed))
        return contents

    def _outgoing_of(self, request_id: str) -> _Outgoing:
        live = self._live[request_id]
        out = self._outgoing.get(request_id)
        if out is None:
            out = self._outgoing[request_id] = _Outgoing(live, block_hashes(live, self._block_size))
        elif out.live is not live:  # the request left and came back; its old pins are still there
            out.live, out.hashes = live, block_hashes(live, self._block_size)
        return out

    def _forget_if_done(self, request_id: str, out: _Outgoing) -> None:
        if not out.pinned and not out.suspended:
            del self._outgoing[request_id]


def block_hashes(live: EmulatedRequest, block_size: int) -> BlockHashes:
    return BlockHashes(live.token_at, block_size, live.request.cache_salt)


def model_request(live: EmulatedRequest, hashes: BlockHashes) -> ModelRequest:
    return ModelRequest(
        request_id=live.request.request_id,
        num_prompt_tokens=len(live.prompt),
        max_output_tokens=live.answer.num_tokens,
        rank=-live.request.priority,
        arrival_time_s=live.request.arrival_time,
        block_hash=hashes,
    )
