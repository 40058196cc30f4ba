"""What vLLM declares of its engine arguments and its parsers.

`make vllm-arguments` writes this file. The value of an argument is checked against its type by
pydantic. A table is a class of vLLM's configuration; each of its keys may be left out.

Touch points of vLLM: engine/arg_utils.py `AsyncEngineArgs`; tool_parsers/__init__.py
`ToolParserManager`; reasoning/__init__.py `ReasoningParserManager`.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict


@with_config(ConfigDict(extra="forbid"))
class IrOpPriorityConfig(TypedDict, total=False):
    rms_norm: Any
    fused_add_rms_norm: Any
    gelu_and_mul_sparse: Any


@with_config(ConfigDict(extra="forbid"))
class EPLBConfig(TypedDict, total=False):
    window_size: Annotated[int, Field(gt=0)]
    step_interval: Annotated[int, Field(gt=0)]
    num_redundant_experts: Annotated[int, Field(ge=0)]
    log_balancedness: bool
    log_balancedness_interval: Annotated[int, Field(gt=0)]
    use_async: bool
    policy: Literal["default"]
    communicator: Literal["torch_nccl", "torch_gloo", "torch_xccl", "nixl", "pynccl"] | None
    enable_migration_batching: bool


@with_config(ConfigDict(extra="forbid"))
class QuantizationConfigArgs(TypedDict, total=False):
    linear: Any
    moe: Any
    ignore: list[str]
    targets: Any


@with_config(ConfigDict(extra="forbid"))
class StructuredOutputsConfig(TypedDict, total=False):
    backend: Literal["auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer"]
    disable_any_whitespace: bool
    disable_additional_properties: bool
    reasoning_parser: str
    reasoning_parser_plugin: str
    enable_in_reasoning: bool


@with_config(ConfigDict(extra="forbid"))
class AuxOutputConfig(TypedDict, total=False):
    enable_return_routed_experts: bool
    max_bytes: Annotated[int, Field(gt=0)] | None


@with_config(ConfigDict(extra="forbid"))
class DynamicShapesConfig(TypedDict, total=False):
    type: Any
    evaluate_guards: bool
    assume_32_bit_indexing: bool


@with_config(ConfigDict(extra="forbid"))
class CompilationConfig(TypedDict, total=False):
    mode: Any
    debug_dump_path: str | None
    cache_dir: str
    compile_cache_save_format: Literal["binary", "unpacked"]
    backend: str
    custom_ops: list[str]
    ir_enable_torch_wrap: bool | None
    splitting_ops: list[str] | None
    compile_mm_encoder: bool
    cudagraph_mm_encoder: bool
    encoder_cudagraph_token_budgets: list[int]
    encoder_cudagraph_max_vision_items_per_batch: int
    encoder_cudagraph_max_frames_per_batch: int | None
    cudagraph_decoder_replay: bool
    decoder_replay_cudagraph_capture_sizes: list[int]
    decoder_replay_trim_threshold: Annotated[int, Field(ge=0)]
    compile_sizes: list[int | str] | None
    compile_ranges_endpoints: list[int] | None
    inductor_compile_config: dict[Any, Any]
    inductor_passes: dict[str, str]
    cudagraph_mode: Any
    cudagraph_num_of_warmups: int
    cudagraph_capture_sizes: list[int] | None
    cudagraph_copy_inputs: bool
    cudagraph_specialize_lora: bool
    use_inductor_graph_partition: bool | None
    pass_config: Any
    max_cudagraph_capture_size: int | None
    dynamic_shapes_config: DynamicShapesConfig
    fast_moe_cold_start: bool | None


@with_config(ConfigDict(extra="forbid"))
class HiSparseConfig(TypedDict, total=False):
    device_buffer_size: Annotated[int, Field(gt=0)] | None
    eager_host_mirror: bool


@with_config(ConfigDict(extra="forbid"))
class AttentionConfig(TypedDict, total=False):
    backend: Any
    minimax_m3_msa_decode_backend: Literal["triton", "cutlass"]
    backend_per_kind: Any
    flash_attn_version: Literal[2, 3, 4] | None
    flash_attn_max_num_splits_for_cuda_graph: int
    tokenspeed_mla_min_split_kv: Annotated[int, Field(ge=1, le=256)]
    tq_max_kv_splits_for_cuda_graph: int
    use_trtllm_attention: bool | None
    disable_flashinfer_q_quantization: bool
    mla_prefill_backend: Any
    use_prefill_query_quantization: bool
    indexer_kv_dtype: Literal["auto", "bf16", "fp8", "mxfp4", "nvfp4"]
    indexer_sparse_logits: bool
    hisparse_config: HiSparseConfig | None
    use_non_causal: bool
    sparse_mla_force_mqa: bool
    sparse_mla_prefill_workspace_factor: Annotated[int, Field(ge=2)] | None
    flex_attn_block_m: int | None
    flex_attn_block_n: int | None
    flex_attn_q_block_size: int | None
    flex_attn_kv_block_size: int | None


@with_config(ConfigDict(extra="forbid"))
class EngramConfig(TypedDict, total=False):
    cpu_offload: bool
    embedding_across_dp: bool
    dp_shared_memory: bool | None
    use_thp: bool


@with_config(ConfigDict(extra="forbid"))
class MambaConfig(TypedDict, total=False):
    backend: Any
    enable_stochastic_rounding: bool
    stochastic_rounding_philox_rounds: int
    ssu_algorithm: Literal["auto", "simple", "vertical", "horizontal"] | None


@with_config(ConfigDict(extra="forbid"))
class KernelConfig(TypedDict, total=False):
    ir_op_priority: IrOpPriorityConfig
    enable_flashinfer_autotune: bool | None
    enable_rocm_segmented_attn_autotune: bool
    enable_cutedsl_warmup: bool
    enable_jit_warmup: bool
    moe_backend: Any
    sparse_indexer_topk_backend: Any
    linear_backend: Any
    linear_backend_per_quant: Annotated[dict[str, Literal["auto", "cutlass", "flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_trtllm", "flashinfer_cudnn", "flashinfer_b12x", "b12x", "marlin", "humming", "triton", "deep_gemm", "torch", "aiter", "machete", "fbgemm", "conch", "exllama", "emulation", "xpu", "xpu_woq"]], Field(min_length=1)] | None


@with_config(ConfigDict(extra="forbid"))
class ProfilerConfig(TypedDict, total=False):
    profiler: Literal["torch", "cuda", "proton"] | None
    torch_profiler_dir: str
    torch_profiler_activities: Annotated[list[Literal["CPU", "CUDA", "PrivateUse1", "XPU"]], Field(min_length=1)] | None
    proton_profiler_dir: str
    proton_context: Literal["shadow", "python"]
    proton_data: Literal["tree", "trace"]
    proton_backend: Literal["cupti"] | None
    proton_mode: str | None
    proton_hook: Literal["triton"] | None
    proton_output_format: Literal["hatchet", "hatchet_msgpack", "chrome_trace"] | None
    proton_graph_attribution: bool
    torch_profiler_with_stack: bool
    torch_profiler_with_flops: bool
    torch_profiler_use_gzip: bool
    torch_profiler_dump_cuda_time_total: bool
    torch_profiler_record_shapes: bool
    torch_profiler_with_memory: bool
    capture_torch_profiler: bool
    detailed_trace_annotation: bool
    ignore_frontend: bool
    delay_iterations: Annotated[int, Field(ge=0)]
    max_iterations: Annotated[int, Field(ge=0)]
    warmup_iterations: Annotated[int, Field(ge=0)]
    active_iterations: Annotated[int, Field(ge=1)]
    wait_iterations: Annotated[int, Field(ge=0)]


@with_config(ConfigDict(extra="forbid"))
class LoggingConfig(TypedDict, total=False):
    log_level: Literal["CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET"]
    formatter: Literal["text", "json"]
    configure_logging: bool
    pylogging_config_file: str | None


@with_config(ConfigDict(extra="forbid"))
class KVTransferConfig(TypedDict, total=False):
    kv_connector: str | None
    engine_id: str | None
    kv_buffer_device: str
    kv_role: Literal["kv_producer", "kv_both", "kv_consumer"] | None
    kv_port: int
    kv_connector_extra_config: dict[str, Any]
    kv_connector_module_path: str | None
    enable_permute_local_kv: bool
    kv_load_failure_policy: Literal["recompute", "fail"]


@with_config(ConfigDict(extra="forbid"))
class KVEventsConfig(TypedDict, total=False):
    enable_kv_cache_events: bool
    publisher: Literal["null", "zmq"] | None
    endpoint: str
    replay_endpoint: str | None
    buffer_steps: int
    hwm: int
    max_queue_size: int
    topic: str


@with_config(ConfigDict(extra="forbid"))
class ECTransferConfig(TypedDict, total=False):
    ec_connector: str | None
    engine_id: str | None
    ec_buffer_device: str | None
    ec_buffer_size: float
    ec_role: Literal["ec_producer", "ec_both", "ec_consumer"] | None
    ec_ip: str
    ec_port: int
    ec_connector_extra_config: dict[str, Any]
    ec_connector_module_path: str | None


@with_config(ConfigDict(extra="forbid"))
class EncoderCacheManagerConfig(TypedDict, total=False):
    encoder_cache_manager_cls: str | None
    manager_config: dict[str, Any]


@with_config(ConfigDict(extra="forbid"))
class ReasoningConfig(TypedDict, total=False):
    reasoning_parser: str
    reasoning_start_str: str
    reasoning_end_str: str


@with_config(ConfigDict(extra="forbid"))
class FaultToleranceConfig(TypedDict, total=False):
    engine_recovery_timeout_sec: int


@with_config(ConfigDict(extra="forbid"))
class WeightTransferConfig(TypedDict, total=False):
    backend: Literal["nccl", "ipc", "sparse_nccl", "sharded_rdt", "nccl_m2n"] | str


ARGUMENTS: dict[str, Any] = {
    "additional_config": dict[str, Any],
    "aggregate_engine_logging": bool,
    "all2all_backend": Literal["naive", "pplx", "deepep_high_throughput", "deepep_low_latency", "deepep_v2", "mori_high_throughput", "mori_low_latency", "moonep", "nixl_ep", "allgather_reducescatter", "flashinfer_all2allv", "flashinfer_nvlink_two_sided", "flashinfer_nvlink_one_sided", "passthrough"],
    "allow_deprecated_quantization": bool,
    "allowed_local_media_path": str,
    "allowed_media_domains": list[str] | None,
    "async_scheduling": bool | None,
    "attention_backend": Any,
    "attention_config": AttentionConfig,
    "aux_output_config": AuxOutputConfig,
    "block_size": Annotated[int, Field(gt=0)] | None,
    "code_revision": str | None,
    "collect_detailed_traces": list[Literal["model", "worker", "all"]] | None,
    "compilation_config": CompilationConfig,
    "config_format": str,
    "convert": Literal["auto", "none", "embed", "classify"],
    "cp_kv_cache_interleave_size": int | None,
    "cpu_distributed_timeout_seconds": int | None,
    "cpu_offload_gb": Annotated[float, Field(ge=0)],
    "cpu_offload_params": set[str],
    "cudagraph_capture_sizes": list[int] | None,
    "cudagraph_metrics": bool,
    "custom_histogram_buckets": Any,
    "data_parallel_address": str | None,
    "data_parallel_backend": Literal["ray", "mp"],
    "data_parallel_external_lb": bool,
    "data_parallel_hybrid_lb": bool,
    "data_parallel_multi_port_external_lb": bool,
    "data_parallel_rank": int | None,
    "data_parallel_rpc_port": int | None,
    "data_parallel_size": Annotated[int, Field(ge=1)],
    "data_parallel_size_local": int | None,
    "data_parallel_start_rank": int | None,
    "dbo_decode_token_threshold": Annotated[int, Field(ge=0)],
    "dbo_prefill_token_threshold": Annotated[int, Field(ge=0)],
    "dcp_comm_backend": Literal["ag_rs", "a2a"] | None,
    "dcp_kv_cache_interleave_size": int,
    "dcp_q_replicate": bool | None,
    "decode_context_parallel_size": Annotated[int, Field(ge=1)],
    "default_mm_loras": dict[str, str] | None,
    "device_ids": list[int | str] | None,
    "diffusion_config": dict[str, Any] | None,
    "disable_cascade_attn": bool | None,
    "disable_chunked_mm_input": bool,
    "disable_custom_all_reduce": bool,
    "disable_hybrid_kv_cache_manager": bool | None,
    "disable_log_stats": bool,
    "disable_nccl_for_dp_synchronization": bool | None,
    "disable_sliding_window": bool,
    "distributed_executor_backend": str | Literal["ray", "mp", "uni", "external_launcher"] | None,
    "distributed_timeout_seconds": int | None,
    "download_dir": str | None,
    "dp_sync_interval": Annotated[int, Field(ge=1)],
    "dtype": Literal["auto", "half", "float16", "bfloat16", "float", "float32"],
    "ec_manager_config": EncoderCacheManagerConfig,
    "ec_transfer_config": ECTransferConfig | None,
    "elastic_ep_max_dp_size": Annotated[int, Field(ge=1)] | None,
    "enable_batch_sharded_sampling": bool | None,
    "enable_chunked_prefill": bool | None,
    "enable_cumem_allocator": bool,
    "enable_dbo": bool,
    "enable_elastic_ep": bool,
    "enable_ep_weight_filter": bool,
    "enable_eplb": bool,
    "enable_expert_parallel": bool,
    "enable_fault_tolerance": bool,
    "enable_flashinfer_autotune": bool | None,
    "enable_hc_sp": bool,
    "enable_layerwise_nvtx_tracing": bool,
    "enable_log_requests": bool,
    "enable_logging_iteration_details": bool,
    "enable_lora": bool,
    "enable_mamba_cache_stochastic_rounding": bool,
    "enable_mamba_shared_prefix_checkpoint": bool,
    "enable_mfu_metrics": bool,
    "enable_mixed_moe_lora_format": bool,
    "enable_mm_embeds": bool | None,
    "enable_mm_processor_stats": bool,
    "enable_moe_shared_loras": bool,
    "enable_nccl_comm_suspend": bool,
    "enable_prefix_caching": bool | None,
    "enable_prompt_embeds": bool,
    "enable_return_routed_experts": bool,
    "enable_shm_tensor_arena": bool,
    "enable_sleep_mode": bool,
    "enable_tower_connector_lora": bool,
    "enable_trace_replay": bool,
    "enforce_eager": bool,
    "engram_config": EngramConfig | None,
    "eplb_config": EPLBConfig,
    "expert_placement_strategy": Literal["linear", "round_robin"],
    "fail_on_environ_validation": bool,
    "fault_tolerance_config": FaultToleranceConfig,
    "fully_sharded_loras": bool,
    "gdn_prefill_backend": Literal["flashinfer", "triton", "cutedsl", "aiter_flydsl"] | None,
    "generation_config": str,
    "gpu_memory_utilization": Annotated[float, Field(gt=0, le=1)],
    "hf_config_path": str | None,
    "hf_overrides": dict[str, Any],
    "hf_token": bool | str | None,
    "ignore_patterns": str | list[str],
    "interleave_mm_strings": bool | None,
    "io_processor_plugin": str | None,
    "ir_op_priority": IrOpPriorityConfig,
    "jit_monitor_mode": Literal["warn", "error"],
    "jit_monitor_verbose": bool,
    "kda_decode_backend": Literal["auto", "native", "flashinfer", "triton"] | None,
    "kda_prefill_backend": Literal["auto", "triton", "flashkda", "flashinfer", "fused"] | None,
    "kernel_config": KernelConfig,
    "kv_cache_dtype": Literal["auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla", "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "ultraquant_4bit", "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "nvfp4_4over6"],
    "kv_cache_dtype_skip_layers": list[str],
    "kv_cache_memory_bytes": int | None,
    "kv_cache_metrics": bool,
    "kv_cache_metrics_sample": Annotated[float, Field(gt=0, le=1)],
    "kv_events_config": KVEventsConfig | None,
    "kv_offloading_backend": Literal["native", "lmcache"],
    "kv_offloading_size": float | None,
    "kv_sharing_fast_prefill": bool,
    "kv_transfer_config": KVTransferConfig | None,
    "language_model_only": bool,
    "limit_mm_per_prompt": dict[str, int | dict[str, int]] | None,
    "linear_backend": Any,
    "load_format": str,
    "log_config_file": str | None,
    "log_level": Literal["CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET"] | None,
    "logging_config": LoggingConfig | None,
    "logits_processors": list[str] | None,
    "logprobs_mode": Literal["raw_logits", "raw_logprobs", "processed_logits", "processed_logprobs"],
    "long_prefill_token_threshold": Annotated[int, Field(ge=0)],
    "long_prefill_token_threshold_adaptive": bool,
    "lora_dtype": str | None,
    "lora_target_modules": list[str] | None,
    "mamba_backend": Any,
    "mamba_block_size": Annotated[int, Field(gt=0)] | None,
    "mamba_cache_dtype": Literal["auto", "float32", "float16", "bfloat16"],
    "mamba_cache_mode": Literal["align", "none"],
    "mamba_cache_philox_rounds": int,
    "mamba_config": MambaConfig,
    "mamba_ssm_cache_dtype": Literal["auto", "float32", "float16", "bfloat16"],
    "mamba_ssu_algorithm": Literal["auto", "simple", "vertical", "horizontal"] | None,
    "master_addr": str,
    "master_port": int,
    "max_cpu_loras": int | None,
    "max_cudagraph_capture_size": int | None,
    "max_logprobs": Annotated[int, Field(ge=-1)],
    "max_lora_cls_labels": Annotated[int, Field(ge=1)] | None,
    "max_lora_rank": Literal[1, 8, 16, 32, 64, 128, 256, 320, 512],
    "max_loras": Annotated[int, Field(ge=1)],
    "max_model_len": Annotated[int, Field(ge=-1)] | None,
    "max_num_active_seqs": Annotated[int, Field(ge=1)] | None,
    "max_num_batched_tokens": Annotated[int, Field(ge=1)] | None,
    "max_num_queued_reqs": Annotated[int, Field(ge=0)] | None,
    "max_num_queued_tokens": Annotated[int, Field(ge=0)] | None,
    "max_num_scheduled_tokens": Annotated[int, Field(ge=1)] | None,
    "max_num_seqs": Annotated[int, Field(ge=1)] | None,
    "max_parallel_loading_workers": Annotated[int, Field(ge=1)] | None,
    "media_io_kwargs": dict[str, dict[str, Any]] | None,
    "mm_device_do_normalize": bool | None,
    "mm_encoder_attn_backend": Any,
    "mm_encoder_attn_dtype": str | None,
    "mm_encoder_fp8_scale_path": str | None,
    "mm_encoder_fp8_scale_save_margin": float | None,
    "mm_encoder_fp8_scale_save_path": str | None,
    "mm_encoder_only": bool | None,
    "mm_encoder_tp_mode": Literal["weights", "data"] | None,
    "mm_hasher_algorithm": Literal["blake3", "sha256", "sha512"] | None,
    "mm_ipc_gpu_memory_gb": float | None,
    "mm_processor_cache_gb": float | None,
    "mm_processor_cache_type": Literal["shm", "lru"] | None,
    "mm_processor_device": str | None,
    "mm_processor_kwargs": dict[str, Any] | None,
    "mm_shm_cache_max_object_size_mb": int | None,
    "mm_tensor_ipc": Literal["direct_rpc", "torch_shm"] | None,
    "model": str,
    "model_class_overrides": dict[str, str],
    "model_impl": str,
    "model_loader_extra_config": dict[Any, Any],
    "model_weights": str,
    "moe_backend": Any,
    "nnodes": Annotated[int, Field(ge=1)],
    "node_rank": Annotated[int, Field(ge=0)],
    "num_gpu_blocks_override": int | None,
    "numa_bind": bool,
    "numa_bind_cpus": list[str] | None,
    "numa_bind_nodes": list[int] | None,
    "offload_backend": str,
    "offload_group_size": Annotated[int, Field(ge=0)],
    "offload_num_in_group": Annotated[int, Field(ge=1)],
    "offload_params": set[str],
    "offload_prefetch_step": Annotated[int, Field(ge=0)],
    "optimization_level": Any,
    "otlp_traces_endpoint": str | None,
    "override_generation_config": dict[str, Any],
    "per_request_spec_decode_metrics": Literal["none", "summary", "detailed"],
    "performance_mode": Literal["balanced", "interactivity", "throughput"],
    "pipeline_parallel_size": Annotated[int, Field(ge=1)],
    "pooler_config": dict[str, Any] | None,
    "prefill_context_parallel_size": Annotated[int, Field(ge=1)],
    "prefill_schedule_interval": Annotated[int, Field(ge=1)],
    "prefix_cache_retention_interval": Annotated[int, Field(ge=0)] | None,
    "prefix_caching_hash_algo": Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"],
    "prefix_match_unit": Annotated[int, Field(gt=0)] | None,
    "profiler_config": ProfilerConfig,
    "pt_load_map_location": str | dict[str, str],
    "quantization": Any,
    "quantization_config": dict[str, Any] | QuantizationConfigArgs | None,
    "ray_workers_use_nsight": bool,
    "reasoning_config": ReasoningConfig | None,
    "reasoning_parser": str,
    "reasoning_parser_plugin": str | None,
    "renderer_num_workers": int,
    "replayssm_buffer_len": Annotated[int, Field(gt=0)],
    "return_sampling_mask": bool,
    "revision": str | None,
    "runner": Literal["auto", "generate", "pooling", "draft"],
    "safetensors_load_strategy": Literal["lazy", "eager", "prefetch", "torchao"] | None,
    "safetensors_prefetch_block_size": Annotated[int, Field(ge=1)],
    "safetensors_prefetch_num_threads": Annotated[int, Field(ge=1)],
    "scheduler_cls": str | None,
    "scheduler_reserve_full_isl": bool,
    "scheduling_policy": Literal["fcfs", "priority"],
    "seed": int,
    "served_model_name": str | list[str] | None,
    "show_hidden_metrics_for_version": str | None,
    "shutdown_timeout": Annotated[int, Field(ge=0)],
    "skip_mm_profiling": bool | None,
    "skip_tokenizer_init": bool,
    "sleep_mode_offload_cudagraph": bool,
    "sleep_preserve_parameter_names": list[str],
    "sparse_indexer_topk_backend": Any,
    "spec_method": str | None,
    "spec_model": str | None,
    "spec_tokens": int | None,
    "specialize_active_lora": bool,
    "speculative_config": dict[str, Any] | None,
    "stream_interval": Annotated[int, Field(ge=1)],
    "structured_outputs_config": StructuredOutputsConfig,
    "swa_bounded_replay": bool,
    "tensor_parallel_size": Annotated[int, Field(ge=1)],
    "tokenizer": str | None,
    "tokenizer_mode": Literal["auto", "hf", "mistral", "deepseek_v32", "deepseek_v4", "inkling", "kimi_k3", "cohere"] | str,
    "tokenizer_revision": str | None,
    "tokens_only": bool,
    "trust_remote_code": bool,
    "ubatch_size": Annotated[int, Field(ge=0)],
    "use_fp64_gumbel": bool,
    "use_replayssm": bool,
    "use_tqdm_on_load": bool,
    "video_pruning_method": str | None,
    "video_pruning_rate": float | None,
    "watermark": Annotated[float, Field(ge=0.0, lt=1.0)],
    "watermark_config": dict[str, Any] | None,
    "weight_transfer_config": WeightTransferConfig | None,
    "worker_cls": str,
    "worker_extension_cls": str,
}
TOOL_PARSERS = frozenset(["apertus", "cohere_command3", "cohere_command4", "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "deepseek_v41", "dots", "ernie45", "functiongemma", "gemma4", "gigachat3", "glm45", "glm47", "granite", "granite-20b-fc", "granite4", "hermes", "hf", "hunyuan_a13b", "hy_v3", "hy_v4", "inkling", "internlm", "jamba", "k2_horizon", "kimi_k2", "kimi_k3", "lfm2", "ling3", "llama3_json", "llama4_json", "llama4_pythonic", "longcat", "mimo", "minicpm5", "minimax_m2", "minimax_m3", "mistral", "muse_glimmer", "olmo3", "openai", "phi4_mini_json", "plamo3", "poolside_v1", "pythonic", "qwen3_coder", "qwen3_json", "qwen3_xml", "seed_oss", "step3", "step3p5", "xlam"])
REASONING_PARSERS = frozenset(["cohere_command3", "cohere_command4", "deepseek_r1", "deepseek_v3", "deepseek_v4", "deepseek_v41", "ernie45", "gemma4", "glm45", "glm47", "granite", "granite_thinking_parser", "hf", "holo2", "hunyuan_a13b", "hy_v3", "hy_v4", "inkling", "k2_horizon", "kimi_k2", "kimi_k3", "ling3", "mimo", "minicpmv", "minimax_m2", "minimax_m2_append_think", "minimax_m3", "mistral", "muse_glimmer", "nemotron_v3", "olmo3", "openai_gptoss", "plamo3", "poolside_v1", "qwen3", "seed_oss", "step3", "step3p5"])
