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
from tests.contract.test_vllm_frontend import Bed, serving

# vLLM's chat API reads its own deprecated field.
pytestmark = pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning")

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
KEY = "sk-right"
MAX_BODY_BYTES = 300_000
USER = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
NAMED = {"type": "function", "function": {"name": "f"}}
FORM = {"type": "json_schema", "json_schema": {"name": "x"}}
PICTURE = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:1/x.png"}}
# Each compiles in less than a second, and takes longer than that for one of its first 24 tokens.
SLOW_TAG = json.dumps(
    {
        "type": "structural_tag",
        "format": {
            "type": "repeat",
            "min": 400,
            "max": -1,
            "content": {
                "type": "plus",
                "content": {
                    "type": "optional",
                    "content": {"type": "regex", "pattern": ".{1,300}[^\\s]"},
                },
            },
        },
    }
)
# A token takes 13 ms with a vocabulary of 10,000.
WORDS = "start: WORD+\nWORD: /[a-z]+/\n%ignore / /"
SLOW_GRAMMAR = "root ::= (([a-z]{0,50}){0,50}){0,50}"
NAMES = {f"^p{i}[a-z]+$": {"type": "string"} for i in range(100)}


class Case(NamedTuple):
    name: str
    status: int
    says: str
    """A part of the message."""
    body: bytes = b""
    path: str = TEXT
    method: str = "POST"
    headers: dict[str, str] = {}  # noqa: RUF012


def raw(name: str, says: str, body: str | bytes, status: int = 400) -> list[Case]:
    content = body if isinstance(body, bytes) else body.encode()
    return [
        Case(f"{path}: {name}", status, says, content, path) for path in (CHAT, TEXT, "/tokenize")
    ]


def chat(name: str, says: str, status: int = 400, **fields: Any) -> list[Case]:
    body = {"model": "embedded", "messages": USER, "max_tokens": 4} | fields
    return [Case(f"chat: {name}", status, says, json.dumps(body).encode(), CHAT)]


def text(name: str, says: str, status: int = 400, **fields: Any) -> list[Case]:
    body = {"model": "embedded", "prompt": "hello", "max_tokens": 4} | fields
    return [Case(f"text: {name}", status, says, json.dumps(body).encode(), TEXT)]


def both(name: str, says: str, status: int = 400, **fields: Any) -> list[Case]:
    return chat(name, says, status, **fields) + text(name, says, status, **fields)


def literal(name: str, says: str, value: str) -> list[Case]:
    """A value that Python's JSON would write differently."""
    return [
        Case(f"{case.path}: {name}", 400, says, case.body[:-1] + f", {value}}}".encode(), case.path)
        for case in both(name, says)
    ]


def other(
    status: int, says: str, method: str, path: str, body: bytes = b"{}", **headers: str
) -> list[Case]:
    return [Case(f"{method} {path} {status}", status, says, body, path, method, headers)]


