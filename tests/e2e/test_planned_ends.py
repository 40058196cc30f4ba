"""Ends of instances that were told beforehand, under 16 streams on emulated instances, whose every
token is checked: all are restarted with other engine arguments, one after the other; one is
restarted at once; one is evacuated in time, one without; one gets a SIGTERM. Processes that die
meanwhile, and later, start with the arguments that the cluster's spec names."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from controller.api.client import ControlClient
from controller.api.wire.status import InstanceState
from tests.e2e import steering
from tests.e2e.emulated import Answer
from tests.e2e.steering import Load, Story, change, done, ids_of, instance, left_as_found
from tools.cluster import Cluster, wait_for
from tools.python_environment import other_environment

CONFIG = """
[cluster]
engine = "emulated"
instances = 3

[emulated]
speed = 2.0
num_blocks = 600

[evacuate]
notice_s = 10.0
"""
NUM_STREAMS = 16

cluster = steering.own_cluster(CONFIG, "planned")
client = steering.controlled


@pytest.fixture(scope="module")
def next_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The instances stay there, so the folder outlives the test that takes them there."""
    return str(other_environment(tmp_path_factory.mktemp("next"), "+next", with_vllm=False))


def busy(cluster: Cluster, client: ControlClient, num_more: int = 10) -> Load:
    """Streams of 3 to 5 s, one after the other, on all instances; by `num_more` tokens, of 18 ms,
    each is longer than the one before."""
    load = Load(NUM_STREAMS, lambda k: Answer(cluster, 64 + k, 150 + num_more * k).check())
    wait_for(
        lambda: all(each.num_running_reqs for each in client.status().instances),
        "requests everywhere",
    )
    return load


def by_id(client: ControlClient, field: str) -> dict[str, int | None]:
    """Among `num_total_blocks` are vLLM's null block and the watermark."""
    return {each.id: getattr(each, field) for each in client.status().instances}


def arguments(*given: str) -> list[str]:
    return [word for each in given for word in ("--engine-arg", each)]


def test_all_start_with_new_arguments_also_one_that_dies_and_one_that_is_added(
    cluster: Cluster, client: ControlClient
) -> None:
    revision, before, story = client.status().revision, by_id(client, "pid"), Story(client)
    for given, words in (("num_block=700", "did you mean num_blocks?"),
                         ("num_blocks=3", "less than one request")):  # fmt: skip
        told = done(cluster, "restart", "--rolling", "-y", *arguments(given), code=2)
        assert words in told.stderr
    assert client.status().revision == revision
    with busy(cluster, client) as load:
        told = done(cluster, "restart", "--rolling", "-y", *arguments("num_blocks=700"))
        assert load.check() > 0
    last = told.stderr.splitlines()[-1]
    assert last.startswith("rolling restart: 3 of 3 done in "), told.stderr
    assert last.endswith("with num_blocks=700")
    assert set(by_id(client, "num_total_blocks").values()) == {700}
    assert set(by_id(client, "generation").values()) == {1}
    after = by_id(client, "pid")
    assert set(after) == set(before)
    assert not set(after.values()) & set(before.values()), "each has another process"
    assert story.events("failed", "rolling_failed") == []
    assert story.moves("drain"), "they left by moves"
    steps = story.events("rolling_stepped")
    assert [each.instance_id for each in steps] == ids_of(client)
    assert all(each.numbers["took_s"] > each.numbers["emptied_s"] > 0 for each in steps)

    pid = instance(client, "i-0").pid
    os.kill(pid, signal.SIGKILL)
    done(cluster, "scale", "+1", "--wait")
    wait_for(lambda: instance(client, "i-0").pid not in (pid, None), "another process")
    wait_for(
        lambda: list(by_id(client, "num_total_blocks").values()) == [700] * 4, "the new arguments"
    )
    assert "engine arguments: num_blocks=700 (i-0 i-1 i-2 i-3, and new ones)" in (
        done(cluster, "status").stdout
    )


@pytest.mark.full
def test_the_controllers_death_in_the_middle_changes_nothing_and_null_takes_back(
    cluster: Cluster, client: ControlClient
) -> None:
    rolling = ("restart", "--rolling", "-y")
    with busy(cluster, client) as load:
        done(cluster, *rolling, "--detach", *arguments("num_blocks=800", "prefix_caching=false"))
        wait_for(lambda: 2 in by_id(client, "generation").values(), "the first with new arguments")
        os.kill(cluster.controller_pid, signal.SIGKILL)
        done(cluster, "status", "--wait=ready", "--timeout", "60")
        wait_for(
            lambda: (found := client.status().rolling) and found.state == "done",
            "the end of the rolling restart",
        )
        assert load.check() > 0
    assert set(by_id(client, "num_total_blocks").values()) == {800}
    assert set(by_id(client, "generation").values()) == {2}
    back = arguments("num_blocks=null", "prefix_caching=null")
    done(cluster, *rolling, "--at-once", "max", *back)
    assert set(by_id(client, "num_total_blocks").values()) == {600}
    assert client.status().engine_changes == ()


