"""How many instances there are: scaling, and auto-scaling, which scales as an operator would.

A scale-out first keeps instances that were to be removed, then launches new ones. A scale-in drains
instances and removes each when it is empty. Neither ends a request.

If a second order comes while one is carried out, it starts from the planned instances: instances
that start count, and instances that are to be removed do not. The spec is saved first and then
carried out; launches that fail are repeated.
"""

import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from controller.api.errors import LlumctlError
from controller.core.admission.waiting_requests import Waiting
from controller.core.emptying.claims import Claims, Remove
from controller.core.fleet.autoscaler import (
    ACTOR,
    WARM_S,
    Autoscaler,
    AutoscaleView,
    Drain,
    Event,
    HoldBegan,
    HoldEnded,
    Instruction,
    Keep,
    Launch,
    LeavingInstance,
    LoadSeen,
    LookAtLoad,
    NoRoom,
    ScaleDone,
    ScaleRefused,
    SettingsChanged,
    Tell,
    Ticked,
)
from controller.core.fleet.cluster_spec import (
    OrderRefusal,
    ScaleHold,
    ScalePlan,
    plan_scale,
    planned_instances,
    scale_refusal,
    staying_instances,
)
from controller.core.fleet.outlook import Launches, RecentLatencies
from controller.core.fleet.shares import ModelNow
from controller.core.load.closed import Closed
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.record.event_log import EventKind
from controller.ports.processes import Launcher, LauncherLostError
from controller.runtime.controller.operations.drain_runner import DrainRunner
from controller.runtime.controller.operations.operated_cluster import (
    OperatedCluster,
    OperationRefusedError,
    refuse_instances,
    scaling_refused,
)
from controller.runtime.controller.roster import LiveAutoscale

log = logging.getLogger(__name__)


