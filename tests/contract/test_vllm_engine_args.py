"""The table of vLLM's engine arguments and parsers, and our refusals of them, against vLLM."""

import argparse
import json
from dataclasses import fields
from typing import Any

import pytest

from controller.api.settings.vllm_options import (
    REFUSED,
    REFUSED_PREFIX,
    EndpointOptions,
    code_in,
    why_refused,
)
from controller.main.checks.engine_args import check_engine_args, check_value
from controller.main.checks.vllm_arguments import ARGUMENTS
from tools import reference, vllm_arguments

NEWER = {"reasoning_effort_map"}
"""Refused arguments that not all supported versions of vLLM have."""


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    """The parser of vLLM's own server."""
    from vllm.entrypoints.cli.serve import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())


@pytest.fixture(scope="module")
def parsed(parser: argparse.ArgumentParser) -> dict[str, Any]:
    return vars(parser.parse_args([]))


def test_the_table_is_that_of_the_installed_vllm() -> None:
    """`make vllm-arguments` writes the table."""
    assert vllm_arguments.table().read_text() == vllm_arguments.source()


def test_the_page_of_paths_is_that_of_the_installed_vllm() -> None:
    """`make vllm-arguments` writes the page."""
    assert (reference.FOLDER / reference.ENDPOINT).read_text() == reference.endpoint()


def test_all_of_the_server_s_arguments_are_known_offered_or_refused(
    parsed: dict[str, Any],
) -> None:
    offered = ARGUMENTS.keys() | set(EndpointOptions.model_fields)
    left = {name for name in set(parsed) - offered if not why_refused(name)}
    assert left <= {"model_tag"}


def test_what_is_refused_exists(parsed: dict[str, Any]) -> None:
    assert set(REFUSED) - ARGUMENTS.keys() - set(parsed) <= NEWER
    assert any(name.startswith(REFUSED_PREFIX) for name in ARGUMENTS)
    assert not set(REFUSED) & set(EndpointOptions.model_fields)


def test_what_names_code_exists() -> None:
    for name in ("logits_processors", "io_processor_plugin", "model_class_overrides"):
        assert name in ARGUMENTS
        assert code_in({name: "x"}) == [name]
    check_value(("x",), ARGUMENTS["structured_outputs_config"], {"reasoning_parser_plugin": ""})
    check_value(("x",), ARGUMENTS["compilation_config"], {"backend": "", "inductor_passes": {}})


def test_the_arguments_of_ours_are_accepted(engine_args: dict[str, Any]) -> None:
    check_engine_args({name: v for name, v in engine_args.items() if name not in REFUSED})


def test_every_default_that_json_can_write_is_accepted() -> None:
    """A check that refused vLLM's own defaults would refuse too much."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    checked = 0
    for field in fields(AsyncEngineArgs):
        default = getattr(AsyncEngineArgs, field.name, None)
        try:
            json.dumps(default)
        except TypeError:
            continue
        if default is not None and field.name in ARGUMENTS:
            check_value((field.name,), ARGUMENTS[field.name], default)
            checked += 1
    assert checked > 130


def test_the_server_takes_defaults_and_ours_over_them(engine_args: dict[str, Any]) -> None:
    from controller.adapters.vllm.endpoint import openai_app

    args = openai_app.parse_args(engine_args, {}, ["key"], "127.0.0.1", 8123)
    assert isinstance(args, argparse.Namespace)
    changed = ("served_model_name", "reasoning_config")  # into a list, and a class of vLLM
    plain = {name: value for name, value in engine_args.items() if name not in changed}
    assert plain.items() <= vars(args).items()
    assert (args.served_model_name, args.api_key, args.port) == (["embedded"], ["key"], 8123)
    unnamed = {k: v for k, v in engine_args.items() if k != "served_model_name"}
    args = openai_app.parse_args(unnamed, {}, [], "127.0.0.1", 8123)
    assert (args.served_model_name, args.api_key) == ([engine_args["model"]], None)


def test_tables_become_vllm_s_classes(engine_args: dict[str, Any]) -> None:
    """vLLM itself leaves one of them a dict, of which its server then reads attributes."""
    from vllm.config import StructuredOutputsConfig

    from controller.adapters.vllm.endpoint import openai_app

    table = {"backend": "xgrammar", "disable_any_whitespace": True}
    tables = {"structured_outputs_config": table, "reasoning_parser": "qwen3"}
    args = openai_app.parse_args(engine_args | tables, {}, [], "127.0.0.1", 8123)
    assert isinstance(args.structured_outputs_config, StructuredOutputsConfig)
    config = openai_app.build_config(args).structured_outputs_config
    assert (config.disable_any_whitespace, config.reasoning_parser) == (True, "qwen3")
