"""The inference engine as the llumlet sees it (`Engine`); what the engine offers so that its
requests can move live to the engine of another instance (`EngineMoves`); and the copy of KV blocks
to that instance, which does not run on the engine's thread (`KvTransfer`)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from controller.core.emptying.relief import Candidate
from controller.core.fleet.adapters import Adapter
from controller.core.load.snapshot import InstanceRef, InstanceSnapshot
from controller.core.load.step_times import StepLimit
from controller.core.migration.move_records import StageRecord
from controller.core.migration.refusals import MoveFacts, MoveRefusal

Frames = Sequence[bytes | memoryview]
"""Encoded bytes that the llumlet sends on without reading them: an engine's requests, outputs and
states."""


@dataclass(frozen=True, slots=True)
class EmittedTokens:
    """What a step produced for one request: the number of tokens, and how the request ended, if it
    did.

    `finish_reason` is vLLM's word: stop, length, abort or error."""

    request_id: str
    num_tokens: int
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """What one step produced for one frontend. `body` is the engine's own object. If there are no
    tokens, `body` has only the scheduler's statistics, which any frontend may read."""

    frontend_index: int
    emitted: tuple[EmittedTokens, ...]
    body: Any


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """A request entered the batch, or lost its blocks because memory was short.

    `num_cached_tokens`: how many of its tokens came from the prefix cache on admission.
    `continued`: the request had outputs, which are computed again in chunks, and its next tokens
    may differ from those that it would have got: in this engine that leaves another state than the
    steps that made them, or the request has a seed and the engine drafts."""

    kind: Literal["admitted", "evicted"]
    request_id: str
    time_s: float
    """Seconds since the epoch."""
    num_tokens: int
    """The number of tokens in the request's prompt and outputs at that moment."""
    num_cached_tokens: int = 0
    continued: bool = False


@dataclass(frozen=True, slots=True)
class Emulation:
    """How well an emulated engine has kept to the times of its profile since it began.

    `profile_time_s`: the time that its steps should have taken. `wall_time_s`: the time that they
    took, including the time between steps that followed each other. `num_late_steps`: the number of
    steps that ended more than 5% late."""

    profile_time_s: float = 0.0
    wall_time_s: float = 0.0
    num_late_steps: int = 0


StepPhase = Literal["begin", "after-schedule", "after-update", "before-return"]
"""Moments of a step: before anything is decided; after the scheduler has chosen which requests run;
after it has recorded the tokens; before the outputs go to their readers."""
STEP_PHASES: tuple[StepPhase, ...] = ("begin", "after-schedule", "after-update", "before-return")


