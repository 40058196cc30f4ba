"""The gate before a fake app: what goes in, what comes out."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from controller.adapters.vllm.endpoint import exchange
from controller.adapters.vllm.endpoint import gate as gate_module
from controller.adapters.vllm.endpoint.answers import INTERNAL, error_type
from controller.adapters.vllm.endpoint.exchange import MAX_EARLY_MESSAGES, PLACING
from controller.adapters.vllm.endpoint.gate import Gate, GateLimits
from controller.adapters.vllm.endpoint.headers import RefusedError

App = Callable[[Any, Any, Any], Awaitable[None]]
PATH = "/v1/completions"


LEVELS = {"normal": 0, "high": 1, "low": -2}


def gate(app: App, limits: GateLimits | None = None, keys: tuple[str, ...] = ()) -> Gate:
    found = Gate(limits, keys, LEVELS)
    found.app, found.json_paths = app, frozenset({PATH})
    return found


async def ask(found: Gate, path: str = PATH, method: str = "POST", **what: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app=found)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.request(method, path, **({"content": b"{}"} | what))
    assert found.num_live == 0
    return answer


async def ask_only(found: Gate, body: bytes | AsyncIterator[bytes]) -> httpx.Response:
    """Asks while other tasks run."""
    transport = httpx.ASGITransport(app=found)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return await http.post(PATH, content=body)


def answering(status: int, body: bytes, *headers: tuple[bytes, bytes]) -> App:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        for piece in (body[:3], body[3:]):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    return app


async def streaming(send: Any, *events: bytes, placed: bool = True) -> None:
    """`placed`: whether the request has an instance."""
    if placed and (placing := PLACING.get()):
        placing.began()
        await placing.placed()
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for event in events:
        await send({"type": "http.response.body", "body": event, "more_body": True})


async def never(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError("this must not reach the app")


def post_scope() -> dict[str, Any]:
    headers = [(b"host", b"localhost")]
    return {"type": "http", "method": "POST", "path": PATH, "headers": headers}


def given(body: bytes) -> Callable[[], Awaitable[dict[str, Any]]]:
    """The client stays connected."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    return receive


def error(answer: httpx.Response) -> dict[str, Any]:
    return dict(answer.json()["error"])


# -- in -----------------------------------------------------------------------------------


async def test_the_app_gets_the_body_in_one_piece_and_then_hears_that_the_client_left() -> None:
    heard: list[Any] = []

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        heard.extend([await receive(), await receive()])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    pieces = iter([b'{"a"', b": 1", b"}"])

    async def receive() -> Any:
        piece = next(pieces, None)
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": piece != b"}"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
    await gate(app)(scope, receive, send)
    assert heard == [
        {"type": "http.request", "body": b'{"a": 1}', "more_body": False},
        {"type": "http.disconnect"},
    ]
    assert sent[-1]["body"] == b"ok"


async def test_a_crowd_of_requests_lets_the_loop_turn_between_them() -> None:
    num_requests, turn, begun = 50, 0, []

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        begun.append(turn)
        await answering(200, b"ok")(scope, _receive, send)

    async def send(_message: Any) -> None:
        pass

    found = gate(app)
    async with asyncio.TaskGroup() as group:
        for _ in range(num_requests):
            group.create_task(found(post_scope(), given(b"{}"), send))
        while len(begun) < num_requests:
            await asyncio.sleep(0)
            turn += 1
    assert len(set(begun)) == num_requests


@pytest.mark.parametrize("declared", [True, False])
async def test_a_large_body_is_not_read_to_its_end(declared: bool) -> None:
    num_sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal num_sent
        for _ in range(1000):
            num_sent += 1
            yield b" " * 1024

    headers = {"content-length": "1024000"} if declared else {}
    limits = GateLimits(max_body_bytes=10 * 1024)
    answer = await ask(gate(never, limits), content=body(), headers=headers)
    assert answer.status_code == 413
    assert error(answer)["type"] == "RequestTooLargeError"
    assert num_sent == (0 if declared else 11)


async def test_a_body_of_exactly_the_limit_passes() -> None:
    body = b"{}".ljust(2048)
    answer = await ask(gate(answering(200, b"ok"), GateLimits(max_body_bytes=2048)), content=body)
    assert answer.status_code == 200
    answer = await ask(gate(never, GateLimits(max_body_bytes=2047)), content=body)
    assert answer.status_code == 413


