"""An Engine whose requests run on a server that somebody else started. Each request is one HTTP
call with the ids of its tokens, and the ids that are streamed back are its outputs.

Calls are made on an event loop in a thread of its own (`_Calls`), and what comes is put into a
queue. A step takes what is in the queue. When the server is gone, a step raises ServerGoneError:
the instance's process ends, its requests are replayed elsewhere, and the next process waits here
until the server answers again. So all processes handle the end of a server like the death of any
instance.

The server is gone if it refuses connections, if it has shown no sign of life for `SILENT_S` (a
token, or an answer to a probe), or if neither its counters nor its tokens have moved for `STUCK_S`
though requests run. If only one stream breaks and the server answers, that request alone is sent
again, with its outputs as a part of its prompt.

The server's memory is counted by what was sent there. What its metrics show in addition are other
clients' requests, and counts as used."""

import asyncio
import contextlib
import json
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import msgspec

from controller.adapters import vllm_wire as wire
from controller.adapters.attached.attached_moves import UNABLE, AttachedMoves
from controller.adapters.attached.servers import (
    DIALECTS,
    METRICS,
    PROBE,
    Event,
    Generation,
    Metrics,
    ServerError,
    ServerLoad,
    error_in,
    headers,
    identify,
    words,
)
from controller.core.fleet.adapters import Adapter
from controller.core.fleet.attached import SERVER_REFUSED, AttachedServer, why_not_carried
from controller.core.load.snapshot import InstanceSnapshot, PrefillSpeed, QueueHead, blocks_for
from controller.core.load.step_times import StepLimit
from controller.ports.engine import (
    EmittedTokens,
    EngineEvent,
    Frames,
    StepOutputs,
    StepPhase,
)

log = logging.getLogger(__name__)

STEP_WAIT_S = 0.005
"""How long a step waits for tokens. Commands run between steps, so a new request waits this long at
most until it is sent."""
PROBE_EVERY_S = 1.0
PROBE_TIMEOUT_S = 2.0
SILENT_S = 5.0
STUCK_S = 120.0
MAX_BROKEN = 3
"""How often the stream of one request may break without a token in between."""
BUSY = (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE)
"""The answers of a server that takes a request later."""
BUSY_WAIT_S = 0.25
ENOUGH_TOKENS = 256
"""So many tokens of prompts must have been computed before there is an estimate of the speed."""
KEPT = 0.98
"""How much an earlier measurement counts after a further one."""


class ServerGoneError(Exception):
    """The server does not serve any more."""


@dataclass(slots=True)
class AttachedRequest:
    """A request on its way to the server, or running there. `eos_token_id`: None if the answer does
    not end at the model's end token. Used on the engine's thread only, except what never
    changes."""

    request: wire.Request
    params: Mapping[str, Any]
    prompt: Sequence[int]
    max_tokens: int
    """How many tokens the answer may have in all."""
    eos_token_id: int | None
    frontend_index: int
    outputs: list[int] = field(default_factory=list)
    rank: int = 0
    taken: bool = False
    """Whether the server has taken it, and has not let it fall since."""
    sent_s: float = 0.0
    first_s: float | None = None
    """When its first token on this instance came."""
    last_s: float = 0.0
    """When its latest token came."""
    news: list[wire.RequestEvent] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.outputs)

    def left(self) -> Generation:
        """What is still to be generated. The server gets the outputs so far as prompt."""
        get = self.params.get
        return Generation(
            [*self.prompt, *self.outputs],
            self.max_tokens - len(self.outputs),
            temperature=get("temperature", 1.0),
            top_p=get("top_p", 1.0),
            top_k=get("top_k", 0),
            min_p=get("min_p", 0.0),
            eos_token_id=self.eos_token_id,
            stop_token_ids=tuple(get("stop_token_ids") or ()),
        )


_PARAMS = wire.Request.__struct_fields__.index("sampling_params")


def prepared(frames: Frames, frontend_index: int, max_model_len: int) -> AttachedRequest:
    """Raises ValueError if the request cannot be carried over to a server."""
    request = wire.decode_request(frames)
    params = msgspec.msgpack.decode(frames[0])[_PARAMS]
    prompt = request.prompt_token_ids
    if params is None or request.pooling_params is not None:
        raise ValueError(f"{UNABLE}: it is not a generation")
    if request.mm_features or request.prompt_embeds is not None or not prompt:
        raise ValueError(f"{UNABLE}: its prompt is more than tokens")
    if request.lora_request is not None:
        raise ValueError(f"{UNABLE}: it has a LoRA adapter")
    if request.resumable or request.cache_salt is not None:
        raise ValueError(f"{UNABLE}: it has a cache salt, or its prompt is streamed in")
    if why_not := why_not_carried(params):
        raise ValueError(f"{UNABLE}: {why_not}")
    room = max_model_len - len(prompt)
    if room < 1:
        raise ValueError(f"{UNABLE}: its prompt leaves no room in {max_model_len} tokens")
    limit = params.get("max_tokens", 16)
    return AttachedRequest(
        request,
        params,
        prompt,
        room if limit is None else min(limit, room),
        params.get("_eos_token_id"),
        frontend_index,
        rank=-request.priority,
    )


