"""Reads and sets what the model runner remembers of a request between steps.

The first version of vLLM's model runner learns of a request with its first step; later it gets only
changes, and never outputs. So a request that arrives with outputs is registered here beforehand, as
if it had run in this worker and had had no turn in the last step.

Touch points of vLLM: v1/worker/gpu_model_runner.py `requests`, `input_batch`, `device`,
`uses_mrope`, `_init_mrope_positions`, `_update_states`; v1/worker/gpu_input_batch.py
`CachedRequestState`, `InputBatch.remove_request`, `vocab_size`; sampling_params.py
`SamplingType.RANDOM_SEED`; v1/sample/ops/topk_topp_sampler.py `forward`, `forward_cpu`,
`random_sample`, `use_fp64_gumbel`.
"""

from typing import Any

import torch


def is_seeded(request: Any) -> bool:
    from vllm.sampling_params import SamplingType

    return bool(request.sampling_params.sampling_type == SamplingType.RANDOM_SEED)


def generator_state(runner: Any, request_id: str) -> bytes | None:
    """5 KB on CPU, 16 bytes on CUDA. None if the request is not seeded or the worker does not know
    it."""
    known = runner.requests.get(request_id)
    if known is None or known.generator is None:
        return None
    return bytes(known.generator.get_state().numpy())


def generator_from(runner: Any, request: Any, state: bytes | None) -> torch.Generator | None:
    """Raises ValueError if the state cannot be this request's generator's."""
    if (state is not None) != is_seeded(request):
        raise ValueError("a generator's state belongs to a seeded request, and to no other")
    if state is None:
        return None
    generator = torch.Generator(device=runner.device)
    generator.manual_seed(request.sampling_params.seed)
    try:
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    except RuntimeError as error:
        raise ValueError(f"not the state of a {runner.device.type} generator") from error
    return generator


def drawn_generator(runner: Any, request: Any, num_tokens: int) -> torch.Generator | None:
    """A seeded request's generator after so many tokens, for each of which the sampler draws once:
    on CPU a seed for its kernel, elsewhere and with 64-bit noise a row of noise as wide as the
    vocabulary. None if the request is not seeded."""
    if not is_seeded(request):
        return None
    generator = torch.Generator(device=runner.device)
    generator.manual_seed(request.sampling_params.seed)
    sampler = runner.sampler.topk_topp_sampler
    wide = sampler.use_fp64_gumbel
    if sampler.forward == sampler.forward_cpu and not wide:
        torch.randint(0, 2**31, (num_tokens,), generator=generator)
        return generator
    noise = torch.empty(
        runner.input_batch.vocab_size,
        dtype=torch.float64 if wide else torch.float32,
        device=runner.device,
    )
    for _ in range(num_tokens):
        noise.exponential_(generator=generator)
    return generator


def register(
    runner: Any, request: Any, block_ids: tuple[int, ...], generator: torch.Generator | None
) -> None:
    from vllm.v1.worker.gpu_input_batch import CachedRequestState

    leave_batch(runner, request.request_id)
    known = CachedRequestState(
        req_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        mm_features=[],
        sampling_params=request.sampling_params,
        generator=generator,
        block_ids=(list(block_ids),),
        num_computed_tokens=request.num_computed_tokens,
        output_token_ids=list(request.output_token_ids),
        lora_request=request.lora_request,
    )
    if runner.uses_mrope:
        runner._init_mrope_positions(known)
    runner.requests[request.request_id] = known


def leave_batch(runner: Any, request_id: str) -> None:
    """Removes the request's row. Without that, a request that comes back before the worker's next
    step would find its old row, with the blocks of then. The next step closes the gap."""
    with torch.inference_mode():  # as in a step: the mask of allowed tokens belongs to it
        runner.input_batch.remove_request(request_id)
