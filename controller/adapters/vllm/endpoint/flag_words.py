"""Replaces flags of vLLM's command line in vLLM's errors by llumctl's settings and flags.

So a client that is told of `--tool-call-parser` can tell its operator words that work here.
"""

import re

from controller.api.settings.endpoint_options import EndpointOptions
from controller.api.settings.engine_options import why_refused

# Engine arguments that vLLM's errors about requests name (contract test: they exist).
ENGINE_FLAGS = frozenset(
    {
        "allowed_local_media_path",
        "enable_lora",
        "enable_mm_embeds",
        "enable_prompt_embeds",
        "limit_mm_per_prompt",
        "logprobs_mode",
        "max_logprobs",
        "max_lora_rank",
        "max_model_len",
        "media_io_kwargs",
        "pooler_config",
        "reasoning_config",
        "skip_tokenizer_init",
        "structured_outputs_config",
    }
)
EXAMPLES = {"tool_call_parser": " hermes", "reasoning_parser": " qwen3", "chat_template": " FILE"}
# With a tool call parser llumctl sets --enable-auto-tool-choice by default.
_BOTH = "--enable-auto-tool-choice and --tool-call-parser"
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)+)(?![\w-])")


def in_our_words(message: str) -> str:
    return _FLAG.sub(_ours, message.replace(_BOTH, "--tool-call-parser"))


def _ours(found: re.Match[str]) -> str:
    name = found[1].replace("-", "_")
    if name in EndpointOptions.model_fields:
        return f"endpoint.{name} (llumctl up {found[0]}{EXAMPLES.get(name, '')})"
    if name in ENGINE_FLAGS:
        return f"engine.{name} (llumctl up --engine-arg {name}=...)"
    if why_refused(name):
        return f"{name}, which llumctl does not take,"
    return found[0]
