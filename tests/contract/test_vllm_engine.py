"""The engine adapter against vLLM's own state: the touch points of its engine.py."""

import inspect
import random
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import BLOCK_SIZE, NUM_BLOCKS, STEP_TOKENS

from controller.adapters.vllm.engine import VllmEngine
from controller.core.load.cached_prefixes import PrefixNames
from controller.core.load.freeness import freeness
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceSnapshot, blocks_for
from controller.ports.engine import Frames
from tests.contract.moving import message

Add = Callable[..., None]


@pytest.fixture
def add(engine: VllmEngine, model_path: Path) -> Add:
    """Adds a request with this many random prompt tokens, as an encoded message."""

    def add(
        request_id: str,
        num_prompt_tokens: int = 40,
        max_tokens: int = 5,
        *,
        frontend_index: int = 0,
        **options: Any,
    ) -> None:
        encoded = message(request_id, model_path, num_prompt_tokens, max_tokens, **options)
        engine.add(engine.prepare(encoded, frontend_index))

    return add


@pytest.mark.usefixtures("engine")
def test_it_leaves_no_port_open(opened_ports: set[tuple[int, int]]) -> None:
    """The listeners of process groups of one serve nobody (process_setup.py)."""
    assert opened_ports == set()


@pytest.mark.usefixtures("engine")
def test_it_leaves_no_thread_to_groups_of_one() -> None:
    """Only the groups of the world, whose backend vLLM keeps, have Gloo's threads: they wake a
    hundred times a second."""
    tasks = Path("/proc/self/task").iterdir()
    names = [(task / "comm").read_text().strip() for task in tasks]
    assert names.count("gloo_tcp_loop") <= 2


def look(engine: VllmEngine) -> InstanceSnapshot:
    """A snapshot, compared with vLLM's own state."""
    found = engine.snapshot("i-0", 7)
    scheduler = engine._core.scheduler
    requests = scheduler.requests.values()
    stats = scheduler.make_stats()
    queued = [r for r in requests if r.status.name in ("WAITING", "PREEMPTED")]
    running = [r for r in requests if r.status.name == "RUNNING"]
    held = {
        r.request_id: scheduler.kv_cache_manager.get_block_ids(r.request_id)[0] for r in requests
    }
    used = {block for blocks in held.values() for block in blocks}
    assert found.num_total_blocks == scheduler.cache_config.num_gpu_blocks - 1 == NUM_BLOCKS
    assert found.num_used_blocks == len(used)
    assert found.num_free_blocks == scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    assert found.num_used_blocks / NUM_BLOCKS == pytest.approx(stats.kv_cache_usage, abs=1e-6)
    assert found.watermark_blocks == scheduler.kv_cache_manager.watermark_blocks
    assert (found.num_running, found.num_queued) == scheduler.get_request_counts()
    assert (found.num_running, found.num_queued) == (len(running), len(queued))
    assert found.num_evicted_queued == sum(r.status.name == "PREEMPTED" for r in queued)
    assert sum(found.num_running_by_rank.values()) == found.num_running
    assert sum(found.num_queued_by_rank.values()) == found.num_queued
    assert found.queued_demand_blocks == sum(blocks_for(r.num_tokens, BLOCK_SIZE) for r in queued)
    assert all(held[r.request_id] == [] for r in queued), "a queued request holds no block"
    # A request is in prefill as long as tokens that are known were not computed.
    assert found.fill_blocks == sum(
        blocks_for(r.num_tokens, BLOCK_SIZE) - len(held[r.request_id])
        for r in running
        if r.num_computed_tokens < r.num_tokens - 1
    )
    return found


def finish(engine: VllmEngine) -> dict[str, list[int]]:
    """Tokens by request until nothing is left to do; every moment is checked."""
    tokens: dict[str, list[int]] = {}
    while engine.has_work():
        for out in engine.step():
            assert [e.request_id for e in out.emitted] == [o.request_id for o in out.body.outputs]
            for emitted, output in zip(out.emitted, out.body.outputs, strict=True):
                assert emitted.num_tokens == len(output.new_token_ids)
                assert (emitted.finish_reason is not None) == (output.finish_reason is not None)
                tokens.setdefault(emitted.request_id, []).extend(output.new_token_ids)
        look(engine)
    return tokens


def decode(engine: VllmEngine, out: Any) -> Any:
    return decoded(engine.encode(out.body))


def decoded(frames: Frames) -> Any:
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.serial_utils import MsgpackDecoder

    return MsgpackDecoder(EngineCoreOutputs).decode([bytes(frame) for frame in frames])


# -- what its prefix cache has --------------------------------------------------------------


def names_of(tokens: list[int], salt: str | None = None) -> list[int]:
    return list(PrefixNames(salt, None).within(len(tokens), lambda first, end: tokens[first:end]))


