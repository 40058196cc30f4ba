"""vLLM's OpenAI app over a PoolLLM, served by uvicorn.

Touch points of vLLM: entrypoints/cli/serve.py `make_arg_parser`,
`validate_parsed_serve_args`; entrypoints/launchers/app.py `build_app`;
entrypoints/launchers/api_server/app_state.py `init_app_state`, `openai_serving_models`;
entrypoints/openai/models/serving.py `lora_requests`; entrypoints/launchers/launcher.py
`NoSignalServer`; entrypoints/launchers/utils/ssl.py `SSLCertRefresher`;
tool_parsers/abstract_tool_parser.py `ToolParserManager`; reasoning/abs_reasoning_parsers.py
`ReasoningParserManager`; envs.py `is_set`; entrypoints/serve/exception_handling/error_response.py
`create_error_response`.
"""

import logging
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import SchemaValidator
from uvicorn import Config
from vllm import envs
from vllm.config import ModelConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.anthropic.protocol import (
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
)
from vllm.entrypoints.cli.serve import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.launcher import NoSignalServer
from vllm.entrypoints.launchers.utils.ssl import SSLCertRefresher
from vllm.entrypoints.openai.chat_completion.protocol import (
    BatchChatCompletionRequest,
    ChatCompletionRequest,
)
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.entrypoints.serve.tokenize.protocol import TokenizeChatRequest, TokenizeCompletionRequest
from vllm.exceptions import GracefulHTTPError
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

from controller.adapters.connections import KEEP_ALIVE_S, KeepAlive
from controller.adapters.vllm.endpoint.answers import mend_calls, tell_errors
from controller.adapters.vllm.endpoint.copies import Copies
from controller.adapters.vllm.endpoint.forwarding import FORWARDED
from controller.adapters.vllm.endpoint.gate import (
    Gate,
    add_model_route,
    add_ready_route,
    around,
    within,
    without_outermost,
)
from controller.adapters.vllm.endpoint.model_switch import ModelSwitch
from controller.adapters.vllm.endpoint.pool_client import PoolLLM
from controller.adapters.vllm.grammars import app_checks as grammar_checks
from controller.adapters.vllm.lora import request_of
from controller.adapters.vllm.process_setup import typed_arguments
from controller.core.admission.traffic import TrafficBook
from controller.core.fleet.adapters import Adapter
from controller.runtime.messages.members import EngineInfo

UNSERVED_PATHS = frozenset(
    {
        # Routes for the management of vLLM's own processes. llumctl has `llumctl scale` instead.
        "/scale_elastic_ep",
        "/is_scaling_elastic_ep",
        # New in vLLM 0.33. Clients should find the same paths on each supported version.
        "/v1/decisions",
    }
)
# A server that stops waits this long for clients that read slowly.
LAST_BYTES_S = 3
# This route takes JSON, but does not declare a model for it.
UNDECLARED_JSON_PATHS = frozenset({"/invocations"})


def parse_args(
    engine_args: dict[str, Any],
    options: Mapping[str, Any],
    api_keys: list[str],
    host: str,
    port: int,
) -> Namespace:
    """vLLM's server arguments: vLLM's defaults, replaced by the cluster's engine arguments and the
    endpoint's options where these are set. Imports the plugins with parsers."""
    args: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    for key, value in (typed_arguments(engine_args) | dict(options)).items():
        setattr(args, key, value)
    args.served_model_name = engine_args.get("served_model_name") or [args.model]
    if isinstance(args.served_model_name, str):
        args.served_model_name = [args.served_model_name]
    args.api_key = api_keys or None
    args.host, args.port = host, port
    validate_parsed_serve_args(args)
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
    _check_parsers(args)
    return args