def called(arguments: str) -> list[dict[str, Any]]:
    """A conversation in which a tool was called."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [*USER, {"role": "assistant", "content": "x", "tool_calls": [call]}]


def regex(pattern: str, says: str) -> list[Case]:
    return both(f"regex {pattern[:30]}", says, structured_outputs={"regex": pattern})


def schema(name: str, says: str, **found: Any) -> list[Case]:
    form = FORM | {"json_schema": {"name": "x", "schema": found}}
    return both(f"schema with {name}", says, response_format=form)


def said(**part: Any) -> dict[str, Any]:
    """An answer as a client of Responses sends it back."""
    kind = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant"}
    return kind | {"content": [part] if part else []}


def tool_result(**part: Any) -> dict[str, Any]:
    kind = "text" if "text" in part else "image"
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": kind} | part]}
    return {"role": "user", "content": [result]}


DEEP = "[" * 15_000 + "]" * 15_000
BODIES = [
    *raw("broken JSON", "not valid JSON", '{"model": "embedded", '),
    *raw("array", "must be a JSON object", "[1, 2]"),
    *raw("number", "must be a JSON object", "3"),
    *raw("string", "must be a JSON object", '"hello"'),
    *raw("null", "must be a JSON object", "null"),
    *raw("nothing", "no body", ""),
    *raw("two documents", "not valid JSON", "{} {}"),
    *raw("not UTF-8", "not UTF-8", b'{"prompt": "\xff\xfe"}'),
    *raw("UTF-16", "not valid JSON", '{"prompt": "hello"}'.encode("utf-16")),
    *raw("a nesting bomb", "nested deeper than 64", f'{{"x": {DEEP}}}'),
    *raw("65 levels", "nested deeper than 64", '{"x":' + "[" * 64 + "]" * 64 + "}"),
    *raw("half a surrogate pair", "surrogate", '{"prompt": "a\\ud800b"}'),
    *raw("the other half", "surrogate", '{"prompt": "\\udc00"}'),
    *raw("half a pair in a key", "surrogate", '{"\\ud800": 1}'),
    *raw("NUL", "NUL", '{"prompt": "a\\u0000b"}'),
    *raw("NUL in a key", "NUL", '{"a\\u0000b": 1}'),
    *raw("a bare control character", "not valid JSON", '{"prompt": "a\x01b"}'),
    *raw("an integer of 5,000 digits", "out of range", f'{{"seed": {"9" * 5000}}}'),
    *literal("NaN", "not valid JSON", '"temperature": NaN'),
    *literal("Infinity", "not valid JSON", '"top_p": Infinity'),
    *literal("1e999", "out of range", '"temperature": 1e999'),
    *literal("half a pair as a stop string", "surrogate", '"stop": "\\ud800"'),
]
MESSAGES = [
    *other(400, "required", "POST", CHAT, b'{"model": "embedded"}'),
    *chat("messages is null", "must be a list", messages=None),
    *chat("empty messages", "at least one message", messages=[]),
    *chat("messages is a string", "must be a list", messages="hello"),
    *chat("a message without a role", "required", messages=[{"content": "x"}]),
    *chat("an unknown role", "unknown role", messages=[{"role": "bogus", "content": "x"}]),
    *chat("content is a number", "valid string", messages=[{"role": "user", "content": 3}]),
    *chat("2,000 bad messages", "validation errors", messages=[{"role": 3}] * 2000),
    *chat("9,000 bad messages", "more than 2048", messages=[{"role": 3}] * 9000),
    *chat("30,000 objects", "20000 values", unknown_field=[{}] * 30_000),
    *chat(
        "an image for a text model",
        "not a multimodal model",
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
                ],
            }
        ],
    ),
    *chat("tools without a parser", "tool", tools=TOOLS),
    *chat("tools is a number", "tools must be a list", tools=5),
    *[
        case
        for tool in ({"type": "function"}, {"type": "x"}, {"function": {}}, {"function": 3}, {}, 3)
        for case in chat(
            f"the tool {tool} and a named choice",
            "a function that has a name",
            tools=[tool],
            tool_choice=NAMED,
        )
    ],
    *chat("deep arguments of a tool call", "arguments", messages=called("[" * 100_000)),
    *chat("1,000 brackets in arguments", "deeper", messages=called("[" * 1000)),
    *chat("arguments that are no JSON", "deeper", messages=called('{"a":' * 900 + "x")),
    *chat("wide arguments", "20000 values", messages=called(f"[{'1,' * 30_000}1]")),
    *chat("numbers as parts", "must be an object", messages=[{"role": "user", "content": [0]}]),
    *text("no prompt", "prompt", prompt=None),
    *text("an empty prompt", "prompt", prompt=[]),
    *text("prompt is a number", "valid list", prompt=3),
    *text("negative prompt tokens", "greater than or equal to 0", prompt=[1, -2]),
    *text("unknown prompt tokens", "out of vocabulary", prompt=[10**7]),
    *text("a boolean as a token", "integers", prompt=[True]),
    *text("booleans as tokens", "integers", prompt=[[1], [False]]),
    *text("a float as a token", "integers", prompt=[1.0]),
    *text("a digit as a token", "integers", prompt=[["1", 2]]),
    *both("a boolean to stop at", "integers", stop_token_ids=[True]),
    *both("a float that is allowed", "integers", allowed_token_ids=[1.0]),
    *text("30,000 negative tokens", "20000 values", prompt=[-1] * 30_000),
    *text("words and tokens", "integers", prompt=["a", 1]),
    *text("too many prompts", "1024", prompt=["a"] * 1025),
    *both(
        "longer than the context",
        "maximum context length",
        prompt="word " * 600,
        messages=[{"role": "user", "content": "word " * 600}],
    ),
]
SAMPLING = [
    *both("n is 0", "n must be at least 1", n=0),
    *both("n over the cap", "n must be at most 128", n=129),
    *both("n is a word", "n must be an integer", n="x"),
    *both("n in a string", "n must be an integer", n="16000"),
    *both("n in a string with a space", "n must be an integer", n=" 1_6000 "),
    *both("n is a float", "n must be an integer", n=16000.0),
    *both("n of beams in a string", "n must be an integer", n="16000", use_beam_search=True),
    *text("prompts times n in a string", "n must be an integer", prompt=["a"] * 1000, n="16000"),
    *text("prompts times n as a float", "n must be an integer", prompt=["a"] * 1000, n=2.0),
    *both("beams over the cap", "n must be at most 128", n=129, use_beam_search=True),
    *both("max_tokens in a string", "max_model_len", max_tokens=str(10**9)),
    *both("max_tokens 1e9", "max_model_len", max_tokens=1e9),
    *text("logprobs 1000.0", "max allowed", logprobs=1000.0),
    *both("prompt_logprobs 1000.0", "max allowed", prompt_logprobs=1000.0),
    *both("top_k in a string", "top_k", top_k="-2"),
    *text("prompts times n", "at most 1024", prompt=["a"] * 100, n=11),
    *both("max_tokens 0", "max_tokens must be at least 1", max_tokens=0),
    *both("max_tokens -5", "max_tokens must be at least 1", max_tokens=-5),
    *both("max_tokens over the context", "max_model_len", max_tokens=10**9),
    *both("min_tokens over max_tokens", "min_tokens", min_tokens=5),
    *both("min_tokens -1", "min_tokens", min_tokens=-1),
    *both("temperature -1", "temperature", temperature=-1),
    *both("temperature 2.1", "temperature must be in [0, 2]", temperature=2.1),
    *both("temperature is a word", "valid number", temperature="hot"),
    *both("temperature 3 in a stream", "temperature", temperature=3, stream=True),
    *both("top_p 0", "top_p", top_p=0),
    *both("top_p 1.1", "top_p", top_p=1.1),
    *both("top_k -2", "top_k", top_k=-2),
    *both("top_k 2**70", "cannot be sent", top_k=2**70),
    *both("frequency_penalty 2.1", "frequency_penalty", frequency_penalty=2.1),
    *both("presence_penalty -2.1", "presence_penalty", presence_penalty=-2.1),
    *both("repetition_penalty 0", "repetition_penalty", repetition_penalty=0),
    *both("min_p 2", "min_p", min_p=2),
    *text("logprobs -2", "logprobs", logprobs=-2),
    *text("logprobs 1000", "max allowed", logprobs=1000),
    *chat("top_logprobs -2", "top_logprobs", logprobs=True, top_logprobs=-2),
    *both("an empty stop string", "empty string", stop=""),
    *both("stop is a number", "valid string", stop=3),
    *both("1,000 stop strings", "at most", stop=["x"] * 1000),
    *both("long bad words", "10000 characters", bad_words=["x" * 10_001]),
    *both("best_of", "except as 1", best_of=2),
    *both("functions", "use tools", functions=[{"name": "f"}]),
    *both("guided_regex", "use structured_outputs", guided_regex="a"),
    *both("stop_token_ids of words", "integers", stop_token_ids=["x"]),
    *both("stop_token_ids unknown", "out-of-vocab", stop_token_ids=[10**7]),
    *both("logit_bias of words", "logit_bias", logit_bias={"x": 1}),
    *both("logit_bias of an unknown token", "out-of-vocab", logit_bias={"10000000": 1}),
    *both("two greedy choices", "greedy", n=2, temperature=0),
    *both("seed beyond 64 bits", "9223372036854775807", seed=2**64),
    *both("priority 7", "priority 7 is not one of 0, -1", priority=7),
    *both("priority 7 in a stream", "not one of 0, -1", priority=7, stream=True),
    *both("priority is a word", "priority must be an integer", priority="high"),
    *both("priority in a string", "priority must be an integer", priority="7"),
    *both("priority is a float", "priority must be an integer", priority=7.0),
    *both("a long id", "at most 128 characters", request_id="x" * 129),
    *both("an id with a line break", "printable", request_id="a\nb"),
]
CONSTRAINTS = [
    *both("json_schema missing", "json_schema", response_format={"type": "json_schema"}),
    *both("json_schema without a schema", "constraint", response_format=FORM),
    *both("an unknown format", "Input should be", response_format={"type": "bogus"}),
    *schema("an unknown type", "bogus", type="bogus"),
    *schema("a reference to nothing", "/nope", **{"$ref": "#/nope"}),
    *schema("a catastrophic pattern", "(a+)+", type="string", pattern="(a+)+"),
    *schema("a huge minLength", "minLength", type="string", minLength=10**6),
    *schema("15,000 numbers", "10000 values", enum=list(range(15_000))),
    *schema(
        "a count over 300 properties",
        "minProperties",
        type="object",
        minProperties=1,
        properties={f"p{i}": {"type": "string"} for i in range(300)},
    ),
    *schema("a large pattern", "too large in all", type="string", pattern="[a-z]{1,10000}"),
    *schema("two patterns", "too large in all", items=[{"pattern": "[a-z]{1,1500}"}] * 2),
    *schema("300 patterns", "too large in all", items=[{"pattern": "a{1,300}b{1,300}"}] * 300),
    *schema("nested counts", "too large in all", type="string", pattern="(a{50}){50}"),
    *schema("100 patternProperties", "not supported", type="object", patternProperties=NAMES),
    *schema("600 patterns", "500 patterns", items=[{"pattern": "a"}] * 600),
    *schema("long words", "to choose from", enum=[f"{i}" + "ab" * 5000 for i in range(10)]),
    *schema("a long description", "262144 characters", description="x" * 270_000),
    *schema("what only another backend knows", "not supported", type="integer", multipleOf=3),
    *schema("a format that is a list", "wrong type", type="string", format=[]),
    *both("long choices", "to choose from", structured_outputs={"choice": ["x" * 70_000]}),
    *both("a large tag", "262144", structured_outputs={"structural_tag": "x" * 270_000}),
    *both("a tag that is none", "structural_tag", structured_outputs={"structural_tag": "[]"}),
    *both("a slow tag", "for one token", structured_outputs={"structural_tag": SLOW_TAG}),
    *both("a slow grammar", "for one token", structured_outputs={"grammar": SLOW_GRAMMAR}),
    *both("many slow answers", "fewer at a time", n=100, structured_outputs={"grammar": WORDS}),
    *both("half a tag", "compiled", structured_outputs={"structural_tag": '{"structures": [{}]}'}),
    *both("counts in rules", "count to", structured_outputs={"grammar": "root ::= [a]{1,20000}"}),
    *schema("a minLength in a string", "minLength", type="string", minLength="1000000"),
    *schema("a minLength as a float", "minLength", type="string", minLength=400.0),
    *both("structured_outputs is a string", "must be an object", structured_outputs="x"),
    *both("no constraint", "constraint", structured_outputs={}),
    *both("two constraints", "one kind", structured_outputs={"regex": "a", "json": {}}),
    *both("no choices", "empty", structured_outputs={"choice": []}),
    *both("no grammar", "grammar", structured_outputs={"grammar": "no grammar"}),
    *both("JSON in a string, cut", "JSON", structured_outputs={"json": "{"}),
    *both(
        "a bomb in a string",
        "nested too deeply",
        structured_outputs={"json": '{"items":' * 9000},
    ),
    *regex("(a+)+$", "rounds of a repeat"),
    *regex("(a*)*b", "may be empty"),
    *regex("(x{1,1000}){1,1000}", "counts to more"),
    *regex("((a?){2}){2}", "may be empty"),
    *regex("a{1000000}", "counts to more"),
    *regex("x" * 5000, "longer than 2000"),
    *regex("(a|b)*" * 8, "neighbours"),
    *regex("(", ""),
    *regex("(?=a)b", ""),
    *regex(r"(a)\1", ""),
]
ROUTES = [
    *both("another model", "does not exist", 404, model="other"),
    *both("a model's name of 50,000 characters", "...", 404, model="x" * 50_000),
    *other(404, "Not Found: GET /v1/nope", "GET", "/v1/nope"),
    *other(404, "Not Found: POST /v1/nope", "POST", "/v1/nope"),
    *other(404, "Not Found", "POST", "/v1/embeddings"),
    *other(404, "Not Found", "GET", "/" + "x" * 20_000),
    *other(405, "Method Not Allowed", "GET", CHAT),
    *other(405, "Method Not Allowed", "PUT", TEXT),
    *other(405, "Method Not Allowed", "DELETE", "/v1/models"),
    *other(413, "larger than 300000 bytes", "POST", TEXT, b'{"prompt": "' + b"x" * 300_000 + b'"}'),
    *other(413, "larger than", "POST", "/tokenize", b'{"prompt": "' + b"x" * 300_000 + b'"}'),
    *other(400, "application/json", "POST", TEXT, b"{}", **{"content-type": "text/plain"}),
    *other(400, "at most 128", "POST", TEXT, b"{}", **{"x-request-id": "x" * 200}),
    *other(400, "nested deeper", "POST", "/invocations", f'{{"x": {DEEP}}}'.encode()),
    *other(400, "required", "POST", "/v1/responses"),
    *other(
        404,
        "Response with id 'resp_x' not found",
        "POST",
        "/v1/responses",
        json.dumps({"input": "hi", "previous_response_id": "resp_x"}).encode(),
    ),
    *[
        Case(f"{path} {fields}", 400, says, json.dumps(fields).encode(), path)
        for path in ("/v1/responses", "/v1/chat/completions/batch", "/invocations")
        for says, fields in (
            ("n must be an integer", {"n": "16000"}),
            ("priority must be an integer", {"priority": 7.0}),
            ("tools must be a list", {"tools": 5}),
            ("n must be an integer", {"sampling_params": {"n": "16000"}}),
        )
    ],
    *other(
        400,
        "got 1500",
        "POST",
        "/v1/chat/completions/batch",
        json.dumps({"messages": [USER] * 1500}).encode(),
    ),
    *other(
        400,
        "more than 1024",
        "POST",
        "/generative_scoring",
        json.dumps({"items": ["a"] * 2000}).encode(),
    ),
    *[
        Case(f"{path}: {says}", 400, says, json.dumps({field: [message]} | more).encode(), path)
        for path, field, says, message, more in (
            (CHAT, "messages", "tool_calls must be a list", USER[0] | {"tool_calls": 5}, {}),
            (CHAT, "messages", "type of a part", USER[0] | {"content": [{"type": ["text"]}]}, {}),
            ("/v1/responses", "input", "begin with a text", said(), {}),
            ("/v1/responses", "input", "begin with a text", said(type="refusal", refusal="x"), {}),
            ("/v1/messages", "messages", "text of a tool", tool_result(text=5), {"max_tokens": 4}),
            (
                "/v1/messages",
                "messages",
                "source of an",
                tool_result(source="x"),
                {"max_tokens": 4},
            ),
        )
    ],
    *other(400, "required", "POST", "/v1/messages"),
    *other(400, "required", "POST", "/detokenize"),
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
                    wrong.append(f"{case.name}: {error}\n{answer.text[:300]}")
            assert not wrong, "\n".join(wrong)
        assert_nothing_left(bed)
        for scenario in (
            what_is_good_passes,
            a_frontend_that_has_enough_to_do,
            a_deadline,
            a_deadline_in_a_stream,
            keys,
            one_id_for_many_requests,
            a_grammar_that_gets_slow,
            a_grammar_that_a_busy_machine_has_no_time_for,
            what_only_another_backend_knows,
            a_costly_grammar_keeps_nobody_waiting,
            a_grammar_that_takes_too_long,
            a_client_that_leaves_a_trial,
            a_client_that_does_not_read,
            a_failure_in_mid_stream,
            a_failure_in_mid_message,
            a_refusal_in_a_stream_is_one_line_in_the_log,
            many_bad_items_are_few_errors,
            large_bodies_beside_a_canary,
            models_by_id,
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
            {"n": 128, "max_tokens": 1},
            {"prompt": [[1, 2, 3], [4, 5]], "n": 2, "max_tokens": 1},
            {"priority": -1},
            {"request_id": "x" * 128},
            {"logit_bias": {"5": 100}, "stop": ["x"], "stop_token_ids": [7]},
            {"structured_outputs": {"regex": r"\d{4}-\d{2}(, \d{4}-\d{2})*"}},
            {"structured_outputs": {"choice": ["yes", "no"]}},
            {"unknown_field": json.loads("[" * 60 + "]" * 60)},
        ):
            body = {"model": "embedded", "prompt": "one", "max_tokens": 4} | fields
            answer = await http.post(TEXT, content=json.dumps(body))
            # json.dumps escapes what is not ASCII, pairs of surrogates among it.
            assert answer.status_code == 400, "no content type"
            answer = await http.post(TEXT, json=body)
            assert answer.status_code == 200, (fields, answer.text)


async def a_frontend_that_has_enough_to_do(bed: Bed) -> None:
    async with gated(bed, GateLimits(max_live_requests=2)) as (gate, http):
        body = {"model": "embedded", "prompt": "one", "max_tokens": 100, "ignore_eos": True}
        live = [asyncio.create_task(http.post(TEXT, json=body)) for _ in range(2)]
        while gate.num_live < 2:
            await asyncio.sleep(0.001)
        answer = await http.post(TEXT, json=body)
        assert_is_error(answer, 429, "2 requests already")
        assert answer.headers["retry-after"] == "1"
        assert (await http.get("/health")).status_code == 200
        assert [(await task).status_code for task in live] == [200, 200]
        assert (await http.post(TEXT, json=body)).status_code == 200


async def a_deadline(bed: Bed) -> None:
    async with gated(bed, GateLimits(request_timeout_s=0.2)) as (_, http):
        for path, what in ((TEXT, {"prompt": "one"}), (CHAT, {"messages": USER})):
            body = {"model": "embedded", "max_tokens": 450, "ignore_eos": True} | what
            assert_is_error(await http.post(path, json=body), 504, "longer than 0.2 s")
            await until_quiet(bed)


async def a_deadline_in_a_stream(bed: Bed) -> None:
    async with gated(bed, GateLimits(request_timeout_s=0.2)) as (_, http):
        for path, what in ((TEXT, {"prompt": "one"}), (CHAT, {"messages": USER})):
            body = {"model": "embedded", "max_tokens": 450, "ignore_eos": True, "stream": True}
            answer = await http.post(path, json=body | what)
            assert answer.status_code == 200
            *chunks, error, done = answer.text.split("\n\n")[:-1]
            assert done == "data: [DONE]"
            assert json.loads(error[6:])["error"] == {
                "message": "the request took longer than 0.2 s",
                "type": "DeadlineExceededError",
                "param": None,
                "code": 504,
            }
            assert all("error" not in chunk for chunk in chunks)
            assert len(chunks) > 3
            await until_quiet(bed)


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
            for given in ("", f"Bearer {KEY}x", f"Basic {KEY}", KEY):
                answer = await http.get(path, headers={"authorization": given} if given else {})
                if path in ("/health", "/metrics", "/ready"):
                    assert answer.status_code == 200
                    assert KEY not in answer.text
                else:
                    assert_is_error(answer, 401, "API key")
                    assert answer.headers["www-authenticate"] == "Bearer"
                    assert "sk-" not in answer.text
        assert_is_error(await http.post(TEXT, content=b"{"), 401, "API key")
        right = {"authorization": f"bearer {KEY}"}
        body = {"model": "embedded", "prompt": "one", "max_tokens": 1}
        assert (await http.post(TEXT, json=body, headers=right)).status_code == 200
        assert (await http.get("/version", headers=right)).status_code == 200


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
            for stream in (False, True):
                body = {
                    "model": "embedded",
                    "prompt": "one",
                    "max_tokens": 450,
                    "stream": stream,
                    "structured_outputs": {"grammar": "root ::= root root | [a-z ]"},
                }
                answer = await http.post(TEXT, json=body)
                if stream:
                    *_, error, done = answer.text.split("\n\n")[:-1]
                    assert done == "data: [DONE]"
                    assert json.loads(error[6:])["error"]["code"] == 400
                else:
                    assert_is_error(answer, 400, "costs too much")
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


async def a_costly_grammar_keeps_nobody_waiting(bed: Bed) -> None:
    """vLLM would convert this pattern on its event loop, in 1.4 s; the time of a separate process
    does not count."""
    costly = {"json": {"type": "string", "pattern": "[a-z]{1,1990}"}}
    body = {"model": "embedded", "prompt": "one", "max_tokens": 4}
    async with gated(bed) as (_, http), longest_turn() as turns_s:
        answer = await http.post(TEXT, json=body | {"structured_outputs": costly})
        assert answer.status_code in (200, 400), answer.text
        assert turns_s[0] < 0.3, "something took the event loop for itself"


async def a_grammar_that_takes_too_long(bed: Bed) -> None:
    """It is refused, whichever way it comes, and no engine hears of it."""
    num_sent = len(bed.router.ranks)
    # On a busy machine 0.2 s of CPU take seconds: only the CPU time is to run out.
    with limited_trials(bed, TrialLimits(cpu_s=0.2, wall_s=60.0, max_bytes=1 << 28)):
        async with gated(bed) as (_, http):
            for path, what in ((TEXT, {"prompt": "one"}), (CHAT, {"messages": USER})):
                body = {"model": "embedded", "max_tokens": 4, "response_format": LONG_FORM} | what
                answer = await http.post(path, json=body)
                assert_is_error(answer, 400, "more than 0.2 s of CPU time")
                answer = await http.post(path, json=body | {"n": 3})
                assert_is_error(answer, 400, "more than 0.2 s of CPU time")
                answer = await http.post(path, json=body | {"stream": True})
                assert_is_error(answer, 400, "more than 0.2 s of CPU time")
            body = {"model": "embedded", "input": "one", "text": {"format": LONG_TEXT_FORM}}
            assert (await http.post("/v1/responses", json=body)).status_code == 400
    assert len(bed.router.ranks) == num_sent
    assert not bed.engine._grammars._compiling


async def a_client_that_leaves_a_trial(bed: Bed) -> None:
    trials = psutil.Process(bed.process.pid)
    body = {"model": "embedded", "prompt": "one", "response_format": LONG_FORM}
    content = json.dumps(body).encode()
    num_outcomes = len(bed.router.outcomes)
    server = Server(Config(bed.gate, log_level="critical", lifespan="off"))
    listening = listener.listen("127.0.0.1", 0, write_timeout_s=10.0)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    with limited_trials(bed, limits_of(30.0)):
        _, client = await asyncio.open_connection(*listening.getsockname())
        client.write(
            f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n".encode()
        )
        client.write(content)
        while not trials.children():
            await asyncio.sleep(0.001)
        client.close()
        while len(bed.router.outcomes) == num_outcomes or trials.children():
            await asyncio.sleep(0.001)
    assert bed.router.outcomes[num_outcomes:] == [(RequestState.ABORTED, "the client left")]
    server.should_exit = True
    await serving


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


async def a_client_that_does_not_read(bed: Bed) -> None:
    """Its request is aborted and its blocks are free long before the request would have ended."""
    num_blocks = bed.engine.snapshot("i-0", 1).num_free_blocks
    body = {"model": "embedded", "prompt": "one", "max_tokens": 500, "ignore_eos": True}
    content = json.dumps(body | {"stream": True, "logprobs": 20}).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "SEND_BUFFER_BYTES", 4096)
        listening = listener.listen("127.0.0.1", 0, write_timeout_s=0.2)
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
        while not bed.router.live:
            await asyncio.sleep(0.001)
        (request_id,) = bed.router.live
        await until_quiet(bed)
    assert bed.router.aborted[-1] == request_id
    assert bed.engine.snapshot("i-0", 1).num_free_blocks == num_blocks
    server.should_exit = True
    await serving


async def a_failure_in_mid_stream(bed: Bed) -> None:
    body = {"prompt": "one", "ignore_eos": True}
    *chunks, error, done = await _answer_of_a_failure(bed, TEXT, body)
    assert chunks
    assert done == "data: [DONE]"
    assert_is_the_failure(error.removeprefix("data: "))


async def a_failure_in_mid_message(bed: Bed) -> None:
    """Anthropic's clients recognise an error by its event."""
    *chunks, error = await _answer_of_a_failure(bed, "/v1/messages", {"messages": USER})
    assert chunks
    event, data = error.split("\n")
    assert event == "event: error"
    assert json.loads(data[6:])["type"] == "error"
    assert_is_the_failure(data.removeprefix("data: "), "overloaded_error")


