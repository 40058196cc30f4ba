"""A controller with its control API on a real socket; the test speaks for its members."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import uvicorn

from controller.adapters.http import model_api
from controller.adapters.http.cluster_view import ClusterLabels, cluster_status
from controller.adapters.http.control_server import Access, ControlServer
from controller.adapters.http.model_api import ModelApi
from controller.api.settings.settings import Settings
from controller.api.state.audit import AuditLog
from controller.api.wire.status import ClusterStatus
from controller.core.fleet.cluster_spec import ClusterSpec
from controller.core.load.snapshot import InstanceSnapshot
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.operations.operated_cluster import SpecKeeper
from controller.runtime.controller.roster import LiveConfig
from controller.runtime.frontend.request_book import RequestBook
from controller.runtime.messages.codec import decode, encode, wire_version
from controller.runtime.messages.members import EngineInfo, Hello, Message, Phase, StatusPushed
from controller.runtime.messages.requests import RequestsAnswered, RequestsAsked
from tests.unit.runtime.controller_bed import Disk
from tests.unit.runtime.fakes import FakeLauncher

M = TypeVar("M", bound=Message)

TOKEN = "t0ken"
VIEW_TOKEN = "v1ew"
LABELS = ClusterLabels("c1", "embedded", "vllm", "http://127.0.0.1:8000", 1e9)
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


class Mailbox:
    """Delivers the test's messages, and answers for the frontends from a book."""

    address = "mem://controller"

    def __init__(self) -> None:
        self.engine_state: dict[str, RequestBook] = {}
        """By a frontend's address; a frontend without a book is silent."""
        self.sent: list[tuple[str, Any]] = []
        """All messages, as (address, message)."""
        self.answers: dict[str, Callable[[Any], Message | None]] = {}
        """What an instance answers to the messages that it gets, by its address."""

    def start(self, on_message: Any, on_lost: Any) -> None:
        self.say, self.lose = on_message, on_lost

    def send(self, address: str, frame: bytes, *_: Any, **__: Any) -> None:
        message, book = decode(frame), self.engine_state.get(address)
        if book is not None and isinstance(message, RequestsAsked):
            requests, num = book.answer(message)
            frontend_id = address.removeprefix("mem://")
            answer = RequestsAnswered(message.query_id, frontend_id, requests, num)
            asyncio.get_running_loop().call_soon(self.say, encode(answer), [])
        self.sent.append((address, message))
        said = self.answers[address](message) if address in self.answers else None
        if said is not None:
            asyncio.get_running_loop().call_soon(self.say, encode(said), [])

    def sent_to(self, address: str, kind: type[M]) -> list[M]:
        return [message for to, message in self.sent if to == address and isinstance(message, kind)]

    def forget(self, _address: str) -> None:
        pass

    async def close(self) -> None:
        pass


