"""The endpoint's options against vLLM's arguments of the same names."""

import inspect
import json
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from controller.adapters.vllm import process_setup
from controller.adapters.vllm.endpoint.answers import ENGINE_FLAGS
from controller.api.settings.vllm_options import (
    ENGINE_TOO,
    EndpointOptions,
    SamplingDefaults,
    engine_options,
    frontend_options,
)
from controller.main.checks.vllm_arguments import ARGUMENTS

# Ours say "not set" where vLLM says "".
UNSET = {"", None}
# Ours follows the parser: vLLM's own has to be said.
OURS = {"enable_auto_tool_choice"}
# vLLM 0.33 leaves it to the tool-call parser, which is "auto" for all but one of them.
OURS |= {"tool_strict_level"}


@pytest.fixture(scope="module")
def actions() -> dict[str, Any]:
    from vllm.entrypoints.cli.serve import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return {a.dest: a for a in make_arg_parser(FlexibleArgumentParser())._actions}


def test_names_and_defaults_are_vllm_s(actions: dict[str, Any]) -> None:
    ours = json.loads(EndpointOptions().model_dump_json())
    for name, value in ours.items():
        default = actions[name].default
        if name in OURS or {*map(repr, (value, default))} <= {*map(repr, UNSET)}:
            continue
        assert value == (default if default is not None else type(value)()), name


def test_choices_are_vllm_s(actions: dict[str, Any]) -> None:
    compared = set()
    for name, info in EndpointOptions.model_fields.items():
        if get_origin(info.annotation) is Literal and actions[name].choices is not None:
            choices = set(actions[name].choices) - {None}
            assert set(get_args(info.annotation)) == choices, name
            compared.add(name)
    assert compared == {"tool_strict_level", "chat_template_content_format", "fingerprint_mode"}


# Variables of the environment that may change vLLM's server as the user says (process_setup.py):
# they bound what requests may ask for, say how media are fetched and logs written, or suit a model.
KEPT_VARIABLES = """
VLLM_AUDIO_FETCH_TIMEOUT VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT VLLM_CONFIGURE_LOGGING
VLLM_DISABLE_LOG_LOGO VLLM_ENFORCE_STRICT_TOOL_CALLING
VLLM_GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS VLLM_GPT_OSS_SYSTEM_TOOL_MCP_LABELS
VLLM_HTTP_TIMEOUT_KEEP_ALIVE VLLM_IMAGE_FETCH_TIMEOUT VLLM_KEEP_ALIVE_ON_ENGINE_DEATH
VLLM_LOGGING_COLOR VLLM_LOGGING_LEVEL VLLM_LOGGING_PREFIX VLLM_LOGGING_STREAM
VLLM_LOG_STATS_INTERVAL VLLM_MAX_AUDIO_CLIP_FILESIZE_MB VLLM_MAX_AUDIO_DECODE_BYTES
VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES
VLLM_MAX_AUDIO_DECODE_DURATION_S VLLM_MAX_AUDIO_PREPROCESS_WORKERS VLLM_MAX_COMPLETION_PROMPTS
VLLM_MAX_IMAGE_PIXELS VLLM_MAX_N_SEQUENCES VLLM_MAX_STOP_STRINGS VLLM_MEDIA_CACHE
VLLM_MEDIA_CACHE_MAX_SIZE_MB VLLM_MEDIA_CACHE_TTL_HOURS VLLM_MEDIA_CONNECTOR
VLLM_MEDIA_LOADING_THREAD_COUNT VLLM_MEDIA_URL_ALLOW_REDIRECTS VLLM_SKIP_MODEL_NAME_VALIDATION
VLLM_SYSTEM_START_DATE VLLM_TOOL_JSON_ERROR_AUTOMATIC_RETRY
VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS VLLM_USE_EXPERIMENTAL_PARSER_CONTEXT
VLLM_V1_OUTPUT_PROC_CHUNK_SIZE VLLM_VIDEO_FETCH_TIMEOUT VLLM_VIDEO_LOADER_BACKEND
"""
# Not all supported versions of vLLM read these.
NEWER = {"VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES"}
# These make `vllm serve` start another program, or wait where engines are added to its own.
NOT_READ_HERE = {
    "VLLM_ELASTIC_EP_DRAIN_REQUESTS",
    "VLLM_RUST_FRONTEND_PATH",
    "VLLM_USE_RUST_BENCH",
    "VLLM_USE_RUST_FRONTEND",
}


def test_each_variable_that_the_server_reads_is_decided_on() -> None:
    import vllm

    root = Path(vllm.__file__).parent
    read: set[str] = set()
    for part in ("entrypoints", "tool_parsers", "reasoning", "renderers", "multimodal/media"):
        for file in (root / part).rglob("*.py"):
            read |= set(re.findall(r"\benvs\.(VLLM_\w+)", file.read_text()))
    for file in ("logger.py", "v1/engine/input_processor.py", "v1/engine/async_llm.py"):
        read |= set(re.findall(r"\benvs\.(VLLM_\w+)", (root / file).read_text()))
    kept = set(KEPT_VARIABLES.split())
    decided = kept | NOT_READ_HERE | process_setup.SET.keys() | process_setup.REMOVED.keys()
    assert read - decided == set()
    assert kept - read <= NEWER
    assert not kept & process_setup.REMOVED.keys()


def test_the_defaults_are_no_arguments() -> None:
    assert engine_options(EndpointOptions()) == {}
    assert frontend_options(EndpointOptions()) == {"enable_auto_tool_choice": False}
    assert set(ENGINE_TOO) <= ARGUMENTS.keys()


def test_sampling_defaults_are_those_that_vllm_reads() -> None:
    from vllm.config import ModelConfig

    text = inspect.getsource(ModelConfig.get_diff_sampling_param)
    listed = text.partition("available_params = [")[2].partition("]")[0]
    names = {word.strip('" \n') for word in listed.split(",") if word.strip()}
    assert names - {"skip_special_tokens"} == set(SamplingDefaults.model_fields)


@pytest.mark.parametrize("name", list(SamplingDefaults.model_fields))
@pytest.mark.parametrize("value", [-3, -1, 0, 0.5, 1, 2, 3, 101])
def test_sampling_defaults_within_our_bounds_are_within_vllm_s(name: str, value: float) -> None:
    """A default that vLLM refuses would fail every request that relies on it."""
    from vllm import SamplingParams

    try:
        SamplingDefaults.model_validate({name: value}, strict=True)
    except ValueError:
        return
    SamplingParams(**{"max_tokens" if name == "max_new_tokens" else name: value})


def test_engine_arguments_that_errors_name_exist() -> None:
    assert ARGUMENTS.keys() >= ENGINE_FLAGS
