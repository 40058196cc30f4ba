"""`GET /v1/members/{id}/log`: bounded answers, and no access to other files."""

import pytest

from controller.adapters.http.control_server import MAX_LINE_CHARS, MAX_LINES
from tests.unit.control_support import VIEW_TOKEN, listening

HEADERS = {"Authorization": f"Bearer {VIEW_TOKEN}"}


async def test_the_last_lines_of_a_member() -> None:
    async with listening() as (listener, client):
        folder = listener.server._log_dir
        path = folder / "i-0.log"
        path.write_text("".join(f"line {n}\n" for n in range(900)) + "not \x1b[2Jended")
        found = (await client.get("/v1/members/i-0/log?lines=3", headers=HEADERS)).json()
        assert found["member_id"] == "i-0"
        assert found["lines"] == ["line 898", "line 899", "not \x1b[2Jended"]
        path.write_text("x" * 5000)
        most = f"/v1/members/i-0/log?lines={MAX_LINES}"
        assert (await client.get(most, headers=HEADERS)).json()["lines"] == ["x" * MAX_LINE_CHARS]


async def test_the_controller_and_the_head_process_have_logs_too() -> None:
    async with listening() as (listener, client):
        (listener.server._log_dir / "controller.log").write_text("decided\n")
        found = (await client.get("/v1/members/controller/log", headers=HEADERS)).json()
        assert found["lines"] == ["decided"]
        answer = await client.get("/v1/members/head/log", headers=HEADERS)
        assert answer.json()["code"] == "no_log"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("i-0/log", {}, 401),
        ("i-0/log", HEADERS, 404),
        ("i-7/log", HEADERS, 404),
        ("audit/log", HEADERS, 404),
        ("..%2Faudit/log", HEADERS, 404),
        ("%2Fetc%2Fpasswd/log", HEADERS, 404),
        (f"i-0/log?lines={MAX_LINES + 1}", HEADERS, 400),
        ("i-0/log?lines=0", HEADERS, 400),
        ("i-0/log?follow=1", HEADERS, 400),
    ],
)
async def test_what_is_refused(path: str, headers: dict[str, str], status: int) -> None:
    async with listening() as (listener, client):
        (listener.server._log_dir / "audit.log").write_text("a secret\n")
        answer = await client.get(f"/v1/members/{path}", headers=headers)
        assert answer.status_code == status
        assert "secret" not in answer.text
