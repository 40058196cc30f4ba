"""Bounds and names that hold for every cluster. This module imports next to nothing, so that a
command line can be checked before anything is loaded."""

from collections.abc import Mapping
from typing import Any

MAX_INSTANCES = 1024
ADAPTER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$"
"""A LoRA adapter's name: a word that needs no quotes, like the names of models."""
PYTHON = "python"
"""The engine argument that is none of vLLM: the Python interpreter that runs instances."""


def without_python(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that the engine itself gets."""
    return {key: each for key, each in engine_args.items() if key != PYTHON}
