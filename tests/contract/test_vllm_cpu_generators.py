"""Generators that a step turns back (worker_side.py)."""

import torch

from controller.adapters.vllm.worker_side import RewindableGenerators


def test_a_new_generator_is_not_taken_for_one_that_was_thrown_away() -> None:
    """Within a step the worker forgets a request and meets another one, whose generator may lie
    where the first generator lay in memory."""
    generators = RewindableGenerators({})
    for seed in range(20):
        left = torch.Generator()
        left.manual_seed(999)
        generators.remember([left])
        del left
        met = torch.Generator()
        met.manual_seed(seed)
        at_first = met.get_state()
        torch.rand(1, generator=met)
        generators[0] = met
        turned_back = generators.get(0)
        turned_back.set_offset(turned_back.get_offset() - 4)
        assert torch.equal(met.get_state(), at_first)


def test_one_that_was_there_before_the_step_goes_back_to_then() -> None:
    generator = torch.Generator()
    generator.manual_seed(3)
    torch.rand(5, generator=generator)
    generators = RewindableGenerators({0: generator})
    before = generator.get_state()
    generators.remember([generator])
    torch.rand(1, generator=generator)
    generators[1] = generators.get(0)  # to another index of the batch
    generators.get(1).set_offset(generators.get(1).get_offset() - 4)
    assert torch.equal(generator.get_state(), before)
    assert type(dict.get(generators, 1)) is torch.Generator
