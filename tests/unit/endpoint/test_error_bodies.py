"""The shape, the size and the words of every error."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from controller.adapters.vllm.endpoint.answers import (
    INTERNAL,
    TYPES,
    error_body,
    in_our_words,
    reshape,
    reshape_event,
)


def read(body: bytes) -> dict[str, object]:
    found = json.loads(body)
    assert list(found) == ["error"]
    assert list(found["error"]) == ["message", "type", "param", "code"]
    return dict(found["error"])


@given(st.text(max_size=5000), st.none() | st.text(max_size=500), st.sampled_from(sorted(TYPES)))
@example("\x00" * 9000, "\x00" * 9000, 400)
@example("\U0001f98a" * 9000, "\U0001f98a" * 9000, 400)
@example("\ud800" * 9000, "\ud800" * 9000, 400)
@example('"' * 9000, '"' * 9000, 400)
def test_any_message_makes_a_small_body(message: str, param: str | None, status: int) -> None:
    body = error_body(status, message, param)
    assert len(body) < 8192
    assert read(body)["type"] == TYPES[status]


def test_a_failure_of_the_server_keeps_quiet() -> None:
    secret = 'File "/srv/a.py", line 3, in f: KeyError'
    for body in (error_body(500, secret), reshape(500, secret.encode(), "GET", "/")):
        assert read(body)["message"] == INTERNAL
    shaped = json.dumps({"error": {"message": secret, "type": "X", "code": 500}}).encode()
    assert secret not in json.dumps(read(reshape(500, shaped, "GET", "/")))


def test_other_shapes_become_ours() -> None:
    for body, message, param in (
        (b'{"detail":"Not Found"}', "Not Found: GET /x", None),
        (b'{"error":"Unauthorized"}', "Unauthorized", None),
        (b'{"error":{"message":"m","type":"T","param":"p","code":1}}', "m", "p"),
        (b'{"error":{"message":null,"param":3}}', "Not Found: GET /x", None),
        (b"[1]", "Not Found: GET /x", None),
        (b"[" * 100_000, "Not Found: GET /x", None),
    ):
        found = read(reshape(404, body, "GET", "/x"))
        assert found == {"message": message, "type": "NotFoundError", "param": param, "code": 404}


def test_of_an_error_in_a_stream_the_code_and_what_follows_stay() -> None:
    event = b'data: {"error": {"message": "i-0 died", "code": 503}}\n\ndata: [DONE]\n\n'
    first, rest = reshape_event(event).split(b"\n\n", 1)
    assert rest == b"data: [DONE]\n\n"
    found = read(first.removeprefix(b"data: "))
    assert (found["type"], found["code"]) == ("ServiceUnavailableError", 503)
    for other in (b'data: {"error": 3}\n\n', b'data: {"error": {}}', b'data: {"error'):
        shaped = reshape_event(other)
        assert read(shaped.strip().removeprefix(b"data: "))["message"] == INTERNAL


def test_flags_of_vllm_s_are_told_as_they_are_typed_here() -> None:
    for theirs, ours in (
        (
            "needs --enable-auto-tool-choice and --tool-call-parser set",
            "needs endpoint.tool_call_parser (llumctl up --tool-call-parser hermes) set",
        ),
        ("--max-logprobs.", "engine.max_logprobs (llumctl up --engine-arg max_logprobs=...)."),
        ("a --no-such-flag and x--max-logprobs", "a --no-such-flag and x--max-logprobs"),
    ):
        assert in_our_words(theirs) == ours
        assert read(error_body(400, theirs))["message"] == ours
