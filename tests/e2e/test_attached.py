"""An attached server beside emulated instances: it gets its share of the load, is drained, killed
while it streams, comes back without an order, and is detached. No token is lost or wrong."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from controller.api.client import ControlClient
from tests.e2e import steering
from tests.e2e.emulated import Answer, check
from tests.e2e.steering import done, ids_of, instance, num_running
from tools.cluster import Cluster, wait_for

NUM_PROMPT = 48
CONFIG = """
[cluster]
engine = "emulated"
instances = 2

[emulated]
num_blocks = 513
"""
SERVER_ID = "i-2"

cluster = steering.own_cluster(CONFIG, "attached")
client = steering.controlled


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def server(port: int) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, "FAKE_STEP_S": "0.02", "FAKE_PROMPT_TOKENS": str(NUM_PROMPT)}
    command = [sys.executable, "-m", "tools.fake_server", "vllm", str(port)]
    process = subprocess.Popen(command, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def under_load(cluster: Cluster, client: ControlClient) -> list[Answer]:
    """Answers of which the server has some."""
    answers = [Answer(cluster, NUM_PROMPT, 150) for _ in range(12)]
    wait_for(lambda: num_running(client, SERVER_ID) > 1, "requests on the server")
    assert all(each.wait_tokens(20) for each in answers)
    return answers


def test_a_server_serves_drains_dies_returns_and_is_detached(
    cluster: Cluster, client: ControlClient
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with server(port) as process:
        wait_for(lambda: listens(port), "the server")
        done(cluster, "attach", url)
        found = instance(client, SERVER_ID)
        assert found.attached is not None
        assert (found.attached.url, found.attached.kind) == (url, "vllm")
        assert "attached already as i-2" in done(cluster, "attach", url).stderr

        answers = under_load(cluster, client)
        live = [each for answer in answers for each in answer.live(client)]
        there = [each for each in live if each.instance_id == SERVER_ID]
        assert there
        why_not = client.explain(there[0].id).why_not_movable
        assert "attached server" in why_not
        steering.drain(client, SERVER_ID)
        check(answers)
        steering.undrain(client, SERVER_ID)

        answers = under_load(cluster, client)
        story = steering.Story(client)
        process.kill()
        check(answers)
        assert story.events("replayed"), "none was replayed"
    wait_for(lambda: instance(client, SERVER_ID).state == "restarting", "the server's absence")
    with server(port):
        wait_for(lambda: instance(client, SERVER_ID).state == "active", "its return")
        check(under_load(cluster, client))
        done(cluster, "detach", SERVER_ID, "-y")
        assert ids_of(client) == ["i-0", "i-1"]


def listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0
