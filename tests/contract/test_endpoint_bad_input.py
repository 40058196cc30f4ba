"""What a client gets for each kind of bad input: the app as it is served, with the gate. vLLM
refuses most of these itself; where it stops doing so, a case here fails.
"""

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Any, NamedTuple

import httpx
import psutil
import pytest
from uvicorn import Config, Server
from vllm.exceptions import GracefulHTTPError

from controller.adapters import listener
from controller.adapters.vllm.endpoint.answers import error_type, is_anthropic
from controller.adapters.vllm.endpoint.gate import Gate, GateLimits
from controller.adapters.vllm.engine import VllmEngine
from controller.adapters.vllm.grammars.trials import GrammarTrials, Queue, TrialLimits, limits_of
from controller.core.record.request_record import RequestState
from tests.contract.test_vllm_frontend import TEXT, Bed, serving

# vLLM's chat API reads its own deprecated field.
pytestmark = pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning")

CHAT = "/v1/chat/completions"
KEY = "sk-right"
MAX_BODY_BYTES = 300_000
USER = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}
FORM = {"type": "json_schema", "json_schema": {"name": "x"}}
# Each compiles in less than a second, and takes longer than that for one of its first 24 tokens.
OPTIONAL = {"type": "optional", "content": {"type": "regex", "pattern": ".{1,300}[^\\s]"}}
REPEAT = {"type": "repeat", "min": 400, "max": -1, "content": {"type": "plus", "content": OPTIONAL}}
SLOW_TAG = json.dumps({"type": "structural_tag", "format": REPEAT})
# A token takes 13 ms with a vocabulary of 10,000.
WORDS = "start: WORD+\nWORD: /[a-z]+/\n%ignore / /"
SLOW_GRAMMAR = "root ::= (([a-z]{0,50}){0,50}){0,50}"
NAMES = {f"^p{i}[a-z]+$": {"type": "string"} for i in range(100)}


class Case(NamedTuple):
    says: str
    """A part of the message."""
    path: str
    body: bytes = b"{}"
    status: int = 400
    method: str = "POST"
    headers: dict[str, str] = {}  # noqa: RUF012


def raw(says: str, body: bytes) -> list[Case]:
    return [Case(says, path, body) for path in (CHAT, TEXT, "/tokenize")]


def chat(says: str, status: int = 400, **fields: Any) -> Case:
    body = {"model": "embedded", "messages": USER, "max_tokens": 4} | fields
    return Case(says, CHAT, json.dumps(body).encode(), status)


def text(says: str, status: int = 400, **fields: Any) -> Case:
    body = {"model": "embedded", "prompt": "hello", "max_tokens": 4} | fields
    return Case(says, TEXT, json.dumps(body).encode(), status)


def both(says: str, status: int = 400, **fields: Any) -> list[Case]:
    return [chat(says, status, **fields), text(says, status, **fields)]


def other(says: str, path: str, **fields: Any) -> Case:
    return Case(says, path, json.dumps(fields).encode())


def structured(says: str, **wanted: Any) -> list[Case]:
    return both(says, structured_outputs=wanted)


def schema(says: str, **found: Any) -> list[Case]:
    return both(says, response_format=FORM | {"json_schema": {"name": "x", "schema": found}})


DEEP = b"[" * 15_000 + b"]" * 15_000
LARGE = b'{"prompt": "' + b"x" * MAX_BODY_BYTES + b'"}'
AS_URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SPOILT = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": 5}]}
NOTHING_SAID = {"type": "message", "role": "assistant", "content": []}

