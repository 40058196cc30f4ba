"""The engine that forwards bodies, against a server in this process: what the server gets, what
comes of its answers, broken streams, and how the body and the answer are read."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from controller.adapters.attached.forward_engine import (
    EventCutter,
    ForwardEngine,
    body_for,
    usage_in,
)
from controller.adapters.attached.server_engine import MAX_BROKEN
from controller.adapters.attached.servers import identify
from controller.adapters.forward_wire import ForwardedRequest, Piece, encode
from controller.core.migration.refusals import MoveRefusal, refusal_of
from tests.unit.attached.test_attached_engine import DEADLINE_S
from tools.fake_chat_server import FakeChatServer
from tools.fake_server import Served

PATH = "/v1/chat/completions"


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served(FakeChatServer("a", ["other", "words"], step_s=0.002))
    yield found
    found.end()


@pytest.fixture
def engine(served: Served) -> Iterator[ForwardEngine]:
    server = identify(served.url, wanted="words").server
    assert (server.kind, server.model) == ("openai", "words")
    made = ForwardEngine(replace(server, capacity_tokens=10_000), lambda _: None)
    yield made
    made.shutdown()


def add(engine: ForwardEngine, path: str = PATH, **fields: Any) -> None:
    chat = {"messages": [{"content": "two words"}], "stream": True, "max_tokens": 5}
    body = json.dumps({"model": "mine"} | (chat if path == PATH else {}) | fields).encode()
    asked = ForwardedRequest("r-1", time.time(), 1, 7, 5, path, body, {"x-request-id": "c-1"})
    engine.add(engine.prepare(encode(asked), 0))


def pieces_of(engine: ForwardEngine) -> list[Piece]:
    """The request's pieces until its end."""
    found: list[Piece] = []
    until_s = time.monotonic() + DEADLINE_S
    while not found or found[-1].finish_reason is None:
        assert time.monotonic() < until_s
        for step in engine.step():
            found += step.body.pieces
            emitted = [(each.num_tokens, each.finish_reason) for each in step.emitted]
            assert emitted == [(each.num_tokens, each.finish_reason) for each in step.body.pieces]
    return found


def test_a_stream_comes_in_pieces_of_whole_events(engine: ForwardEngine, served: Served) -> None:
    add(engine, priority=-1, kept={"as": [1.50]})
    pieces = pieces_of(engine)
    assert (pieces[0].status, pieces[0].content_type) == (200, "text/event-stream; charset=utf-8")
    assert not any(each.status for each in pieces[1:])
    assert all(each.data.endswith(b"\n\n") for each in pieces if each.data)
    assert all(each.num_tokens for each in pieces[:-1]), "a piece without a place in the order"
    whole = b"".join(each.data for each in pieces)
    assert whole.count(b"content") == 5
    assert whole.endswith(b"data: [DONE]\n\n")
    assert (pieces[-1].finish_reason, pieces[-1].num_prompt_tokens) == ("stop", 2)
    assert served.fake.bodies[0]["model"] == "words"
    assert served.fake.bodies[0]["kept"] == {"as": [1.5]}
    assert "priority" not in served.fake.bodies[0]
    assert served.fake.headers[0]["x-request-id"] == "c-1"
    assert not engine.has_work()


def test_another_answer_is_one_piece_with_as_many_tokens_as_it_says(engine: ForwardEngine) -> None:
    add(engine, stream=False, max_tokens=20)
    (piece,) = pieces_of(engine)
    told = msgspec.json.decode(piece.data)
    assert told["usage"]["completion_tokens"] == piece.num_tokens == 20
    assert (piece.status, piece.content_type) == (200, "application/json")


def test_a_refusal_passes_through(engine: ForwardEngine) -> None:
    add(engine, "/v1/embeddings")
    (piece,) = pieces_of(engine)
    assert (piece.status, piece.finish_reason) == (422, "error")
    assert b"there is no input" in piece.data