def test_all_go_to_another_python_environment_whose_engines_take_no_moves_of_the_old_ones(
    cluster: Cluster, client: ControlClient, next_python: str
) -> None:
    """What the last instance of the old environment has is replayed, and no stream is cut. A
    process that dies later starts in the new one."""
    python, story = next_python, Story(client)
    told = done(cluster, "restart", "--rolling", "-y", "--python", f"{python}9", code=2)
    assert f"engine.python {python}9 does not exist" in told.stderr
    with busy(cluster, client) as load:
        told = done(cluster, "restart", "--rolling", "-y", "--python", str(Path(python).parents[1]))
        assert load.check() > 0
    assert told.stderr.splitlines()[-1].endswith(f"python={python}")
    for each in client.status().instances:
        assert psutil.Process(each.pid).environ()["LLUMCTL_PYTHON"] == python
    assert story.events("failed", "rolling_failed", "instance_failed") == []
    assert story.moves("drain"), "the first ones left by moves"
    (last,) = {each.labels["from"] for each in story.events("replayed")}
    assert last == ids_of(client)[-1]
    pid = instance(client, last).pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: instance(client, last).pid not in (pid, None), "another process")
    cluster.wait_state("ready")
    assert psutil.Process(instance(client, last).pid).environ()["LLUMCTL_PYTHON"] == python


@pytest.mark.full
def test_an_environment_in_which_no_process_starts_is_taken_back(
    cluster: Cluster, client: ControlClient, tmp_path: Path
) -> None:
    """Its processes die before they say anything, and Ray starts them there again and again."""
    python = other_environment(tmp_path, "+broken", with_vllm=False)
    (broken,) = tmp_path.glob("lib/*/site-packages")
    (broken / "uvloop.py").write_text("raise ImportError('no uvloop here')")
    before = client.status()
    with busy(cluster, client) as load:
        given = ("--python", str(python), "--start-timeout", "6")
        told = done(cluster, "restart", "--rolling", "-y", *given, code=1)
        assert "did not serve within 6 s of its restart" in told.stderr
        assert load.check() > 0
    cluster.wait_state("ready")
    after = client.status()
    assert after.engine_changes == before.engine_changes
    for old, new in zip(before.instances, after.instances, strict=True):
        assert (old.pid == new.pid) == (old.id != "i-0")
        assert (old.generation, old.fingerprint) == (new.generation, new.fingerprint)


@pytest.mark.full
def test_one_is_restarted_at_once_and_its_requests_go_on_elsewhere(
    cluster: Cluster, client: ControlClient
) -> None:
    before, story = by_id(client, "pid"), Story(client)
    hit = ids_of(client)[0]
    with busy(cluster, client, num_more=30) as load:
        planned = cluster.run("restart", hit, "--now", "--dry-run")
        assert planned.returncode == 10
        assert "would be replayed elsewhere" in planned.stdout
        done(cluster, "restart", hit, "--now", "-y")
        assert load.check() > 0
    after = by_id(client, "pid")
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
    with left_as_found(client), busy(cluster, client, num_more=40) as load:
        change(client, {"migration.max_bytes_per_s": bytes_per_s})
        done(cluster, "drain", "--remove", leaving, "--within", within, "-y")
        replayed = wait_for(lambda: story.events("replayed"), "replays")
        assert load.check() > 0
    assert ids_of(client) == others
    ended = story.events("drain_ended")[-1]
    assert ended.reason == "it had to go with what was left"
    assert ended.numbers["num_requests_left"] > 0
    assert {each.labels["from"] for each in replayed} == {leaving}
    saved = {(each.way, each.reason) for each in client.status().replays.saved}
    assert ("replayed", "evacuation") in saved
    assert story.events("failed") == []
    assert bytes_per_s or not story.moves("evacuate")
    done(cluster, "scale", "+1", "--wait")


def test_a_sigterm_to_an_instance_is_an_evacuation(cluster: Cluster, client: ControlClient) -> None:
    leaving, *others = ids_of(client)
    story, pid = Story(client), instance(client, leaving).pid
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
