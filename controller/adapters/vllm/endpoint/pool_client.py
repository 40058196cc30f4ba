"""vLLM's AsyncLLM without an engine of its own, and its engine client, which uses a pool of
instances.

Touch points of vLLM: v1/engine/core_client.py `EngineCoreClient`; v1/metrics/stats.py
`SchedulerStats`; v1/serial_utils.py `MsgpackEncoder`, `MsgpackDecoder`; v1/engine/async_llm.py
`AsyncLLM`, `_run_output_handler`; v1/engine/output_processor.py `OutputProcessor`;
v1/engine/input_processor.py `assign_request_id`."""

import asyncio
import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import msgspec
from vllm.config import VllmConfig
from vllm.exceptions import GracefulHTTPError
from vllm.renderers import renderer_from_config
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.metrics.loggers import StatLoggerManager
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from controller.adapters.vllm.endpoint.exchange import PLACING, Turns
from controller.adapters.vllm.endpoint.headers import (
    ASKED_KEY,
    ASKED_PRIORITY,
    ASKED_SESSION,
    AskedPriority,
    RefusedError,
    not_dispatched,
)
from controller.adapters.vllm.endpoint.model_metrics import ModelStatLogger
from controller.adapters.vllm.grammar_guard import NOT_COMPILED
from controller.adapters.vllm.grammars import app_checks as grammar_checks
from controller.adapters.vllm.grammars.trial_program import MAX_STEP_S
from controller.adapters.vllm.grammars.trials import Grammar, GrammarRefusedError, GrammarTrials
from controller.core.fleet.attached import SERVER_REFUSED, why_not_carried
from controller.core.load.cached_prefixes import PREFIX_TOKENS
from controller.core.record.request_record import RequestState
from controller.core.replay.replay_machine import ReplayRefusal
from controller.core.scheduler_events import DispatchRequested
from controller.runtime.frontend.dispatcher import NotDispatchedError
from controller.runtime.frontend.router import Router
from controller.runtime.messages.requests import OutputsEmitted

PROMPTS_PER_TURN = 16
# The reason of an engine that ends a request with an error; engines give no other reason. vLLM
# would answer 500.
UNFOLLOWABLE = "the structured output that was asked for cannot be compiled, or costs too much"
NOT_COMPILED_YET = (
    "the instance was too busy to compile the structured output that was asked for; send it again"
)


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """vLLM's stat loggers exist for engine indices up to `max_engine_index`. An output with a
    higher index would end the app by a KeyError."""

    supported_tasks: tuple[str, ...]
    levels: Mapping[str, int]
    """The rank of each level."""
    max_engine_index: int
    prefix_caching: bool
    """Whether the engines cache prefixes. If they do not, prompts with the same beginning share
    nothing."""
    is_one_of_several: bool = False
    """Whether the frontend serves other models, too."""