async def a_refusal_in_a_stream_is_one_line_in_the_log(bed: Bed) -> None:
    """vLLM logs a traceback for each."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("vllm").addHandler(handler)
    wrong = {"structured_outputs": {"grammar": "no grammar"}}
    try:
        async with gated(bed) as (_, http):
            for path, body in (
                (TEXT, {"prompt": "one", **wrong}),
                (CHAT, {"messages": USER, **wrong}),
                ("/v1/messages", {"messages": [{"role": "user", "content": [PICTURE]}]}),
                ("/v1/messages/count_tokens", {"messages": []}),
                (
                    "/generative_scoring",
                    {"query": "a", "items": ["b"], "label_token_ids": [300] * 50},
                ),
            ):
                records.clear()
                await http.post(
                    path, json={"model": "embedded", "max_tokens": 5, "stream": True, **body}
                )
                assert not any(record.exc_text or record.exc_info for record in records), path
                told = [record.getMessage() for record in records]
                assert sum(line.startswith("refused: ") for line in told) == 1, told
    finally:
        logging.getLogger("vllm").removeHandler(handler)


async def _answer_of_a_failure(bed: Bed, path: str, fields: dict[str, Any]) -> list[str]:
    async with gated(bed) as (_, http):
        body = {"model": "embedded", "max_tokens": 450, "stream": True} | fields
        asking = asyncio.create_task(http.post(path, json=body))
        while not bed.router.live:
            await asyncio.sleep(0.001)
        (request_id,) = bed.router.live
        while bed.llm.output_processor.request_states[request_id].is_prefilling:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)  # what came with the first token is on its way
        why = "i-0 died; " + "x" * 9000
        bed.llm.fail(request_id, GracefulHTTPError(why, HTTPStatus.SERVICE_UNAVAILABLE))
        return (await asking).text.split("\n\n")[:-1]


def assert_is_the_failure(data: str, kind: str = "ServiceUnavailableError") -> None:
    assert len(data) < 8192
    found = json.loads(data)["error"]
    assert (found["type"], found["code"]) == (kind, 503)
    assert found["message"].startswith("i-0 died")


async def many_bad_items_are_few_errors(bed: Bed) -> None:
    """vLLM's models would describe 117 kinds for each item that fits none of them."""
    async with gated(bed) as (_, http):
        for path, fields in (
            ("/v1/responses", {"input": [{}] * 2000}),
            ("/v1/responses", {"input": "x", "tools": [{}] * 2000}),
            ("/v1/responses", {"input": [{"role": "user", "content": [{}] * 2000}]}),
            (CHAT, {"messages": [{}] * 2000}),
            ("/tokenize", {"messages": [{}] * 2000}),
            ("/v1/messages", {"max_tokens": 1, "messages": [{}] * 2000}),
            (TEXT, {"prompt": "x", "logit_bias": dict.fromkeys(map(str, range(9000)), "x")}),
        ):
            answer = await http.post(path, json={"model": "embedded"} | fields)
            assert_is_error(answer, 400, "validation error")
            assert int(answer.json()["error"]["message"].split()[0]) < 300, answer.text


