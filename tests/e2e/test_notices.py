"""Ray drains a node: its instances leave in time, and no client notices."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.e2e.test_two_nodes import TwoNodes, two_nodes
from tools.cluster import wait_for
from tools.ray_nodes import RAY
from tools.two_hosts import Host

NODE_ID = re.compile(r"--node[-_]id=([0-9a-f]{56})")


@pytest.fixture
def nodes(tmp_path: Path, base_env: dict[str, str]) -> Iterator[TwoNodes]:
    with two_nodes(tmp_path, base_env, num_instances=4) as made:
        made.ray.start_second()
        made.up()
        made.spread()
        yield made


def raylet(host: Host) -> str | None:
    """The id of the host's node; None if there is none."""
    for pid in host.pids():
        with suppress(psutil.Error):
            if found := NODE_ID.search(" ".join(psutil.Process(pid).cmdline())):
                return found[1]
    return None


def drain(nodes: TwoNodes, host: Host, within_s: int) -> None:
    """As a cloud's agent does, an autoscaler, or the end of a pod."""
    told = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot")
    node = ("--address", nodes.ray.address, "--node-id", raylet(host) or "")
    deadline = ("--deadline-remaining-seconds", str(within_s))
    command = host.command(RAY, "drain-node", *node, *told, *deadline)
    subprocess.run(command, check=True, capture_output=True, env=nodes.ray.env, timeout=60)


@pytest.mark.parametrize(
    "within_s", [5, *(pytest.param(each, marks=pytest.mark.full) for each in (15, 30, 120))]
)
def test_instances_of_a_drained_node_leave_before_its_deadline(
    nodes: TwoNodes, within_s: int
) -> None:
    second = nodes.hosts[1]
    there = nodes.on(second)
    load = nodes.load(rate=4.0, seconds=min(within_s, 15) + 5)
    wait_for(lambda: {each["instance_id"] for each in nodes.requests()} >= set(there), "load there")
    drain(nodes, second, within_s)
    (notice,) = wait_for(lambda: nodes.read("status")["notices"], "the notice")
    assert notice["why"] == "Ray drains its node"
    assert (notice["node"], notice["takes_endpoint"]) == (second.address, False)
    wait_for(lambda: not nodes.on(second), "its instances to leave", timeout_s=within_s)
    wait_for(lambda: raylet(second) is None, "its empty node to end by itself")
    nodes.llumctl("scale", "+1", "--wait")
    assert nodes.on(second) == []
    out, errors = load.communicate(timeout=120)
    assert load.returncode == 0, f"{out}\n{errors}"
    ended = nodes.events("drain_ended")
    assert {each["instance_id"] for each in ended} == set(there)
    assert all(each["cause_id"].startswith("notice-") for each in ended)
