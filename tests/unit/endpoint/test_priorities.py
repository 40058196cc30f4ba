"""What a client may ask for by header and by field, with which key, and what it gets."""

import hashlib
import json
import logging
from typing import Any

import httpx
import pytest

from controller.adapters.vllm.endpoint.frontend import FrontendConfig
from controller.adapters.vllm.endpoint.gate import Gate, GateLimits
from controller.adapters.vllm.endpoint.headers import (
    ASKED_KEY,
    ASKED_PRIORITY,
    ApiKeys,
    AskedPriority,
)
from controller.api.settings.key_file import ApiKey, check, key_id, own_limits, parse_line

LEVELS = {"normal": 0, "high": 1, "low": -2}
KEYS = ("sk-all", "sk-batch low live_requests=2", "sk-board\thigh,normal", "sk-both  low, normal")
PATH = "/v1/completions"
FORM = "/v1/audio/transcriptions"


async def ask(
    *headers: tuple[str, str],
    keys: tuple[str, ...] = (),
    key: str = "",
    path: str = PATH,
    **body: Any,
) -> tuple[httpx.Response, list[int]]:
    """The answer, and the ranks of the requests that left for an instance. The app has vLLM's own
    default for a request without the field."""
    heard: list[int] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        asked_priority = ASKED_PRIORITY.get()
        assert asked_priority is not None
        heard.append(asked_priority.rank_of_sequence(body.get("priority") or 0))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    gate = Gate(GateLimits(), keys, LEVELS)
    gate.app, gate.json_paths = app, frozenset({PATH})
    given = [*headers, *([("Authorization", f"Bearer {key}")] if key else [])]
    transport = httpx.ASGITransport(app=gate)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in given]
        answer = await http.post(path, headers=raw, content=json.dumps(body).encode())
    assert gate.num_live == 0
    assert ASKED_PRIORITY.get() is None
    return answer, heard


def by_header(level: str) -> tuple[str, str]:
    return ("X-Llumctl-Priority", level)


# -- header and field ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "body", "rank"),
    [
        (None, {}, 0),
        (None, {"priority": None}, 0),
        (None, {"priority": 0}, 0),
        (None, {"priority": -1}, 1),
        (None, {"priority": 2}, -2),
        ("high", {}, 1),
        ("normal", {}, 0),
        ("low", {}, -2),
        (" high ", {}, 1),
        ("high", {"priority": None}, 1),
        ("high", {"priority": -1}, 1),
        ("low", {"priority": 2}, -2),
        ("normal", {"priority": 0}, 0),
    ],
)
async def test_what_is_asked_for(level: str | None, body: dict[str, Any], rank: int) -> None:
    headers = () if level is None else (by_header(level),)
    answer, heard = await ask(*headers, **body)
    assert (answer.status_code, heard) == (200, [rank]), answer.text


BAD: list[tuple[tuple[str, ...], dict[str, Any], str, str]] = [
    (("urgent",), {}, "there is no priority level 'urgent'; there are normal, high, low", ""),
    (("High",), {}, "there is no priority level 'High'", ""),
    (("",), {}, "there is no priority level ''", ""),
    (("1",), {}, "there is no priority level '1'", ""),
    (("-1",), {}, "there is no priority level '-1'", ""),
    (("high,low",), {}, "there is no priority level 'high,low'", ""),
    (("h\u00f8gh",), {}, "there is no priority level", ""),
    (("x" * 4000,), {}, "there is no priority level 'xxxx", ""),
    (("\x1b[31m",), {}, "there is no priority level '\\x1b[31m'", ""),
    (("high", "low"), {}, "is given more than once", ""),
    (
        ("high",),
        {"priority": 0},
        "the header X-Llumctl-Priority: high, which is -1",
        "priority",
    ),
    (("high",), {"priority": 2}, "disagree", "priority"),
    (("low",), {"priority": -2}, "priority -2 is not one of 2, 0, -1", "priority"),
    (("normal",), {"priority": -1}, "disagree", "priority"),
    (("high",), {"priority": "-1"}, "priority must be an integer", "priority"),
    (("high",), {"priority": True}, "priority must be an integer", "priority"),
    (("urgent",), {"priority": -1}, "there is no priority level 'urgent'", ""),
    ((), {"priority": 1}, "priority 1 is not one of 2, 0, -1", "priority"),
    ((), {"priority": 10**30}, "is not one of", "priority"),
]


@pytest.mark.parametrize(("levels", "body", "says", "param"), BAD)
async def test_what_is_refused(
    levels: tuple[str, ...], body: dict[str, Any], says: str, param: str
) -> None:
    answer, heard = await ask(*(by_header(level) for level in levels), **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "BadRequestError")
    assert says in error["message"]
    assert error["param"] == (param or "X-Llumctl-Priority")
    assert len(answer.content) < 8192
    assert heard == []


async def test_the_same_header_twice_is_one_wish() -> None:
    answer, heard = await ask(by_header("high"), by_header("high"))
    assert (answer.status_code, heard) == (200, [1])


async def test_a_body_that_is_no_json_of_ours_is_asked_for_when_it_leaves() -> None:
    answer, heard = await ask(by_header("high"), path=FORM)
    assert (answer.status_code, heard) == (200, [1])


