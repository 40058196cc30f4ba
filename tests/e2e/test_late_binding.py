"""Emulated instances under more load than fits, with the policy llumnix+: what fits nowhere waits
at the controller, and nothing of it is lost, whoever dies.

Every token of every answer is checked.
"""

import os
import signal
from collections.abc import Iterator

import pytest

from controller.api.client import ControlClient
from tests.e2e.emulated import NUM_INSTANCES, Answer, check, held, one_on_each
from tests.e2e.steering import Story, change, left_as_found
from tools.cluster import Cluster, wait_for

NUM_CROWD = 8 * NUM_INSTANCES
"""Of 400 tokens each: four fit on an instance, beside room to grow."""


@pytest.fixture(scope="module")
def cluster(six: Cluster) -> Cluster:
    return six


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ControlClient]:
    with cluster.control() as client, left_as_found(client):
        yield client


def crowd(cluster: Cluster, client: ControlClient, num_output: int = 200) -> list[Answer]:
    """More than fits, some of it held."""
    found = [Answer(cluster, 400, num_output) for _ in range(NUM_CROWD)]
    wait_for(lambda: client.status().num_held_reqs >= NUM_CROWD // 4, "held requests")
    return found


def test_what_fits_nowhere_waits_at_the_controller_and_ends_in_its_turn(
    cluster: Cluster, client: ControlClient
) -> None:
    story = Story(client)
    answers = crowd(cluster, client)
    status = client.status()
    assert sum(each.num_waiting_reqs or 0 for each in status.instances) <= NUM_INSTANCES
    check(answers)
    assert client.status().num_held_reqs == 0
    assert story.events("rejected", "failed") == []
    assert {event.labels.get("by") for event in story.events("dispatched")} != {"frontend"}


def test_without_late_binding_what_was_held_goes_to_the_instances(
    cluster: Cluster, client: ControlClient
) -> None:
    answers = crowd(cluster, client)
    change(client, {"scheduler.policy": "llumnix"})
    assert client.status().num_held_reqs == 0
    change(client, {"scheduler.policy": "llumnix+"})
    late = Answer(cluster, 400, 20)
    check([*answers, late])


def test_a_prompt_goes_where_its_beginning_is_cached(
    cluster: Cluster, client: ControlClient
) -> None:
    """Though another instance has less work. By `llumnix+` it would, too, but for prompts that take
    longer to compute than fit here (tests/unit/core/test_core_first_token.py)."""
    change(client, {"scheduler.policy": "prefix-aware"})

    def instance_of(answer: Answer) -> str | None:
        found = [r.instance_id for r in client.requests().requests if answer.name in r.client_id]
        return found[0] if found else None

    def went_to(answer: Answer) -> str | None:
        answer.check()
        return wait_for(lambda: instance_of(answer), f"{answer.name} in the list")

    first = Answer(cluster, 1000, 5)
    where = went_to(first)
    busy = Answer(cluster, 40, 900)
    assert busy.wait_tokens(1)
    assert instance_of(busy) == where, "of idle instances the same one is chosen"
    assert went_to(Answer(cluster, 1000, 5)) != where, "others are freer"
    assert went_to(Answer(cluster, 1000, 5, like=first)) == where
    change(client, {"scheduler.policy": "llumnix"})
    assert went_to(Answer(cluster, 1000, 5, like=first)) != where
    busy.check()


def test_held_requests_outlive_their_controller(cluster: Cluster) -> None:
    with cluster.control() as client:
        answers = crowd(cluster, client)
    os.kill(cluster.controller_pid, signal.SIGKILL)
    check(answers)
    cluster.wait_state("ready")
    with cluster.control() as client:
        assert client.status().policy == "llumnix+"
        check(crowd(cluster, client, 50))


def test_a_request_goes_elsewhere_when_the_instance_dies_that_was_kept_for_it(
    cluster: Cluster, client: ControlClient
) -> None:
    """It needs all of an instance, and on each runs one that fits on no other beside what is
    there."""
    story = Story(client)
    others = one_on_each(cluster, client)
    (large,) = held(cluster, client, 1)
    kept = wait_for(
        lambda: (held := client.status().held) and held.head.instance_id,
        "an instance to be kept for it",
    )
    victim = next(each for each in client.status().instances if each.id == kept)
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    large.check()
    wait_for(lambda: all(each.ended for each in others), "all answers to end", 120)
    check(others)
    assert {event.labels["from"] for event in story.events("replayed")} == {kept}
    cluster.wait_state("ready")
