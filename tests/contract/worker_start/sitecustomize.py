"""Runs at the start of the worker processes of an engine with vLLM's second model runner, whose
PYTHONPATH has this folder: each worker needs what the engine's process has."""

import sys
from pathlib import Path

if any("spawn_main" in argument for argument in sys.orig_argv):
    sys.path.insert(0, str(Path(__file__).parents[3]))  # no other entry need have the tests
    from tests.contract import second_runner

    second_runner.prepare()
    second_runner.complete()
    second_runner.widen_the_sampler()