def _check_parsers(args: Namespace) -> None:
    """Checks that the parsers exist. Raises KeyError if a parser is unknown, for example because
    its plugin does not provide it."""
    if args.tool_call_parser:
        ToolParserManager.get_tool_parser(args.tool_call_parser)
    if args.reasoning_parser:
        ReasoningParserManager.get_reasoning_parser(args.reasoning_parser)


def build_config(args: Namespace) -> VllmConfig:
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(
        usage_context=UsageContext.OPENAI_API_SERVER
    )
    grammar_checks.install(config)
    return config


def adopt_engine_info(config: VllmConfig, info: EngineInfo, num_instances: int) -> None:
    """Sets values in vLLM's configuration that are only known from a started engine (compare
    `MPClient._apply_ready_response`)."""
    config.model_config.max_model_len = min(config.model_config.max_model_len, info.max_model_len)
    config.cache_config.num_gpu_blocks = info.num_gpu_blocks * num_instances
    config.cache_config.block_size = info.block_size


async def build_model_app(
    llm: PoolLLM, args: Namespace, tasks: tuple[str, ...], why_not_ready: Callable[[], str]
) -> FastAPI:
    """Builds vLLM's app of one model. `why_not_ready`: returns an empty text while new requests are
    accepted. More routes may be added to the app until its server is built."""
    make_models_fail_fast()
    app = routed(args, tasks, llm.model_config, why_not_ready)
    await init_app_state(llm, app.state, args, tasks)
    shorten_refusals()
    tell_errors(app.state.anthropic_serving_messages)
    mend_calls(app.state.anthropic_serving_messages)
    return app


def build_server(
    hosted: Sequence[FastAPI],
    forwarded: Sequence[FastAPI],
    args: Namespace,
    gate: Gate,
    keep_alive: KeepAlive,
    books: Mapping[str, TrafficBook],
    copies: Copies,
) -> NoSignalServer:
    """Builds the server with one app for each model behind the gate. `hosted`: vLLM's apps.
    `forwarded`: those of models that run on attached servers only (`build_forward_app`). `args`:
    the arguments of the first model. `books`: the traffic rules of each model, by its name."""
    apps = [*hosted, *forwarded]
    app = apps[0]
    gate.json_paths = frozenset().union(*map(json_paths, hosted), *(FORWARDED for _ in forwarded))
    names = frozenset(each.state.model_name for each in forwarded)
    # A request that a split may give to another model must be right for vLLM, too.
    gate.is_forwarded = lambda name: name in names and not books[name].rules.split
    # Paths that only the first app has, such as those of batches, are about no model.
    of_hosted = frozenset.intersection(*map(json_paths, hosted)) if hosted else frozenset()
    of_models = of_hosted | FORWARDED if forwarded else of_hosted
    is_alone = len(apps) == 1 and hosted
    inner = app if is_alone else ModelSwitch(apps, of_models, books, copies)
    gate.app = within(inner, args)
    config = Config(
        around(gate, args, receipts=gate.receipts),
        log_level="warning",
        access_log=False,
        http=keep_alive,  # type: ignore[arg-type]  # uvicorn only calls it
        timeout_keep_alive=_keep_alive_s(),
        timeout_graceful_shutdown=LAST_BYTES_S,
        ssl_certfile=args.ssl_certfile,
        ssl_keyfile=args.ssl_keyfile,
        ssl_ca_certs=args.ssl_ca_certs,
        ssl_cert_reqs=args.ssl_cert_reqs,
        **({"ssl_ciphers": args.ssl_ciphers} if args.ssl_ciphers else {}),
    )
    if args.enable_ssl_refresh:
        config.load()
        app.state.certificates = SSLCertRefresher(
            config.ssl, args.ssl_keyfile or args.ssl_certfile, args.ssl_certfile, args.ssl_ca_certs
        )
    server = NoSignalServer(config)
    for each in apps:
        each.state.server = server
    return server


