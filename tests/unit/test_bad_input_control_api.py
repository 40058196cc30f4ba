"""What the control API answers to what it should not get: a status, a code, a small body. For the
bodies of orders see test_control_contract.py."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from controller.adapters.http import control_server
from controller.adapters.http.control_server import MAX_LINES
from controller.api.wire import ErrorBody
from tests.unit.control_support import AUTHORIZED, TOKEN, VIEW_TOKEN, Listener, listening

MAX_ERROR_BYTES = 8192
VIEWER = {"Authorization": f"Bearer {VIEW_TOKEN}"}


@dataclass(frozen=True)
class Case:
    status: int
    code: str
    path: str = "/v1/status"
    method: str = "GET"
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None


NO_TOKEN = tuple(
    Case(401, "no_token", path, headers={"Authorization": ""})
    for path in ("/v1/status", "/metrics", "/nowhere", "/openapi.json", "/v1/members/i-0/log")
)
STRANGERS = (
    *(
        Case(403, "bad_token", headers={"Authorization": given})
        for given in (
            *("Bearer sk-client", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"bearer {TOKEN}", TOKEN),
            "Bearer t\u00f8ken",
        )
    ),
    *(
        Case(403, "foreign_origin", path, headers={"Origin": origin})
        for path in ("/v1/status", "/nowhere")
        for origin in ("http://localhost:8700", "http://evil.example", "null")
    ),
    *(
        Case(403, "foreign_host", headers={"Host": host})
        for host in ("evil.example", "evil.example:8700", "127.0.0.1.evil.com", "")
    ),
    Case(403, "view_only", "/v1/stop", "POST", VIEWER),
    Case(403, "view_only", "/v1/traffic", "POST", VIEWER),
)
PATHS = (
    *(
        Case(404, "not_found", path)
        for path in (
            *("/", "/v1/nothing", "/v1/status/", "/v1/../etc/passwd", "/v1/%00"),
            "/v1/" + "x" * 4000,
            *(
                f"/v1/members/{name}/log"
                for name in ("i-7", "audit", "..%2Faudit", "%2Fetc%2Fpasswd")
            ),
        )
    ),
    Case(404, "no_log", "/v1/members/i-0/log"),
    Case(404, "no_such_instance", "/v1/requests?instance=i-99"),
    Case(404, "no_such_request", "/v1/requests/nothing"),
    *(
        Case(405, "method_not_allowed", path, method)
        for method, path in (
            *(("DELETE", "/v1/status"), ("POST", "/v1/status"), ("GET", "/v1/stop")),
            *(("GET", "/v1/traffic"), ("DELETE", "/v1/settings"), ("PUT", "/v1/rolling-restart")),
            *(("GET", "/v1/requests/r-99/abort"), ("GET", "/v1/instances/i-0/drain")),
        )
    ),
)
QUERIES = (
    *(
        Case(400, "bad_position", path)
        for path in (
            *("/v1/events?after=yesterday", "/v1/events?after=%00-1", "/v1/watch?after=nowhere"),
        )
    ),
    *(
        Case(400, "bad_request", path)
        for path in (
            "/v1/events?after=" + "9" * 100,
            *(f"/v1/events?limit={each}" for each in ("0", "-5", "1" + "0" * 20, "all")),
            "/v1/events?instance=i-0",
            *(f"/v1/watch?status_every_s={each}" for each in ("0", "inf", "nan")),
            "/v1/watch?events=perhaps",
            "/v1/requests?movable=perhaps",
            *(f"/v1/requests?state={each}" for each in ("sleeping", "running,waiting")),
            "/v1/requests/" + "r" * 300,
            *(
                f"/v1/members/i-0/log?{each}"
                for each in (f"lines={MAX_LINES + 1}", "lines=0", "follow=1")
            ),
            *("/v1/operations?limit=0", "/v1/operations?limit=201"),
        )
    ),
)
KEY = b'{"key": "' + b"a" * 64 + b'"'
BODIES = (
    *(
        Case(400, "bad_request", "/v1/stop", "POST", content=content)
        for content in (
            *(b'{"drain": tru', b"[]", b"7", b"null", b"\xff\xfe\x00"),
            *(b'{"drain": "\\ud800"}', b'{"drain": "yes"}', b'{"drain": 7}'),
            *(b'{"grace_s": %b}' % each for each in (b'"3"', b"-1", b"NaN", b"1e999")),
            b'{"drain":' + b"[" * 5000 + b"]" * 5000 + b"}",
            b"x" * 60_000,
        )
    ),
    Case(413, "too_large", "/v1/stop", "POST", content=b" " * 70_000),
    *(
        Case(400, "bad_request", "/v1/traffic", "POST", content=content)
        for content in (
            *(b"", b'{"prefix_hash_tokens": 16}', b'{"key": "ab", "prefix_hash_tokens": 16}'),
            KEY.replace(b"a", b"k") + b', "prefix_hash_tokens": 16}',
            *(KEY + b', "prefix_hash_tokens": %b}' % each for each in (b"0", b'"16"', b"1e9")),
            KEY + b', "prefix_hash_tokens": 16, "text": true}',
        )
    ),
)


@pytest.fixture
async def both() -> AsyncIterator[tuple[Listener, httpx.AsyncClient]]:
    async with listening() as pair:
        yield pair


async def test_each_case(
    both: tuple[Listener, httpx.AsyncClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server for all: to start a server takes longer than all that is asked of it. It is as it
    was after each."""
    monkeypatch.setattr("controller.runtime.controller.queries.PATIENCE_S", 0.02)
    own, client = both
    (own.folder / "audit.log").write_text("a secret\n")
    faults = {
        case: found
        for case in chain(NO_TOKEN, STRANGERS, PATHS, QUERIES, BODIES)
        if (found := await fault_of(case, own, client))
    }
    assert faults == {}