@pytest.mark.parametrize(("length", "status"), [("0" * 5000 + "2", 200), ("9" * 5000, 413)])
async def test_a_length_of_thousands_of_digits(length: str, status: int) -> None:
    headers = {"content-length": length}
    assert (await ask(gate(answering(200, b"ok")), headers=headers)).status_code == status


async def stuck(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    await asyncio.Event().wait()


async def trickle() -> AsyncIterator[bytes]:
    while True:
        yield b" "
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("body", [stuck, trickle])
async def test_a_body_that_does_not_come(
    body: Callable[[], AsyncIterator[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "BODY_WAIT_S", 0.05)
    answer = await asyncio.wait_for(ask(gate(never), content=body()), 20.0)
    assert (answer.status_code, answer.headers["connection"]) == (408, "close")
    assert error(answer)["type"] == error_type(408)


@pytest.mark.parametrize("body", [stuck, trickle])
async def test_the_deadline_holds_for_the_body_too(
    body: Callable[[], AsyncIterator[bytes]],
) -> None:
    limits = GateLimits(request_timeout_s=0.05)
    answer = await asyncio.wait_for(ask(gate(never, limits), content=body()), 20.0)
    assert (answer.status_code, answer.headers["connection"]) == (504, "close")
    assert error(answer)["message"] == "the request took longer than 0.05 s"


async def test_a_request_has_one_deadline_for_its_body_and_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deadlines_s: list[float] = []
    timeout_at = asyncio.timeout_at

    def noting(when_s: float) -> asyncio.Timeout:
        deadlines_s.append(when_s)
        return timeout_at(when_s)

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()
        assert await receive() == {"type": "http.disconnect"}

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        yield b"}"

    monkeypatch.setattr(asyncio, "timeout_at", noting)
    answer = await ask(gate(app, GateLimits(request_timeout_s=0.05)), content=body())
    assert (answer.status_code, len(set(deadlines_s))) == (504, 1)
    assert len(deadlines_s) >= 3  # two pieces, then whether the client has left


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

    assert (await ask(gate(answering(200, b"ok")), content=body())).status_code == 200


async def test_slow_senders_keep_nobody_out() -> None:
    go_on, num_begun = asyncio.Event(), 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal num_begun
        yield b"{"
        num_begun += 1
        await go_on.wait()
        yield b"}"

    served = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await served.wait()
        await answering(200, b"ok")(scope, receive, send)

    found = gate(app, GateLimits(max_live_requests=1))
    slow = [asyncio.create_task(ask_only(found, body())) for _ in range(3)]
    while num_begun < 3:
        await asyncio.sleep(0)
    assert found.num_live == 0
    quick = asyncio.create_task(ask_only(found, b"{}"))
    while found.num_live < 1:
        await asyncio.sleep(0)
    # Their bodies are complete only when all places are taken.
    go_on.set()
    assert [(await task).status_code for task in slow] == [429] * 3
    served.set()
    assert (await quick).status_code == 200
    assert found.num_live == 0


async def test_a_cluster_that_stops_while_a_body_comes() -> None:
    found = gate(never)

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        found.closed = True
        yield b"}"

    assert (await ask(found, content=body())).status_code == 503


async def test_large_bodies_have_only_so_much_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "FREE_BODY_BYTES", 10)
    monkeypatch.setattr(gate_module, "MAX_LARGE_BODIES", 1)
    go_on = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"{}".ljust(900)
        await go_on.wait()
        yield b" "

    found = gate(answering(200, b"ok"), GateLimits(max_body_bytes=1000))
    large = asyncio.create_task(ask_only(found, body()))
    while found.room.num_free_bytes == 1000:
        await asyncio.sleep(0)
    assert found.room.num_free_bytes == 110
    answer = await ask_only(found, b"{}".ljust(121))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert "too many large requests" in error(answer)["message"]
    assert (await ask_only(found, b"{}".ljust(120))).status_code == 200
    go_on.set()
    assert (await large).status_code == 200
    assert found.room.num_free_bytes == 1000
    assert (await ask_only(found, b"{}".ljust(121))).status_code == 200


async def test_room_is_given_back_by_those_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "FREE_BODY_BYTES", 0)
    monkeypatch.setattr(exchange, "BODY_WAIT_S", 0.01)
    monkeypatch.setattr(exchange, "BODY_BYTES_PER_S", 1e9)
    found = gate(never, GateLimits(max_body_bytes=1000))
    for pieces, status in (((b"x" * 500,), 408), ((b"x" * 500, b"x" * 501), 413)):
        assert (await ask_only(found, stuck(*pieces))).status_code == status
        assert found.room.num_free_bytes == 32_000


async def test_a_client_that_leaves_before_its_body_has_come() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        raise AssertionError("nobody is there")

    found = gate(never)
    await found({"type": "http", "method": "POST", "path": PATH, "headers": []}, receive, send)
    assert found.num_live == 0


async def test_other_routes_read_their_bodies_themselves() -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        await answering(200, body)(_scope, receive, send)

    for method, path in (("POST", "/ping"), ("PUT", PATH)):
        answer = await ask(gate(app), path, method, content=b"no JSON")
        assert answer.content == b"no JSON"


async def test_head_is_asked_as_get_and_a_slash_at_the_end_is_none() -> None:
    seen: list[tuple[str, str]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["method"], scope["path"]))
        await answering(200, b"ok")(scope, receive, send)

    found = gate(app, keys=("one",))
    for method, path in (("HEAD", "/health"), ("GET", "/health/"), ("HEAD", "/metrics/")):
        assert (await ask(found, path, method)).status_code == 200
    assert (await ask(found, "/v1/models/", "HEAD")).status_code == 401
    assert seen == [("GET", "/health"), ("GET", "/health"), ("GET", "/metrics")]
    assert (await ask(gate(app), "/", "GET")).status_code == 200
    answer = await ask(gate(never), PATH + "/", content=b'{"n": 1000}')
    assert (answer.status_code, error(answer)["param"]) == (400, "n"), "checked as without it"


