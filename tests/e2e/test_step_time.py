"""Two real engines whose steps have a time: it changes again and again under streams of four kinds
whose prompts take many steps, and no token is another than in undisturbed runs. A stream gets
tokens while a long prompt is computed beside it."""

import itertools
from typing import Any

import pytest

from controller.api.client import ControlClient
from tests.e2e import steering
from tests.e2e.steering import Load, change, drain, ids_of, undrain
from tools.client_stream import Read, Stream
from tools.cluster import Cluster

CONFIG = """
[cluster]
instances = 2

[engine]
max_model_len = 8000
enable_prefix_caching = false
"""
KEY = "scheduler.step_time_s"
TIMES_S = (0.005, 1000.0, 0.02, 0.0, 0.1)
NUM_CHANGES = 50
NUM_STREAMS = 16
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.0, "frequency_penalty": 1.5, "presence_penalty": 1.0},
    {"temperature": 0.8, "top_k": 20, "min_p": 0.05},
)
LONG_TOKENS = 7000
_names = map("steps-{}-".format, itertools.count())

cluster = steering.own_cluster(CONFIG, "steps")
client = steering.controlled
pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]


def stream(cluster: Cluster, index: int) -> Stream:
    """No two alike; the prompts have 100 to 1,600 tokens."""
    body = {
        "prompt": [300 + index] * (100 * (index + 1)),
        "max_tokens": 60 + index,
        "seed": index,
        "ignore_eos": True,
        **KINDS[index % len(KINDS)],
    }
    return Stream(cluster, "/v1/completions", body, next(_names))


def test_no_token_differs_whatever_time_the_steps_have(
    cluster: Cluster, client: ControlClient
) -> None:
    expected: dict[int, list[Read]] = {}
    for index in range(NUM_STREAMS):
        expected[index] = stream(cluster, index).result()

    def ask(index: int) -> None:
        assert stream(cluster, index).result() == expected[index], KINDS[index % len(KINDS)]

    with Load(NUM_STREAMS, ask) as load:
        for _, step_time_s in zip(range(NUM_CHANGES), itertools.cycle(TIMES_S), strict=False):
            change(client, {KEY: step_time_s})
            limits = {each.step_limit_s for each in client.status().instances}
            assert None not in limits
        assert load.check() >= NUM_STREAMS
    change(client, {KEY: 0.0})


def num_tokens_beside(cluster: Cluster, client: ControlClient, step_time_s: float) -> int:
    """How many tokens a stream gets while a long prompt is computed on its instance."""
    change(client, {KEY: step_time_s})
    other = ids_of(client)[-1]
    drain(client, other)
    body = {"prompt": [300] * 20, "max_tokens": 2000, "ignore_eos": True, "temperature": 0.0}
    short = Stream(cluster, "/v1/completions", body, next(_names))
    assert short.wait_tokens(20)
    asked = {"prompt": [301] * LONG_TOKENS, "max_tokens": 1, "temperature": 0.0}
    before = short.num_tokens
    Stream(cluster, "/v1/completions", asked, next(_names)).result()
    found = short.num_tokens - before
    assert not short.ended, "it must run beside the whole prompt"
    short.stop()
    cluster.wait_quiet()
    undrain(client, other)
    return found


def test_a_stream_gets_tokens_while_a_long_prompt_is_computed(
    cluster: Cluster, client: ControlClient
) -> None:
    whole_steps = num_tokens_beside(cluster, client, 1000.0)
    assert num_tokens_beside(cluster, client, 0.02) > 4 * whole_steps
