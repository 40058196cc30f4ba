"""What vLLM's sampler draws from a seeded request's generator for a token. A replay draws as much
beforehand (worker_side.py `drawn_generator`, decision 0033).
"""

from types import SimpleNamespace

import pytest
import torch

from controller.adapters.vllm import worker_side
from tests.contract import second_runner

VOCAB_SIZE = 515
"""Not a width that kernels prefer."""
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("sampling", ["plain", "top_k and top_p"])
@pytest.mark.parametrize("noise", ["usual", "without the kernel", "64 bit"])
@pytest.mark.parametrize("num_tokens", [1, 6])
def test_as_much_as_is_drawn_forward(num_tokens: int, noise: str, sampling: str) -> None:
    from vllm.platforms import current_platform
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    second_runner.complete()  # the first runner's sampler does not use Triton on a CPU
    current_platform.import_kernels()  # an engine's import does so: `_C.fused_gumbel_argmax`
    sampler = TopKTopPSampler(use_fp64_gumbel=noise == "64 bit")
    if noise == "without the kernel":
        sampler.forward = sampler.forward_native
    runner = SimpleNamespace(
        device=DEVICE,
        sampler=SimpleNamespace(topk_topp_sampler=sampler),
        input_batch=SimpleNamespace(vocab_size=VOCAB_SIZE),
    )
    worker = SimpleNamespace(model_runner=runner)
    drawn = torch.Generator(device=DEVICE)
    drawn.manual_seed(7)
    k = p = None
    if sampling != "plain":
        k = torch.full((3,), 40, device=DEVICE)
        p = torch.full((3,), 0.9, device=DEVICE)
    others = torch.Generator(device=DEVICE)
    for n in range(num_tokens):
        others.manual_seed(n)
        logits = torch.randn((3, VOCAB_SIZE), device=DEVICE, generator=others)
        sampler(logits, {1: drawn, 2: others}, k, p)
    forward = worker_side.drawn_generator(worker, 7, num_tokens)
    assert forward == bytes(drawn.get_state().numpy())
