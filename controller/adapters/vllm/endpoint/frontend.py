"""The frontend: vLLM's OpenAI app over the cluster, one for each model that it serves."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any

from controller.adapters.vllm import process_setup
from controller.adapters.vllm.checks.body import max_token_ids
from controller.adapters.vllm.endpoint.answers import error_body
from controller.adapters.vllm.endpoint.copies import Copies
from controller.adapters.vllm.endpoint.forwarding import (
    ForwardedRequests,
    build_forward_app,
)
from controller.adapters.vllm.endpoint.gate import STOPPING, Gate, GateLimits
from controller.adapters.vllm.grammars.trials import GrammarProcess, GrammarTrials, Tries
from controller.api.settings.key_file import own_limits, parse_line
from controller.api.state.batch_files import BatchFiles
from controller.core.admission.traffic import TrafficBook
from controller.core.record.request_record import RequestState
from controller.core.record.windows import ServedLately
from controller.ports.processes import Listener, Mailbox, Traces
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
    Phase,
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
    options: Mapping[str, Any]
    """vLLM's frontend arguments."""
    level_names: Mapping[int, str]
    """The name of each rank."""
    host: str
    port: int
    api_keys: tuple[str, ...] = field(repr=False)
    """The lines of the key file."""
    hosts: tuple[str, ...]
    """Names and addresses under which clients may call the frontend, besides loopback addresses."""
    limits: GateLimits
    receipts: bool = True
    """Whether answers say in headers how their requests were served."""
    batches: BatchFiles | None = None
    """Where the batch API has its files; None if the endpoint has no batch API."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a frontend has to know of one model that it serves."""

    name: str
    """By which clients ask for it first."""
    engine_args: dict[str, Any]
    num_instances: int
    expects_grammars: bool = True
    """False with emulated instances, because these follow no grammar."""
    is_one_of_several: bool = False
    """Whether the frontend serves other models, too."""


@dataclass(frozen=True, slots=True)
class OnModel:
    """What the frontend does when the controller of a model tells it something."""

    drain: Callable[[DrainFrontend], None]
    limits: Callable[[FrontendLimits], None]


class ServedModel(ABC):
    """One model at a frontend: its member of the cluster, its requests, and the app that answers
    them."""

    args: Any
    """The arguments of vLLM's server."""

    def __init__(
        self,
        config: FrontendConfig,
        name: str,
        member: ControllerLink,
        mailbox: Mailbox,
        observer: RequestObserver,
        *,
        is_one_of_several: bool,
    ) -> None:
        """`name`: by which clients ask for it first. `is_one_of_several`: whether the frontend
        serves other models, too."""
        self.config = config
        self.name = name
        self.member = member
        self.info: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self.traffic = TrafficBook()
        self.on = OnModel(lambda _: None, lambda _: None)
        self.book = RequestBook(
            member.member_id,
            config.level_names,
            member.tell,
            observer,
            model=name if is_one_of_several else "",
        )
        self.router = Router(
            member,
            mailbox,
            self.book,
            RouterEvents(
                on_failed=self.fail,
                on_refused=partial(self.fail, status=HTTPStatus.BAD_REQUEST),
                on_aborted=partial(self.fail, status=ABORTED, outcome=RequestState.ABORTED),
                on_directory=self._on_directory,
                on_drain=lambda drain: self.on.drain(drain),
                on_limits=self._on_limits,
                on_adapters=self._on_adapters,
            ),
            own_limits(config.api_keys),
        )

    @abstractmethod
    def configure(self) -> None:
        """Configures vLLM. It takes seconds, and may be called on any thread."""

    @abstractmethod
    async def app(self, why_not_ready: Callable[[], str]) -> Any: ...

    @abstractmethod
    def fail(
        self,
        request_id: str,
        why: str,
        status: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE,
        outcome: RequestState = RequestState.FAILED,
    ) -> None: ...

    @property
    def is_at_work(self) -> bool:
        return bool(self.router.num_live_reqs)

    def served_lately(self) -> ServedLately:
        return replace(self.book.served_lately(), traffic=self.traffic.view())

    def cut(self) -> None:
        """Ends all requests."""
        for request_id in self.router.live_request_ids:
            self.fail(request_id, CUT)

    def vllm_args(self, engine_args: dict[str, Any]) -> Any:
        from controller.adapters.vllm.endpoint import openai_app

        cfg = self.config
        keys = [parse_line(line).key for line in cfg.api_keys]
        return openai_app.parse_args(engine_args, cfg.options, keys, cfg.host, cfg.port)

    def _on_directory(self, instances: Sequence[InstanceEntry]) -> None:
        if instances and not self.info.done():
            self.info.set_result(instances[0].info)

    def _on_limits(self, limits: FrontendLimits) -> None:
        self.book.set_targets(limits.levels)
        self.traffic.set_rules(limits.traffic)
        self.on.limits(limits)

    @abstractmethod
    def _on_adapters(self, message: AdaptersSet) -> None:
        """Called once when this frontend serves, and at each change."""


