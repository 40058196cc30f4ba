"""Writes `examples/llumctl.toml` from the settings: `make reference`.

Each key stands there with its default, below its docstring. Whoever changes a setting runs `make
reference`, and nobody edits the file by hand; a unit test compares it with the settings. What this
module adds are values for keys that have no default, and the tables that take any key.
"""

import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from controller.api.settings.setting_values import allowed
from controller.api.settings.settings import (
    DEFAULT_PRIORITIES,
    OPEN_TABLES,
    PriorityTable,
    Settings,
    table_model,
)
from controller.api.settings.table import kinds, may_be_none, schemas
from controller.api.settings.vllm_options import SECTIONS
from controller.core.admission.policies import POLICIES

FILE = Path(__file__).parents[1] / "examples" / "llumctl.toml"
WIDTH = 100
HEAD = """\
A configuration file of llumctl: every table and key, with its default.

As it stands it changes nothing. Copy it to ~/.config/llumctl/config.toml, or name it with
--config or LLUMCTL_CONFIG, and change what you want. A key that has no default is commented out.
Files are relative to this file. Flags and variables (LLUMCTL_<TABLE>_<KEY>) win over it. Keys
that name code, such as tool_parser_plugin, need this file to be yours alone (mode 0600).

`make reference` writes this file from the settings.
"""
VALUES: Mapping[str, Any] = {
    "cluster.instances": 2,
    "cluster.frontends": 2,
    "cluster.ray_address": "192.0.2.1:6379",
    "endpoint.api_key_file": "api-keys",
    "endpoint.otlp_traces_endpoint": "http://localhost:4318",
    "endpoint.request_timeout_s": 600.0,
    "endpoint.tool_call_parser": "hermes",
    "endpoint.enable_auto_tool_choice": True,
    "endpoint.tool_parser_plugin": "my_tool_parser.py",
    "endpoint.reasoning_parser": "qwen3",
    "endpoint.reasoning_parser_plugin": "my_reasoning_parser.py",
    "endpoint.chat_template": "chat.jinja",
    "endpoint.fingerprint_value": "blue",
    "endpoint.root_path": "/llm",
    "endpoint.ssl_certfile": "endpoint.pem",
    "endpoint.ssl_keyfile": "endpoint.key",
    "endpoint.ssl_ca_certs": "clients.pem",
    "endpoint.ssl_ciphers": "ECDHE+AESGCM",
    "autoscale.target_ttft_s": 2.0,
    "autoscale.target_tpot_s": 0.1,
    "traffic.split": "large=90, next=10",
    "traffic.mirror": "next=5",
    "emulated.num_blocks": 851,
    "priority.target_load_tokens": 1600,
    "priority.target_ttft_s": 2.0,
    "priority.target_tpot_s": 0.05,
}
"""Keys that have no default are shown with these values."""
MORE: Mapping[str, str] = {
    "emulated": "Its answers are words without sense. It takes no arguments of [engine] and no"
    ' model but "embedded".',
    "migration": "`llumctl set migration.max_moves=2` changes a setting of a running cluster.",
    "priority": "A request names its level in the header X-Llumctl-Priority, or by the negated"
    ' rank: "priority": -1 is rank 1. If you write any level, write all that you want.',
}
"""What is said of a table beside its docstring."""
OTHER_WORDS = (
    (""", as JSON: '{"temperature": 0.7}'.""", ", such as { temperature = 0.7, top_p = 0.9 }."),
    (", as JSON;", ", such as { enable_thinking = false };"),
)
"""Docstrings that are the help of flags say how a flag is written."""
ANY_KEY: Mapping[str, str] = {
    "engine": """\
# vLLM's engine arguments by their Python names; dashes are allowed, too. Names and values are
# checked against what vLLM declares. Arguments that llumctl sets itself, or that would open a door,
# are refused by name.
[engine]
# max_model_len = 8192
# kv_cache_memory_bytes = 2147483648
# tensor_parallel_size = 2
""",
    "adapters": """\
# LoRA adapters: the name by which clients call each, and its folder, which every machine must have.
# The engines need enable_lora. `llumctl lora load NAME PATH` loads another one later.
[adapters]
# sql = "/models/sql-lora"
""",
    "models": """\
# Several models in one cluster, each by the name that clients ask for. Such a cluster has no
# cluster.model and no cluster.instances. A model's tables replace values of the tables above, for
# this model alone. docs/several-models.md
[models]
# small = { model = "Qwen/Qwen3-0.6B", instances = 4 }
# [models.large]
#   model = "meta-llama/Llama-3.1-70B-Instruct"
#   instances = 2
#   engine = { tensor_parallel_size = 4 }
#   autoscale = { min_instances = 1, max_instances = 4 }
""",
    "keys": """\
# Keys of the dashboard (llumctl top), by what they do; docs/console.md lists them all. A value is a
# key, or several keys with commas between them: a character, or a name such as slash, f5, ctrl+x.
# Ctrl-C always leaves.
[keys]
# sort = "o"
# row_down = "n, down"
""",
    "commands": """\
# Commands of your own in the dashboard, for the row under the cursor: docs/console.md. They are
# executed without a shell, once the dashboard has shown the arguments. {id}, {cluster} ... are
# values of the row. Clients choose the ids of requests, so a "--" before one says that no option
# follows.
[commands]
# why = { run = ["llumctl", "requests", "--cluster={cluster}", "--", "{id}"], at = "request", key = "f5" }
""",  # noqa: E501
}