class Engine(Protocol):
    """The engine of one instance. `prepare`, `encode` and `encode_one` may be called from any
    thread, and so may `encode_rest`. All other methods may be called only from the thread that
    built the engine, between steps."""

    max_model_len: int
    num_gpu_blocks: int
    block_size: int
    max_num_running: int
    """The number of requests that fit into the batch."""
    supported_tasks: tuple[str, ...]
    on_phase: Callable[[StepPhase], None]
    """Called within `step`, on its thread, at after-schedule and at after-update. Whoever steps the
    engine may replace it. It may take a snapshot of the engine, but call nothing else of it."""

    @property
    def emulation(self) -> Emulation | None:
        """How well the engine keeps its profile's time; None if the engine is a real one, which
        computes."""

    @property
    def moves(self) -> "EngineMoves": ...

    @property
    def prefixes(self) -> "EnginePrefixes | None":
        """None if the engine cannot copy cached prefixes."""

    def limit_steps(self, limit: StepLimit) -> None:
        """How long steps may take from now on while requests decode: a step computes only so much
        of prompts. At first, they may take any time."""

    def prepare(self, frames: Frames, frontend_index: int) -> Any:
        """Decodes a request. Raises ValueError if this engine cannot take it."""

    def add(self, prepared: Any) -> None:
        """Takes the request in. Raises ValueError if its LoRA adapter is not loaded."""

    def load_adapter(self, adapter: Adapter, folder: str) -> None:
        """Loads a LoRA adapter. `folder` has its files, which nobody changes while the adapter is
        loaded. Raises ValueError if the engine cannot take it."""

    def unload_adapter(self, number: int) -> bool:
        """Unloads a LoRA adapter. Returns False, and does nothing, if requests use it."""

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forgets these requests and frees their blocks. Unknown ids are ignored."""

    def has_work(self) -> bool: ...

    def step(self) -> Sequence[StepOutputs]: ...

    def encode(self, body: Any) -> Frames: ...

    def encode_one(self, body: Any, request_id: str) -> Frames:
        """Encodes the part of a step's outputs that belongs to one request. May be called from any
        thread."""

    def encode_rest(self) -> Frames:
        """Encodes outputs without any request, whose statistics say that nothing runs or waits. May
        be called from any thread."""

    def take_events(self) -> Sequence[EngineEvent]:
        """The events since the last call, in order."""

    def snapshot(self, instance_id: str, incarnation: int) -> InstanceSnapshot: ...

    def take_cache_changes(self) -> Mapping[int, bool]:
        """The prefixes that the prefix cache has gained (True) or lost (False) since the last call,
        by name (`core/load/cached_prefixes.py`)."""

    def take_host_cache_changes(self) -> Mapping[int, bool] | None:
        """Like `take_cache_changes`, for the host cache; None if there is none."""

    def shutdown(self) -> None: ...


EngineFactory = Callable[[Callable[[str], None]], Engine]
"""Builds an engine on the calling thread. The factory calls its argument to report its progress."""


# -- moves -----------------------------------------------------------------------------


class KvBlocks(Protocol):
    """The KV cache as numbered blocks of opaque bytes."""

    block_bytes: int
    """The size of one block, over all layers and all ranks of the engine."""

    def buffer(self, num_blocks: int) -> Any:
        """Contiguous memory for `num_blocks` blocks, which can be used repeatedly."""

    def gather(self, block_ids: Sequence[int], into: Any) -> memoryview:
        """Copies the blocks, one after the other, into a buffer, and returns the part of the buffer
        that it has filled. The view is valid until the buffer is used again."""

    def scatter(self, block_ids: Sequence[int], buffer: Any) -> None:
        """Copies the first blocks in the buffer to the cache's blocks `block_ids`."""

    def writable(self, buffer: Any, num_blocks: int) -> memoryview:
        """The memory of the first `num_blocks` blocks of a buffer, for a receiver to fill."""


@dataclass(frozen=True, slots=True)
class PinnedBlocks:
    """The full blocks of a running request, from the given index on. They stay unchanged until
    `unpin`, whatever happens to the request."""

    block_ids: tuple[int, ...]
    num_tokens: int
    """The tokens of the request's prompt and outputs when the blocks were pinned."""
    num_tail: int = 0
    """How many blocks the request's tail will have (`SuspendedRequest.tail_ids`)."""


@dataclass(frozen=True, slots=True)
class SuspendedRequest:
    """A request that was taken out of the batch or the queue. Its blocks stay unchanged until it is
    released or resumed."""

    block_ids: tuple[int, ...]
    """The blocks of full attention that hold computed tokens, in the request's order; empty for a
    queued request."""
    state: Frames
    """What the destination needs besides the original request: outputs, generator, rank."""
    num_tokens: int
    tail_ids: tuple[int, ...] = ()
    """The blocks of the other layers (sliding windows, states), which no earlier stage has copied.
    For all requests of engines with one fingerprint these are the same number."""


@dataclass(frozen=True, slots=True)
class ReservedBlocks:
    """The blocks reserved for an arriving request. `block_ids`: all of full attention that are
    reserved so far. The first `num_cached` of them already have the right content, from the prefix
    cache. `tail_ids`: the places of the source's `SuspendedRequest.tail_ids`."""

    block_ids: tuple[int, ...]
    num_cached: int
    tail_ids: tuple[int, ...] = ()


