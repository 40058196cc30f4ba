"""Real engines for all contract tests; after each of them they must be as empty as before. What
fails names the touch points with vLLM that it went through.

Where torch sees a GPU they run there (`make test-gpu`): with 16-bit floats and FlashAttention, as
served models do, and with kernels whose results do not depend on what else is in the batch, so that
tokens can be compared. LLUMCTL_TEST_DTYPE=float32 takes Triton's attention instead.
LLUMCTL_TEST_ASYNC=1 schedules each step while the one before it runs.

Tests with the fixture `readers` run on two engines of each of vLLM's model runners; those on the
second runner are marked `full`.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before vLLM is imported

from collections.abc import Collection, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from controller.adapters.embedded_model import ensure
from controller.adapters.vllm import process_setup
from controller.adapters.vllm.engine import VllmEngine
from controller.adapters.vllm.process_setup import listeners
from tests.contract import ranks, second_runner, touch_points
from tests.contract.moving import THOUGHTS, Readers
from tests.contract.second_runner import Runner

ON_GPU = torch.cuda.is_available()
if ON_GPU:
    os.environ["VLLM_BATCH_INVARIANT"] = "1"
process_setup.prepare()
os.environ[second_runner.VARIABLE] = "0"  # unless a test chooses the second runner
second_runner.prepare()

BLOCK_SIZE = 32
NUM_BLOCKS = 24
STEP_TOKENS = 64
DTYPE = os.environ.get("LLUMCTL_TEST_DTYPE", "bfloat16" if ON_GPU else "float32")
BLOCK_BYTES = BLOCK_SIZE * (4096 if DTYPE == "float32" else 2048)
UNCACHED = {
    "enable_prefix_caching": False,
    "kv_cache_memory_bytes": (NUM_BLOCKS + 7) * BLOCK_BYTES,
    "max_num_seqs": 6,
}
"""An engine without a prefix cache, with another number of blocks and of places in the batch."""
OF_ITS_KIND: dict[str, dict[str, Any]] = {
    "V1": {},
    "V2": {},
    "ranks": {
        "tensor_parallel_size": 2,
        "kv_cache_memory_bytes": (NUM_BLOCKS + 1) * BLOCK_BYTES // 2,
    },
}


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    second_runner.complete()  # here, because all engines need a model
    return ensure(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def engine_args(model_path: Path) -> dict[str, Any]:
    """Small enough for evictions, and with steps small enough to cut prefills."""
    return {
        "model": str(model_path),
        "served_model_name": "embedded",
        "block_size": BLOCK_SIZE,
        "max_model_len": 512,
        "max_num_seqs": 8,
        "max_num_batched_tokens": STEP_TOKENS,
        "kv_cache_memory_bytes": (NUM_BLOCKS + 1) * BLOCK_BYTES,
        "dtype": DTYPE,
        "enforce_eager": True,
        "async_scheduling": os.environ.get("LLUMCTL_TEST_ASYNC") == "1",
        "scheduling_policy": "priority",
        "reasoning_config": THOUGHTS,
    }


@pytest.fixture(scope="session")
def told() -> list[str]:
    return []


@pytest.fixture(scope="session")
def opened_ports() -> set[tuple[int, int]]:
    """Ports that the session's engine left open."""
    return set()


@pytest.fixture(scope="session")
def session_engine(
    engine_args: dict[str, Any], told: list[str], opened_ports: set[tuple[int, int]]
) -> Iterator[VllmEngine]:
    before = listeners()
    engine = VllmEngine(engine_args, told.append)
    opened_ports |= listeners() - before
    yield engine
    engine.shutdown()


@pytest.fixture
def engine(session_engine: VllmEngine) -> Iterator[VllmEngine]:
    yield session_engine
    empty(session_engine)


@pytest.fixture(scope="session")
def session_uncached_engine(
    session_engine: VllmEngine, engine_args: dict[str, Any]
) -> Iterator[VllmEngine]:
    """A second engine in this process. It goes first: an engine that shuts down takes vLLM's
    process groups with it."""
    del session_engine  # made before this one
    engine = VllmEngine(engine_args | UNCACHED, lambda _: None)
    yield engine
    engine._core.model_executor.shutdown()


@pytest.fixture
def uncached_engine(session_uncached_engine: VllmEngine) -> Iterator[VllmEngine]:
    yield session_uncached_engine
    empty(session_uncached_engine)