# Of the checks that are ours (tests/unit/endpoint) there is a case for each path.
BODIES = [
    *raw("not valid JSON", b'{"model": "embedded", '),
    *raw("no body", b""),
    *raw("nested deeper than 64", b'{"x": ' + DEEP + b"}"),
    *raw("surrogate", b'{"prompt": "a\\ud800b"}'),
    *raw("out of range", b'{"seed": ' + b"9" * 5000 + b"}"),
    *raw("out of range", b'{"temperature": 1e999}'),
]
MESSAGES = [
    other("required", CHAT, model="embedded"),
    chat("at least one message", messages=[]),
    chat("valid string", messages=[{"role": "user", "content": 3}]),
    chat("not a multimodal model", messages=[{"role": "user", "content": [AS_URL]}]),
    chat("tool", tools=[TOOL]),
    chat("a function that has a name", tools=[3], tool_choice=TOOL),
    text("prompt", prompt=[]),
    text("greater than or equal to 0", prompt=[1, -2]),
    text("out of vocabulary", prompt=[10**7]),
    text("maximum context length", prompt="word " * 600),
    chat("maximum context length", messages=[{"role": "user", "content": "word " * 600}]),
]
SAMPLING = [
    *both("n must be at least 1", n=0),
    *both("n must be at most 128", n=129),
    *both("n must be an integer", n="16000"),
    *both("max_tokens must be at least 1", max_tokens=0),
    *both("max_model_len", max_tokens=10**9),
    *both("min_tokens", min_tokens=5),
    *both("temperature", temperature=-1),
    *both("temperature must be in [0, 2]", temperature=2.1),
    *both("top_p", top_p=1.1),
    *both("top_k", top_k=-2),
    *both("cannot be sent", top_k=2**70),
    *both("frequency_penalty", frequency_penalty=2.1),
    *both("presence_penalty", presence_penalty=-2.1),
    *both("repetition_penalty", repetition_penalty=0),
    *both("min_p", min_p=2),
    text("logprobs", logprobs=-2),
    text("max allowed", logprobs=1000),
    chat("top_logprobs", logprobs=True, top_logprobs=-2),
    *both("max allowed", prompt_logprobs=1000.0),
    *both("empty string", stop=""),
    *both("at most", stop=["x"] * 1000),
    *both("use structured_outputs", guided_regex="a"),
    *both("out-of-vocab", stop_token_ids=[10**7]),
    *both("logit_bias", logit_bias={"x": 1}),
    *both("out-of-vocab", logit_bias={"10000000": 1}),
    *both("greedy", n=2, temperature=0),
    *both("9223372036854775807", seed=2**64),
    *both("priority 7 is not one of 0, -1", priority=7),
    *both("printable", request_id="a\nb"),
]
CONSTRAINTS = [
    *both("constraint", response_format=FORM),
    *schema("bogus", type="bogus"),
    *schema("/nope", **{"$ref": "#/nope"}),
    *schema("(a+)+", type="string", pattern="(a+)+"),
    *schema("not supported", type="object", patternProperties=NAMES),
    *structured("compiled", structural_tag='{"structures": [{}]}'),
    *structured("for one token", structural_tag=SLOW_TAG),
    *structured("for one token", grammar=SLOW_GRAMMAR),
    *both("fewer at a time", n=100, structured_outputs={"grammar": WORDS}),
    *structured("constraint"),
    *structured("one kind", regex="a", json={}),
    *structured("empty", choice=[]),
    *structured("grammar", grammar="no grammar"),
    *structured("JSON", json="{"),
    *structured("rounds of a repeat", regex="(a+)+$"),
    *structured("", regex=r"(a)\1"),
]
ROUTES = [
    *both("...", 404, model="x" * 50_000),
    Case("Not Found: GET /v1/nope", "/v1/nope", status=404, method="GET"),
    Case("Not Found", "/" + "x" * 20_000, status=404, method="GET"),
    Case("Method Not Allowed", CHAT, status=405, method="GET"),
    Case("larger than 300000 bytes", "/tokenize", LARGE, status=413),
    Case("application/json", TEXT, headers={"content-type": "text/plain"}),
    *[
        other("n must be an integer", path, n="16000")
        for path in ("/v1/responses", "/v1/chat/completions/batch", "/invocations")
    ],
    Case(
        "Response with id 'resp_x' not found",
        "/v1/responses",
        b'{"input": "hi", "previous_response_id": "resp_x"}',
        status=404,
    ),
    other("begin with a text", "/v1/responses", input=[NOTHING_SAID]),
    other("text of a tool", "/v1/messages", messages=[{"role": "user", "content": [SPOILT]}]),
    *[other("required", path) for path in ("/v1/responses", "/v1/messages", "/detokenize")],
]
CASES = [*BODIES, *MESSAGES, *SAMPLING, *CONSTRAINTS, *ROUTES]