# -- calls to the server ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Came:
    """Tokens of a request. `refused`: why the server ends it with an error; empty if it does
    not."""

    request: AttachedRequest
    event: Event
    refused: str = ""


@dataclass(frozen=True, slots=True)
class _Taken:
    request: AttachedRequest


@dataclass(frozen=True, slots=True)
class _Broken:
    """The stream of a request broke, and the server still answers."""

    request: AttachedRequest


_Outputs = dict[str, tuple[AttachedRequest, wire.Output]]
"""What a step has of each request, by its id."""


class _Calls:
    """The calls to one server. `start`, `abort` and `close` may be called from any thread. What
    comes is put into `inbox`; `gone` says why the server is gone, once it is."""

    def __init__(self, server: AttachedServer) -> None:
        self.inbox: queue.SimpleQueue[_Came | _Taken | _Broken] = queue.SimpleQueue()
        self.gone = ""
        self.load = ServerLoad()
        """What the server's metrics said last."""
        self._server = server
        self._dialect = DIALECTS[server.kind]
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

    def start(self, request: AttachedRequest) -> None:
        """Sends the request, with its outputs as a part of its prompt."""
        self._loop.call_soon_threadsafe(self._begin, request, request.left())

    def abort(self, request: AttachedRequest) -> None:
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

    def _begin(self, request: AttachedRequest, wanted: Generation) -> None:
        task = self._loop.create_task(self._call(request, wanted))
        self._tasks[id(request)] = task
        task.add_done_callback(lambda done: self._ended(request, done))

    def _ended(self, request: AttachedRequest, task: asyncio.Task[None]) -> None:
        if self._tasks.get(id(request)) is task:  # it may have been sent again already
            del self._tasks[id(request)]

    def _end(self, request: AttachedRequest) -> None:
        if task := self._tasks.get(id(request)):
            task.cancel()  # which closes the connection, by which the server notices

    async def _call(self, request: AttachedRequest, wanted: Generation) -> None:
        try:
            while not await self._stream(request, wanted):
                await asyncio.sleep(BUSY_WAIT_S)
        except (httpx.HTTPError, ServerError, KeyError, TypeError, IndexError, ValueError) as error:
            name = request.request.request_id
            log.info("%s: its stream broke: %s", name, words(error))
            if await self._answers():
                self.inbox.put(_Broken(request))
            else:
                self._leave(f"a stream broke ({words(error)}), and it answers no probe")

    async def _stream(self, request: AttachedRequest, wanted: Generation) -> bool:
        """Sends the request and passes on its tokens until its end. Returns False if the server is
        too busy to take it now. Raises httpx.HTTPError if the stream breaks."""
        body = self._dialect.body(self._server, wanted)
        num_seen = 0
        sent = {**(request.request.trace_headers or {}), **headers(self._server)}
        async with self._client.stream(
            "POST", self._dialect.path, json=body, headers=sent
        ) as answer:
            if answer.status_code in BUSY:
                return False
            if answer.status_code != httpx.codes.OK:
                told = _json(await answer.aread())
                what = f"it answers {answer.status_code}: {error_in(told) or 'no reason'}"
                self.inbox.put(_Came(request, Event(), what))
                return True
            self._life_s = time.monotonic()
            self.inbox.put(_Taken(request))
            async for line in answer.aiter_lines():
                if not line.startswith("data:") or line == "data: [DONE]":
                    continue
                told = json.loads(line[5:])
                if what := error_in(told):
                    raise ServerError(what)
                event = self._dialect.event(told, num_seen, wanted)
                self._life_s = self._moved_s = time.monotonic()
                num_seen += len(event.token_ids)
                if event.finish_reason == "abort":
                    raise ServerError("it aborted the request")
                if event.token_ids or event.finish_reason:
                    self.inbox.put(_Came(request, event))
                if event.finish_reason:
                    return True
        raise httpx.ReadError("the stream ended before the answer did")

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
            if not self._tasks:
                self._moved_s = time.monotonic()
            elif stuck_s > STUCK_S:
                self._leave(f"nothing came for {len(self._tasks)} requests in {stuck_s:.0f} s")
            await asyncio.sleep(PROBE_EVERY_S)

    async def _look(self) -> None:
        page = await self._get(METRICS)
        if page.status_code != httpx.codes.OK:  # switched off
            probe = await self._get(PROBE)
            if probe.status_code != httpx.codes.OK:
                raise ServerError(f"{PROBE} answers {probe.status_code}")
            return
        before, self.load = self.load, self._dialect.load(Metrics.of(page.text))
        if self.load.num_tokens != before.num_tokens:
            self._moved_s = time.monotonic()
        probe = await self._get(PROBE)
        if probe.status_code != httpx.codes.OK:
            raise ServerError(f"{PROBE} answers {probe.status_code}")

    async def _answers(self) -> bool:
        try:
            return (await self._get(PROBE)).status_code == httpx.codes.OK
        except (httpx.HTTPError, ServerError):
            return False

    async def _get(self, path: str) -> httpx.Response:
        return await self._client.get(path, headers=headers(self._server), timeout=PROBE_TIMEOUT_S)

    def _leave(self, why_gone: str) -> None:
        self.gone = self.gone or f"{self._server.url} is gone: {why_gone}"


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


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