def text() -> str:
    parts = ["\n".join(f"# {line}".rstrip() for line in HEAD.splitlines()) + "\n"]
    for name in Settings.model_fields:
        if name in OPEN_TABLES:
            parts.append(ANY_KEY[name])
        elif name == "priority":
            parts += _levels()
        else:
            about = f"{_about(table_model(name))} {MORE.get(name, '')}".rstrip()
            lines = [*_comment(about), f"[{name}]", *_keys(name)]
            parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def write() -> None:
    FILE.write_text(text(), encoding="utf-8")


def _about(table: type) -> str:
    """`[x]: what it is.` -> `What it is.`"""
    words = " ".join(inspect.getdoc(table).split()).partition(": ")[2]  # type: ignore[union-attr]
    return words[:1].upper() + words[1:]


def _keys(name: str) -> Iterator[str]:
    table = table_model(name)
    first_of = {next(iter(each.__annotations__)): each.__doc__ for each in SECTIONS}
    default = getattr(Settings(), name).model_dump() if name == "endpoint" else None
    for key in kinds(table):
        if name == "endpoint" and key in first_of:
            yield from ("", *_comment(f"{first_of[key]}: vLLM's own options, by its names."), "#")
        value = default[key] if default is not None else getattr(getattr(Settings(), name), key)
        yield from _key(table, name, key, value)


def _key(table: type, name: str, key: str, value: Any) -> Iterator[str]:
    about = " ".join(schemas(table)[key].get("description", "").split())
    for old, new in (("None: ", "Default: "), *OTHER_WORDS):
        about = about.replace(old, new)
    choices = _choices(table, key, about)
    if key.endswith("_s") and "second" not in about:
        choices = f" Seconds,{choices.lower()}" if choices else " Seconds."
    yield from _comment(about + choices)
    if value is None:
        yield f"# {key} = {_toml(VALUES[f'{name}.{key}'])}"
    else:
        yield f"{key} = {_toml(value)}"


def _choices(table: type, key: str, about: str) -> str:
    """The values that a key may have, if they are a range, or words that `about` does not name."""
    words = allowed(table, key)
    if may_be_none(table, key):
        words = words.removesuffix(", none")
    if re.fullmatch(r"\S+ to \S+", words):
        return f" From {words}."
    choices = schemas(table)[key].get("enum", POLICIES if key == "policy" else ())
    is_named = all(re.search(rf"(?<!\w){re.escape(each)}(?!\w)", about) for each in choices)
    return "" if is_named else f" One of: {', '.join(choices)}."


def _levels() -> Iterator[str]:
    for number, level in enumerate(DEFAULT_PRIORITIES):
        lines = [] if number else _comment(f"{_about(PriorityTable)} {MORE['priority']}")
        lines.append("[[priority]]")
        for key in kinds(PriorityTable):
            value = getattr(level, key)
            if not number:
                lines += _key(PriorityTable, "priority", key, value)
            elif value is not None:
                lines.append(f"{key} = {_toml(value)}")
        yield "\n".join(lines) + "\n"


def _comment(words: str) -> list[str]:
    wrapped = textwrap.wrap(words, WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return [f"# {line}" for line in wrapped]


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{}"
    return json.dumps(list(value) if isinstance(value, tuple) else value)