async def fault_of(case: Case, own: Listener, client: httpx.AsyncClient) -> str:
    before, sent = own.cluster.controller.keeper.spec, len(own.cluster.mailbox.sent)
    headers = {**AUTHORIZED, **case.headers}
    request = client.build_request(
        case.method,
        case.path,
        headers={key: value.encode("latin-1") for key, value in headers.items()},
        content=case.content,
    )
    answer = await client.send(request)
    try:
        body = ErrorBody.model_validate_json(answer.content)
    except ValidationError:
        return f"not an error's body: {answer.text}"
    allowed = {each for each, route in control_server.CALLS if route == case.path}
    named = set(answer.headers.get("allow", "").split(", ")) - {"HEAD", ""}
    after = await client.get("/v1/status", headers=AUTHORIZED)
    is_so: dict[str, Any] = {
        f"answered {answer.status_code} {body.code}": (
            (answer.status_code, body.code) != (case.status, case.code)
        ),
        f"answered with {len(answer.content)} bytes": len(answer.content) >= MAX_ERROR_BYTES,
        "without a message": not body.message,
        "with a traceback": "Traceback" in answer.text,
        "with a secret": TOKEN in answer.text or "secret" in answer.text,
        "other methods": "{" not in case.path and case.status == 405 and not named >= allowed,
        "it stopped the cluster": own.cluster.controller.stopping,
        "it changed the spec": own.cluster.controller.keeper.spec is not before,
        "it told a member": any(
            "Asked" not in type(message).__name__ for _, message in own.cluster.mailbox.sent[sent:]
        ),
        f"the status is {after.status_code} now": after.status_code != 200,
    }
    return "; ".join(what for what, holds in is_so.items() if holds)


async def test_a_body_without_a_length_is_cut_too(
    both: tuple[Listener, httpx.AsyncClient],
) -> None:
    own, client = both

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 4096

    answer = await client.post("/v1/stop", headers=AUTHORIZED, content=endless())
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert not own.cluster.controller.stopping


async def sent(own: Listener, *lines: str, content: bytes | None = None) -> bytes:
    """What is answered to these bytes, or to a GET with these lines in its head; httpx sends no
    such thing."""
    reader, writer = await asyncio.open_connection(*own.address)
    token = f"Authorization: {AUTHORIZED['Authorization']}"
    head = ("GET /v1/status HTTP/1.1", "Host: localhost", token, "Connection: close", *lines, "")
    writer.write("\r\n".join((*head, "")).encode() if content is None else content)
    try:
        return await asyncio.wait_for(reader.read(), 5.0)
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("Content-Length: " + "0" * 5000,), 200),
        (("Content-Length: " + "0" * 5000 + "70000",), 413),
        (("Content-Length: 0", "Content-Length: 0"), 400),
        (("Idempotency-Key: a", "Idempotency-Key: b"), 400),
        (("Origin: http://localhost", "Origin: http://localhost"), 400),
    ],
    ids=["zeros", "thousands of digits", "two lengths", "two keys", "two origins"],
)
async def test_odd_headers(
    both: tuple[Listener, httpx.AsyncClient], lines: tuple[str, ...], status: int
) -> None:
    assert (await sent(both[0], *lines)).startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"GET /v1/status HTTP/1.1\r\n" + b"a: b\r\n" * 20_000, 431),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"\0\1\2\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
    ],
    ids=["headers", "path", "zero bytes", "TLS", "no HTTP"],
)
async def test_heads_are_judged_before_a_token_is_known(
    both: tuple[Listener, httpx.AsyncClient],
    caplog: pytest.LogCaptureFixture,
    content: bytes,
    status: int,
) -> None:
    own, client = both
    head, _, body = (await sent(own, content=content)).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert ErrorBody.model_validate_json(body).message
    assert caplog.records == [], "strangers do not fill the log"
    assert (await client.get("/v1/status", headers=AUTHORIZED)).status_code == 200
