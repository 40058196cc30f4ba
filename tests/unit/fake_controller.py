"""A controller of plain lists behind real HTTP: what the commands that read are tested against."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import BaseModel

from controller.api.explain import explain
from controller.api.operations.on_instances import DrainList, DrainReport
from controller.api.state import run_state
from controller.api.wire import ErrorBody
from controller.api.wire.history import HistoryReport
from controller.api.wire.requests import (
    Event,
    EventPage,
    Explanation,
    RequestDetail,
    RequestList,
    RequestState,
)
from controller.api.wire.status import ClusterStatus
from controller.api.wire.stream import EventFrame, GapFrame, PingFrame, StatusFrame, TrafficBatch
from tests.unit.cli_support import TOKEN, cluster

Answer = tuple[int, BaseModel]
Orders = Callable[[dict[str, Any]], Answer]
"""From the body of what is asked for."""
PING_S = 0.02
ARRIVAL_S = 1_700_000_000.0
"""2023-11-14 22:13:20 UTC."""


def event(kind: str = "admitted", **fields: Any) -> Event:
    known: dict[str, Any] = {"time_s": ARRIVAL_S + 0.25, "cause_id": "step", "instance_id": "i-0"}
    return Event(kind=kind, **(known | fields))


def request_fields(id_: str, **fields: Any) -> dict[str, Any]:
    """Of a request that runs on i-0."""
    known = {
        "id": id_,
        "client_id": f"cmpl-{id_}",
        "state": RequestState.RUNNING,
        "level": "normal",
        "frontend_id": "f-0",
        "instance_id": "i-0",
        "arrival_time_s": ARRIVAL_S,
        "age_s": 12.5,
        "ttft_s": 0.034,
        "num_prompt_tokens": 120,
        "num_output_tokens": 33,
        "num_evictions": 1,
    }
    return known | fields


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come about"
        time.sleep(0.005)


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Runs it on a thread of its own; what fails there fails here, and ends who follows."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
            run_state.remove("default")

    thread = threading.Thread(target=guarded)
    thread.start()
    yield
    thread.join()
    assert not failures, failures


class FakeController:
    """`epoch` names its event log: `restart` begins a new one on the same port.

    Fields may be set while it serves; `asked` are the paths of all that was asked, in order.
    `orders` answer what changes something, and are asked before all else; `ordered` are the
    bodies that came, with "POST /v1/..." before each.
    """

    def __init__(self, *events: Event, status: ClusterStatus | None = None) -> None:
        self.status = status or cluster()
        self.epoch = "a"
        self.events = list(events)
        self.num_forgotten = 0
        self.requests = RequestList(requests=(), num_matching=0)
        self.details: dict[str, RequestDetail] = {}
        self.history = HistoryReport()
        self.asked: list[str] = []
        self.drains: Sequence[DrainReport] = ()
        self.orders: dict[str, Orders] = {}
        self.ordered: list[tuple[str, dict[str, Any]]] = []
        self.is_silent = False
        """Whether it hears questions and answers none."""
        self.traffic: list[TrafficBatch] = []
        """What the next lines of a recording of the traffic are."""
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self._port = 0

    def __enter__(self) -> "FakeController":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler())
        self._server.daemon_threads = False
        self._port = self._server.server_address[1]
        self.stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.005}
        )
        self._thread.start()

    def stop(self) -> None:
        """Streams end too."""
        if self._server is None or self._thread is None:
            return
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server = None

    def restart(self, *events: Event, epoch: str = "b") -> None:
        self.stop()
        self.epoch, self.events, self.num_forgotten = epoch, list(events), 0
        self.start()

    def until_asked(self, path: str, times: int = 1) -> None:
        """Waits until a path that begins so was asked for this often."""
        until(lambda: sum(asked.startswith(path) for asked in self.asked) >= times)

    def until_asked_again(self, path: str) -> None:
        """Waits until an answer that was changed just now has been heard."""
        self.until_asked(path, 2 + sum(asked.startswith(path) for asked in self.asked))

    def bodies(self, path: str = "") -> list[dict[str, Any]]:
        """The bodies of the orders whose path ends so."""
        return [body for ordered, body in self.ordered if ordered.endswith(path)]

    def _position(self, index: int) -> str:
        return f"{self.epoch}-{index + self.num_forgotten}"

    def _page(self, after: str, limit: int) -> EventPage:
        """As the real log: of a position of another epoch nothing is known."""
        missed: int | None = 0
        first = 0
        if after:
            epoch, _, seq = after.rpartition("-")
            first = int(seq) - self.num_forgotten
            if epoch != self.epoch:
                first, missed = 0, None
            elif first < 0:
                first, missed = 0, -first
        found = self.events[first : first + limit]
        numbered = tuple(
            item.model_copy(update={"position": self._position(first + offset + 1)})
            for offset, item in enumerate(found)
        )
        last = self._position(first + len(found))
        return EventPage(events=numbered, next_position=last, missed=missed)

    def _frames(self, query: dict[str, list[str]]) -> Iterator[BaseModel]:
        after = query["after"][0]
        if after == "latest":
            after = self._position(len(self.events))
        every_s = float(query["status_every_s"][0]) if "status_every_s" in query else None
        told_s = 0.0
        while not self.stopping.wait(PING_S):
            now_s = time.time()
            if every_s is not None and now_s >= told_s + every_s:
                told_s = now_s
                yield StatusFrame(time_s=now_s, status=self.status)
            page = self._page(after, 1000)
            if page.missed != 0:
                yield GapFrame(time_s=now_s, missed=page.missed)
            for item in page.events:
                yield EventFrame(time_s=now_s, event=item)
            after = page.next_position
            yield PingFrame(time_s=now_s)

    def event_lines(self, query: dict[str, list[str]]) -> Iterator[bytes]:
        for frame in self._frames(query):
            yield frame.model_dump_json().encode() + b"\n"

    def traffic_lines(self) -> Iterator[bytes]:
        while True:
            batch = self.traffic.pop(0) if self.traffic else TrafficBatch(time_s=1000.0)
            yield batch.model_dump_json().encode() + b"\n"
            if self.stopping.wait(PING_S):
                return

    def answer(self, path: str, query: dict[str, list[str]]) -> Answer:
        if path == "/v1/status":
            return 200, self.status
        if path == "/v1/events":
            return 200, self._page(query.get("after", [""])[0], int(query["limit"][0]))
        if path == "/v1/requests":
            return 200, self.requests
        if path == "/v1/history":
            return 200, self.history
        if path == "/v1/drains":
            return 200, DrainList(drains=tuple(self.drains))
        reference = unquote(path.removeprefix("/v1/requests/"))
        if found := self.details.get(reference):
            return 200, found
        if found := self.details.get(reference.removesuffix("/explain")):
            return 200, Explanation(request=found, steps=explain(found.history))
        return 404, ErrorBody(
            code="not_found", message=f"there is no request {reference}", hint="llumctl requests"
        )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.ordered.append((f"POST {self.path}", body))
                if order := fake.orders.get(f"POST {self.path}"):
                    self.send(*order(body))
                else:
                    self.stream(fake.traffic_lines())

            def do_GET(self) -> None:
                fake.asked.append(self.path)
                parts = urlsplit(self.path)
                query = parse_qs(parts.query, keep_blank_values=True)
                if fake.is_silent:
                    fake.stopping.wait()
                elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self.send(403, ErrorBody(code="bad_token", message="bad token", hint="look"))
                elif answer := fake.orders.get(f"GET {parts.path}"):
                    self.send(*answer({}))
                elif parts.path == "/v1/watch":
                    self.stream(fake.event_lines(query))
                else:
                    self.send(*fake.answer(parts.path, query))

            def stream(self, stream: Iterator[bytes]) -> None:
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the reader left
                    for lines in stream:
                        self.wfile.write(lines)
                        self.wfile.flush()

            def send(self, code: int, body: BaseModel) -> None:
                raw = body.model_dump_json().encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who asked left
                    self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
