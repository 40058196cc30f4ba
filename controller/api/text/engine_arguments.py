"""Engine arguments in a line."""

import json
from collections.abc import Mapping
from typing import Any

from controller.api.text.quantities import printable

# A table of vLLM's may be long.
MAX_CHARS = 300


def arguments(args: Mapping[str, Any]) -> str:
    """`max_num_seqs=64, enforce_eager=true`: as `--engine-arg` takes them."""
    text = ", ".join(f"{key}={_value(value)}" for key, value in args.items())
    return printable(text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 3]}...")


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
