"""The frontend: vLLM's OpenAI app over the cluster."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any

from controller.adapters.vllm import process_setup
from controller.adapters.vllm.checks.body import max_token_ids
from controller.adapters.vllm.endpoint.answers import error_body
from controller.adapters.vllm.endpoint.gate import STOPPING, Gate, GateLimits
from controller.adapters.vllm.grammars.trials import GrammarProcess, GrammarTrials, Tries
from controller.api.settings.key_file import own_limits, parse_line
from controller.api.state.batch_files import BatchFiles
from controller.core.record.request_record import RequestState
from controller.ports.processes import Listener, Mailbox
from controller.runtime.controller_link import ControllerLink
from controller.runtime.frontend.request_book import RequestBook, RequestObserver
from controller.runtime.frontend.router import Router, RouterEvents
from controller.runtime.messages.members import (
    IMPORTING,
    AdaptersSet,
    DrainFrontend,
    EngineInfo,
    FrontendLimits,
    InstanceEntry,
)

log = logging.getLogger(__name__)

# The process that tries grammars is started this long after the frontend, so that it does not slow
# down the start of the cluster. If a request under a grammar comes sooner, it starts the process.
TRIALS_START_AFTER_S = 10.0

# The status of the answer to an aborted request. Clients' libraries do not repeat a request by
# themselves after this status; they do after 409, 429 and 500 or more.
ABORTED = HTTPStatus.GONE
CUT = "the cluster stopped before this request ended"


@dataclass(frozen=True, slots=True)
class FrontendConfig:
    engine_args: dict[str, Any]
    options: Mapping[str, Any]
    """vLLM's frontend arguments."""
    level_names: Mapping[int, str]
    """The name of each rank."""
    num_instances: int
    host: str
    port: int
    api_keys: tuple[str, ...] = field(repr=False)
    """The lines of the key file."""
    hosts: tuple[str, ...]
    """Names and addresses under which clients may call the frontend, besides loopback addresses."""
    limits: GateLimits
    expects_grammars: bool = True
    """False with emulated instances, because these follow no grammar."""
    batches: BatchFiles | None = None
    """Where the batch API has its files; None if the endpoint has no batch API."""


