"""vLLM's OpenAI app and AsyncLLM over our client: what they touch, and that they serve. The pool
behind them is the real engine, stepped by the test; its router is a fake.
"""

import ast
import asyncio
import inspect
import json
import logging
import textwrap
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from controller.adapters.connections import KeepAlive
from controller.adapters.vllm.endpoint.answers import error_body
from controller.adapters.vllm.endpoint.copies import Copies
from controller.adapters.vllm.engine import VllmEngine
from controller.adapters.vllm.grammars.trials import GrammarProcess, GrammarTrials
from controller.core.fleet.adapters import Adapter
from controller.core.load.cached_prefixes import PREFIX_TOKENS
from controller.core.load.snapshot import InstanceRef
from controller.core.record.request_record import RequestState
from controller.core.replay.replay_machine import ReplayRefusal
from controller.core.scheduler_events import DispatchRequested, RejectCode
from controller.runtime.frontend.dispatcher import NotDispatchedError
from controller.runtime.frontend.request_book import RecordNow, RequestBook
from controller.runtime.frontend.traffic_recorder import PromptPrefixes
from controller.runtime.messages.codec import Inbox
from controller.runtime.messages.members import EngineInfo
from controller.runtime.messages.requests import OutputItem, OutputsEmitted

TEXT = "/v1/completions"
# What AsyncLLM sets and PoolLLM need not: only with a profiler on its workers.
NOT_SET = {"_frontend_profiler_worker_name"}
# What AsyncLLM calls on its client outside of serving: sleep, weights, LoRA, profiling, ...
NOT_SERVED = """
abort_external_elastic_ep add_lora_async collective_rpc_async commit_elastic_ep
compute_weight_checksums_async dp_engines_running get_external_elastic_ep_status
get_kv_event_sources get_status get_weight_version_async handle_fault is_scheduler_paused_async
is_sleeping_async list_loras_async pause_generation_async pause_scheduler_async pin_lora_async
prepare_elastic_ep profile_async release_kv_cache_memory_async remove_lora_async
reset_encoder_cache_async reset_prefix_cache_async resume_scheduler_async
set_weight_version_async sleep_async wake_up_async
"""


# -- what is touched ----------------------------------------------------------------------


