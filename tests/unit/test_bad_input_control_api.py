"""What the control API answers to what it should not get: a status, a code, a small body."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from controller.api.wire import ErrorBody
from controller.core.settings import ReschedulingConfig
from controller.runtime.messages.move_messages import MoveAsked
from tests.unit.control_support import AUTHORIZED, TOKEN, VIEW_TOKEN, Listener, listening

MAX_ERROR_BYTES = 8192


@dataclass(frozen=True)
class Case:
    name: str
    status: int
    code: str
    path: str = "/v1/status"
    method: str = "GET"
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None
    authorized: bool = True


def stop(name: str, content: bytes, status: int = 400, code: str = "bad_request") -> Case:
    return Case(name, status, code, "/v1/stop", "POST", content=content)


def move(name: str, content: bytes, status: int = 400, code: str = "bad_request") -> Case:
    return Case(name, status, code, "/v1/requests/r-99/migrate", "POST", content=content)


def priority(name: str, content: bytes, status: int = 400, code: str = "bad_request") -> Case:
    path = "/v1/requests/r-99/priority"
    return Case(f"priority: {name}", status, code, path, "POST", content=content)


def abort(name: str, content: bytes, status: int = 400, code: str = "bad_request") -> Case:
    path = "/v1/requests/r-99/abort"
    return Case(f"abort: {name}", status, code, path, "POST", content=content)


def settings(name: str, content: bytes, code: str = "bad_request") -> Case:
    return Case(f"settings: {name}", 400, code, "/v1/settings", "PATCH", content=content)


def steer(name: str, path: str, content: bytes) -> Case:
    return Case(f"{path}: {name}", 400, "bad_request", f"/v1/{path}", "POST", content=content)


DRAIN, UNDRAIN, SCALE = "instances/i-0/drain", "instances/i-0/undrain", "scale"


def query(name: str, path: str, code: str = "bad_request") -> Case:
    return Case(name, 400, code, path)


CASES = [
    Case("no token", 401, "no_token", authorized=False),
    Case("no token on metrics", 401, "no_token", "/metrics", authorized=False),
    Case("no token on an unknown path", 401, "no_token", "/nowhere", authorized=False),
    Case("a data-plane key", 403, "bad_token", headers={"Authorization": "Bearer sk-client"}),
    Case("basic authentication", 403, "bad_token", headers={"Authorization": f"Basic {TOKEN}"}),
    Case("a token with a tail", 403, "bad_token", headers={"Authorization": f"Bearer {TOKEN}x"}),
    Case("not ASCII", 403, "bad_token", headers={"Authorization": "Bearer t\u00f8ken"}),
    Case(
        "the view token acts",
        403,
        "view_only",
        "/v1/stop",
        "POST",
        {"Authorization": f"Bearer {VIEW_TOKEN}"},
    ),
    Case("a browser's Origin", 403, "foreign_origin", headers={"Origin": "http://localhost:8700"}),
    Case("a null Origin", 403, "foreign_origin", headers={"Origin": "null"}),
    Case("a foreign Host", 403, "foreign_host", headers={"Host": "evil.example"}),
    Case("a rebound Host", 403, "foreign_host", headers={"Host": "evil.example:8700"}),
    Case("a Host that begins well", 403, "foreign_host", headers={"Host": "127.0.0.1.evil.com"}),
    Case("an empty Host", 403, "foreign_host", headers={"Host": ""}),
    Case("an unknown path", 404, "not_found", "/v1/nothing"),
    Case("a path outside", 404, "not_found", "/v1/../etc/passwd"),
    Case("a path with a NUL", 404, "not_found", "/v1/%00"),
    Case("a long path", 404, "not_found", "/v1/" + "x" * 4000),
    Case("an unknown method", 405, "method_not_allowed", method="DELETE"),
    Case("a method of another route", 405, "method_not_allowed", "/v1/stop"),
    stop("broken JSON", b'{"drain": tru'),
    stop("an array", b"[]"),
    stop("a scalar", b"7"),
    stop("null", b"null"),
    stop("not UTF-8", b"\xff\xfe\x00"),
    stop("a lone surrogate", b'{"drain": "\\ud800"}'),
    stop("a wrong type", b'{"grace_s": "soon"}'),
    stop("a negative grace", b'{"grace_s": -1}'),
    stop("NaN", b'{"grace_s": NaN}'),
    stop("infinity", b'{"grace_s": 1e999}'),
    stop("a number in words", b'{"grace_s": "3"}'),
    stop("yes in words", b'{"drain": "yes"}'),
    stop("nested deeply", b'{"drain":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    stop("too large", b" " * 70_000, 413, "too_large"),
    query("a position that is none", "/v1/events?after=yesterday", "bad_position"),
    query("a position with a NUL", "/v1/events?after=%00-1", "bad_position"),
    query("a long position", "/v1/events?after=" + "9" * 100),
    query("no limit", "/v1/events?limit=0"),
    query("a negative limit", "/v1/events?limit=-5"),
    query("a huge limit", "/v1/events?limit=100000000000000000000"),
    query("a limit in words", "/v1/events?limit=all"),
    query("an unknown parameter", "/v1/events?instance=i-0"),
    query("watching from nowhere", "/v1/watch?after=nowhere", "bad_position"),
    query("watching all the time", "/v1/watch?status_every_s=0"),
    query("watching never", "/v1/watch?status_every_s=inf"),
    query("watching NaN", "/v1/watch?status_every_s=nan"),
    query("watching perhaps", "/v1/watch?events=perhaps"),
    move("a move, broken JSON", b'{"to": '),
    move("a move, an array", b"[]"),
    move("a move to nowhere", b'{"to": ""}'),
    move("a move to a number", b'{"to": 7}'),
    move("a move to a long name", b'{"to": "' + b"i" * 100 + b'"}'),
    move("a move with an unknown word", b'{"dryrun": true}'),
    move("a move perhaps", b'{"dry_run": "perhaps"}'),
    move("a move, yes as a number", b'{"dry_run": 1}'),
    move("a move of stages in words", b'{"max_stages": "3"}'),
    move("a move for a long reason", b'{"reason": "' + b"x" * 300 + b'"}'),
    move("a move within no time", b'{"timeout_s": 0}'),
    move("a move within NaN", b'{"timeout_s": NaN}'),
    move("a move within a day", b'{"timeout_s": 86400}'),
    move("a move of an unknown request", b"{}", 404, "no_such_request"),
    move("a move to an unknown instance", b'{"to": "i-99"}', 404, "no_such_instance"),
    move("a move to a frontend", b'{"to": "f-0"}', 404, "no_such_instance"),
    Case("a move of nothing", 404, "not_found", "/v1/requests//migrate", "POST"),
    Case(
        "the view token moves",
        403,
        "view_only",
        "/v1/requests/r-1/migrate",
        "POST",
        {"Authorization": f"Bearer {VIEW_TOKEN}"},
    ),
    priority("no body", b""),
    priority("broken JSON", b'{"level": '),
    priority("an array", b"[]"),
    priority("no level", b"{}"),
    priority("null", b'{"level": null}'),
    priority("a rank", b'{"level": 1}'),
    priority("an empty level", b'{"level": ""}'),
    priority("a long level", b'{"level": "' + b"h" * 100 + b'"}'),
    priority("an unknown level", b'{"level": "urgent"}', code="no_such_level"),
    priority("another case", b'{"level": "High"}', code="no_such_level"),
    priority("an unknown word", b'{"level": "high", "force": true}'),
    priority("a long reason", b'{"level": "high", "reason": "' + b"x" * 300 + b'"}'),
    priority("a trial perhaps", b'{"level": "high", "dry_run": "perhaps"}'),
    priority("an unknown request", b'{"level": "high"}', 404, "no_such_request"),
    abort("broken JSON", b'{"reason": '),
    abort("an unknown word", b'{"force": true}'),
    abort("a long reason", b'{"reason": "' + b"x" * 300 + b'"}'),
    abort("an unknown request", b"{}", 404, "no_such_request"),
    steer("broken JSON", "instances/i-0/restart", b'{"now": '),
    steer("an unknown word", "instances/i-0/restart", b'{"soon": true}'),
    steer("now and later", "instances/i-0/restart", b'{"now": true, "deadline_s": 5}'),
    steer("no time to evacuate", "instances/i-0/evacuate", b'{"within_s": 0}'),
    steer("no number", "rolling-restart", b'{"at_once": "all"}'),
    steer("no time", "instances/i-0/restart", b'{"deadline_s": 0}'),
    Case("an abort to look at", 405, "method_not_allowed", "/v1/requests/r-99/abort"),
    Case("a priority of nothing", 404, "not_found", "/v1/requests//priority", "POST"),
    Case("a priority to look at", 405, "method_not_allowed", "/v1/requests/r-99/priority"),
    settings("no body", b""),
    settings("settings, an array", b"[]"),
    settings("no changes", b'{"changes": {}}'),
    settings("changes of nothing", b"{}"),
    settings("an unknown word", b'{"changes": {"migration.max_moves": 1}, "force": true}'),
    settings("a setting of none", b'{"changes": {"migration.speed": 1}}', "bad_setting"),
    settings("a setting of the start", b'{"changes": {"endpoint.port": 1}}', "bad_setting"),
    settings("a table", b'{"changes": {"migration": {"max_moves": 1}}}'),
    settings("null", b'{"changes": {"migration.max_moves": null}}', "bad_setting"),
    settings("a revision", b'{"changes": {"migration.max_moves": 1}, "if_revision": "x"}'),
    settings("a reason", b'{"changes": {"migration.max_moves": 1}, "reason": 1}'),
    settings("a word", b'{"changes": {"migration.max_moves": "many"}}', "bad_setting"),
    settings("true", b'{"changes": {"migration.max_moves": true}}', "bad_setting"),
    settings("a fraction", b'{"changes": {"migration.max_moves": 1.5}}', "bad_setting"),
    settings("negative", b'{"changes": {"migration.max_moves": -1}}', "bad_setting"),
    settings("too many", b'{"changes": {"migration.max_moves": 5000}}', "bad_setting"),
    settings("NaN", b'{"changes": {"migration.max_bytes_per_s": NaN}}', "bad_setting"),
    settings("infinity", b'{"changes": {"migration.max_bytes_per_s": 1e999}}', "bad_setting"),
    settings(
        "one of two",
        b'{"changes": {"migration.max_moves": 2, "migration.max_bytes_per_s": -1}}',
        "bad_setting",
    ),
    Case(
        "the view token sets",
        403,
        "view_only",
        "/v1/settings",
        "PATCH",
        {"Authorization": f"Bearer {VIEW_TOKEN}"},
        b'{"changes": {"migration.max_moves": 1}}',
    ),
    steer("broken JSON", DRAIN, b'{"deadline_s": '),
    steer("an array", DRAIN, b"[]"),
    steer("an unknown word", DRAIN, b'{"dryrun": true}'),
    steer("no time", DRAIN, b'{"deadline_s": 0}'),
    steer("a negative deadline", DRAIN, b'{"deadline_s": -1}'),
    steer("NaN", DRAIN, b'{"deadline_s": NaN}'),
    steer("infinity", DRAIN, b'{"deadline_s": 1e999}'),
    steer("a year", DRAIN, b'{"deadline_s": 31536000}'),
    steer("a deadline that kills", DRAIN, b'{"on_deadline": "kill"}'),
    steer("a long reason", DRAIN, b'{"reason": "' + b"x" * 300 + b'"}'),
    steer("a negative revision", DRAIN, b'{"if_revision": -1}'),
    steer("a dry run perhaps", DRAIN, b'{"dry_run": "perhaps"}'),
    steer("an array", UNDRAIN, b"[]"),
    steer("a deadline", UNDRAIN, b'{"deadline_s": 5}'),
    steer("no body", SCALE, b""),
    steer("neither", SCALE, b"{}"),
    steer("both", SCALE, b'{"target": 2, "change": 1}'),
    steer("nulls", SCALE, b'{"target": null, "change": null}'),
    steer("a negative target", SCALE, b'{"target": -1}'),
    steer("a fraction", SCALE, b'{"target": 1.5}'),
    steer("a number in words", SCALE, b'{"target": "2"}'),
    steer("yes", SCALE, b'{"target": true}'),
    steer("too many", SCALE, b'{"target": 100000}'),
    steer("a word", SCALE, b'{"change": "more", "dry_run": true}'),
    steer("a change that is no plan", SCALE, b'{"change": 1}'),
    steer("an unknown word", SCALE, b'{"instances": 2}'),
    steer("NaN", SCALE, b'{"target": 1, "deadline_s": NaN}'),
    *(
        Case(f"traffic: {name}", 400, "bad_request", "/v1/traffic", "POST", content=content)
        for name, content in (
            ("no body", b""),
            ("no key", b'{"prefix_hash_tokens": 16}'),
            ("a short key", b'{"key": "ab", "prefix_hash_tokens": 16}'),
            ("a key in words", b'{"key": "' + b"k" * 64 + b'", "prefix_hash_tokens": 16}'),
            ("no tokens", b'{"key": "' + b"a" * 64 + b'", "prefix_hash_tokens": 0}'),
            ("tokens in words", b'{"key": "' + b"a" * 64 + b'", "prefix_hash_tokens": "16"}'),
            ("many tokens", b'{"key": "' + b"a" * 64 + b'", "prefix_hash_tokens": 1e9}'),
            ("more", b'{"key": "' + b"a" * 64 + b'", "prefix_hash_tokens": 16, "text": true}'),
        )
    ),
    Case("traffic by looking", 405, "method_not_allowed", "/v1/traffic"),
    Case("a drain of nothing", 404, "no_such_instance", "/v1/instances/i-99/drain", "POST"),
    Case("a drain of a frontend", 404, "no_such_instance", "/v1/instances/f-0/drain", "POST"),
    Case("a long name", 404, "no_such_instance", f"/v1/instances/{'i' * 999}/drain", "POST"),
    Case("a drain by looking", 405, "method_not_allowed", "/v1/instances/i-0/drain"),
    *(
        Case(
            f"the view token: {path}",
            403,
            "view_only",
            f"/v1/{path}",
            "POST",
            {"Authorization": f"Bearer {VIEW_TOKEN}"},
            b"{}",
        )
        for path in (DRAIN, UNDRAIN, SCALE)
    ),
    query("movable perhaps", "/v1/requests?movable=perhaps"),
    query("an unknown state", "/v1/requests?state=sleeping"),
    query("a state of two", "/v1/requests?state=running,waiting"),
    query("a long reference", "/v1/requests/" + "r" * 300),
    Case("an unknown instance", 404, "no_such_instance", "/v1/requests?instance=i-99"),
    Case("an unknown request", 404, "no_such_request", "/v1/requests/nothing"),
]


@pytest.fixture(scope="module")
def names() -> list[str]:
    return [case.name for case in CASES]


@pytest.fixture
async def both(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Listener, Any]]:
    monkeypatch.setattr("controller.runtime.controller.queries.PATIENCE_S", 0.02)
    async with listening() as pair:
        yield pair


async def test_each_case(both: tuple[Listener, httpx.AsyncClient]) -> None:
    """One server for all: to start 140 took longer than all that is asked of them. It is as it
    was after each."""
    own, client = both
    faults = {case.name: found for case in CASES if (found := await fault_of(case, own, client))}
    assert faults == {}


async def fault_of(case: Case, own: Listener, client: httpx.AsyncClient) -> str:
    headers = {**(AUTHORIZED if case.authorized else {}), **case.headers}
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
    controller = own.cluster.controller
    after = await client.get("/v1/status", headers=AUTHORIZED)
    faults = {
        f"answered {answer.status_code} {body.code}, not {case.status} {case.code}": (
            (answer.status_code, body.code) != (case.status, case.code)
        ),
        f"answered with {len(answer.content)} bytes": len(answer.content) >= MAX_ERROR_BYTES,
        "without a message": not body.message,
        "with a traceback": "Traceback" in answer.text,
        "with the token": TOKEN in answer.text,
        "it stopped the cluster": controller.stopping,
        "it changed the limits": controller.live.rescheduling != ReschedulingConfig(),
        "it changed the spec": controller.keeper.spec.revision != 0,
        "it asked for a move": bool(own.cluster.mailbox.sent_to("mem://i-0", MoveAsked)),
        f"the status is {after.status_code} now": after.status_code != 200,
    }
    return "; ".join(what for what, is_so in faults.items() if is_so)


def test_each_case_has_a_name_of_its_own(names: list[str]) -> None:
    assert len(set(names)) == len(names) >= 45


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


@pytest.mark.parametrize(("length", "status"), [("0" * 5000, 200), ("0" * 5000 + "70000", 413)])
async def test_a_length_of_thousands_of_digits(
    both: tuple[Listener, httpx.AsyncClient], length: str, status: int
) -> None:
    """httpx sends none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(both[0].url.rpartition(":")[2]))
    head = f"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
    writer.write(f"{head}Authorization: {AUTHORIZED['Authorization']}\r\n\r\n".encode())
    assert (await reader.readline()).startswith(f"HTTP/1.1 {status} ".encode())
    writer.close()


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"\x00" * 2000])
async def test_what_is_not_http_does_no_harm(
    both: tuple[Listener, httpx.AsyncClient], garbage: bytes
) -> None:
    own, client = both
    port = int(own.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(garbage)
        assert (await client.get("/v1/status", headers=AUTHORIZED)).status_code == 200
