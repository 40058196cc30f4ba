"""A cluster in virtual time: requests arrive, are dispatched, run, move, and end.

It has the core's scheduler and rescheduling and the model's engines; nothing here decides. Nothing
is random either: the same setup and trace give the same outcome.
"""

from collections.abc import Sequence

from controller.core.admission.room_orders import needs_help
from controller.core.load.closed import Closed
from controller.core.load.room import MAX_QUEUED, below_half_free
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_config import SchedulerConfig
from controller.core.scheduler_events import (
    ClosedBy,
    Dispatch,
    DispatchRequested,
    InstanceDied,
    InstanceRemoved,
    InstanceStarted,
    Instruction,
    Reject,
    StatusReported,
    Ticked,
)
from controller.core.settings import HoldingConfig
from controller.model.profile import ModelConfig
from controller.sim.baselines import DISPATCH
from controller.sim.emptying import Moments, SimEmptying
from controller.sim.event_queue import EventQueue
from controller.sim.fleet import SimFleet
from controller.sim.instance import INCARNATION, SimInstance
from controller.sim.outcome import Outcome, fragmented_blocks
from controller.sim.request_run import RequestRun, model_request, schedule_arrivals
from controller.sim.setup import ClusterSetup, Fault
from controller.sim.sim_moves import Links
from controller.sim.workload.trace import Trace, TraceRequest

DRAINS = frozenset({Closed.DRAINING})
FRONTEND = "f-0"
NEVER_S = float("inf")


