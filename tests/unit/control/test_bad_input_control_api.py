"""What the control API answers to what it should not get: a status, a code, a small body. For the
bodies of orders see test_control_contract.py."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from controller.adapters.http import control_server
from controller.adapters.http.model_api import MAX_LINES
from controller.api.wire import ErrorBody
from controller.runtime.messages.requests import RequestsAsked
from tests.unit.control.control_support import AUTHORIZED, TOKEN, VIEW_TOKEN, Both, listening

MAX_ERROR_BYTES = 8192


@dataclass(frozen=True)
class Call:
    path: str = "/v1/status"
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes | None = None


def get(*paths: str, **headers: str) -> list[Call]:
    return [Call(path, headers=tuple(headers.items())) for path in paths or ("/v1/status",)]


def post(path: str, *contents: bytes, **headers: str) -> list[Call]:
    return [Call(path, "POST", tuple(headers.items()), each) for each in contents or (b"{}",)]


def hosts(header: str, *values: str) -> list[Call]:
    return [call for value in values for call in get("/v1/status", "/nowhere", **{header: value})]


KEY = b'{"key": "' + b"a" * 64 + b'"'
TRAFFIC = (
    *(KEY + b', "prefix_hash_tokens": %b}' % each for each in (b"0", b'"16"')),
    KEY + b', "prefix_hash_tokens": 16, "text": true}',
    KEY.replace(b"a", b"k") + b', "prefix_hash_tokens": 16}',
    b'{"key": "ab", "prefix_hash_tokens": 16}',
    *(b"", b'{"prefix_hash_tokens": 16}'),
)
GRACES = tuple(b'{"grace_s": %b}' % each for each in (b'"3"', b"-1", b"NaN", b"1e999"))
NO_STOP = (b'{"drain": tru', b"[]", b"7", b"null", b"\xff\xfe\x00", b"x" * 60_000)
NO_DRAIN = tuple(
    b'{"drain": %b}' % each for each in (b'"\\ud800"', b'"yes"', b"7", b"[" * 5000 + b"]" * 5000)
)
LOG = "/v1/members/i-0/log"
OTHER_METHODS = (
    *(("DELETE", "/v1/status"), ("POST", "/v1/status"), ("GET", "/v1/stop")),
    *(("GET", "/v1/traffic"), ("DELETE", "/v1/settings"), ("PUT", "/v1/rolling-restart")),
    *(("GET", "/v1/requests/r-99/abort"), ("GET", "/v1/instances/i-0/drain")),
)
REFUSED: list[tuple[int, str, list[Call]]] = [
    (
        401,
        "no_token",
        get("/v1/status", "/metrics", "/nowhere", "/openapi.json", LOG, Authorization=""),
    ),
    (403, "bad_token", hosts("Authorization", "Bearer sk-client", f"Basic {TOKEN}", TOKEN)),
    (403, "bad_token", hosts("Authorization", f"bearer {TOKEN}", f"Bearer {TOKEN}x")),
    (403, "bad_token", get(Authorization="Bearer t\u00f8ken")),
    (403, "foreign_origin", hosts("Origin", "http://localhost:8700", "http://evil.example")),
    (403, "foreign_origin", get(Origin="null")),
    (403, "foreign_host", hosts("Host", "evil.example", "evil.example:8700", "")),
    (403, "foreign_host", get(Host="127.0.0.1.evil.com")),
    (403, "view_only", post("/v1/stop", Authorization=f"Bearer {VIEW_TOKEN}")),
    (403, "view_only", post("/v1/traffic", Authorization=f"Bearer {VIEW_TOKEN}")),
    (404, "not_found", get("/", "/v1/nothing", "/v1/status/", "/v1/../etc/passwd", "/v1/%00")),
    (404, "not_found", get("/v1/" + "x" * 4000, "/v1/members/i-7/log", "/v1/members/audit/log")),
    (404, "not_found", get("/v1/members/..%2Faudit/log", "/v1/members/%2Fetc%2Fpasswd/log")),
    (404, "no_log", get(LOG)),
    (404, "no_such_instance", get("/v1/requests?instance=i-99")),
    (
        404,
        "no_such_request",
        get(*(f"/v1/requests/nothing{end}" for end in ("", "/id", "/explain"))),
    ),
    (405, "method_not_allowed", [Call(path, method) for method, path in OTHER_METHODS]),
    (400, "bad_position", get("/v1/events?after=yesterday", "/v1/events?after=%00-1")),
    (400, "bad_position", get("/v1/watch?after=nowhere")),
    (400, "bad_request", get("/v1/events?after=" + "9" * 100, "/v1/events?instance=i-0")),
    (400, "bad_request", get(*(f"/v1/events?limit={n}" for n in (0, -5, 10**20, "all")))),
    (400, "bad_request", get(*(f"/v1/watch?status_every_s={n}" for n in (0, "inf", "nan")))),
    (400, "bad_request", get("/v1/watch?events=perhaps", "/v1/requests?movable=perhaps")),
    (400, "bad_request", get("/v1/requests?state=sleeping", "/v1/requests?state=running,waiting")),
    (400, "bad_request", get("/v1/requests/" + "r" * 300)),
    (400, "bad_request", get(*(f"{LOG}?lines={n}" for n in (MAX_LINES + 1, 0)))),
    (400, "bad_request", get(f"{LOG}?follow=1", "/v1/operations?limit=0")),
    (400, "bad_request", get("/v1/operations?limit=201")),
    (400, "bad_request", post("/v1/stop", *GRACES, *NO_STOP, *NO_DRAIN)),
    (413, "too_large", post("/v1/stop", b" " * 70_000)),
    (400, "bad_request", post("/v1/traffic", *TRAFFIC)),
]


@pytest.fixture
async def both() -> AsyncIterator[Both]:
    async with listening() as pair:
        yield pair


async def test_each_call_is_refused_with_a_small_error_and_changes_nothing(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server for all: to start a server takes longer than all that is asked of it."""
    monkeypatch.setattr("controller.runtime.controller.queries.PATIENCE_S", 0.02)
    own, client = both
    controller, mailbox = own.cluster.controller, own.cluster.mailbox
    (own.folder / "audit.log").write_text("a secret\n")
    for status, code, call in ((*kind, call) for *kind, calls in REFUSED for call in calls):
        spec, num_sent = controller.keeper.spec, len(mailbox.sent)
        headers = {**AUTHORIZED, **dict(call.headers)}
        request = client.build_request(
            call.method,
            call.path,
            headers={key: value.encode("latin-1") for key, value in headers.items()},
            content=call.content,
        )
        answer = await client.send(request)
        body = ErrorBody.model_validate_json(answer.content)
        assert (answer.status_code, body.code) == (status, code), call
        assert body.message
        assert len(answer.content) < MAX_ERROR_BYTES
        for secret in ("Traceback", TOKEN, "secret"):
            assert secret not in answer.text, call
        allowed = {method for method, path in control_server.CALLS if path == call.path}
        if status == 405 and allowed:  # else the path has an id in it
            assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == allowed, call
        assert not controller.stopping, call
        assert controller.keeper.spec is spec, call
        told = [message for _, message in mailbox.sent[num_sent:]]
        assert all(isinstance(message, RequestsAsked) for message in told), call
        assert (await client.get("/v1/status", headers=AUTHORIZED)).status_code == 200, call


