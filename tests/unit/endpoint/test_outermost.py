"""What stands before the gate: the root path, request ids, and browsers."""

from argparse import Namespace
from http import HTTPStatus
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from controller.adapters.vllm.endpoint.gate import Gate, around, within, without_outermost

PAGE = "https://chat.example"


def arguments(**given: Any) -> Namespace:
    none = {"root_path": None, "enable_request_id_headers": False, "allowed_origins": []}
    cors = {"allow_credentials": False, "allowed_methods": ["*"], "allowed_headers": ["*"]}
    return Namespace(**(none | cors | given))


def app(keys: tuple[str, ...] = (), **given: Any) -> Any:
    """A gate before an app that reports what it was asked."""

    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        answer = JSONResponse({"path": scope["path"], "id": headers.get("x-request-id")})
        await answer(scope, receive, send)

    gate = Gate(api_keys=keys)
    gate.app, gate.json_paths = echo, frozenset({"/v1/completions"})
    return around(gate, arguments(**given))


async def ask(found: Any, path: str = "/v1/models", method: str = "GET", **what: Any) -> Any:
    transport = httpx.ASGITransport(app=found)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
        return await http.request(method, path, **what)


async def test_nothing_stands_there_unless_asked_for() -> None:
    answer = await ask(app(), headers={"Origin": PAGE})
    assert "access-control-allow-origin" not in answer.headers
    assert "x-request-id" not in answer.headers


@pytest.mark.parametrize(
    ("path", "inner"),
    [
        ("/llm/v1/models", "/v1/models"),
        ("/llm", "/"),
        ("/v1/models", "/v1/models"),
        ("/llmx/v1/models", "/llmx/v1/models"),
    ],
)
async def test_the_root_path_is_taken_away(path: str, inner: str) -> None:
    answer = await ask(app(root_path="/llm"), path)
    assert answer.json()["path"] == inner


@pytest.mark.parametrize("root_path", ["/llm", "/v1", "/v1/models"])
async def test_the_root_path_is_taken_away_once(root_path: str) -> None:
    """vLLM's app, a FastAPI, also has the root path, for its /docs."""
    from fastapi import FastAPI  # takes 0.2 s, which each worker of the tests would pay

    inner = FastAPI(root_path=root_path)
    inner.add_api_route("/v1/models", lambda: "here", methods=["GET"])
    gate, given = Gate(), arguments(root_path=root_path)
    gate.app = within(inner, given)
    found = around(gate, given)
    assert (await ask(found, f"{root_path}/v1/models")).json() == "here"


async def test_the_gate_holds_under_the_root_path_too() -> None:
    """The gate knows paths without the root path: a forbidden body must not slip by."""
    found = app(root_path="/llm", keys=("sk-1",))
    assert (await ask(found, "/llm/v1/completions", "POST", content=b"{}")).status_code == 401
    body = b'{"prompt": "x", "n": 1000}'
    key = {"Authorization": "Bearer sk-1"}
    refused = await ask(found, "/llm/v1/completions", "POST", content=body, headers=key)
    assert refused.status_code == HTTPStatus.BAD_REQUEST
    assert (await ask(found, "/llm/health")).status_code == HTTPStatus.OK


async def test_an_id_is_the_one_that_the_request_works_under() -> None:
    found = app(enable_request_id_headers=True)
    answer = await ask(found)
    assert len(answer.headers["x-request-id"]) == 32
    assert answer.json()["id"] == answer.headers["x-request-id"]
    mine = await ask(found, headers={"X-Request-Id": "mine"})
    assert (mine.headers["x-request-id"], mine.json()["id"]) == ("mine", "mine")


async def test_refusals_of_the_gate_have_ids_too() -> None:
    refused = await ask(app(enable_request_id_headers=True, keys=("sk-1",)))
    assert refused.status_code == HTTPStatus.UNAUTHORIZED
    assert refused.headers["x-request-id"]


async def test_pages_of_an_allowed_origin_read_answers_and_refusals() -> None:
    found = app(allowed_origins=[PAGE], keys=("sk-1",), enable_request_id_headers=True)
    for key, status in (("sk-1", HTTPStatus.OK), ("sk-2", HTTPStatus.UNAUTHORIZED)):
        headers = {"Origin": PAGE, "Authorization": f"Bearer {key}"}
        answer = await ask(found, headers=headers)
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-expose-headers"] == "X-Request-Id"
    other = await ask(found, headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


async def test_a_browser_asks_first_without_a_key() -> None:
    found = app(allowed_origins=[PAGE], keys=("sk-1",))
    asks = {"Access-Control-Request-Method": "POST"}
    allowed = await ask(found, method="OPTIONS", headers={"Origin": PAGE} | asks)
    assert allowed.status_code == HTTPStatus.OK
    other = await ask(found, method="OPTIONS", headers={"Origin": "https://evil.example"} | asks)
    assert other.status_code == HTTPStatus.BAD_REQUEST


def test_vllm_s_app_within_does_none_of_it_again() -> None:
    given = arguments(allowed_origins=[PAGE], enable_request_id_headers=True, root_path="/llm")
    inner = without_outermost(given)
    assert (inner.allowed_origins, inner.enable_request_id_headers) == ([], False)
    assert inner.root_path == "/llm"
    assert given.allowed_origins == [PAGE]
