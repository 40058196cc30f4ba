"""Seeded sampling on CPU when a prefill is cut in two.

A step that ends inside a prompt samples a token all the same and throws it away; vLLM then
turns the request's generator back by a CUDA offset (v1/worker/gpu_model_runner.py,
`_bookkeeping_sync`), which a CPU generator does not have: the RuntimeError ends the engine, so
that one client with a seed and a long prompt could end an instance. Here the state from before
the step is put back instead, so that a seed gives the same tokens whether a prefill is cut or not.

Touch points of vLLM: v1/worker/gpu_model_runner.py `execute_model`, `requests`, `input_batch`;
v1/worker/gpu_input_batch.py `generators`.
"""

from typing import Any

import torch


class RewindableGenerators(dict[int, torch.Generator]):
    """Takes the place of an input batch's generators (index in the batch -> generator).

    vLLM calls `get` to turn a generator back, or to move it to another index; samplers read
    items. (A speculative sampler would call `get` too: see `install`.)
    """

    def __init__(self, generators: dict[int, torch.Generator]) -> None:
        super().__init__(generators)
        self._before_step: dict[torch.Generator, torch.Tensor] = {}

    def get(self, index: int, default: Any = None) -> Any:
        generator = super().get(index)
        if generator is None:
            return default
        return _Rewind(generator, self._before_step.get(generator))

    def __setitem__(self, index: int, generator: Any) -> None:
        plain = generator.plain if isinstance(generator, _Rewind) else generator
        super().__setitem__(index, plain)

    def remember(self, generators: list[torch.Generator]) -> None:
        """Called before a step: keeps every seeded request's state (5 KB each), and the generators
        too, so that no generator made in the step can get the address of one dropped in it."""
        self._before_step = {generator: generator.get_state() for generator in generators}


class _Rewind:
    """vLLM calls `generator.set_offset(generator.get_offset() - 4)` on this."""

    def __init__(self, generator: torch.Generator, before_step: torch.Tensor | None) -> None:
        self.plain = generator
        self._before_step = before_step

    def get_offset(self) -> int:
        return 0

    def set_offset(self, _offset: int) -> None:
        if self._before_step is not None:
            self.plain.set_state(self._before_step)
        else:  # the generator was made in this very step
            self.plain.manual_seed(self.plain.initial_seed())


def install(worker: Any) -> None:
    """Runs in each worker's process. Only for a CPU engine without speculative decoding."""
    runner = worker.model_runner
    generators = RewindableGenerators(runner.input_batch.generators)
    runner.input_batch.generators = generators
    execute = runner.execute_model

    def remembering(*args: Any, **kwargs: Any) -> Any:
        generators.remember(_seeded(runner))
        return execute(*args, **kwargs)

    runner.execute_model = remembering


def _seeded(model_runner: Any) -> list[torch.Generator]:
    """Generators of all seeded requests, in the batch or evicted."""
    requests = model_runner.requests.values()
    return [request.generator for request in requests if request.generator is not None]
