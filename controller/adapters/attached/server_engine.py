"""Calls to an attached server, and the engine that makes one call of each request. What the calls
carry is left to two engines: ids of tokens (`attached_engine`), or the client's own body
(`forward_engine`).

Calls are made on an event loop in a thread of its own (`Calls`), and what comes is put into a
queue. A step takes what is in the queue. When the server is gone, a step raises ServerGoneError:
the instance's process ends, its requests are replayed elsewhere, and the next process waits here
until the server answers again. So all processes handle the end of a server like the death of any
instance.

The server is gone if it refuses connections, if it has shown no sign of life for `SILENT_S` (a part
of an answer, or an answer to a probe), or if neither its counters nor its answers have moved for
`STUCK_S` though requests run.

The server's memory is counted by what was sent there. What its metrics show in addition are other
clients' requests, and counts as used."""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import httpx

from controller.adapters.attached.attached_moves import AttachedMoves
from controller.adapters.attached.servers import (
    DIALECTS,
    METRICS,
    Metrics,
    ServerError,
    ServerLoad,
    headers,
    identify,
    probe_of,
    words,
)
from controller.core.fleet.adapters import Adapter
from controller.core.fleet.attached import AttachedServer
from controller.core.load.snapshot import InstanceSnapshot, PrefillSpeed, QueueHead, blocks_for
from controller.core.load.step_times import StepLimit
from controller.ports.engine import EmittedTokens, EngineEvent, Frames, StepOutputs, StepPhase

log = logging.getLogger(__name__)

STEP_WAIT_S = 0.005
"""How long a step waits for answers. Commands run between steps, so a new request waits this long
at most until it is sent."""
PROBE_EVERY_S = 1.0
PROBE_TIMEOUT_S = 2.0
SILENT_S = 5.0
STUCK_S = 120.0
MAX_BROKEN = 3
"""How often the stream of one request may break without an output in between."""
BUSY = (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE)
"""The answers of a server that takes a request later."""
BUSY_WAIT_S = 0.25
ENOUGH_TOKENS = 256
"""So many tokens of prompts must have been computed before there is an estimate of the speed."""
KEPT = 0.98
"""How much an earlier measurement counts after a further one."""


class ServerGoneError(Exception):
    """The server does not serve any more."""


@dataclass(slots=True, kw_only=True)
class ServerRequest(ABC):
    """A request on its way to the server, or running there. Used on the engine's thread only,
    except what never changes. `max_tokens`: how many tokens the answer may have in all."""

    request_id: str
    arrival_time_s: float
    frontend_index: int
    num_prompt_tokens: int
    max_tokens: int
    rank: int = 0
    taken: bool = False
    """Whether the server has taken it, and has not let it fall since."""
    sent_s: float = 0.0
    first_s: float | None = None
    """When its first token on this instance came."""
    last_s: float = 0.0
    """When its latest token came."""

    @property
    @abstractmethod
    def num_outputs(self) -> int: ...

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_outputs

    @abstractmethod
    def left(self) -> Any:
        """What the server is asked for, with the outputs so far. It may be read on any thread."""


# -- calls to the server ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Came:
    """A part of a request's answer. `refused`: why the server ends it with an error; empty if it
    does not."""

    request: Any
    event: Any
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    request: Any


@dataclass(frozen=True, slots=True)
class Broken:
    """The stream of a request broke, and the server still answers."""

    request: Any
    why: str