def attributes_set(cls: type) -> set[str]:
    """`x` of every `self.x = ...` in the class's own `__init__`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls.__init__)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def test_pool_llm_sets_what_async_llm_sets() -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    from controller.adapters.vllm.endpoint.pool_client import PoolLLM

    assert attributes_set(PoolLLM) - attributes_set(AsyncLLM) == {"_turns"}
    assert attributes_set(AsyncLLM) - attributes_set(PoolLLM) == NOT_SET


def test_what_async_llm_asks_of_its_client() -> None:
    from vllm.v1.engine import async_llm

    from controller.adapters.vllm.endpoint.pool_client import PoolClient

    asked = set()
    for node in ast.walk(ast.parse(inspect.getsource(async_llm))):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = getattr(owner, "attr", getattr(owner, "id", None))
            if name == "engine_core":
                asked.add(node.attr)
    ours = {name for name in vars(PoolClient) if not name.startswith("_")} | {"resources"}
    assert asked - ours <= set(NOT_SERVED.split())


def test_our_client_s_methods_are_called_as_vllm_s_are() -> None:
    from vllm.v1.engine.core_client import EngineCoreClient

    from controller.adapters.vllm.endpoint.pool_client import PoolClient

    for name in ("add_request_async", "abort_requests_async", "shutdown"):
        theirs = list(inspect.signature(getattr(EngineCoreClient, name)).parameters)
        assert list(inspect.signature(getattr(PoolClient, name)).parameters) == theirs, name
    for name in ("get_output_async", "get_supported_tasks_async", "reset_mm_cache_async"):
        assert inspect.iscoroutinefunction(getattr(EngineCoreClient, name))
        assert inspect.iscoroutinefunction(getattr(PoolClient, name))


def messages_api(parser_cls: Any = None) -> Any:
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    from controller.adapters.vllm.endpoint.answers import mend_calls

    serving = object.__new__(AnthropicServingMessages)
    serving.parser_cls = parser_cls
    mend_calls(serving)
    return serving


def chat_of(serving: Any, tool_choice: dict[str, str]) -> Any:
    """The chat that vLLM makes of a message that may call the tools `a` and `b`."""
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest

    tool = {"name": "a", "input_schema": {"type": "object"}}
    ask = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    request = AnthropicMessagesRequest.model_validate(
        ask | {"tools": [tool, tool | {"name": "b", "strict": False}], "tool_choice": tool_choice}
    )
    return serving.to_chat_completion_request(
        request, merge_inline_system=False, disabled_thinking_effort="none"
    )


def test_calls_of_anthropic_s_messages() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse

    serving = messages_api()
    for choice, strict in (({"type": "any"}, True), ({"type": "auto"}, None)):
        chat = chat_of(serving, choice)
        assert [tool.function.strict for tool in chat.tools] == [strict, False]
    for arguments, reason, kind in (('"bus"', "end_turn", "text"), ("{}", "tool_use", "tool_use")):
        call = {"id": "1", "function": {"name": "a", "arguments": arguments}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        answer = ChatCompletionResponse.model_validate(
            {
                "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
                "usage": {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1},
            }
        )
        made = serving.messages_full_converter(answer)
        assert (made.stop_reason, [block.type for block in made.content]) == (reason, [kind])


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("hermes", '<tool_call>{"name": "a", "arguments": {"x": %d}}</tool_call>'),
        ("xlam", '{"name": "a", "parameters": {"x": %d}}, '),
    ],
)
def test_calls_before_one_that_is_cut(name: str, calls: str, engine_args: dict[str, Any]) -> None:
    from transformers import AutoTokenizer
    from vllm.parser import ParserManager

    serving = messages_api(
        ParserManager.get_parser(tool_parser_name=name, enable_auto_tools=True, model_name="m")
    )
    chat = chat_of(serving, {"type": "any"})
    parser = serving.parser_cls(AutoTokenizer.from_pretrained(engine_args["model"]), chat.tools)
    output = ("" if name == "hermes" else "[") + calls % 1 + calls % 2 + calls[:25]
    _, content, found = parser.parse(output, chat, enable_auto_tools=True)
    assert [json.loads(call.arguments) for call in found] == [{"x": 1}, {"x": 2}]
    assert not content


# -- that it serves -----------------------------------------------------------------------


@dataclass
class PlayedRouter:
    """Every request goes to the one engine, or is refused."""

    engine: VllmEngine
    frontend_id: str = "f-0"
    refusal: RejectCode | None = None
    retry_after_s: int = 1
    holding: asyncio.Event | None = None
    """No request is dispatched before this event is set."""
    inbox: Inbox = field(default_factory=lambda: Inbox({}))
    prompt_prefixes: PromptPrefixes = field(default_factory=PromptPrefixes)
    prefixes: list[tuple[int, ...]] = field(default_factory=list)
    holds_after: int | None = None
    """At most this many requests are dispatched at a time."""
    ranks: list[int] = field(default_factory=list)
    live: dict[str, int] = field(default_factory=dict)
    """Request id to the number of tokens that it has got."""
    aborted: list[str] = field(default_factory=list)
    arrivals: list[tuple[str, str, str | None]] = field(default_factory=list)
    """(request id, the client's own, the parent's)"""
    outcomes: list[tuple[RequestState, str]] = field(default_factory=list)

    async def submit(
        self,
        request: DispatchRequested,
        payload: Any,
        client_request_id: str,
        parent_id: str | None,
        prompt_token_ids: Sequence[int],
        not_replayable: ReplayRefusal | None,
        adapter: str,
        on_arrived: Callable[[RecordNow], None],
    ) -> None:
        on_arrived(RequestBook(self.frontend_id, {}).arrived(request, client_request_id, parent_id))
        assert (not_replayable, adapter) == (None, "")
        request_id, rank = request.request_id, request.rank
        assert len(prompt_token_ids) == request.num_prompt_tokens
        self.arrivals.append((request_id, client_request_id, parent_id))
        self.prefixes.append(request.prefix_hashes)
        assert request.prefix_hash_tokens == PREFIX_TOKENS
        assert request.frontend_id == self.frontend_id
        assert request.num_prompt_tokens > 0
        assert request.arrival_time_s > 1e9, "seconds since the epoch"
        await asyncio.sleep(0)
        if self.refusal:
            raise NotDispatchedError(self.refusal, self.retry_after_s)
        if self.holding is not None:
            await self.holding.wait()
        if self.holds_after is not None and len(self.live) >= self.holds_after:
            await asyncio.Event().wait()
        self.ranks.append(rank)
        self.live[request_id] = 0
        self.engine.add(self.engine.prepare([bytes(frame) for frame in payload], 0))
        assert self.engine._scheduler.requests[request_id].priority == -rank

    def abort(self, request_ids: Sequence[str], outcome: RequestState, reason: str) -> None:
        self.outcomes += [(outcome, reason) for _ in request_ids]
        self.aborted += [r for r in request_ids if self.live.pop(r, None) is not None]
        self.engine.abort(list(request_ids))

    def accept(self, _emitted: OutputsEmitted, outputs: Sequence[Any]) -> list[tuple[Any, int]]:
        return [(output, 0) for output in outputs if output.request_id in self.live]


class Bed:
    def __init__(
        self,
        engine: VllmEngine,
        llm: Any,
        gate: Any,
        router: PlayedRouter,
        process: GrammarProcess,
    ) -> None:
        self.engine, self.llm, self.gate, self.router = engine, llm, gate, router
        self.process = process
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=gate), base_url="http://localhost", timeout=30.0
        )

    async def step_for_ever(self) -> None:
        while True:
            for out in self.engine.step() if self.engine.has_work() else ():
                items = []
                for emitted in out.emitted:
                    first = self.router.live.get(emitted.request_id, 0)
                    items.append(OutputItem(emitted.request_id, 0, 0, first, emitted.num_tokens))
                    if emitted.request_id in self.router.live:
                        self.router.live[emitted.request_id] += emitted.num_tokens
                header = OutputsEmitted(InstanceRef("i-0", 1, "mem://i-0"), tuple(items))
                frames = [memoryview(bytes(frame)) for frame in self.engine.encode(out.body)]
                self.llm.engine_core.receive(header, frames)
                for emitted in out.emitted:
                    if emitted.finish_reason is not None:
                        self.router.live.pop(emitted.request_id, None)
            await asyncio.sleep(0.001)

    def left_over(self) -> set[str]:
        """Tables of the output processor that still name a request."""
        tables = ("request_states", "parent_requests", "external_req_ids")
        return {table for table in tables if getattr(self.llm.output_processor, table)}

    async def post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        return await self.http.post(path, json={"model": "embedded"} | body, headers=headers)

    async def complete(self, **what: Any) -> httpx.Response:
        body = {"prompt": "The old house", "max_tokens": 8, "temperature": 0}
        return await self.post(TEXT, body | what)


@asynccontextmanager
async def serving(engine: VllmEngine, engine_args: dict[str, Any]) -> AsyncIterator[Bed]:
    from controller.adapters.vllm.endpoint import openai_app
    from controller.adapters.vllm.endpoint.pool_client import PoolLimits, PoolLLM
    from controller.adapters.vllm.grammars import app_checks as grammar_checks

    args = openai_app.parse_args(engine_args, {}, [], "127.0.0.1", 8123)
    config = openai_app.build_config(args)
    info = EngineInfo(
        engine.max_model_len, engine.num_gpu_blocks, engine.block_size, engine.supported_tasks
    )
    openai_app.adopt_engine_info(config, info, num_instances=2)
    assert config.cache_config.num_gpu_blocks == 2 * engine.num_gpu_blocks
    router = PlayedRouter(engine)
    limits = PoolLimits(info.supported_tasks, {"normal": 0, "high": 1}, 1, prefix_caching=True)
    process = grammar_checks.make_process(config)
    assert isinstance(process, GrammarProcess)
    await process.start()  # it takes its time, beside what follows
    grammars = GrammarTrials(process)
    llm = PoolLLM(config, router, limits, grammars, log_stats=False)
    gate = openai_app.Gate(levels=limits.levels)
    tasks, stops = info.supported_tasks, lambda: "it stops" if gate.closed else ""
    app = await openai_app.build_model_app(llm, args, tasks, stops)
    keep_alive = KeepAlive(9, error_body)
    openai_app.build_server([app], [], args, gate, keep_alive, {}, Copies(gate))
    bed = Bed(engine, llm, gate, router, process)
    stepping = asyncio.create_task(bed.step_for_ever())
    try:
        yield bed
        assert not stepping.done()
    finally:
        stepping.cancel()
        await bed.http.aclose()
        llm.shutdown()
        process.close()


async def test_the_app_serves(engine: VllmEngine, engine_args: dict[str, Any]) -> None:
    """One app, because building it takes long; every scenario leaves it as it was."""
    async with serving(engine, engine_args) as bed:
        for scenario in (
            a_lost_instance,
            refusals,
            a_completion,
            prompts_that_begin_alike,
            several_choices,
            guided_decoding,
            priorities,
            stop_strings,
            a_stream_that_is_held,
            a_client_that_leaves,
            unserved_paths,
        ):
            await asyncio.wait_for(scenario(bed), 30.0)
            assert bed.router.live == {}, scenario.__name__
            assert bed.left_over() == set(), scenario.__name__
            assert engine.snapshot("i-0", 1).num_running == 0, scenario.__name__


async def a_completion(bed: Bed) -> None:
    assert logging.getLogger("controller.runtime.frontend.router").isEnabledFor(logging.INFO)
    first, second = [(await bed.complete(logprobs=2)).json() for _ in range(2)]
    assert first["usage"]["completion_tokens"] == 8
    (choice,) = first["choices"]
    assert choice["text"] == second["choices"][0]["text"] != ""
    assert len(choice["logprobs"]["token_logprobs"]) == 8
    assert all(value <= 0 for value in choice["logprobs"]["token_logprobs"])
    answer = await bed.complete(stream=True)
    *chunks, done = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert done == "[DONE]"
    assert "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks) == choice["text"]


async def prompts_that_begin_alike(bed: Bed) -> None:
    bed.router.prompt_prefixes.switch(True)
    beginning = [7] * PREFIX_TOKENS
    for what in ({}, {"prompt": [*beginning, 8]}, {"prompt": [*beginning, 9], "cache_salt": "own"}):
        assert (await bed.complete(**what, max_tokens=1)).status_code == 200
    bed.router.prompt_prefixes.switch(False)
    short, plain, salted = bed.router.prefixes[-3:]
    assert (short, len(plain), len(salted)) == ((), 1, 1)
    assert plain != salted


async def several_choices(bed: Bed) -> None:
    answer = (await bed.complete(n=3, temperature=1.0, seed=5)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 24
    children = bed.router.arrivals[-3:]
    parents = {parent_id for _, _, parent_id in children}
    assert len(parents) == 1
    parent = parents.pop()
    assert parent is not None
    assert [request_id for request_id, _, _ in children] == [f"{i}_{parent}" for i in range(3)]
    assert {client_id for _, client_id, _ in children} == {f"{answer['id']}-0"}


async def guided_decoding(bed: Bed) -> None:
    schema = {"type": "object", "properties": {"kind": {"enum": ["door", "gate"]}}}
    schema |= {"required": ["kind"], "additionalProperties": False}
    answer = await bed.complete(
        max_tokens=120, structured_outputs={"json": schema, "disable_any_whitespace": True}
    )
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert json.loads(choice["text"])["kind"] in ("door", "gate")


async def priorities(bed: Bed) -> None:
    """Every sequence of a request has the priority, whichever route and task of vLLM's made it."""
    for body, rank in (({}, 0), ({"priority": -1}, 1)):
        assert (await bed.complete(**body)).status_code == 200
        assert bed.router.ranks[-1] == rank
    chat = "/v1/chat/completions"
    for path, body, num_sequences in (
        (TEXT, {"prompt": "A door", "n": 3}, 3),
        (TEXT, {"prompt": ["A door", "A gate"]}, 2),
        (TEXT, {"prompt": "A door", "stream": True, "n": 2}, 2),
        (TEXT, {"prompt": "A door", "use_beam_search": True, "n": 2}, 2),
        (chat, STREAMS[chat] | {"stream": True}, 1),
        ("/v1/responses", STREAMS["/v1/responses"], 1),
    ):
        del bed.router.ranks[:]
        answer = await bed.post(path, body, **{"X-Llumctl-Priority": "high"})
        assert answer.status_code == 200, answer.text
        assert len(bed.router.ranks) >= num_sequences, path
        assert set(bed.router.ranks) == {1}, path


