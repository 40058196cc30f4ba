"""The adapter of attached servers against a server of each kind, in this process. Requests become
calls, and streamed ids become outputs. Load, refusals, broken streams and the end of the server."""

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn

from controller.adapters import vllm_wire as wire
from controller.adapters.attached import server_engine
from controller.adapters.attached.attached_engine import AttachedEngine
from controller.adapters.attached.server_engine import ServerGoneError
from controller.adapters.attached.servers import (
    DIALECTS,
    Generation,
    Metrics,
    ServerError,
    identify,
)
from controller.api import token_sequence
from controller.core.fleet.attached import AttachedServer, ServerKind, why_not_carried
from controller.core.migration.refusals import MoveRefusal, refusal_of
from tests.unit.emulated.emulated_builders import EOS, frames
from tools.fake_server import BLOCK_SIZE, MAX_LEN, NUM_BLOCKS, FakeServer, Served

KINDS: tuple[ServerKind, ...] = ("vllm", "sglang", "llamacpp")
PROMPT = [300, 301, 302]
START = token_sequence.start(PROMPT)
DEADLINE_S = 10.0


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    kind, options = getattr(request, "param", ("vllm", {}))
    found = Served(FakeServer(kind, **options))
    yield found
    found.end()


def each_kind(**options: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "served", [(k, options) for k in KINDS], indirect=True, ids=KINDS
    )


