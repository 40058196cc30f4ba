"""The shape and the size of every error."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.adapters.vllm.endpoint.answers import (
    INTERNAL,
    TYPES,
    error_body,
    error_type,
    last_events,
    reshape,
    reshape_event,
)


def read(body: bytes) -> dict[str, object]:
    found = json.loads(body)
    assert list(found) == ["error"]
    assert list(found["error"]) == ["message", "type", "param", "code"]
    return dict(found["error"])


@given(st.text(max_size=5000), st.none() | st.text(max_size=500), st.sampled_from(sorted(TYPES)))
def test_any_message_makes_a_small_body(message: str, param: str | None, status: int) -> None:
    body = error_body(status, message, param)
    assert len(body) < 8192
    assert read(body)["type"] == TYPES[status]


@pytest.mark.parametrize("worst", ["\x00" * 9000, "\U0001f98a" * 9000, "\ud800" * 9000, '"' * 9000])
def test_the_longest_in_bytes(worst: str) -> None:
    assert len(error_body(400, worst, worst)) < 8192


def test_the_code_is_the_status_but_for_a_bad_key() -> None:
    assert read(error_body(503, "x"))["code"] == 503
    assert read(error_body(401, "x"))["code"] == "invalid_api_key"


def test_a_failure_of_the_server_keeps_quiet() -> None:
    secret = 'File "/srv/a.py", line 3, in f: KeyError'
    for body in (error_body(500, secret), reshape(500, secret.encode(), "GET", "/")):
        assert read(body)["message"] == INTERNAL
    shaped = json.dumps({"error": {"message": secret, "type": "X", "code": 500}}).encode()
    assert secret not in json.dumps(read(reshape(500, shaped, "GET", "/")))


def test_other_statuses_have_a_type_too() -> None:
    assert error_type(418) == "BadRequestError"
    assert error_type(500) == error_type(502) == "InternalServerError"


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (b'{"detail":"Not Found"}', "Not Found: GET /x", None),
        (b'{"error":"Unauthorized"}', "Unauthorized", None),
        (b'{"error":{"message":"m","type":"T","param":"p","code":1}}', "m", "p"),
        (b'{"error":{"message":null,"param":3}}', "Not Found: GET /x", None),
        (b'{"detail":["a","b"]}', "['a', 'b']: GET /x", None),
        (b"<html>", "Not Found: GET /x", None),
        (b"", "Not Found: GET /x", None),
        (b"[1]", "Not Found: GET /x", None),
        (b"\xff", "Not Found: GET /x", None),
        (b"[" * 100_000, "Not Found: GET /x", None),
    ],
)
def test_other_shapes_become_ours(body: bytes, message: str, param: str | None) -> None:
    found = read(reshape(404, body, "GET", "/x"))
    assert found == {"message": message, "type": "NotFoundError", "param": param, "code": 404}


def test_an_error_in_a_stream_keeps_its_code() -> None:
    event = (
        b'data: {"error": {"message": "i-0 died", "type": "X", "param": null, "code": 503}}\n\n'
        b"data: [DONE]\n\n"
    )
    shaped = reshape_event(event)
    first, rest = shaped.split(b"\n\n", 1)
    assert rest == b"data: [DONE]\n\n"
    found = read(first.removeprefix(b"data: "))
    assert (found["type"], found["code"]) == ("ServiceUnavailableError", 503)


@pytest.mark.parametrize(
    "event", [b'data: {"error": 3}\n\n', b'data: {"error": {}}', b'data: {"error']
)
def test_an_error_in_a_stream_of_another_shape(event: bytes) -> None:
    shaped = reshape_event(event)
    assert read(shaped.strip().removeprefix(b"data: "))["message"] == INTERNAL


def test_the_end_of_a_failed_stream() -> None:
    error, done, nothing = last_events(504, "late", "/v1/completions").split(b"\n\n")
    assert read(error.removeprefix(b"data: "))["code"] == 504
    assert (done, nothing) == (b"data: [DONE]", b"")