@asynccontextmanager
async def gated(
    bed: Bed, limits: GateLimits | None = None, keys: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Gate, httpx.AsyncClient]]:
    """Another gate in front of the same app."""
    gate = Gate(limits or GateLimits(MAX_BODY_BYTES), keys, {"normal": 0, "high": 1})
    gate.app, gate.json_paths = bed.gate.app, bed.gate.json_paths
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=gate), base_url="http://localhost", timeout=30.0
    ) as http:
        yield gate, http
    assert gate.num_live == 0


def assert_is_error(answer: httpx.Response, status: int, says: str) -> None:
    assert answer.status_code == status, answer.text[:500]
    assert len(answer.content) < 8192
    body, path = answer.json(), answer.request.url.path
    assert set(body) == ({"type", "error"} if is_anthropic(path) else {"error"})
    assert body.get("type", "error") == "error"
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert says in error["message"]
    assert error["message"]
    assert "Traceback" not in error["message"]
    assert error["type"] == error_type(status, path)
    assert error["code"] == ("invalid_api_key" if status == 401 else status)
    assert error["param"] is None or isinstance(error["param"], str)


async def test_bad_input(engine: VllmEngine, engine_args: dict[str, Any]) -> None:
    """One app for all cases, because building it takes long."""
    async with serving(engine, engine_args) as bed:
        async with gated(bed) as (_, http):
            wrong = []
            for case in CASES:
                headers = {"content-type": "application/json"} | case.headers
                answer = await http.request(
                    case.method, case.path, content=case.body, headers=headers
                )
                try:
                    assert_is_error(answer, case.status, case.says)
                except AssertionError as error:
                    asked = f"{case.method} {case.path[:50]} {case.body[:200]!r}"
                    wrong.append(f"{asked}: {error}\n{answer.text[:300]}")
            assert not wrong, "\n".join(wrong)
        assert_nothing_left(bed)
        for scenario in (
            what_is_good_passes,
            keys,
            one_id_for_many_requests,
            a_grammar_that_gets_slow,
            a_grammar_that_a_busy_machine_has_no_time_for,
            what_only_another_backend_knows,
            a_grammar_that_takes_too_long,
            a_client_that_leaves_a_trial,
            a_client_that_does_not_read,
            a_failure_in_mid_stream,
            a_refusal_in_a_stream_is_one_line_in_the_log,
            large_bodies_and_costly_grammars_keep_nobody_waiting,
        ):
            await asyncio.wait_for(scenario(bed), 60.0)
            assert_nothing_left(bed)


def assert_nothing_left(bed: Bed) -> None:
    assert bed.router.live == {}
    assert bed.left_over() - {"parent_requests"} == set()


async def what_is_good_passes(bed: Bed) -> None:
    """Good input that looks like the bad input above."""
    async with gated(bed) as (_, http):
        for fields in (
            {"temperature": 2, "top_p": 1, "top_k": -1, "min_p": 1},
            {"prompt": "\U0001f98a ß 漢字 \\u0000 \\ud800"},
            {"prompt": [[1, 2, 3], [4, 5]], "n": 2, "max_tokens": 1},
            {"priority": -1, "request_id": "x" * 128},
            {"logit_bias": {"5": 100}, "stop": ["x"], "stop_token_ids": [7]},
            {"structured_outputs": {"regex": r"\d{4}-\d{2}(, \d{4}-\d{2})*"}},
            {"unknown_field": json.loads("[" * 60 + "]" * 60)},
        ):
            body = {"model": "embedded", "prompt": "one", "max_tokens": 4} | fields
            answer = await http.post(TEXT, json=body)
            assert answer.status_code == 200, (fields, answer.text)


async def until_quiet(bed: Bed) -> None:
    while bed.router.live or bed.engine.has_work():
        await asyncio.sleep(0.001)
    assert bed.engine.snapshot("i-0", 1).num_running == 0


