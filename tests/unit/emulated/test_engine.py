"""The emulated engine: its tokens, its time, and what it reports about itself."""

import time
from itertools import pairwise

import msgspec
import pytest

from controller.adapters import vllm_wire as wire
from controller.adapters.emulated.emulated_engine import EmulatedEngine
from controller.api.token_sequence import start
from controller.core.load.cached_prefixes import PrefixNames
from tests.unit.emulated.emulated_builders import (
    PROFILE,
    Clock,
    decode,
    finish,
    frames,
    make_engine,
    prompt,
)
from tools.emulated_answers import first_wrong


def add(engine: EmulatedEngine, *args: object, frontend: int = 0, **given: object) -> None:
    engine.add(engine.prepare(frames(*args, **given), frontend))


def test_what_the_frontends_must_know() -> None:
    engine = make_engine()
    assert (engine.max_model_len, engine.block_size) == (1024, 16)
    assert (engine.num_gpu_blocks, engine.max_num_running) == (852, 256)
    assert "generate" in engine.supported_tasks
    idle = engine.snapshot("i-0", 7)
    assert (idle.instance_id, idle.incarnation, idle.num_free_blocks) == ("i-0", 7, 851)
    assert not engine.has_work()
    moves = engine.moves
    assert moves.blocks.block_bytes == 16 * 524288
    assert moves.fingerprint == make_engine(prefix_caching=False, speed=8.0).moves.fingerprint
    assert moves.fingerprint != make_engine(block_size=32).moves.fingerprint


def test_evictions_change_no_answer() -> None:
    engine = make_engine(num_total_blocks=70)
    prompts = {f"r-{n}": prompt(n, 100) for n in range(10)}
    for n, (request_id, ids) in enumerate(prompts.items()):
        add(engine, request_id, ids, max_tokens=200, arrival_s=float(n))
    found = finish(engine)
    quiet = engine.snapshot("i-0", 1)
    assert quiet.num_evictions > 0
    for request_id, ids in prompts.items():
        assert len(found[request_id]) == 200
        assert first_wrong(start(ids), found[request_id]) is None
    events = engine.take_events()
    evicted = [event for event in events if event.kind == "evicted"]
    assert len(evicted) == quiet.num_evictions
    assert all(event.num_tokens > 100 for event in evicted)
    assert all(a.time_s <= b.time_s for a, b in pairwise(events))
    for request_id in prompts:
        kinds = [event.kind for event in events if event.request_id == request_id]
        assert kinds[0] == "admitted"
        assert all(a != b for a, b in pairwise(kinds)), "in turns"
    assert engine.take_events() == []


@pytest.mark.parametrize("speed", [1.0, 8.0])
def test_a_step_takes_the_time_of_the_profile(speed: float) -> None:
    clock = Clock()
    engine = make_engine(clock, speed)
    add(engine, prompt=prompt(0, 100), max_tokens=3)
    for expected_s in (
        PROFILE.step_time_s([(100, 0)], 0, 0),
        PROFILE.step_time_s([], 1, 101),
        PROFILE.step_time_s([], 1, 102),
    ):
        began_s = clock.now_s
        engine.step()
        assert clock.now_s - began_s == pytest.approx(expected_s / speed)
    assert not engine.has_work()


def test_outputs_are_grouped_by_frontend() -> None:
    engine = make_engine()
    for n, frontend in enumerate((0, 2, 0, 1)):
        add(engine, f"r-{n}", prompt(n, 20), max_tokens=1 + n, frontend=frontend)
    seen = {}
    for step in engine.step():
        sent = decode(engine, step)
        assert [e.request_id for e in step.emitted] == [o.request_id for o in sent.outputs]
        seen[step.frontend_index] = [e.request_id for e in step.emitted]
        part = msgspec.msgpack.decode(engine.encode_one(step.body, "r-2")[0], type=wire.Outputs)
        assert part.outputs == [output for output in sent.outputs if output.request_id == "r-2"]
        assert part.timestamp == sent.timestamp
        assert part.scheduler_stats is None
    assert seen == {0: ["r-0", "r-2"], 2: ["r-1"], 1: ["r-3"]}