async def test_a_long_id_in_the_header() -> None:
    answer = await ask(gate(never), headers={"x-request-id": "x" * 129})
    assert (answer.status_code, error(answer)["param"]) == (400, "X-Request-Id")


async def test_a_bad_field_is_named() -> None:
    answer = await ask(gate(never), content=b'{"n": 1000}')
    assert (answer.status_code, error(answer)["param"]) == (400, "n")


async def test_web_sockets_are_not_served() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await gate(never, keys=("k",))({"type": "websocket", "path": "/v1/realtime"}, None, send)
    assert sent == [{"type": "websocket.close"}]


# -- keys, limits -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", "Bearer two", "two", "Basic one", "Bearer one two", "bearer ONE"],
)
async def test_without_the_right_key(given: str) -> None:
    headers = {"authorization": given} if given else {}
    for method, path in (("POST", PATH), ("GET", "/docs"), ("GET", "/healthy"), ("PUT", "/x")):
        answer = await ask(gate(never, keys=("one", "other")), path, method, headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert error(answer)["code"] == "invalid_api_key"


async def test_with_the_right_key_and_where_none_is_asked() -> None:
    found = gate(answering(200, b"ok"), keys=("one", "other"))
    for key in ("Bearer one", "bearer other"):
        answer = await ask(found, headers={"authorization": key})
        assert answer.status_code == 200
    for method, path in (("GET", "/health"), ("GET", "/metrics"), ("OPTIONS", PATH)):
        assert (await ask(found, path, method)).status_code == 200
    assert (await ask(gate(answering(200, b"ok")))).status_code == 200


async def test_a_key_as_anthropic_s_clients_give_it() -> None:
    found = gate(answering(200, b"ok"), keys=("one", "other"))
    assert (await ask(found, headers={"x-api-key": "other"})).status_code == 200
    for headers in (
        {"x-api-key": "two"},
        {"x-api-key": ""},
        {"x-api-key": "Bearer one"},
        {"x-api-key": "one", "authorization": "Bearer two"},
    ):
        assert (await ask(found, headers=headers)).status_code == 401, headers


async def test_a_page_in_a_browser_that_calls_here_under_a_name_of_its_own() -> None:
    foreign = {"host": "evil.example:8000"}
    for method, path in (("POST", PATH), ("GET", "/v1/models"), ("GET", "/health")):
        answer = await ask(gate(never), path, method, headers=foreign)
        assert (answer.status_code, error(answer)["param"]) == (403, "Host")
    listed = Gate(hosts=["EVIL.example"])
    listed.app, listed.json_paths = answering(200, b"ok"), frozenset({PATH})
    assert (await ask(listed, headers=foreign)).status_code == 200
    with_key = foreign | {"authorization": "Bearer one"}
    found = gate(answering(200, b"ok"), keys=("one",))
    assert (await ask(found, headers=with_key)).status_code == 200


async def test_a_header_twice() -> None:
    """The gate read the last value, vLLM the first."""
    twice = [("x-request-id", "x" * 1000), ("x-request-id", "y")]
    answer = await ask(gate(never), headers=twice)
    assert (answer.status_code, error(answer)["param"]) == (400, "X-Request-Id")


async def test_live_requests_are_bounded() -> None:
    go_on = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            await go_on.wait()
        await answering(200, b"ok")(scope, receive, send)

    found = gate(app, GateLimits(max_live_requests=2))
    transport = httpx.ASGITransport(app=found)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        live = [asyncio.create_task(http.post(PATH, content=b"{}")) for _ in range(2)]
        while found.num_live < 2:
            await asyncio.sleep(0)
        answer = await http.post(PATH, content=b"{}")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert error(answer)["type"] == "RateLimitError"
        assert (await http.get("/health")).status_code == 200
        found.limits = replace(found.limits, max_live_requests=3)
        live.append(asyncio.create_task(http.post(PATH, content=b"{}")))
        while found.num_live < 3:
            await asyncio.sleep(0)
        found.limits = replace(found.limits, max_live_requests=1)
        assert (await http.post(PATH, content=b"{}")).status_code == 429
        go_on.set()
        assert [(await task).status_code for task in live] == [200, 200, 200]
    assert found.num_live == 0


async def test_a_stopping_cluster() -> None:
    found = gate(answering(200, b"ok"))
    found.closed = True
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


async def test_the_head_of_a_stream_waits_until_its_request_is_placed() -> None:
    placed = asyncio.Event()
    sent: list[str] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        placing = PLACING.get()
        assert placing is not None
        placing.began()
        await streaming(send, b"event: response.created\ndata: {}\n\n", placed=False)
        await placed.wait()
        await placing.placed()
        await streaming_on.wait()
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def note(message: Any) -> None:
        sent.append(message.get("status") or message["body"])

    streaming_on = asyncio.Event()
    found = gate(app)
    answering_it = asyncio.create_task(found(post_scope(), given(b"{}"), note))
    await asyncio.sleep(0.02)
    assert sent == []
    placed.set()
    await asyncio.sleep(0.02)
    assert sent == [200, b"event: response.created\ndata: {}\n\n"], "before its first token"
    streaming_on.set()
    await answering_it
    assert sent[2:] == [b"data: [DONE]\n\n"]


@pytest.mark.parametrize("raises", [False, True])
async def test_a_stream_that_is_refused_before_it_is_placed_has_the_refusal_s_status(
    raises: bool,
) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        placing = PLACING.get()
        assert placing is not None
        placing.began()
        await streaming(send, b"event: response.created\ndata: {}\n\n", placed=False)
        why = RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "too many wait", retry_after_s=17)
        placing.refused(why)
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
    assert answer.status_code == 404
    assert error(answer)["message"] == "no such adapter"