async def keys(bed: Bed) -> None:
    """All paths need a key, including those that vLLM leaves open, except the paths of probes and
    collectors."""
    async with gated(bed, keys=("sk-other", KEY)) as (_, http):
        paths = {
            getattr(route, "path", "") for route in bed.gate.app.routes if "{" not in route.path
        }
        assert {"/tokenize", "/version", "/docs", "/openapi.json", "/invocations"} <= paths
        for path in paths:
            answer = await http.get(path)
            if path in ("/health", "/metrics", "/ready"):
                assert answer.status_code == 200
            else:
                assert_is_error(answer, 401, "API key")
        body = {"model": "embedded", "prompt": "one", "max_tokens": 1}
        for given, status in ((f"Bearer {KEY}x", 401), (f"bearer {KEY}", 200)):
            answer = await http.post(TEXT, json=body, headers={"authorization": given})
            assert answer.status_code == status


async def one_id_for_many_requests(bed: Bed) -> None:
    async with gated(bed) as (_, http):

        async def ask(prompt: str, **headers: str) -> str:
            body = {"model": "embedded", "prompt": prompt, "max_tokens": 20, "temperature": 0}
            if not headers:
                body["request_id"] = "mine"
            answer = await http.post(TEXT, json=body, headers=headers)
            assert answer.status_code == 200
            assert answer.json()["id"] == "cmpl-mine"
            return str(answer.json()["choices"][0]["text"])

        prompts = ["The old house", "A river", "She said"]
        alone = [await ask(prompt) for prompt in prompts]
        assert len(set(alone)) == 3
        both_ways = [ask(p) for p in prompts] + [
            ask(p, **{"x-request-id": "mine"}) for p in prompts
        ]
        with pytest.MonkeyPatch.context() as patch:  # what vLLM alone would tell them apart by
            patch.setattr("vllm.v1.engine.input_processor.random_uuid", lambda: "0" * 16)
            assert await asyncio.gather(*both_ways) == alone * 2


async def a_grammar_that_gets_slow(bed: Bed) -> None:
    """Ambiguous, and not a regular expression: only the engine can find that out."""
    from controller.adapters.vllm import grammar_guard

    limit_s, grammar_guard.MAX_CALL_S = grammar_guard.MAX_CALL_S, 0.02
    try:
        async with gated(bed) as (_, http):
            body = {"model": "embedded", "prompt": "one", "max_tokens": 450}
            body |= {"structured_outputs": {"grammar": "root ::= root root | [a-z ]"}}
            assert_is_error(await http.post(TEXT, json=body), 400, "costs too much")
            answer = await http.post(TEXT, json=body | {"stream": True})
            *_, error, done = answer.text.split("\n\n")[:-1]
            assert done == "data: [DONE]"
            assert json.loads(error[6:])["error"]["code"] == 400
            await until_quiet(bed)
    finally:
        grammar_guard.MAX_CALL_S = limit_s


async def a_grammar_that_a_busy_machine_has_no_time_for(bed: Bed) -> None:
    """Either its trial or its instance has no time: the request is not at fault."""
    from controller.adapters.vllm import grammar_guard

    wanted = {"structured_outputs": {"regex": "[a-f]{3,7}"}}
    body = {"model": "embedded", "prompt": "one", "max_tokens": 4} | wanted
    executor = bed.engine._core.structured_output_manager.executor
    go_on, limit_s = threading.Event(), grammar_guard.MAX_COMPILE_S
    async with gated(bed) as (_, http):
        with limited_trials(bed, TrialLimits(cpu_s=10.0, wall_s=0.0001, max_bytes=1 << 28)):
            answer = await http.post(TEXT, json=body)
            assert_is_error(answer, 503, "too busy to compile the grammar; send it again")
            assert answer.headers["retry-after"] == "5"
        try:
            grammar_guard.MAX_COMPILE_S = -1.0
            for _ in range(executor._max_workers):
                executor.submit(go_on.wait, 60)
            answer = await http.post(TEXT, json=body)
            assert_is_error(answer, 503, "too busy to compile")
            assert answer.headers["retry-after"] == "1"
        finally:
            grammar_guard.MAX_COMPILE_S = limit_s
            go_on.set()
        assert (await http.post(TEXT, json=body)).status_code == 200
        await until_quiet(bed)


