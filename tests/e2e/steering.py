"""What the tests of steering share: commands that must succeed, what happened since, and clients
that keep a cluster busy."""

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from controller.api.client import ControlClient
from controller.api.errors import NotDrainingError, NotFoundError
from controller.api.operations.on_cluster import SetSettings, SettingsPatch
from controller.api.operations.on_instances import Drain, DrainRequest, Undrain, UndrainRequest
from controller.api.wire import SettingValue
from controller.api.wire.requests import Event
from controller.api.wire.status import InstanceStatus
from tools.cluster import Cluster, running_with, wait_for


def own_cluster(config: str, name: str) -> Any:
    """The fixture `cluster` of a module that has a cluster of its own."""

    @pytest.fixture(scope="module")
    def cluster(
        base_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Cluster]:
        with running_with(config, tmp_path_factory.mktemp(name), base_env, name) as found:
            yield found

    return cluster


@pytest.fixture
def controlled(cluster: Cluster) -> Iterator[ControlClient]:
    """A module's fixture `client`."""
    with cluster.control() as client:
        yield client


def done(cluster: Cluster, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    found = cluster.run(*arguments)
    assert found.returncode == code, (arguments, found.stdout, found.stderr)
    return found


def json_of(cluster: Cluster, *arguments: str, code: int = 0) -> Any:
    return json.loads(done(cluster, *arguments, "-o", "json", code=code).stdout)


def drain(client: ControlClient, *instance_ids: str) -> None:
    """As `undrain`, and they are empty when it returns."""
    for instance_id in instance_ids:
        client.send(Drain(instance_id, DrainRequest(reason="test")))
    wait_for(
        lambda: all(each.state == "drained" for each in client.drains().drains), "drained instances"
    )


def undrain(client: ControlClient, *instance_ids: str) -> None:
    """At once, as the command does after the second that it takes to start on a busy machine:
    requests that wait for this grow meanwhile."""
    for instance_id in instance_ids:
        client.send(Undrain(instance_id, UndrainRequest(reason="test")))


def change(client: ControlClient, changes: dict[str, SettingValue]) -> None:
    client.send(SetSettings(SettingsPatch(changes=changes, reason="test")))


@contextmanager
def left_as_found(client: ControlClient) -> Iterator[None]:
    """Whatever becomes of a test, the next one finds the settings as this one did, nothing drained
    and nobody served."""
    before = _settings(client)
    try:
        yield
    finally:
        for each in client.drains().drains:
            with suppress(NotFoundError, NotDrainingError):  # over since, or gone
                undrain(client, each.instance_id)
        now = _settings(client)
        if changes := {key: value for key, value in before.items() if now[key] != value}:
            change(client, changes)
        wait_for(lambda: not _num_requests(client), "requests of the test to end")


@pytest.fixture
def steered(cluster: Cluster) -> Iterator[ControlClient]:
    """A module's fixture `client`, if its tests change settings or drain instances."""
    with cluster.control() as client, left_as_found(client):
        yield client


def _settings(client: ControlClient) -> dict[str, SettingValue]:
    return {each.key: each.value for each in client.settings().settings}


def _num_requests(client: ControlClient) -> int:
    return sum(
        (each.num_running_reqs or 0) + (each.num_waiting_reqs or 0) + each.num_unreported_reqs
        for each in client.status().instances
    )


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
    """What happened since it was made, or after an earlier event."""

    def __init__(self, client: ControlClient, after: str = "") -> None:
        self._client = client
        self._after = after or client.status().last_event

    def events(self, *kinds: str) -> list[Event]:
        found: list[Event] = []
        after = self._after
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
        """Raises what the first wrong answer raised, also beside what failed for want of load."""
        self._enough.set()
        self._clients.shutdown()
        self.check()

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
