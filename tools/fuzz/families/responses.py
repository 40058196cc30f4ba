"""OpenAI's responses: input items of every kind, and the fields around them."""

import random
from typing import Any

from tools.fuzz.families.messages import ARGUMENTS, PIXEL

ITEMS: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "tell me"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"role": "user", "content": [{"type": "input_image", "image_url": PIXEL, "detail": "auto"}]},
    {"role": "user", "content": [{"type": "input_file", "file_data": "AAAA", "filename": "a"}]},
    {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "so", "annotations": []}],
    },
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    {"type": "function_call_output", "call_id": "c", "output": "fair"},
    {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_text", "text": "x"}],
    },
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search"}},
    {"type": "file_search_call", "id": "f", "queries": ["a"], "status": "completed"},
    {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}},
    {"type": "code_interpreter_call", "id": "ci", "code": "1", "status": "completed"},
    {"type": "mcp_call", "id": "m", "arguments": "{}", "name": "f", "server_label": "x"},
    {"type": "image_generation_call", "id": "i", "result": "AAAA", "status": "completed"},
    {"type": "custom_tool_call", "call_id": "c", "input": "x", "name": "f"},
    {"role": "developer", "content": "be brief"},
)
FIELDS: dict[str, tuple[Any, ...]] = {
    "instructions": ("be brief", ""),
    "background": (True, False),
    "store": (True, False),
    "include": (["message.output_text.logprobs"], ["reasoning.encrypted_content"], []),
    "metadata": ({"a": "b"}, {}),
    "previous_response_id": ("resp_nope", "x", None),
    "prompt": ({"id": "p", "variables": {"a": "b"}},),
    "reasoning": ({"effort": "low"}, {"summary": "auto"}),
    "service_tier": ("auto", "flex"),
    "stream": (True, True, False),
    "temperature": (0, 1, 2),
    "top_p": (0.5, 1.0),
    "top_k": (-1, 5),
    "top_logprobs": (0, 3),
    "truncation": ("auto", "disabled"),
    "max_tool_calls": (1,),
    "user": ("somebody",),
    "priority": (0, -1),
    "cache_salt": ("salt",),
    "enable_response_messages": (True,),
    "previous_input_messages": ([{"role": "user", "content": "x"}],),
    "structured_outputs": ({"regex": "[a-z]{1,5}"}, {"choice": ["a"]}),
    "stop": ("the", ["a"]),
    "seed": (1,),
    "text": ({"format": {"type": "text"}}, {"verbosity": "low"}),
    "vllm_xargs": ({"a": 1},),
    "request_id": ("resp_fuzz",),
}


def draw(dice: random.Random) -> tuple[str, dict[str, Any]]:
    items: Any = [dict(dice.choice(ITEMS)) for _ in range(dice.choice((1, 2, 4)))]
    if dice.random() < 0.3:
        called = {"type": "function_call", "call_id": "c", "name": "f", "id": "fc_1"}
        items.insert(0, called | {"arguments": dice.choice(ARGUMENTS)})
    if dice.random() < 0.2:
        items = dice.choice(("tell me", "", [], ["a", "b"]))
    body: dict[str, Any] = {"model": "embedded", "input": items, "max_output_tokens": 16}
    chosen = dice.sample(sorted(FIELDS), dice.randrange(5))
    body |= {name: dice.choice(FIELDS[name]) for name in chosen}
    return "/v1/responses" + ("/render" if dice.random() < 0.05 else ""), body