class Cluster:
    """A controller to which the test speaks in the names of its members."""

    def __init__(
        self, num_instances: int = 1, model: str = "", beside: "Cluster | None" = None
    ) -> None:
        """`beside`: the controller of the first of several models."""
        first: ControllerProcess | None = None if beside is None else beside.controller
        keeper = None if first is None else first.keeper
        number = 0 if keeper is None else keeper.next_instance
        self.mailbox = Mailbox()
        self.launcher = FakeLauncher()
        self.disk = Disk()
        spec = ClusterSpec.first(num_instances, from_number=number)
        self.controller: ControllerProcess = ControllerProcess(
            self.mailbox,
            self.launcher,
            LiveConfig(),
            SpecKeeper(spec, self.disk, keeper),
            model=model,
            beside=first,
        )
        self.now_s = 100.0
        # A clock of the test's, for this controller only.
        self.controller.now_s = lambda: self.now_s  # type: ignore[method-assign]
        self.controller.start(num_frontends=1)

    def hello(self, member_id: str, phase: Phase = "active", nonce: str = "a", **what: Any) -> None:
        is_instance = member_id.startswith("i")
        hello = Hello(
            wire=what.pop("wire", wire_version()),
            kind="instance" if is_instance else "frontend",
            member_id=member_id,
            nonce=nonce,
            incarnation=what.pop("incarnation", 0),
            address=f"mem://{member_id}",
            node="n1",
            pid=77,
            phase=phase,
            info=EngineInfo(512, 101, 16, ("generate",)) if is_instance else None,
            **what,
        )
        self.mailbox.say(encode(hello), [])

    def report(self, instance_id: str = "i-0", incarnation: int = 1, **what: Any) -> None:
        own = ("moves", "num_moves_in", "ttft_p99_by_rank_s")
        pushed = {key: what.pop(key) for key in own if key in what}
        fields: dict[str, Any] = {
            "instance_id": instance_id,
            "incarnation": incarnation,
            "block_size": 16,
            "num_total_blocks": 100,
            "num_free_blocks": 100,
        }
        snapshot = InstanceSnapshot(**(fields | what))
        self.mailbox.say(encode(StatusPushed(snapshot, 0, 12, 0.0072512345, **pushed)), [])

    def up(self) -> None:
        for member_id in self.controller.roster.members:
            self.hello(member_id)
        for member in self.controller.roster.instances():
            self.report(member.member_id, member.incarnation)
        self.controller.was_ready = True  # as the next tick notes

    def view(self) -> ClusterStatus:
        status = cluster_status(self.controller, LABELS, 1.0)
        assert ClusterStatus.model_validate_json(status.model_dump_json()) == status
        return status

    def states(self) -> list[str]:
        status = self.view()
        instances = [str(each.state) for each in status.instances]
        return [str(status.state), *instances, *[str(each.state) for each in status.frontends]]


class QuickServer(uvicorn.Server):
    """uvicorn's own looks take 0.15 s in all, and some hundred tests have a server of their own."""

    async def main_loop(self) -> None:
        while not self.should_exit:
            await asyncio.sleep(0.002)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.sleep(0.002)
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
        for each in self.servers:
            each.close()


class Listener:
    """`status_lasts_s`: by default each status is built anew, because tests change the cluster
    behind the server's back."""

    def __init__(
        self,
        num_instances: int = 1,
        settings: Settings | None = None,
        status_lasts_s: float = 0.0,
        **more: Any,
    ) -> None:
        self.cluster = Cluster(num_instances)
        self.cluster.up()
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        """Of the audit log and the members' logs."""
        self.audit = AuditLog(self.folder)
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = self.socket.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model_api, "STATUS_LASTS_S", status_lasts_s)
            patch.setattr(uvicorn, "Server", self._serving_quickly)
            self.api = ModelApi(
                self.cluster.controller,
                LABELS,
                self.audit,
                settings or Settings(),
                log_dir=self.folder,
                **more,
            )
            self.server = ControlServer(
                {LABELS.model: self.api},
                Access("127.0.0.1", 0, TOKEN, VIEW_TOKEN),
                metrics=lambda found: f"of {found[LABELS.model].cluster}".encode(),
                metrics_type="text/plain; version=0.0.4",
                listening=self.socket,
            )
        self.close = self._folder.cleanup

    def _serving_quickly(self, config: uvicorn.Config) -> uvicorn.Server:
        self.uvicorn = QuickServer(config)
        return self.uvicorn


Both = tuple[Listener, httpx.AsyncClient]


@asynccontextmanager
async def listening(
    num_instances: int = 1, settings: Settings | None = None, **more: Any
) -> AsyncIterator[Both]:
    listener, over = Listener(num_instances, settings, **more), asyncio.Event()

    async def work() -> None:
        await over.wait()

    serving = asyncio.create_task(listener.server.run_beside(work()))
    try:
        async with httpx.AsyncClient(
            base_url=listener.url,
            timeout=5.0,
            trust_env=False,
            verify=False,  # plain http; loading certificates takes 36 ms of CPU
        ) as client:
            yield listener, client
    finally:
        over.set()
        await asyncio.wait_for(serving, 5.0)
        listener.close()
