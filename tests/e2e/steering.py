"""What the tests of steering share: commands that must succeed, what happened since, and clients
that keep a cluster busy."""

import json
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from controller.api.client import ControlClient
from controller.api.models import Event, InstanceStatus
from controller.api.steer_models import UndrainRequest
from tests.e2e.cluster import Cluster


def done(cluster: Cluster, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    found = cluster.run(*arguments)
    assert found.returncode == code, (arguments, found.stdout, found.stderr)
    return found


def json_of(cluster: Cluster, *arguments: str, code: int = 0) -> Any:
    return json.loads(done(cluster, *arguments, "-o", "json", code=code).stdout)


def undrain(client: ControlClient, *instance_ids: str) -> None:
    """At once, as the command does after the second that it takes to start on a busy machine:
    requests that wait for this grow meanwhile."""
    for instance_id in instance_ids:
        client.undrain(instance_id, UndrainRequest(reason="test"))


def ids_of(client: ControlClient) -> list[str]:
    return [item.id for item in client.status().instances]


def instance(client: ControlClient, instance_id: str) -> InstanceStatus:
    return next(item for item in client.status().instances if item.id == instance_id)


def num_running(client: ControlClient, instance_id: str) -> int:
    return instance(client, instance_id).num_running_reqs or 0


def num_used_blocks(client: ControlClient, instance_id: str) -> int:
    """By whomever."""
    found = instance(client, instance_id)
    assert found.num_total_blocks is not None
    assert found.num_free_blocks is not None
    return found.num_total_blocks - found.num_free_blocks


class Story:
    """What happened since it was made."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client
        self._after = client.status().last_event

    def events(self, *kinds: str) -> list[Event]:
        found, after = [], self._after
        while (page := self._client.events(after, 1000)).events:
            found += page.events
            after = page.next_position
        return [event for event in found if event.kind in kinds]

    def moves(self, reason: str, to: str | None = None) -> list[Event]:
        return [
            event
            for event in self.events("migrated")
            if event.labels["reason"] == reason and to in (None, event.instance_id)
        ]


class Load:
    """So many clients at a time, each with one request after the other; `ask` makes one and raises
    if its answer is wrong."""

    def __init__(self, num_clients: int, ask: Callable[[int], None]) -> None:
        self._ask = ask
        self._enough = threading.Event()
        self._clients = ThreadPoolExecutor(num_clients)
        self._counts = [self._clients.submit(self._go_on, k) for k in range(num_clients)]

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._clients.shutdown()

    def check(self) -> int:
        """Ends it. How many answers there were; raises what the first wrong one raised."""
        self._enough.set()
        return sum(count.result() for count in self._counts)

    def _go_on(self, client: int) -> int:
        count = 0
        while not self._enough.is_set():
            self._ask(client)
            count += 1
        return count
