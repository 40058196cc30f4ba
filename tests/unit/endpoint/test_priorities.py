"""What a client may ask for by header and by field, with which key and session, and what it
gets."""

import hashlib
import json
import logging
from dataclasses import fields
from typing import Any

import httpx
import pytest

from controller.adapters.vllm.endpoint.frontend import FrontendConfig
from controller.adapters.vllm.endpoint.headers import (
    ASKED_KEY,
    ASKED_PRIORITY,
    ASKED_SESSION,
    ApiKeys,
    AskedPriority,
)
from controller.api.settings.key_file import ApiKey, check, key_id, own_limits, parse_line
from tests.unit.endpoint import gate_support
from tests.unit.endpoint.gate_support import LEVELS, OK, PATH, error, gate

KEYS = ("sk-all", "sk-batch low live_requests=2", "sk-board\thigh,normal", "sk-both  low, normal")


class Heard:
    """An app that notes for whom it works. It has vLLM's own default for a request without the
    field."""

    def __init__(self, priority: int | None = None) -> None:
        self.priority = priority
        self.ranks: list[int] = []
        self.key = self.session = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        asked_priority = ASKED_PRIORITY.get()
        assert asked_priority is not None
        self.ranks.append(asked_priority.rank_of_sequence(self.priority or 0))
        self.key, self.session = ASKED_KEY.get(), ASKED_SESSION.get()
        await OK(scope, receive, send)


async def ask(
    *headers: tuple[str, str],
    keys: tuple[str, ...] = (),
    key: str = "",
    path: str = PATH,
    **body: Any,
) -> tuple[httpx.Response, Heard]:
    app = Heard(body.get("priority"))
    given = [*headers, *([("Authorization", f"Bearer {key}")] if key else [])]
    raw = [(name.encode(), value.encode("latin-1")) for name, value in given]
    content = json.dumps(body).encode()
    answer = await gate_support.ask(gate(app, keys=keys), path, headers=raw, content=content)
    assert (ASKED_PRIORITY.get(), ASKED_KEY.get(), ASKED_SESSION.get()) == (None, "", "")
    return answer, app


def by_header(*levels: str) -> list[tuple[str, str]]:
    return [("X-Llumctl-Priority", level) for level in levels]


# -- header, field and key ----------------------------------------------------------------


async def test_what_a_client_gets() -> None:
    levels: tuple[str, ...]
    body: dict[str, Any]
    for key, levels, body, rank in (
        ("", (), {}, 0),
        ("", (), {"priority": -1}, 1),
        ("", (), {"priority": 2}, -2),
        ("", ("high",), {}, 1),
        ("", (" high ",), {}, 1),
        ("", ("high",), {"priority": None}, 1),
        ("", ("low",), {"priority": 2}, -2),
        ("sk-batch", (), {"priority": 2}, -2),
        ("sk-batch", (), {}, -2),  # it may not have rank 0, so it gets what it may have
        ("sk-board", (), {}, 0),
    ):
        answer, app = await ask(*by_header(*levels), keys=KEYS if key else (), key=key, **body)
        assert (answer.status_code, app.ranks) == (200, [rank]), answer.text


async def test_what_is_refused() -> None:
    levels: tuple[str, ...]
    body: dict[str, Any]
    for levels, body, says in (
        (("urgent",), {}, "there is no priority level 'urgent'; there are normal, high, low"),
        (("x" * 4000,), {}, "there is no priority level 'xxxx"),
        (("\x1b[31m",), {}, "there is no priority level '\\x1b[31m'"),
        (("high", "low"), {}, "is given more than once"),
        (("high",), {"priority": 0}, "the header X-Llumctl-Priority: high, which is -1"),
        (("low",), {"priority": -2}, "priority -2 is not one of 2, 0, -1"),
        (("high",), {"priority": "-1"}, "priority must be an integer"),
    ):
        answer, app = await ask(*by_header(*levels), **body)
        assert (answer.status_code, error(answer)["type"]) == (400, "BadRequestError")
        assert says in error(answer)["message"]
        names_level = "level" in says or "once" in says
        assert error(answer)["param"] == ("X-Llumctl-Priority" if names_level else "priority")
        assert len(answer.content) < 8192
        assert app.ranks == []


