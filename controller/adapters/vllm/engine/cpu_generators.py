"""Seeded sampling on CPU when a prefill is cut in two.

A step that ends inside a prompt samples a token all the same and throws it away; vLLM then
turns the request's generator back by a CUDA offset (v1/worker/gpu_model_runner.py,
`_bookkeeping_sync`), which a CPU generator does not have: RuntimeError, and the engine is
dead. One client with a seed and a long prompt would end an instance. Here the state from
before the step is put back instead, so that a seed gives the same tokens cut or not.
"""

from typing import Any

import torch


class RewindableGenerators(dict[int, torch.Generator]):
    """Takes the place of an input batch's generators (index in the batch -> generator).

    vLLM looks one up by `get` to turn it back, or to move it to another index; samplers read
    items. (A speculative sampler would use `get` too: see `install`.)
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
        """Before a step: the state of every seeded request (5 KB each). Keeps hold of the
        generators too: by its address alone, one that the step makes could be taken for another
        that the step has thrown away."""
        self._before_step = {generator: generator.get_state() for generator in generators}


class _Rewind:
    """What `generator.set_offset(generator.get_offset() - 4)` is called on."""

    def __init__(self, generator: torch.Generator, before_step: torch.Tensor | None) -> None:
        self.plain = generator
        self._before_step = before_step

    def get_offset(self) -> int:
        return 0

    def set_offset(self, _offset: int) -> None:
        if self._before_step is not None:
            self.plain.set_state(self._before_step)
        else:  # made in this very step: its state was that of its seed
            self.plain.manual_seed(self.plain.initial_seed())


def install(model_runner: Any) -> RewindableGenerators:
    """Only for a CPU engine without speculative decoding."""
    generators = RewindableGenerators(model_runner.input_batch.generators)
    model_runner.input_batch.generators = generators
    return generators


def seeded(model_runner: Any) -> list[torch.Generator]:
    """The generators of all its requests, in the batch or evicted."""
    requests = model_runner.requests.values()
    return [request.generator for request in requests if request.generator is not None]
