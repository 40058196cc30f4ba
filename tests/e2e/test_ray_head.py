"""Ray's head, or the raylet beside the controller, is lost: what runs goes on, and says so."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.e2e.emulated import Answer
from tests.e2e.test_two_nodes import TwoNodes
from tools.cluster import Cluster, marked_processes, wait_for
from tools.two_hosts import Host, two_hosts

CONFIG = """
[cluster]
engine = "emulated"
instances = 2

[emulated]
speed = 2.0
"""
RECONNECT_S = 24


def lone(folder: Path, env: dict[str, str]) -> Iterator[Cluster]:
    config = folder / "c.toml"
    config.write_text(CONFIG)
    cluster = Cluster(env, name="lone", up_args=("--config", str(config)))
    with cluster.running():
        yield cluster


@pytest.fixture
def patient(tmp_path: Path, base_env: dict[str, str]) -> Iterator[Cluster]:
    """As users start it."""
    yield from lone(tmp_path, base_env)


@pytest.fixture
def impatient(tmp_path: Path, base_env: dict[str, str]) -> Iterator[Cluster]:
    """Its processes end soon after Ray's head, as on a Ray that nobody told to wait."""
    reconnect = {"RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_S)}
    yield from lone(tmp_path, base_env | reconnect)


def kill(cluster: Cluster, name: str) -> None:
    (victim,) = [p for p in marked_processes(cluster.nonce) if p.name() == name]
    victim.kill()
    psutil.wait_procs([victim], timeout=10)


def wait_degraded(cluster: Cluster, words: str) -> None:
    wait_for(lambda: words in cluster.status()["detail"], f"a status that says: {words}")
    assert cluster.status()["state"] == "degraded"


def refused(cluster: Cluster, *args: str) -> str:
    done = cluster.run(*args)
    assert done.returncode not in (0, 10), done.stdout
    return done.stderr


def events(cluster: Cluster, kind: str) -> list[object]:
    found = json.loads(cluster.run("events", "--limit", "1000", "-o", "json").stdout)["events"]
    return [event for event in found if event["kind"] == kind]


@pytest.mark.full
def test_without_rays_head_everything_serves_on(patient: Cluster) -> None:
    answers = [Answer(patient, 40, 1500) for _ in range(3)]
    wait_for(
        lambda: sum(i["num_running_reqs"] for i in patient.status()["instances"]) == 3, "all run"
    )
    kill(patient, "gcs_server")
    wait_degraded(patient, "Ray's head at ")
    assert len(events(patient, "ray_lost")) == 1

    # What would need Ray is refused at once; before, the controller itself hung in Ray's calls.
    assert "does not answer" in refused(patient, "scale", "+1", "-y")
    assert "does not answer" in refused(patient, "restart", "i-0", "-y")
    assert "does not answer" in refused(patient, "restart", "--rolling", "-y")
    patient.run("scale", "+1", "--force", "-y")
    os.kill(patient.instance("i-0")["pid"], signal.SIGKILL)
    for answer in answers:
        answer.check()
    new = Answer(patient, 40, 20)
    new.check()
    assert patient.status()["instances"][0]["state"] == "restarting"

    down = patient.run("down", "--now")
    assert down.returncode == 0, down.stderr
    wait_for(lambda: not patient.leftovers(), "nothing to be left")


@pytest.mark.full
def test_before_ray_ends_all_processes_each_stream_ends_with_an_error(impatient: Cluster) -> None:
    answers = [Answer(impatient, 40, 6000) for _ in range(3)]
    wait_for(
        lambda: sum(i["num_running_reqs"] for i in impatient.status()["instances"]) == 3, "all run"
    )
    kill(impatient, "gcs_server")
    wait_degraded(impatient, f"after {RECONNECT_S} s without it all processes end")
    for answer in answers:
        answer.wait_ended()
        assert "the cluster stopped before this request ended" in str(answer.error)
    # `up` in the foreground notices the end, says so, and clears up.
    process = impatient.process
    assert process is not None
    wait_for(lambda: process.poll() is not None, "the end of up", 90)
    assert process.returncode == 1
    assert "Ray of cluster lone died" in impatient.read_stderr()
    wait_for(lambda: not impatient.leftovers(), "nothing to be left")


@pytest.mark.full
def test_without_the_raylet_everything_serves_on(patient: Cluster) -> None:
    answer = Answer(patient, 40, 600)
    kill(patient, "raylet")
    wait_degraded(patient, "Ray's raylet on the controller's machine is gone")
    answer.check()
    assert "raylet" in refused(patient, "scale", "+1", "-y")
    down = patient.run("down", "--now")
    assert down.returncode == 0, down.stderr
    wait_for(lambda: not patient.leftovers(), "nothing to be left")


def named(host: Host, name: str) -> list[psutil.Process]:
    """Ray adds the method that an actor runs: `ray::RayMember.rest`."""
    found = []
    for pid in host.pids():
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return [process for process in found if process.name().startswith(name)]


@pytest.mark.full
def test_down_ends_what_runs_here_on_a_ray_without_a_head(
    tmp_path: Path, base_env: dict[str, str]
) -> None:
    with two_hosts() as hosts:
        nodes, here = TwoNodes(hosts, tmp_path, base_env), hosts[0]
        try:
            nodes.start_on_first()
            members = ("controller", "frontend", *nodes.instances())
            assert len(named(here, "ray::RayMember")) == len(members)
            (head,) = named(here, "gcs_server")
            head.kill()
            wait_for(
                lambda: "after 60 s without it" in nodes.read("status")["detail"], "a word of it"
            )
            nodes.llumctl("down", "--now")
            assert named(here, "ray::RayMember") == []
        finally:
            nodes.end()