def offer_adapters(
    models: OpenAIServingModels, adapters: Iterable[Adapter], loaded: Collection[int]
) -> None:
    """Lets clients name as models those of these LoRA adapters that are `loaded`, or are offered
    already, by their numbers, and no others. Requests that named another one go on."""
    offered = {each.lora_int_id for each in models.lora_requests.values()}
    models.lora_requests = {
        each.name: request_of(each)
        for each in adapters
        if each.number in loaded or each.number in offered
    }


def routed(
    args: Namespace,
    tasks: tuple[str, ...],
    model_config: ModelConfig | None,
    why_not_ready: Callable[[], str],
) -> FastAPI:
    """vLLM's app with exactly the routes that the endpoint has."""
    app: FastAPI = build_app(without_outermost(args), tasks, model_config)
    app.router.routes[:] = [
        route for route in app.routes if getattr(route, "path", "") not in UNSERVED_PATHS
    ]
    add_model_route(app)
    add_ready_route(app, why_not_ready)
    return app


def _keep_alive_s() -> int:
    given = envs.is_set("VLLM_HTTP_TIMEOUT_KEEP_ALIVE")
    return envs.VLLM_HTTP_TIMEOUT_KEEP_ALIVE if given else KEEP_ALIVE_S


def json_paths(app: FastAPI) -> frozenset[str]:
    declared = {
        route.path
        for route in app.routes
        if isinstance(route, APIRoute) and route.body_field and "POST" in route.methods
    }
    return frozenset(declared | UNDECLARED_JSON_PATHS)


# -- models that stop at the first bad item --------------------------------------------------------
# Makes vLLM's request models stop at the first bad item of a list or an object.
#
# By default, pydantic checks every item, and reports one error for each allowed type that the item
# does not match. A Responses `input` of 512 empty items gave 119,000 errors, which took 1.6 s of
# the event loop and 200 MB. A message whose content had 100,000 numbers as parts took 86 s on a
# busy machine, and 1.3 GB.

MODELS: tuple[type[BaseModel], ...] = (
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
    BatchChatCompletionRequest,
    ChatCompletionRequest,
    CompletionRequest,
    ResponsesRequest,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
)
FAIL_FAST_KINDS = ("list", "dict")


def make_models_fail_fast() -> None:
    for model in MODELS:
        schema = model.__pydantic_core_schema__
        _set_fail_fast(schema)
        model.__pydantic_validator__ = SchemaValidator(schema)


def _set_fail_fast(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") in FAIL_FAST_KINDS:
            schema["fail_fast"] = True
        for inner in schema.values():
            _set_fail_fast(inner)
    elif isinstance(schema, list | tuple):
        for inner in schema:
            _set_fail_fast(inner)


# -- a refused request is one line in the log ------------------------------------------------------
# Logs a refused request as one line in a frontend's log, not as a traceback.
#
# When vLLM has begun to serve a request and only then finds that it is wrong, vLLM logs the
# exception as its own failure: 2.9 MB in 40 minutes of `make fuzz`, in which a real defect would
# not have been noticed. The client gets its 400 either way. An error that may be a defect of the
# server keeps its traceback.

# vLLM answers these errors with 400 too, but no check raises them on purpose.
_DEFECTS = (TypeError, OverflowError)


def shorten_refusals() -> None:
    """Applies to the loggers of all imported modules of vLLM's endpoint, because several of them
    log such errors."""
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("vllm.entrypoints.") and isinstance(logger, logging.Logger):
            logger.addFilter(_shorten)


def _shorten(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, Exception) and _is_refusal(error):
        record.msg, record.args = "refused: %s", (error,)
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
    return True


def _is_refusal(error: Exception) -> bool:
    """Whether the error refuses a request. Also True for errors of ours that another process
    caused, such as the death of an instance."""
    if isinstance(error, GracefulHTTPError):
        return True
    status = create_error_response(error).error.code
    return not isinstance(error, _DEFECTS) and status < HTTPStatus.INTERNAL_SERVER_ERROR