async def what_only_another_backend_knows(bed: Bed) -> None:
    """vLLM would let an engine's first request choose another backend for good."""
    async with gated(bed) as (_, http):
        body = {"model": "embedded", "prompt": "one", "max_tokens": 8}
        for wanted in ({"regex": r"\p{L}+"}, {"json": {"type": "integer", "multipleOf": 3}}):
            answer = await http.post(TEXT, json=body | {"structured_outputs": wanted})
            assert answer.status_code == 400, answer.text
        assert bed.router.live == {}
        answer = await http.post(TEXT, json=body | {"structured_outputs": {"regex": "a+"}})
        assert answer.status_code == 200
        assert type(bed.engine._core.structured_output_manager.backend).__name__ == (
            "XgrammarBackend"
        )


async def a_grammar_that_takes_too_long(bed: Bed) -> None:
    """It is refused, whichever way it comes, and no engine hears of it."""
    num_sent = len(bed.router.ranks)
    # On a busy machine 0.2 s of CPU take seconds: only the CPU time is to run out.
    with limited_trials(bed, TrialLimits(cpu_s=0.2, wall_s=60.0, max_bytes=1 << 28)):
        async with gated(bed) as (_, http):
            for path, what in (
                (TEXT, {"prompt": "one", "response_format": LONG_FORM}),
                (TEXT, {"prompt": "one", "response_format": LONG_FORM, "n": 3}),
                (CHAT, {"messages": USER, "response_format": LONG_FORM, "stream": True}),
                ("/v1/responses", {"input": "one", "text": {"format": LONG_TEXT_FORM}}),
            ):
                body = {"model": "embedded", "max_tokens": 4} | what
                answer = await http.post(path, json=body)
                assert_is_error(answer, 400, "more than 0.2 s of CPU time")
    assert len(bed.router.ranks) == num_sent
    assert not bed.engine._grammars._compiling


