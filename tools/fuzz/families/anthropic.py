"""Anthropic's messages and the counting of their tokens."""

import random
from typing import Any

BLOCKS: tuple[dict[str, Any], ...] = (
    {"type": "text", "text": "tell me", "cache_control": {"type": "ephemeral"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:1/x.png"}},
    {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
    {"type": "tool_result", "tool_use_id": "t", "content": "fair"},
    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "fair"}]},
    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}], "is_error": True},
    {"type": "tool_reference", "tool_name": "f"},
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "redacted_thinking", "data": "AAAA"},
    {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}},
    {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}},
)
FIELDS: dict[str, tuple[Any, ...]] = {
    "system": ("be brief", [{"type": "text", "text": "be brief"}], []),
    "stop_sequences": (["the"], []),
    "stream": (True, True, False),
    "temperature": (0, 1.0),
    "top_p": (0.5,),
    "top_k": (1, 40),
    "metadata": ({"user_id": "somebody"},),
    "thinking": (
        {"type": "enabled", "budget_tokens": 1024},
        {"type": "disabled"},
        {"type": "adaptive"},
    ),
    "output_config": ({"effort": "low"}, {"format": None}),
    "tools": ([{"name": "f", "input_schema": {"type": "object"}}], []),
    "tool_choice": ({"type": "any"}, {"type": "tool", "name": "f"}, {"type": "none"}),
    "chat_template_kwargs": ({"x": 1},),
    "kv_transfer_params": ({},),
}


def draw(dice: random.Random) -> tuple[str, dict[str, Any]]:
    messages = []
    for _ in range(dice.choice((1, 2, 3))):
        blocks = [dict(dice.choice(BLOCKS)) for _ in range(dice.choice((1, 2)))]
        spoken: Any = dice.choice(("tell me", blocks, blocks))
        messages.append({"role": dice.choice(("user", "assistant", "system")), "content": spoken})
    body: dict[str, Any] = {"model": "embedded", "messages": messages, "max_tokens": 16}
    chosen = dice.sample(sorted(FIELDS), dice.randrange(4))
    body |= {name: dice.choice(FIELDS[name]) for name in chosen}
    return "/v1/messages" + dice.choice(("", "", "", "/count_tokens", "/render")), body