def test_the_prefixes_that_the_cache_has_are_told_until_it_loses_them(
    engine: VllmEngine, model_path: Path
) -> None:
    """By the names that frontends give them, through prompts, answers, salts, two copies of the
    same blocks, and evictions. vLLM's own search says what it has."""
    known: set[int] = set()
    texts: dict[str, tuple[list[int], str | None]] = {}

    def look_again() -> None:
        for name, is_cached in engine.take_cache_changes().items():
            (known.add if is_cached else known.remove)(name)
        expected = set()
        for text, salt in texts.values():
            encoded = message("look", model_path, prompt=[*text, 7], cache_salt=salt)
            num_cached = engine.moves.num_cached_tokens(engine.prepare(encoded, 0))
            expected |= {*names_of(text[:num_cached], salt)}
        assert known == expected

    def run(*added: tuple[str, list[int], str | None], max_tokens: int = 2) -> None:
        for request_id, prompt, salt in added:
            encoded = message(
                request_id, model_path, prompt=prompt, max_tokens=max_tokens, cache_salt=salt
            )
            engine.add(engine.prepare(encoded, 0))
        found = finish(engine)
        for request_id, prompt, salt in added:
            texts[request_id] = [*prompt, *found[request_id]][:-1], salt
        look_again()

    engine._core.scheduler.reset_prefix_cache()
    engine.take_cache_changes()
    dice = random.Random(3)
    one, other = ([dice.randrange(300, 2000) for _ in range(300)] for _ in range(2))
    run(("one", one[:250], None), max_tokens=20)
    assert known == {*names_of(texts["one"][0])}, "answers are cached too"
    run(("twin-1", other, None), ("twin-2", other, None))
    run(("salted", other, "salt"))
    assert len(known) == 2, "only so many fit"
    for number in range(6):
        run((f"more-{number}", [dice.randrange(300, 2000) for _ in range(70 * number + 50)], None))
    run(("one again", one[:250], None), max_tokens=20)
    assert {*names_of(texts["one"][0])} <= known
    engine._core.scheduler.reset_prefix_cache()
    look_again()
    assert known == set()


# -- what it is ---------------------------------------------------------------------------


def test_what_the_frontends_must_know(engine: VllmEngine, told: list[str]) -> None:
    assert (engine.max_model_len, engine.block_size) == (512, BLOCK_SIZE)
    assert engine.num_gpu_blocks == NUM_BLOCKS + 1
    assert "generate" in engine.supported_tasks
    assert told == ["importing vLLM", "loading the model", "warming up"]
    idle = look(engine)
    assert (idle.instance_id, idle.incarnation) == ("i-0", 7)
    assert freeness(idle, DEFAULT_LEVELS) == BLOCK_SIZE * NUM_BLOCKS
    assert not engine.has_work()


def test_an_engine_that_is_told_of_a_lost_worker_ends_though_it_is_idle(engine: VllmEngine) -> None:
    """The executor of several ranks, which watches its worker processes, tells it."""
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    assert "executor_fail_callback" in inspect.signature(EngineCore.__init__).parameters
    assert callable(MultiprocExecutor.register_failure_callback)
    engine._lost_worker.set()
    try:
        with pytest.raises(RuntimeError, match="a worker process of the engine died"):
            engine.has_work()
    finally:
        engine._lost_worker.clear()


# -- load ---------------------------------------------------------------------------------


def test_a_prefill_that_is_cut_says_what_it_will_still_take(engine: VllmEngine, add: Add) -> None:
    add("r", num_prompt_tokens=4 * STEP_TOKENS + 10)
    fills, free = [], []
    for _ in range(6):
        engine.step()
        now = look(engine)
        fills.append(now.fill_blocks)
        free.append(now.num_free_blocks)
    assert fills == [7, 5, 3, 1, 0, 0]
    assert [x - fill for x, fill in zip(free, fills, strict=True)] == [NUM_BLOCKS - 9] * 6


def test_the_queue_head_is_the_highest_rank_then_the_earliest(engine: VllmEngine, add: Add) -> None:
    waiting = [("late", 0, 9.0), ("first", 0, 1.0), ("high-late", 1, 8.0), ("high", 1, 7.0)]
    waiting += [("b-same", 0, 3.0), ("a-same", 0, 3.0)]
    for request_id, rank, arrival_s in waiting:
        add(request_id, 33, rank=rank, arrival_s=arrival_s)
    order = []
    for _ in waiting:
        now = look(engine)
        head = now.queue_head
        assert (head.demand_blocks, head.evicted) == (2, False)
        assert (head.request_id, head.rank, head.arrival_time_s) in waiting
        order.append(head.request_id)
        engine.abort([head.request_id])
    assert order == ["high", "high-late", "first", "a-same", "b-same", "late"]
    assert look(engine).queue_head is None