@pytest.fixture(scope="session")
def session_rank_engines(
    session_engine: VllmEngine, engine_args: dict[str, Any]
) -> Iterator[tuple[VllmEngine, VllmEngine]]:
    """Like the first two engines, but each divides its KV heads between two worker processes."""
    del session_engine  # made before these
    args = engine_args | OF_ITS_KIND["ranks"]
    kv_bytes = {"kv_cache_memory_bytes": (NUM_BLOCKS + 7) * BLOCK_BYTES // 2}
    engines = (
        VllmEngine(args, lambda _: None),
        VllmEngine(args | UNCACHED | kv_bytes, lambda _: None),
    )
    yield engines
    for engine in engines:
        engine.moves.close()
        engine._core.model_executor.shutdown()


@pytest.fixture(scope="session")
def session_v2_engines(
    session_engine: VllmEngine, engine_args: dict[str, Any]
) -> Iterator[tuple[VllmEngine, VllmEngine]]:
    """Like the first two engines, but they run vLLM's second model runner."""
    if second_runner.MISSING:
        pytest.skip("Triton is not installed, which runs the second model runner")
    del session_engine  # made before these
    with second_runner.chosen("V2"):
        engines = (
            VllmEngine(engine_args, lambda _: None),
            VllmEngine(engine_args | UNCACHED, lambda _: None),
        )
    yield engines
    for engine in engines:
        engine._core.model_executor.shutdown()


@pytest.fixture(scope="session")
def session_cached_engines(
    request: pytest.FixtureRequest, session_engine: VllmEngine, engine_args: dict[str, Any]
) -> Iterator[tuple[VllmEngine, VllmEngine]]:
    """Two engines with a prefix cache, of the first model runner unless a test names another kind
    (`on_engines`)."""
    kind = getattr(request, "param", "V1")
    fixtures = {"V2": "session_v2_engines", "ranks": "session_rank_engines"}
    first = request.getfixturevalue(fixtures[kind])[0] if kind in fixtures else session_engine
    with second_runner.chosen("V2" if kind == "V2" else "V1"):
        second = VllmEngine(engine_args | OF_ITS_KIND[kind], lambda _: None)
    yield first, second
    second.moves.close()
    second._core.model_executor.shutdown()


def on_engines(kinds: Iterable[str], on_all: Collection[str]) -> pytest.MarkDecorator:
    """Parametrizes a test with kinds of requests and of engines. `make test` tries all requests on
    the first model runner, and those of `on_all` on the second one, too."""
    return pytest.mark.parametrize(
        ("session_cached_engines", "kind"),
        [
            pytest.param(engines, kind, marks=() if is_usual else pytest.mark.full)
            for engines in OF_ITS_KIND
            for kind in kinds
            for is_usual in [engines == "V1" or (engines == "V2" and kind in on_all)]
        ],
        indirect=["session_cached_engines"],
        scope="session",  # or the engines would be made for each test
    )


@pytest.fixture
def cached_engines(
    session_cached_engines: tuple[VllmEngine, VllmEngine],
) -> Iterator[tuple[VllmEngine, VllmEngine]]:
    yield session_cached_engines
    for engine in session_cached_engines:
        empty(engine)


@pytest.fixture(params=["V1", pytest.param("V2", marks=pytest.mark.full)])
def runner(request: pytest.FixtureRequest) -> Runner:
    """The model runner of the engines of `readers`."""
    found: Runner = request.param
    return found


@pytest.fixture
def pair(request: pytest.FixtureRequest, runner: Runner) -> Iterator[tuple[VllmEngine, VllmEngine]]:
    names = ("session_engine", "session_uncached_engine")
    found = (
        request.getfixturevalue("session_v2_engines")
        if runner == "V2"
        else tuple(request.getfixturevalue(name) for name in names)
    )
    yield found
    for engine in found:
        empty(engine)


@pytest.fixture
def readers(model_path: Path, pair: tuple[VllmEngine, VllmEngine]) -> Readers:
    return Readers(model_path, *pair)


def empty(engine: VllmEngine) -> None:
    """Ends the requests that are left, and looks for what is lost: pins, reservations, blocks,
    places in the batch, the worker's memory of requests."""
    scheduler = engine._scheduler
    engine.abort(list(scheduler.requests))
    moves = engine.moves
    left = [*moves._pins, *moves._arrivals]
    for request_id in left:
        moves.unpin(request_id)
        moves.cancel(request_id)
    assert not left, "pins or reservations are left"
    assert not moves._suspended
    while engine.has_work():
        engine.step()
    quiet = engine.snapshot("i-0", 1)
    assert quiet.num_free_blocks == quiet.num_total_blocks, "blocks are lost"
    assert (quiet.num_running, quiet.num_queued, quiet.queue_head) == (0, 0, None)
    assert all(block.ref_cnt == 0 for block in engine._pool.blocks if not block.is_null)
    assert not scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
    assert scheduler.max_num_active_reqs == engine.max_num_running, "places are lost"
    assert not scheduler.deferred_waiting
    assert not any(ranks.remembered(engine)), "a worker remembers requests"
    assert scheduler.reset_prefix_cache()  # a test may have left wrong content in it


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None:
        places = [(Path(entry.path), str(entry.statement)) for entry in call.excinfo.traceback]
        points = touch_points.behind(places, item.path)
        lines = "\n".join(f"vllm/{path}: {name}" for path, name in points)
        if lines:
            report.sections.append(("touch points with vLLM that may have changed", lines))
    return report
