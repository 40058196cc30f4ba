"""The controller dies while requests of a dead instance wait at it for a place: for room, or for
any instance. On two emulated instances, whose every token is checked."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress

import pytest

from controller.api.errors import LlumctlError
from controller.api.operations.on_instances import Drain, DrainRequest
from controller.api.wire.status import ClusterStatus
from tests.e2e import steering
from tests.e2e.emulated import Answer, check
from tests.e2e.steering import Story, change, drain, ids_of, instance, undrain
from tools.chaos.balance import imbalance
from tools.cluster import Cluster, wait_for

CONFIG = """
[cluster]
engine = "emulated"
instances = 2

[emulated]
num_blocks = 129

[scheduler]
policy = "llumnix+"

[holding]
room_to_grow_tokens = 0
making_room = false

[migration]
enabled = false
"""
FULL = (1600, 380)
"""Tokens of prompt and output: 100 of 127 blocks, then 124, for 8 s."""
LOST = (480, 150)
"""30 blocks, which an instance with `FULL` never has."""


cluster = steering.own_cluster(CONFIG, "replay")
pytestmark = pytest.mark.full


def kill_both(cluster: Cluster, instance_id: str, lost: Sequence[Answer]) -> None:
    """The instance, and the controller as soon as all requests of that instance wait there."""
    assert all(each.wait_tokens(5) for each in lost)
    with cluster.control() as client:
        controller, pid = cluster.controller_pid, instance(client, instance_id).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

        def all_wait() -> bool:
            status = client.status()
            num_placing = sum(each.state == "placing" for each in status.replays.under_way)
            return status.num_held_reqs == num_placing == len(lost)

        wait_for(all_wait, "all replays to wait at the controller")
        os.kill(controller, signal.SIGKILL)
    assert not any(each.ended for each in lost)


def wait_for_another(cluster: Cluster, instance_id: str, before: ClusterStatus) -> None:
    """Another controller, and the instance's next process."""
    (incarnation,) = (each.incarnation for each in before.instances if each.id == instance_id)

    def is_back() -> bool:
        with suppress(LlumctlError), cluster.control() as client:
            found = instance(client, instance_id)
            return found.incarnation > incarnation and found.state in ("active", "draining")
        return False

    wait_for(is_back, f"{instance_id} at another controller")


def check_replayed(
    cluster: Cluster, before: ClusterStatus, lost: Sequence[Answer], num_ended: int
) -> None:
    """Each once, and everything balances."""
    check(lost)
    assert imbalance(cluster, 2) == ""
    with cluster.control() as client:
        story, replays = Story(client, before.last_event), client.status().replays
        assert len(story.events("replayed")) == len(lost)
        assert len(story.events("finished")) == num_ended
        assert story.events("failed", "aborted", "rejected") == []
    assert replays.num_replaying == 0
    assert [(each.way, each.num_saved) for each in replays.saved] == [("replayed", len(lost))]


@pytest.mark.parametrize("what", ["room", "an instance"])
def test_replays_that_wait_outlive_their_controller(cluster: Cluster, what: str) -> None:
    """For room: the instance that comes back is drained, and takes none before the next controller
    is there; the other one has no room for a while. For an instance, without late binding: neither
    the controller nor the frontend alone has one to send them to, until the one that died is
    back."""
    full: list[Answer] = []
    with cluster.control() as client:
        there, other = ids_of(client)
        before = client.status()
        if what == "room":
            full.append(Answer(cluster, *FULL))
            assert full[0].wait_tokens(1)
            (there,) = {there, other} - {full[0].status(client).instance_id}
        else:
            change(client, {"scheduler.policy": "llumnix"})
            drain(client, other)
        lost = [Answer(cluster, *LOST) for _ in range(3)]
        assert all(each.wait_tokens(1) for each in lost)
        if what == "room":
            client.send(Drain(there, DrainRequest(reason="test")))
    kill_both(cluster, there, lost)
    wait_for_another(cluster, there, before)
    if what == "room":
        with cluster.control() as client:
            undrain(client, there)
    check(full)
    check_replayed(cluster, before, lost, num_ended=3 + len(full))
