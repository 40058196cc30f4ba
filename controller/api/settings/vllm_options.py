"""vLLM's options. First the options of the endpoint that llumctl offers: keys of `[endpoint]` and
flags of `up`. Then the arguments that llumctl refuses, the arguments that a rolling restart may
change, and for every other argument the reason why it may not. Contract test:
tests/contract/test_vllm_endpoint_options.py.

Each field has the name, the choices and the default of vLLM's argument. This is the only list:
settings, flags, help, schema and the frontends follow it. A class is a section of `llumctl up
--help`, named by its docstring; a field's docstring is its help. Every argument of vLLM's frontend
is either offered or refused.

Touch points of vLLM: entrypoints/cli/serve.py `make_arg_parser`; engine/arg_utils.py
`AsyncEngineArgs`.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_serializer

from controller.api.settings import PYTHON
from controller.api.settings.table import Table


def words(value: object) -> object:
    """Parses an array of words, or a text with commas between words, which is the form that a
    variable has."""
    if isinstance(value, str):
        found = tuple(word.strip() for word in value.split(",") if word.strip())
        if not found:  # this is rather an empty variable in a script than a wish for an empty list
            raise ValueError("it names nothing")
        return found
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise ValueError("it must be an array of strings")
    return tuple(value)


def _from_json(value: object) -> object:
    """Parses a table that a flag or a variable has as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"it must be a table, written as JSON: {error}") from None


Words = Annotated[tuple[str, ...], BeforeValidator(words)]
Code = "code"
"""Marks a field that names code: only a private configuration file may set it."""
ENGINE_CODE = (
    "compilation_config.backend",
    "compilation_config.inductor_passes",
    "io_processor_plugin",
    "logits_processors",
    "model_class_overrides",
    "structured_outputs_config.reasoning_parser_plugin",
)
"""vLLM's engine arguments, and keys of their tables, that name code."""


class SamplingDefaults(Table):
    """Sampling parameters of requests that give none. None: the model's own value, else vLLM's.

    vLLM takes these names (config/model.py `get_diff_sampling_param`), and its sampling_params.py
    has the bounds.
    """

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None

    @model_serializer
    def _said(self) -> dict[str, Any]:
        """Leaves None out, as TOML has no null. The type is Any because float would turn 7 into
        7.0, which vLLM refuses."""
        return {name: value for name, value in self if value is not None}


class ToolOptions(Table):
    """Tools and reasoning"""

    tool_call_parser: str | None = None
    """Which of vLLM's parsers reads tool calls out of the model's text, such as hermes."""
    enable_auto_tool_choice: bool | None = None
    """Whether the model may call tools by itself; by default if there is a tool-call parser."""
    exclude_tools_when_tool_choice_none: bool = False
    """Leave tools out of the prompt of a request that chose none."""
    tool_strict_level: Literal["auto", "function", "parameter"] = "auto"
    """Which part of a tool call a grammar enforces: auto (as requested), function, parameter."""
    tool_parser_plugin: Annotated[str | None, Code] = None
    """A Python file with tool-call parsers of your own."""
    reasoning_parser: str | None = None
    """Which of vLLM's parsers takes the reasoning out of the model's text, such as qwen3."""
    reasoning_parser_plugin: Annotated[str | None, Code] = None
    """A Python file with reasoning parsers of your own."""


class TemplateOptions(Table):
    """Chat templates"""

    chat_template: str | None = None
    """A file with the chat template (Jinja) to use instead of the model's."""
    chat_template_content_format: Literal["auto", "string", "openai"] = "auto"
    """How a template gets a message's content: auto, string, or openai (a list of parts)."""
    default_chat_template_kwargs: Annotated[dict[str, Any], BeforeValidator(_from_json)] = Field(
        default_factory=dict
    )
    """Arguments that templates get in addition to the messages, as JSON; a request's own win."""
    response_role: Annotated[str, Field(min_length=1)] = "assistant"
    """The role in answers."""


class AnswerOptions(Table):
    """Answers"""

    generation_config: Annotated[str, Field(min_length=1)] = "auto"
    """Sampling defaults: auto (the model's own), vllm (vLLM's), or a folder that has them."""
    override_generation_config: Annotated[SamplingDefaults, BeforeValidator(_from_json)] = (
        SamplingDefaults()
    )
    """Sampling defaults that override these, as JSON: '{"temperature": 0.7}'."""
    enable_force_include_usage: bool = False
    """Tell the usage in every answer, in streams too."""
    enable_prompt_tokens_details: bool = False
    """Tell in the usage how many of the prompt's tokens were cached."""
    enable_request_id_headers: bool = False
    """Name the request of every answer in X-Request-Id."""
    return_tokens_as_token_ids: bool = False
    """Write tokens in logprobs as token_id:N."""
    sse_keep_alive_interval: Annotated[int, Field(ge=0)] = 0
    """Send a comment on an idle stream every this many seconds; 0: never."""
    fingerprint_mode: Literal["full", "hash", "custom", "none"] = "full"
    """What system_fingerprint tells: full (version and layout), hash, custom or none."""
    fingerprint_value: str | None = None
    """The fingerprint of the mode custom."""


class BrowserOptions(Table):
    """Proxies and browsers"""

    root_path: str | None = None
    """The path under which a proxy shows the endpoint, such as /llm."""
    allowed_origins: Words = ()
    """Web pages that may use the endpoint: origins such as https://chat.example, or * for any."""
    allowed_methods: Words = ("*",)
    """HTTP methods that these pages may use."""
    allowed_headers: Words = ("*",)
    """Headers that these pages may send."""
    allow_credentials: bool = False
    """Whether browsers may send cookies along."""
    disable_fastapi_docs: bool = False
    """Serve no /docs, /redoc and /openapi.json."""


