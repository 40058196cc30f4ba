"""Streams whose requests are moved between instances while they are read."""

import ssl
from typing import Any

from controller.api.client import ControlClient
from controller.api.errors import RefusedError
from controller.api.operations.on_requests import Migrate, MigrateRequest, MigrationReport
from controller.api.wire.requests import RequestList, RequestState, RequestStatus
from controller.main.doctor.trial_stream import PATIENCE_S, Read, ReadStream
from tools.cluster import Cluster, wait_for

__all__ = ["Read", "Stream"]

LIVE = (RequestState.WAITING, RequestState.RUNNING, RequestState.EVICTED)


class Stream(ReadStream):
    """A request to a test's cluster: `name` is the client's id for it."""

    def __init__(self, cluster: Cluster, path: str, body: dict[str, Any], name: str) -> None:
        self.refused: list[str] = []
        """Why moves of it were not begun."""
        tls = cluster.tls if isinstance(cluster.tls, ssl.SSLContext) else None
        super().__init__(cluster.url, path, {"model": "embedded"} | body, name, tls)

    def wait_tokens(self, count: int) -> bool:
        """Until it has read so many; False if it ended before."""
        wait_for(lambda: self.num_tokens >= count or self.ended, f"{count} tokens of {self.name}")
        return self.num_tokens >= count

    def result(self) -> list[Read]:
        assert self.join(PATIENCE_S), f"{self.name} did not end"
        assert self.error is None, self.error
        return [self.choices[index] for index in sorted(self.choices)]

    def live(self, client: ControlClient) -> list[RequestStatus]:
        """Its sequences that have not ended, as the cluster knows them once all frontends answer:
        on a busy machine one may take longer than the controller waits."""

        def told() -> RequestList | None:
            found = client.requests(states=LIVE)
            return None if found.silent_frontends else found

        found = wait_for(told, "an answer of all frontends")
        assert found is not None
        return [r for r in found.requests if self.name in r.client_id]

    def status(self, client: ControlClient) -> RequestStatus:
        """Of its first sequence."""
        live = self.live(client)
        assert live, f"{self.name} is over: {self.num_tokens} tokens read"
        return client.request(live[0].id)

    def move(self, client: ControlClient, *, verify_kv: bool = False) -> list[MigrationReport]:
        """Each of its sequences to the other instance of two."""
        reports = []
        for request in self.live(client):
            there = "i-1" if request.instance_id == "i-0" else "i-0"
            wanted = MigrateRequest(to=there, verify_kv=verify_kv, reason="test")
            try:
                reports.append(client.send(Migrate(request.id, wanted)))
            except RefusedError as error:  # it has finished since
                self.refused.append(str(error))
        return reports