async def stop_strings(bed: Bed) -> None:
    text = (await bed.complete(max_tokens=20)).json()["choices"][0]["text"]
    stop = text.split()[3]
    choice = (await bed.complete(max_tokens=20, stop=[stop])).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert text.startswith(choice["text"])
    assert stop not in choice["text"]
    assert bed.router.outcomes[-1] == (RequestState.FINISHED, "stop")


STREAMS: dict[str, dict[str, Any]] = {
    TEXT: {"prompt": "The old house", "max_tokens": 8},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_completion_tokens": 8,
    },
    "/v1/responses": {"input": "Hi", "max_output_tokens": 8},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8},
}


async def refusals(bed: Bed) -> None:
    """A stream's status is that of its refusal, also for a stream of several prompts."""
    several = {"prompt": ["The old house", "The new one"], "n": 2, "max_tokens": 8}
    requests = [(path, body | {"stream": True}) for path, body in STREAMS.items()]
    requests += [(TEXT, several), (TEXT, several | {"stream": True})]
    bed.router.retry_after_s = 17
    for code in RejectCode:
        bed.router.refusal = code
        for path, body in requests:
            answer = await bed.post(path, body)
            status = 503 if code is RejectCode.UNAVAILABLE else 429
            assert answer.status_code == status, (path, answer.text)
            assert answer.headers["retry-after"] == "17", path
            assert answer.headers["content-type"] == "application/json", path
            assert "send it again" in answer.json()["error"]["message"], path
    bed.router.refusal = None


