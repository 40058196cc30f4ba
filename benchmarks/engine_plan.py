"""The plan of both servers: llumctl's own plan, and the same engine arguments for vLLM."""

import json
import os
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from controller.main import up
from llumctl.config import settings as llumctl_settings

# The name of the cluster has the pid, so that this run ends neither another one nor a user's
# cluster.
CLUSTER = f"bench-{os.getpid()}"
FIRST_WORD_ID = 300
"""Smaller ids of the embedded model's vocabulary are special tokens and single bytes."""
# These ports are below those that the kernel gives to connections: Ray opens many while it starts.
_ports = count(18100)


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """`num_threads` is OMP_NUM_THREADS of every engine; the ports are llumctl's."""

    cluster: str
    engine_args: dict[str, Any]
    num_engines: int
    num_threads: int
    vocab_size: int
    kv_bytes_per_token: int
    port: int
    control_port: int

    @property
    def served_model_name(self) -> str:
        return str(self.engine_args["served_model_name"])

    def prompt(self, seed: int, num_tokens: int) -> list[int]:
        words = random.Random(seed)
        return [words.randrange(FIRST_WORD_ID, self.vocab_size) for _ in range(num_tokens)]

    def vllm_arguments(self) -> list[str]:
        """The command line of vLLM's own server; like llumctl's, it writes no access log."""
        arguments = [part for item in self.engine_args.items() for part in _as_flag(*item)]
        if self.num_engines > 1:
            arguments += ["--data-parallel-size", str(self.num_engines)]
        return [*arguments, "--disable-uvicorn-access-log"]

    def llumctl_arguments(self) -> list[str]:
        """The command line of `llumctl up`. It names the size of the KV cache, which would
        otherwise depend on the free memory: the servers start one after the other."""
        kv_bytes = self.engine_args.get("kv_cache_memory_bytes")
        fixed = ["--engine-arg", f"kv_cache_memory_bytes={kv_bytes}"] if kv_bytes else []
        return [
            *("--cluster", self.cluster, "-n", str(self.num_engines), "--frontends", "1"),
            *("--port", str(self.port), "--control-port", str(self.control_port)),
            *fixed,
        ]


def make_plan(num_engines: int) -> EnginePlan:
    """The plan that `llumctl up -n num_engines` would make, with config file and environment."""
    port, control_port = free_port(), free_port()
    settings = llumctl_settings.load(
        flags={
            ("cluster", "name"): ("--cluster", CLUSTER),
            ("cluster", "instances"): ("-n", num_engines),
            ("endpoint", "port"): ("--port", port),
            ("control", "port"): ("--control-port", control_port),
        }
    )
    plan = up.make_plan(settings)
    config = json.loads((Path(plan.engine_args["model"]) / "config.json").read_text("utf-8"))
    return EnginePlan(
        cluster=CLUSTER,
        engine_args=plan.engine_args,
        num_engines=num_engines,
        num_threads=plan.num_threads_per_instance,
        vocab_size=config["vocab_size"],
        kv_bytes_per_token=_kv_bytes_per_token(config, plan.engine_args.get("dtype", "auto")),
        port=port,
        control_port=control_port,
    )


def emulated_plan(num_engines: int) -> EnginePlan:
    """A plan of emulated engines, whose number no memory limits."""
    engine_args = {"served_model_name": "embedded"}
    return replace(make_plan(1), num_engines=num_engines, engine_args=engine_args)


def _kv_bytes_per_token(config: dict[str, Any], dtype: str) -> int:
    """The size for a model with full attention in all layers, from its config.json."""
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    element = 4 if "float32" in (dtype, config.get("torch_dtype") if dtype == "auto" else "") else 2
    per_layer = 2 * config.get("num_key_value_heads", heads) * head_size * element
    return int(config["num_hidden_layers"] * per_layer)


def free_port() -> int:
    for port in _ports:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("unreachable")


def _as_flag(name: str, value: Any) -> Iterator[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        yield flag if value else flag.replace("--", "--no-", 1)
    else:
        yield flag
        yield json.dumps(value) if isinstance(value, dict | list) else str(value)
