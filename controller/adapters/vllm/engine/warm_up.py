"""Makes vLLM compile and load before the engine serves what it would at the first use.

A first request with log probabilities compiled a kernel in the middle of a step, and its neighbours
waited: for 2.4 s with a warm compiler's cache, for 26 s with a cold one. vLLM's own warm-up leaves
that kernel out. The first structured output makes the backend: 15 ms for the embedded model's 4,096
tokens, longer with a larger vocabulary. All other first uses (sampling, penalties, biases, seeds,
long prompts) were measured and took a step's time.

No request runs: nothing is left in the scheduler, the caches, the statistics or the generators.

Touch points of vLLM: v1/executor/abstract.py `collective_rpc`; v1/engine/core.py
`preprocess_add_request`; v1/worker/gpu_model_runner.py `sampler`, `device`; v1/sample/sampler.py
`Sampler.gather_logprobs`; v1/structured_output/__init__.py `grammar_init`, `backend`;
config/vllm.py `structured_outputs_config`; config/structured_outputs.py `backend`.
"""

import logging
import os
from typing import Any

log = logging.getLogger(__name__)

# vLLM's choice where a request and the configuration make none.
USUAL_BACKEND = "xgrammar"


def compile_nothing_on_cpu() -> None:
    """Call it before vLLM's engine is imported, if the user wants eager mode. vLLM compiles a few
    functions even then; on a CPU that gains nothing and needs a C++ compiler."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        os.environ["TORCHDYNAMO_DISABLE"] = "1"


def warm_up(core: Any, config: Any) -> None:
    if config.model_config.runner_type != "generate":
        return
    core.model_executor.collective_rpc(
        compile_logprobs, args=(config.model_config.get_vocab_size(),)
    )
    if (
        core.structured_output_manager.backend is None
        and not config.model_config.skip_tokenizer_init
    ):
        _make_grammar_backend(core, config.structured_outputs_config.backend)


def compile_logprobs(worker: Any, vocab_size: int) -> None:
    """Runs in each worker's process. One batch size is enough, as vLLM compiles for any size."""
    import torch

    runner = worker.model_runner
    gather = getattr(getattr(runner, "sampler", None), "gather_logprobs", None)
    if gather is None:  # another generation of model runner, with another sampler
        return
    with torch.inference_mode():
        logprobs = torch.zeros((2, vocab_size), dtype=torch.float32, device=runner.device)
        gather(logprobs, 1, torch.zeros(2, dtype=torch.int64, device=runner.device))


def _make_grammar_backend(core: Any, backend: str) -> None:
    """Makes the backend by preparing a request that is never added."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.engine import EngineCoreRequest

    wanted = StructuredOutputsParams(regex="a")
    wanted._backend = USUAL_BACKEND if backend == "auto" else backend
    request = EngineCoreRequest(
        request_id="warm-up",
        prompt_token_ids=[0],
        mm_features=None,
        sampling_params=SamplingParams(max_tokens=1, structured_outputs=wanted),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    try:
        core.preprocess_add_request(request)
    except Exception as error:  # the backend cannot use this tokenizer: requests will be told
        log.warning("no structured outputs were warmed up: %s", error)
