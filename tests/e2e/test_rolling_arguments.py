"""All instances are restarted with other engine arguments, one after the other, under 16 streams on
emulated instances whose every token is checked; processes that die meanwhile, and later, start with
the arguments that the cluster's spec names."""

import os
import signal
from collections.abc import Iterator

import pytest

from controller.api.client import ControlClient
from tests.e2e.emulated import Answer
from tests.e2e.steering import Load, Story, done, ids_of, instance
from tools.cluster import Cluster, running_with, wait_for

CONFIG = """
[cluster]
engine = "emulated"
instances = 3

[emulated]
speed = 2.0
num_blocks = 600
"""
NUM_STREAMS = 16


@pytest.fixture(scope="module")
def cluster(
    base_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("arguments")
    with running_with(CONFIG, folder, base_env, "arguments") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ControlClient]:
    with cluster.control() as client:
        yield client


def num_blocks(client: ControlClient) -> dict[str, int | None]:
    """As engines say it: vLLM's null block, and the watermark, are among them."""
    return {each.id: each.num_total_blocks for each in client.status().instances}


def generations(client: ControlClient) -> dict[str, int | None]:
    return {each.id: each.generation for each in client.status().instances}


def is_killed(client: ControlClient, instance_id: str) -> None:
    pid = instance(client, instance_id).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(
        lambda: (
            instance(client, instance_id).pid not in (pid, None)
            and instance(client, instance_id).num_total_blocks is not None
        ),
        f"{instance_id} to serve again",
    )


def test_what_cannot_change_is_refused_before_anything_is_touched(
    cluster: Cluster, client: ControlClient
) -> None:
    revision = client.status().revision
    for given, words in (
        ("num_block=700", "did you mean num_blocks?"),
        ("profile=other", "KV blocks are alike"),
        ("speed=-1", "greater than 0"),
        ("num_blocks=3", "less than one request"),
    ):
        told = done(cluster, "restart", "--rolling", "-y", "--engine-arg", given, code=2)
        assert words in told.stderr, given
        assert "try:" in told.stderr, given
    assert client.status().revision == revision


def test_all_start_with_new_arguments_and_no_token_is_lost(
    cluster: Cluster, client: ControlClient
) -> None:
    story = Story(client)
    with Load(NUM_STREAMS, lambda k: Answer(cluster, 64 + k, 200 + 20 * k).check()) as load:
        wait_for(
            lambda: all(each.num_running_reqs for each in client.status().instances),
            "requests everywhere",
        )
        told = done(cluster, "restart", "--rolling", "-y", "--engine-arg", "num_blocks=700")
        assert load.check() > 0
    last = told.stderr.splitlines()[-1]
    assert last.startswith("rolling restart: 3 of 3 done in "), told.stderr
    assert last.endswith("with num_blocks=700")
    assert set(num_blocks(client).values()) == {700}
    assert set(generations(client).values()) == {1}
    assert story.events("failed", "rolling_failed") == []
    assert story.moves("drain"), "they left by moves"
    steps = story.events("rolling_stepped")
    assert [each.instance_id for each in steps] == ids_of(client)
    assert all(each.numbers["took_s"] > each.numbers["emptied_s"] > 0 for each in steps)


def test_a_process_that_dies_and_one_that_is_added_have_the_new_arguments(
    cluster: Cluster, client: ControlClient
) -> None:
    is_killed(client, "i-0")
    done(cluster, "scale", "+1", "--wait")
    assert set(num_blocks(client).values()) == {700}
    assert len(num_blocks(client)) == 4
    assert "engine arguments: num_blocks=700 (i-0 i-1 i-2 i-3, and new ones)" in (
        done(cluster, "status").stdout
    )


@pytest.mark.full
def test_the_controllers_death_in_the_middle_changes_nothing(
    cluster: Cluster, client: ControlClient
) -> None:
    with Load(8, lambda k: Answer(cluster, 64 + k, 200).check()) as load:
        arguments = ("--engine-arg", "num_blocks=800", "--engine-arg", "prefix_caching=false")
        done(cluster, "restart", "--rolling", "-y", "--detach", *arguments)
        wait_for(lambda: 2 in generations(client).values(), "the first with new arguments")
        os.kill(cluster.controller_pid, signal.SIGKILL)
        done(cluster, "status", "--wait=ready", "--timeout", "60")
        wait_for(lambda: _state(client) == "done", "the end of the rolling restart", 60.0)
        assert load.check() > 0
    assert set(num_blocks(client).values()) == {800}
    assert set(generations(client).values()) == {2}


@pytest.mark.full
def test_null_takes_a_change_back(cluster: Cluster, client: ControlClient) -> None:
    arguments = ("--engine-arg", "num_blocks=null", "--engine-arg", "prefix_caching=null")
    done(cluster, "restart", "--rolling", "-y", "--at-once", "max", *arguments)
    assert set(num_blocks(client).values()) == {600}
    assert client.status().engine_changes == ()


def _state(client: ControlClient) -> str:
    found = client.status().rolling
    return "none" if found is None else found.state
