"""vLLM's engine arguments, read from its source without importing it, against the import."""

import argparse
import json
from dataclasses import fields
from typing import Any, get_args, get_origin

import pytest

from controller.api.errors import WrongSettingError
from controller.api.settings.endpoint_options import EndpointOptions, code_in
from controller.api.settings.refused_options import REFUSED, REFUSED_PREFIX, why_refused
from controller.main.checks.engine_args import (
    argument_kind,
    check_engine_args,
    check_value,
    known_engine_args,
)


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    """Of vLLM's own server."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())


@pytest.fixture(scope="module")
def parsed(parser: argparse.ArgumentParser) -> dict[str, Any]:
    return vars(parser.parse_args([]))


def declared(*classes: type) -> set[str]:
    return {field.name for cls in classes for field in fields(cls) if field.name[0] != "_"}


def test_what_is_read_is_what_vllm_has() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    assert known_engine_args() == declared(AsyncEngineArgs)


def test_all_of_the_server_s_arguments_are_known_offered_or_refused(
    parsed: dict[str, Any],
) -> None:
    offered = known_engine_args() | set(EndpointOptions.model_fields)
    left = {name for name in set(parsed) - offered if not why_refused(name)}
    assert left <= {"model_tag"}


def test_what_is_refused_exists(parsed: dict[str, Any]) -> None:
    assert set(REFUSED) <= known_engine_args() | set(parsed)
    assert any(name.startswith(REFUSED_PREFIX) for name in known_engine_args())
    assert not set(REFUSED) & set(EndpointOptions.model_fields)


def test_what_names_code_exists() -> None:
    for name in ("logits_processors", "io_processor_plugin", "model_class_overrides"):
        assert name in known_engine_args()
        assert code_in({name: "x"}) == [name]
    check_value(("x",), argument_kind("structured_outputs_config"), {"reasoning_parser_plugin": ""})
    check_value(("x",), argument_kind("compilation_config"), {"backend": "", "inductor_passes": {}})


def test_the_arguments_of_ours_are_accepted(engine_args: dict[str, Any]) -> None:
    check_engine_args({name: v for name, v in engine_args.items() if name not in REFUSED})


def test_every_default_that_json_can_write_is_accepted() -> None:
    """A check that refused what vLLM itself has would refuse too much."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    checked = 0
    for field in fields(AsyncEngineArgs):
        default = getattr(AsyncEngineArgs, field.name, None)
        try:
            json.dumps(default)
        except TypeError:
            continue
        if default is not None and field.name in known_engine_args():
            check_value((field.name,), argument_kind(field.name), default)
            checked += 1
    assert checked > 130


def test_choices_are_those_of_vllm_s_command_line(parser: argparse.ArgumentParser) -> None:
    """A validator that looks first may take more (moe_backend: dashes): such are left to vLLM.
    Its command line leaves out one that is for other programs."""
    compared = set()
    for action in parser._actions:
        if action.choices is None or action.dest not in known_engine_args():
            continue
        ours = choices(argument_kind(action.dest))
        if ours:
            theirs = {choice for choice in action.choices if choice is not None}
            assert ours - {"passthrough"} == theirs, action.dest
            compared.add(action.dest)
    assert {"dtype", "kv_cache_dtype", "max_lora_rank", "runner", "logprobs_mode"} <= compared


def choices(kind: Any) -> set[Any]:
    origin = get_origin(kind)
    if "Literal" in str(origin):
        return set(get_args(kind))
    return {choice for part in get_args(kind) for choice in choices(part)} if origin else set()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("max_num_seqs", "many", "engine.max_num_seqs must be an integer, not 'many'"),
        ("max_num_seqs", 0, "engine.max_num_seqs must be at least 1, not 0"),
        ("gpu_memory_utilization", 1.5, "must be at most 1, not 1.5"),
        ("dtype", "bfloat", "must be 'auto', 'half', 'float16', 'bfloat16', 'float' or 'float32'"),
        ("enforce_eager", "yes", "must be true or false, not 'yes'"),
        ("compilation_config", {"leve": 3}, "engine.compilation_config.leve is a key that vLLM"),
        ("structured_outputs_config", {"backend": 3}, "structured_outputs_config.backend must be"),
        ("limit_mm_per_prompt", {"image": "x"}, "limit_mm_per_prompt.image must be an integer or"),
        ("max_num_sequences", 4, "is no engine argument of vLLM's; did you mean max_num_seqs?"),
        ("tool_call_parser", "hermes", "is an option of the endpoint"),
        ("middleware", ["x"], "is refused: it is code in front of the endpoint"),
        ("enable_log_requests", True, "is refused: prompts and answers are in no log"),
    ],
)
def test_what_vllm_does_not_take_is_refused(name: str, value: Any, why: str) -> None:
    with pytest.raises(WrongSettingError) as caught:
        check_engine_args({name: value})
    assert why in caught.value.message
    assert caught.value.key[:2] == ("engine", name)


def test_what_vllm_takes_is_not_refused() -> None:
    check_engine_args(
        {
            "max_model_len": 4096,
            "cpu_offload_params": ["a"],
            "limit_mm_per_prompt": {"image": 2},
            "hf_overrides": {"a": {"b": 1}},
            "attention_backend": "FLASH_ATTN",
            "moe_backend": "deep-gemm",
            "compilation_config": {"mode": "VLLM_COMPILE", "cudagraph_mode": "FULL"},
            "structured_outputs_config": {"backend": "xgrammar"},
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
            "kv_cache_memory_bytes": None,
        }
    )


def test_the_server_takes_defaults_and_ours_over_them(engine_args: dict[str, Any]) -> None:
    from controller.adapters.vllm.endpoint import openai_app

    args = openai_app.parse_args(engine_args, {}, ["key"], "127.0.0.1", 8123)
    assert isinstance(args, argparse.Namespace)
    assert engine_args.items() - {("served_model_name", "embedded")} <= vars(args).items()
    assert (args.served_model_name, args.api_key, args.port) == (["embedded"], ["key"], 8123)
    unnamed = {k: v for k, v in engine_args.items() if k != "served_model_name"}
    args = openai_app.parse_args(unnamed, {}, [], "127.0.0.1", 8123)
    assert (args.served_model_name, args.api_key) == ([engine_args["model"]], None)


def test_tables_become_vllm_s_classes(engine_args: dict[str, Any]) -> None:
    """Of one that vLLM itself leaves a dict, whose attributes its server then wants."""
    from vllm.config import StructuredOutputsConfig

    from controller.adapters.vllm.endpoint import openai_app

    table = {"backend": "xgrammar", "disable_any_whitespace": True}
    tables = {"structured_outputs_config": table, "reasoning_parser": "qwen3"}
    args = openai_app.parse_args(engine_args | tables, {}, [], "127.0.0.1", 8123)
    assert isinstance(args.structured_outputs_config, StructuredOutputsConfig)
    config = openai_app.build_config(args).structured_outputs_config
    assert (config.disable_any_whitespace, config.reasoning_parser) == (True, "qwen3")