class EngineMoves(Protocol):
    """All methods are called between two steps on the thread that built the engine, except
    `compiling`, `drawn_generator` and the methods of `KvBlocks`, which any thread may call for
    blocks that are pinned or reserved for it.

    On the source a move pins blocks stage by stage while the request decodes on, suspends it at a
    step boundary, and then either releases it (the destination has it) or resumes it. On the
    destination a move reserves blocks stage by stage, and commits or cancels the reservation.
    """

    fingerprint: str
    """Says what a block of this engine means: the model, the identity of the weights, dtype, block
    size, layout, parallel size, model runner. A text of named parts, such as "ranks=2";
    `refusal_between` compares the fingerprints of two engines. Empty if the engine moves no
    requests."""

    @property
    def blocks(self) -> KvBlocks: ...

    def set_rank(self, request_id: str, rank: int) -> None:
        """Changes the scheduling priority of a request in any state, if it is here."""

    # -- source --------------------------------------------------------------------------

    def facts(self, request_id: str) -> MoveFacts | None:
        """The facts that may keep the request from moving; None if the request is not here.
        `refusal_of` decides by these facts."""

    def is_queued(self, request_id: str) -> bool:
        """Whether the request waits and holds no blocks, so that it moves without a copy."""

    def candidates(self) -> Sequence[Candidate]:
        """All requests that run or wait here, each with its facts. Requests that are leaving are
        included, arriving ones are not. `emptying.relieving.known` adds what only the instance's
        process knows, and the reason why a request cannot move."""

    def outputs(self, request_id: str) -> Sequence[int]:
        """The request's output tokens so far."""

    def pin(self, request_id: str, first_block: int) -> PinnedBlocks | None:
        """Pins the request's full blocks from `first_block` on, in addition to the blocks that were
        pinned before. Returns None if the request does not run any more; blocks that were pinned
        before stay pinned."""

    def unpin(self, request_id: str) -> None:
        """Unpins all blocks that were pinned for the request, if any."""

    def suspend(self, request_id: str) -> SuspendedRequest | None:
        """Takes the request out of the batch, or out of the queue. Returns None if a step that
        includes the request is under way; then the caller tries again after that step. Raises
        KeyError if the request is gone."""

    def resume(self, request_id: str) -> None:
        """Puts a suspended request back into the batch, or into its place in the queue."""

    def release(self, request_id: str) -> None:
        """Forgets a suspended request and frees its blocks. The request gets no further output."""

    # -- destination ---------------------------------------------------------------------

    def compiling(self, prepared: Any) -> Future[Any] | None:
        """The compiling of the request's grammar, which `Engine.prepare` began; None for a request
        without a grammar. Until it is done, `commit` refuses a request that has outputs. The caller
        may cancel it if the request does not come."""

    def reserve(
        self, prepared: Any, output_token_ids: Sequence[int], num_blocks: int
    ) -> ReservedBlocks | MoveRefusal:
        """Reserves a place in the batch and `num_blocks` blocks for a request that `Engine.prepare`
        decoded. With 0 blocks it reserves neither, because the request arrives queued. If it
        refuses, nothing is reserved."""

    def extend(self, request_id: str, num_blocks: int) -> ReservedBlocks | None:
        """Reserves more blocks, up to `num_blocks` in all. Returns None if too few are free; the
        earlier reservation stays."""

    def cancel(self, request_id: str) -> None:
        """Frees whatever was reserved for the request."""

    def commit(self, request_id: str, state: Frames) -> None:
        """The request belongs to this engine from now on, and the next step serves it unless it is
        queued. Raises ValueError if the state does not fit; the reservation stays then."""

    def drop(self, request_id: str) -> None:
        """Forgets a committed request because another instance owns it. The request gets no further
        output."""

    # -- replay --------------------------------------------------------------------------

    def drawn_generator(self, prepared: Any, num_output_tokens: int) -> Any:
        """A seeded request's random generator as it is after `num_output_tokens` tokens; None for
        other requests. Any thread may call this, and it may take long."""

    def reenter(self, prepared: Any, output_token_ids: Sequence[int], generator: Any) -> None:
        """The request belongs to this engine from now on. The request counts as evicted: it has
        these outputs (at least one), but no computed tokens. Raises ValueError, with the reason as
        a sentence, if its grammar is not compiled or the engine does not take the request."""


