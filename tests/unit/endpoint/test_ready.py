"""`/ready`, which load balancers ask behind the gate: what it answers, and to whom."""

import pytest
from fastapi import FastAPI

from controller.adapters.vllm.endpoint.gate import add_ready_route
from tests.unit.endpoint.gate_support import ask, error, gate

WHY = "no instance takes new requests now"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_it_says_without_a_key_whether_new_requests_are_taken(method: str) -> None:
    app, whys = FastAPI(), ["", WHY]
    add_ready_route(app, lambda: whys.pop(0))
    found = gate(app, keys=("sk-of-a-client",))
    assert (await ask(found, "/ready", method)).status_code == 200
    answer = await ask(found, "/ready", method)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    if method == "GET":
        told = error(answer)
        assert (told["message"], told["type"]) == (WHY, "ServiceUnavailableError")
        headers = {"Authorization": "Bearer sk-of-a-client"}
        assert (await ask(found, "/ready", "POST", headers=headers)).status_code == 405
