"""Chats: roles, content parts, tool calls and their results, and the fields of chats alone."""

import json
import random
from typing import Any

from tools.fuzz.families.sampling import MODEL, TOKENS, sampling

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwAD"
    "hgGAWjR9awAAAABJRU5ErkJggg=="
)
PARTS: tuple[dict[str, Any], ...] = (
    {"type": "text", "text": "of the river"},
    {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
    {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}},
    {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
    {"type": "file", "file": {"file_id": "f", "filename": "a.pdf", "file_data": "AAAA"}},
    {"type": "refusal", "refusal": "no"},
    {"type": "thinking", "thinking": "hm", "closed": True},
    {"type": "image_pil", "image_pil": None},
    {"type": "image_embeds", "image_embeds": "AAAA", "uuid": "u"},
    {"type": "input_text", "text": "x"},
    {"type": "tool_reference", "tool_name": "f"},
)
ARGUMENTS = ('{"city": "Rome"}', "{}", "", "not JSON", "[1, 2]", "null", '{"a": {"b": [1]}}')
CHAT: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True, False),
    "continue_final_message": (True, False),
    "chat_template": ("{{ messages }}", "{% for m in messages %}{{ m.content }}{% endfor %}", None),
    "chat_template_kwargs": ({"enable_thinking": False}, {"tools": []}, {"x": {"y": 1}}),
    "documents": ([{"title": "a", "text": "b"}],),
    "logprobs": (True, False),
    "top_logprobs": (0, 2, 5),
    "max_completion_tokens": (1, 8),
    "response_format": ({"type": "json_object"}, {"type": "text"}),
    "reasoning_effort": ("low", "high", "none"),
    "include_reasoning": (True, False),
    "mm_processor_kwargs": ({"x": 1},),
    "media_io_kwargs": ({"image": {"x": 1}},),
    "echo": (True,),
    "parallel_tool_calls": (True, False),
    "prompt_logprobs": (0, 1),
    "return_token_ids": (True,),
    "bad_words": (["the"],),
}


def content(dice: random.Random) -> Any:
    kind = dice.randrange(4)
    if kind == 0:
        return [dict(dice.choice(PARTS)) for _ in range(dice.choice((1, 2, 4)))]
    if kind == 1:
        return [{"type": "text", "text": "tell me"}]
    return dice.choice(("hello", "tell me of the river", "", "x " * 500, None))


def call(dice: random.Random) -> dict[str, Any]:
    function = {"name": "weather", "arguments": dice.choice(ARGUMENTS)}
    return {"id": "call_1", "type": "function", "function": function}


def message(dice: random.Random) -> dict[str, Any]:
    role = dice.choice(("user", "user", "system", "assistant", "tool", "developer", "function"))
    made: dict[str, Any] = {"role": role, "content": content(dice)}
    if role == "assistant" and dice.random() < 0.6:
        made["tool_calls"] = [call(dice) for _ in range(dice.choice((0, 1, 2)))]
        made["content"] = dice.choice((None, "", made["content"]))
    if role == "assistant" and dice.random() < 0.2:
        made |= {"reasoning": "hm", "reasoning_content": "hm", "refusal": None, "audio": None}
    if role == "tool":
        made["tool_call_id"] = "call_1"
    if dice.random() < 0.1:
        made["name"] = "somebody"
    if role == "assistant" and dice.random() < 0.1:
        made["function_call"] = {"name": "f", "arguments": json.dumps({"a": 1})}
    return made


def draw(dice: random.Random) -> tuple[str, dict[str, Any]]:
    messages: list[Any] = [message(dice) for _ in range(dice.choice((1, 2, 3, 8)))]
    body: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": dice.choice(TOKENS)}
    if dice.random() < 0.4:
        body["stream"] = True
    body |= {name: dice.choice(CHAT[name]) for name in dice.sample(sorted(CHAT), dice.randrange(4))}
    if dice.random() < 0.3:
        body |= sampling(dice, 3)
    path = "/v1/chat/completions"
    if dice.random() < 0.1:
        return f"{path}/batch", body | {"messages": [messages, messages]}
    if dice.random() < 0.1:
        return f"{path}/render", body
    return path, body
