"""Completions: prompts of every kind, and every field that changes how an answer is sampled."""

import random
from typing import Any

MODEL = "embedded"
PATH = "/v1/completions"
TOKENS = (1, 2, 4, 16, 48)
PROMPTS = (
    "the time of the river",
    "",
    "hello " * 40,
    "word " * 3000,
    ["one", "two", "three"],
    ["x"] * 40,
    [1, 2, 3, 4],
    [[1, 2, 3], [4, 5], [6]],
    [[300] * 20] * 12,
    [5] * 3000,
)
FIELDS: dict[str, tuple[Any, ...]] = {
    "n": (1, 2, 3, 16),
    "best_of": (1, 3),
    "echo": (True, False),
    "logprobs": (0, 1, 5),
    "prompt_logprobs": (0, 1, 3),
    "temperature": (0, 0.5, 1.0, 2),
    "top_p": (0.1, 0.9, 1.0),
    "top_k": (-1, 0, 1, 50),
    "min_p": (0.0, 0.2),
    "frequency_penalty": (-2, 0.5, 2),
    "presence_penalty": (-2, 0.5, 2),
    "repetition_penalty": (0.5, 1.0, 1.8),
    "length_penalty": (1.0, 0.5),
    "seed": (0, 7, 2**62),
    "stop": ("the", ["a", "river"], []),
    "stop_token_ids": ([1], [300, 301]),
    "include_stop_str_in_output": (True,),
    "ignore_eos": (True, False),
    "min_tokens": (0, 1),
    "skip_special_tokens": (True, False),
    "spaces_between_special_tokens": (True, False),
    "truncate_prompt_tokens": (1, 4, -1),
    "allowed_token_ids": ([300, 301, 302], [5]),
    "bad_words": (["the"], ["river of"]),
    "logit_bias": ({"300": 5.0}, {"5": -100, "6": 100}),
    "use_beam_search": (True,),
    "suffix": ("end",),
    "user": ("somebody",),
    "add_special_tokens": (True, False),
    "priority": (0, -1),
    "request_id": ("fuzz-id", "x" * 128),
    "return_token_ids": (True,),
    "return_tokens_as_token_ids": (True,),
    "cache_salt": ("salt",),
    "stream_options": ({"include_usage": True}, {"continuous_usage_stats": True}),
    "prompt_embeds": (None,),
    "kv_transfer_params": (None, {}),
    "vllm_xargs": ({"a": 1}, {"a": "b"}),
    "repetition_detection": ({"max_pattern_size": 8, "min_count": 3},),
    "thinking_token_budget": (16,),
    "detokenize": (True, False),
    "logits_processors": (["a.b"], None),
    "structured_outputs": ({"choice": ["yes", "no"]}, {"regex": "[a-z]{1,5}"}),
}


def sampling(dice: random.Random, most: int = 6) -> dict[str, Any]:
    chosen = dice.sample(sorted(FIELDS), dice.randrange(most + 1))
    return {name: dice.choice(FIELDS[name]) for name in chosen}


def draw(dice: random.Random) -> tuple[str, dict[str, Any]]:
    body = {"model": MODEL, "prompt": dice.choice(PROMPTS), "max_tokens": dice.choice(TOKENS)}
    if dice.random() < 0.4:
        body["stream"] = True
    return PATH, body | sampling(dice)
