"""vLLM's OpenAI app over a PoolLLM, served by uvicorn.

Touch points of vLLM: entrypoints/launchers/cli_args.py `make_arg_parser`,
`validate_parsed_serve_args`; entrypoints/launchers/app.py `build_app`;
entrypoints/launchers/api_server/app_state.py `init_app_state`; entrypoints/launchers/launcher.py
`NoSignalServer`, and what it does with plugins; entrypoints/launchers/utils/ssl.py
`SSLCertRefresher`; tool_parsers/abstract_tool_parser.py `ToolParserManager`;
reasoning/abs_reasoning_parsers.py `ReasoningParserManager`; envs.py `is_set`.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from uvicorn import Config
from vllm import envs
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.launchers.launcher import NoSignalServer
from vllm.entrypoints.launchers.utils.ssl import SSLCertRefresher
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

from controller.adapters.connections import KEEP_ALIVE_S, KeepAlive
from controller.adapters.vllm.endpoint.anthropic_calls import mend_calls
from controller.adapters.vllm.endpoint.anthropic_errors import tell_errors
from controller.adapters.vllm.endpoint.fail_fast import make_models_fail_fast
from controller.adapters.vllm.endpoint.gate import Gate
from controller.adapters.vllm.endpoint.outermost import around, within, without_outermost
from controller.adapters.vllm.endpoint.own_routes import add_model_route, add_ready_route
from controller.adapters.vllm.endpoint.pool_llm import PoolLLM
from controller.adapters.vllm.endpoint.refusal_log import shorten_refusals
from controller.adapters.vllm.grammars import app_checks as grammar_checks
from controller.adapters.vllm.process_setup import typed_arguments
from controller.runtime.messages.members import EngineInfo

# Routes of vLLM's own process management, in whose place there is `llumctl scale`.
UNSERVED_PATHS = frozenset({"/scale_elastic_ep", "/is_scaling_elastic_ep"})
# A stopping server waits this long for clients that read slowly.
LAST_BYTES_S = 3
# This route takes JSON, but declares no model of it.
UNDECLARED_JSON_PATHS = frozenset({"/invocations"})


def parse_args(
    engine_args: dict[str, Any],
    options: Mapping[str, Any],
    api_keys: list[str],
    host: str,
    port: int,
) -> Namespace:
    """vLLM's server arguments: its defaults, overridden by the cluster's engine arguments and the
    endpoint's options. Imports the parsers' plugins."""
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
    """Raises KeyError if a parser is unknown: its plugin may not have brought it."""
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
    """Sets what only a started engine knows (compare `MPClient._apply_ready_response`)."""
    config.model_config.max_model_len = min(config.model_config.max_model_len, info.max_model_len)
    config.cache_config.num_gpu_blocks = info.num_gpu_blocks * num_instances
    config.cache_config.block_size = info.block_size


async def build_server(
    llm: PoolLLM,
    args: Namespace,
    gate: Gate,
    keep_alive: KeepAlive,
    tasks: tuple[str, ...],
    why_not_ready: Callable[[], str],
) -> NoSignalServer:
    """`why_not_ready`: empty while new requests are taken."""
    make_models_fail_fast()
    shorten_refusals()
    app = build_app(without_outermost(args), tasks, llm.model_config)
    app.router.routes[:] = [
        route for route in app.routes if getattr(route, "path", "") not in UNSERVED_PATHS
    ]
    add_model_route(app)
    add_ready_route(app, why_not_ready)
    await init_app_state(llm, app.state, args, tasks)
    tell_errors(app.state.anthropic_serving_messages)
    mend_calls(app.state.anthropic_serving_messages)
    gate.app, gate.json_paths = within(app, args), json_paths(app)
    config = Config(
        around(gate, args),
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
    app.state.server = server = NoSignalServer(config)
    return server


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