# -- eviction -----------------------------------------------------------------------------


def test_the_latest_arrival_of_the_lowest_rank_is_evicted_first(
    engine: VllmEngine, add: Add
) -> None:
    """Admissions and evictions are told in the order in which they happen."""
    num_before = look(engine).num_evictions
    arrivals = [("late", 0, 3.0), ("high", 1, 4.0), ("early", 0, 1.0), ("middle", 0, 2.0)]
    for request_id, rank, arrival_s in arrivals:
        add(request_id, 4 * BLOCK_SIZE, max_tokens=120, rank=rank, arrival_s=arrival_s)
    requests = dict(engine._scheduler.requests)
    engine.take_events()
    began_s = time.time()
    while engine.has_work():
        engine.step()
        now = look(engine)
        assert now.num_evictions - num_before == sum(r.num_preemptions for r in requests.values())
        if now.num_evicted_queued:
            assert now.queue_head is not None
            assert now.queue_head.evicted
            assert now.queue_head.demand_blocks > 4, "with the tokens made before"
    events = engine.take_events()
    assert engine.take_events() == []
    times_s = [began_s, *(event.time_s for event in events), time.time()]
    assert all(later > before - 1e-3 for before, later in pairwise(times_s))
    evicted = [event.request_id for event in events if event.kind == "evicted"]
    assert len(evicted) == look(engine).num_evictions - num_before > 0
    assert list(dict.fromkeys(evicted)) == ["late", "middle"][: len(set(evicted))]
    for request_id in requests:
        kinds = [event.kind for event in events if event.request_id == request_id]
        assert kinds == ["admitted", "evicted"] * (len(kinds) // 2) + ["admitted"]
    first, *_ = events
    assert (first.kind, first.request_id, first.num_tokens) == ("admitted", "high", 4 * BLOCK_SIZE)
    again = [e for e in events if e.kind == "admitted" and e.num_tokens > 4 * BLOCK_SIZE]
    assert again, "with the tokens made before"
    assert all(e.num_cached_tokens % BLOCK_SIZE == 0 for e in events)


# -- abort --------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [0, 1, 5, 12])
def test_abort_frees_all_blocks_at_once(engine: VllmEngine, add: Add, num_steps: int) -> None:
    """Of requests that wait, are in mid-prefill, and decode."""
    for n in range(3):
        add(f"r{n}", 150, max_tokens=50, arrival_s=float(n))
    for _ in range(num_steps):
        engine.step()
    engine.abort(["r0", "unknown"])
    assert look(engine).num_running + look(engine).num_queued == 2
    engine.abort(["r1", "r2", "r0"])
    now = look(engine)
    assert (now.num_free_blocks, now.num_running, now.num_queued) == (NUM_BLOCKS, 0, 0)
    stats: list[Any] = []
    while engine.has_work():
        for out in engine.step():
            assert out.emitted == ()
            stats.append(decode(engine, out).scheduler_stats)
    last = stats[-1]
    assert (last.num_running_reqs, last.num_waiting_reqs, last.kv_cache_usage) == (0, 0, 0.0)
    add("r0")
    assert len(finish(engine)["r0"]) == 5, "the id can be used again"


# -- the wire -----------------------------------------------------------------------------


def test_outputs_survive_the_wire_with_logprobs(engine: VllmEngine, add: Add) -> None:
    add("r", max_tokens=4, logprobs=3)
    tokens, last = [], None
    while engine.has_work():
        for out in engine.step():
            there = decode(engine, out)
            for mine, theirs in zip(out.body.outputs, there.outputs, strict=True):
                seen = (theirs.request_id, theirs.new_token_ids, theirs.finish_reason)
                assert seen == ("r", mine.new_token_ids, mine.finish_reason)
                assert theirs.new_logprobs.logprobs.shape == (1, 4)
                for a, b in zip(theirs.new_logprobs[:3], mine.new_logprobs[:3], strict=True):
                    assert (a == b).all()
                assert theirs.new_logprobs.logprob_token_ids[0, 0] == theirs.new_token_ids[0]
                tokens += theirs.new_token_ids
                last = theirs
    assert len(tokens) == 4
    assert last.finish_reason is not None


def test_outputs_do_not_carry_the_headers_of_a_trace(engine: VllmEngine, add: Add) -> None:
    """They are for attached servers."""
    add("traced", trace_headers={"traceparent": "00-ab-cd-01"})
    told = []
    while engine.has_work():
        told += [output.trace_headers for out in engine.step() for output in out.body.outputs]
    assert told == [None] * 5


def test_an_engine_at_rest_says_so_in_vllm_s_words(engine: VllmEngine) -> None:
    from vllm.v1.metrics.stats import SchedulerStats

    told = decoded(engine.encode_rest())
    assert (told.outputs, told.scheduler_stats) == ([], SchedulerStats())


def test_logprobs_can_be_cut_as_the_frontend_cuts_them() -> None:
    import numpy as np
    from vllm.v1.outputs import LogprobsLists

    ids = np.arange(12).reshape(4, 3)
    whole = LogprobsLists(ids, ids * 0.1, np.arange(4), None)
    cut = whole.slice_request(1, 3)
    assert (cut.logprob_token_ids == ids[1:]).all()
    assert (cut.sampled_token_ranks == np.arange(1, 4)).all()


def test_outputs_go_to_the_frontend_that_asked(engine: VllmEngine, add: Add) -> None:
    add("a", 10, frontend_index=0)
    add("b", 10, frontend_index=3)
    by_frontend: dict[int, set[str]] = {}
    while engine.has_work():
        for out in engine.step():
            ids = by_frontend.setdefault(out.frontend_index, set())
            ids.update(e.request_id for e in out.emitted)
    assert by_frontend == {0: {"a"}, 3: {"b"}}


def test_a_request_that_does_not_decode_is_a_value_error(engine: VllmEngine) -> None:
    for frames in ([b"\xc1"], [b"\x90"], [b"\x93\x01\x02\x03"], [b""]):
        with pytest.raises(ValueError, match=r".+"):
            engine.prepare(frames, 0)


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 7}])
def test_neither_a_cut_prefill_nor_an_eviction_changes_the_tokens(
    engine: VllmEngine, add: Add, sampling: dict[str, Any]
) -> None:
    """Seeded requests on a CPU need our help (worker_side.py)."""
    assert STEP_TOKENS < 150
    add("r", 150, max_tokens=110, **sampling)
    cut = finish(engine)["r"]
    engine._core.scheduler.reset_prefix_cache()
    add("r", 60, max_tokens=1, **sampling)  # its first tokens are cached: a smaller prefill
    finish(engine)
    before = look(engine).num_evictions
    add("r", 150, max_tokens=110, arrival_s=9.0, **sampling)
    for n in range(3):
        add(f"other{n}", 4 * BLOCK_SIZE, max_tokens=120, arrival_s=float(n), seed=n)
    tokens = finish(engine)
    assert look(engine).num_evictions > before
    assert tokens["r"] == cut


