"""Auto-scaling of a real cluster of emulated instances: it follows its load, also over the death of
its controller in the middle of it, goes to the minimum without one, and gives way to operators."""

import os
import signal

from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from tests.e2e import steering
from tests.e2e.emulated import Answer, check
from tests.e2e.steering import Story, done, ids_of, json_of
from tools.cluster import Cluster, wait_for

CONFIG = """
[cluster]
engine = "emulated"
instances = 2

[emulated]
num_blocks = 129

[autoscale]
mode = "on"
max_instances = 4
up_below_steps = 100.0
down_above_steps = 600.0
check_interval_s = 0.3
"""
NUM_REQUESTS = 8
"""Of 200 tokens, which take 104 of an instance's 127 blocks at first, and 352 in the end: that is
three instances, and more than two for 100 steps each."""


cluster = steering.own_cluster(CONFIG, "autoscale")
client = steering.controlled


def wait_serving(client: ControlClient, least: int, most: int) -> None:
    """Until so many serve, and nothing else is there. A controller that starts does not answer."""

    def serve() -> bool:
        try:
            states = [each.state for each in client.status().instances]
        except LlumctlError:
            return False
        return least <= len(states) <= most and set(states) == {"active"}

    wait_for(serve, f"{least} to {most} instances that serve")


def test_it_follows_its_load_over_a_death_of_its_controller(
    cluster: Cluster, client: ControlClient
) -> None:
    wait_serving(client, 1, 1)
    story = Story(client)
    answers = [Answer(cluster, 200, 500) for _ in range(NUM_REQUESTS)]
    wait_for(lambda: len(ids_of(client)) > 1, "a new instance")
    os.kill(cluster.controller_pid, signal.SIGKILL)
    wait_serving(client, 3, 4)
    found = client.status().autoscale
    assert (found.mode, found.held) == ("on", None)
    check(answers)
    wait_serving(client, 1, 1)
    assert story.events("failed", "autoscale_blocked", "instance_died") == []
    reasons = [event.reason for event in story.events("autoscaled")]
    assert any(reason.startswith("add ") for reason in reasons), reasons
    assert reasons[-1].startswith("remove "), reasons


def test_an_operators_scale_wins_until_it_is_released(
    cluster: Cluster, client: ControlClient
) -> None:
    wait_serving(client, 1, 1)
    said = done(cluster, "scale", "2", "-y").stderr
    assert "auto-scaling leaves it at 2, until llumctl scale --cluster autoscale auto on" in said
    wait_serving(client, 2, 2)

    def would_remove() -> bool:
        last = client.status().autoscale.last
        return last is not None and (last.outcome, last.reason) == ("would", "no_traffic")

    wait_for(would_remove, "a decision that an operator's scale holds")
    assert json_of(cluster, "scale", "auto")["held"]["num_instances"] == 2
    assert "autoscale on, held at 2" in done(cluster, "status").stdout
    done(cluster, "scale", "auto", "on")
    wait_serving(client, 1, 1)
