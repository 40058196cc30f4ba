"""`/ready`, which load balancers ask behind the gate: what it answers, and to whom."""

from fastapi import FastAPI

from controller.adapters.vllm.endpoint.gate import add_ready_route
from tests.unit.endpoint.gate_support import ask, error, gate

WHY = "no instance takes new requests now"


async def test_it_says_without_a_key_whether_new_requests_are_taken() -> None:
    app, whys = FastAPI(), ["", WHY]
    add_ready_route(app, lambda: whys[0])
    found = gate(app, keys=("sk-of-a-client",))
    for method in ("GET", "HEAD"):
        assert (await ask(found, "/ready", method)).status_code == 200
    whys.pop(0)
    assert (await ask(found, "/ready", "HEAD")).status_code == 503
    answer = await ask(found, "/ready", "GET")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert (error(answer)["message"], error(answer)["type"]) == (WHY, "ServiceUnavailableError")
    headers = {"Authorization": "Bearer sk-of-a-client"}
    assert (await ask(found, "/ready", "POST", headers=headers)).status_code == 405