async def test_what_fails_behind_the_first_token_of_a_stream_stays_in_the_stream() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        placing = PLACING.get()
        assert placing is not None
        placing.began()
        placing.began()
        await placing.placed()
        await streaming(send, b"data: {}\n\n", placed=False)
        placing.refused(RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "the second prompt"))
        told = b'data: {"error": {"message": "the second prompt", "code": 429}}\n\n'
        await send({"type": "http.response.body", "body": told, "more_body": False})

    answer = await ask(gate(app))
    assert answer.status_code == 200
    assert answer.content.startswith(b"data: {}\n\ndata: {")
    assert b"the second prompt" in answer.content


async def test_a_stream_that_waits_for_no_request_begins_by_itself() -> None:
    events = [b"data: %d\n\n" % number for number in range(2 * MAX_EARLY_MESSAGES)]
    sent: list[Any] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await streaming(send, *events, placed=False)
        await asyncio.Event().wait()

    async def note(message: Any) -> None:
        sent.append(message.get("status") or message["body"])

    answering_it = asyncio.create_task(gate(app)(post_scope(), given(b"{}"), note))
    await asyncio.sleep(0.02)
    answering_it.cancel()
    assert sent == [200, *events]


async def test_a_huge_error_of_the_app_is_cut() -> None:
    for size in (50_000, 3_000_000):
        body = json.dumps({"error": {"message": "x" * size}}).encode()
        answer = await ask(gate(answering(400, body)))
        assert answer.status_code == 400
        assert len(answer.content) < 8192