@asynccontextmanager
async def connected(
    bed: Bed, body: dict[str, Any], *, write_timeout_s: float = 10.0
) -> AsyncIterator[socket.socket]:
    """A client that has sent a request over TCP, with buffers as small as can be."""
    content = json.dumps({"model": "embedded", "prompt": "one"} | body).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "SEND_BUFFER_BYTES", 4096)
        listening = listener.listen("127.0.0.1", 0, write_timeout_s=write_timeout_s)
    server = Server(Config(bed.gate, log_level="critical", lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, listening.getsockname())
        head = (
            f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        await loop.sock_sendall(client, head.encode() + content)
        yield client
    server.should_exit = True
    await serving


async def a_client_that_leaves_a_trial(bed: Bed) -> None:
    trials = psutil.Process(bed.process.pid)
    num_outcomes = len(bed.router.outcomes)
    with limited_trials(bed, limits_of(30.0)):
        async with connected(bed, {"response_format": LONG_FORM}) as client:
            while not trials.children():
                await asyncio.sleep(0.001)
            client.close()
            while len(bed.router.outcomes) == num_outcomes or trials.children():
                await asyncio.sleep(0.001)
    assert bed.router.outcomes[num_outcomes:] == [(RequestState.ABORTED, "the client left")]


async def a_client_that_does_not_read(bed: Bed) -> None:
    """Its request is aborted and its blocks are free long before the request would have ended."""
    num_blocks = bed.engine.snapshot("i-0", 1).num_free_blocks
    body = {"max_tokens": 500, "ignore_eos": True, "stream": True, "logprobs": 20}
    async with connected(bed, body, write_timeout_s=0.2):
        while not bed.router.live:
            await asyncio.sleep(0.001)
        (request_id,) = bed.router.live
        await until_quiet(bed)
    assert bed.router.aborted[-1] == request_id
    assert bed.engine.snapshot("i-0", 1).num_free_blocks == num_blocks


# Takes 3 s of CPU time, and is none of what is refused at sight.
LONG_SCHEMA = {"type": "string", "maxLength": 90_000}
LONG_FORM = FORM | {"json_schema": {"name": "x", "schema": LONG_SCHEMA}}
LONG_TEXT_FORM = {"type": "json_schema", "name": "x", "schema": LONG_SCHEMA}


@contextmanager
def limited_trials(bed: Bed, limits: TrialLimits) -> Iterator[None]:
    """No verdict is known, and these are the limits of each trial."""
    client = bed.llm.engine_core
    before = client._grammars
    client._grammars = GrammarTrials(bed.process, Queue(limits, 2, 64))
    try:
        yield
    finally:
        client._grammars = before


@asynccontextmanager
async def longest_turn() -> AsyncIterator[list[float]]:
    """The most CPU time that the event loop's thread took between two turns of this task."""
    longest_s = [0.0]

    async def turn() -> None:
        last_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            longest_s[0] = max(longest_s[0], now_s - last_s)
            last_s = now_s

    turning = asyncio.create_task(turn())
    try:
        yield longest_s
    finally:
        turning.cancel()


async def a_failure_in_mid_stream(bed: Bed) -> None:
    """Anthropic's clients recognise an error by its event."""
    body = {"model": "embedded", "max_tokens": 450, "stream": True, "messages": USER}
    async with gated(bed) as (_, http):
        asking = asyncio.create_task(http.post("/v1/messages", json=body))
        while not bed.router.live:
            await asyncio.sleep(0.001)
        (request_id,) = bed.router.live
        while bed.llm.output_processor.request_states[request_id].is_prefilling:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)  # what came with the first token is on its way
        why = "i-0 died; " + "x" * 9000
        bed.llm.fail(request_id, GracefulHTTPError(why, HTTPStatus.SERVICE_UNAVAILABLE))
        *chunks, error = (await asking).text.split("\n\n")[:-1]
    assert chunks
    assert len(error) < 8192
    assert error.startswith("event: error\n")
    found = json.loads(error.partition("data: ")[2])["error"]
    assert (found["type"], found["code"]) == ("overloaded_error", 503)
    assert found["message"].startswith("i-0 died")


async def a_refusal_in_a_stream_is_one_line_in_the_log(bed: Bed) -> None:
    """vLLM logs a traceback for each."""
    wrong = {"prompt": "one", "structured_outputs": {"grammar": "no grammar"}, "stream": True}
    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = told.append
    logging.getLogger("vllm").addHandler(handler)
    try:
        async with gated(bed) as (_, http):
            for path, what in ((TEXT, wrong), ("/v1/messages/count_tokens", {"messages": []})):
                told.clear()
                await http.post(path, json={"model": "embedded", "max_tokens": 5} | what)
                assert not any(record.exc_text or record.exc_info for record in told), path
                assert [each.getMessage()[:9] for each in told].count("refused: ") == 1, told
    finally:
        logging.getLogger("vllm").removeHandler(handler)


async def large_bodies_and_costly_grammars_keep_nobody_waiting(bed: Bed) -> None:
    """And their errors are small: vLLM's models would describe 117 kinds for each item that fits
    none of them."""
    limits = GateLimits(max_body_bytes=8 * 1024 * 1024)
    items = f"[{'{},' * 2000}{{}}]"
    # vLLM would convert this pattern on its event loop, in 1.4 s.
    costly = {"json": {"type": "string", "pattern": "[a-z]{1,1990}"}}
    async with gated(bed, limits) as (_, http), longest_turn() as turns_s:
        body = {"model": "embedded", "prompt": "one", "max_tokens": 4, "structured_outputs": costly}
        assert (await http.post(TEXT, json=body)).status_code in (200, 400)
        for path, field, value in (
            (TEXT, "prompt", f"[{'1,' * 4_000_000}1]"),
            (TEXT, "prompt", f"[{'[1],' * 1_000_000}[1]]"),
            (TEXT, "prompt", f"[{'1,' * 99_999}1]"),
            (TEXT, "prompt", f'"{"w " * 4_000_000}"'),
            (CHAT, "messages", items),
            ("/v1/responses", "input", items),
            ("/v1/responses", "tools", items),
            ("/v1/responses", "input", f'[{{"role":"user","content":{items}}}]'),
            ("/tokenize", "messages", items),
            ("/v1/messages", "messages", items),
            ("/detokenize", "tokens", f"[{'5,' * 99_999}5]"),
        ):
            text_body = f'{{"model":"embedded","max_tokens":1,"{field}":{value}}}'
            headers = {"content-type": "application/json"}
            answer = await http.post(path, content=text_body.encode(), headers=headers)
            if path == "/detokenize":
                assert answer.status_code == 200
            else:
                assert_is_error(answer, 400, "validation error" if value == items else "")
    assert turns_s[0] < 0.25, "something took the event loop for itself"
