"""Streams whose requests are moved between instances while they are read."""

import http.client
import json
import math
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from controller.api.client import ControlClient
from controller.api.errors import RefusedError
from controller.api.operations.on_requests import Migrate, MigrateRequest, MigrationReport
from controller.api.wire.requests import RequestList, RequestState, RequestStatus
from tools.cluster import Cluster, wait_for

LIVE = (RequestState.WAITING, RequestState.RUNNING, RequestState.EVICTED)
PATIENCE_S = 120.0


@dataclass
class Read:
    """What a client has read of one choice; equal if, and only if, it cannot tell them apart."""

    text: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    """Of tools, by their index; without their ids, which are drawn anew each time."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: Any = None

    def equals_but_for_rounding(self, other: "Read") -> bool:
        """An evicted request is computed again as a prompt, by other operations than those of a
        decode: its log probabilities then differ in the sixth digit (seen after 1,470 tokens)."""
        return replace(self, logprobs=[]) == replace(other, logprobs=[]) and _are_close(
            self.logprobs, other.logprobs
        )


def _are_close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-4)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_are_close(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_are_close, one, other))
    return bool(one == other)


class Stream:
    """One request, read on a thread of its own: `name` is the client's id for it.

    The standard library reads it: on a busy machine readers by httpx fell behind, and those that
    had begun then kept others from the interpreter, seen for 11 s."""

    def __init__(self, cluster: Cluster, path: str, body: dict[str, Any], name: str) -> None:
        self.name = name
        self.choices: dict[int, Read] = {}
        self.error: Any = None
        self.refused: list[str] = []
        """Why moves of it were not begun."""
        self._cluster = cluster
        self._path = path
        self._body: dict[str, Any] = {
            "model": "embedded",
            "return_token_ids": True,
            "stream": True,
        } | body
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def num_tokens(self) -> int:
        """Of the choice that has read least; 0 before all have begun."""
        if len(self.choices) < self._body.get("n", 1):
            return 0
        return min(len(read.token_ids) for read in self.choices.values())

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def wait_tokens(self, count: int) -> bool:
        """Until it has read so many; False if it ended before."""
        wait_for(lambda: self.num_tokens >= count or self.ended, f"{count} tokens of {self.name}")
        return self.num_tokens >= count

    def result(self) -> list[Read]:
        self._thread.join(PATIENCE_S)
        assert self.ended, f"{self.name} did not end"
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

    def _read(self) -> None:
        try:
            self._stream()
        except (OSError, http.client.HTTPException) as error:  # the frontend is gone
            self.error = error

    def _stream(self) -> None:
        connection = self._connection()
        headers = {"X-Request-Id": self.name, "Content-Type": "application/json"}
        connection.request("POST", self._path, json.dumps(self._body), headers)
        response = connection.getresponse()
        try:
            if response.status != 200:
                self.error = response.read()
                return
            is_whole = False
            for line in response:
                if line.startswith(b"data: {"):
                    self._take(json.loads(line.removeprefix(b"data: ")))
                is_whole = is_whole or line.startswith(b"data: [DONE]")
            # A connection that is cut between two lines looks like an end to the library.
            if not is_whole:
                raise ConnectionError("the stream was cut")
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host = urlsplit(self._cluster.url).netloc
        tls = self._cluster.tls
        if isinstance(tls, ssl.SSLContext):
            return http.client.HTTPSConnection(host, timeout=PATIENCE_S, context=tls)
        return http.client.HTTPConnection(host, timeout=PATIENCE_S)

    def _take(self, chunk: dict[str, Any]) -> None:
        if "choices" not in chunk:
            self.error = chunk
            return
        for choice in chunk["choices"]:
            read = self.choices.setdefault(choice["index"], Read())
            read.text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            for call in (choice.get("delta") or {}).get("tool_calls") or ():
                parts = read.calls.setdefault(call["index"], {"name": "", "arguments": ""})
                for part, piece in call["function"].items():
                    parts[part] += piece or ""
            read.token_ids += choice.get("token_ids") or []
            if choice.get("logprobs"):
                read.logprobs += _logprobs(choice["logprobs"])
            read.finish_reason = choice["finish_reason"] or read.finish_reason
            read.stop_reason = choice.get("stop_reason") or read.stop_reason


def _logprobs(found: dict[str, Any]) -> Sequence[Any]:
    """Per token, of either API."""
    if "content" in found:
        content: Sequence[Any] = found["content"]
        return content
    rows = (found["tokens"], found["token_logprobs"], found["top_logprobs"])
    return list(zip(*rows, strict=True))
