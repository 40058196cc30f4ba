"""Requests that the controller holds under llumnix+: what operators see of them, do with them, and
what becomes of them when the cluster stops. On emulated instances, whose every token is checked."""

import json
import socket
from collections.abc import Iterator

import pytest

from controller.api.client import ControlClient
from controller.api.operations.on_instances import Drain, DrainRequest, Undrain, UndrainRequest
from controller.api.operations.on_requests import Abort, AbortRequest, PriorityRequest, SetPriority
from controller.api.wire.requests import RequestStatus
from tests.e2e.emulated import Answer, check
from tests.e2e.steering import done
from tools.cluster import Cluster, running_with, wait_for

CONFIG = """
[cluster]
engine = "emulated"
instances = 2

[emulated]
speed = 1.0
num_blocks = 129

[scheduler]
policy = "llumnix+"

[holding]
room_to_grow_tokens = 0
making_room = false

[migration]
enabled = false
"""
FULL, NUM_STEPS = 1600, 380
"""One such request fills an instance: 100 of its 127 blocks, and in the end 124."""
HELD = 480
"""Tokens that take 30 blocks: they fit on neither."""


def status_of(client: ControlClient, answer: Answer) -> RequestStatus | None:
    """While it is held."""
    return next((item for item in queue(client) if answer.name in item.client_id), None)


def queue(client: ControlClient) -> list[RequestStatus]:
    """What is held, in the order in which it is to go."""
    found = client.requests(states=("waiting",)).requests
    return [item for item in found if item.held is not None]


def full(
    cluster: Cluster, client: ControlClient, num_held: int
) -> tuple[list[Answer], list[Answer]]:
    """(what runs, what is held), on two instances that have room for nothing more."""
    running = [Answer(cluster, FULL, NUM_STEPS) for _ in range(2)]
    assert all(each.wait_tokens(1) for each in running)
    held = []
    for place in range(1, num_held + 1):
        held.append(Answer(cluster, HELD, 5))
        wait_for(lambda place=place: len(queue(client)) == place, f"{place} held requests")
    return running, held


@pytest.fixture(scope="module")
def cluster(
    base_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with running_with(CONFIG, tmp_path_factory.mktemp("held"), base_env, "held") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ControlClient]:
    with cluster.control() as client:
        yield client


def test_they_are_seen_and_operated_on(cluster: Cluster, client: ControlClient) -> None:
    running, (first, second, third) = full(cluster, client, 3)
    status = client.status()
    assert status.held is not None
    assert (status.num_held_reqs, status.held.demand_blocks) == (3, 90)
    head = status.held.head
    assert (head.why, head.demand_blocks) == ("kept", 30)
    assert head.request_id == queue(client)[0].id
    kept = head.instance_id
    assert [i.id for i in status.instances if i.kept_for is not None] == [kept]

    third_id = queue(client)[2].id
    client.send(SetPriority(third_id, PriorityRequest(level="high")))
    wait_for(lambda: queue(client)[0].id == third_id, "the new order")
    wait_for(
        lambda: (held := client.status().held) and held.head.request_id == third_id, "the new head"
    )
    explained = client.explain(third_id)
    assert explained.waiting is not None
    assert "is kept for it and lacks" in explained.waiting.why

    second_status = status_of(client, second)
    assert second_status is not None
    client.send(Abort(second_status.id, AbortRequest(reason="too much")))
    wait_for(lambda: second.ended, "the end that its client is told")
    assert "an operator ended this request" in str(second.error)
    assert status_of(client, second) is None

    client.send(Drain(str(kept), DrainRequest(reason="test")))
    (other,) = [item.id for item in status.instances if item.id != kept]
    wait_for(
        lambda: (held := client.status().held) and held.head.instance_id == other,
        "another instance to be kept",
    )
    client.send(Undrain(str(kept), UndrainRequest(reason="test")))
    check((*running, first, third))
    assert client.status().held is None


def test_one_whose_client_leaves_is_forgotten(cluster: Cluster, client: ControlClient) -> None:
    running, (first,) = full(cluster, client, 1)
    body = json.dumps({"model": "embedded", "prompt": [7] * HELD, "max_tokens": 5}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", cluster.port), timeout=30) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        wait_for(lambda: len(queue(client)) == 2, "the client's request to be held")
    wait_for(lambda: len(queue(client)) == 1, "the request of the client that left to be forgotten")
    assert status_of(client, first) is not None
    check((*running, first))


def test_down_serves_them_within_its_grace(cluster: Cluster, client: ControlClient) -> None:
    running, held = full(cluster, client, 2)
    done(cluster, "down", "--timeout", "100")
    check((*running, *held))
    assert not cluster.leftovers()