class PoolLLM(AsyncLLM):  # type: ignore[misc]  # its base is Any to mypy
    """An AsyncLLM that uses a PoolClient. It does not call `super().__init__`, which would start an
    engine process."""

    def __init__(
        self,
        config: VllmConfig,
        router: Router,
        limits: PoolLimits,
        grammars: GrammarTrials,
        log_stats: bool,
    ) -> None:
        self.vllm_config = config
        self.model_config = config.model_config
        self.scheduler_config = config.scheduler_config
        self.observability_config = config.observability_config
        self._elastic_ep_lock = asyncio.Lock()
        self.log_requests = False
        self.log_stats = log_stats
        self.renderer = renderer_from_config(config)
        self.input_processor = InputProcessor(config, self.renderer)
        self.input_processor.assign_request_id = _unique_ids()
        self.admission_stats = None
        self.output_processor = OutputProcessor(
            self.renderer.tokenizer,
            log_stats=log_stats,
            stream_interval=config.scheduler_config.stream_interval,
            tracing_enabled=False,
        )
        self.engine_core = PoolClient(router, limits, grammars, self)
        self._turns = Turns(PROMPTS_PER_TURN)
        self.logger_manager = (
            StatLoggerManager(
                config,
                engine_idxs=self.engine_core.engine_ranks_managed,
                custom_stat_loggers=[ModelStatLogger] if limits.is_one_of_several else None,
            )
            if log_stats
            else None
        )
        self.output_handler: asyncio.Task[Any] | None = None
        self._client_count = 1
        self.profiler = None
        self._frontend_profiler_injected = False
        self._profile_lock = asyncio.Lock()
        self._profile_session_guard_enabled = False
        self._profile_session_active = False
        self._run_output_handler()

    async def add_request(self, *args: Any, **kwargs: Any) -> RequestOutputCollector:
        """Lets requests take turns. Making a request of a rendered prompt takes up to 0.5 ms of the
        event loop, and vLLM makes the requests of all prompts of an HTTP request at once, so 1,000
        prompts kept the loop busy for 0.5 s. Returns when all choices have an instance, or when one
        has failed."""
        placing = PLACING.get()
        # Frontends make the traces (adapters/otel.py). vLLM would log that there are none. An
        # attached server gets the headers of the frontend's own span (`add_request_async`).
        kwargs.pop("trace_headers", None)
        if placing is not None:
            placing.began()
        await self._turns.take()
        outputs = await super().add_request(*args, **kwargs)
        if placing is not None and not isinstance(outputs.output, Exception):
            await placing.placed()
        return outputs

    def fail(
        self,
        request_id: str,
        error: GracefulHTTPError,
        outcome: RequestState = RequestState.FAILED,
    ) -> None:
        """Ends this request and its siblings of `n > 1` with this error. `outcome` goes into their
        records."""
        state = self.output_processor.request_states.get(request_id)
        if state is None:
            return
        if state.queue is not None:
            state.queue.put(error)
        whole = state.parent_req or state
        ended = self.output_processor.abort_requests([whole.request_id], internal=True)
        self.engine_core.abort(ended, outcome, str(error))

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        """Aborts requests because the client left. In contrast to vLLM's own method, the reason is
        kept."""
        request_ids = (request_id,) if isinstance(request_id, str) else tuple(request_id)
        ended = self.output_processor.abort_requests(request_ids, internal)
        self.engine_core.abort(ended, RequestState.ABORTED, "the client left")

    def parent_of(self, request_id: str) -> str | None:
        """The request of which this one is a choice; None without `n` > 1."""
        state = self.output_processor.request_states.get(request_id)
        return state.parent_req.request_id if state and state.parent_req else None

    def has_failed(self, request_id: str) -> bool:
        """Whether the request was ended together with a sibling before it was sent anywhere."""
        return request_id not in self.output_processor.request_states