class TlsOptions(Table):
    """TLS"""

    ssl_certfile: str | None = None
    """The certificate, with its chain (PEM): the endpoint speaks https."""
    ssl_keyfile: str | None = None
    """The certificate's private key, in a file of mode 0600 without a passphrase; by default in
    ssl_certfile."""
    ssl_ca_certs: str | None = None
    """Authorities whose certificates clients may show (PEM)."""
    ssl_cert_reqs: Annotated[int, Field(ge=0, le=2)] = 0
    """Whether clients are asked for a certificate: 0 no, 1 they may show one, 2 they must."""
    ssl_ciphers: str | None = None
    """Ciphers of TLS 1.2, as OpenSSL writes them."""
    enable_ssl_refresh: bool = False
    """Take up new files of certificate and key when they change."""


class EndpointOptions(TlsOptions, BrowserOptions, AnswerOptions, TemplateOptions, ToolOptions):
    """All options, in the order of the sections (the last base comes first)."""


SECTIONS = (ToolOptions, TemplateOptions, AnswerOptions, BrowserOptions, TlsOptions)
ENGINE_TOO = (
    "reasoning_parser",
    "reasoning_parser_plugin",
    "generation_config",
    "override_generation_config",
)
"""Options that vLLM takes as engine arguments, too. Engines need the reasoning parser because they
apply no grammar while a model reasons."""


def engine_options(options: EndpointOptions) -> dict[str, Any]:
    """vLLM's engine arguments that follow from the options, without vLLM's defaults."""
    return {name: value for name, value in _given(options).items() if name in ENGINE_TOO}


def frontend_options(options: EndpointOptions) -> dict[str, Any]:
    given = {name: value for name, value in _given(options).items() if name not in ENGINE_TOO}
    automatic = options.enable_auto_tool_choice
    if automatic is None:
        automatic = options.tool_call_parser is not None
    return given | {"enable_auto_tool_choice": automatic}


def _given(options: EndpointOptions) -> dict[str, Any]:
    """The options that differ from vLLM's defaults, in the form of the plan's JSON."""
    return options.model_dump(
        mode="json",
        include=set(EndpointOptions.model_fields),
        exclude_defaults=True,
        exclude_none=True,
    )


def code_in(engine_args: Mapping[str, Any]) -> list[str]:
    """The engine arguments among these that name code to run."""
    found = []
    for dotted in ENGINE_CODE:
        name, _, inner = dotted.partition(".")
        value = engine_args.get(name)
        if inner:
            value = value.get(inner) if isinstance(value, dict) else None
        if value:
            found.append(name)
    return found


_LOGS = "logs must not contain prompts or answers"
_DOORS = "it opens routes to every client; operators use llumctl's control API"
_SERVED_BY_US = "llumctl's frontends serve HTTP"
_CLIENT_CODE = "a client may send neither code nor settings of the server"
_NOT_OFFERED = "llumctl does not offer it"
_ADAPTERS = "give adapters in [adapters], or later: llumctl lora load NAME PATH"
_TRACES = "frontends tell each request as a trace: set endpoint.otlp_traces_endpoint"

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
    # llumctl does these itself.
    "otlp_traces_endpoint": _TRACES,
    "collect_detailed_traces": _TRACES,
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
    "lora_modules": _ADAPTERS,
    "default_mm_loras": _ADAPTERS,
    "enable_per_request_metrics": "llumctl requests and /metrics tell a request's times",
    "cohere_format": "set cohere_format in endpoint.default_chat_template_kwargs",
    "cohere_is_reasoning_model": _NOT_OFFERED,
    "anthropic_disabled_thinking_effort": _NOT_OFFERED,
    "reasoning_effort_map": _NOT_OFFERED,
    "enable_offline_docs": _NOT_OFFERED,
    "enable_flash_late_interaction": _NOT_OFFERED,
}
REFUSED_PREFIX = "data_parallel"


def why_refused(name: str) -> str:
    """Why llumctl refuses the argument; empty if llumctl takes it."""
    if name.startswith(REFUSED_PREFIX):
        return "llumctl runs one engine per instance and balances them"
    return REFUSED.get(name, "")


_BLOCKS = "requests move only between engines whose KV blocks are alike, and these would not be"
_MODEL = "requests can go on only with the model with which they began"
_FRONTENDS = "the frontends accept requests by it, and are not restarted"
_OTHERS = "the frontends may depend on it, and are not restarted"

# While a rolling restart goes on, requests move from engines with the old arguments to engines with
# the new ones, and the frontends keep the arguments that they were started with. So an argument may
# change only if the KV blocks of both engines are alike (controller/adapters/vllm/worker_side.py)
# and no frontend depends on the argument.
CHANGEABLE = frozenset(
    {
        # The requests that cannot move to the other environment's engines are replayed there.
        PYTHON,
        # The same, if migration.allow_inexact is off.
        "tensor_parallel_size",
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
"""Arguments of vLLM that a rolling restart may change."""

CHANGEABLE_EMULATED = frozenset({PYTHON, "mode", "prefix_caching", "speed", "num_blocks"})
"""Keys of `[emulated]` that a rolling restart may change."""

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
    "pipeline_parallel_size": _BLOCKS,
    "prefill_context_parallel_size": _BLOCKS,
    "decode_context_parallel_size": _BLOCKS,
    "max_model_len": _FRONTENDS,
}


def why_not_changed(name: str) -> str:
    """The reason why a rolling restart may not change this argument. It must be an argument that a
    rolling restart may not change."""
    return WHY_NOT_CHANGED.get(name, _OTHERS)
