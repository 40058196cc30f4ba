"""Ends of instances that were told beforehand, under 16 streams on emulated instances, whose every
token is checked: all are restarted, one after the other; one is restarted at once; one is evacuated
in time, one without; one gets a SIGTERM."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.api.client import ControlClient
from controller.api.wire.status import InstanceState
from tests.e2e.emulated import Answer
from tests.e2e.steering import Load, Story, change, done, ids_of, instance, left_as_found
from tools.cluster import Cluster, running_with, wait_for

CONFIG = """
[cluster]
engine = "emulated"
instances = 4

[emulated]
speed = 2.0

[evacuate]
notice_s = 10.0
"""
NUM_STREAMS = 16


@pytest.fixture(scope="module")
def cluster(
    base_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with running_with(CONFIG, tmp_path_factory.mktemp("planned"), base_env, "planned") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ControlClient]:
    with cluster.control() as client:
        yield client


def busy(cluster: Cluster, client: ControlClient) -> Load:
    """Streams of 6 to 15 s, one after the other, on all instances."""
    load = Load(NUM_STREAMS, lambda k: Answer(cluster, 64 + k, 300 + 30 * k).check())
    wait_for(
        lambda: all(each.num_running_reqs for each in client.status().instances),
        "requests everywhere",
    )
    return load


def pids(client: ControlClient) -> dict[str, int | None]:
    return {each.id: each.pid for each in client.status().instances}


def test_all_are_restarted_under_load_and_no_token_is_lost(
    cluster: Cluster, client: ControlClient
) -> None:
    before, story = pids(client), Story(client)
    with busy(cluster, client) as load:
        told = done(cluster, "restart", "--rolling", "-y", "-m", "a patch")
        lines = told.stderr.splitlines()
        assert lines[-1].startswith("rolling restart: 4 of 4 done in "), told.stderr
        assert client.status().rolling is not None
        assert load.check() > 0
    after = pids(client)
    assert set(after) == set(before)
    assert not set(after.values()) & set(before.values()), "each has another process"
    assert story.events("failed", "rolling_failed") == []
    assert story.moves("drain"), "they left by moves"
    (ended,) = story.events("rolling_ended")
    assert ended.numbers["num_restarted"] == 4


@pytest.mark.full
def test_one_is_restarted_at_once_and_its_requests_go_on_elsewhere(
    cluster: Cluster, client: ControlClient
) -> None:
    before, story = pids(client), Story(client)
    hit = ids_of(client)[0]
    with busy(cluster, client) as load:
        planned = cluster.run("restart", hit, "--now", "--dry-run")
        assert planned.returncode == 10
        assert "would be replayed elsewhere" in planned.stdout
        done(cluster, "restart", hit, "--now", "-y")
        assert load.check() > 0
    after = pids(client)
    assert {each for each in after if after[each] != before[each]} == {hit}
    assert {each.labels["from"] for each in story.events("replayed")} == {hit}
    assert story.events("failed") == []


def test_one_is_evacuated_within_ten_seconds_and_does_not_come_back(
    cluster: Cluster, client: ControlClient
) -> None:
    leaving, *others = ids_of(client)
    story = Story(client)
    with busy(cluster, client) as load:
        began_s = time.monotonic()
        done(cluster, "drain", "--remove", leaving, "--within", "10s", "-y")
        assert time.monotonic() - began_s < 20.0
        assert load.check() > 0
    assert ids_of(client) == others
    assert story.events("failed") == []
    assert story.moves("evacuate")
    assert story.events("drain_ended")[-1].reason == "evacuated in time"


@pytest.mark.full
@pytest.mark.parametrize(("within", "bytes_per_s"), [("500ms", 0.0), ("4s", 4e7)])
def test_what_cannot_leave_in_time_goes_on_elsewhere(
    cluster: Cluster, client: ControlClient, within: str, bytes_per_s: float
) -> None:
    """Half a second is too short for any copy. In four seconds copies begin, on links that take
    more than one for a request, and the end comes in the middle of some."""
    leaving, *others = ids_of(client)
    story = Story(client)
    with left_as_found(client), busy(cluster, client) as load:
        change(client, {"migration.max_bytes_per_s": bytes_per_s})
        done(cluster, "drain", "--remove", leaving, "--within", within, "-y")
        wait_for(lambda: story.events("replayed"), "replays")
        assert load.check() > 0
    assert ids_of(client) == others
    ended = story.events("drain_ended")[-1]
    assert ended.reason == "it had to go with what was left"
    assert ended.numbers["num_requests_left"] > 0
    assert {each.labels["from"] for each in story.events("replayed")} == {leaving}
    saved = client.status().replays.saved
    assert any(each.way == "replayed" and each.reason == "evacuation" for each in saved)
    assert story.events("failed") == []
    assert bytes_per_s or not story.moves("evacuate")
    done(cluster, "scale", "+1", "--wait")


def test_a_sigterm_to_an_instance_is_an_evacuation(cluster: Cluster, client: ControlClient) -> None:
    leaving, *others = ids_of(client)
    story, pid = Story(client), instance(client, leaving).pid
    assert pid is not None
    with busy(cluster, client) as load:
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: leaving not in ids_of(client), "the instance to be gone", 30.0)
        assert load.check() > 0
    assert ids_of(client) == others
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "its process to end")
    assert story.events("failed") == []
    assert story.moves("evacuate")
    (began, *_, ended) = story.events("drain_started", "drain_ended")
    assert began.reason == "to be evacuated: its process was told to end"
    assert ended.reason == "evacuated in time"
    done(cluster, "scale", "+1", "--wait")
    assert {each.state for each in client.status().instances} == {InstanceState.ACTIVE}


def test_down_waits_for_streams_and_leaves_nothing(cluster: Cluster) -> None:
    streams = [Answer(cluster, 64, 200) for _ in range(8)]
    for each in streams:
        each.wait_tokens(1)
    done(cluster, "down")
    for each in streams:
        each.check()
    assert not cluster.leftovers()