async def large_bodies_beside_a_canary(bed: Bed) -> None:
    """In CPU time of the event loop's thread, because others may use the machine."""
    longest_s = 0.0

    async def canary() -> None:
        nonlocal longest_s
        while True:
            begun_s = time.thread_time()
            await asyncio.sleep(0.001)
            longest_s = max(longest_s, time.thread_time() - begun_s)

    async with gated(bed, GateLimits(max_body_bytes=8 * 1024 * 1024)) as (_, http):
        singing = asyncio.create_task(canary())
        for path, field, value in (
            (TEXT, "prompt", f"[{'1,' * 4_000_000}1]"),
            (TEXT, "prompt", f"[{'[1],' * 1_000_000}[1]]"),
            (TEXT, "prompt", f"[{'1,' * 99_999}1]"),
            (TEXT, "prompt", f'"{"w " * 4_000_000}"'),
            (CHAT, "messages", f"[{'{},' * 2000}{{}}]"),
            ("/v1/responses", "input", f"[{'{},' * 2000}{{}}]"),
            ("/detokenize", "tokens", f"[{'5,' * 99_999}5]"),
        ):
            body = f'{{"model":"embedded","max_tokens":1,"{field}":{value}}}'
            headers = {"content-type": "application/json"}
            answer = await http.post(path, content=body.encode(), headers=headers)
            assert answer.status_code == (200 if path == "/detokenize" else 400)
        singing.cancel()
    assert longest_s < 0.25, longest_s


async def models_by_id(bed: Bed) -> None:
    async with gated(bed) as (_, http):
        (listed,) = (await http.get("/v1/models")).json()["data"]
        answer = await http.get("/v1/models/embedded")
        assert answer.status_code == 200
        shown = answer.json()
        assert shown["id"] == "embedded"
        assert shown.keys() == listed.keys()
        for other in ("nope", "org/nope", "a%2Fb", "embedded/x"):
            answer = await http.get(f"/v1/models/{other}")
            assert_is_error(answer, 404, "does not exist")
            assert answer.json()["error"]["param"] == "model"
        assert_is_error(await http.get(f"/v1/models/{'x' * 5000}"), 404, "...")
        for path in ("/v1/models", "/health", "/metrics", "/version"):
            for method, asked in (("HEAD", path), ("GET", f"{path}/")):
                assert (await http.request(method, asked)).status_code == 200, (method, asked)
        assert (await http.head(TEXT)).status_code == 405
