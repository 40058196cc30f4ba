"""KV blocks can move between two engines if and only if their fingerprints are equal.

The weights' identity is a sample of every parameter, in the form in which the engine computes
with it: a fine-tuned model differs from its origin in most elements of a parameter, if in any.
Reading all elements would take minutes on a large model. On CPU vLLM packs its matrices away and
leaves empty parameters behind; there the model's files are sampled too, or, for a model that is no
folder, its name and revision are taken. The folder's path does not count.

Touch points of vLLM: v1/worker/gpu_model_runner.py `get_model`, `kv_caches`, `device`;
config/model.py `model`, `revision`, `hf_text_config`, `dtype`, `quantization`; config/cache.py
`cache_dtype`, `block_size`, `get_resolved_kv_cache_layout`; config/parallel.py `world_size`;
model_executor/layers/utils.py `dispatch_cpu_unquantized_gemm`.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from controller.adapters.vllm.engine.parts import EngineParts

_SAMPLES = 256  # of each parameter, or file
_SAMPLE_BYTES = 64
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SAYS_NOTHING = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")


def fingerprint(parts: EngineParts) -> str:
    """In hex; empty for an engine whose blocks cannot move."""
    if parts.runner is None:
        return ""
    import vllm

    config = parts.core.vllm_config
    model = config.model_config.hf_text_config.to_dict()
    facts = {
        "vllm": vllm.__version__,
        "model": {key: value for key, value in model.items() if key not in _SAYS_NOTHING},
        "dtype": str(config.model_config.dtype),
        "quantization": str(config.model_config.quantization),
        "device": parts.runner.device.type,
        "layout": str(config.cache_config.get_resolved_kv_cache_layout()),
        "cache_dtype": str(config.cache_config.cache_dtype),
        "block_size": parts.block_size,
        "layers": [(str(c.dtype), list(c.shape[1:])) for c in parts.runner.kv_caches],
        "world_size": config.parallel_config.world_size,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for part in _weights(config.model_config, parts.runner.get_model()):
        digest.update(part)
    return digest.hexdigest()


def _weights(model_config: Any, model: Any) -> Iterator[bytes]:
    parameters = sorted(model.named_parameters())
    for name, parameter in parameters:
        yield f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode()
        yield _sample(parameter.detach())
    if all(parameter.numel() for _, parameter in parameters):
        return
    folder = Path(model_config.model)
    if not folder.is_dir():
        yield f"{model_config.model} {model_config.revision}".encode()
        return
    for file in sorted(folder.iterdir()):
        if file.suffix in _WEIGHTS:
            yield from _file_sample(file)


def _sample(parameter: Any) -> bytes:
    flat = parameter.flatten()
    step = max(1, flat.numel() // _SAMPLES)
    return bytes(flat[::step].contiguous().cpu().view(torch.uint8).numpy())


def _file_sample(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield f"{path.name} {size}".encode()
    with path.open("rb") as file:
        for offset in range(0, size, max(1, size // _SAMPLES)):
            file.seek(offset)
            yield file.read(_SAMPLE_BYTES)
