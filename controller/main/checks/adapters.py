"""Checks LoRA adapters before any engine gets them: those of the configuration when the cluster
starts, and those that an operator loads later. What only an engine can find, such as weights for
layers that the model does not have, each instance reports by itself."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controller.adapters.files.adapter_files import facts_of
from controller.api.errors import UsageError
from controller.api.settings.settings import Settings
from controller.core.fleet.adapters import Adapter, AdapterFacts

DEFAULT_MAX_RANK = 16
"""vLLM's default of `max_lora_rank` (config/lora.py)."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that `max_lora_rank` may have."""
MODALITIES = frozenset({"audio", "file", "image", "input", "text", "video"})
"""vLLM's app takes an adapter with such a name as the default of a content part's type
(entrypoints/serve/engine/serving.py `_get_active_default_mm_loras`)."""
AT_START = "llumctl down      then      llumctl up ..."


def planned_adapters(settings: Settings, engine_args: Mapping[str, Any]) -> tuple[Adapter, ...]:
    """The adapters of the configuration, with what their files say. Raises UsageError."""
    found = []
    for number, (name, path) in enumerate(settings.adapters.items(), start=1):
        facts = check_adapter(name, path, settings, engine_args)
        found.append(Adapter(name, number, path, facts.digest, facts.rank))
    return tuple(found)


def check_adapter(
    name: str, path: str, settings: Settings, engine_args: Mapping[str, Any]
) -> AdapterFacts:
    """Reads all files of the adapter. Raises UsageError."""
    what = f"the LoRA adapter {name}"
    if settings.cluster.engine == "emulated":
        raise UsageError(
            f"{what}: emulated engines compute nothing, and have no use for adapters",
            "llumctl up --engine vllm ...",
        )
    if name in MODALITIES:
        raise UsageError(
            f"{what}: vLLM would give it to all chats with a part of this type",
            "llumctl lora load OTHER_NAME PATH",
        )
    if name in settings.model_names:
        raise UsageError(f"{what}: the model itself has this name", "llumctl lora load NAME PATH")
    try:
        facts = facts_of(Path(path))
    except ValueError as error:
        raise UsageError(f"{what}: {error}", f"ls {shlex.quote(path)}") from error
    most = engine_args.get("max_lora_rank", DEFAULT_MAX_RANK)
    least = next((each for each in RANKS if each >= facts.rank), 0)
    if not least:
        raise UsageError(f"{what}: its rank is {facts.rank}, and vLLM takes {RANKS[-1]} at most")
    arguments = f" --engine-arg max_lora_rank={least}" if least > most else ""
    if engine_args.get("enable_lora") is not True:
        raise UsageError(
            f"{what}: the engines are started without LoRA",
            f"{AT_START} --engine-arg enable_lora=true{arguments}",
        )
    if facts.rank > most:
        raise UsageError(
            f"{what}: its rank is {facts.rank}, and the engines take {most} at most",
            f"{AT_START}{arguments}",
        )
    return facts
