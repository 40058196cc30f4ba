"""The gate before a fake app: what goes in, what comes out."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest

from controller.adapters.vllm.endpoint import exchange
from controller.adapters.vllm.endpoint import gate as gate_module
from controller.adapters.vllm.endpoint.answers import INTERNAL, error_type
from controller.adapters.vllm.endpoint.exchange import MAX_EARLY_MESSAGES, PLACING, Placing
from controller.adapters.vllm.endpoint.gate import GateLimits
from controller.adapters.vllm.endpoint.headers import ONCE, RefusedError
from tests.unit.endpoint.gate_support import (
    OK,
    PATH,
    App,
    answering,
    ask,
    ask_only,
    error,
    gate,
    never,
    until,
)

POST = {"type": "http", "method": "POST", "path": PATH, "headers": [(b"host", b"localhost")]}


def placing() -> Placing:
    found = PLACING.get()
    assert found is not None
    return found


async def streaming(send: Any, *events: bytes, placed: bool = True) -> None:
    """`placed`: whether the request has an instance."""
    if placed:
        placing().began()
        await placing().placed()
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for event in events:
        await send({"type": "http.response.body", "body": event, "more_body": True})


def given(*pieces: bytes, leaves: bool = False) -> Callable[[], Any]:
    """The body in pieces; then the client stays connected, or leaves."""
    messages = [
        {"type": "http.request", "body": piece, "more_body": piece is not pieces[-1]}
        for piece in pieces
    ]

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        if not leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    return receive


def noting(sent: list[Any]) -> Callable[[Any], Any]:
    async def send(message: Any) -> None:
        sent.append(message.get("status") or message.get("body") or message["type"])

    return send


# -- in -----------------------------------------------------------------------------------


async def test_the_app_gets_the_body_in_one_piece_and_then_hears_that_the_client_left() -> None:
    heard: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        heard.extend([await receive(), await receive()])
        await OK(scope, receive, send)

    sent: list[Any] = []
    await gate(app)(POST, given(b'{"a"', b": 1", b"}", leaves=True), noting(sent))
    assert heard == [
        {"type": "http.request", "body": b'{"a": 1}', "more_body": False},
        {"type": "http.disconnect"},
    ]
    assert sent[:2] == [200, b"ok"]


async def test_a_large_body_is_not_read_to_its_end() -> None:
    for declared in (True, False):
        num_sent = 0

        async def body() -> AsyncIterator[bytes]:
            nonlocal num_sent
            for _ in range(1000):
                num_sent += 1
                yield b" " * 1024

        headers = {"content-length": "1024000"} if declared else {}
        limits = GateLimits(max_body_bytes=10 * 1024)
        answer = await ask(gate(never, limits), content=body(), headers=headers)
        assert (answer.status_code, error(answer)["type"]) == (413, "RequestTooLargeError")
        assert num_sent == (0 if declared else 11)


async def test_a_body_may_be_exactly_as_large_as_the_limit() -> None:
    found = gate(OK, GateLimits(max_body_bytes=1 << 20))
    for path, limit in ((PATH, 1 << 20), ("/tokenize", 512 << 10)):
        assert (await ask(found, path, content=b"{}".ljust(limit))).status_code == 200
        assert (await ask(found, path, content=b"{}".ljust(limit + 1))).status_code == 413
    for length, status in (("0" * 5000 + "2", 200), ("9" * 5000, 413)):  # thousands of digits
        assert (await ask(gate(OK), headers={"content-length": length})).status_code == status


async def stuck(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    await asyncio.Event().wait()


async def trickle() -> AsyncIterator[bytes]:
    while True:
        yield b" "
        await asyncio.sleep(0.001)


async def test_a_body_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "BODY_WAIT_S", 0.05)
    timeout_s: float | None
    for timeout_s, status, says in ((None, 408, "too slowly"), (0.02, 504, "longer than 0.02 s")):
        for body in (stuck, trickle):
            found = gate(never, GateLimits(request_timeout_s=timeout_s))
            answer = await asyncio.wait_for(ask(found, content=body()), 20.0)
            assert (answer.status_code, answer.headers["connection"]) == (status, "close")
            assert error(answer)["type"] == error_type(status)
            assert says in error(answer)["message"]


async def test_a_slow_body_earns_time_by_what_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "BODY_WAIT_S", 0.05)
    monkeypatch.setattr(exchange, "BODY_BYTES_PER_S", 10)
    loop = asyncio.get_running_loop()

    async def body() -> AsyncIterator[bytes]:
        begun_s = loop.time()
        yield b"{}".ljust(1000)  # 100 s
        while loop.time() < begun_s + 0.1:
            await asyncio.sleep(0.001)
        yield b" "

    assert (await ask(gate(OK), content=body())).status_code == 200


async def test_slow_senders_keep_nobody_out() -> None:
    go_on, served, num_begun = asyncio.Event(), asyncio.Event(), 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal num_begun
        yield b"{"
        num_begun += 1
        await go_on.wait()
        yield b"}"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await served.wait()
        await OK(scope, receive, send)

    found = gate(app, GateLimits(max_live_requests=1))
    slow = [asyncio.create_task(ask_only(found, content=body())) for _ in range(3)]
    await until(lambda: num_begun == 3)
    assert found.num_live == 0
    quick = asyncio.create_task(ask_only(found))
    await until(lambda: found.num_live == 1)
    # Their bodies are complete only when all places are taken.
    go_on.set()
    assert [(await task).status_code for task in slow] == [429] * 3
    served.set()
    assert (await quick).status_code == 200
    assert found.num_live == 0


async def test_large_bodies_have_only_so_much_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "FREE_BODY_BYTES", 10)
    monkeypatch.setattr(gate_module, "MAX_LARGE_BODIES", 1)
    go_on = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"{}".ljust(900)
        await go_on.wait()
        yield b" "

    found = gate(OK, GateLimits(max_body_bytes=1000))
    large = asyncio.create_task(ask_only(found, content=body()))
    await until(lambda: found.room.num_free_bytes == 110)
    answer = await ask_only(found, content=b"{}".ljust(121))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert "too many large requests" in error(answer)["message"]
    assert (await ask_only(found, content=b"{}".ljust(120))).status_code == 200
    go_on.set()
    assert (await large).status_code == 200
    assert found.room.num_free_bytes == 1000
    assert (await ask_only(found, content=b"{}".ljust(121))).status_code == 200


async def test_room_is_given_back_by_those_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "FREE_BODY_BYTES", 0)
    monkeypatch.setattr(exchange, "BODY_WAIT_S", 0.01)
    monkeypatch.setattr(exchange, "BODY_BYTES_PER_S", 1e9)
    found = gate(never, GateLimits(max_body_bytes=1000))
    for pieces, status in (((b"x" * 500,), 408), ((b"x" * 500, b"x" * 501), 413)):
        assert (await ask_only(found, content=stuck(*pieces))).status_code == status
        assert found.room.num_free_bytes == 32_000


async def test_other_routes_read_their_bodies_themselves() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answering(200, (await receive())["body"])(scope, receive, send)

    for method, path in (("POST", "/ping"), ("PUT", PATH)):
        answer = await ask(gate(app), path, method, content=b"no JSON")
        assert answer.content == b"no JSON"
    found, sent = gate(never, keys=("k",)), list[Any]()
    await found({"type": "websocket", "path": "/v1/realtime"}, given(), noting(sent))
    assert sent == ["websocket.close"]
    sent.clear()
    await gate(never)(POST, given(leaves=True), noting(sent))  # before its body has come
    assert sent == []


async def test_head_is_asked_as_get_and_a_slash_at_the_end_is_none() -> None:
    seen: list[tuple[str, str]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["method"], scope["path"]))
        await OK(scope, receive, send)

    found = gate(app)
    for method, path in (("HEAD", "/health"), ("GET", "/health/"), ("GET", "/")):
        assert (await ask(found, path, method)).status_code == 200
    assert seen == [("GET", "/health"), ("GET", "/health"), ("GET", "/")]
    answer = await ask(gate(never), PATH + "/", content=b'{"n": 1000}')
    assert (answer.status_code, error(answer)["param"]) == (400, "n"), "checked as without it"


# -- headers, keys, limits ----------------------------------------------------------------


async def test_a_header_that_is_too_long_or_comes_twice_is_named() -> None:
    """The gate read the last value, vLLM the first."""
    answer = await ask(gate(never), headers={"x-request-id": "x" * 129})
    assert (answer.status_code, error(answer)["param"]) == (400, "X-Request-Id")
    for name in ONCE:
        headers = [(name, b"localhost"), (b"accept", b"a"), (b"accept", b"b"), (name, b"y")]
        sent: list[Any] = []
        await gate(never)(POST | {"headers": headers}, given(b"{}"), noting(sent))
        assert sent[0] == 400
        assert json.loads(sent[1])["error"]["param"].lower().encode() == name


WRONG = [
    {},
    *({"authorization": given} for given in ("Bearer", "Bearer two", "one", "Basic one")),
    *({"authorization": given} for given in ("Bearer one two", "bearer ONE", "Bearer on")),
    {"x-api-key": "Bearer one"},
    {"x-api-key": "one", "authorization": "Bearer two"},
]


async def test_with_the_right_key_and_where_none_is_asked() -> None:
    found = gate(OK, keys=("one", "other"))
    for headers in (
        {"authorization": "Bearer one"},
        {"authorization": "bearer other"},
        {"x-api-key": "other"},  # as Anthropic's clients give it
        {"authorization": "Bearer one", "host": "evil.example:8000"},
    ):
        assert (await ask(found, headers=headers)).status_code == 200, headers
    for method, path in (("GET", "/health"), ("HEAD", "/metrics/"), ("OPTIONS", PATH)):
        assert (await ask(found, path, method)).status_code == 200


@pytest.mark.parametrize("headers", WRONG, ids=str)
async def test_without_the_right_key(headers: dict[str, str]) -> None:
    for method, path in (("POST", PATH), ("GET", "/docs"), ("GET", "/healthy"), ("PUT", "/x")):
        answer = await ask(gate(never, keys=("one", "other")), path, method, headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert error(answer)["code"] == "invalid_api_key"


async def test_a_page_in_a_browser_that_calls_here_under_a_name_of_its_own() -> None:
    foreign = {"host": "evil.example:8000"}
    for method, path in (("POST", PATH), ("GET", "/v1/models"), ("GET", "/health")):
        answer = await ask(gate(never), path, method, headers=foreign)
        assert (answer.status_code, error(answer)["param"]) == (403, "Host")
    assert (await ask(gate(OK, hosts=("EVIL.example",)), headers=foreign)).status_code == 200
    sent: list[Any] = []
    await gate(OK)(POST | {"headers": []}, given(b"{}"), noting(sent))
    assert sent[0] == 200, "no browser leaves the Host out"


async def test_live_requests_are_bounded() -> None:
    go_on = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            await go_on.wait()
        await OK(scope, receive, send)

    found = gate(app, GateLimits(max_live_requests=2))
    live = [asyncio.create_task(ask_only(found)) for _ in range(2)]
    await until(lambda: found.num_live == 2)
    answer = await ask_only(found)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert error(answer)["type"] == "RateLimitError"
    assert (await ask_only(found, "/health", "GET")).status_code == 200
    found.limits = replace(found.limits, max_live_requests=3)
    live.append(asyncio.create_task(ask_only(found)))
    await until(lambda: found.num_live == 3)
    found.limits = replace(found.limits, max_live_requests=1)
    assert (await ask_only(found)).status_code == 429
    go_on.set()
    assert [(await task).status_code for task in live] == [200, 200, 200]
    assert found.num_live == 0


async def test_a_stopping_cluster() -> None:
    found = gate(OK)

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        found.closed = True
        yield b"}"

    assert (await ask(found, content=body())).status_code == 503, "its body came too late"
    answer = await ask(found)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert (await ask(found, "/health", "GET")).status_code == 200


# -- out ----------------------------------------------------------------------------------


async def test_an_error_of_the_app_gets_our_shape_and_keeps_its_headers() -> None:
    headers = (
        (b"allow", b"GET"),
        (b"Content-Length", b"31"),
        (b"content-type", b"text/html"),
        (b"retry-after", b"7"),
    )
    answer = await ask(gate(answering(405, b'{"detail":"Method Not Allowed"}', *headers)))
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(answer.content))
    assert "retry-after" not in answer.headers
    assert error(answer)["message"] == f"Method Not Allowed: POST {PATH}"


CREATED = b"event: response.created\ndata: {}\n\n"


async def test_the_head_of_a_stream_waits_until_its_request_is_placed() -> None:
    placed, streaming_on = asyncio.Event(), asyncio.Event()
    begun = False
    sent: list[Any] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        nonlocal begun
        placing().began()
        await streaming(send, CREATED, placed=False)
        begun = True
        await placed.wait()
        await placing().placed()
        await streaming_on.wait()
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    answering_it = asyncio.create_task(gate(app)(POST, given(b"{}"), noting(sent)))
    await until(lambda: begun)
    assert sent == []
    placed.set()
    await until(lambda: len(sent) == 2)
    assert sent == [200, CREATED], "before its first token"
    streaming_on.set()
    await answering_it
    assert sent[2:] == [b"data: [DONE]\n\n"]


async def test_a_stream_that_is_refused_before_it_is_placed_has_the_refusal_s_status() -> None:
    for raises in (False, True):

        async def app(_scope: Any, _receive: Any, send: Any, raises: bool = raises) -> None:
            placing().began()
            await streaming(send, CREATED, placed=False)
            why = RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "too many wait", retry_after_s=17)
            placing().refused(why)
            if raises:
                raise RuntimeError
            for body in (b"event: error\ndata: {}\n\n", b"data: [DONE]\n\n"):
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        answer = await ask(gate(app))
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "17")
        assert answer.headers["content-type"] == "application/json"
        assert error(answer)["message"] == "too many wait"


async def test_an_error_that_a_stream_begins_with_is_its_status() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        told = b'data: {"error": {"message": "no such adapter", "code": 404}}\n\n'
        await streaming(send, told, b"data: [DONE]\n\n", placed=False)
        await send({"type": "http.response.body", "body": b""})

    answer = await ask(gate(app))
    assert (answer.status_code, error(answer)["message"]) == (404, "no such adapter")


async def test_a_stream_that_waits_for_no_request_begins_by_itself() -> None:
    events = [b"data: %d\n\n" % number for number in range(2 * MAX_EARLY_MESSAGES)]
    sent: list[Any] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await streaming(send, *events, placed=False)
        await asyncio.Event().wait()

    answering_it = asyncio.create_task(gate(app)(POST, given(b"{}"), noting(sent)))
    await until(lambda: len(sent) > len(events))
    answering_it.cancel()
    assert sent == [200, *events]


async def test_what_fails_behind_the_first_token_of_a_stream_stays_in_the_stream() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        placing().began()  # of two prompts
        await streaming(send, b"data: {}\n\n")
        placing().refused(RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "the second prompt"))
        told = b'data: {"error": {"message": "the second prompt", "code": 429}}\n\n'
        await send({"type": "http.response.body", "body": told, "more_body": False})

    answer = await ask(gate(app))
    assert answer.status_code == 200
    assert answer.content.startswith(b"data: {}\n\ndata: {")
    assert b"the second prompt" in answer.content


async def test_a_huge_error_of_the_app_is_cut() -> None:
    body = json.dumps({"error": {"message": "x" * 3_000_000}}).encode()
    answer = await ask(gate(answering(400, body)))
    assert answer.status_code == 400
    assert len(answer.content) < 8192


async def test_an_app_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RecursionError("a secret")

    answer = await ask(gate(app))
    assert (answer.status_code, error(answer)["message"]) == (500, INTERNAL)
    assert "a secret" in caplog.text


async def fails(_receive: Any, _send: Any) -> None:
    raise RuntimeError("a secret")


async def is_refused_late(_receive: Any, _send: Any) -> None:
    """Starlette reports an exception for which it has a handler in this way."""
    raise RuntimeError("response already started") from ValueError("an unknown type")


async def tells_an_error(_receive: Any, send: Any) -> None:
    told = {"error": {"message": "x" * 9000, "type": "Y", "param": None, "code": 503}}
    for body in (f"data: {json.dumps(told)}\n\n".encode(), b"data: [DONE]\n\n"):
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body"})


async def is_late(receive: Any, send: Any) -> None:
    await receive()
    await receive()
    await streaming(send, b"data: too late\n\n")
    raise ConnectionError("whatever an app does that is cut")


def stream_that(goes_on: Callable[[Any, Any], Any]) -> App:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await streaming(send, b"data: 1\n\n")
        await goes_on(receive, send)

    return app


async def test_a_failed_stream_ends_with_a_short_error(caplog: pytest.LogCaptureFixture) -> None:
    goes_on: Any
    for goes_on, code, says, logged in (
        (is_refused_late, 400, "an unknown type", False),
        (tells_an_error, 503, "xxx", False),
        (is_late, 504, "the request took longer than 0.02 s", False),
        (fails, 500, INTERNAL, True),
    ):
        answer = await ask(gate(stream_that(goes_on), GateLimits(request_timeout_s=0.02)))
        first, failure, done, _ = answer.text.split("\n\n")
        assert (first, done) == ("data: 1", "data: [DONE]")
        told = json.loads(failure.removeprefix("data: "))["error"]
        assert (told["code"], told["type"]) == (code, error_type(code))
        assert told["message"].startswith(says)
        assert len(answer.content) < 8192
        assert ("Traceback" in caplog.text) == logged
    found = gate(stream_that(is_late), GateLimits(request_timeout_s=0.02))
    _, failure, _ = (await ask(found, "/v1/messages")).text.split("\n\n")
    assert failure.startswith("event: error\ndata: ")
    assert json.loads(failure.partition("data: ")[2])["error"]["code"] == 504
