"""A controller with its launcher and members played by the test, on virtual time."""

import asyncio
import time
from typing import Any, Self

from controller.api.errors import LlumctlError
from controller.core.admission.policies import SchedulerConfig
from controller.core.fleet.cluster_spec import ClusterSpec
from controller.core.fleet.incarnations import LastIncarnation
from controller.core.migration.move_records import MoveInFlight
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.operations.operated_cluster import SpecKeeper
from controller.runtime.controller.roster import LiveConfig
from controller.runtime.messages.members import DrainSet, StatusPushed, Welcome
from controller.runtime.messages.requests import DispatchAsked, Dispatched
from tests.unit.runtime.fakes import (
    FakeLauncher,
    FakeNetwork,
    FakePeer,
    hello,
    idle_snapshot,
    settle,
)

HERE = "mem://controller"
CONFIG = SchedulerConfig(max_held_reqs=2, hold_timeout_s=30.0, stall_timeout_s=5.0)


class KeptIncarnations:
    """An IncarnationStore in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, LastIncarnation] = {}

    def load(self) -> dict[str, LastIncarnation]:
        return dict(self.kept)

    def keep(self, member_id: str, last: LastIncarnation) -> None:
        self.kept[member_id] = last


class Disk:
    """A SpecStore that keeps the last spec, until it is full."""

    def __init__(self) -> None:
        self.is_full = False
        self.num_saved = self.num_refused = 0
        self.spec: ClusterSpec | None = None

    def load(self) -> ClusterSpec | None:
        return self.spec

    def save(self, spec: ClusterSpec) -> None:
        if self.is_full:
            self.num_refused += 1
            raise LlumctlError("no space left")
        self.num_saved += 1
        self.spec = spec


class Bed:
    """Instances say in their statuses that they drain, if the controller told them so."""

    def __init__(
        self,
        network: FakeNetwork,
        num_instances: int = 2,
        num_frontends: int = 1,
        launcher: FakeLauncher | None = None,
    ) -> None:
        self.network = network
        self.launcher = launcher or FakeLauncher()
        self.disk = Disk()
        self.keeper = SpecKeeper(ClusterSpec.first(num_instances), self.disk)
        self.incarnations = KeptIncarnations()
        self.controller = self._controller()
        ids = [f"i-{n}" for n in range(num_instances)] + [f"f-{n}" for n in range(num_frontends)]
        self.peers: dict[str, FakePeer] = {i: network.peer(f"mem://{i}") for i in ids}
        self.controller.start(num_frontends)
        self.task = asyncio.create_task(self.controller.run())

    @classmethod
    async def serving(cls, network: FakeNetwork, **what: Any) -> Self:
        bed = cls(network, **what)
        await bed.serve()
        return bed

    @property
    def f0(self) -> FakePeer:
        return self.peers["f-0"]

    def says(self, member_id: str, message: Any) -> None:
        self.peers[member_id].send(HERE, message)

    async def joins(self, member_id: str, **what: Any) -> None:
        self.says(member_id, hello(member_id, **what))
        await settle()

    async def dies(self, member_id: str) -> None:
        """Its next process is at the same address, and says nothing yet."""
        self.network.lose(f"mem://{member_id}")
        await settle()
        self.peers[member_id] = self.network.peer(f"mem://{member_id}")

    async def comes_back(self, member_id: str, nonce: str = "b", incarnation: int = 2) -> None:
        await self.joins(member_id, nonce=nonce)
        await self.joins(member_id, nonce=nonce, incarnation=incarnation)
        await self.reports(member_id, incarnation=incarnation)

    def incarnation(self, member_id: str) -> int:
        """What the member was told last, or was at the start."""
        told = self.peers[member_id].received(Welcome)
        return max([1, *(each.incarnation for each in told)])

    def is_told_to_drain(self, member_id: str) -> bool:
        said = self.peers[member_id].received(DrainSet)
        return bool(said) and said[-1].draining

    async def reports(
        self,
        member_id: str,
        *,
        incarnation: int = 1,
        seen: int = 0,
        num_steps: int = 0,
        step_time_s: float = 0.01,
        moves: tuple[MoveInFlight, ...] = (),
        num_moves_in: int = 0,
        **what: Any,
    ) -> None:
        await settle()  # so that it has heard what it was told
        what.setdefault("draining", self.is_told_to_drain(member_id))
        snapshot = idle_snapshot(member_id, incarnation, **what)
        pushed = StatusPushed(
            snapshot, seen, num_steps, step_time_s, moves=moves, num_moves_in=num_moves_in
        )
        self.says(member_id, pushed)
        await settle()

    async def serve(self) -> None:
        for member_id in self.peers:
            await self.joins(member_id)
        for member_id in self.peers:
            await self.joins(member_id, incarnation=1)
            if member_id.startswith("i"):
                await self.reports(member_id)
        await settle()  # what the last ones were sent because they serve
        for peer in self.peers.values():
            peer.inbox.clear()

    def asks(self, request_id: str = "r", frontend_id: str = "f-0", tokens: int = 160) -> None:
        self.says("f-0", DispatchAsked(DispatchRequested(request_id, frontend_id, tokens, 0, 1.0)))

    async def dispatched(self, request_id: str = "r", tokens: int = 160) -> Dispatch:
        self.asks(request_id, tokens=tokens)
        told = await self.f0.receive(Dispatched, lambda d: d.dispatch.request_id == request_id)
        return told.dispatch

    async def chosen(self, num: int = 4) -> list[str]:
        """The instances that so many requests go to."""
        return [(await self.dispatched(f"r-{n}")).instance_id for n in range(num)]

    def scheduled(self) -> set[str]:
        """The instances that may get requests."""
        records = self.controller.scheduler.instances.items()
        return {instance_id for instance_id, record in records if record.schedulable}

    def events(self, *kinds: EventKind) -> list[LoggedEvent]:
        entries = self.controller.journal.log.after(None, 1000).entries
        return [event for _, event in entries if event.kind in kinds]

    def restart_controller(self) -> None:
        """A new process at the same address, which finds what was stored."""
        self.task.cancel()
        self.network.lose(HERE)
        self.keeper = SpecKeeper(self.keeper.spec, self.disk)
        self.launcher = FakeLauncher()
        self.controller = self._controller()
        self.controller.start(sum(i.startswith("f") for i in self.peers))
        self.task = asyncio.create_task(self.controller.run())

    def _controller(self) -> ControllerProcess:
        return ControllerProcess(
            self.network.mailbox(HERE),
            self.launcher,
            LiveConfig(CONFIG),
            self.keeper,
            incarnations=self.incarnations,
            wall_clock=self.wall_clock,
        )

    def wall_clock(self) -> float:
        return time.time()
