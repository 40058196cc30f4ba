"""Drains and scaling at a controller whose members the test plays."""

import asyncio
from typing import Any, TypeVar

from controller.api.errors import LlumctlError
from controller.core.emptying.claims import Claim, Drain, Remove
from controller.core.fleet.cluster_spec import ClusterSpec, ScalePlan
from controller.core.migration.move_records import MoveInFlight, MoveRecord
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.record.request_record import RequestRecord, RequestState
from controller.runtime.messages.members import DrainSet, StatusPushed
from controller.runtime.messages.move_messages import (
    MoveAnswered,
    MoveRefusalAsked,
    MoveRefusalsAnswered,
)
from controller.runtime.messages.requests import RequestsAnswered, RequestsAsked
from tests.unit.runtime.controller_bed import Bed
from tests.unit.runtime.fakes import FakeNetwork, idle_snapshot, settle

MOVE = MoveInFlight("m-1", "r-1", "i-1", "copying", 0, 0, 1, "drain", 0.1)


def record(request_id: str, instance_id: str, state: RequestState, tokens: int) -> RequestRecord:
    return RequestRecord(
        request_id=request_id,
        client_request_id=f"cmpl-{request_id}",
        parent_id=None,
        frontend_id="f-0",
        level="normal",
        state=state,
        instance_id=instance_id,
        incarnation=1,
        arrival_time_s=1.0,
        num_prompt_tokens=tokens,
        num_output_tokens=0,
        num_evictions=0,
        first_token_time_s=None,
        end_time_s=None,
        finish_reason=None,
    )


C = TypeVar("C", bound=Claim)


class Disk:
    """Only counts, until it is full."""

    def __init__(self) -> None:
        self.is_full = False
        self.num_saved = 0

    def load(self) -> ClusterSpec | None:
        return None

    def save(self, _spec: ClusterSpec) -> None:
        if self.is_full:
            raise LlumctlError("no space left")
        self.num_saved += 1


class SteeringBed(Bed):
    """Frontends answer with `requests`, instances with `refusals`, all of them until told not to;
    instances say in their statuses that they drain, if the controller told them so."""

    def __init__(self, network: FakeNetwork, num_instances: int = 3) -> None:
        super().__init__(network, num_instances)
        self.requests: list[RequestRecord] = []
        self.refusals: dict[str, str] = {}
        self.silent: set[str] = set()
        self.take_wall_clock()
        self.answering = asyncio.create_task(self._answer_for_ever())

    def take_wall_clock(self) -> None:
        self.controller.drains._wall_clock = self.controller.now_s

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

    async def is_gone(self, instance_id: str = "i-0") -> None:
        while instance_id in self.controller.roster.members:
            await asyncio.sleep(0.05)

    async def reports(
        self,
        member_id: str,
        *,
        incarnation: int = 1,
        seen: int = 0,
        num_steps: int = 0,
        moves: tuple[MoveInFlight, ...] = (),
        num_moves_in: int = 0,
        **what: Any,
    ) -> None:
        await settle()  # so that it has heard what it was told
        what.setdefault("draining", self.is_told_to_drain(member_id))
        snapshot = idle_snapshot(member_id, incarnation, **what)
        pushed = StatusPushed(
            snapshot, seen, num_steps, 0.01, moves=moves, num_moves_in=num_moves_in
        )
        self.says(member_id, pushed)
        await settle()

    def is_told_to_drain(self, member_id: str) -> bool:
        said = self.peers[member_id].received(DrainSet)
        return bool(said) and said[-1].draining

    async def migrated(self, request_id: str = "r-1", outcome: str = "migrated") -> None:
        moved = MoveRecord("m-1", request_id, "i-0", "i-1", "drain", outcome, "", 160, 0, 0.1)
        self.says("i-0", MoveAnswered("", "", record=moved))
        await settle()

    def events(self, *kinds: EventKind) -> list[LoggedEvent]:
        wanted = kinds or (
            EventKind.DRAIN_STARTED,
            EventKind.DRAIN_OVERDUE,
            EventKind.DRAINED,
            EventKind.DRAIN_ENDED,
        )
        entries = self.controller.journal.log.after(None, 1000).entries
        return [event for _, event in entries if event.kind in wanted]

    def scale(self, target: int, *, force: bool = False, **what: Any) -> ScalePlan:
        plan = self.controller.scaling.plan(target, force=force)
        self.controller.scaling.carry_out(plan, self.claim(Remove, **what))
        return plan

    async def _answer_for_ever(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            for member_id, peer in self.peers.items():
                if member_id in self.silent:
                    continue
                for asked in peer.received(RequestsAsked):
                    found = tuple(
                        r for r in self.requests if asked.instance_id in (None, r.instance_id)
                    )
                    self.says(
                        member_id,
                        RequestsAnswered(asked.query_id, member_id, found, len(found)),
                    )
                for query in peer.received(MoveRefusalAsked):
                    refused = tuple((r, why) for r, why in self.refusals.items())
                    self.says(member_id, MoveRefusalsAnswered(query.query_id, refused))
                peer.inbox[:] = [
                    (message, payload)
                    for message, payload in peer.inbox
                    if not isinstance(message, RequestsAsked | MoveRefusalAsked)
                ]
