"""vLLM's `EngineCore` in this process, as an Engine port: made, warmed up, watched and stepped. It
is stock vLLM, without a patch. This module also makes the requests with which `llumctl profile`
measures it.

Touch points of vLLM: v1/engine/core.py `EngineCore`, `executor_fail_callback`,
`preprocess_add_request`, `step_fn`, `post_step`, `abort_requests`; v1/engine/__init__.py
`EngineCoreOutputs`; v1/metrics/stats.py `SchedulerStats`; v1/serial_utils.py `MsgpackEncoder`,
`MsgpackDecoder`; v1/core/sched/scheduler.py `requests`, `schedule`, `update_from_output`,
`_preempt_request`; v1/core/sched/output.py `scheduled_new_reqs`, `scheduled_cached_reqs`;
config/speculative.py `num_speculative_tokens`;
v1/core/kv_cache_manager.py `block_pool`, `get_block_ids`, `watermark_blocks`; config/scheduler.py
`max_num_seqs`, `max_num_batched_tokens`, `long_prefill_token_threshold`; config/model.py
`get_vocab_size`; v1/executor/abstract.py `collective_rpc`;
v1/executor/multiproc_executor.py `is_failed`; v1/structured_output/__init__.py
`grammar_init`, `backend`; config/vllm.py `structured_outputs_config`;
config/structured_outputs.py `backend`."""

import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from controller.adapters.vllm import process_setup
from controller.adapters.vllm.cache_contents import CacheContents
from controller.adapters.vllm.grammar_guard import GrammarGuard
from controller.adapters.vllm.lora import EngineAdapters
from controller.adapters.vllm.steps import Steps
from controller.core.fleet.adapters import Adapter
from controller.core.load.snapshot import InstanceSnapshot, PrefillSpeed, QueueHead
from controller.core.load.step_times import StepLimit
from controller.ports.engine import EmittedTokens, EngineEvent, Frames, StepOutputs, StepPhase
from controller.runtime.messages.members import IMPORTING

if TYPE_CHECKING:
    from controller.adapters.vllm.host_cache import HostCache

log = logging.getLogger(__name__)

# The backend that vLLM uses if neither the request nor the configuration names one.
USUAL_BACKEND = "xgrammar"
MAX_TRIAL_TOKEN_ID = 2048
"""The largest token id in a trial request. Large vocabularies have their special tokens at the end,
and the token of an image would need an image."""


