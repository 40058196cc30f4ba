"""vLLM's arguments that llumctl refuses, and those that a rolling restart may change; each of the
others with the reason.

vLLM has no arguments but the refused ones and those that llumctl offers
(tests/contract/test_vllm_endpoint_options.py).

Touch points of vLLM: entrypoints/launchers/cli_args.py `FrontendArgs`; engine/arg_utils.py
`AsyncEngineArgs`.
"""

_LOGS = "prompts and answers are in no log of llumctl's"
_DOORS = "it opens routes to every client; operators use llumctl's control API"
_SERVED_BY_US = "llumctl's frontends serve HTTP"
_CLIENT_CODE = "a client may send neither code nor settings of the server"
_NOT_OFFERED = "llumctl does not offer it"
_TELEMETRY = "llumctl sends nothing anywhere; /metrics tells what there is to tell"

REFUSED = {
    # These log prompts or answers.
    "enable_log_requests": _LOGS,
    "enable_log_outputs": _LOGS,
    "enable_log_deltas": _LOGS,
    "max_log_len": _LOGS,
    "log_error_stack": _LOGS,
    "log_level": f"at DEBUG vLLM writes prompts, and {_LOGS}",
    "logging_config": f"it may name code, and {_LOGS}",
    "log_config_file": f"it may name code, and {_LOGS}",
    # These take keys where other users of the machine see them.
    "api_key": "keys are in a file of mode 0600: set endpoint.api_key_file",
    "hf_token": "set HF_TOKEN in the environment, or: hf auth login",
    # These open a door.
    "enable_scale_out": _DOORS,
    "tokens_only": _DOORS,
    "enable_tokenizer_info_endpoint": _DOORS,
    "enable_server_load_tracking": "llumctl's status and /metrics tell the load",
    "enable_fault_tolerance": _DOORS,
    "fault_tolerance_config": _DOORS,
    "profiler_config": _DOORS,
    "weight_transfer_config": _DOORS,
    "kv_events_config": "it publishes the tokens of prompts on a port that anybody may read",
    "tool_server": "it lets the server run tools, and code, by itself",
    "trust_request_chat_template": _CLIENT_CODE,
    "trust_request_mm_kwargs": _CLIENT_CODE,
    "middleware": "it is code in front of the endpoint; put a proxy there",
    "otlp_traces_endpoint": _TELEMETRY,
    "collect_detailed_traces": _TELEMETRY,
    # llumctl does these itself.
    "model": "give it as MODEL: llumctl up MODEL",
    "served_model_name": "set endpoint.served_model_name",
    "host": "set endpoint.host",
    "port": "set endpoint.port",
    "uds": "set endpoint.host and endpoint.port",
    "config": "use llumctl's own configuration file",
    "headless": "llumctl runs the engines",
    "api_server_count": "set cluster.frontends",
    "grpc": "only the OpenAI API is served",
    "grpc_port": "only the OpenAI API is served",
    "uvicorn_log_level": _SERVED_BY_US,
    "disable_uvicorn_access_log": f"{_SERVED_BY_US}, and write no access log",
    "disable_access_log_for_endpoints": f"{_SERVED_BY_US}, and write no access log",
    "h11_max_incomplete_event_size": f"{_SERVED_BY_US} with limits of their own",
    "h11_max_header_count": f"{_SERVED_BY_US} with limits of their own",
    "dp_supervisor_probe_interval_s": "llumctl balances its engines itself",
    "dp_supervisor_probe_timeout_s": "llumctl balances its engines itself",
    "dp_supervisor_probe_failure_threshold": "llumctl balances its engines itself",
    "scheduler_cls": "llumctl hooks the scheduler for migration",
    "scheduling_policy": "llumctl's priorities need the priority policy",
    "distributed_executor_backend": "llumctl hosts the engine in a Ray actor",
    "worker_cls": "llumctl extends the worker for migration",
    "worker_extension_cls": "llumctl extends the worker for migration",
    "kv_transfer_config": "llumctl moves KV blocks itself",
    "nnodes": "an instance lives on one machine",
    "node_rank": "an instance lives on one machine",
    "master_addr": "an instance lives on one machine",
    "master_port": "an instance lives on one machine",
    # These have no use here.
    "lora_modules": _NOT_OFFERED,
    "enable_per_request_metrics": "llumctl requests and /metrics tell a request's times",
    "cohere_format": "set cohere_format in endpoint.default_chat_template_kwargs",
    "cohere_is_reasoning_model": _NOT_OFFERED,
    "anthropic_disabled_thinking_effort": _NOT_OFFERED,
    "enable_offline_docs": _NOT_OFFERED,
    "enable_flash_late_interaction": _NOT_OFFERED,
}
REFUSED_PREFIX = "data_parallel"


def why_refused(name: str) -> str:
    """Why llumctl refuses the argument; empty if it does not."""
    if name.startswith(REFUSED_PREFIX):
        return "llumctl runs one engine per instance and balances them"
    return REFUSED.get(name, "")


_BLOCKS = "requests move only between engines whose KV blocks are alike, and these would not be"
_MODEL = "requests go on only on an engine of the model on which they began"
_FRONTENDS = "the frontends accept requests by it, and are not started anew"
_OTHERS = "the frontends may go by it, and are not started anew"

# While a rolling restart goes on, requests move from engines with the old arguments to engines with
# the new ones, and the frontends keep those that they were started with. So an argument may change
# only if the KV blocks of both engines are alike (controller/adapters/vllm/worker_side.py)
# and no frontend goes by it.
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

CHANGEABLE_EMULATED = frozenset({"mode", "prefix_caching", "speed", "num_blocks"})
"""Keys of `[emulated]`."""

WHY_NOT_CHANGED = {
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


def why_not_changed(name: str) -> str:
    """Why a rolling restart does not change an argument that is not to be changed."""
    return WHY_NOT_CHANGED.get(name, _OTHERS)
