"""The smaller routes: tokens, rendering, scores, and all that only wants to be asked for."""

import random
from typing import Any

from tools.fuzz.case import HOST, Case, head

MESSAGES = [{"role": "user", "content": "hello"}]
BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/tokenize", {"model": "embedded", "prompt": "hello river", "return_token_strs": True}),
    ("/tokenize", {"model": "embedded", "messages": MESSAGES, "add_generation_prompt": True}),
    (
        "/tokenize",
        {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "f"}}]},
    ),
    ("/detokenize", {"model": "embedded", "tokens": [1, 300, 301]}),
    (
        "/inference/v1/generate",
        {
            "model": "embedded",
            "token_ids": [1, 2, 300],
            "sampling_params": {"max_tokens": 4, "temperature": 0, "n": 1, "logprobs": 1},
            "stream": False,
            "request_id": "g",
            "priority": 0,
        },
    ),
    (
        "/generative_scoring",
        {"model": "embedded", "query": "a", "items": ["b", "c"], "label_token_ids": [300, 301]},
    ),
    ("/invocations", {"model": "embedded", "prompt": "a", "max_tokens": 4}),
    ("/invocations", {"model": "embedded", "messages": MESSAGES, "max_tokens": 4}),
    ("/v1/completions/render", {"model": "embedded", "prompt": "a", "max_tokens": 4}),
    ("/v1/completions/derender", {"model": "embedded", "token_ids": [300], "prompt": "a"}),
    (
        "/v1/chat/completions/derender",
        {"model": "embedded", "token_ids": [300], "messages": MESSAGES},
    ),
    ("/v1/embeddings", {"model": "embedded", "input": "a"}),
    ("/v1/score", {"model": "embedded", "text_1": "a", "text_2": "b"}),
    ("/v1/rerank", {"model": "embedded", "query": "a", "documents": ["b"]}),
    ("/pooling", {"model": "embedded", "input": "a"}),
    ("/classify", {"model": "embedded", "input": "a"}),
    (
        "/v1/batches",
        {
            "input_file_id": "file-0123456789abcdef01234567",
            "endpoint": "/v1/completions",
            "completion_window": "24h",
            "metadata": {"a": "b"},
        },
    ),
    ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/nope"}),
)
ASKED = (
    "/",
    "/health",
    "/ready",
    "/ping",
    "/metrics",
    "/version",
    "/v1/models",
    "/v1/models/embedded",
    "/load",
    "/v1/models/no/such%2Fmodel",
    "/v1/responses/resp_nope",
    "/openapi.json",
    "/docs",
    "/redoc",
    "/server_info",
    "/tokenizer_info",
    "/v1/responses/resp_nope/cancel",
    "/%00",
    "//",
    "/../x",
    "/v1/completions?stream=true",
    "/sleep",
    "/is_sleeping",
    "/reset_prefix_cache",
    "/v1/files",
    "/v1/files?limit=0&order=up&after=file-nope",
    "/v1/files/file-nope/content",
    "/v1/files/file-..%2f..%2frun.json",
    "/v1/batches?limit=100000",
    "/v1/batches/batch_0123456789abcdef01234567",
    "/v1/batches/batch_nope/cancel",
    "/x" * 3000,
)
KNOWN_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")
METHODS = ("GET", "GET", *KNOWN_METHODS, "get", "X-Y")


def draw(dice: random.Random) -> tuple[str, dict[str, Any]]:
    path, body = dice.choice(BODIES)
    return path, dict(body)


def asked(dice: random.Random) -> Case:
    """A request without a body."""
    method, path = dice.choice(METHODS), dice.choice(ASKED)
    own = (("Host", HOST.decode()), ("Content-Length", "0"))
    is_http = method in KNOWN_METHODS
    return Case(
        "asked", f"{method} {path[:40]}", head(method, path, *own), may_break_http=not is_http
    )
