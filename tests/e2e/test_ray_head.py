"""Ray's head, or the raylet beside the controller, is lost: what runs goes on, and says so."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.emulated import Answer, check
from tests.e2e.test_two_nodes import two_nodes
from tools.cluster import Cluster, ray_process, running_with, wait_for
from tools.two_hosts import Host

CONFIG = """
[cluster]
engine = "emulated"
instances = 2

[emulated]
speed = 2.0
"""
RECONNECT_S = 24


@pytest.fixture
def patient(tmp_path: Path, base_env: dict[str, str]) -> Iterator[Cluster]:
    """As users start it."""
    with running_with(CONFIG, tmp_path, base_env, "lone") as cluster:
        yield cluster


@pytest.fixture
def impatient(tmp_path: Path, base_env: dict[str, str]) -> Iterator[Cluster]:
    """Its processes end soon after Ray's head, as on a Ray that nobody told to wait."""
    reconnect = {"RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_S)}
    with running_with(CONFIG, tmp_path, base_env | reconnect, "lone") as cluster:
        yield cluster


def begun(cluster: Cluster, num_output: int) -> list[Answer]:
    answers = [Answer(cluster, 40, num_output) for _ in range(3)]
    wait_for(
        lambda: sum(i["num_running_reqs"] for i in cluster.status()["instances"]) == 3, "all run"
    )
    return answers


def kill(cluster: Cluster, name: str) -> None:
    victim = ray_process(cluster.nonce, name)
    assert victim is not None
    victim.kill()
    psutil.wait_procs([victim], timeout=10)


def wait_degraded(cluster: Cluster, words: str) -> None:
    wait_for(lambda: words in cluster.status()["detail"], f"a status that says: {words}")
    assert cluster.status()["state"] == "degraded"


def check_refused(cluster: Cluster, words: str, *args: str) -> None:
    done = cluster.run(*args, "-y")
    assert done.returncode not in (0, 10), done.stdout
    assert words in done.stderr


def check_down(cluster: Cluster) -> None:
    down = cluster.run("down", "--now")
    assert down.returncode == 0, down.stderr
    wait_for(lambda: not cluster.leftovers(), "nothing to be left")


@pytest.mark.full
def test_without_rays_head_everything_serves_on(patient: Cluster) -> None:
    answers = begun(patient, 1500)
    kill(patient, "gcs_server")
    wait_degraded(patient, "Ray's head at ")
    with patient.control() as client:
        assert len([each for each in client.events().events if each.kind == "ray_lost"]) == 1

    # What would need Ray is refused at once; before, the controller itself hung in Ray's calls.
    for args in (("scale", "+1"), ("restart", "i-0"), ("restart", "--rolling")):
        check_refused(patient, "does not answer", *args)
    patient.run("scale", "+1", "--force", "-y")
    os.kill(patient.instance("i-0")["pid"], signal.SIGKILL)
    check([*answers, Answer(patient, 40, 20)])
    assert patient.status()["instances"][0]["state"] == "restarting"

    check_down(patient)


@pytest.mark.full
def test_before_ray_ends_all_processes_each_stream_ends_with_an_error(impatient: Cluster) -> None:
    answers = begun(impatient, 6000)
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
    check_refused(patient, "raylet", "scale", "+1")
    check_down(patient)


def named(host: Host, name: str) -> list[psutil.Process]:
    """Ray adds the method that an actor runs: `ray::RayMember.rest`."""
    found = [psutil.Process(pid) for pid in host.pids() if psutil.pid_exists(pid)]
    return [process for process in found if process.name().startswith(name)]


@pytest.mark.full
def test_down_ends_what_runs_here_on_a_ray_without_a_head(
    tmp_path: Path, base_env: dict[str, str]
) -> None:
    with two_nodes(tmp_path, base_env) as nodes:
        nodes.up()
        here, members = nodes.hosts[0], ("controller", "frontend", *nodes.instances())
        assert len(named(here, "ray::RayMember")) == len(members)
        (head,) = named(here, "gcs_server")
        head.kill()
        wait_for(lambda: "after 60 s without it" in nodes.read("status")["detail"], "a word of it")
        nodes.llumctl("down", "--now")
        assert named(here, "ray::RayMember") == []


@pytest.mark.full
def test_a_ray_that_asks_for_a_token_is_told_apart_from_a_slow_one(
    tmp_path: Path, base_env: dict[str, str]
) -> None:
    token, wrong = tmp_path / "token", tmp_path / "wrong"
    token.write_text("a" * 64)
    wrong.write_text("b" * 64)
    with two_nodes(tmp_path, base_env, token) as nodes:
        env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        address = nodes.ray.address
        for other in ({}, env | {"RAY_AUTH_TOKEN_PATH": str(wrong)}):
            with pytest.raises(AssertionError, match=f"Ray at {address} asks for its token"):
                nodes.llumctl("up", "--detach", "--wait", **other)
        with pytest.raises(AssertionError, match=r"it asks for its token(.|\n)*RAY_AUTH"):
            nodes.llumctl("doctor")
        nodes.llumctl("up", "--detach", "--wait", **env)
        nodes.llumctl("down", "--now")