async def test_what_is_no_error_passes_as_it_is() -> None:
    answer = await ask(gate(answering(200, b'data: {"error": 1}', (b"x-a", b"b"))))
    assert (answer.content, answer.headers["x-a"]) == (b'data: {"error": 1}', "b")


async def test_an_app_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RecursionError("a secret")

    with caplog.at_level(logging.ERROR):
        answer = await ask(gate(app))
    assert (answer.status_code, error(answer)["message"]) == (500, INTERNAL)
    assert "a secret" in caplog.text


async def test_an_app_that_raises_in_mid_stream() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await streaming(send, b"data: 1\n\n")
        raise RuntimeError("a secret")

    first, failure, done, _ = (await ask(gate(app))).text.split("\n\n")
    assert (first, done) == ("data: 1", "data: [DONE]")
    assert json.loads(failure[6:])["error"]["message"] == INTERNAL


async def test_a_refusal_after_the_answer_has_begun(caplog: pytest.LogCaptureFixture) -> None:
    """Starlette reports an exception for which it has a handler in this way."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await streaming(send, b"data: 1\n\n")
        raise RuntimeError("response already started") from ValueError("an unknown type")

    first, failure, done, _ = (await ask(gate(app))).text.split("\n\n")
    assert (first, done) == ("data: 1", "data: [DONE]")
    found = json.loads(failure[6:])["error"]
    assert (found["code"], found["message"]) == (400, "an unknown type")
    assert "Traceback" not in caplog.text


async def test_an_error_within_a_stream_is_cut_and_typed() -> None:
    event = json.dumps({"error": {"message": "x" * 9000, "type": "Y", "param": None, "code": 503}})

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await streaming(send, b"data: 1\n\n", f"data: {event}\n\n".encode(), b"data: [DONE]\n\n")
        await send({"type": "http.response.body"})

    answer = await ask(gate(app))
    failure = json.loads(answer.text.split("\n\n")[1][6:])["error"]
    assert (failure["type"], failure["code"]) == ("ServiceUnavailableError", 503)
    assert len(answer.content) < 8192


# -- deadline -----------------------------------------------------------------------------


async def test_at_the_deadline_the_app_hears_that_the_client_left() -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        assert await receive() == {"type": "http.disconnect"}
        await answering(200, b"null")(_scope, receive, send)  # what FastAPI says then

    answer = await ask(gate(app, GateLimits(request_timeout_s=0.02)))
    assert (answer.status_code, error(answer)["type"]) == (504, "DeadlineExceededError")


async def late_stream(_scope: Any, receive: Any, send: Any) -> None:
    await streaming(send, b"data: 1\n\n")
    await receive()
    await receive()
    await streaming(send, b"data: too late\n\n")
    raise ConnectionError("whatever an app does that is cut")


async def test_at_the_deadline_a_stream_ends_with_an_error() -> None:
    answer = await ask(gate(late_stream, GateLimits(request_timeout_s=0.02)))
    first, failure, done, _ = answer.text.split("\n\n")
    assert (first, done) == ("data: 1", "data: [DONE]")
    assert json.loads(failure[6:])["error"]["code"] == 504


async def test_at_the_deadline_a_stream_of_anthropic_s_ends_with_its_error() -> None:
    found = gate(late_stream, GateLimits(request_timeout_s=0.02))
    found.json_paths = frozenset({"/v1/messages"})
    first, failure, _ = (await ask(found, "/v1/messages")).text.split("\n\n")
    assert first == "data: 1"
    event, data = failure.split("\n")
    assert event == "event: error"
    told = json.loads(data.removeprefix("data: "))
    assert (told["type"], told["error"]["code"]) == ("error", 504)


async def test_a_request_in_time_is_not_touched() -> None:
    answer = await ask(gate(answering(200, b"ok"), GateLimits(request_timeout_s=30.0)))
    assert (answer.status_code, answer.content) == (200, b"ok")