# -- cached prefixes -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReservedPrefix:
    """`block_ids`: the blocks that are reserved for the part of a prefix that the engine lacks.
    `names`: by these an engine of the same fingerprint finds the same blocks in its cache."""

    block_ids: tuple[int, ...]
    names: bytes


class EnginePrefixes(Protocol):
    """Prefixes of prompts that are copied from the cache of one engine to that of another one. All
    methods are called between two steps on the thread that built the engine. `key`: names a copy;
    no other copy of the engine has the same key."""

    def reserve(self, key: str, prepared: Any, num_tokens: int) -> ReservedPrefix | None:
        """At the destination: holds what the cache has of the first `num_tokens` tokens of a
        request that `Engine.prepare` decoded, and reserves blocks for the rest. If nothing is
        lacking, nothing is held and there are no block ids. Returns None, and holds nothing, if too
        few blocks are free."""

    def prompt(self, frames: Frames) -> Any | None:
        """Decodes a request of which only the prompt is of use, for `names` and `reserve`. Returns
        None if no other engine can use what is cached of it: it has an adapter or media. Raises
        ValueError for a request that this engine cannot take. May be called on any thread."""

    def names(self, prepared: Any) -> Sequence[bytes]:
        """The names of the blocks of the whole prompt, without the block of its last token. Two
        blocks have the same name if all tokens up to their ends are the same."""

    def store(self, key: str, num_blocks: int) -> None:
        """At the destination: caches the first `num_blocks` of the reserved blocks, which hold the
        right content now. Frees all that was held; the cached blocks can still be found."""

    def lend(self, key: str, names: bytes) -> tuple[int, ...]:
        """At the source: holds the first of these blocks, as far as the cache has all of them and
        they are computed, and those after them that the host cache has. They stay unchanged until
        `take_back`. Returns their numbers."""

    def take_back(self, key: str) -> None:
        """At the source: frees the blocks, which can still be found in the cache."""


# -- the copy of KV blocks -------------------------------------------------------------------------


Peer = InstanceRef
StageCopy = StageRecord


class TransferError(Exception):
    """The bytes did not arrive, or the copy was cancelled."""


class KvTransfer(Protocol):
    """Copies blocks between instances, and from an instance's own host cache. It is used from the
    event loop's thread only; other threads do the work, in slices.

    Both sides give a stage the same `stage_id`, and its blocks in the same order. The future of a
    copy is done only when nothing touches its blocks any more. If the copy fails, the future raises
    TransferError and no other error. Each direction between two instances is one link, which sends
    its stages one after the other, in the order of the calls."""

    max_bytes_per_s: float | None
    """The limit of each link; None means no limit. May be changed at any time."""

    def start(self, blocks: KvBlocks, tell: Callable[[Peer, Frames], None]) -> None:
        """Starts the transfer; must be called first. `tell` sends a small message to the transfer
        of a peer, which gets it by `told`."""

    def told(self, peer: Peer, frames: Frames) -> None: ...

    def warm_up(self, peer: Peer) -> None:
        """Opens the link to a destination if it is not open yet; returns at once."""

    def send(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]: ...

    def receive(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        """Expects a stage. When this returns, the peer may begin to send. The peer sends at most as
        many blocks as `block_ids` has, and they fill the first of these blocks, because the size of
        a final stage is not known beforehand."""

    def load(
        self, stage_id: str, from_ids: Sequence[int], to_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        """Copies blocks that this engine has lent, some of them from its host cache, to as many
        blocks that it has reserved. Loads are done one after the other, beside the links."""

    def cancel(self, stage_id: str) -> None:
        """Cancels a send, receive or load, if there is one. Its future fails as soon as its blocks
        are not used any more."""

    def stalled_s(self, peer: Peer) -> float:
        """How long this destination has taken none of the bytes that are ready for it. It is 0
        while the destination takes bytes, while the limit or this side delays them, and while there
        is nothing to send."""

    def forget(self, peer: Peer) -> None:
        """The peer is dead: all copies from it and to it fail."""

    async def close(self) -> None: ...
