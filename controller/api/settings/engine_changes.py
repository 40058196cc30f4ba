"""Engine arguments that a rolling restart may change, and why it refuses the others.

While it goes on, requests move from engines with the old arguments to engines with the new ones,
and the frontends keep those that they were started with. So an argument may change only if the KV
blocks of both engines are alike (controller/adapters/vllm/engine/fingerprint.py) and no frontend
goes by it.

Touch points of vLLM: engine/arg_utils.py `AsyncEngineArgs`.
"""

_BLOCKS = "requests move only between engines whose KV blocks are alike, and these would not be"
_MODEL = "requests go on only on an engine of the model on which they began"
_FRONTENDS = "the frontends accept requests by it, and are not started anew"
_OTHERS = "the frontends may go by it, and are not started anew"

CHANGEABLE = frozenset(
    {
        # How many requests a step runs, and how long it may be.
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "long_prefill_token_threshold",
        "enable_chunked_prefill",
        "scheduler_reserve_full_isl",
        "async_scheduling",
        "watermark",
        # How many KV blocks there are, and whether they are kept for later requests.
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "num_gpu_blocks_override",
        "enable_prefix_caching",
        # How a step is computed.
        "enforce_eager",
        "compilation_config",
        "optimization_level",
        "performance_mode",
        "cudagraph_capture_sizes",
        "max_cudagraph_capture_size",
        "disable_cascade_attn",
        "disable_custom_all_reduce",
        "enable_flashinfer_autotune",
        # How weights are read, and what is counted.
        "safetensors_load_strategy",
        "max_parallel_loading_workers",
        "use_tqdm_on_load",
        "disable_log_stats",
        "cudagraph_metrics",
        "kv_cache_metrics",
    }
)
"""vLLM's."""

EMULATED = frozenset({"mode", "prefix_caching", "speed", "num_blocks"})
"""Keys of `[emulated]`."""

WHY_NOT = {
    "profile": _BLOCKS,
    "model": _MODEL,
    "model_weights": _MODEL,
    "revision": _MODEL,
    "code_revision": _MODEL,
    "hf_config_path": _MODEL,
    "hf_overrides": _MODEL,
    "load_format": _MODEL,
    "dtype": _BLOCKS,
    "quantization": _BLOCKS,
    "quantization_config": _BLOCKS,
    "attention_backend": _BLOCKS,
    "attention_config": _BLOCKS,
    "block_size": _BLOCKS,
    "kv_cache_dtype": _BLOCKS,
    "kv_cache_dtype_skip_layers": _BLOCKS,
    "disable_hybrid_kv_cache_manager": _BLOCKS,
    "tensor_parallel_size": _BLOCKS,
    "pipeline_parallel_size": _BLOCKS,
    "prefill_context_parallel_size": _BLOCKS,
    "decode_context_parallel_size": _BLOCKS,
    "max_model_len": _FRONTENDS,
}


def why_not(name: str) -> str:
    """Why a rolling restart does not change an argument that is not to be changed."""
    return WHY_NOT.get(name, _OTHERS)