async def a_stream_that_is_held(bed: Bed) -> None:
    """No byte of it leaves before its request has an instance; then its head is sent at once."""
    for path, body in STREAMS.items():
        bed.router.holding = asyncio.Event()
        num_before, sent = len(bed.router.arrivals), list[dict[str, Any]]()
        content = json.dumps({"model": "embedded", "stream": True} | body).encode()
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        scope |= {"http_version": "1.1", "query_string": b"", "scheme": "http", "root_path": ""}
        incoming = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive(incoming: list[dict[str, Any]] = incoming) -> dict[str, Any]:
            if not incoming:
                await asyncio.Event().wait()
            return incoming.pop()

        async def send(message: dict[str, Any], sent: list[dict[str, Any]] = sent) -> None:
            sent.append(message)

        answering = asyncio.create_task(bed.gate(scope, receive, send))
        while len(bed.router.arrivals) == num_before:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert sent == [], path
        bed.router.holding.set()
        await answering
        assert sent[0]["status"] == 200, path
        assert dict(sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream"), path
        assert b"".join(message["body"] for message in sent[1:]).count(b"data: ") > 2, path
    bed.router.holding = None


async def a_lost_instance(bed: Bed) -> None:
    from vllm.exceptions import GracefulHTTPError

    waiting = asyncio.create_task(bed.complete(max_tokens=300, n=2, temperature=1.0))
    while sum(map(bool, bed.router.live.values())) < 2:
        await asyncio.sleep(0.001)
    why = GracefulHTTPError("i-0 died", HTTPStatus.SERVICE_UNAVAILABLE)
    bed.llm.fail(next(iter(bed.router.live)), why)
    answer = await waiting
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "i-0 died" in answer.text
    assert bed.router.outcomes[-1] == (RequestState.FAILED, "i-0 died")


async def read(bed: Bed, **sampling: Any) -> None:
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=300, **sampling)
    async for _ in bed.llm.generate({"prompt_token_ids": [400, 500]}, params, "client-s-id"):
        pass


