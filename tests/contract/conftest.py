"""One real engine for all contract tests; after each of them it must be as empty as before."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before vLLM is imported

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.adapters.embedded_model import ensure
from controller.adapters.vllm import environment
from controller.adapters.vllm.engine import VllmEngine

environment.prepare()

BLOCK_SIZE = 32
NUM_BLOCKS = 24
STEP_TOKENS = 64
BLOCK_BYTES = BLOCK_SIZE * 4096


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def engine_args(model_path: Path) -> dict[str, Any]:
    """Small enough for evictions, a step small enough to cut prefills."""
    return {
        "model": str(model_path),
        "served_model_name": "embedded",
        "block_size": BLOCK_SIZE,
        "max_model_len": 512,
        "max_num_seqs": 8,
        "max_num_batched_tokens": STEP_TOKENS,
        "kv_cache_memory_bytes": (NUM_BLOCKS + 1) * BLOCK_BYTES,
        "dtype": "float32",
        "enforce_eager": True,
        "scheduling_policy": "priority",
    }


@pytest.fixture(scope="session")
def told() -> list[str]:
    return []


@pytest.fixture(scope="session")
def session_engine(engine_args: dict[str, Any], told: list[str]) -> Iterator[VllmEngine]:
    engine = VllmEngine(engine_args, told.append)
    yield engine
    engine.shutdown()


@pytest.fixture
def engine(session_engine: VllmEngine) -> Iterator[VllmEngine]:
    yield session_engine
    session_engine.abort(list(session_engine._scheduler.requests))
    while session_engine.has_work():
        session_engine.step()
    quiet = session_engine.snapshot("i-0", 1)
    assert quiet.num_free_blocks == quiet.num_total_blocks == NUM_BLOCKS, "blocks are lost"
    assert (quiet.num_running, quiet.num_queued, quiet.queue_head) == (0, 0, None)
