"""Makes vLLM's engine arguments out of plain values.

Users write an argument that is itself a configuration as a table. vLLM turns some tables into its
classes, leaves others to its command line, and fails with others on the first attribute
(`structured_outputs_config`, once a reasoning parser is set).

Touch points of vLLM: engine/arg_utils.py `EngineArgs` and its annotations, `get_type_hints`.
"""

from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import TypeAdapter


def typed(engine_args: dict[str, Any]) -> dict[str, Any]:
    """Replaces each table by the class that vLLM declares for it. Raises ValueError."""
    from vllm.engine.arg_utils import AsyncEngineArgs, get_type_hints

    hints = {field.name: get_type_hints(field.type) for field in fields(AsyncEngineArgs)}
    found = dict(engine_args)
    for name, value in engine_args.items():
        kinds = hints.get(name, ())
        kind = next((k for k in kinds if isinstance(k, type) and is_dataclass(k)), None)
        if kind is not None and isinstance(value, dict):
            found[name] = TypeAdapter(kind).validate_python(value)
    return found