def test_a_busy_server_is_asked_again(engine: ForwardEngine, served: Served) -> None:
    served.fake.busy = 1
    add(engine)
    assert pieces_of(engine)[-1].finish_reason == "stop"
    assert len(served.fake.bodies) == 2


def test_a_stream_that_breaks_before_its_first_event_is_asked_for_again(
    engine: ForwardEngine, served: Served
) -> None:
    served.fake.fails_first = 1
    add(engine)
    assert pieces_of(engine)[-1].finish_reason == "stop"
    assert len(served.fake.bodies) == 2


def test_a_request_that_always_breaks_ends_alone(engine: ForwardEngine, served: Served) -> None:
    served.fake.fails_first = 100
    add(engine)
    (piece,) = pieces_of(engine)
    assert piece.failure.startswith("the attached server refuses the request: its answer broke off")
    assert len(served.fake.bodies) == MAX_BROKEN + 1
    assert not engine.has_work(), "the server itself is not gone"


def test_a_stream_that_breaks_later_ends_with_an_error(
    engine: ForwardEngine, served: Served
) -> None:
    served.fake.break_after = 3
    add(engine)
    pieces = pieces_of(engine)
    assert b"".join(each.data for each in pieces).count(b"content") == 3
    assert "its answer broke off" in pieces[-1].failure
    assert len(served.fake.bodies) == 1


def test_load_and_moves(engine: ForwardEngine, served: Served) -> None:
    served.fake.first_s = 60.0
    add(engine)
    until_s = time.monotonic() + DEADLINE_S
    while not served.fake.num_running:
        assert time.monotonic() < until_s
        engine.step()
    snapshot = engine.snapshot("i-0", 1)
    assert snapshot.is_attached
    assert snapshot.num_running_by_rank | snapshot.num_queued_by_rank == {1: 1}
    assert refusal_of(engine.moves.facts("r-1")) is MoveRefusal.ATTACHED
    engine.abort(["r-1"])
    while served.fake.num_running:
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_only_the_model_and_the_priority_of_a_body_change() -> None:
    body = b'{"model":"mine", "priority": 1, "x": [1.0e2,  "\\u00e9"], "n": 1}'
    assert body_for("theirs", body) == b'{"model":"theirs","x":[1.0e2,  "\\u00e9"],"n":1}'
    with pytest.raises(ValueError, match="object"):
        body_for("theirs", b"[]")


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_events_are_never_cut(size: int, end: bytes) -> None:
    events = [b": a comment", b'data: {"k": 1}', b"event: x\ndata: 2", b"data: [DONE]"]
    text = b"".join(each + end for each in events)
    cutter = EventCutter()
    parts = [cutter.take(text[at : at + size]) for at in range(0, len(text), size)]
    found = [each for each in parts if each is not None]
    last = cutter.last()
    assert b"".join(each.data for each in [*found, last]) == text
    assert all(each.data.endswith(end) and each.num_events for each in found)
    assert sum(each.num_events for each in [*found, last]) == 2


@pytest.mark.parametrize(
    ("text", "usage"),
    [
        (b'{"usage": {"prompt_tokens": 3, "completion_tokens": 4}}', (3, 4)),
        (b'data: {"usage": null}\n\n', (0, 0)),
        (b'{"response": {"usage": {"input_tokens": 5, "output_tokens": 6}}}', (5, 6)),
        (b'{"usage": {"prompt_tokens": 3}}\n{"usage": {"completion_tokens": 9}}', (3, 9)),
        (b'{"text": "\\"usage\\": {\\"prompt_tokens\\": 7}"}', (0, 0)),
        (b'{"usage": {"prompt_tokens": "7", "completion_tokens": -1}}', (0, 0)),
        (b'{"usage": {', (0, 0)),
    ],
)
def test_usage(text: bytes, usage: tuple[int, int]) -> None:
    assert usage_in(text) == usage