async def a_client_that_leaves(bed: Bed) -> None:
    """Also before all choices are dispatched."""
    for what, holds_after in (({}, None), ({"n": 2}, 1)):
        bed.router.holds_after = holds_after
        num_before, num_arrived = len(bed.router.outcomes), len(bed.router.arrivals)
        reading = asyncio.create_task(read(bed, **what))
        while not bed.router.live or len(bed.router.arrivals) < num_arrived + what.get("n", 1):
            await asyncio.sleep(0.001)
        request_id = next(iter(bed.router.live))
        reading.cancel()
        await asyncio.wait({reading})
        assert request_id in bed.router.aborted
        assert set(bed.router.outcomes[num_before:]) == {(RequestState.ABORTED, "the client left")}
        assert {client_id for _, client_id, _ in bed.router.arrivals[num_arrived:]} == {
            "client-s-id"
        }
    bed.router.holds_after = None


async def unserved_paths(bed: Bed) -> None:
    from controller.adapters.vllm.endpoint.openai_app import UNSERVED_PATHS

    for path in UNSERVED_PATHS:
        assert (await bed.http.post(path)).status_code == 404
    for path in ("/health", "/ready", "/v1/models", "/metrics"):
        assert (await bed.http.get(path)).status_code == 200
    models = (await bed.http.get("/v1/models")).json()["data"]
    assert [(m["id"], m["max_model_len"]) for m in models] == [("embedded", 512)]
    one = await bed.http.get("/v1/models/embedded")
    assert (one.status_code, one.json().keys()) == (200, models[0].keys())
    for other in ("org/nope", "embedded/x", "x" * 5000):
        answer = await bed.http.get(f"/v1/models/{other}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")
        assert len(answer.content) < 8192