class AttachedEngine:
    """`report` is told why the engine still waits for the server."""

    supported_tasks: tuple[str, ...] = ("generate",)
    emulation = None
    prefixes = None
    encode = staticmethod(wire.encode_outputs)

    def __init__(self, server: AttachedServer, report: Callable[[str], None]) -> None:
        _wait_for(server, report)
        self.server = server
        self.max_model_len = server.max_model_len
        self.block_size = server.block_size
        self._num_blocks = server.capacity_tokens // server.block_size
        self.num_gpu_blocks = self._num_blocks + 1  # vLLM's number includes its null block
        self.max_num_running = server.max_num_running
        self.on_phase: Callable[[StepPhase], None] = lambda phase: None
        self.live: dict[str, AttachedRequest] = {}
        """The requests that were sent, by id, in the order in which they came."""
        self._broken: Counter[str] = Counter()
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
        self._calls = _Calls(server)

    def limit_steps(self, limit: StepLimit) -> None:
        """Does nothing: the server decides what a step of it computes."""

    def prepare(self, frames: Frames, frontend_index: int) -> AttachedRequest:
        return prepared(frames, frontend_index, self.max_model_len)

    def add(self, prepared: AttachedRequest) -> None:
        request_id, now_s = prepared.request.request_id, time.monotonic()
        self.live[request_id] = prepared
        prepared.news.append(wire.RequestEvent(wire.QUEUED, now_s))
        prepared.sent_s = now_s
        self._calls.start(prepared)

    def load_adapter(self, adapter: Adapter, folder: str) -> None:
        del folder
        raise ValueError(f"{self.server.url} is attached, and gets no adapters: {adapter.name}")

    def unload_adapter(self, number: int) -> bool:
        raise KeyError(number)

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if live := self.live.pop(request_id, None):
                self._broken.pop(request_id, None)
                self._calls.abort(live)

    def has_work(self) -> bool:
        """True also once the server is gone, so that the next step says so."""
        return bool(self.live) or bool(self._calls.gone)

    def step(self) -> Sequence[StepOutputs]:
        """Takes what has come since the last step, and waits a moment for it if nothing has. Raises
        ServerGoneError once all that came is taken."""
        outputs: _Outputs = {}
        with contextlib.suppress(queue.Empty):
            self._take(self._calls.inbox.get(timeout=STEP_WAIT_S), outputs)
            while True:
                self._take(self._calls.inbox.get_nowait(), outputs)
        if self._calls.gone and not outputs:
            raise ServerGoneError(self._calls.gone)
        self.on_phase("after-schedule")
        self.on_phase("after-update")
        return self._by_frontend(outputs.values())

    def encode_one(self, body: wire.Outputs, request_id: str) -> Frames:
        outputs = [output for output in body.outputs if output.request_id == request_id]
        return wire.encode_outputs(
            wire.Outputs(body.engine_index, outputs, timestamp=body.timestamp)
        )

    def encode_rest(self) -> Frames:
        return wire.encode_outputs(wire.Outputs(scheduler_stats=wire.SchedulerStats()))

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

    def _take(self, item: "_Came | _Taken | _Broken", outputs: _Outputs) -> None:
        """Takes an item in. A step has one output of a request at most, as an engine's steps do, so
        all tokens that came meanwhile are in it."""
        live, request_id = item.request, item.request.request.request_id
        if self.live.get(request_id) is not live:
            return  # it was aborted, or has ended
        match item:
            case _Came(event=event, refused=refused):
                if request_id not in outputs:
                    outputs[request_id] = live, wire.Output(request_id, [])
                self._tell(live, event, refused, outputs[request_id][1])
            case _Taken():
                live.taken = True
                self._note("admitted", live)
                live.news.append(wire.RequestEvent(wire.SCHEDULED, time.monotonic()))
            case _Broken():
                self._broken[request_id] += 1
                if self._broken[request_id] > MAX_BROKEN:
                    what = f"the stream of {request_id} broke {MAX_BROKEN + 1} times in a row"
                    raise ServerGoneError(f"{self.server.url}: {what}")
                if live.taken:
                    live.taken = False
                    self._note("evicted", live)
                self._calls.start(live)

    def _tell(self, live: AttachedRequest, event: Event, refused: str, output: wire.Output) -> None:
        """Adds tokens to the output. The request may end by them, whatever the server says."""
        if live.news:
            output.events, live.news = [*(output.events or ()), *live.news], []
        if refused:
            self._finish(live, output, "error", f"{SERVER_REFUSED}{refused}")
            return
        if event.token_ids:
            self._broken.pop(live.request.request_id, None)
        ids = list(event.token_ids)
        stops = live.params.get("stop_token_ids") or ()
        ends = {live.eos_token_id, *stops}
        last = ids[-1] if ids else None
        if event.finish_reason == "stop" and event.ends_with is not None and last not in ends:
            ids.append(event.ends_with)
        ids = ids[: live.max_tokens - len(live.outputs)]
        at = next((place for place, each in enumerate(ids) if each in ends), None)
        taken = ids if at is None else ids[: at + 1]
        if taken:
            self._measure(live, len(taken), output)
        live.outputs += taken
        output.new_token_ids += taken
        if at is not None:
            ended_by = ids[at]
            is_eos = ended_by == live.eos_token_id
            self._finish(live, output, "stop", None if is_eos else ended_by)
        elif len(live.outputs) >= live.max_tokens:
            self._finish(live, output, "length", None)
        elif event.finish_reason:
            self._finish(live, output, event.finish_reason, None)

    def _finish(
        self, live: AttachedRequest, output: wire.Output, reason: str, stop: int | str | None
    ) -> None:
        known = reason if reason in wire.FINISH_REASONS else "stop"
        output.finish_reason, output.stop_reason = wire.FINISH_REASONS.index(known), stop
        self.abort([live.request.request_id])  # the server may be about to compute more

    def _measure(self, live: AttachedRequest, num_tokens: int, output: wire.Output) -> None:
        """Learns from the times of tokens how fast the server is. It computes prompts one after the
        other, so the time of a prompt begins with the first token before it."""
        now_s = time.monotonic()
        if live.first_s is None:
            num_computed = live.num_tokens
            self._prefill.add(now_s - max(live.sent_s, self._first_s), num_computed)
            self._num_measured += num_computed
            self._first_s = now_s
            if not live.outputs:
                num_prompt = len(live.prompt)
                output.prefill_stats = wire.PrefillStats(num_prompt, num_prompt)
            live.first_s = live.last_s = now_s
        self._gap.add(now_s - live.last_s, num_tokens)
        live.last_s = now_s

    def _note(self, kind: Literal["admitted", "evicted"], live: AttachedRequest) -> None:
        self._events.append(
            EngineEvent(kind, live.request.request_id, time.time(), live.num_tokens)
        )

    def _by_frontend(
        self, outputs: Iterable[tuple[AttachedRequest, wire.Output]]
    ) -> list[StepOutputs]:
        found: dict[int, tuple[list[EmittedTokens], list[wire.Output]]] = {}
        for live, output in outputs:
            emitted, bodies = found.setdefault(live.frontend_index, ([], []))
            reason = output.finish_reason
            word = None if reason is None else wire.FINISH_REASONS[reason]
            emitted.append(EmittedTokens(output.request_id, len(output.new_token_ids), word))
            bodies.append(output)
        if not found:
            return []
        snapshot, now_s = self.snapshot("", 0), time.monotonic()
        stats = wire.SchedulerStats(
            snapshot.num_running,
            snapshot.num_queued,
            snapshot.num_used_blocks / max(1, snapshot.num_total_blocks),
        )
        return [
            StepOutputs(
                index,
                tuple(emitted),
                wire.Outputs(outputs=bodies, scheduler_stats=stats, timestamp=now_s),
            )
            for index, (emitted, bodies) in found.items()
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
            num_evicted_queued=sum(bool(each.outputs) for each in waiting),
            backlog_s=sum(prefills) * token_s,
            prefill_speed=PrefillSpeed(token_s, 0.0),
            decode_step_s=self._gap.value if decodes else 0.0,
            is_attached=True,
        )

    def _head(self, waiting: Sequence[AttachedRequest]) -> QueueHead | None:
        if not waiting:
            return None
        first = waiting[0]
        return QueueHead(
            first.request.request_id,
            first.rank,
            blocks_for(first.num_tokens, self.block_size),
            first.request.arrival_time,
            bool(first.outputs),
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
            found = identify(server.url, server.key_file).server
            if httpx.get(
                f"{server.url}{PROBE}", headers=headers(server), timeout=PROBE_TIMEOUT_S
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
