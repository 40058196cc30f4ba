"""An engine of several ranks, whose workers are processes of their own.

In a process of its own, which vLLM's executor ends children of: two ranks of the small model on the
CPU. One of them is killed while the engine is idle.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.environment import AT_START

ENGINE = """
import json, os, signal, sys, time

from controller.adapters.vllm.engine.engine import VllmEngine

if __name__ == "__main__":
    engine = VllmEngine(json.loads(sys.argv[1]), lambda detail: None)
    assert not engine.has_work()
    os.kill(engine._core.model_executor.workers[1].proc.pid, signal.SIGKILL)
    deadline_s = time.monotonic() + 30.0
    try:
        while time.monotonic() < deadline_s:
            engine.has_work()
            time.sleep(0.01)
    except RuntimeError as error:
        print(f"noticed: {error}")
    engine.shutdown()
"""


@pytest.mark.full
def test_a_worker_that_dies_while_the_engine_is_idle_is_noticed(
    engine_args: dict[str, Any], tmp_path: Path
) -> None:
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    args = engine_args | {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(args)],
        env=AT_START | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "noticed: a worker process of the engine died" in done.stdout, done.stderr[-3000:]
