"""Emulated instances under more load than fits, with the policy llumnix+: what fits nowhere waits
at the controller. Operators see it and act on it, and nothing of it is lost, whoever dies.

Every token of every answer is checked.
"""

import json
import os
import signal
import socket

from controller.api.client import ControlClient
from controller.api.operations.on_instances import Drain, DrainRequest
from controller.api.operations.on_requests import Abort, AbortRequest, PriorityRequest, SetPriority
from controller.api.wire.requests import RequestStatus
from controller.api.wire.status import HeldHeadStatus
from tests.e2e import emulated, steering
from tests.e2e.emulated import NUM_INSTANCES, Answer, check, held, one_on_each
from tests.e2e.steering import Story, change, undrain
from tools.cluster import Cluster, wait_for

NUM_CROWD = 8 * NUM_INSTANCES
"""Of 400 tokens each: four fit on an instance, beside room to grow."""


cluster = emulated.shared
client = steering.steered


def crowd(cluster: Cluster, client: ControlClient, num_output: int) -> list[Answer]:
    """More than fits, some of it held."""
    found = [Answer(cluster, 400, num_output) for _ in range(NUM_CROWD)]
    wait_for(lambda: client.status().num_held_reqs >= NUM_CROWD // 4, "held requests")
    return found


def queue(client: ControlClient) -> list[RequestStatus]:
    """What is held, in the order in which it is to go."""
    found = client.requests(states=("waiting",)).requests
    return [item for item in found if item.held is not None]


def test_what_fits_nowhere_outlives_its_controller_and_goes_where_late_binding_ends(
    cluster: Cluster, client: ControlClient
) -> None:
    story = Story(client)
    answers = crowd(cluster, client, 200)
    waiting = sum(each.num_waiting_reqs or 0 for each in client.status().instances)
    assert waiting <= NUM_INSTANCES
    os.kill(cluster.controller_pid, signal.SIGKILL)
    check(answers)
    status = cluster.wait_state("ready")
    assert (status["policy"], status["num_held_reqs"]) == ("llumnix+", 0)

    answers = crowd(cluster, client, 100)
    change(client, {"scheduler.policy": "llumnix"})
    assert client.status().num_held_reqs == 0
    change(client, {"scheduler.policy": "llumnix+"})
    check([*answers, Answer(cluster, 400, 20)])
    assert story.events("rejected", "failed") == []


def test_what_is_held_is_seen_and_operated_on(cluster: Cluster, client: ControlClient) -> None:
    running, answers = one_on_each(cluster, client), held(cluster, client, 3)

    def head() -> HeldHeadStatus | None:
        found = client.status().held
        return found.head if found else None

    def kept_other_than(instance_id: str = "") -> str | None:
        found = head()
        if found is None or found.why != "kept" or found.instance_id == instance_id:
            return None
        return found.instance_id

    kept = wait_for(kept_other_than, "an instance to be kept")
    first, second, third = wait_for(lambda: len(q := queue(client)) == 3 and q, "them in the list")
    status, found = client.status(), head()
    assert [each.id for each in status.instances if each.kept_for is not None] == [kept]
    assert found is not None
    assert found.request_id == first.id
    assert status.held is not None
    assert status.held.demand_blocks == 3 * found.demand_blocks

    client.send(SetPriority(third.id, PriorityRequest(level="high")))
    wait_for(lambda: (h := head()) and h.request_id == third.id, "the new head")
    assert queue(client)[0].id == third.id
    explained = client.explain(third.id)
    assert explained.waiting is not None
    assert "is kept for it and lacks" in explained.waiting.why

    client.send(Abort(second.id, AbortRequest(reason="too much")))
    (ended,) = [each for each in answers if each.name in second.client_id]
    wait_for(lambda: ended.ended, "the end that its client is told")
    assert "an operator ended this request" in str(ended.error)

    body = json.dumps({"model": "embedded", "prompt": [7] * 1900, "max_tokens": 5}).encode()
    start = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", cluster.port), timeout=30) as connection:
        connection.sendall(f"{start}Content-Type: application/json\r\n\r\n".encode() + body)
        wait_for(lambda: len(queue(client)) == 3, "the client's request to be held")
    wait_for(lambda: len(queue(client)) == 2, "the request of the client that left to be forgotten")

    kept = wait_for(kept_other_than, "an instance to be kept for it")
    client.send(Drain(kept, DrainRequest(reason="test")))
    wait_for(lambda: kept_other_than(kept), "another to be kept")
    undrain(client, kept)
    for each in running:  # they have shown what they are for
        client.send(Abort(each.status(client).id, AbortRequest(reason="test")))
    check(each for each in answers if each is not ended)
    assert client.status().held is None


def test_a_prompt_goes_where_its_beginning_is_cached(
    cluster: Cluster, client: ControlClient
) -> None:
    """Though another instance has less work. By `llumnix+` it would, too, but for prompts that take
    longer to compute than fit here (tests/unit/core/test_core_placement.py)."""
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
    client.send(Abort(busy.status(client).id, AbortRequest(reason="test")))


def test_a_request_goes_elsewhere_when_the_instance_dies_that_was_kept_for_it(
    cluster: Cluster, client: ControlClient
) -> None:
    """It needs all of an instance, and on each runs one that fits on no other beside what is
    there."""
    story = Story(client)
    others = one_on_each(cluster, client, 450)
    (large,) = held(cluster, client, 1)
    kept = wait_for(
        lambda: (held := client.status().held) and held.head.instance_id,
        "an instance to be kept for it",
    )
    victim = next(each for each in client.status().instances if each.id == kept)
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    check([large, *others])
    assert {event.labels["from"] for event in story.events("replayed")} == {kept}
    cluster.wait_state("ready")