class Calls(ABC):
    """The calls to one server. `start`, `abort` and `close` may be called from any thread. What
    comes is put into `inbox`; `gone` says why the server is gone, once it is."""

    def __init__(self, server: AttachedServer) -> None:
        self.inbox: queue.SimpleQueue[Came | Taken | Broken] = queue.SimpleQueue()
        self.gone = ""
        self.load = ServerLoad()
        """What the server's metrics said last."""
        self._server = server
        self._probe = probe_of(server.kind)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """By the identity of the request's object, because a replay has the same id again."""
        self._life_s = self._moved_s = time.monotonic()
        """When the server last showed a sign of life, and when a counter of it last moved."""
        self._loop: asyncio.AbstractEventLoop
        self._closed: asyncio.Event
        self._client: httpx.AsyncClient
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server calls", daemon=True)
        self._thread.start()
        self._ready.wait()

    def start(self, request: ServerRequest) -> None:
        """Sends the request, with its outputs as a part of its prompt."""
        self._loop.call_soon_threadsafe(self._begin, request, request.left())

    def abort(self, request: ServerRequest) -> None:
        self._loop.call_soon_threadsafe(self._end, request)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join()

    # -- on the loop's thread ------------------------------------------------------------

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._closed = asyncio.get_running_loop(), asyncio.Event()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        timeout = httpx.Timeout(None, connect=PROBE_TIMEOUT_S)
        async with httpx.AsyncClient(
            base_url=self._server.url, limits=limits, timeout=timeout
        ) as self._client:
            watching = self._loop.create_task(self._watch())
            self._ready.set()
            await self._closed.wait()
            tasks = [watching, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, request: ServerRequest, wanted: Any) -> None:
        task = self._loop.create_task(self._call(request, wanted))
        self._tasks[id(request)] = task
        task.add_done_callback(lambda done: self._ended(request, done))

    def _ended(self, request: ServerRequest, task: asyncio.Task[None]) -> None:
        if self._tasks.get(id(request)) is task:  # it may have been sent again already
            del self._tasks[id(request)]

    def _end(self, request: ServerRequest) -> None:
        if task := self._tasks.get(id(request)):
            task.cancel()  # which closes the connection, by which the server notices

    async def _call(self, request: ServerRequest, wanted: Any) -> None:
        try:
            while not await self._stream(request, wanted):
                await asyncio.sleep(BUSY_WAIT_S)
        except (httpx.HTTPError, ServerError, KeyError, TypeError, IndexError, ValueError) as error:
            name = request.request_id
            log.info("%s: its stream broke: %s", name, words(error))
            if await self._answers():
                self.inbox.put(Broken(request, words(error)))
            else:
                self._leave(f"a stream broke ({words(error)}), and it answers no probe")

    @abstractmethod
    async def _stream(self, request: Any, wanted: Any) -> bool:
        """Sends the request and passes on what comes until the end of the answer. Returns False if
        the server is too busy to take it now. Raises httpx.HTTPError if the stream breaks."""

    def _took(self, request: ServerRequest) -> None:
        self._life_s = time.monotonic()
        self.inbox.put(Taken(request))

    def _moved(self) -> None:
        """Notes that a part of an answer came."""
        self._life_s = self._moved_s = time.monotonic()

    async def _watch(self) -> None:
        """Probes the server and reads its metrics, until it is gone."""
        num_refused = 0
        while not self.gone:
            try:
                await self._look()
                self._life_s, num_refused = time.monotonic(), 0
            except httpx.ConnectError as error:
                num_refused += 1
                if num_refused > 1:
                    self._leave(f"it refuses connections: {words(error)}")
            except (httpx.HTTPError, ServerError) as error:
                silent_s = time.monotonic() - self._life_s
                if silent_s > SILENT_S:
                    self._leave(f"no sign of life for {silent_s:.0f} s: {words(error)}")
            except Exception:  # for example a page that is no page of metrics
                log.exception("the metrics of %s cannot be read", self._server.url)
            stuck_s = time.monotonic() - self._moved_s
            if not self._shows_progress():
                self._moved_s = time.monotonic()
            elif stuck_s > STUCK_S:
                self._leave(f"nothing came for {len(self._tasks)} requests in {stuck_s:.0f} s")
            await asyncio.sleep(PROBE_EVERY_S)

    def _shows_progress(self) -> bool:
        """Whether something would move by now if the server computed."""
        return bool(self._tasks)

    async def _look(self) -> None:
        if (dialect := DIALECTS.get(self._server.kind)) is not None:
            page = await self._get(METRICS)
            if page.status_code == httpx.codes.OK:  # else they are switched off
                before, self.load = self.load, dialect.load(Metrics.of(page.text))
                if self.load.num_tokens != before.num_tokens:
                    self._moved_s = time.monotonic()
        probe = await self._get(self._probe)
        if probe.status_code != httpx.codes.OK:
            raise ServerError(f"{self._probe} answers {probe.status_code}")

    async def _answers(self) -> bool:
        try:
            return (await self._get(self._probe)).status_code == httpx.codes.OK
        except (httpx.HTTPError, ServerError):
            return False

    async def _get(self, path: str) -> httpx.Response:
        return await self._client.get(path, headers=headers(self._server), timeout=PROBE_TIMEOUT_S)

    def _leave(self, why_gone: str) -> None:
        self.gone = self.gone or f"{self._server.url} is gone: {why_gone}"


