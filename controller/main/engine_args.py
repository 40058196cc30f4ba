"""Which vLLM engine arguments a user may set: all that vLLM has, except those we own."""

import ast
import difflib
import importlib.util
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from controller.api.errors import LlumctlError, UsageError

OWNED = {
    "model": "give it as MODEL: llumctl up MODEL",
    "served_model_name": "set endpoint.served_model_name",
    "host": "set endpoint.host",
    "port": "set endpoint.port",
    "uds": "set endpoint.host and endpoint.port",
    "api_key": "set endpoint.api_key_file",
    "hf_token": "set HF_TOKEN in the environment, or: hf auth login",
    "root_path": "put a reverse proxy in front of the endpoint",
    "config": "use llumctl's own configuration file",
    "headless": "llumctl runs the engines",
    "api_server_count": "set cluster.frontends",
    "grpc": "only the OpenAI API is served",
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
    "ssl_keyfile": "put a TLS proxy in front of the endpoint",
    "ssl_certfile": "put a TLS proxy in front of the endpoint",
}
OWNED_PREFIX = "data_parallel"

# Where vLLM declares them, as dataclass fields (contract test: test_vllm_engine_args.py).
DECLARED_IN = {
    "engine/arg_utils.py": ("EngineArgs", "AsyncEngineArgs"),
    "entrypoints/launchers/cli_args.py": ("BaseFrontendArgs", "FrontendArgs"),
}


def check_engine_args(names: Iterable[str]) -> None:
    """Raises UsageError for an argument that we own or that vLLM does not have."""
    known = known_engine_args()
    for name in names:
        if name in OWNED or name.startswith(OWNED_PREFIX):
            why = OWNED.get(name, "llumctl runs one engine per instance and balances them")
            raise UsageError(f"engine argument {name} is llumctl's own: {why}", "llumctl up --help")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(
                f"vLLM has no engine argument {name}{meant}",
                f"llumctl up --engine-arg {near[0] if near else 'max_model_len'}=...",
            )


@cache
def known_engine_args() -> frozenset[str]:
    """Read from vLLM's source: importing it takes 9 s, parsing these files 0.1 s."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise LlumctlError("vLLM is not installed", "llumctl doctor")
    root = Path(spec.origin).parent
    return frozenset(
        name for file, classes in DECLARED_IN.items() for name in _fields(root / file, classes)
    )


def _fields(file: Path, classes: tuple[str, ...]) -> Iterable[str]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield item.target.id