async def test_a_body_without_a_length_is_cut_too(both: Both) -> None:
    own, client = both

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 4096

    answer = await client.post("/v1/stop", headers=AUTHORIZED, content=endless())
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert not own.cluster.controller.stopping


def head(*lines: str) -> bytes:
    token = f"Authorization: {AUTHORIZED['Authorization']}"
    first = ("GET /v1/status HTTP/1.1", "Host: localhost", token, "Connection: close")
    return "\r\n".join((*first, *lines, "", "")).encode()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (head("Content-Length: " + "0" * 5000), 200),
        (head("Content-Length: " + "0" * 5000 + "70000"), 413),
        (head("Content-Length: 0", "Content-Length: 0"), 400),
        (head("Idempotency-Key: a", "Idempotency-Key: b"), 400),
        (head("Origin: http://localhost", "Origin: http://localhost"), 400),
        (b"GET /v1/status HTTP/1.1\r\n" + b"a: b\r\n" * 20_000, 431),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
    ],
    ids=["zeros", "digits", "two lengths", "two keys", "two origins", "too many", "TLS"],
)
async def test_odd_heads(
    both: Both, caplog: pytest.LogCaptureFixture, sent: bytes, status: int
) -> None:
    """httpx sends no such thing."""
    own, client = both
    reader, writer = await asyncio.open_connection(*own.address)
    writer.write(sent)
    told, _, body = (await asyncio.wait_for(reader.read(), 5.0)).partition(b"\r\n\r\n")
    writer.close()
    assert told.startswith(f"HTTP/1.1 {status} ".encode())
    assert status == 200 or ErrorBody.model_validate_json(body).message
    assert b"Bearer" in sent or caplog.records == [], "strangers do not fill the log"
    assert (await client.get("/v1/status", headers=AUTHORIZED)).status_code == 200