# -- the engine ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Mean:
    """A mean in which later measurements count more."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float) -> None:
        self.total = self.total * KEPT + value
        self.weight = self.weight * KEPT + weight

    @property
    def value(self) -> float:
        return self.total / self.weight if self.weight else 0.0


R = TypeVar("R", bound=ServerRequest)
O = TypeVar("O")  # noqa: E741 - the output of one request in one step


class ServerEngine(ABC, Generic[R, O]):
    """`report` is told why the engine still waits for the server. `calls`: makes the calls to
    it."""

    supported_tasks: tuple[str, ...] = ("generate",)
    emulation = None
    prefixes = None

    def __init__(
        self,
        server: AttachedServer,
        report: Callable[[str], None],
        calls: Callable[[AttachedServer], Calls],
    ) -> None:
        _wait_for(server, report)
        self.server = server
        self.max_model_len = server.max_model_len
        self.block_size = server.block_size
        self._num_blocks = server.capacity_tokens // server.block_size
        self.num_gpu_blocks = self._num_blocks + 1  # vLLM's number includes its null block
        self.max_num_running = server.max_num_running
        self.on_phase: Callable[[StepPhase], None] = lambda phase: None
        self.live: dict[str, R] = {}
        """The requests that were sent, by id, in the order in which they came."""
        self._num_broken: Counter[str] = Counter()
        """How often the stream of each request broke since its last output."""
        self._events: list[EngineEvent] = []
        self._prefill, self._gap = _Mean(), _Mean()
        self._first_s = 0.0
        """When the last first token came."""
        self._num_measured = 0
        """Of how many tokens of prompts the time was measured."""
        self._load_seen: ServerLoad | None = None
        self._other_blocks = self._num_others = 0
        """What other clients use by the latest metrics: blocks, and places in the batch."""
        self.moves = AttachedMoves(self)
        self._calls = calls(server)

    def limit_steps(self, limit: StepLimit) -> None:
        """Does nothing: the server decides what a step of it computes."""

    @abstractmethod
    def prepare(self, frames: Frames, frontend_index: int) -> R: ...

    @abstractmethod
    def encode(self, body: Any) -> Frames: ...

    @abstractmethod
    def encode_one(self, body: Any, request_id: str) -> Frames: ...

    @abstractmethod
    def encode_rest(self) -> Frames: ...

    @abstractmethod
    def reenter(self, prepared: R, output_token_ids: Sequence[int]) -> None:
        """Goes on with a request after these outputs. Raises ValueError if it cannot."""

    def add(self, prepared: R) -> None:
        prepared.sent_s = time.monotonic()
        self.live[prepared.request_id] = prepared
        self._calls.start(prepared)

    def load_adapter(self, adapter: Adapter, folder: str) -> None:
        del folder
        raise ValueError(f"{self.server.url} is attached, and gets no adapters: {adapter.name}")

    def unload_adapter(self, number: int) -> bool:
        raise KeyError(number)

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if live := self.live.pop(request_id, None):
                self._num_broken.pop(request_id, None)
                self._calls.abort(live)

    def has_work(self) -> bool:
        """True also once the server is gone, so that the next step says so."""
        return bool(self.live) or bool(self._calls.gone)

    def step(self) -> Sequence[StepOutputs]:
        """Takes what has come since the last step, and waits a moment for it if nothing has. Raises
        ServerGoneError once all that came is taken."""
        outputs: dict[str, tuple[R, O]] = {}
        with contextlib.suppress(queue.Empty):
            self._take(self._calls.inbox.get(timeout=STEP_WAIT_S), outputs)
            while True:
                self._take(self._calls.inbox.get_nowait(), outputs)
        if self._calls.gone and not outputs:
            raise ServerGoneError(self._calls.gone)
        self.on_phase("after-schedule")
        self.on_phase("after-update")
        return self._by_frontend(outputs.values())

    def take_events(self) -> Sequence[EngineEvent]:
        events, self._events = self._events, []
        return events

    def take_cache_changes(self) -> Mapping[int, bool]:
        """What the server has cached is not known."""
        return {}

    def take_host_cache_changes(self) -> None:
        return None

    def shutdown(self) -> None:
        self._calls.close()

    # -- what comes ----------------------------------------------------------------------

    @abstractmethod
    def _output(self, request_id: str) -> O:
        """An empty output of the request."""

    @abstractmethod
    def _tell(self, live: R, came: Came, output: O) -> None:
        """Adds what came to the output. The request may end by it, whatever the server says."""

    def _took(self, live: R) -> None:
        """Called when the server has taken the request."""

    @abstractmethod
    def _broke(self, live: R, why: str) -> str:
        """Whether the request ends now that its stream broke: with which error; empty if it is sent
        again. Raises ServerGoneError if its server counts as gone."""

    @abstractmethod
    def _emitted(self, output: O) -> EmittedTokens: ...

    @abstractmethod
    def _body(self, outputs: list[O]) -> Any:
        """The body of a step for one frontend."""

    def _take(self, item: Came | Taken | Broken, outputs: dict[str, tuple[R, O]]) -> None:
        """Takes an item in. A step has one output of a request at most, as an engine's steps do, so
        all that came meanwhile is in it."""
        live: R = item.request
        request_id = live.request_id
        if self.live.get(request_id) is not live:
            return  # it was aborted, or has ended
        match item:
            case Came():
                self._tell(live, item, self._output_in(outputs, live))
            case Taken():
                live.taken = True
                self._note("admitted", live)
                self._took(live)
            case Broken(why=why):
                self._num_broken[request_id] += 1
                if refused := self._broke(live, why):
                    self._tell(live, Came(live, None, refused), self._output_in(outputs, live))
                    return
                if live.taken:
                    live.taken = False
                    self._note("evicted", live)
                self._calls.start(live)

    def _output_in(self, outputs: dict[str, tuple[R, O]], live: R) -> O:
        request_id = live.request_id
        if request_id not in outputs:
            outputs[request_id] = live, self._output(request_id)
        return outputs[request_id][1]

    def _measure(self, live: R, num_tokens: int) -> bool:
        """Learns from the times of tokens how fast the server is. It computes prompts one after the
        other, so the time of a prompt begins with the first token before it. Returns whether these
        are the request's first tokens here."""
        now_s = time.monotonic()
        is_first = live.first_s is None
        if is_first:
            num_computed = live.num_tokens
            self._prefill.add(now_s - max(live.sent_s, self._first_s), num_computed)
            self._num_measured += num_computed
            live.first_s = live.last_s = self._first_s = now_s
        self._gap.add(now_s - live.last_s, num_tokens)
        live.last_s = now_s
        return is_first

    def _note(self, kind: Literal["admitted", "evicted"], live: R) -> None:
        self._events.append(EngineEvent(kind, live.request_id, time.time(), live.num_tokens))

    def _by_frontend(self, outputs: Iterable[tuple[R, O]]) -> list[StepOutputs]:
        found: dict[int, list[O]] = {}
        for live, output in outputs:
            found.setdefault(live.frontend_index, []).append(output)
        return [
            StepOutputs(index, tuple(map(self._emitted, of_frontend)), self._body(of_frontend))
            for index, of_frontend in found.items()
        ]

    # -- load ----------------------------------------------------------------------------

    def queued(self) -> frozenset[str]:
        """The requests that wait at the server: those that it has not taken, and the newest without
        a token, as many as its metrics say."""
        without = [key for key, live in self.live.items() if live.taken and live.first_s is None]
        num_waiting = min(len(without), int(self._calls.load.num_waiting or 0))
        late = without[len(without) - num_waiting :]
        return frozenset([*late, *(key for key, live in self.live.items() if not live.taken)])

    def snapshot(self, instance_id: str, incarnation: int) -> InstanceSnapshot:
        """The memory of the server by what was sent there, and what its metrics show in
        addition."""
        size, queued = self.block_size, self.queued()
        running = [live for key, live in self.live.items() if key not in queued]
        waiting = [self.live[key] for key in self.live if key in queued]
        own = sum(blocks_for(live.num_tokens + 1, size) for live in running)
        if self._calls.load is not self._load_seen:
            self._load_seen = self._calls.load
            self._note_others(own, len(running))
        num_used = min(self._num_blocks, own + self._other_blocks)
        prefills = [live.num_tokens for live in self.live.values() if live.first_s is None]
        token_s = self._prefill.value if self._num_measured >= ENOUGH_TOKENS else 0.0
        decodes = len(prefills) < len(self.live)
        by_rank, waiting_by_rank = (Counter(each.rank for each in at) for at in (running, waiting))
        return InstanceSnapshot(
            instance_id,
            incarnation,
            size,
            self._num_blocks,
            self._num_blocks - num_used,
            max_num_running=max(1, self.max_num_running - self._num_others)
            if self.max_num_running
            else 0,
            num_running=len(running),
            num_running_by_rank=by_rank,
            num_queued=len(waiting),
            num_queued_by_rank=waiting_by_rank,
            queued_demand_blocks=sum(blocks_for(each.num_tokens, size) for each in waiting),
            queue_head=self._head(waiting),
            num_evicted_queued=sum(bool(each.num_outputs) for each in waiting),
            backlog_s=sum(prefills) * token_s,
            prefill_speed=PrefillSpeed(token_s, 0.0),
            decode_step_s=self._gap.value if decodes else 0.0,
            is_attached=True,
        )

    def _head(self, waiting: Sequence[R]) -> QueueHead | None:
        if not waiting:
            return None
        first = waiting[0]
        return QueueHead(
            first.request_id,
            first.rank,
            blocks_for(first.num_tokens, self.block_size),
            first.arrival_time_s,
            bool(first.num_outputs),
        )

    def _note_others(self, own_blocks: int, num_own: int) -> None:
        """Counts the requests of other clients. A server that does not tell how much memory they
        use may say in how many places they are; each has its share of the memory."""
        load = self._calls.load
        self._num_others = max(0, int(load.num_running or 0) - num_own)
        if load.usage is not None:
            used = round(load.usage * self._num_blocks)
        elif self.max_num_running:
            used = own_blocks + self._num_others * self._num_blocks // self.max_num_running
        else:
            used = own_blocks
        self._other_blocks = max(0, used - own_blocks)


def _wait_for(server: AttachedServer, report: Callable[[str], None]) -> None:
    """Waits until the server answers as the one that was attached. Raises ServerError if another
    one answers."""
    report(f"asking {server.url}")
    while True:
        try:
            found = identify(server.url, server.key_file, server.model).server
            if httpx.get(
                f"{server.url}{probe_of(server.kind)}",
                headers=headers(server),
                timeout=PROBE_TIMEOUT_S,
            ).is_success:
                break
            report(f"{server.url} answers that it is not ready; it is asked again every second")
        except (ServerError, httpx.HTTPError) as error:
            report(f"{server.url} does not serve: {words(error)}; it is asked again every second")
        time.sleep(PROBE_EVERY_S)
    if (found.kind, found.model) != (server.kind, server.model):
        raise ServerError(
            f"{server.url} now is a {found.kind} server with {found.model}, and was attached as a "
            f"{server.kind} server with {server.model}"
        )
    if 0 < found.max_model_len < server.max_model_len:
        raise ServerError(
            f"{server.url} now takes {found.max_model_len} tokens, and {server.max_model_len} are "
            "needed"
        )