# -- keys ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "level", "body", "rank"),
    [
        ("sk-all", "high", {}, 1),
        ("sk-all", None, {}, 0),
        ("sk-all", None, {"priority": 2}, -2),
        ("sk-batch", "low", {}, -2),
        ("sk-batch", None, {"priority": 2}, -2),
        ("sk-batch", None, {}, -2),  # it may not have rank 0, so it gets what it may have
        ("sk-batch", None, {"priority": None}, -2),
        ("sk-board", None, {}, 0),
        ("sk-board", "high", {}, 1),
        ("sk-both", None, {}, 0),
        ("sk-both", "low", {}, -2),
    ],
)
async def test_what_a_key_may_ask_for(
    key: str, level: str | None, body: dict[str, Any], rank: int
) -> None:
    headers = () if level is None else (by_header(level),)
    answer, heard = await ask(*headers, keys=KEYS, key=key, **body)
    assert (answer.status_code, heard) == (200, [rank]), answer.text


@pytest.mark.parametrize(
    ("key", "level", "body", "says"),
    [
        ("sk-batch", "high", {}, "may not ask for the priority high; it may ask for low"),
        ("sk-batch", None, {"priority": -1}, "may not ask for the priority high"),
        ("sk-batch", None, {"priority": 0}, "may not ask for the priority normal"),
        ("sk-batch", "normal", {"priority": 0}, "may not ask for the priority normal"),
        ("sk-board", "low", {}, "it may ask for high, normal"),
        ("sk-both", None, {"priority": -1}, "it may ask for low, normal"),
    ],
)
async def test_what_a_key_may_not_ask_for(
    key: str, level: str | None, body: dict[str, Any], says: str
) -> None:
    headers = () if level is None else (by_header(level),)
    answer, heard = await ask(*headers, keys=KEYS, key=key, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (403, "PermissionDeniedError")
    assert says in error["message"]
    assert error["param"] == ("priority" if level is None else "X-Llumctl-Priority")
    assert "sk-" not in answer.text
    assert heard == []


@pytest.mark.parametrize("key", ["", "low", "sk-batch low", "sk-batc", "sk-board\thigh", "sk-"])
async def test_the_levels_are_no_part_of_a_key(key: str) -> None:
    answer, heard = await ask(by_header("low"), keys=KEYS, key=key)
    assert (answer.status_code, heard) == (401, [])


def test_a_wish_of_a_request_that_the_gate_could_not_read() -> None:
    """A body that is not JSON gains nothing: vLLM's own priority of the request counts."""
    asked_priority = AskedPriority(LEVELS, None, ("low",))
    assert asked_priority.rank_of_sequence(0) == asked_priority.rank_of_sequence(2) == -2
    with pytest.raises(Exception, match="may not ask for the priority high"):
        asked_priority.rank_of_sequence(-1)


# -- the file -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        ("sk", ApiKey("sk")),
        ("  sk  ", ApiKey("sk")),
        ("sk high", ApiKey("sk", ("high",))),
        ("sk\thigh, low", ApiKey("sk", ("high", "low"))),
        ("sk high low", ApiKey("sk", ("high", "low"))),
        ("s,k", ApiKey("s,k")),
        ("s,k high", ApiKey("s,k", ("high",))),
    ],
)
def test_a_line(line: str, parsed: ApiKey) -> None:
    assert parse_line(line) == parsed


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sk-1 urgent", "line 1: what follows the key is no list of priority levels (normal, high"),
        ("sk-1\n\nsk-2 high,urgent", "line 3: "),
        ("sk-1 sk-2", "line 1: "),
        ("sk-1\nsk-2 high\nsk-1 low", "line 3: the same key as in line 1"),
    ],
)
def test_a_file_that_is_wrong_is_not_repeated(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="line") as refused:
        check(text, LEVELS)
    assert says in str(refused.value)
    assert "sk-" not in str(refused.value)
    assert "urgent" not in str(refused.value)


def test_a_file_that_is_right() -> None:
    check("sk-1\n\n  sk-2 high\nsk-3\tlow,normal\n", LEVELS)


# -- keys do not leak ---------------------------------------------------------------------


async def test_keys_are_in_no_log_no_answer_and_no_repr(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        for key, level in [("sk-batch", "high"), ("sk-batch", "urgent"), ("sk-wrong", "high")]:
            answer, _ = await ask(by_header(level), keys=KEYS, key=key)
            assert answer.status_code >= 400
            assert "sk-" not in answer.text
    assert "sk-" not in caplog.text
    config = FrontendConfig(
        engine_args={},
        options={},
        level_names={0: "normal"},
        num_instances=1,
        host="h",
        port=1,
        hosts=(),
        api_keys=KEYS,
        limits=GateLimits(),
    )
    for shown in (repr(config), repr(parse_line(KEYS[1])), repr(vars(ApiKeys(KEYS)))):
        assert "sk-" not in shown


async def test_a_request_carries_the_hash_of_its_key() -> None:
    heard: list[str] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        heard.append(ASKED_KEY.get())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    for keys, given in ((KEYS, "sk-batch"), ((), "")):
        gate = Gate(GateLimits(), keys, LEVELS)
        gate.app, gate.json_paths = app, frozenset({PATH})
        transport = httpx.ASGITransport(app=gate)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            headers = {"Authorization": f"Bearer {given}"} if given else {}
            assert (await http.post(PATH, headers=headers, content=b"{}")).status_code == 200
    assert heard == [hashlib.sha256(b"sk-batch").hexdigest()[:12], ""]
    assert ASKED_KEY.get() == ""


def test_a_key_s_line_may_have_limits_of_its_own() -> None:
    lines = ["sk-a", "sk-b low,normal live_requests=4", "sk-c tokens_per_minute=9 high"]
    assert [parse_line(line).levels for line in lines] == [(), ("low", "normal"), ("high",)]
    assert own_limits(lines) == {
        key_id("sk-b"): {"live_requests": 4},
        key_id("sk-c"): {"tokens_per_minute": 9},
    }
    check("\n".join(lines), list(LEVELS))