class Scaling:
    def __init__(self, cluster: OperatedCluster, drains: DrainRunner, launcher: Launcher) -> None:
        self._cluster = cluster
        self._drains = drains
        self._launcher = launcher
        self._launches = Launches()

    @property
    def num_planned(self) -> int:
        return len(planned_instances(self._cluster.keeper.spec))

    def plan(self, target: int, *, force: bool, agreed: Collection[str] | None = None) -> ScalePlan:
        """Plans a scaling. `force` allows a scaling after which no instance serves for a while, or
        for which there seems to be no room. `agreed`: the only instances that may be removed.
        Raises OperationRefusedError."""
        plan = plan_scale(
            self._cluster.keeper.spec, target, self._num_running(), agreed, self._missing()
        )
        if isinstance(plan, OrderRefusal):
            raise scaling_refused(plan, target)
        self.check_still(plan, force=force)
        if plan.num_added and not force and (why := self._launcher.no_room(plan.num_added)):
            raise scaling_refused(OrderRefusal.NO_ROOM, target, plan.num_added, why)
        return plan

    def check_still(self, plan: ScalePlan, *, force: bool) -> None:
        """Raises OperationRefusedError if an older plan cannot be carried out unchanged any
        more."""
        spec, schedulable = self._cluster.keeper.spec, self._drains.schedulable_ids()
        refusal = scale_refusal(spec, plan, schedulable, force=force)
        if refusal is OrderRefusal.LAST_INSTANCE:
            refuse_instances(refusal, plan.drained, spec.marked(Closed.CORDONED))
        elif refusal is not None:
            raise scaling_refused(refusal, plan.target)

    def carry_out(
        self, plan: ScalePlan, claim: Remove, hold: ScaleHold | None = None
    ) -> tuple[str, ...]:
        """Carries out a plan; returns the ids of the new instances. `claim`: the claim to each
        instance that is to go. With `hold`, auto-scaling is held from now on."""
        added, removed = self.added(plan), dict.fromkeys(plan.drained, claim)
        keeper = self._cluster.keeper
        spec = keeper.spec.scaled(plan.num_added, plan.undrained, removed, keeper.next_instance)
        if hold is not None:
            spec = replace(spec, autoscale_hold=hold)
        self._drains.carry_out(spec, "it is wanted again", claim.actor)
        self.launch_missing()
        return added

    def launch_all(self) -> None:
        """Finds or launches all instances of the spec. A launch may fail, for example because Ray
        still cleans up after a launch that died with its controller. That must not end this
        controller too."""
        self._launch(self._cluster.keeper.spec.instance_ids, lost=())

    def launch_missing(self) -> None:
        """Launches planned instances without a process; instances that are to be removed do not
        count as planned. An instance whose processes die in a Python environment that is not the
        spec's any more is launched in the right one."""
        if self._launcher.loss() is not None:
            return  # and each try would wait for an answer
        planned = staying_instances(self._cluster.keeper.spec)
        members = self._cluster.roster.members
        dead = [each for each in planned if each in members and not members[each].alive]
        self._launch(planned, [each for each in dead if self._launcher.is_misplaced(each)])

    def _launch(self, instance_ids: Collection[str], lost: Collection[str]) -> None:
        """Launches those of the instances that have no process. `lost`: the instances whose process
        has ended and has to be replaced by the launcher."""
        cluster, now_s = self._cluster, self._cluster.now_s()
        there = cluster.roster.members.keys() - lost
        for instance_id in self._launches.look(instance_ids, there, now_s):
            try:
                if instance_id in lost:
                    cluster.restart(instance_id)
                else:
                    cluster.launch([instance_id])
            except LauncherLostError as error:
                self._launches.failed(instance_id, now_s)
                log.warning("%s is not started yet: %s", instance_id, error)
            except Exception:
                self._launches.failed(instance_id, now_s)
                log.exception("%s could not be started", instance_id)

    def _missing(self) -> set[str]:
        """The instances of the spec that have no process: it was ended, or not launched yet."""
        return set(self._cluster.keeper.spec.instance_ids) - set(self._cluster.roster.members)

    def added(self, plan: ScalePlan) -> tuple[str, ...]:
        keeper = self._cluster.keeper
        after = keeper.spec.with_instances_added(plan.num_added, keeper.next_instance)
        return after.instance_ids[len(after.instance_ids) - plan.num_added :]

    def _num_running(self) -> dict[str, int]:
        """How many requests run on each instance that serves, by instance id."""
        return {
            record.instance_id: record.snapshot.num_running
            for record in self._cluster.scheduler.instances.values()
            if record.snapshot is not None and record.reports
        }