class VllmEngine:
    """An engine of vLLM. If it cannot start, it raises the same errors as vLLM (ValueError,
    OSError, RuntimeError)."""

    emulation = None

    def __init__(
        self,
        engine_args: dict[str, Any],
        report: Callable[[str], None],
        *,
        host_cache_bytes: int = 0,
    ) -> None:
        report(IMPORTING)
        process_setup.prepare()
        if engine_args.get("enforce_eager") is True:
            compile_nothing_on_cpu()
        from vllm.engine.arg_utils import EngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor import Executor
        from vllm.v1.metrics.stats import SchedulerStats
        from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

        from controller.adapters.vllm.moves import VllmMoves
        from controller.adapters.vllm.prefixes import VllmPrefixes

        self._lost_worker = threading.Event()
        """Set by a thread of the executor when a worker process has died. By then the thread has
        ended the other workers; it sets the executor's `is_failed` before."""
        args = EngineArgs(**process_setup.typed_arguments(engine_args))
        config = args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
        report("loading the model")
        alone = config.parallel_config.world_size == 1
        with process_setup.closed_afterwards(only_if=alone):
            self._core = EngineCore(
                config,
                Executor.get_class(config),
                log_stats=not args.disable_log_stats,
                executor_fail_callback=self._lost_worker.set,
            )
            in_workers = self._core.model_executor.collective_rpc
            if not alone:
                in_workers(process_setup.die_with_engine, args=(os.getpid(),))
                in_workers(process_setup.forget_names)
                process_setup.forget_names()
            if config.device_config.device_type == "cpu":
                in_workers(process_setup.forget_meeting_file)
                if alone:
                    process_setup.destroy_groups_of_one()
                else:
                    in_workers(process_setup.close_group_ports)
        self._scheduler = self._core.scheduler
        self._kv = self._scheduler.kv_cache_manager
        self._pool = self._kv.block_pool
        self._decoder = MsgpackDecoder(EngineCoreRequest)
        self._encoder = MsgpackEncoder()
        self._at_rest = self._encoder.encode(EngineCoreOutputs(scheduler_stats=SchedulerStats()))
        self._num_evictions = 0
        self._events: list[EngineEvent] = []
        self.on_phase: Callable[[StepPhase], None] = lambda phase: None
        self._grammars = GrammarGuard(self._core.structured_output_manager)
        report("warming up")
        warm_up(self._core, config)
        self._watch_admissions()
        self._watch_updates()
        self._watch_evictions()
        self._num_expected: dict[str, int] = {}
        """By queued request, how many of its tokens the prefix cache had when it came."""
        self._adapters = EngineAdapters(self._core)
        self.moves = VllmMoves(self._core, self._adapters)
        self._steps = Steps(
            self._core,
            lambda: bool(self.moves.arriving()),
            self.moves.take_entered,
            lambda request_id: self._num_expected.get(request_id, 0),
        )
        group = self.moves.full_group if config.cache_config.enable_prefix_caching else None
        self._contents = None if group is None else CacheContents(self._pool, group)
        self.prefixes = (
            None
            if group is None or not self.moves.copies_prefixes
            else VllmPrefixes(
                self.moves,
                self.moves.parts,
                group,
                self._decoder.decode,
                self._core.preprocess_add_request,
            )
        )
        self.host_cache: HostCache | None = None
        self.keep_in_host(host_cache_bytes)
        self.max_model_len: int = config.model_config.max_model_len
        self.num_gpu_blocks: int = config.cache_config.num_gpu_blocks
        self.block_size = self.moves.block_size
        self._has_states = self.moves.has_states
        self._has_drafts = config.speculative_config is not None
        self._num_drafts: int = (
            config.speculative_config.num_speculative_tokens if self._has_drafts else 0
        )
        self.max_num_running: int = config.scheduler_config.max_num_seqs
        self.max_num_batched_tokens: int = config.scheduler_config.max_num_batched_tokens
        threshold: int = config.scheduler_config.long_prefill_token_threshold
        self.max_chunk_tokens = min(
            threshold or self.max_num_batched_tokens, self.max_num_batched_tokens
        )
        self.vocab_size: int = config.model_config.get_vocab_size()
        self.supported_tasks: tuple[str, ...] = tuple(self._core.get_supported_tasks())

    def limit_steps(self, limit: StepLimit) -> None:
        self._steps.limit = limit

    def prepare(self, frames: Frames, frontend_index: int) -> Any:
        request = self._decoder.decode(frames)
        request.client_index = frontend_index
        request.trace_headers = None  # each output would carry them, and nothing here reads them
        if request.lora_request is not None:
            request.lora_request = self._adapters.localized(request.lora_request)
        if request.sampling_params is not None:
            self.moves.check(request.sampling_params)
        prepared, _wave = self._core.preprocess_add_request(request)
        return prepared

    def add(self, prepared: Any) -> None:
        self._adapters.check(prepared.lora_request)
        self._core.add_request(prepared)
        self._num_expected[prepared.request_id] = self.moves.num_cached_tokens(prepared)
        if self.host_cache is not None:
            self.host_cache.used(prepared.block_hashes)

    def abort(self, request_ids: Sequence[str]) -> None:
        self.moves.forget(request_ids)
        known = self._scheduler.requests
        self._grammars.forget(known[r] for r in request_ids if r in known)
        self._core.abort_requests(list(request_ids))

    def has_work(self) -> bool:
        """Whether the engine has requests. Raises RuntimeError if a worker process died, in an
        engine with several ranks. Otherwise an idle engine would not notice before its next
        step."""
        if self._lost_worker.is_set() or getattr(self._core.model_executor, "is_failed", False):
            raise RuntimeError("a worker process of the engine died")
        return self._scheduler.has_requests() or bool(self._core.batch_queue)

    def step(self) -> Sequence[StepOutputs]:
        self._grammars.give_up_overdue(self._scheduler.requests)
        outputs, executed = self._core.step_fn()
        self._core.post_step(executed)
        self.moves.forget_finished()
        self._save_blocks()
        if not executed and self._scheduler.has_requests():
            time.sleep(0.001)  # requests wait for a grammar: leave the GIL to its compiler
        for body in (outputs or {}).values():
            self._grammars.mark(body.outputs)
        return [
            StepOutputs(
                index,
                tuple(
                    EmittedTokens(
                        out.request_id,
                        len(out.new_token_ids),
                        None if out.finish_reason is None else str(out.finish_reason),
                    )
                    for out in body.outputs
                ),
                body,
            )
            for index, body in (outputs or {}).items()
            if body.outputs or body.scheduler_stats is not None
        ]

    def encode(self, body: Any) -> Frames:
        frames: Frames = self._encoder.encode(body)
        return frames

    def encode_one(self, body: Any, request_id: str) -> Frames:
        outputs = [out for out in body.outputs if out.request_id == request_id]
        part = msgspec.structs.replace(body, outputs=outputs, scheduler_stats=None)
        encoder = type(self._encoder)()  # a new one, because an encoder serves one thread only
        frames: Frames = encoder.encode(part)
        return frames

    def encode_rest(self) -> Frames:
        frames: Frames = self._at_rest
        return frames

    def take_events(self) -> Sequence[EngineEvent]:
        events, self._events = self._events, []
        return events

    def snapshot(self, instance_id: str, incarnation: int) -> InstanceSnapshot:
        """The status of the engine. Takes one walk over the running and the waiting requests."""
        here, queued = self.moves.running(), self.moves.queued()
        running = [*here, *self.moves.arriving()]
        speed = self._steps.prefill_speed()
        return InstanceSnapshot(
            instance_id=instance_id,
            incarnation=incarnation,
            block_size=self.block_size,
            num_total_blocks=self.num_gpu_blocks - 1,  # vLLM's number includes the null block
            num_free_blocks=self._pool.get_num_free_blocks(),
            watermark_blocks=self._kv.watermark_blocks,
            fill_blocks=self.moves.fill_blocks(),
            max_num_running=self.max_num_running,
            num_running=len(running),
            num_running_by_rank=Counter(-r.priority for r in running),
            num_queued=len(queued),
            num_queued_by_rank=Counter(-r.priority for r in queued),
            queued_demand_blocks=sum(self.moves.demand(r.num_tokens) for r in queued),
            queue_head=self._queue_head(min(queued)) if queued else None,
            num_evicted_queued=sum(r.num_preemptions > 0 for r in queued),
            num_evictions=self._num_evictions,
            max_step_tokens=self.max_num_batched_tokens,
            num_tail_blocks=self.moves.num_tail_blocks,
            adapters=self._adapters.numbers,
            live_adapters=self.moves.live_adapters() if self._adapters.numbers else (),
            max_live_adapters=self._adapters.max_live,
            backlog_s=self._backlog_s(speed, here, queued),
            prefill_speed=speed,
            decode_step_s=self._steps.decode_step_s if here else 0.0,
            step_limit_s=self._steps.own_limit_s,
        )

    def take_cache_changes(self) -> Mapping[int, bool]:
        return {} if self._contents is None else self._contents.take_changes()

    def take_host_cache_changes(self) -> Mapping[int, bool] | None:
        self._save_blocks()  # an idle engine makes no steps
        return None if self.host_cache is None else self.host_cache.take_changes()

    def keep_in_host(self, num_bytes: int) -> None:
        """Keeps up to `num_bytes` of cached blocks in main memory, too, from now on. Does nothing
        if the engine cannot copy cached blocks, or if not even one fits."""
        from controller.adapters.vllm.host_cache import BlocksWithHost, HostCache

        blocks, contents = self.moves.blocks, self._contents
        if self.prefixes is None or contents is None or num_bytes < blocks.block_bytes:
            return
        num_slots = num_bytes // blocks.block_bytes
        self.host_cache = HostCache(blocks, self._pool, self._pool.num_gpu_blocks, num_slots)
        self.prefixes.host_cache = self.host_cache
        contents.on_cached = self.host_cache.cached
        self.moves.blocks = BlocksWithHost(blocks, self.host_cache)

    def _save_blocks(self) -> None:
        if self.host_cache is not None and self.prefixes is not None:
            self.host_cache.turn(self.prefixes.not_computed)

    def _backlog_s(
        self, speed: PrefillSpeed, running: Iterable[Any], queued: Sequence[Any]
    ) -> float:
        """How long the prompts of these requests still take. What the prefix cache has of a queued
        one is looked up once, when the request comes."""
        expected = self._num_expected
        if len(expected) > len(queued):
            waiting = {request.request_id for request in queued}
            self._num_expected = expected = {r: n for r, n in expected.items() if r in waiting}
        backlog_s = 0.0
        for request in running:
            if request.num_computed_tokens < request.num_prompt_tokens:
                backlog_s += speed.time_s(request.num_computed_tokens, request.num_tokens)
        for request in queued:
            num_cached = expected.get(request.request_id, 0)
            backlog_s += speed.time_s(num_cached, request.num_tokens)
        return backlog_s

    def load_adapter(self, adapter: Adapter, folder: str) -> None:
        self._adapters.load(adapter, folder)

    def unload_adapter(self, number: int) -> bool:
        if number in self.moves.live_adapters():
            return False
        self._adapters.unload(number)
        return True

    def shutdown(self) -> None:
        if self.host_cache is not None:
            self.host_cache.close()
        self.moves.close()
        self._core.shutdown()

    def _queue_head(self, head: Any) -> QueueHead:
        return QueueHead(
            request_id=head.request_id,
            rank=-head.priority,
            demand_blocks=self.moves.demand(head.num_tokens),
            arrival_time_s=head.arrival_time,
            evicted=head.num_preemptions > 0,
        )

    def _watch_admissions(self) -> None:
        """Records admissions. vLLM itself reports an admission only with the request's next
        token."""
        schedule = self._scheduler.schedule

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._steps.set_budget()
            scheduled = schedule(*args, **kwargs)
            for new in scheduled.scheduled_new_reqs:
                self._note("admitted", new.req_id, new.num_computed_tokens)
            cached = scheduled.scheduled_cached_reqs
            if cached.resumed_req_ids:
                for req_id, num_computed in zip(
                    cached.req_ids, cached.num_computed_tokens, strict=True
                ):
                    if req_id in cached.resumed_req_ids:
                        self._note("admitted", req_id, num_computed)
            self._steps.scheduled(scheduled)
            self.on_phase("after-schedule")
            return scheduled

        self._scheduler.schedule = watched

    def _watch_updates(self) -> None:
        """Calls `on_phase` when the scheduler has recorded a step's tokens, and times the step.
        With asynchronous scheduling the tokens belong to an earlier step than the one that was
        scheduled last."""
        update = self._scheduler.update_from_output

        def watched(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            outputs = update(scheduled, *args, **kwargs)
            self._steps.ended(scheduled)
            self.on_phase("after-update")
            return outputs

        self._scheduler.update_from_output = watched

    def _watch_evictions(self) -> None:
        """Records evictions. vLLM evicts requests in one method, and keeps no list of them."""
        preempt = self._scheduler._preempt_request

        def watched(request: Any, *args: Any, **kwargs: Any) -> Any:
            self._num_evictions += 1
            self._note("evicted", request.request_id)
            return preempt(request, *args, **kwargs)

        self._scheduler._preempt_request = watched

    def _note(
        self, kind: Literal["admitted", "evicted"], request_id: str, num_cached_tokens: int = 0
    ) -> None:
        request = self._scheduler.requests[request_id]
        num_tokens = request.num_tokens
        computes_again = self._has_states and num_cached_tokens < num_tokens - 1
        # Where a draft is rejected, vLLM draws without the request's seed.
        params = request.sampling_params
        draws_anew = self._has_drafts and params is not None and params.seed is not None
        continued = (
            kind == "admitted" and request.num_output_tokens > 0 and (computes_again or draws_anew)
        )
        self._events.append(
            EngineEvent(kind, request_id, time.time(), num_tokens, num_cached_tokens, continued)
        )


# -- warming up ------------------------------------------------------------------------------------
# Makes vLLM compile and load at its start everything that it would otherwise compile and load at
# its first use.
#
# The first request with log probabilities compiled a kernel in the middle of a step, while all
# other requests waited: for 2.4 s with a warm compiler cache, and for 26 s with a cold one. vLLM's
# own warm-up leaves that kernel out. The first structured output makes the backend, which takes 15
# ms for the embedded model's 4,096 tokens, and longer with a larger vocabulary. All other first
# uses (sampling, penalties, biases, seeds, long prompts) were measured and took as long as a step.
#
# The warm-up runs no request, so nothing is left in the scheduler, the caches, the statistics or
# the generators.


def compile_nothing_on_cpu() -> None:
    """Keeps vLLM from compiling on a CPU if the user wants eager mode. Must be called before vLLM's
    engine is imported. Even in eager mode vLLM compiles a few functions, which gains nothing on a
    CPU and needs a C++ compiler."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        os.environ["TORCHDYNAMO_DISABLE"] = "1"


def warm_up(core: Any, config: Any) -> None:
    from controller.adapters.vllm.worker_side import compile_logprobs

    if config.model_config.runner_type != "generate":
        return
    core.model_executor.collective_rpc(
        compile_logprobs, args=(config.model_config.get_vocab_size(),)
    )
    if (
        core.structured_output_manager.backend is None
        and not config.model_config.skip_tokenizer_init
    ):
        _make_grammar_backend(core, config.structured_outputs_config.backend)


def _make_grammar_backend(core: Any, backend: str) -> None:
    """Makes the backend: prepares a request with a grammar, and does not add it to the engine."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    wanted = StructuredOutputsParams(regex="a")
    wanted._backend = USUAL_BACKEND if backend == "auto" else backend
    params = SamplingParams(max_tokens=1, structured_outputs=wanted)
    request = _request("warm-up", [0], params, arrival_time_s=0.0)
    try:
        core.preprocess_add_request(request)
    except Exception as error:  # the backend cannot use this tokenizer; requests get the error
        log.warning("structured outputs could not be warmed up: %s", error)


# -- trial requests --------------------------------------------------------------------------------


class TrialRequests:
    """Makes requests with which an engine is measured: greedy, with random prompts, and never ended
    by a token. Its arguments are an id, the number of prompt tokens, and the largest number of
    outputs."""

    def __init__(self, vocab_size: int) -> None:
        from vllm.v1.serial_utils import MsgpackEncoder

        self._token_ids = range(1, max(2, min(vocab_size, MAX_TRIAL_TOKEN_ID)))
        self._encoder = MsgpackEncoder()
        self._dice = random.Random(0)

    def __call__(self, request_id: str, num_prompt_tokens: int, max_tokens: int) -> Frames:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        prompt = self._dice.choices(self._token_ids, k=num_prompt_tokens)
        frames: Frames = self._encoder.encode(_request(request_id, prompt, params, time.time()))
        return frames


def _request(request_id: str, prompt: list[int], params: Any, arrival_time_s: float) -> Any:
    from vllm.v1.engine import EngineCoreRequest

    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=arrival_time_s,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