class PoolClient(EngineCoreClient):  # type: ignore[misc]  # its base is Any to mypy
    def __init__(
        self, router: Router, limits: PoolLimits, grammars: GrammarTrials, app: "PoolLLM"
    ) -> None:
        self._router = router
        self._limits = limits
        self._grammars = grammars
        self._app = app
        self._outputs: asyncio.Queue[EngineCoreOutputs] = asyncio.Queue()
        self._encoder = MsgpackEncoder()
        self._decoder = MsgpackDecoder(EngineCoreOutputs)
        self._loads = InstanceLoads(limits.max_engine_index)
        self.resources = SimpleNamespace(engine_dead=False)
        router.inbox.with_payload[OutputsEmitted] = self.receive

    @property
    def engine_ranks_managed(self) -> list[int]:
        return list(range(self._limits.max_engine_index + 1))

    def receive(self, emitted: OutputsEmitted, payload: Sequence[memoryview]) -> None:
        body = self._decoder.decode(payload)
        body.outputs = [_skip(d) for d in self._router.accept(emitted, body.outputs)]
        for output in body.outputs:
            if output.finish_reason == FinishReason.ERROR:
                self._app.fail(output.request_id, _error_of(output))
        sender = emitted.sender
        body.engine_index = self._loads.index_of(sender.instance_id)
        if body.scheduler_stats is not None:
            self._loads.reported(sender.instance_id, sender.incarnation, body.scheduler_stats)
        self._outputs.put_nowait(body)

    def instances_are(self, incarnations: Mapping[str, int]) -> None:
        """Passes on which incarnation of each instance serves. vLLM's metrics show the load of
        these only."""
        for index, stats in self._loads.listed(incarnations):
            self._outputs.put_nowait(EngineCoreOutputs(index, scheduler_stats=stats))

    async def get_output_async(self) -> EngineCoreOutputs:
        return await self._outputs.get()

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        if self._app.has_failed(request.request_id):
            return
        asked_priority = ASKED_PRIORITY.get() or AskedPriority(self._limits.levels)
        try:
            rank = asked_priority.rank_of_sequence(request.priority)
        except RefusedError as refused:
            self._refuse(request.request_id, refused)
            return
        request.priority = -rank
        if (placing := PLACING.get()) and placing.trace is not None:
            request.trace_headers = placing.trace.onward()
        try:
            payload = self._encoder.encode(request)
        except (ValueError, OverflowError) as error:
            why = f"the request cannot be sent to an instance: {error}"
            self._refuse(request.request_id, RefusedError(HTTPStatus.BAD_REQUEST, why))
            return
        try:
            if grammar := _grammar_of(request):
                step_s = await self._grammars.check(grammar)
                if placing := PLACING.get():
                    placing.follows_grammar(step_s, MAX_STEP_S)
            if self._app.has_failed(request.request_id):  # together with a sibling, meanwhile
                return
            token_ids = request.prompt_token_ids or ()
            asked = DispatchRequested(
                request.request_id,
                self._router.frontend_id,
                len(token_ids),
                rank,
                request.arrival_time,
                ASKED_SESSION.get(),
                self._prefix_hashes(request),
                PREFIX_TOKENS,
                api_key=ASKED_KEY.get(),
                adapter=0 if request.lora_request is None else request.lora_request.lora_int_id,
                hosted_only=_hosted_only(request),
            )
            client_request_id = request.external_req_id or request.request_id
            parent_id = self._app.parent_of(request.request_id)
            await self._router.submit(
                asked,
                payload,
                client_request_id,
                parent_id,
                token_ids,
                _not_replayable(request),
                "" if request.lora_request is None else request.lora_request.lora_name,
                placing.records.append if (placing := PLACING.get()) else lambda _: None,
            )
        except RefusedError as refused:
            self._refuse(request.request_id, refused)
        except GrammarRefusedError as refused:
            told = RefusedError(refused.status, str(refused), retry_after_s=refused.retry_after_s)
            self._refuse(request.request_id, told)
        except NotDispatchedError as refusal:
            self._refuse(request.request_id, not_dispatched(refusal.code, refusal.retry_after_s))
        except asyncio.CancelledError:
            left = GracefulHTTPError("the client left", HTTPStatus.REQUEST_TIMEOUT)
            self._app.fail(request.request_id, left, RequestState.ABORTED)
            raise

    def _refuse(self, request_id: str, refused: RefusedError) -> None:
        """Refuses the request before it is sent to any instance. Called in the task of its HTTP
        request."""
        error = GracefulHTTPError(refused.message, refused.status)
        if placing := PLACING.get():
            placing.refused(refused, error)
        self._app.fail(request_id, error)

    def _prefix_hashes(self, request: EngineCoreRequest) -> tuple[int, ...]:
        if not self._limits.prefix_caching or request.mm_features:
            return ()  # images are not among the tokens
        lora = request.lora_request
        adapter = None if lora is None else f"{lora.lora_name}#{lora.lora_int_id}"
        token_ids = request.prompt_token_ids or ()
        return self._router.prompt_prefixes.of(token_ids, request.cache_salt, adapter)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Called by vLLM when a stop string has ended a request. The request counts as finished."""
        self.abort(request_ids, RequestState.FINISHED, "stop")

    def abort(self, request_ids: list[str], outcome: RequestState, reason: str) -> None:
        self._router.abort(request_ids, outcome, reason)

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return self._limits.supported_tasks

    async def reset_mm_cache_async(self) -> None:
        """Does nothing: the instances have no multimodal cache, because requests are text only."""

    def shutdown(self, timeout: float | None = None) -> None:
        """Does nothing: the instances outlive a frontend, and OpenAIFrontend owns the router."""


class InstanceLoads:
    """The last figures from the scheduler of each instance, for vLLM's metrics. These metrics have
    one series for each engine from 0 to `max_index`. Instances with higher numbers, which were
    added later, share the last series.

    The series of an instance that is gone stays and shows zeros. vLLM makes all series at its
    start, so their number is fixed, and prometheus_client cannot remove series that several
    processes share (`remove` of its multiprocess mode warns and leaves what other processes have
    written)."""

    def __init__(self, max_index: int) -> None:
        self._max_index = max_index
        self._loads: dict[str, tuple[int, SchedulerStats]] = {}
        """For each instance, its incarnation and its gauges. Idle instances are not included."""
        self._incarnations: Mapping[str, int] | None = None

    def index_of(self, instance_id: str) -> int:
        """The engine number that the instance has in vLLM's metrics."""
        return min(int(instance_id.rpartition("-")[2]), self._max_index)

    def reported(self, instance_id: str, incarnation: int, stats: SchedulerStats) -> None:
        """Turns the statistics of one instance into the sums over all instances that share its
        series. If the incarnation does not serve any more, its counters still count, but its load
        is 0."""
        own, serves = _gauges(stats), self._incarnations
        if serves is not None and serves.get(instance_id) != incarnation:
            own = SchedulerStats()
        self._loads.pop(instance_id, None)
        self._add_up(self.index_of(instance_id), own, stats)
        if own != SchedulerStats():
            self._loads[instance_id] = incarnation, own

    def listed(self, incarnations: Mapping[str, int]) -> list[tuple[int, SchedulerStats]]:
        """Drops the instances that do not serve any more. Returns each of their series, with the
        figures that it shows from now on."""
        self._incarnations = incarnations
        gone = [i for i, (n, _) in self._loads.items() if incarnations.get(i) != n]
        for instance_id in gone:
            del self._loads[instance_id]
        found = {index: SchedulerStats() for index in map(self.index_of, gone)}
        for index, stats in found.items():
            self._add_up(index, SchedulerStats(), stats)
        return list(found.items())

    def _add_up(self, index: int, own: SchedulerStats, stats: SchedulerStats) -> None:
        """Sets the gauges in `stats` to the sums over the instances of the series. The use of the
        KV cache is set to the highest value."""
        alike = [each for i, (_, each) in self._loads.items() if self.index_of(i) == index]
        alike.append(own)
        for name in _COUNTS:
            setattr(stats, name, sum(getattr(each, name) for each in alike))
        stats.kv_cache_usage = max(each.kv_cache_usage for each in alike)