class Autoscaling:
    """Tells the machine (`core.fleet.autoscaler`) how the instances are, looks at the load when the
    machine asks for that, and scales as the machine orders."""

    def __init__(
        self,
        cluster: OperatedCluster,
        scaling: Scaling,
        launcher: Launcher,
        epoch: str,
        wall_clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._scaling = scaling
        self._launcher = launcher
        self._wall_clock = wall_clock
        self.machine = Autoscaler(epoch, self._settings(cluster.live.autoscale))

    @property
    def held(self) -> ScaleHold | None:
        """The operator's scale that takes precedence over auto-scaling, if auto-scaling is on or in
        its dry run."""
        return self.machine.held(self._cluster.keeper.spec.autoscale_hold)

    @property
    def cold_start_s(self) -> float | None:
        """How long instances took lately from their launch until they served."""
        return self.machine.starts.cold_start_s

    def view(self) -> AutoscaleView:
        spec = self._cluster.keeper.spec
        planned = (staying_instances if spec.attached_only else planned_instances)(spec)
        return self.machine.view(planned, self._cluster.now_s())

    # -- what operators do ---------------------------------------------------------------

    def configure(self, live: LiveAutoscale) -> None:
        self._tell(self._settings(live))

    def _settings(self, live: LiveAutoscale) -> SettingsChanged:
        """The settings, with auto-scaling off for a model that only has attached servers."""
        is_off = self._cluster.keeper.spec.attached_only
        config = replace(live.config, mode="off") if is_off else live.config
        return SettingsChanged(config, live.start_timeout_s)

    def hold(self, actor: str, num_instances: int) -> ScaleHold | None:
        """The hold that an operator's scale makes in the spec; None if nothing is to be held."""
        return self.machine.hold_for(actor, num_instances, self._wall_clock())

    def would_hold(self, num_instances: int) -> bool:
        """Whether an operator's scale to `num_instances` changes the hold."""
        return self.machine.would_hold(num_instances, self._cluster.keeper.spec.autoscale_hold)

    def hold_planned(self, cause_id: str, actor: str) -> None:
        """Holds auto-scaling at the number of instances that is planned now, because an operator
        keeps an instance that was to go."""
        if hold := self.hold(actor, self._scaling.num_planned):
            keeper = self._cluster.keeper
            keeper.change(keeper.spec.held_by(hold))
            self.tell_held(cause_id, hold)

    def tell_held(self, cause_id: str, hold: ScaleHold) -> None:
        self._tell(HoldBegan(cause_id, hold))

    def tell_released(self, cause_id: str, actor: str) -> None:
        self._tell(HoldEnded(cause_id, actor))

    # -- what it sees --------------------------------------------------------------------

    def tick(self) -> None:
        cluster = self._cluster
        members, records = cluster.roster.members, cluster.scheduler.instances
        planned = planned_instances(cluster.keeper.spec)
        serving: dict[str, float] = {}
        gave_up: list[str] = []
        for instance_id in planned:
            member, record = members.get(instance_id), records.get(instance_id)
            if member is None:
                continue
            if member.alive and member.phase == "failed":
                gave_up.append(instance_id)
            has_status = record is not None and record.alive and record.snapshot is not None
            if member.serving and has_status:
                serving[instance_id] = member.said.up_s
        num_schedulable = sum(
            not each.is_attached for each in cluster.scheduler.schedulable_snapshots()
        )
        self._tell(Ticked(planned, serving, gave_up, num_schedulable))

    def look(self) -> LoadSeen:
        """What a check of auto-scaling looks at: the last statuses, the requests that wait at the
        controller, and which instances come and go."""
        cluster, wall_s = self._cluster, self._wall_clock()
        spec, scheduler = cluster.keeper.spec, cluster.scheduler
        hosted = [each for each in scheduler.schedulable_snapshots() if not each.is_attached]
        statuses = (status.snapshot for status in cluster.statuses.values())
        known = [each for each in statuses if not each.is_attached]
        num_waiting = scheduler.num_waiting
        waiting = scheduler.waiting_view().entries if num_waiting else ()
        return LoadSeen(
            wall_s,
            hosted,
            block_size=known[0].block_size if known else 1,
            new_capacity_blocks=known[0].capacity_blocks if known else 0,
            num_waiting=num_waiting,
            waiting_demand_blocks=scheduler.waiting_demand_blocks,
            waiting_work_s=scheduler.waiting_work_s,
            recent=self._recent(hosted, waiting, wall_s),
            leaving=[self._leaving(*each) for each in spec.drains.items() if each[1].goes],
            restarting=[key for key, each in spec.drains.items() if each.restarts],
            fenced=[each.member_id for each in cluster.roster.instances() if each.fenced],
            hold=spec.autoscale_hold,
            rolling=spec.rolling is not None and spec.rolling.goes,
        )

    def _leaving(self, instance_id: str, claims: Claims) -> LeavingInstance:
        member = self._cluster.roster.members.get(instance_id)
        failed = member is not None and member.alive and member.phase == "failed"
        # If the instance has another claim besides the one of auto-scaling, it would not serve even
        # if that one were taken back.
        actor = claims.strongest.actor if claims.without(Remove) is None else ""
        return LeavingInstance(instance_id, actor, cannot_start=failed)

    def _recent(
        self, schedulable: Sequence[InstanceSnapshot], waiting: Iterable[Waiting], wall_s: float
    ) -> RecentLatencies:
        frontends = [each for each in self._cluster.roster.frontends() if each.serving]
        ttfts_s = [each.said.ttft_p99_s for each in frontends if each.said.ttft_p99_s is not None]
        tpots_s = [each.said.tpot_p99_s for each in frontends if each.said.tpot_p99_s is not None]
        heads = [each.queue_head for each in schedulable if each.queue_head is not None]
        # An evicted request has its first token already.
        arrivals_s = [each.arrival_time_s for each in heads if not each.evicted]
        arrivals_s += [each.arrival_time_s for each in waiting]
        return RecentLatencies(
            max(ttfts_s, default=None),
            max(tpots_s, default=None),
            sum(each.said.num_first_tokens for each in frontends),
            max(0.0, wall_s - min(arrivals_s, default=wall_s)),
        )

    def share(self) -> ModelNow:
        """What the sharing of room between models goes by."""
        cluster = self._cluster
        spec, config = cluster.keeper.spec, cluster.live.autoscale.config
        return ModelNow(
            cluster.model,
            len(planned_instances(spec)),
            config.min_instances,
            config.up_below_steps,
            self.view().last,
            sum(claims.goes for claims in spec.drains.values()),
            is_automatic=config.mode == "on" and self.held is None and not spec.attached_only,
        )

    # -- what is done --------------------------------------------------------------------

    def give_one(self, to: str) -> None:
        """Removes an instance, so that another model has room. Raises OperationRefusedError."""
        cause_id = f"share-{secrets.token_hex(4)}"
        why = f"{to} wants an instance, and there is no room for it"
        plan = self._scaling.plan(self._scaling.num_planned - 1, force=False)
        claim = Remove(cause_id, self._wall_clock(), actor=ACTOR, reason=why, warm_s=WARM_S)
        self._scaling.carry_out(plan, claim)
        self._cluster.journal.note(
            EventKind.AUTOSCALED,
            cause_id,
            f"remove {', '.join(plan.drained)}: {why}",
            actor=ACTOR,
            numbers={"num_wanted": plan.target},
        )

    def _tell(self, event: Event) -> None:
        for instruction in self.machine.handle(event, self._cluster.now_s()):
            answer = self._carry_out(instruction)
            if answer is not None:
                self._tell(answer)

    def _carry_out(self, instruction: Instruction) -> Event | None:
        match instruction:
            case LookAtLoad():
                return self.look()
            case Tell(kind, cause_id, reason, numbers, instance_id, actor):
                self._cluster.journal.note(
                    kind, cause_id, reason, instance_id=instance_id, actor=actor, numbers=numbers
                )
                return None
        try:
            return self._scale(instruction)
        except (LlumctlError, OperationRefusedError) as error:
            log.warning("%s: %s", instruction.check.cause_id, error)
            return ScaleRefused(str(error))
        except Exception as error:  # for example an error of Ray; the next check tries again
            log.exception("%s could not be carried out", instruction.check.cause_id)
            return ScaleRefused(f"{error!r:.200}")

    def _scale(self, wanted: Launch | Drain | Keep) -> ScaleDone | NoRoom | ScaleRefused:
        """Scales as the machine ordered. Raises OperationRefusedError and LlumctlError; then
        nothing more has changed."""
        scaling = self._scaling
        present = scaling.num_planned
        match wanted:
            case Launch(number=number):
                if why_not := self._launcher.no_room(number):
                    return NoRoom(why_not)
                plan = scaling.plan(present + number, force=False)
            case Drain(instance_ids=ids, forced=forced):
                plan = scaling.plan(present - len(ids), force=forced, agreed=ids)
            case Keep(instance_id=instance_id):
                plan = scaling.plan(present + 1, force=False)
                if plan.undrained != (instance_id,):
                    return ScaleRefused(f"{instance_id} is gone already")
        check = wanted.check
        claim = Remove(check.cause_id, check.time_s, actor=ACTOR, reason=check.why, warm_s=WARM_S)
        added = scaling.carry_out(plan, claim)
        drains = self._cluster.keeper.spec.drains
        return ScaleDone(added, [key for key, claims in drains.items() if claims.goes])
