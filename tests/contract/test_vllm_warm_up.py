"""After its start an engine serves the first request of each kind as fast as the second."""

import itertools
import os
import random
from pathlib import Path
from typing import Any

import torch
from test_vllm_moves import KINDS as MOVED_KINDS

from controller.adapters.vllm.engine import VllmEngine, warm_up
from controller.ports.engine import Frames
from tests.contract.moving import message

KINDS: dict[str, dict[str, Any]] = MOVED_KINDS | {
    "sampled": {"temperature": 0.8},
    "min-p": {"temperature": 0.8, "min_p": 0.1},
    "grammar": {"guided": {"grammar": 'root ::= "a" | "b"'}},
    "minimum of tokens": {"min_tokens": 3, "stop_token_ids": [9]},
    "a long prompt": {"num_prompt_tokens": 400},
}
# A step of the second request takes some 10 ms; the compiler took 2.4 s and more. In CPU time of
# this process and of the compilers that it waited for, as others may use the machine.
MAX_FIRST_S = 0.5
MAX_RATIO = 20


def used_s() -> float:
    return sum(os.times()[:4])


def slowest_s(engine: VllmEngine, frames: Frames) -> float:
    """The longest time for which this request kept the engine's thread, or its process's loop."""
    times_s = [used_s()]
    engine.add(engine.prepare(frames, 0))
    times_s.append(used_s())
    while engine.has_work():
        engine.step()
        times_s.append(used_s())
    return max(after - before for before, after in itertools.pairwise(times_s))


def test_the_first_request_of_each_kind_stalls_nobody(engine: VllmEngine, model_path: Path) -> None:
    """As in a new process: what other tests had compiled is dropped, and the start's part is
    done."""
    torch._dynamo.reset()
    manager = engine._core.structured_output_manager
    manager.backend = None
    warm_up(engine._core, engine._core.vllm_config)
    for kind, sampling in KINDS.items():
        first_s, second_s = [
            slowest_s(engine, message(f"{nth} {kind}", model_path, max_tokens=5, **sampling))
            for nth in ("first", "second")
        ]
        assert first_s < max(MAX_FIRST_S, MAX_RATIO * second_s), (kind, first_s, second_s)


def test_warming_up_leaves_no_trace(engine: VllmEngine, told: list[str]) -> None:
    assert "warming up" in told
    core = engine._core
    assert core.structured_output_manager.backend is not None
    core.structured_output_manager.backend = None
    engine.take_events()  # of other tests
    before = engine.snapshot("i-0", 1), torch.get_rng_state().tolist(), random.getstate()
    warm_up(core, core.vllm_config)
    after = engine.snapshot("i-0", 1), torch.get_rng_state().tolist(), random.getstate()
    assert after == before
    assert core.structured_output_manager.backend is not None
    assert not engine.has_work()
    assert not engine.take_events()
