"""A target for TTFT on a real cluster of emulated instances: requests wait for a place in the batch
while the memory is almost empty, which F_scale does not see."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.api.client import ControlClient
from controller.api.wire.status import AutoscaleStatus
from controller.model import profile
from tests.e2e.emulated import Answer
from tests.e2e.steering import Load, Story, done, ids_of, json_of
from tools.cluster import Cluster, running_with, wait_for

BATCH = 2
NUM_CLIENTS = 6
NUM_OUTPUT = 60
"""Tokens of an answer, of 36 ms each: the next one in the queue waits for two seconds."""
UP_BELOW_STEPS = 160.0
TARGET_S = 0.5
CONFIG = f"""
[cluster]
engine = "emulated"
instances = 1

[emulated]
profile = "PROFILE"

[autoscale]
max_instances = 2
up_below_steps = {UP_BELOW_STEPS}
check_interval_s = 0.3
"""


@pytest.fixture(scope="module")
def cluster(
    base_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("targets")
    path = folder / "small-batch.toml"
    built_in = Path(profile.__file__).parent / "profiles" / "a10-llama-7b.toml"
    lines = [
        f"max_num_running = {BATCH}" if line.startswith("max_num_running") else line
        for line in built_in.read_text().splitlines()
    ]
    path.write_text("\n".join(lines))
    with running_with(CONFIG.replace("PROFILE", str(path)), folder, base_env, "targets") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ControlClient]:
    with cluster.control() as client:
        yield client


def autoscale(client: ControlClient) -> AutoscaleStatus:
    found = client.status().autoscale
    assert found is not None
    return found


def wait_serving(client: ControlClient, number: int) -> None:
    wait_for(
        lambda: [each.state for each in client.status().instances] == ["active"] * number,
        f"{number} instances that serve, and no other",
    )


@pytest.mark.full
def test_a_ttft_target_calls_for_an_instance_before_f_scale_does(
    cluster: Cluster, client: ControlClient
) -> None:
    story = Story(client)
    done(cluster, "scale", "auto", "on")

    def num_contented() -> int:
        """Checks that found the load within the range of F_scale."""
        return autoscale(client).num_checks_by_reason.get("in_range", 0)

    def num_waiting() -> int:
        """At the controller, or at the instance."""
        status = client.status()
        return status.num_held_reqs + (status.instances[0].num_waiting_reqs or 0)

    with Load(NUM_CLIENTS, lambda _: Answer(cluster, 100, NUM_OUTPUT).check()):
        wait_for(
            lambda: num_waiting() >= NUM_CLIENTS - BATCH - 1,
            "requests that wait for a place in the batch",
        )
        before = num_contented()
        wait_for(lambda: num_contented() >= before + 3, "checks that miss nothing")
        assert ids_of(client) == ["i-0"]
        assert not story.events("autoscaled")
        done(cluster, "scale", "auto", "on", "--target-ttft", f"{TARGET_S * 1000:.0f}ms")
        wait_serving(client, 2)
    (added,) = [each for each in story.events("autoscaled") if each.reason.startswith("add ")]
    assert added.reason.startswith("add 1: the P99 TTFT of the next minute is estimated at")
    assert added.reason.endswith(f"and the target is {TARGET_S:g} s")
    assert (added.numbers["cluster_freeness_steps"] or 0) > UP_BELOW_STEPS
    shown = json_of(cluster, "scale", "auto")
    assert shown["target_ttft_s"] == TARGET_S
    assert "ttft_target" in shown["num_checks_by_reason"]
    wait_serving(client, 1)
