"""Drains, their forecasts, and rolling restarts as the controller runs them.

`core.emptying.drains` and `core.fleet.rolling` decide. This module tells those machines what the
roster and the latest statuses say of the instances. It also carries out their instructions: it
saves the spec, tells and asks members, and ends processes.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from controller.api.errors import LlumctlError
from controller.api.text.status_words import engine_arguments
from controller.core.emptying.claims import Claim
from controller.core.emptying.drains import (
    AskFrontends,
    BeganServing,
    ClaimsChanged,
    DrainProgress,
    Drains,
    DrainState,
    Evacuated,
    Event,
    Failed,
    FindStayers,
    Forget,
    FrontendsAnswered,
    HandedOver,
    HandOver,
    InstanceProcess,
    Instruction,
    Log,
    MoveEnded,
    Remainder,
    Removed,
    Replace,
    Replaced,
    ReplayElsewhere,
    Resumed,
    Seen,
    StayersFound,
    TakeBack,
    TellFrontends,
    TellInstance,
    Terminate,
    Ticked,
    Unanswered,
)
from controller.core.emptying.forecast import Departure, DrainForecast, to_replay
from controller.core.emptying.relief import NO_DESTINATION, Candidate
from controller.core.fleet import rolling
from controller.core.fleet.cluster_spec import ClusterSpec, RollingOrder
from controller.core.fleet.rolling import (
    NO_OTHER_SERVES,
    Began,
    ChangeSpec,
    InstanceNow,
    RollingRefusal,
    RollingRestart,
    SpecChanged,
    SpecNotChanged,
    Stopped,
    Tell,
    in_turn,
    refusal,
)
from controller.core.load.snapshot import (
    DemandFor,
    InstanceRef,
    InstanceSnapshot,
    one_block_each,
)
from controller.core.migration.move_records import MoveRecord
from controller.core.migration.refusals import MoveRefusal
from controller.core.record.request_record import RequestRecord, RequestState
from controller.ports.processes import LauncherLostError
from controller.runtime.controller.operations.operated_cluster import (
    OperatedCluster,
    OperationRefusedError,
)
from controller.runtime.controller.roster import Member
from controller.runtime.messages.members import DrainSet
from controller.runtime.messages.move_messages import HandoverEnded, HandoverOrdered
from controller.runtime.messages.requests import ReplayOrdered

log = logging.getLogger(__name__)


class DrainRunner:
    def __init__(
        self,
        cluster: OperatedCluster,
        forecasts: "DrainForecasts",
        wall_clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._forecasts = forecasts
        self._wall_clock = wall_clock
        self.machine = Drains()
        self._questions: set[asyncio.Task[None]] = set()
        """The questions under way. The set keeps them alive, as the loop itself holds tasks
        weakly."""

    # -- what operators do ---------------------------------------------------------------

    def schedulable_ids(self) -> set[str]:
        """The instances that may get requests now."""
        cluster = self._cluster
        schedulable = cluster.scheduler.schedulable_snapshots()
        return {each.instance_id for each in schedulable}

    def begin(self, claims: Mapping[str, Claim]) -> None:
        """Makes a claim to each of these instances. A drain that is under way keeps its id and its
        counts."""
        self.carry_out(self._cluster.keeper.spec.with_claims(claims))

    def end(self, instance_id: str, why: str, actor: str = "") -> None:
        """Ends a drain: the requests stay where they are, and the instance takes new ones. Does
        nothing if the instance is not being drained."""
        spec = self._cluster.keeper.spec
        if instance_id in spec.drains:
            self.carry_out(spec.without_drain(instance_id), why, actor)

    def carry_out(self, spec: ClusterSpec, why: str = "", actor: str = "") -> None:
        """Makes `spec` the present one, and begins, changes and ends drains accordingly. `why` and
        `actor` are for drains that end. If the keeper raises an error, this method raises the same
        error and nothing changes."""
        concerned = {*spec.drains, *self._cluster.keeper.spec.drains}
        self._cluster.keeper.change(spec)
        seen = {each: self._seen(each) for each in concerned}
        self._handle(ClaimsChanged(spec.drains, seen, self._wall_clock(), why, actor))

    # -- how far drains are ----------------------------------------------------------------

    def progress(self, instance_id: str) -> DrainProgress:
        return self.machine.view(instance_id, self._seen(instance_id), self._cluster.now_s())

    def is_replacing(self, instance_id: str) -> bool:
        """Whether the instance's process ends because it is restarted."""
        return self.machine.is_replacing(instance_id)

    # -- what the controller reports --------------------------------------------------------

    def resume(self) -> None:
        """Goes on with the drains of the spec, before any instance is heard."""
        self._handle(Resumed(self._cluster.keeper.spec.drains))

    def began_serving(self, member: Member) -> None:
        self._handle(BeganServing(member.member_id, self._wall_clock()))

    def move_ended(self, record: MoveRecord) -> None:
        self._handle(MoveEnded(record.source_id, record.outcome))

    def handed_over(self, ended: HandoverEnded) -> None:
        source, drain_id = ended.source, ended.cause_id
        self._handle(
            HandedOver(
                source.instance_id,
                source.incarnation,
                drain_id,
                ended.num_prompts,
                ended.num_tokens,
                ended.complete,
                ended.took_s,
            )
        )

    def tick(self) -> None:
        """Looks at each drain. If the look at one drain fails, the others are looked at anyway."""
        frontends = self._cluster.roster.frontends()
        all_heard, wall_s = all(f.heard_s is not None for f in frontends), self._wall_clock()
        for instance_id in tuple(self.machine.claims):
            try:
                self._handle(Ticked(instance_id, self._seen(instance_id), all_heard, wall_s))
            except Exception as error:
                is_defect = not isinstance(error, LlumctlError | LauncherLostError)
                log.error("drain of %s: %s", instance_id, error, exc_info=is_defect)
                self._handle(Failed(instance_id))

    # -- the machine's events and instructions --------------------------------------

    def _seen(self, instance_id: str) -> Seen:
        cluster = self._cluster
        member = cluster.roster.members.get(instance_id)
        if member is None:
            return Seen()
        process = InstanceProcess(
            member.nonce,
            member.alive,
            member.serving,
            failed=member.alive and member.phase == "failed",
            incarnation=member.incarnation,
            detail=member.detail,
        )
        status = cluster.statuses.get(instance_id)
        record = cluster.scheduler.instances.get(instance_id)
        if status is None or record is None or status.snapshot.incarnation != member.incarnation:
            return Seen(process)
        snapshot = status.snapshot
        left = Remainder(
            snapshot.num_running,
            snapshot.num_queued,
            record.unreported.num_requests,
            status.num_moves_in,
            len(status.moves),
        )
        return Seen(process, left, snapshot.draining)

    def _handle(self, event: Event) -> None:
        for instruction in self.machine.handle(event, self._cluster.now_s()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        cluster = self._cluster
        match instruction:
            case TellInstance(instance_id, draining, leaves_in_s):
                member = cluster.roster.members.get(instance_id)
                if member is not None and member.serving:
                    cluster.mail.send(member, DrainSet(draining, leaves_in_s))
            case TellFrontends():
                cluster.directories.tell()
            case Evacuated(instance_ids):
                cluster.rescheduler.evacuated = instance_ids
            case AskFrontends(instance_id, drain_id):
                self._ask(instance_id, drain_id, self._ask_frontends(instance_id, drain_id))
            case FindStayers(instance_id, drain_id):
                self._ask(instance_id, drain_id, self._find_stayers(instance_id, drain_id))
            case ReplayElsewhere(instance_id, request_ids):
                member = cluster.roster.members.get(instance_id)
                if member is not None and member.serving:
                    why = f"instance {instance_id} is restarted, and this request cannot move"
                    told = (instance_id, member.incarnation, request_ids, why)
                    cluster.mail.send_to_all(cluster.roster.frontends(), ReplayOrdered(*told))
            case HandOver(instance_id, drain_id, within_s):
                member = cluster.roster.members.get(instance_id)
                if member is not None and member.serving:
                    takers = self._takers(instance_id)
                    cluster.mail.send(member, HandoverOrdered(drain_id, takers, within_s))
            case TakeBack(instance_id, kind, why):
                self.carry_out(cluster.keeper.spec.without_claim(instance_id, kind), why)
            case Replace(instance_id, nonce):
                cluster.restart(instance_id)
                self._handle(Replaced(instance_id, nonce))
            case Terminate(instance_id):
                cluster.terminate(instance_id)
            case Forget(instance_id, num_left):
                cluster.keeper.change(cluster.keeper.spec.without_instance(instance_id))
                self._handle(Removed(instance_id, num_left))
            case Log(instance_id, kind, drain_id, reason, actor, numbers):
                cluster.journal.note(
                    kind, drain_id, reason, instance_id=instance_id, actor=actor, numbers=numbers
                )

    def _takers(self, instance_id: str) -> tuple[InstanceRef, ...]:
        """The other instances that may get requests, the freest first: they take prompts over."""
        members, snapshots = self._cluster.roster.members, self._cluster.scheduler
        free = sorted(snapshots.schedulable_snapshots(), key=lambda each: -each.num_free_blocks)
        found = (members.get(each.instance_id) for each in free)
        return tuple(
            InstanceRef(member.member_id, member.incarnation, member.address)
            for member in found
            if member is not None and member.serving and member.member_id != instance_id
        )

    def _ask(self, instance_id: str, drain_id: str, question: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(question)
        self._questions.add(task)

        def over(done: asyncio.Task[None]) -> None:
            self._questions.discard(done)
            if not done.cancelled() and (error := done.exception()) is not None:
                log.error("a drain could not be looked at", exc_info=error)
                self._handle(Unanswered(instance_id, drain_id))

        task.add_done_callback(over)

    async def _ask_frontends(self, instance_id: str, drain_id: str) -> None:
        cluster = self._cluster
        found = await cluster.queries.requests(
            [each.member_id for each in cluster.roster.frontends() if each.serving],
            instance_id=instance_id,
            max_requests=1,
        )
        empty = not (found.silent or found.num_matching)
        seen, epoch_s = self._seen(instance_id), self._wall_clock()
        self._handle(FrontendsAnswered(instance_id, drain_id, empty, seen, epoch_s))

    async def _find_stayers(self, instance_id: str, drain_id: str) -> None:
        left = (await self._forecasts.of(instance_id)).departures
        stays = tuple(
            f"{each.request.request_id} {each.code}" for each in left if each.destination_id is None
        )
        scheduler, epoch_s = self._cluster.scheduler, self._wall_clock()
        spare = [each.unclaimed_blocks for each in scheduler.schedulable_snapshots()]
        replayable = to_replay(left, spare, scheduler.waiting_demand_blocks)
        self._handle(StayersFound(instance_id, drain_id, len(left), stays, epoch_s, replayable))


# -- forecasts -------------------------------------------------------------------------------------

MAX_REQUESTS = 10_000
_THERE = (RequestState.RUNNING, RequestState.EVICTED, RequestState.WAITING)
# How many rounds of a forecast are taken in one turn of the controller's loop.
_ROUNDS_AT_ONCE = 20
# Callers share one forecast of a running drain for this long.
LATELY_S = 1.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast of a drain. `departures`: where each request would go, in the order in which they
    are tried. `silent`: frontends that did not answer, so that their requests are missing."""

    departures: tuple[Departure, ...] = ()
    silent: tuple[str, ...] = ()


class DrainForecasts:
    """Which requests an instance has, and where they would go. The frontends know the requests; the
    instance knows which ones cannot move and why."""

    def __init__(self, cluster: OperatedCluster) -> None:
        self._cluster = cluster
        self._looks: dict[str, tuple[float, asyncio.Task[Forecast]]] = {}
        """The forecasts of `lately`, and when each began."""

    async def lately(self, instance_id: str) -> Forecast:
        """Returns a forecast that is at most one second old."""
        now_s = self._cluster.now_s()
        self._looks = {key: look for key, look in self._looks.items() if now_s < look[0] + LATELY_S}
        if instance_id not in self._looks:
            looking = asyncio.get_running_loop().create_task(self.of(instance_id))
            self._looks[instance_id] = now_s, looking
        # If one caller is cancelled, the others still wait for the forecast.
        return await asyncio.shield(self._looks[instance_id][1])

    async def of(self, instance_id: str, going: Collection[str] = ()) -> Forecast:
        """Makes a forecast from the latest statuses. `going`: further instances that cannot be
        destinations."""
        cluster = self._cluster
        frontends = [f.member_id for f in cluster.roster.frontends() if f.serving]
        found = await cluster.queries.requests(
            frontends,
            instance_id=instance_id,
            states=_THERE,
            max_requests=MAX_REQUESTS,
        )
        refusals = await self._refusals(instance_id, found.requests)
        status = self._cluster.statuses.get(instance_id)
        demand_for = one_block_each if status is None else status.snapshot.demand_for
        departing = [
            _candidate(
                record,
                record.rank,
                demand_for,
                refusals.get(record.request_id),
            )
            for record in found.requests
            # If the instance does not know a request, the request is over, or still on its way to
            # the instance.
            if refusals.get(record.request_id) != MoveRefusal.UNKNOWN
        ]
        client_ids = {record.request_id: record.client_request_id for record in found.requests}
        there = [
            (each, cluster.openness.unlike(instance_id, each.instance_id))
            for each in self._destinations({instance_id, *going})
        ]
        others = [each for each, code in there if code is None]
        forecast = DrainForecast(
            self._source(instance_id),
            departing,
            others,
            cluster.live.scheduler.levels,
            cluster.rescheduler.config,
            cluster.live.rescheduling.max_moves,
            cluster.openness.closed_to_moves(cluster.now_s()),
            next((code for _, code in there if code is not None), NO_DESTINATION),
        )
        num_rounds = 0
        while forecast.round():
            num_rounds += 1
            if num_rounds % _ROUNDS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return Forecast(forecast.departures(client_ids), found.silent)

    def _source(self, instance_id: str) -> InstanceSnapshot:
        """The instance's latest snapshot. An instance that has not reported has no request that
        could move."""
        status = self._cluster.statuses.get(instance_id)
        if status is not None:
            return status.snapshot
        return InstanceSnapshot(instance_id, 0, 1, num_total_blocks=1, num_free_blocks=1)

    async def _refusals(
        self, instance_id: str, records: tuple[RequestRecord, ...]
    ) -> dict[str, str]:
        member = self._cluster.roster.members.get(instance_id)
        if not records or member is None or not member.serving:
            return {}
        ids = [record.request_id for record in records]
        answers = await self._cluster.queries.refusals({instance_id: ids})
        return dict(answers.get(instance_id, {}))

    def _destinations(self, going: Collection[str]) -> list[InstanceSnapshot]:
        instances = self._cluster.scheduler.instances
        return [
            record.snapshot
            for instance_id, record in instances.items()
            if record.snapshot is not None and record.may_receive and instance_id not in going
        ]


def _candidate(
    record: RequestRecord, rank: int, demand_for: DemandFor, refusal: str | None
) -> Candidate:
    """The request as its frontend knows it. `evicted` is left out: in the forecast an instance with
    an evicted request would be no destination any more, but a real destination admits the request
    within a few steps."""
    num_tokens = record.num_prompt_tokens + record.num_output_tokens
    queued = record.state is not RequestState.RUNNING
    num_blocks = 0 if queued else demand_for(num_tokens)
    return Candidate(
        record.request_id,
        rank,
        num_tokens,
        num_blocks,
        num_blocks,
        queued,
        arrival_time_s=record.arrival_time_s,
        refusal=refusal,
    )


# -- rolling restarts ------------------------------------------------------------------------------


_REFUSED = {
    RollingRefusal.GOES: ("a rolling restart goes on already", "llumctl restart --stop"),
    RollingRefusal.NO_INSTANCES: ("there is no instance to restart", "llumctl status"),
    RollingRefusal.LAST_INSTANCE: (
        f"{NO_OTHER_SERVES} while the last one is restarted",
        "llumctl scale +1      or      llumctl restart --rolling --force",
    ),
}


class RollingRestarts:
    def __init__(
        self,
        cluster: OperatedCluster,
        drains: DrainRunner,
        wall_clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._drains = drains
        self._machine = RollingRestart()
        self._wall_clock = wall_clock

    @property
    def order(self) -> RollingOrder | None:
        """The last rolling restart, even if it is over."""
        return self._cluster.keeper.spec.rolling

    @property
    def goes(self) -> bool:
        return self.order is not None and self.order.goes

    @property
    def waits(self) -> str:
        """Why the restart of the next instance must wait, if the reason is not just that another
        instance is being restarted."""
        return self._machine.waits

    def turn(self) -> tuple[str, ...]:
        """The order in which a rolling restart that began now would take the instances."""
        return in_turn(self._seen())

    # -- what operators do ---------------------------------------------------------------

    def check(self, *, force: bool) -> None:
        """Raises OperationRefusedError if no rolling restart can begin now."""
        refused = refusal(self.order, self._seen(), force=force)
        if refused is not None:
            raise OperationRefusedError(refused.value, *_REFUSED[refused])

    def begin(self, order: RollingOrder) -> None:
        """Begins the rolling restart of `order`, whose instances are filled in now. If the keeper
        raises an error, this method raises the same error and nothing changes; so do `stop` and
        `dismiss`."""
        args = order.engine.args
        self._say(Began(order, self._seen(), engine_arguments(args) if args else ""))

    def stop(self, why: str, actor: str) -> None:
        """Takes back the restarts that can still be taken back; restarts whose process has ended go
        on by themselves. Does nothing if no rolling restart is under way."""
        if self.order is not None:
            self._say(Stopped(self.order, self._seen(), self._wall_clock(), why, actor))

    def dismiss(self) -> None:
        """Notes that an operator has seen how the rolling restart ended."""
        order, keeper = self.order, self._cluster.keeper
        if order is not None and not (order.goes or order.dismissed):
            keeper.change(keeper.spec.dismissed(order))

    # -- how a rolling restart goes on -------------------------------------------------------

    def tick(self) -> None:
        """Takes the next step if one is due. A step that fails is tried again."""
        try:
            self._say(
                rolling.Ticked(self.order, self._seen() if self.goes else (), self._wall_clock())
            )
        except Exception as error:
            self._machine.handle(SpecNotChanged(), self._cluster.now_s())
            is_defect = not isinstance(error, LlumctlError)
            log.error("the rolling restart: %s", error, exc_info=is_defect)

    def _say(self, event: rolling.Event) -> None:
        cluster = self._cluster
        for instruction in self._machine.handle(event, cluster.now_s()):
            match instruction:
                case Tell(kind, order, reason, numbers, actor, instance_id):
                    cluster.journal.note(
                        kind,
                        order.order_id,
                        reason,
                        instance_id=instance_id,
                        actor=actor,
                        numbers=numbers,
                    )
                case ChangeSpec():
                    self._change(instruction)
                    self._say(SpecChanged(self._wall_clock()))

    def _change(self, step: ChangeSpec) -> None:
        spec = self._cluster.keeper.spec
        after = spec.with_rolling(step.order, step.restarts, step.taken_back, step.engines)
        self._drains.carry_out(after, step.why, step.actor)

    # -- how things stand ----------------------------------------------------------------

    def _seen(self) -> list[InstanceNow]:
        spec, members = self._cluster.keeper.spec, self._cluster.roster.members
        hosted = (each for each in spec.instance_ids if each not in spec.attached)
        return [self._now(members[each]) for each in hosted if each in members]

    def _now(self, member: Member) -> InstanceNow:
        cluster, instance_id = self._cluster, member.member_id
        claims = cluster.keeper.spec.drains.get(instance_id)
        record = cluster.scheduler.instances.get(instance_id)
        restart = claims.restart if claims is not None and claims.restarts else None
        state = DrainState.ACTIVE
        if restart is not None:
            state = self._drains.progress(instance_id).state
        now = InstanceNow(
            instance_id,
            member.nonce,
            serving=member.serving,
            failed=member.alive and member.phase == "failed",
            detail=member.detail,
            alive=member.alive,
            removes=claims is not None and claims.goes,
            restarts="" if restart is None else restart.nonce,
            is_away=state is DrainState.RESTARTING,
            takes_requests=record is not None and record.schedulable,
            engine=cluster.keeper.spec.engine_of(instance_id),
            fingerprint=member.said.fingerprint,
            max_model_len=0 if member.info is None else member.info.max_model_len,
        )
        if record is None or record.snapshot is None:
            return now
        return now.with_load(record.snapshot)
