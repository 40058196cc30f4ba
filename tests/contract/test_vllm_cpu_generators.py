"""Generators that a step turns back (worker_side.py)."""

import torch

from controller.adapters.vllm.worker_side import RewindableGenerators


def test_a_new_generator_is_not_taken_for_one_that_was_thrown_away() -> None:
    """Within a step the worker forgets a request and meets another one, whose generator may lie
    where the first generator lay in memory."""
    generators = RewindableGenerators({})
    generators.in_bookkeeping = True
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