def one(kind: ServerKind = "vllm", **options: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("served", [(kind, options)], indirect=True, ids=[kind])


@pytest.fixture
def engine(served: Served) -> Iterator[AttachedEngine]:
    server = identify(served.url).server
    made = AttachedEngine(replace(server, max_model_len=1024), lambda _: None)
    yield made
    made.shutdown()


def add(engine: AttachedEngine, request_id: str = "r-1", **sampling: Any) -> None:
    sampling = {"_eos_token_id": EOS, **sampling}
    engine.add(engine.prepare(frames(request_id, PROMPT, **sampling), 0))


def outputs_of(engine: AttachedEngine, request_id: str = "r-1") -> tuple[list[int], wire.Output]:
    """The request's tokens until its end, and its last output."""
    ids: list[int] = []
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        for step in engine.step():
            for output in step.body.outputs:
                if output.request_id == request_id:
                    ids += output.new_token_ids
                    if output.finish_reason is not None:
                        return ids, output
    raise TimeoutError(request_id)


def step_until(engine: AttachedEngine, done: Any) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < until_s
        engine.step()


def expected(num_tokens: int) -> list[int]:
    return [token_sequence.token(START, position) for position in range(num_tokens)]


@each_kind()
def test_identity(served: Served) -> None:
    found = identify(served.url)
    assert found.server.kind == served.fake.kind
    assert found.server.max_model_len == MAX_LEN
    sizes = {"vllm": (NUM_BLOCKS - 1) * BLOCK_SIZE, "sglang": NUM_BLOCKS * BLOCK_SIZE}
    assert found.server.capacity_tokens == sizes.get(served.fake.kind, 4 * MAX_LEN)
    assert found.sample_ids is None, "it has no tokenizer"


@each_kind()
def test_tokens_up_to_the_limit(engine: AttachedEngine) -> None:
    add(engine, max_tokens=10, temperature=0.0)
    ids, last = outputs_of(engine)
    assert (ids, last.finish_reason) == (expected(10), wire.FINISH_REASONS.index("length"))
    assert engine.take_events()[0].kind == "admitted"
    assert not engine.has_work()


@each_kind()
def test_the_end_token_is_the_last_one_with_every_kind(engine: AttachedEngine) -> None:
    natural = token_sequence.natural_length(PROMPT)
    add(engine, max_tokens=natural + 5)
    ids, last = outputs_of(engine)
    assert ids == [*expected(natural - 1), EOS]
    assert (last.finish_reason, last.stop_reason) == (0, None)


@one("sglang", cumulative=False)
def test_ids_that_sglang_streams_one_by_one(engine: AttachedEngine) -> None:
    add(engine, max_tokens=7)
    assert outputs_of(engine)[0] == expected(7)


@each_kind()
def test_a_stop_token_of_the_client_ends_the_answer(engine: AttachedEngine) -> None:
    stop = expected(4)[-1]
    add(engine, max_tokens=30, stop_token_ids=[stop], _eos_token_id=None)
    ids, last = outputs_of(engine)
    assert ids == expected(4)
    assert (last.finish_reason, last.stop_reason) == (0, stop)


@each_kind(num_prompt=len(PROMPT))
def test_a_replay_goes_on_after_its_outputs(engine: AttachedEngine) -> None:
    prepared = engine.prepare(frames("r-1", PROMPT, max_tokens=10, _eos_token_id=EOS), 0)
    engine.moves.reenter(prepared, expected(4), None)
    assert outputs_of(engine)[0] == expected(10)[4:]


@one()
def test_tokens_that_come_between_two_steps_are_one_output(engine: AttachedEngine) -> None:
    add(engine, max_tokens=10)
    until_s = time.monotonic() + DEADLINE_S
    while engine._calls.inbox.qsize() < 1 + 10:  # that it is taken, and the tokens
        assert time.monotonic() < until_s
        time.sleep(0.01)
    (step,) = engine.step()
    (output,) = step.body.outputs
    (emitted,) = step.emitted
    assert (emitted.num_tokens, output.new_token_ids) == (10, expected(10))


@one(num_prompt=len(PROMPT))
def test_a_broken_stream_goes_on_at_the_same_server(served: Served, engine: AttachedEngine) -> None:
    served.fake.break_after = 3
    add(engine, max_tokens=10)
    assert outputs_of(engine)[0] == expected(10)
    assert [each.kind for each in engine.take_events()] == ["admitted", "evicted", "admitted"]


@one()
def test_a_busy_server_is_asked_again(served: Served, engine: AttachedEngine) -> None:
    served.fake.busy = 2
    add(engine, max_tokens=3)
    assert engine.snapshot("i-0", 1).num_queued == 1
    assert outputs_of(engine)[0] == expected(3)


@one()
def test_what_a_server_refuses_ends_with_its_reason(served: Served) -> None:
    server = replace(identify(served.url).server, max_model_len=MAX_LEN * 4)
    engine = AttachedEngine(replace(server, max_model_len=MAX_LEN), lambda _: None)
    engine.max_model_len = MAX_LEN * 4
    add(engine, max_tokens=MAX_LEN * 2)
    ids, last = outputs_of(engine)
    assert not ids
    assert last.finish_reason == wire.FINISH_REASONS.index("error")
    assert "400: too long" in str(last.stop_reason)
    engine.shutdown()


@one(step_s=0.01)
def test_an_aborted_request_leaves_the_server(served: Served, engine: AttachedEngine) -> None:
    add(engine, max_tokens=1000)
    step_until(engine, lambda: bool(engine.live["r-1"].outputs))
    engine.abort(["r-1"])
    until_s = time.monotonic() + DEADLINE_S
    while served.fake.num_running:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    assert not engine.has_work()


@one(step_s=0.01)
def test_a_server_that_ends_is_gone(served: Served, engine: AttachedEngine) -> None:
    add(engine, max_tokens=1000)
    step_until(engine, lambda: bool(engine.live["r-1"].outputs))
    served.end()
    with pytest.raises(ServerGoneError, match=served.url):
        step_until(engine, lambda: False)


@one()
def test_an_idle_server_that_ends_is_gone(served: Served, engine: AttachedEngine) -> None:
    served.end()
    until_s = time.monotonic() + DEADLINE_S
    while not engine.has_work():
        assert time.monotonic() < until_s
        time.sleep(0.05)
    with pytest.raises(ServerGoneError, match="refuses connections"):
        engine.step()


@one()
def test_a_server_that_says_nothing_for_long_is_gone(
    served: Served, engine: AttachedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_engine, "SILENT_S", 1.0)
    served.fake.healthy = False
    until_s = time.monotonic() + DEADLINE_S
    while not engine.has_work():
        assert time.monotonic() < until_s
        time.sleep(0.05)
    with pytest.raises(ServerGoneError, match="no sign of life"):
        engine.step()


def test_the_engine_waits_for_its_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = AttachedServer(f"http://127.0.0.1:{port}", "vllm", "embedded", 100, 1600)
    said: list[str] = []
    made: list[AttachedEngine] = []
    build = lambda: made.append(AttachedEngine(server, said.append))  # noqa: E731
    waiting = threading.Thread(target=build, daemon=True)
    waiting.start()
    until_s = time.monotonic() + DEADLINE_S
    while not any("does not serve" in each for each in said):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert waiting.is_alive()
    fake = FakeServer("vllm")
    sock = socket.create_server(("127.0.0.1", port))
    served = uvicorn.Server(uvicorn.Config(fake.app, log_level="error"))
    thread = threading.Thread(target=served.run, args=([sock],), daemon=True)
    thread.start()
    waiting.join(DEADLINE_S)
    made[0].shutdown()
    served.should_exit = True
    thread.join(DEADLINE_S)
    sock.close()


@one()
def test_another_model_behind_the_url_is_refused(served: Served) -> None:
    server = replace(identify(served.url).server, model="other")
    with pytest.raises(ServerError, match="attached as a vllm server with other"):
        AttachedEngine(server, lambda _: None)


# -- load ------------------------------------------------------------------------------------------


@one(step_s=0.02)
def test_load_is_what_was_sent_and_what_others_use(served: Served, engine: AttachedEngine) -> None:
    add(engine, max_tokens=1000)
    step_until(engine, lambda: len(engine.live["r-1"].outputs) > 20)
    seen = engine.snapshot("i-0", 1)
    assert (seen.num_running, seen.num_queued, seen.is_attached) == (1, 0, True)
    assert seen.num_used_blocks == 2
    assert seen.decode_step_s > 0
    served.fake.usage = 0.5  # others came
    step_until(engine, lambda: engine.snapshot("i-0", 1).num_used_blocks > NUM_BLOCKS // 3)
    used = engine.snapshot("i-0", 1).num_used_blocks
    assert abs(used - (NUM_BLOCKS - 1) // 2) < 8
    served.fake.usage = 0.0  # and left
    step_until(engine, lambda: engine.snapshot("i-0", 1).num_used_blocks < 10)


@one("llamacpp", step_s=0.02)
def test_others_take_places_of_a_server_that_tells_no_memory(
    served: Served, engine: AttachedEngine
) -> None:
    served.fake.others = 2
    add(engine, max_tokens=1000)
    step_until(engine, lambda: engine.snapshot("i-0", 1).max_num_running == 2)
    seen = engine.snapshot("i-0", 1)
    assert seen.num_used_blocks >= seen.num_total_blocks // 2


@each_kind()
def test_pages_of_metrics(served: Served) -> None:
    served.fake.others, served.fake.waiting, served.fake.usage = 3, 2, 0.25
    page = Metrics.of(httpx.get(f"{served.url}/metrics").text)
    load = DIALECTS[identify(served.url).server.kind].load(page)
    assert (load.num_running, load.num_waiting) == (3, 2)
    assert load.usage == (None if served.fake.kind == "llamacpp" else 0.25)
    assert load.num_tokens == 0


# -- what is carried over --------------------------------------------------------------------------

NOT_CARRIED: Mapping[str, Any] = {
    "structured_outputs": {"json": "{}"},
    "logprobs": 1,
    "seed": 7,
    "presence_penalty": 0.5,
    "logit_bias": {5: 1.0},
    "min_tokens": 4,
    "something_new": 1,
}


@pytest.mark.parametrize("name", NOT_CARRIED)
def test_parameters_that_would_be_lost_keep_a_request_away(name: str) -> None:
    assert name in why_not_carried({"temperature": 0.7, name: NOT_CARRIED[name]})


def test_parameters_that_change_nothing_are_carried() -> None:
    assert not why_not_carried({"temperature": 0.0, "seed": 3, "logprobs": None, "stop": ["a"]})
    assert not why_not_carried({"repetition_penalty": 1.0, "top_p": 0.9, "n": 1})


@one()
def test_a_request_that_cannot_be_carried_is_refused(engine: AttachedEngine) -> None:
    for changed in ({2: [b"image"]}, {6: ["adapter"]}, {7: "salt"}, {15: True}):
        with pytest.raises(ValueError, match="attached to cannot take it"):
            engine.prepare(frames(changed=changed), 0)
    with pytest.raises(ValueError, match="logprobs"):
        engine.prepare(frames(logprobs=2), 0)


@one(key="s3cret")
def test_the_key_comes_from_its_file(served: Served, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="wants an API key"):
        identify(served.url)
    file = tmp_path / "key"
    file.write_text("s3cret\n")
    server = identify(served.url, str(file)).server
    engine = AttachedEngine(replace(server, max_model_len=1024), lambda _: None)
    add(engine, max_tokens=3)
    assert outputs_of(engine)[0] == expected(3)
    assert "s3cret" not in repr(server)
    engine.shutdown()


@one(step_s=0.01)
def test_no_request_moves(engine: AttachedEngine) -> None:
    add(engine, max_tokens=100)
    assert refusal_of(engine.moves.facts("r-1")) is MoveRefusal.ATTACHED
    (candidate,) = engine.moves.candidates()
    assert candidate.facts.never is MoveRefusal.ATTACHED
    prepared = engine.prepare(frames("r-2"), 0)
    assert engine.moves.reserve(prepared, (), 1) is MoveRefusal.ATTACHED


def test_penalties_and_samplers_of_a_server_are_switched_off() -> None:
    wanted = Generation([1, 2], 5, temperature=0.5, top_k=0, eos_token_id=1)
    for kind in KINDS:
        body = DIALECTS[kind].body(AttachedServer("http://x", kind, "m", 1, 1), wanted)
        assert msgspec.json.encode(body)
    assert (
        DIALECTS["sglang"].body(AttachedServer("", "sglang", "", 1, 1), wanted)["sampling_params"][
            "top_k"
        ]
        == -1
    )
