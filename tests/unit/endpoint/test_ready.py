"""`/ready`, which load balancers ask behind the gate: what it answers, and to whom."""

from collections.abc import Callable

import httpx
import pytest
from fastapi import FastAPI

from controller.adapters.vllm.endpoint.gate import Gate, add_ready_route

KEY = "sk-of-a-client"


def asked(why_not_ready: Callable[[], str]) -> httpx.AsyncClient:
    app, gate = FastAPI(), Gate(api_keys=[KEY])
    add_ready_route(app, why_not_ready)
    gate.app = app
    transport = httpx.ASGITransport(app=gate)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_it_says_without_a_key_whether_new_requests_are_taken(method: str) -> None:
    why = ""
    async with asked(lambda: why) as http:
        answer = await http.request(method, "/ready")
        assert answer.status_code == 200
        why = "no instance takes new requests now"
        answer = await http.request(method, "/ready")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        if method == "HEAD":
            return
        error = answer.json()["error"]
        assert (error["message"], error["code"]) == (why, 503)
        assert error["type"] == "ServiceUnavailableError"


async def test_nothing_is_sent_there() -> None:
    async with asked(lambda: "") as http:
        answer = await http.post("/ready", headers={"Authorization": f"Bearer {KEY}"})
        assert answer.status_code == 405
