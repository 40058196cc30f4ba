"""What stands before the gate: the root path, request ids, and browsers."""

from argparse import Namespace
from typing import Any

import httpx
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from controller.adapters.vllm.endpoint.gate import around, within, without_outermost
from controller.adapters.vllm.endpoint.headers import RECEIPT_HEADERS
from tests.unit.endpoint.gate_support import ask_only, gate

PAGE = "https://chat.example"


def arguments(**given: Any) -> Namespace:
    none = {"root_path": None, "enable_request_id_headers": False, "allowed_origins": []}
    cors = {"allow_credentials": False, "allowed_methods": ["*"], "allowed_headers": ["*"]}
    return Namespace(**(none | cors | given))


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    answer = JSONResponse({"path": scope["path"], "id": headers.get("x-request-id")})
    await answer(scope, receive, send)


def app(keys: tuple[str, ...] = (), *, receipts: bool = False, **given: Any) -> Any:
    """A gate before an app that reports what it was asked."""
    return around(gate(echo, keys=keys), arguments(**given), receipts=receipts)


async def ask(
    found: Any, path: str = "/v1/models", method: str = "GET", **what: Any
) -> httpx.Response:
    return await ask_only(found, path, method, **what)


async def test_the_root_path_is_taken_away() -> None:
    for path, inner in (
        ("/llm/v1/models", "/v1/models"),
        ("/llm", "/"),
        ("/v1/models", "/v1/models"),
        ("/llmx/v1/models", "/llmx/v1/models"),
    ):
        answer = await ask(app(root_path="/llm"), path)
        assert answer.json()["path"] == inner
        assert "x-request-id" not in answer.headers


async def test_the_root_path_is_taken_away_once() -> None:
    """vLLM's app, a FastAPI, also has the root path, for its /docs."""
    from fastapi import FastAPI  # takes 0.2 s, which each worker of the tests would pay

    for root_path in ("/llm", "/v1"):
        inner = FastAPI(root_path=root_path)
        inner.add_api_route("/v1/models", lambda: "here", methods=["GET"])
        given = arguments(root_path=root_path)
        found = around(gate(within(inner, given)), given)
        assert (await ask(found, f"{root_path}/v1/models")).json() == "here"


async def test_the_gate_holds_under_the_root_path_too() -> None:
    """The gate knows paths without the root path: a forbidden body must not slip by."""
    found = app(root_path="/llm", keys=("sk-1",))
    assert (await ask(found, "/llm/v1/completions", "POST")).status_code == 401
    body = b'{"prompt": "x", "n": 1000}'
    key = {"Authorization": "Bearer sk-1"}
    refused = await ask(found, "/llm/v1/completions", "POST", content=body, headers=key)
    assert refused.status_code == 400
    assert (await ask(found, "/llm/health")).status_code == 200


async def test_an_id_is_the_one_that_the_request_works_under() -> None:
    found = app(enable_request_id_headers=True)
    answer = await ask(found)
    assert len(answer.headers["x-request-id"]) == 32
    assert answer.json()["id"] == answer.headers["x-request-id"]
    mine = await ask(found, headers={"X-Request-Id": "mine"})
    assert (mine.headers["x-request-id"], mine.json()["id"]) == ("mine", "mine")


async def test_pages_of_an_allowed_origin_read_answers_refusals_and_ids() -> None:
    found = app(allowed_origins=[PAGE], keys=("sk-1",), enable_request_id_headers=True)
    for key, status in (("sk-1", 200), ("sk-2", 401)):
        headers = {"Origin": PAGE, "Authorization": f"Bearer {key}"}
        answer = await ask(found, headers=headers)
        assert answer.status_code == status
        assert answer.headers["x-request-id"]
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-expose-headers"] == "X-Request-Id"
    with_receipts = app(allowed_origins=[PAGE], receipts=True)
    exposed = (await ask(with_receipts, headers={"Origin": PAGE})).headers
    assert exposed["access-control-expose-headers"] == ", ".join(RECEIPT_HEADERS)
    other = await ask(found, headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers
    asks = {"Access-Control-Request-Method": "POST"}
    for origin, status in ((PAGE, 200), ("https://evil.example", 400)):
        asked_first = await ask(found, method="OPTIONS", headers={"Origin": origin} | asks)
        assert asked_first.status_code == status, "a browser asks first, without a key"


def test_vllm_s_app_within_does_none_of_it_again() -> None:
    given = arguments(allowed_origins=[PAGE], enable_request_id_headers=True, root_path="/llm")
    inner = without_outermost(given)
    assert (inner.allowed_origins, inner.enable_request_id_headers) == ([], False)
    assert inner.root_path == "/llm"
    assert given.allowed_origins == [PAGE]
