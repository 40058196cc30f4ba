"""Which arguments `[engine]` may have; tests/contract compares the table with vLLM."""

from typing import Any

import pytest

from controller.api.errors import WrongSettingError
from controller.main.checks import engine_args
from controller.main.checks.engine_args import check_engine_args


def refusal(name: str, value: Any = 1) -> WrongSettingError:
    with pytest.raises(WrongSettingError) as caught:
        check_engine_args({name: value})
    assert caught.value.exit_code == 2
    assert caught.value.key[:2] == ("engine", name)
    return caught.value


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("model", "llumctl up MODEL"),
        ("port", "endpoint.port"),
        ("scheduling_policy", "priority"),
        ("scheduler_cls", "hooks the scheduler"),
        ("data_parallel_size", "one engine per instance"),
        ("data_parallel_backend", "one engine per instance"),
        ("enable_log_requests", "logs must not contain prompts or answers"),
        ("api_key", "keys are in a file"),
        ("middleware", "code in front of the endpoint"),
        ("enable_scale_out", "opens routes"),
        ("otlp_traces_endpoint", "sends no telemetry"),
    ],
)
def test_what_is_refused_says_why(name: str, why: str) -> None:
    error = refusal(name)
    assert error.message.startswith(f"engine.{name} is refused: ")
    assert why in error.message


def test_an_option_of_the_endpoint_is_sent_there() -> None:
    error = refusal("tool_call_parser", "hermes")
    assert error.message == "engine.tool_call_parser is an option of the endpoint"
    assert error.hint.startswith("set endpoint.tool_call_parser")


def test_an_unknown_argument_names_the_nearest() -> None:
    assert refusal("max_model_length").message.endswith("did you mean max_model_len?")
    error = refusal("zzz")
    assert error.message == "engine.zzz is not an engine argument of vLLM"
    assert "not an engine argument" in refusal("_api_process_rank").message


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("max_num_seqs", "many", "must be an integer, not 'many'"),
        ("max_num_seqs", True, "must be an integer, not True"),
        ("max_num_seqs", 1.5, "must be an integer, not 1.5"),
        ("max_num_seqs", 0, "must be at least 1, not 0"),
        ("max_model_len", -2, "must be at least -1, not -2"),
        ("gpu_memory_utilization", 1.01, "must be at most 1, not 1.01"),
        ("gpu_memory_utilization", 0, "must be greater than 0, not 0"),
        ("enforce_eager", "yes", "must be true or false, not 'yes'"),
        ("dtype", "bfloat", "must be 'auto', 'half', 'float16', 'bfloat16', 'float' or 'float32'"),
        ("cpu_offload_params", "a", "must be an array, not 'a'"),
        ("logits_processors", [1], ".0 must be a string, not 1"),
        ("compilation_config", {"leve": 3}, ".leve is a key that vLLM does not have there"),
        ("compilation_config", {"traced_files": []}, ".traced_files is a key that vLLM does not"),
        (
            "compilation_config",
            {"inductor_passes": {"a": 1}},
            ".inductor_passes.a must be a string",
        ),
        (
            "eplb_config",
            {"window_size": 0},
            "eplb_config.window_size must be greater than 0, not 0",
        ),
        ("structured_outputs_config", {"backend": 3}, "structured_outputs_config.backend must be"),
        ("limit_mm_per_prompt", {"image": "x"}, "limit_mm_per_prompt.image must be an integer or"),
        ("quantization_config", 3, "must be a table, not 3"),
        ("tensor_parallel_size", None, "must be an integer, not None"),
    ],
)
def test_values_are_checked_against_what_vllm_declares(name: str, value: Any, why: str) -> None:
    assert why in refusal(name, value).message


def test_a_choice_names_the_nearest() -> None:
    assert "llumctl up --engine-arg dtype=float32" in refusal("dtype", "flot32").hint


def test_a_string_that_was_read_as_a_number_is_told_how_to_write_it() -> None:
    assert refusal("dtype", 3).hint == ""
    assert refusal("revision", 3).hint == """llumctl up --engine-arg revision='"3"'"""


def test_what_vllm_takes_is_taken() -> None:
    check_engine_args(
        {
            "max_model_len": None,
            "max_num_seqs": 1,
            "gpu_memory_utilization": 1,
            "dtype": "half",
            "cpu_offload_params": ["a"],
            "limit_mm_per_prompt": {"image": 2},
            "hf_overrides": {"a": {"b": 1}},
            "attention_backend": "FLASH_ATTN",
            "moe_backend": "deep-gemm",
            "compilation_config": {"mode": "VLLM_COMPILE", "debug_dump_path": "/tmp/a"},
            "structured_outputs_config": {"backend": "xgrammar"},
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
            "logits_processors": ["m:f"],
            "quantization_config": {"a": [1]},
            "kv_cache_memory_bytes": None,
        }
    )


def test_only_the_backend_whose_grammars_frontends_try() -> None:
    for backend in ("guidance", "outlines", "lm-format-enforcer"):
        with pytest.raises(WrongSettingError, match=f"refused: not {backend}") as caught:
            engine_args.check_grammar_backend({"backend": backend})
        assert caught.value.hint == "leave backend out"
    for config in ({}, {"backend": "auto"}, {"backend": "xgrammar"}):
        engine_args.check_grammar_backend(config)
