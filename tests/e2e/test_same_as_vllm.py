"""One request at a time, the answer equals that of vLLM's own server, token for token."""

import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import httpx
import pytest

from benchmarks.engine_plan import make_plan
from benchmarks.servers import VllmServer, running
from tests.e2e.test_migration import COMPLETIONS, SAMPLING
from tools.cluster import PATIENCE_S, Cluster

LONG_PROMPT = " ".join(f"stone {n} of the river" for n in range(400))


@pytest.fixture(scope="module")
def vllm_url(base_env: dict[str, str]) -> Iterator[str]:
    with mock.patch.dict(os.environ, base_env, clear=True):
        server = VllmServer(make_plan(1))
        with running(server):
            yield server.base_url


def ask(base_url: str, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices, less what differs from call to call."""
    body = {"model": "embedded", "return_token_ids": True, "max_tokens": 100} | body
    answer = httpx.post(f"{base_url}{path}", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert all(choice["token_ids"] for choice in choices)
    return choices


ROWS = {kind: row for kind, row in SAMPLING.items() if kind != "tool call"}  # which has new ids
ROWS["long prompt"] = (COMPLETIONS, {"prompt": LONG_PROMPT, "temperature": 0})
ROWS["stop"] = (COMPLETIONS, {"prompt": "the time of", "temperature": 0, "stop": ["."]})


@pytest.mark.full
@pytest.mark.parametrize("row", ROWS)
def test_same_as_vllm(cluster: Cluster, vllm_url: str, row: str) -> None:
    path, body = ROWS[row]
    ours, theirs = (ask(url, path, body) for url in (cluster.url, vllm_url))
    assert ours == theirs