class OpenAIFrontend:
    """A frontend. If its process dies, the listening socket and connections that were not accepted
    yet survive. Its own connections end with it, and the instances abort its requests as soon as
    its inbox closes."""

    def __init__(
        self,
        config: FrontendConfig,
        member: ControllerLink,
        mailbox: Mailbox,
        listener: Listener,
        observer: RequestObserver,
    ) -> None:
        self._config = config
        self._listener = listener
        self._member = member
        self._info: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self._llm: Any = None
        self._server: Any = None
        self._models: Any = None
        """vLLM's list of the models that clients may name."""
        self._batches: Any = None
        """The BatchRunner; None if the endpoint has no batch API."""
        self.book = RequestBook(member.member_id, config.level_names, member.tell, observer)
        self.router = Router(
            member,
            mailbox,
            self.book,
            RouterEvents(
                on_failed=self._fail,
                on_refused=partial(self._fail, status=HTTPStatus.BAD_REQUEST),
                on_aborted=partial(self._fail, status=ABORTED, outcome=RequestState.ABORTED),
                on_directory=self._on_directory,
                on_drain=self._on_drain,
                on_limits=self._on_limits,
                on_adapters=self._on_adapters,
            ),
            own_limits(config.api_keys),
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serves until the cluster stops, then waits for the process to be ended. If the start
        fails, the failure is reported and the start is not repeated, because it would fail
        again."""
        self.router.start()
        try:
            serving = await self._start()
        except Exception as error:
            log.exception("the frontend could not start")
            self._member.report("failed", f"{type(error).__name__}: {error}")
        else:
            self._member.report("active")
            await serving
            self._member.report("stopped")
        await asyncio.Event().wait()

    async def _start(self) -> asyncio.Task[None]:
        """Imports and configures vLLM on another thread. Meanwhile this process can report its
        progress and get messages about the instances."""
        self._member.report("starting", IMPORTING)
        args, config, tries = await asyncio.to_thread(self._configure)
        self._member.report("starting", "waiting for an instance")
        info = await self._info
        if self._config.expects_grammars and isinstance(tries, GrammarProcess):
            self._tasks.add(asyncio.get_running_loop().create_task(_start_later(tries)))
        self._grammars = GrammarTrials(tries)
        return await self._serve(args, config, info)

    def _configure(self) -> tuple[Any, Any, Tries]:
        process_setup.prepare()
        from controller.adapters.vllm.endpoint import openai_app
        from controller.adapters.vllm.grammars import app_checks as grammar_checks

        cfg = self._config
        keys = [parse_line(line).key for line in cfg.api_keys]
        args = openai_app.parse_args(cfg.engine_args, cfg.options, keys, cfg.host, cfg.port)
        config = openai_app.build_config(args)
        return args, config, grammar_checks.make_process(config)

    async def _serve(self, args: Any, config: Any, info: EngineInfo) -> asyncio.Task[None]:
        from controller.adapters.connections import KeepAlive, max_kept_connections
        from controller.adapters.vllm.endpoint import openai_app
        from controller.adapters.vllm.endpoint.pool_client import PoolLimits, PoolLLM

        cfg = self._config
        openai_app.adopt_engine_info(config, info, cfg.num_instances)
        levels = {name: rank for rank, name in cfg.level_names.items()}
        limits = PoolLimits(
            info.supported_tasks,
            levels,
            cfg.num_instances - 1,
            bool(config.cache_config.enable_prefix_caching),
        )
        log_stats = not args.disable_log_stats
        self._llm = PoolLLM(config, self.router, limits, self._grammars, log_stats)
        bounds = replace(cfg.limits, max_token_ids=max_token_ids(info.max_model_len))
        self._gate = Gate(bounds, cfg.api_keys, levels, cfg.hosts)
        self._keep_alive = KeepAlive(max_kept_connections(), error_body)
        self._server, self._models = await openai_app.build_server(
            self._llm,
            args,
            self._gate,
            self._keep_alive,
            info.supported_tasks,
            self._why_not_ready,
            self._add_batch_routes,
        )
        listening = await self._listener.open()
        serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.01)
        if serving.done():
            await serving  # raises the error that kept it from starting
        if self._batches is not None:
            self._tasks.add(asyncio.create_task(self._batches.run()))
        return serving

    def _add_batch_routes(self, app: Any) -> None:
        if (files := self._config.batches) is None:
            return
        from controller.adapters.vllm.endpoint import batch_routes
        from controller.adapters.vllm.endpoint.batch_runner import BatchRunner

        gate = self._gate
        # Half of the places stay for the requests of clients.
        self._batches = BatchRunner(files, gate.ask, lambda: gate.limits.max_live_requests // 2)
        batch_routes.add_routes(app, files, self._batches.look)
        gate.upload_paths = {batch_routes.FILES: batch_routes.MAX_UPLOAD_BYTES}

    def _why_not_ready(self) -> str:
        return STOPPING if self._gate.closed else self.router.why_not_ready()

    def _fail(
        self,
        request_id: str,
        why: str,
        status: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE,
        outcome: RequestState = RequestState.FAILED,
    ) -> None:
        from vllm.exceptions import GracefulHTTPError

        self._llm.fail(request_id, GracefulHTTPError(why, status), outcome)

    def _on_directory(self, instances: Sequence[InstanceEntry]) -> None:
        if instances and not self._info.done():
            self._info.set_result(instances[0].info)
        if self._llm is not None:
            serve = {each.instance_id: each.incarnation for each in instances}
            self._llm.engine_core.instances_are(serve)

    def _on_limits(self, limits: FrontendLimits) -> None:
        """Called once when this frontend serves, and at each change of the limits. Requests that
        came before keep the limits that were in force when they came."""
        self._gate.limits = replace(
            self._gate.limits,
            max_live_requests=limits.max_live_requests,
            request_timeout_s=limits.request_timeout_s,
        )
        self._listener.set_write_timeout(limits.write_timeout_s)
        self.book.set_targets(limits.levels)

    def _on_adapters(self, message: AdaptersSet) -> None:
        """Called once when this frontend serves, and at each change."""
        from controller.adapters.vllm.endpoint import openai_app

        openai_app.offer_adapters(self._models, message.adapters, message.loaded)

    def _on_drain(self, drain: DrainFrontend) -> None:
        task = asyncio.get_running_loop().create_task(self._drain(drain.grace_s))
        self._tasks.add(task)

    @property
    def _is_at_work(self) -> bool:
        return bool(self.router.num_live_reqs or self._grammars.num_waiting)

    async def _drain(self, grace_s: float) -> None:
        """Ends the requests, and then the server in any case, because `down` waits for that."""
        if self._server is None:
            return  # it does not serve yet
        try:
            await self._end_requests(grace_s)
        except Exception:
            log.exception("the drain failed; its requests end with their connections")
        finally:
            self._server.should_exit = True

    async def _end_requests(self, grace_s: float) -> None:
        """Answers new requests with 503, and lets live requests end by themselves within
        `grace_s`."""
        self._gate.closed = True
        self._keep_alive.ends = True
        if self._batches is not None:
            await self._batches.close()  # batches go on after the next start
        deadline_s = asyncio.get_running_loop().time() + grace_s
        while self._is_at_work and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(0.02)
        self._grammars.stop(CUT)
        for request_id in self.router.live_request_ids:
            self._fail(request_id, CUT)


async def _start_later(process: GrammarProcess) -> None:
    await asyncio.sleep(TRIALS_START_AFTER_S)
    try:
        await process.start()
    except OSError as error:
        log.warning("the process that tries grammars did not start: %s", error)
