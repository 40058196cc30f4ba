"""Auto-scaling at a controller whose instances say every half second what the test has them run."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replaced

from controller.core.fleet.autoscaler import Check
from controller.core.load.snapshot import InstanceRef
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.settings import AutoscaleConfig, AutoscaleMode
from controller.runtime.controller.operations.scaling import Autoscaling
from controller.runtime.controller.roster import LiveAutoscale, LiveConfig
from controller.runtime.messages.move_messages import HandoverEnded, HandoverOrdered
from tests.unit.runtime.controller_bed import CONFIG
from tests.unit.runtime.fakes import FakeNetwork, hello, settle
from tests.unit.runtime.steering_bed import SteeringBed

QUICK = AutoscaleConfig(
    first_check_after_s=1.0,
    check_interval_s=1.0,
    up_persistence_s=0.0,
    down_persistence_s=0.0,
    max_instances=6,
)
"""Instances have 64 blocks of 16 tokens: idle, one has 1,024 steps."""
KINDS = (
    EventKind.AUTOSCALED,
    EventKind.AUTOSCALE_PLANNED,
    EventKind.AUTOSCALE_BLOCKED,
    EventKind.AUTOSCALE_HELD,
    EventKind.AUTOSCALE_RELEASED,
)


class AutoscaleBed(SteeringBed):
    """`num_requests` of `blocks` each run on the instances in turn. A new instance says Hello after
    `cold_start_s`, and then that it serves or, if it is one of `failing`, that it cannot."""

    def __init__(self, network: FakeNetwork, num_instances: int = 2) -> None:
        super().__init__(network, num_instances)
        self.num_requests = 0
        self.blocks = 10
        self.backlog_s = 0.0
        self.cold_start_s = 3.0
        self.failing: set[str] = set()
        self.never: set[str] = set()
        """Ray finds no place for these."""
        self.seen: dict[str, Any] = {}
        """What the frontend says of the last minute, by the fields of its Hello."""
        self._incarnations: Counter[str] = Counter()
        self._num_handed_over: Counter[str] = Counter()
        self.playing: asyncio.Task[None] | None = None

    async def begin_playing(self, mode: AutoscaleMode = "on", **config: Any) -> None:
        await self.serve()
        for instance_id in self.there:
            self._incarnations[instance_id] = 1
        self.playing = asyncio.create_task(self._play())
        self.set_mode(mode, **config)

    def set_mode(self, mode: AutoscaleMode, start_timeout_s: float = 600.0, **config: Any) -> None:
        live = LiveAutoscale(replace(QUICK, mode=mode, **config), start_timeout_s)
        self.controller.configure(LiveConfig(CONFIG, autoscale=live))

    @property
    def autoscaling(self) -> Autoscaling:
        return self.controller.autoscaling

    @property
    def checked(self) -> Check | None:
        """The last check."""
        return self.autoscaling.view().last

    @property
    def there(self) -> list[str]:
        """The instances that serve."""
        return sorted(m.member_id for m in self.controller.roster.instances() if m.serving)

    def told(self) -> list[LoggedEvent]:
        return self.events(*KINDS)

    def restart_controller(self) -> None:
        live = self.controller.live
        super().restart_controller()
        self.controller.configure(live)

    async def _play(self) -> None:
        due_s: dict[str, float] = {}
        while True:
            await asyncio.sleep(0.5)
            now_s = self.controller.now_s()
            self.says("f-0", replaced(hello("f-0", incarnation=1), **self.seen))
            await settle()
            there = [m.member_id for m in self.controller.roster.instances()]
            for instance_id in there:
                if instance_id not in self._incarnations:
                    due_s.setdefault(instance_id, now_s + self.cold_start_s)
                    if now_s >= due_s[instance_id] and instance_id not in self.never:
                        await self._starts(instance_id)
            alive = [i for i in there if self._incarnations[i]]
            busy = [i for i in alive if not self.is_told_to_drain(i)]
            for at, instance_id in enumerate(alive):
                await self.joins(instance_id, incarnation=self._incarnations[instance_id])
                number = 0
                if instance_id in busy:
                    at = busy.index(instance_id)
                    number = self.num_requests // len(busy) + (at < self.num_requests % len(busy))
                free = 64 - number * self.blocks
                await self.reports(
                    instance_id, num_running=number, free=free, backlog_s=self.backlog_s
                )
                self._answers_handovers(instance_id)

    def _answers_handovers(self, instance_id: str) -> None:
        """Nothing is cached, so each handover is over at once."""
        ordered = self.peers[instance_id].received(HandoverOrdered)
        incarnation = self._incarnations[instance_id]
        me = InstanceRef(instance_id, incarnation, f"mem://{instance_id}")
        for order in ordered[self._num_handed_over[instance_id] :]:
            self.says(instance_id, HandoverEnded(order.cause_id, me, 0, 0, True, 0.0))
        self._num_handed_over[instance_id] = len(ordered)

    async def _starts(self, instance_id: str) -> None:
        self.peers[instance_id] = self.network.peer(f"mem://{instance_id}")
        phase = "failed" if instance_id in self.failing else "active"
        await self.joins(instance_id, phase=phase)
        if instance_id not in self.failing:
            self._incarnations[instance_id] = 1