class SimCluster:
    """One run: `run` may be called once."""

    def __init__(self, setup: ClusterSetup) -> None:
        self.setup = setup
        self.events = EventQueue()
        self.outcome = Outcome()
        self.instances: dict[str, SimInstance] = {}
        profile, policy = setup.profile, setup.policy
        self._config = ModelConfig.of(profile, mode=setup.mode, prefix_caching=setup.prefix_caching)
        self._runs: dict[str, RequestRun] = {}
        """Requests that have arrived and not ended, by id."""
        self._num_to_come = 0
        self._hash_tokens = 0
        self._scheduler = GlobalScheduler(
            SchedulerConfig(
                policy=policy.dispatch,
                levels=policy.levels,
                holding=policy.holding,
                names_candidates=False,
            ),
            policies=DISPATCH,
        )
        self._reported: dict[str, tuple[InstanceSnapshot, float]] = {}
        self._changed: dict[SimInstance, None] = {}
        """Instances that did more than to decode since their last report."""
        holding = policy.holding
        self._need_help = Moments(lambda s: holding is not None and needs_help(s, holding))
        self._are_below_half_free = Moments(below_half_free)
        self._last_seq: dict[str, int] = {}
        """By instance: the last dispatch that its engine has."""
        self.links = Links(self.events, profile.copy_bytes_per_s, setup.message_s, self._fail)
        self.emptying = SimEmptying(
            self.instances,
            self._scheduler,
            self.events,
            self.links,
            policy,
            profile.kv_bytes_per_token * profile.block_size,
            setup.limit_factor,
        )
        self._num_launched = 0
        self._fleet: SimFleet | None = None
        for _ in range(setup.num_instances):
            self.launch(self.new_id())
        if policy.autoscale is not None:
            capacity_blocks = self.instances["i-0"].status().capacity_blocks
            self._fleet = SimFleet(
                policy.autoscale,
                self,
                self.instances,
                self.events,
                capacity_blocks,
                self._config.block_size,
            )
            self._fleet.begin()
        for fault in setup.faults:
            self.events.at(fault.time_s, lambda fault=fault: self._suffer(fault))  # type: ignore[misc]

    def run(self, trace: Trace) -> Outcome:
        """Until all requests have ended."""
        self._num_to_come = len(trace.requests)
        self._hash_tokens = trace.prefix_hash_tokens
        schedule_arrivals(self.events, trace, self._arrive)
        if self.setup.policy.rescheduling.enabled:
            self._round()
        self._sample()
        self.events.run(lambda: not self._num_to_come and not self._runs)
        outcome, emptying = self.outcome, self.emptying
        outcome.num_steps += sum(each.num_steps for each in self.instances.values())
        outcome.busy_s += sum(each.busy_s for each in self.instances.values())
        if self._fleet is not None:
            outcome.num_launched = self._fleet.num_launched
            outcome.num_removed = self._fleet.num_removed
        outcome.duration_s = self.events.now_s
        outcome.num_moved = emptying.num_moved
        outcome.num_failed_moves = dict(emptying.num_failed)
        return outcome

    # -- requests --------------------------------------------------------------------------

    def _arrive(self, number: int, traced: TraceRequest) -> None:
        self._num_to_come -= 1
        rank = traced.rank if self.setup.policy.by_rank else 0
        request = model_request(number, traced, rank, self._hash_tokens, self._config.block_size)
        self._runs[request.request_id] = RequestRun(request, traced)
        requested = DispatchRequested(
            request.request_id,
            FRONTEND,
            request.num_prompt_tokens,
            request.rank,
            request.arrival_time_s,
            traced.session,
            # As live: where engines keep nothing, prompts that begin alike share nothing.
            traced.prefix_hashes if self._config.prefix_caching else (),
            self._hash_tokens,
        )
        self._report_for(requested)
        self._follow(self._scheduler.handle(requested, self.events.now_s))

    def _report_for(self, requested: DispatchRequested) -> None:
        """Tells the scheduler what the dispatch of this request depends on. That is much less than
        all, which took half of a run: an instance that only decodes gets worse for a newcomer, so
        that only the one that seems best has to be asked, until it is the best as it is now. But
        with late binding, memory that is short on one instance closes those where many wait."""
        if self.setup.policy.status_age_s or self._scheduler.num_held:
            self._report_all()
            return
        for instance in list(self._changed):
            self._report(instance)
        if self.setup.policy.holding is not None and self._many_wait_somewhere():
            for instance in self._are_below_half_free.come(self.events.now_s):
                if not below_half_free(self._reported[instance.instance_id][0]):
                    self._report(instance)
        while (choice := self._scheduler.choice(requested)) is not None:
            if not self._report(self.instances[choice]):
                return
        self._report_all()

    def _many_wait_somewhere(self) -> bool:
        return any(
            status.num_queued + len(self.instances[instance_id].coming) >= MAX_QUEUED
            for instance_id, (status, _) in self._reported.items()
        )

    def _follow(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Dispatch():
                    self._dispatch(instruction)
                case Reject():
                    self._fail(self._runs[instruction.request_id])

    def _dispatch(self, dispatch: Dispatch) -> None:
        run = self._runs[dispatch.request_id]
        run.dispatched(self.events.now_s)
        self._overtake(run)
        instance = self.instances[dispatch.instance_id]

        instance.coming[dispatch.request_id] = run

        def add() -> None:
            del instance.coming[dispatch.request_id]
            instance.add(run)
            self._last_seq[instance.instance_id] = dispatch.seq

        instance.between_steps(add)

    def _overtake(self, run: RequestRun) -> None:
        """Tells those that are still held and whose turn was before: they came earlier, and their
        rank is no lower."""
        placement = self._scheduler.placement
        if placement is None:
            return
        rank, arrival_s = run.request.rank, run.request.arrival_time_s
        for held in placement.queue:
            if (-held.rank, held.arrival_time_s) >= (-rank, arrival_s):
                return
            if held.arrival_time_s < arrival_s:
                self._runs[held.request_id].overtaken(self.events.now_s)

    def _finish(self, run: RequestRun) -> None:
        del self._runs[run.request.request_id]
        self.links.owners.ended(run.request.request_id)
        self.outcome.rows.add(run)
        self.outcome.downtimes_s += run.downtimes_s

    def _fail(self, run: RequestRun) -> None:
        del self._runs[run.request.request_id]
        self.links.owners.ended(run.request.request_id)
        self.outcome.num_failed += 1

    # -- instances -------------------------------------------------------------------------

    def new_id(self) -> str:
        """Of one more instance."""
        self._num_launched += 1
        return f"i-{self._num_launched - 1}"

    def launch(self, instance_id: str) -> None:
        """One more instance, which serves at once."""
        instance = self.instances[instance_id] = SimInstance(
            instance_id,
            self._config,
            self.setup.profile,
            self.events,
            self._finish,
            self._on_changed,
            self.setup.policy.rescheduling.max_moves,
        )
        self._last_seq[instance_id] = 0
        self._scheduler.handle(InstanceStarted(instance_id, INCARNATION), self.events.now_s)
        self._on_changed(instance)

    def drain(self, instance: SimInstance) -> None:
        """The instance gets no more requests; those that it has leave or end."""
        self._scheduler.handle(ClosedBy(instance.instance_id, DRAINS), self.events.now_s)
        instance.between_steps(lambda: setattr(instance, "draining", True))

    def keep(self, instance: SimInstance) -> None:
        """The instance drains no more."""
        self._scheduler.handle(ClosedBy(instance.instance_id), self.events.now_s)

        def keep() -> None:
            instance.draining = False
            self.emptying.drain_ended(instance)

        instance.between_steps(keep)

    def is_empty(self, instance: SimInstance) -> bool:
        """Whether neither a request nor a move of one is there."""
        status = instance.status()
        return (
            not instance.runs
            and status.num_free_blocks == status.num_total_blocks
            and not self.emptying.is_moving(instance.instance_id)
        )

    def remove(self, instance: SimInstance) -> None:
        """An empty instance is gone from now on."""
        instance_id = instance.instance_id
        instance.die()
        self.outcome.num_steps += instance.num_steps
        self.outcome.busy_s += instance.busy_s
        for known in (self.instances, self._reported, self._last_seq):
            known.pop(instance_id, None)
        self._changed.pop(instance, None)
        self._need_help.gone(instance)
        self._are_below_half_free.gone(instance)
        self.emptying.instance_gone(instance)
        self._scheduler.handle(InstanceRemoved(instance_id), self.events.now_s)

    def held_demands(self) -> list[int]:
        """Of the requests that wait at the controller, in blocks."""
        if not self._scheduler.num_held:
            return []
        entries = self._scheduler.held_view().entries
        return [held.demand_blocks for held in entries]

    def _on_changed(self, instance: SimInstance) -> None:
        """Requests that are held go as soon as they fit. A status is a message: what follows from
        it happens after the instance's next step has begun."""
        self._changed[instance] = None
        self._need_help.changed(instance)
        self._are_below_half_free.changed(instance)
        self.emptying.instance_changed(instance)
        if self._scheduler.num_held:
            self.events.after(0.0, lambda: self._report(instance))
        if self._fleet is not None:
            self._fleet.on_changed(instance)

    def _report_all(self) -> None:
        """Tells the scheduler what has changed since it was told last."""
        for instance in self.instances.values():
            self._report(instance)

    def _report(self, instance: SimInstance) -> bool:
        """Whether there was anything to report."""
        if not instance.alive:
            return False
        instance_id, now_s = instance.instance_id, self.events.now_s
        known = self._reported.get(instance_id)
        if known is not None and now_s < known[1] + self.setup.policy.status_age_s:
            return False
        self._changed.pop(instance, None)
        status = instance.status()
        if known is not None and status is known[0]:
            return False
        self._reported[instance_id] = status, now_s
        reported = StatusReported(status, self._last_seq[instance_id])
        self._follow(self._scheduler.handle(reported, now_s))
        return True

    def _suffer(self, fault: Fault) -> None:
        instance = self.instances.get(fault.instance_id)
        if instance is None or not instance.alive:
            return
        match fault.kind:
            case "kill":
                self._kill(instance)
            case "drain":
                self.drain(instance)
            case "slow-steps":
                instance.between_steps(lambda: setattr(instance, "slowdown", fault.factor))
            case "slow-links":
                self.emptying.slow_link(fault.instance_id, fault.factor)
            case _:
                raise ValueError(f"unknown fault {fault.kind!r}")

    def _kill(self, instance: SimInstance) -> None:
        had = instance.die()
        living = [each for each in self.instances.values() if each.alive]
        lost = self.links.owners.died(instance, had, living)
        self._need_help.gone(instance)
        self._are_below_half_free.gone(instance)
        self.emptying.instance_died(instance)
        died = InstanceDied(instance.instance_id, INCARNATION)
        self._follow(self._scheduler.handle(died, self.events.now_s))
        if self._fleet is not None:
            self._fleet.on_died(instance)
        for run in lost:
            self._fail(run)

    # -- over time -------------------------------------------------------------------------

    def _round(self) -> None:
        holding = self.setup.policy.holding
        helps = holding is not None and self._may_help(holding)
        if helps:
            self._report_all()
            self._follow(self._scheduler.handle(Ticked(), self.events.now_s))
        self.emptying.round(helps=helps)
        self.events.after(self.setup.policy.rescheduling.interval_s, self._round)

    def _may_help(self, holding: HoldingConfig) -> bool:
        """Whether a round finds requests to help. If not, nobody has to report for it: that took a
        third of a run."""
        if self._scheduler.num_held:
            return True
        maybe = self._need_help.come(self.events.now_s)
        return any(needs_help(each.status(), holding) for each in maybe)

    def _sample(self) -> None:
        statuses = [each.status() for each in self.instances.values() if each.alive]
        sampled = self.outcome.sampled
        num_blocks = sum(each.capacity_blocks for each in statuses) or 1
        sampled.times_s.append(self.events.now_s)
        held = self.held_demands()
        num_starting = self._fleet.num_starting if self._fleet is not None else 0
        sampled.num_waiting.append(sum(each.num_queued for each in statuses) + len(held))
        sampled.num_running.append(sum(each.num_running for each in statuses))
        sampled.num_instances.append(len(statuses) + num_starting)
        sampled.fragmentation.append(fragmented_blocks(statuses, held) / num_blocks)
        sampled.used_share.append(sum(each.num_used_blocks for each in statuses) / num_blocks)
        self.events.after(self.setup.sample_s, self._sample)
