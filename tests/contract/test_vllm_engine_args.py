"""vLLM's engine arguments, read from its source without importing it, against the import."""

import argparse
import ast
import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from controller.main.engine_args import (
    DECLARED_IN,
    OWNED,
    OWNED_PREFIX,
    check_engine_args,
    known_engine_args,
)


@pytest.fixture(scope="module")
def parsed() -> set[str]:
    """What vLLM's own server takes on its command line."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return set(vars(make_arg_parser(FlexibleArgumentParser()).parse_args([])))


def declared() -> set[str]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    return {field.name for cls in (AsyncEngineArgs, FrontendArgs) for field in fields(cls)}


def test_what_is_read_is_what_vllm_has() -> None:
    assert known_engine_args() == declared()


def test_all_of_the_server_s_arguments_are_known_or_owned(parsed: set[str]) -> None:
    assert parsed - known_engine_args() - set(OWNED) <= {"model_tag"}


def test_the_owned_arguments_exist(parsed: set[str]) -> None:
    assert set(OWNED) <= known_engine_args() | parsed
    assert any(name.startswith(OWNED_PREFIX) for name in known_engine_args())


def test_the_arguments_of_ours_are_accepted(engine_args: dict[str, Any]) -> None:
    check_engine_args(set(engine_args) - set(OWNED))


def test_the_classes_are_where_they_are_read() -> None:
    import vllm

    root = Path(inspect.getfile(vllm)).parent
    for file, classes in DECLARED_IN.items():
        found = {
            n.name for n in ast.parse((root / file).read_text()).body if isinstance(n, ast.ClassDef)
        }
        assert set(classes) <= found


def test_the_server_takes_defaults_and_ours_over_them(engine_args: dict[str, Any]) -> None:
    from controller.adapters.vllm import openai_app

    args = openai_app.parse_args(engine_args, ["key"], "127.0.0.1", 8123)
    assert isinstance(args, argparse.Namespace)
    assert engine_args.items() - {("served_model_name", "embedded")} <= vars(args).items()
    assert (args.served_model_name, args.api_key, args.port) == (["embedded"], ["key"], 8123)
    unnamed = {k: v for k, v in engine_args.items() if k != "served_model_name"}
    args = openai_app.parse_args(unnamed, [], "127.0.0.1", 8123)
    assert (args.served_model_name, args.api_key) == ([engine_args["model"]], None)
