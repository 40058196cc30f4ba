"""One request at a time, the answer equals that of vLLM's own server, token for token."""

import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import httpx
import pytest

from benchmarks.engine_plan import make_plan
from benchmarks.servers import VllmServer, running
from tools.cluster import PATIENCE_S, Cluster

MESSAGES = [{"role": "user", "content": "tell me of the quiet river and its stones"}]
LONG_PROMPT = " ".join(f"stone {n} of the river" for n in range(400))
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 30}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def vllm_url(base_env: dict[str, str]) -> Iterator[str]:
    with mock.patch.dict(os.environ, base_env, clear=True):
        server = VllmServer(make_plan(1))
        with running(server):
            yield server.base_url


def ask(base_url: str, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices, less what differs from call to call."""
    body = {"model": "embedded", "return_token_ids": True} | body
    answer = httpx.post(f"{base_url}{path}", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert all(choice["token_ids"] for choice in choices)
    return choices


COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PERSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, {"prompt": "the time of", "max_tokens": 100, "temperature": 0}),
    "long prompt": (COMPLETIONS, {"prompt": LONG_PROMPT, "max_tokens": 40, "temperature": 0}),
    "seeded": (COMPLETIONS, {"prompt": "one", "max_tokens": 60, "temperature": 1.3, "seed": 11,
                             "top_p": 0.9}),
    "n=2": (COMPLETIONS, {"prompt": "one", "max_tokens": 60, "temperature": 0.8, "seed": 3,
                          "n": 2}),
    "penalties": (COMPLETIONS, {"prompt": "one", "max_tokens": 60, "temperature": 0,
                                "repetition_penalty": 1.3, "presence_penalty": 0.5,
                                "frequency_penalty": 0.5}),
    "logprobs": (COMPLETIONS, {"prompt": "one", "max_tokens": 30, "temperature": 0,
                               "logprobs": 3}),
    "stop": (COMPLETIONS, {"prompt": "the time of", "max_tokens": 200, "temperature": 0,
                           "stop": ["."]}),
    "chat, greedy": (CHAT, {"messages": MESSAGES, "max_tokens": 60, "temperature": 0}),
    "chat, seeded": (CHAT, {"messages": MESSAGES, "max_tokens": 60, "temperature": 1.0, "seed": 5,
                            "logprobs": True, "top_logprobs": 2}),
    "chat, json schema": (CHAT, {"messages": MESSAGES, "max_tokens": 120, "temperature": 0,
                                 "response_format": PERSON_SCHEMA}),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("row", ROWS)
def test_same_as_vllm(cluster: Cluster, vllm_url: str, row: str) -> None:
    path, body = ROWS[row]
    ours, theirs = (ask(url, path, body) for url in (cluster.url, vllm_url))
    assert ours == theirs
