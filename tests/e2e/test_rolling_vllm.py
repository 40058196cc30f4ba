"""All real engines are restarted, one after the other, with their arguments, with others, and with
some that they cannot start with, under 16 streams of four kinds: not a token of one is another than
in a run in which nothing moved."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from controller.api.client import ControlClient
from controller.api.wire.status import InstanceState
from tests.e2e.steering import Load, Story, change
from tools.client_stream import Read, Stream
from tools.cluster import Cluster, running_with, wait_for

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
_names = map("rolling-{}-".format, itertools.count())  # threads may share it, unlike a generator


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


@pytest.fixture(scope="module")
def expected(cluster: Cluster) -> list[list[Read]]:
    """Of each kind of stream, in a run in which nothing moves."""
    with cluster.control() as client:
        change(client, {"migration.enabled": False})
        streams = [
            Stream(cluster, "/v1/completions", body(index), next(_names))
            for index in range(NUM_STREAMS)
        ]
        found = [stream.result() for stream in streams]
        change(client, {"migration.enabled": True})
    return found


@contextmanager
def undisturbed(cluster: Cluster, expected: list[list[Read]]) -> Iterator[None]:
    """Under 16 streams, of which not one is altered or fails."""

    def ask(index: int) -> None:
        assert answer(cluster, index) == expected[index], list(KINDS)[index % len(KINDS)]

    with Load(NUM_STREAMS, ask) as load:
        yield
        assert load.check() >= NUM_STREAMS


def pids(client: ControlClient) -> dict[str, int | None]:
    return {each.id: each.pid for each in client.status().instances}


@pytest.mark.full
@pytest.mark.timeout(900)  # 3 starts of a real engine, one after the other, under load
def test_all_are_restarted_under_load_and_no_token_differs(
    cluster: Cluster, client: ControlClient, expected: list[list[Read]]
) -> None:
    before, story = pids(client), Story(client)
    with undisturbed(cluster, expected):
        told = cluster.run("restart", "--rolling", "-y", timeout_s=700.0)
        assert told.returncode == 0, told.stderr
    found = client.status().rolling
    assert found is not None
    assert {each.instance_id for each in found.done} == set(before)
    assert not set(pids(client).values()) & set(before.values())
    moved = story.moves("drain")
    assert len(moved) >= 3, "they left by moves"
    assert story.events("failed", "rolling_failed") == []
    assert "3 of 3 done" in told.stderr


@pytest.mark.full
@pytest.mark.timeout(900)
def test_all_start_with_other_arguments_and_no_token_differs(
    cluster: Cluster, client: ControlClient, expected: list[list[Read]]
) -> None:
    story = Story(client)
    arguments = ("--engine-arg", "max_num_seqs=24", "--engine-arg", "max_num_batched_tokens=1024")
    with undisturbed(cluster, expected):
        told = cluster.run("restart", "--rolling", "-y", *arguments, timeout_s=700.0)
        assert told.returncode == 0, told.stderr
    instances = client.status().instances
    assert {each.max_running_reqs for each in instances} == {24}
    assert {each.generation for each in instances} == {1}
    assert len(story.moves("drain")) >= 3, "they left by moves"
    assert story.events("failed", "rolling_failed") == []
    steps = story.events("rolling_stepped")
    assert len(steps) == 3


@pytest.mark.full
@pytest.mark.timeout(900)
def test_one_that_cannot_start_with_them_gets_its_old_ones_and_no_token_differs(
    cluster: Cluster, client: ControlClient, expected: list[list[Read]]
) -> None:
    story, before = Story(client), client.status().instances
    with undisturbed(cluster, expected):
        arguments = ("--engine-arg", "num_gpu_blocks_override=2")
        told = cluster.run("restart", "--rolling", "-y", *arguments, timeout_s=700.0)
        assert told.returncode == 1, told.stderr
        assert "it starts again with the arguments that it had" in told.stderr
        wait_for(lambda: is_whole(client), "the instance to serve again", 120.0)
    (failed,) = story.events("rolling_failed")
    after = {each.id: each for each in client.status().instances}
    for each in before:
        found = after[each.id]
        assert (found.generation, found.max_running_reqs) == (each.generation, 24)
        assert (found.pid == each.pid) == (each.id != failed.instance_id)
    assert story.events("failed") == []


def is_whole(client: ControlClient) -> bool:
    return all(each.state is InstanceState.ACTIVE for each in client.status().instances)