_COUNTS = ("num_running_reqs", "num_waiting_reqs", "num_skipped_waiting_reqs")


def _gauges(stats: SchedulerStats) -> SchedulerStats:
    counts = {name: getattr(stats, name) for name in _COUNTS}
    return SchedulerStats(**counts, kv_cache_usage=stats.kv_cache_usage)


def _not_replayable(request: EngineCoreRequest) -> ReplayRefusal | None:
    """Why no engine can continue the request from its outputs; None if an engine can. Compare
    `cannot_move` in moves.py. A pooling request has no outputs, and begins anew."""
    if request.mm_features:
        return ReplayRefusal.MULTIMODAL
    if request.prompt_embeds is not None or request.prompt_token_ids is None:
        return ReplayRefusal.PROMPT_EMBEDS
    return ReplayRefusal.STREAMED_PROMPT if request.resumable else None


def _hosted_only(request: EngineCoreRequest) -> bool:
    """Whether the request cannot be carried over to an attached server. Compare `prepared` of
    `controller/adapters/attached`."""
    params = request.sampling_params
    if params is None or request.cache_salt is not None or _not_replayable(request) is not None:
        return True
    return bool(why_not_carried(msgspec.to_builtins(params)))


def _grammar_of(request: EngineCoreRequest) -> Grammar | None:
    params = request.sampling_params
    return grammar_checks.grammar_of(params.structured_outputs if params else None)


def _error_of(output: EngineCoreOutput) -> GracefulHTTPError:
    """The error for a request that an engine ended. An attached server says why. The request's
    grammar has passed a trial, so if the engine had no time to compile the grammar, this is not the
    request's fault."""
    if output.stop_reason == NOT_COMPILED:
        return GracefulHTTPError(NOT_COMPILED_YET, HTTPStatus.SERVICE_UNAVAILABLE)
    if isinstance(output.stop_reason, str) and output.stop_reason.startswith(SERVER_REFUSED):
        return GracefulHTTPError(output.stop_reason, HTTPStatus.BAD_GATEWAY)
    return GracefulHTTPError(UNFOLLOWABLE, HTTPStatus.BAD_REQUEST)


def _skip(delivery: tuple[EngineCoreOutput, int]) -> EngineCoreOutput:
    """Removes the first tokens, which were delivered before, and their logprobs."""
    output, num_skip = delivery
    if num_skip:
        output.new_token_ids = output.new_token_ids[num_skip:]
        if output.new_logprobs is not None:
            num_left = len(output.new_token_ids)
            output.new_logprobs = output.new_logprobs.slice_request(num_skip, num_left)
    return output


def _unique_ids() -> Callable[[EngineCoreRequest], None]:
    """Makes a function that replaces `InputProcessor.assign_request_id`. vLLM's own function
    appends 32 random bits, and two live requests with the same id would end one another. The ids
    made here are unique, whatever ids clients choose."""
    frontend, number = secrets.token_hex(4), itertools.count()

    def assign(request: EngineCoreRequest) -> None:
        request.external_req_id = request.request_id
        request.request_id = f"{request.external_req_id}-{frontend}{next(number):x}"

    return assign