def test_what_vllm_s_metrics_are_fed() -> None:
    engine = make_engine()
    before_s = time.monotonic()
    add(engine, "r-1", prompt(1, 40), max_tokens=3)
    add(engine, "r-2", prompt(1, 40), max_tokens=3)
    sent = decode(engine, engine.step()[0])
    assert before_s <= sent.timestamp <= time.monotonic()
    assert sent.scheduler_stats == wire.SchedulerStats(2, 0, pytest.approx(4 / 851))
    first, second = sent.outputs
    assert [event.type for event in first.events or ()] == [wire.QUEUED, wire.SCHEDULED]
    assert first.prefill_stats == wire.PrefillStats(40, 40, 0, 0)
    assert second.prefill_stats == wire.PrefillStats(40, 8, 32, 32), "two blocks were shared"


@pytest.mark.parametrize(
    ("caching", "salts", "num_cached"),
    [(True, ("a", "a"), 112), (True, ("a", "b"), 0), (False, (None, None), 0)],
)
def test_the_prefix_cache(caching: bool, salts: tuple[str | None, ...], num_cached: int) -> None:
    """A follow-up question: the first prompt, its answer, and more."""
    engine = make_engine(prefix_caching=caching)
    first = prompt(0, 100)
    add(engine, "r-1", first, max_tokens=17, salt=salts[0])
    answer = finish(engine)["r-1"]
    add(engine, "r-2", [*first, *answer, 5, 6, 7], max_tokens=2, salt=salts[1])
    engine.take_events()
    engine.step()
    (admitted,) = engine.take_events()
    assert (admitted.kind, admitted.request_id, admitted.num_tokens) == ("admitted", "r-2", 120)
    assert admitted.num_cached_tokens == num_cached
    assert time.time() - admitted.time_s < 60


def test_an_aborted_request_is_forgotten() -> None:
    engine = make_engine()
    for n in range(3):
        add(engine, f"r-{n}", prompt(n, 20), max_tokens=100)
    engine.step()
    engine.abort(["r-1", "unknown"])
    (step,) = engine.step()
    assert [e.request_id for e in step.emitted] == ["r-0", "r-2"]
    engine.abort(["r-0", "r-2"])
    assert not engine.has_work()
    assert engine.snapshot("i-0", 1).num_free_blocks == 851
    add(engine, "r-1", prompt(1, 20), max_tokens=2)
    with pytest.raises(ValueError, match="already there"):
        add(engine, "r-1", prompt(2, 20), max_tokens=3)
    found = finish(engine)["r-1"]
    assert len(found) == 2, "the id may be used again, by one request at a time"
    assert first_wrong(start(prompt(1, 20)), found) is None


def test_a_faster_engine_tells_times_of_its_own() -> None:
    """A long prompt waits while a short one decodes."""
    statuses = []
    for speed in (1.0, 4.0):
        engine = make_engine(speed=speed)
        for request_id, num_tokens in (("short", 20), ("long", 900)):
            engine.add(engine.prepare(frames(request_id, list(range(300, 300 + num_tokens))), 0))
            if request_id == "short":
                engine.step()
        statuses.append(engine.snapshot("i-0", 1))
    own, fast = statuses
    assert own.backlog_s == pytest.approx(own.prefill_speed.time_s(16, 900)), "16 are cached"
    assert own.decode_step_s > 0
    for name in ("backlog_s", "decode_step_s"):
        assert getattr(fast, name) == pytest.approx(getattr(own, name) / 4)
    assert fast.prefill_speed.time_s(16, 900) == pytest.approx(own.backlog_s / 4)


def test_the_prefixes_that_the_cache_has_are_told_until_it_loses_them() -> None:
    """By the names that frontends give them. 48 blocks of 16 tokens hold three prefixes."""
    engine = make_engine(num_total_blocks=48, max_model_len=760)
    known: set[int] = set()

    def run(request_id: str, ids: list[int], salt: str | None = None) -> list[int]:
        add(engine, request_id, ids, max_tokens=30, salt=salt)
        tokens = [*ids, *finish(engine)[request_id]][:-1]
        for name, is_cached in engine.take_cache_changes().items():
            (known.add if is_cached else known.remove)(name)
        names = PrefixNames(salt, None).within(len(tokens), lambda first, end: tokens[first:end])
        return list(names)

    first = run("r-1", prompt(1, 240))
    assert known == {*first}, "answers are cached too"
    assert len(first) == 1
    second = run("r-2", prompt(2, 260))
    salted = run("r-3", prompt(2, 260), "salt")
    assert known == {*second, *salted}, "the first one had to go"
    assert len(known) == 2
    long = run("r-4", prompt(3, 600))
    assert {*long} <= known
    assert len(long) == 2
    assert not known & {*second}