async def test_what_a_key_may_not_ask_for() -> None:
    for levels, body in ((("high",), {}), ((), {"priority": -1})):
        answer, app = await ask(*by_header(*levels), keys=KEYS, key="sk-batch", **body)
        assert (answer.status_code, error(answer)["type"]) == (403, "PermissionDeniedError")
        assert "may not ask for the priority high; it may ask for low" in error(answer)["message"]
        assert error(answer)["param"] == ("X-Llumctl-Priority" if levels else "priority")
        assert app.ranks == []


async def test_a_wish_of_a_request_that_the_gate_could_not_read() -> None:
    """A body that is not JSON gains nothing: vLLM's own priority of the request counts."""
    answer, app = await ask(*by_header("high"), path="/v1/audio/transcriptions")
    assert (answer.status_code, app.ranks) == (200, [1])
    asked_priority = AskedPriority(LEVELS, None, ("low",))
    assert asked_priority.rank_of_sequence(0) == asked_priority.rank_of_sequence(2) == -2
    with pytest.raises(Exception, match="may not ask for the priority high"):
        asked_priority.rank_of_sequence(-1)


async def test_a_session_and_a_key_are_known_by_their_hashes_alone() -> None:
    async def session(*headers: tuple[str, str]) -> str:
        _, app = await ask(*headers)
        return app.session

    found = await session(("X-Session-Id", "alice@example.org"))
    assert len(found) == 16
    assert "alice" not in found
    assert found == await session(("x-session-id", " alice@example.org "))
    assert found != await session(("X-Session-Id", "bob@example.org"))
    assert len(await session(("X-Session-Id", "\xff" * 9000))) == 16, "bytes that are no text"
    assert await session() == await session(("X-Session-Id", " ")) == ""
    _, app = await ask(keys=KEYS, key="sk-batch")
    assert app.key == hashlib.sha256(b"sk-batch").hexdigest()[:12]


# -- the file -----------------------------------------------------------------------------


def test_a_line_may_have_limits_of_its_own() -> None:
    lines = ["sk-a", "sk-b low,normal live_requests=4", "sk-c tokens_per_minute=9 high"]
    assert [parse_line(line).levels for line in lines] == [(), ("low", "normal"), ("high",)]
    assert parse_line("  s,k\thigh, low ") == ApiKey("s,k", ("high", "low"))
    assert own_limits(lines) == {
        key_id("sk-b"): {"live_requests": 4},
        key_id("sk-c"): {"tokens_per_minute": 9},
    }
    check("\n\n  ".join(lines), list(LEVELS))


def test_a_file_that_is_wrong_is_not_repeated() -> None:
    for text, says in (
        ("sk-1 urgent", "line 1: what follows the key is no list of priority levels (normal, high"),
        ("sk-1\n\nsk-2 high,urgent", "line 3: "),
        ("sk-1\nsk-2 high\nsk-1 low", "line 3: the same key as in line 1"),
    ):
        with pytest.raises(ValueError, match="line") as refused:
            check(text, LEVELS)
        assert says in str(refused.value)
        assert "sk-" not in str(refused.value)
        assert "urgent" not in str(refused.value)


# -- keys do not leak ---------------------------------------------------------------------


async def test_the_levels_are_no_part_of_a_key() -> None:
    for key in ("low", "sk-batch low", "sk-batc", "sk-board\thigh"):
        answer, app = await ask(*by_header("low"), keys=KEYS, key=key)
        assert (answer.status_code, app.ranks) == (401, [])


async def test_keys_are_in_no_log_no_answer_and_no_repr(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        for key, level in [("sk-batch", "high"), ("sk-batch", "urgent"), ("sk-wrong", "high")]:
            answer, _ = await ask(*by_header(level), keys=KEYS, key=key)
            assert answer.status_code >= 400
            assert "sk-" not in answer.text
    assert "sk-" not in caplog.text
    others: Any = dict.fromkeys(field.name for field in fields(FrontendConfig))
    config = FrontendConfig(**others | {"api_keys": KEYS})
    for shown in (repr(config), repr(parse_line(KEYS[1])), repr(vars(ApiKeys(KEYS)))):
        assert "sk-" not in shown