def test_each_phase_of_a_step_shows_what_has_happened_by_then(engine: VllmEngine, add: Add) -> None:
    """A new request and one that ends, in one step."""
    add("ends", num_prompt_tokens=20, max_tokens=2)
    engine.step()
    add("comes", num_prompt_tokens=20)
    seen: list[tuple[str, int, int, int]] = []

    def note(phase: str) -> None:
        found = engine.snapshot("i-0", 1)
        seen.append((phase, found.num_running, found.num_queued, found.num_used_blocks))

    engine.on_phase = note
    note("begin")
    engine.step()
    engine.on_phase = lambda phase: None
    blocks = blocks_for(20, BLOCK_SIZE)
    assert seen == [
        ("begin", 1, 1, blocks),
        ("after-schedule", 2, 0, 2 * blocks),
        ("after-update", 1, 0, blocks),
    ]
    finish(engine)


def test_a_status_tells_how_fast_prompts_are_computed_and_how_long_it_takes_yet(
    engine: VllmEngine, add: Add
) -> None:
    """By its own steps: chunks of prompts, then a prompt whose beginning is cached."""
    num_tokens = 8 * BLOCK_SIZE
    for number in range(2400 // num_tokens + 1):
        add(f"r{number}", num_tokens, max_tokens=2)
        finish(engine)
    found = look(engine)
    speed = found.prefill_speed
    assert found.backlog_s == 0.0
    began_s = time.perf_counter()
    add("long", max_tokens=1, prompt=range(400, 400 + num_tokens))
    expected_s = look(engine).backlog_s
    assert expected_s == pytest.approx(speed.time_s(0, num_tokens))
    engine.step()
    left_s = look(engine).backlog_s
    assert left_s == pytest.approx(engine._steps.prefill_speed().time_s(STEP_TOKENS, num_tokens))
    finish(engine)
    took_s = time.perf_counter() - began_s
    assert took_s / 5 < expected_s < took_s * 5
    add("again", max_tokens=1, prompt=range(400, 400 + num_tokens))
    again = look(engine)
    assert again.backlog_s == pytest.approx(
        again.prefill_speed.time_s(num_tokens - BLOCK_SIZE, num_tokens)
    ), "all but the last block is cached"
    finish(engine)
    assert look(engine).decode_step_s == 0.0, "nothing decodes"
