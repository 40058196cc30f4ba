"""A request's session: what the cluster knows of the header that names it."""

from typing import Any

import httpx
import pytest

from controller.adapters.vllm.endpoint.gate import Gate, GateLimits
from controller.adapters.vllm.endpoint.headers import ASKED_SESSION, read_session

PATH = "/v1/completions"


async def ask(*headers: tuple[str, str]) -> str:
    """The session under which the app's own code runs."""
    heard: list[str] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        heard.append(ASKED_SESSION.get())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    gate = Gate(GateLimits())
    gate.app, gate.json_paths = app, frozenset({PATH})
    transport = httpx.ASGITransport(app=gate)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        await http.post(PATH, headers=list(headers), content=b"{}")
    assert ASKED_SESSION.get() == ""
    return heard[0]


async def test_a_session_is_known_by_its_hash_alone() -> None:
    found = await ask(("X-Session-Id", "alice@example.org"))
    assert len(found) == 16
    assert "alice" not in found
    assert found == await ask(("x-session-id", " alice@example.org "))
    assert found != await ask(("X-Session-Id", "bob@example.org"))


async def test_without_the_header_there_is_none() -> None:
    assert await ask() == ""


@pytest.mark.parametrize("value", [b"", b"  "])
def test_an_empty_header_is_none(value: bytes) -> None:
    assert read_session([(b"x-session-id", value)]) == ""


def test_bytes_that_are_no_text_are_a_session_too() -> None:
    assert len(read_session([(b"x-session-id", b"\xff" * 9000)])) == 16