class HostedModel(ServedModel):
    """A model that the cluster has instances of. vLLM's app answers its requests."""

    def __init__(
        self,
        config: FrontendConfig,
        model: ModelConfig,
        member: ControllerLink,
        mailbox: Mailbox,
        observer: RequestObserver,
    ) -> None:
        self._model = model
        self.llm: Any = None
        self._models: Any = None
        """vLLM's list of the models that clients may name: this one and its LoRA adapters."""
        super().__init__(
            config,
            model.name,
            member,
            mailbox,
            observer,
            is_one_of_several=model.is_one_of_several,
        )

    def configure(self) -> None:
        from controller.adapters.vllm.endpoint import openai_app
        from controller.adapters.vllm.grammars import app_checks as grammar_checks

        self.args = self.vllm_args(self._model.engine_args)
        self._vllm = openai_app.build_config(self.args)
        self._tries: Tries = grammar_checks.make_process(self._vllm)
        self.grammars = GrammarTrials(self._tries)

    async def app(self, why_not_ready: Callable[[], str]) -> Any:
        """vLLM's app of this model, once an instance of it has said how large it is."""
        from controller.adapters.vllm.endpoint import openai_app
        from controller.adapters.vllm.endpoint.pool_client import PoolLimits, PoolLLM

        info, config = await self.info, self._vllm
        openai_app.adopt_engine_info(config, info, self._model.num_instances)
        limits = PoolLimits(
            info.supported_tasks,
            {name: rank for rank, name in self.config.level_names.items()},
            self._model.num_instances - 1,
            bool(config.cache_config.enable_prefix_caching),
            self._model.is_one_of_several,
        )
        log_stats = not self.args.disable_log_stats
        self.llm = PoolLLM(config, self.router, limits, self.grammars, log_stats)
        app = await openai_app.build_model_app(
            self.llm, self.args, info.supported_tasks, why_not_ready
        )
        self._models = app.state.openai_serving_models
        return app

    async def start_grammars(self) -> None:
        """Starts the process that tries grammars, unless the instances follow none."""
        if not self._model.expects_grammars or not isinstance(self._tries, GrammarProcess):
            return
        try:
            await self._tries.start()
        except OSError as error:
            log.warning("the process that tries grammars did not start: %s", error)

    @property
    def is_at_work(self) -> bool:
        return bool(self.router.num_live_reqs or self.grammars.num_waiting)

    def fail(
        self,
        request_id: str,
        why: str,
        status: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE,
        outcome: RequestState = RequestState.FAILED,
    ) -> None:
        from vllm.exceptions import GracefulHTTPError

        self.llm.fail(request_id, GracefulHTTPError(why, status), outcome)

    def cut(self) -> None:
        """Ends all requests."""
        self.grammars.stop(CUT)
        super().cut()

    def _on_directory(self, instances: Sequence[InstanceEntry]) -> None:
        super()._on_directory(instances)
        if self.llm is not None:
            serve = {each.instance_id: each.incarnation for each in instances}
            self.llm.engine_core.instances_are(serve)

    def _on_adapters(self, message: AdaptersSet) -> None:
        from controller.adapters.vllm.endpoint import openai_app

        openai_app.offer_adapters(self._models, message.adapters, message.loaded)


class ForwardedModel(ServedModel):
    """A model that runs on attached servers only. Its requests are forwarded to them as they
    came."""

    def __init__(
        self,
        config: FrontendConfig,
        name: str,
        member: ControllerLink,
        mailbox: Mailbox,
        observer: RequestObserver,
        *,
        is_one_of_several: bool,
    ) -> None:
        super().__init__(
            config, name, member, mailbox, observer, is_one_of_several=is_one_of_several
        )
        levels = {name: rank for rank, name in config.level_names.items()}
        self._requests = ForwardedRequests(self.router, levels, self._longest)

    def configure(self) -> None:
        self.args = self.vllm_args({})

    async def app(self, why_not_ready: Callable[[], str]) -> Any:
        return build_forward_app(self.name, self._requests, why_not_ready)

    def fail(
        self,
        request_id: str,
        why: str,
        status: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE,
        outcome: RequestState = RequestState.FAILED,
    ) -> None:
        self._requests.fail(request_id, why, status, outcome)

    def _on_adapters(self, message: AdaptersSet) -> None:
        """Does nothing: attached servers get no adapters."""

    def _longest(self) -> int:
        """The most tokens that a request may have; 0 while no server is known."""
        return self.info.result().max_model_len if self.info.done() else 0


