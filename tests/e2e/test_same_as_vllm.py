"""One request at a time, the answer equals that of vLLM's own server, token for token."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from benchmarks.engine_plan import make_plan
from benchmarks.servers import VllmServer, running
from tests.e2e.cluster import Cluster

MESSAGES = [{"role": "user", "content": "tell me of the quiet river and its stones"}]
LONG_PROMPT = " ".join(f"stone {n} of the river" for n in range(400))
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 30}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def vllm_url(base_env: dict[str, str]) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        for key in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "OMP_NUM_THREADS"):
            patch.setenv(key, base_env[key])
        server = VllmServer(make_plan(1))
        with running(server):
            yield server.base_url


def ask(base_url: str, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices, less what differs from call to call."""
    body = {"model": "embedded", "return_token_ids": True} | body
    answer = httpx.post(f"{base_url}{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert all(choice["token_ids"] for choice in choices)
    return choices


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "the time of", "max_tokens": 100, "temperature": 0},
        {"prompt": LONG_PROMPT, "max_tokens": 40, "temperature": 0},
        {"prompt": "one", "max_tokens": 60, "temperature": 1.3, "seed": 11, "top_p": 0.9},
        {"prompt": "one", "max_tokens": 60, "temperature": 0.8, "seed": 3, "n": 2},
        {"prompt": "one", "max_tokens": 60, "temperature": 0, "repetition_penalty": 1.3,
         "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"prompt": "one", "max_tokens": 30, "temperature": 0, "logprobs": 3},
        {"prompt": "the time of", "max_tokens": 200, "temperature": 0, "stop": ["."]},
    ],
    ids=["greedy", "long prompt", "seeded", "n=2", "penalties", "logprobs", "stop"],
)  # fmt: skip
def test_completion(cluster: Cluster, vllm_url: str, body: dict[str, Any]) -> None:
    ours, theirs = (ask(url, "/v1/completions", body) for url in (cluster.url, vllm_url))
    assert ours == theirs


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 60, "temperature": 0},
        {"max_tokens": 60, "temperature": 1.0, "seed": 5, "logprobs": True, "top_logprobs": 2},
        {"max_tokens": 120, "temperature": 0, "response_format": {
            "type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}},
    ],
    ids=["greedy", "seeded", "json schema"],
)  # fmt: skip
def test_chat(cluster: Cluster, vllm_url: str, body: dict[str, Any]) -> None:
    body = {"messages": MESSAGES} | body
    ours, theirs = (ask(url, "/v1/chat/completions", body) for url in (cluster.url, vllm_url))
    assert ours == theirs
