"""All real engines are restarted, one after the other, under 16 streams of four kinds: not a token
of one is another than in a run in which nothing moved."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from controller.api.client import ControlClient
from tests.e2e.cluster import Cluster, running_with
from tests.e2e.moving import Read, Stream
from tests.e2e.steering import Load, Story, change

CONFIG = """
[cluster]
instances = 3

[engine]
max_model_len = 2000
enable_prefix_caching = false
"""
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0},
    "penalised": {"temperature": 1.0, "frequency_penalty": 1.5, "presence_penalty": 1.0},
    "guided": {"temperature": 1.0, "structured_outputs": {"regex": r"([a-z]{3,9} ){40,400}"}},
}
NUM_STREAMS = 16
_names = (f"rolling-{number}-" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster(
    base_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with running_with(CONFIG, tmp_path_factory.mktemp("rolling"), base_env, "rolling") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ControlClient]:
    with cluster.control() as client:
        yield client


def body(index: int) -> dict[str, Any]:
    """Four of each kind, no two alike."""
    kind = list(KINDS)[index % len(KINDS)]
    known = {"ignore_eos": True} if kind != "guided" else {}
    return {
        "prompt": [300 + 10 * index] * (40 + index),
        "max_tokens": 300 + 10 * index,
        "seed": index,
        **KINDS[kind],
        **known,
    }


def answer(cluster: Cluster, index: int) -> list[Read]:
    return Stream(cluster, "/v1/completions", body(index), next(_names)).result()


@pytest.mark.full
@pytest.mark.timeout(900)  # 3 starts of a real engine, one after the other, under load
def test_all_are_restarted_under_load_and_no_token_differs(
    cluster: Cluster, client: ControlClient
) -> None:
    change(client, {"migration.enabled": False})
    streams = [
        Stream(cluster, "/v1/completions", body(index), next(_names))
        for index in range(NUM_STREAMS)
    ]
    expected = [stream.result() for stream in streams]
    change(client, {"migration.enabled": True})
    before = {each.id: each.pid for each in client.status().instances}
    story = Story(client)

    def ask(index: int) -> None:
        assert answer(cluster, index) == expected[index], list(KINDS)[index % len(KINDS)]

    with Load(NUM_STREAMS, ask) as load:
        told = cluster.run("restart", "--rolling", "-y", timeout_s=700.0)
        assert told.returncode == 0, told.stderr
        assert load.check() >= NUM_STREAMS
    found = client.status().rolling
    assert found is not None
    assert {each.instance_id for each in found.done} == set(before)
    after = {each.id: each.pid for each in client.status().instances}
    assert not set(after.values()) & set(before.values())
    moved = story.moves("drain")
    assert len(moved) >= 3, "they left by moves"
    assert story.events("failed", "rolling_failed") == []
    assert "3 of 3 done" in told.stderr