class OpenAIFrontend:
    """A frontend. If its process dies, the listening socket and connections that were not accepted
    yet survive. Its own connections end with it, and the instances abort its requests as soon as
    its inbox closes. `models`: the models that it serves, at least one."""

    def __init__(
        self,
        config: FrontendConfig,
        models: Sequence[ServedModel],
        listener: Listener,
        traces: Traces | None = None,
    ) -> None:
        self._config = config
        self._traces = traces
        # Requests that are about no model go to the first one, which is vLLM's app if there is one.
        self.models = sorted(models, key=lambda each: not isinstance(each, HostedModel))
        self._hosted = [each for each in self.models if isinstance(each, HostedModel)]
        self._listener = listener
        self._server: Any = None
        self._batches: Any = None
        """The BatchRunner; None if the endpoint has no batch API."""
        for each in models:
            each.on = OnModel(self._on_drain, self._on_limits)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serves until the cluster stops, then waits for the process to be ended. If the start
        fails, the failure is reported and the start is not repeated, because it would fail
        again."""
        for each in self.models:
            each.router.start()
        try:
            serving = await self._start()
        except Exception as error:
            log.exception("the frontend could not start")
            self._report("failed", f"{type(error).__name__}: {error}")
        else:
            self._report("active")
            await serving
            if self._traces is not None:
                await asyncio.to_thread(self._traces.close)
            self._report("stopped")
        await asyncio.Event().wait()

    def _report(self, phase: Phase, detail: str = "") -> None:
        for each in self.models:
            each.member.report(phase, detail)

    async def _start(self) -> asyncio.Task[None]:
        """Imports and configures vLLM on another thread. Meanwhile this process can report its
        progress and get messages about the instances."""
        self._report("starting", IMPORTING)
        await asyncio.to_thread(self._configure)
        self._report("starting", "waiting for an instance")
        await asyncio.gather(*(each.info for each in self._hosted))
        for each in self._hosted:
            later = _later(TRIALS_START_AFTER_S, each.start_grammars)
            self._tasks.add(asyncio.get_running_loop().create_task(later))
        return await self._serve()

    def _configure(self) -> None:
        process_setup.prepare()
        for each in self.models:
            each.configure()

    async def _serve(self) -> asyncio.Task[None]:
        from controller.adapters.connections import KeepAlive, max_kept_connections
        from controller.adapters.vllm.endpoint import openai_app

        cfg = self._config
        apps = [await each.app(self._why_not_ready) for each in self.models]
        longest = max((each.info.result().max_model_len for each in self._hosted), default=0)
        bounds = replace(cfg.limits, max_token_ids=max_token_ids(longest))
        levels = {name: rank for rank, name in cfg.level_names.items()}
        self._gate = Gate(
            bounds, cfg.api_keys, levels, cfg.hosts, self._traces, receipts=cfg.receipts
        )
        self._copies = Copies(self._gate)
        self._keep_alive = KeepAlive(max_kept_connections(), error_body)
        args = self.models[0].args
        self._add_batch_routes(apps[0])
        hosted, others = apps[: len(self._hosted)], apps[len(self._hosted) :]
        books = {each.name: each.traffic for each in self.models}
        self._server = openai_app.build_server(
            hosted, others, args, self._gate, self._keep_alive, books, self._copies
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
        self._batches = BatchRunner(files, gate.ask, lambda: gate.limits.max_live_requests)
        batch_routes.add_routes(app, files, self._batches.look)
        gate.upload_paths = {batch_routes.FILES: batch_routes.MAX_UPLOAD_BYTES}

    def _why_not_ready(self) -> str:
        """Of several models, one that can serve is enough: a request to another one is refused by
        itself."""
        if self._gate.closed:
            return STOPPING
        reasons = [each.router.why_not_ready() for each in self.models]
        return reasons[0] if all(reasons) else ""

    def _on_limits(self, limits: FrontendLimits) -> None:
        """Called once for each model when this frontend serves, and at each change of the limits.
        Requests that came before keep the limits that were in force when they came."""
        self._gate.limits = replace(
            self._gate.limits,
            max_live_requests=limits.max_live_requests,
            request_timeout_s=limits.request_timeout_s,
        )
        self._listener.set_write_timeout(limits.write_timeout_s)

    def _on_drain(self, drain: DrainFrontend) -> None:
        """Called once for each model; the first time counts."""
        if self._server is not None and self._gate.closed:
            return
        task = asyncio.get_running_loop().create_task(self._drain(drain.grace_s))
        self._tasks.add(task)

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
        self._copies.close()
        if self._batches is not None:
            await self._batches.close()  # batches go on after the next start
        deadline_s = asyncio.get_running_loop().time() + grace_s
        while (
            any(each.is_at_work for each in self.models)
            and asyncio.get_running_loop().time() < deadline_s
        ):
            await asyncio.sleep(0.02)
        for each in self.models:
            each.cut()


async def _later(after_s: float, call: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(after_s)
    await call()