# -- what vLLM's metrics show ---------------------------------------------------------------


def load(num_running: int, num_waiting: int = 0, usage: float = 0.0, queries: int = 0) -> Any:
    from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats

    return SchedulerStats(
        num_running_reqs=num_running,
        num_waiting_reqs=num_waiting,
        kv_cache_usage=usage,
        prefix_cache_stats=PrefixCacheStats(queries=queries),
    )


def test_instances_that_share_a_series_are_added_up_and_who_is_gone_shows_no_load() -> None:
    """Instances that were added to a cluster which began with two."""
    from controller.adapters.vllm.endpoint.pool_client import InstanceLoads

    loads, all_there = InstanceLoads(1), {"i-0": 1, "i-1": 1, "i-7": 1}
    assert loads.listed(all_there) == []
    assert [loads.index_of(instance_id) for instance_id in all_there] == [0, 1, 1]
    loads.reported("i-0", 1, load(9))
    loads.reported("i-1", 1, load(2, 1, 0.2))
    both = load(3, 0, 0.1, queries=5)
    loads.reported("i-7", 1, both)
    assert both == load(5, 1, 0.2, queries=5)
    idle = load(0)
    loads.reported("i-1", 1, idle)
    assert idle == load(3, 0, 0.1)
    assert loads.listed({"i-0": 1, "i-1": 1}) == [(1, load(0))]
    assert loads.listed({"i-0": 1, "i-1": 1}) == [], "it was told"
    assert loads.listed({"i-0": 2, "i-1": 1}) == [(0, load(0))], "another process under its name"
    late = load(4, 2, 0.5, queries=7)
    loads.reported("i-0", 1, late)
    assert late == load(0, queries=7), "it counts what it did, and runs nothing"


def test_adapters_are_offered_once_loaded_and_until_they_are_taken_away() -> None:
    """Even if the controller, after a restart, has not heard yet that they are loaded."""
    from controller.adapters.vllm.endpoint import openai_app

    models, names = SimpleNamespace(lora_requests={}), (("one", 1), ("two", 2), ("one", 3))
    one, two, again = (Adapter(name, number, "/x", "0" * 64, 8) for name, number in names)

    def offered(*adapters: Adapter, loaded: Collection[int] = ()) -> dict[str, int]:
        openai_app.offer_adapters(models, adapters, loaded)
        return {name: each.lora_int_id for name, each in models.lora_requests.items()}

    assert offered(one, two) == {}
    assert offered(one, two, loaded={1}) == {"one": 1}
    assert offered(one, two) == {"one": 1}
    assert offered(two, again, loaded={2}) == {"two": 2}, "another one of that name"
    assert offered(two, again, loaded={3}) == {"one": 3, "two": 2}
