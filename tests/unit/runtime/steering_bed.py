"""Drains and scaling at a controller whose members the test plays."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from controller.core.emptying.claims import Claim, Drain, Remove
from controller.core.emptying.drains import DrainProgress, DrainState
from controller.core.fleet.cluster_spec import ScalePlan
from controller.core.migration.move_records import MoveInFlight, MoveRecord
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.record.request_record import RequestRecord, RequestState
from controller.runtime.messages.members import Message
from controller.runtime.messages.move_messages import (
    MoveAnswered,
    MoveRefusalAsked,
    MoveRefusalsAnswered,
)
from controller.runtime.messages.requests import RequestsAnswered, RequestsAsked
from tests.unit.runtime.controller_bed import Bed
from tests.unit.runtime.fakes import FakeNetwork, settle

DRAIN_EVENTS = (
    EventKind.DRAIN_STARTED,
    EventKind.DRAIN_OVERDUE,
    EventKind.DRAINED,
    EventKind.DRAIN_ENDED,
)
MOVE = MoveInFlight("m-1", "r-1", "i-1", "copying", 0, 0, 1, "drain", 0.1)


def record(request_id: str, instance_id: str, state: RequestState, tokens: int) -> RequestRecord:
    ids = (request_id, f"cmpl-{request_id}", None, "f-0", "normal")
    return RequestRecord(*ids, state, instance_id, 1, 1.0, tokens, 0, 0, None, None, None)


C = TypeVar("C", bound=Claim)
Question = RequestsAsked | MoveRefusalAsked


class SteeringBed(Bed):
    """Frontends answer with `requests`, instances with `refusals`, all of them until told not to.
    The controller's wall clock is the loop's."""

    def __init__(self, network: FakeNetwork, num_instances: int = 3, **what: Any) -> None:
        super().__init__(network, num_instances, **what)
        self.requests: list[RequestRecord] = []
        self.refusals: dict[str, str] = {}
        self.silent: set[str] = set()
        self.num_asked = 0
        """Questions that were answered."""
        self.answering = asyncio.create_task(self._answer_for_ever())

    def wall_clock(self) -> float:
        return asyncio.get_running_loop().time()

    def claim(self, kind: type[C], **what: Any) -> C:
        known = {"cause_id": "op-1", "made_s": self.controller.now_s()}
        return kind(**{**known, "actor": "ana", "reason": "a fan", **what})

    def begin(self, instance_id: str = "i-0", kind: type[Claim] = Drain, **what: Any) -> None:
        self.controller.drains.begin({instance_id: self.claim(kind, **what)})

    def runs(self, instance_id: str = "i-0", *request_ids: str, tokens: int = 160) -> None:
        """At the frontend. What the instance says of it is `reports`."""
        self.requests = [r for r in self.requests if r.instance_id != instance_id]
        running = RequestState.RUNNING
        self.requests += [record(r, instance_id, running, tokens) for r in request_ids]

    async def until(self, condition: Callable[[], object], within_s: float = 5.0) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.05)

    async def is_gone(self, instance_id: str = "i-0") -> None:
        await self.until(lambda: instance_id not in self.controller.roster.members)

    async def is_restarted(self, instance_id: str = "i-0") -> None:
        """Its process was told to end."""
        await self.until(lambda: instance_id in self.launcher.restarted)

    def progress(self, instance_id: str = "i-0") -> DrainProgress:
        return self.controller.drains.progress(instance_id)

    async def becomes(self, state: DrainState, instance_id: str = "i-0") -> None:
        await self.until(lambda: self.progress(instance_id).state is state)

    async def migrated(self, request_id: str = "r-1", outcome: str = "migrated") -> None:
        moved = MoveRecord("m-1", request_id, "i-0", "i-1", "drain", outcome, "", 160, 0, 0.1)
        self.says("i-0", MoveAnswered("", "", record=moved))
        await settle()

    def events(self, *kinds: EventKind) -> list[LoggedEvent]:
        return super().events(*(kinds or DRAIN_EVENTS))

    def whys(self, *kinds: EventKind) -> list[str]:
        return [event.reason for event in self.events(*kinds)]

    def scale(self, target: int, *, force: bool = False, **what: Any) -> ScalePlan:
        plan = self.controller.scaling.plan(target, force=force)
        self.controller.scaling.carry_out(plan, self.claim(Remove, **what))
        return plan

    async def _answer_for_ever(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            for member_id, peer in self.peers.items():
                if member_id not in self.silent:
                    asked = [m for m, _ in peer.inbox if isinstance(m, Question)]
                    peer.inbox[:] = [each for each in peer.inbox if each[0] not in asked]
                    self.num_asked += len(asked)
                    for question in asked:
                        self.says(member_id, self._answer(question, member_id))

    def _answer(self, question: Question, member_id: str) -> Message:
        if isinstance(question, MoveRefusalAsked):
            return MoveRefusalsAnswered(question.query_id, tuple(self.refusals.items()))
        known = [r for r in self.requests if question.instance_id in (None, r.instance_id)]
        return RequestsAnswered(question.query_id, member_id, tuple(known), len(known))
