"""vLLM's AsyncLLM without an engine of its own.

Touch points of vLLM: v1/engine/async_llm.py `AsyncLLM` (the attributes that its methods
read, `_run_output_handler`); v1/engine/output_processor.py `OutputProcessor`;
v1/engine/input_processor.py `assign_request_id`.
"""

import asyncio
import itertools
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from vllm.config import VllmConfig
from vllm.exceptions import GracefulHTTPError
from vllm.renderers import renderer_from_config
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.metrics.loggers import StatLoggerManager

from controller.adapters.vllm.endpoint.placing import PLACING
from controller.adapters.vllm.endpoint.pool_client import PoolClient, PoolLimits
from controller.adapters.vllm.endpoint.turns import Turns
from controller.adapters.vllm.grammars.trials import GrammarTrials
from controller.core.record.request_record import RequestState
from controller.runtime.frontend.router import Router

PROMPTS_PER_TURN = 16


class PoolLLM(AsyncLLM):  # type: ignore[misc]  # its base is Any to mypy
    """Does not call `super().__init__`, which would start an engine process."""

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
            StatLoggerManager(config, engine_idxs=self.engine_core.engine_ranks_managed)
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
        """Takes turns with other requests: making a request of a rendered prompt takes up to 0.5 ms
        of the event loop, and vLLM makes those of all prompts of an HTTP request at once: 1,000
        prompts kept the loop for 0.5 s. Returns when all choices have an instance, or one failed.
        """
        placing = PLACING.get()
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
        state = self.output_processor.request_states.get(request_id)
        if state is None:
            return
        if state.queue is not None:
            state.queue.put(error)
        whole = state.parent_req or state
        ended = self.output_processor.abort_requests([whole.request_id], internal=True)
        self.engine_core.abort(ended, outcome, str(error))

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        """The client left. Differs from vLLM's own method in that the reason is kept."""
        request_ids = (request_id,) if isinstance(request_id, str) else tuple(request_id)
        ended = self.output_processor.abort_requests(request_ids, internal)
        self.engine_core.abort(ended, RequestState.ABORTED, "the client left")

    def parent_of(self, request_id: str) -> str | None:
        state = self.output_processor.request_states.get(request_id)
        return state.parent_req.request_id if state and state.parent_req else None

    def has_failed(self, request_id: str) -> bool:
        return request_id not in self.output_processor.request_states


def _unique_ids() -> Callable[[EngineCoreRequest], None]:
    """Replaces `InputProcessor.assign_request_id`, which appends 32 random bits: two live requests
    that got the same would end one another. Ids made here are unique whatever ids clients choose.
    """
    frontend, number = secrets.token_hex(4), itertools.count()

    def assign(request: EngineCoreRequest) -> None:
        request.external_req_id = request.request_id
        request.request_id = f"{request.external_req_id}-{frontend}{next(number):x}"

    return assign
