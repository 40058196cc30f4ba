"""The gate before an app of a few lines, and how to ask it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from controller.adapters.vllm.endpoint.gate import Gate, GateLimits
from controller.ports.processes import Traces

App = Callable[[Any, Any, Any], Awaitable[None]]
PATH = "/v1/completions"
LEVELS = {"normal": 0, "high": 1, "low": -2}


def gate(
    app: App,
    limits: GateLimits | None = None,
    keys: tuple[str, ...] = (),
    hosts: tuple[str, ...] = (),
    traces: Traces | None = None,
    *,
    receipts: bool = False,
) -> Gate:
    found = Gate(limits, keys, LEVELS, hosts, traces, receipts=receipts)
    found.app, found.json_paths = app, frozenset({PATH, "/v1/messages", "/tokenize"})
    return found


async def ask_only(app: Any, path: str = PATH, method: str = "POST", **what: Any) -> httpx.Response:
    """Asks while other tasks run."""
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return await http.request(method, path, **({"content": b"{}"} | what))


async def ask(found: Gate, path: str = PATH, method: str = "POST", **what: Any) -> httpx.Response:
    answer = await ask_only(found, path, method, **what)
    assert found.num_live == 0
    return answer


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def answering(status: int, body: bytes, *headers: tuple[bytes, bytes]) -> App:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        for piece in (body[:3], body[3:]):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    return app


OK = answering(200, b"ok")


async def never(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError("this must not reach the app")


def error(answer: httpx.Response) -> dict[str, Any]:
    return dict(json.loads(answer.content)["error"])
