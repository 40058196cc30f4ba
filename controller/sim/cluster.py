"""A cluster in virtual time: requests arrive, are dispatched, run, move, and end.

It has the core's scheduler, the core's machines of emptying and the model's engines; `sim_moves`
carries moves out. Nothing here decides, and nothing is random: the same setup and trace give the
same outcome.

A round looks at all instances every 0.1 s. `Moments` and `Loads` avoid most of that work: between
two changes of an instance its batch only decodes, so the moment at which its free blocks make a
condition true is known in advance.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from controller.core.admission.policies import SchedulerConfig
from controller.core.emptying import relieving, rounds
from controller.core.emptying.openness import Cooling, Openness
from controller.core.emptying.relief import PastMoves
from controller.core.emptying.relieving import (
    BeginMove,
    CancelMove,
    DrainEnded,
    Look,
    Looked,
    MoveBegan,
    MoveEnded,
    MoveRefused,
    PeerLost,
    ReliefGiven,
    ReliefWithdrawn,
    RelievingSource,
    RoomGiven,
    TellFruitless,
)
from controller.core.emptying.room_plan import MakeRoom, MoveHead, needs_help
from controller.core.emptying.rounds import (
    InstanceGone,
    InstanceLoad,
    LeftOut,
    OrderRelief,
    OrderRoom,
    Pair,
    PairFruitless,
    ReliefRounds,
    RoundDue,
    RoundRules,
    WithdrawRelief,
    is_destination,
    is_source,
    pair,
)
from controller.core.load.closed import Closed
from controller.core.load.freeness import MAX_QUEUED, below_half_free
from controller.core.load.snapshot import InstanceRef, InstanceSnapshot
from controller.core.load.step_times import limit_of_steps
from controller.core.migration.handover import Filling, Gone, Started
from controller.core.migration.handover import Looked as CachesLooked
from controller.core.migration.refusals import MoveRefusal
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import (
    AskCache,
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
from controller.core.settings import HoldingConfig, ReschedulingConfig
from controller.model.profile import ModelConfig
from controller.sim.baselines import BALANCED, DISPATCH, balanced_pairs, relief_rules
from controller.sim.event_queue import EventQueue
from controller.sim.fleet import SimFleet
from controller.sim.instance import INCARNATION, SimInstance
from controller.sim.outcome import Outcome, fragmented_blocks
from controller.sim.request_run import Arrivals, RequestRun, model_request
from controller.sim.setup import ClusterSetup, Fault, SimPolicy
from controller.sim.sim_fetches import SimFetches
from controller.sim.sim_handovers import SimHandovers, Then
from controller.sim.sim_moves import Links, SimMove
from controller.sim.workload.trace import Trace, TraceRequest


class SimEmptying:
    """The controller's part of emptying, and the `ClusterView` that its rounds read. `block_bytes`:
    the size of one KV block. A client's limit of outputs is `limit_factor` times what the request
    emits in the end; None: no request has a limit. `pairing` and `victim`: as in `SimPolicy`."""

    def __init__(
        self,
        instances: Mapping[str, SimInstance],
        scheduler: GlobalScheduler,
        events: EventQueue,
        links: Links,
        policy: SimPolicy,
        block_bytes: int,
        limit_factor: float | None,
    ) -> None:
        self.links = links
        self.events = events
        self.max_moves = policy.rescheduling.max_moves
        self.block_bytes = block_bytes
        self.limit_factor = limit_factor
        self.rules = relief_rules(policy.pairing, policy.victim)
        self.num_moved = 0
        self.num_failed: Counter[str] = Counter()
        """How many moves failed, by reason."""
        self._instances = instances
        self._scheduler = scheduler
        self._balances = policy.pairing == BALANCED
        self._helps = False
        cooling = Cooling()  # only dead destinations cool in a simulation, and they never come back
        openness = Openness(scheduler, cooling)
        self.closed_to_moves, self.unlike = openness.closed_to_moves, openness.unlike
        self.rounds = ReliefRounds(
            self,
            cooling,
            RoundRules(policy.rescheduling, policy.levels, late_binding=policy.holding is not None),
            "",
            self._balanced_pairs if self._balances else pair,
            names_candidates=False,
        )
        self._loads = Loads(self.rounds.load_of, policy.rescheduling)
        self._sources: dict[str, SimSource] = {}
        """The source of each instance that was ever in a move or had an order, by instance id."""

    def source(self, instance_id: str) -> "SimSource":
        found = self._sources.get(instance_id)
        if found is None:
            found = self._sources[instance_id] = SimSource(self, self._instances[instance_id])
        return found

    def round(self, *, helps: bool) -> None:
        """Runs one round of rescheduling. `helps`: some requests may be blocked, and all instances
        have reported."""
        self._helps = helps
        self.handle(RoundDue())

    def handle(self, event: rounds.Event) -> None:
        now_s = self.events.now_s
        for instruction in self.rounds.handle(event, now_s):
            match instruction:
                case OrderRelief(source_id=source_id, order=order):
                    self.source(source_id).handle(ReliefGiven("", order, now_s))
                case WithdrawRelief(source_id=source_id):
                    self.source(source_id).handle(ReliefWithdrawn())
                case OrderRoom(source_id=source_id, order=room):
                    self.source(source_id).handle(RoomGiven(room))

    # -- what a round looks at -------------------------------------------------------------

    def statuses(self, now_s: float) -> Sequence[InstanceSnapshot]:
        if self._balances or self.rounds.rules.by_gain:
            return [each.status() for each in self._instances.values() if each.alive]
        return self._loads.in_pairs(now_s)

    def status_age_s(self, _instance_id: str, _now_s: float) -> float:
        return 0.0

    def help_blocked(self, may_move: Callable[[str, str], bool]) -> Sequence[MoveHead | MakeRoom]:
        return self._scheduler.help_blocked(may_move) if self._helps else ()

    def has_moves_left(self, instance_id: str) -> bool:
        return self.source(instance_id).num_moves < self.max_moves

    def ref(self, instance_id: str) -> InstanceRef | None:
        return ref(instance_id) if instance_id in self._instances else None

    def frontend_of(self, _order: MakeRoom) -> str:
        return ""

    def _balanced_pairs(
        self, loads: Sequence[InstanceLoad], _config: ReschedulingConfig, left_out: LeftOut
    ) -> Sequence[Pair]:
        statuses = (self._instances[load.instance_id].status() for load in loads)
        return balanced_pairs(list(zip(loads, statuses, strict=True)), left_out)

    # -- what happens ----------------------------------------------------------------------

    def slow_link(self, instance_id: str, factor: float) -> None:
        self.links.slowdown[instance_id] = factor

    def instance_changed(self, instance: SimInstance) -> None:
        """Notes that something other than decoding happened on the instance."""
        self._loads.changed(instance)

    def instance_died(self, instance: SimInstance) -> None:
        for source in list(self._sources.values()):
            for move in list(source.moves.values()):
                if instance in (move.source, move.destination):
                    move.cut()
        self.instance_gone(instance)

    def instance_gone(self, instance: SimInstance) -> None:
        """Ends all moves to the instance and from it, because the instance is gone."""
        instance_id = instance.instance_id
        self._loads.gone(instance)
        self._sources.pop(instance_id, None)
        self.handle(InstanceGone(instance_id))
        for source in self._sources.values():
            source.handle(PeerLost(lambda ref: ref.instance_id == instance_id))

    def drain_ended(self, instance: SimInstance) -> None:
        if instance.instance_id in self._sources:
            self.source(instance.instance_id).handle(DrainEnded())

    def is_moving(self, instance_id: str) -> bool:
        """Whether a move from the instance or to it is under way."""
        return instance_id in self._sources and self.source(instance_id).num_moves > 0

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        self.rounds.check()
        for source in self._sources.values():
            source.machine.check()


class SimSource:
    """One instance as a source: runs its machine, and is the `SourceView` that the machine
    reads."""

    leaves_at_s = max_bytes_per_s = None

    def __init__(self, emptying: SimEmptying, instance: SimInstance) -> None:
        self.instance = instance
        self.instance_id = instance.instance_id
        self.block_size = instance.engine.config.block_size
        self.block_bytes = emptying.block_bytes
        self.max_moves = emptying.max_moves
        self.num_moves = 0
        """How many moves are under way, in both directions together."""
        self.moves: dict[str, SimMove] = {}
        """The moves from here that are under way, by migration id."""
        self.machine = RelievingSource(self, "", emptying.rules)
        self._emptying = emptying

    # -- what the machine looks at ---------------------------------------------------------

    @property
    def step_time_s(self) -> float | None:
        return self.instance.step_time_s

    def bytes_per_s(self, _destination_id: str) -> float | None:
        return self._emptying.links.bandwidth(self.instance_id)

    def leaving_for(self) -> Collection[str]:
        return {move.destination.instance_id for move in self.moves.values()}

    def reserved_s(self, migration_id: str) -> float | None:
        return self.moves[migration_id].reserved_s

    # -- what it instructs -----------------------------------------------------------------

    def handle(self, event: relieving.Event) -> None:
        for instruction in self.machine.handle(event, self._emptying.events.now_s):
            self._carry_out(instruction)

    def _carry_out(self, instruction: relieving.Instruction) -> None:
        match instruction:
            case Look():
                self.instance.between_steps(self._look)
            case BeginMove():
                self._begin(instruction)
            case CancelMove(migration_id=migration_id, code=code):
                self.moves[migration_id].cancel(code)
            case TellFruitless(destination=to):
                here = ref(self.instance_id)
                self._emptying.handle(PairFruitless(here.key, to.key))

    def _look(self) -> None:
        seen = self.instance.engine.moves.candidates(self._num_tokens_left)
        candidates = relieving.known(seen, self.instance.moves, self._past_moves)
        self.handle(Looked(self.instance.status(), candidates))

    def _past_moves(self, request_id: str) -> PastMoves:
        moves, now_s = self.instance.runs[request_id].moves, self._emptying.events.now_s
        return tuple([(left, now_s - left_s) for left, left_s in moves]) if moves else ()

    def _num_tokens_left(self, request_id: str) -> int | None:
        """How many tokens the request may still emit, as far as a real instance would know."""
        limit_factor, run = self._emptying.limit_factor, self.instance.runs.get(request_id)
        if limit_factor is None or run is None:
            return None
        request = run.request
        num_tokens = self.instance.engine.num_tokens(request_id)
        num_outputs = num_tokens - request.num_prompt_tokens
        return int(limit_factor * request.max_output_tokens) - num_outputs

    def _begin(self, begin: BeginMove) -> None:
        migration_id, candidate, emptying = begin.migration_id, begin.candidate, self._emptying
        there = emptying.source(begin.destination.instance_id)
        # The instances' tables of moves refuse this. In a live cluster a full destination refuses
        # by a message.
        for end in (self, there):
            if end.num_moves >= end.max_moves:
                self.handle(MoveRefused(migration_id, MoveRefusal.TOO_MANY_MOVES))
                return
        move = self.moves[migration_id] = SimMove(
            self.instance.runs[candidate.request_id],
            candidate,
            self.instance,
            there.instance,
            emptying.links,
            emptying.events,
            self.block_bytes,
            partial(self._over, migration_id),
        )
        for end in (self, there):
            end.num_moves += 1
        move.begin()
        self.handle(MoveBegan(migration_id))

    def _over(self, migration_id: str, move: SimMove, moved: bool) -> None:
        emptying, there = self._emptying, move.destination.instance_id
        for end in (self, emptying.source(there)):
            end.num_moves -= 1
        emptying.num_moved += moved
        if not moved:
            emptying.num_failed[move.failure] += 1
        ended = MoveEnded(migration_id, moved, move.failure)
        instructions = self.machine.handle(ended, emptying.events.now_s)
        del self.moves[migration_id]
        for instruction in instructions:
            self._carry_out(instruction)


def ref(instance_id: str) -> InstanceRef:
    return InstanceRef(instance_id, INCARNATION, "")


# -- short cuts ------------------------------------------------------------------------------------

Holds = Callable[[InstanceSnapshot], bool]


class Moments:
    """For each instance, the moment from which a condition may be true of it. This is for
    conditions that become true as the free blocks of the instance run out. Each round asks whether
    each instance needs help or is a source; to ask every instance took half of the time of a run.
    So an instance is looked at once after each change, and in rounds only from its moment on. If
    `holds` is true of a status, it must also be true of one with fewer free blocks."""

    def __init__(self, holds: Holds) -> None:
        self._holds = holds
        self._changed: dict[SimInstance, None] = {}
        """The instances that changed since they were looked at last."""
        self._from_s: dict[SimInstance, float] = {}

    def changed(self, instance: SimInstance) -> None:
        self._changed[instance] = None

    def gone(self, instance: SimInstance) -> None:
        self._changed.pop(instance, None)
        self._from_s.pop(instance, None)

    def come(self, now_s: float) -> list[SimInstance]:
        """The instances whose moment has come, up to one of their steps early. The condition is
        false for all others now."""
        for instance in self._changed:
            from_s = instance.first_s(self._holds)
            if from_s < math.inf:
                self._from_s[instance] = from_s
            else:
                self._from_s.pop(instance, None)
        self._changed.clear()
        return [instance for instance, from_s in self._from_s.items() if from_s <= now_s]


class Loads:
    """The statuses at which a round of rescheduling looks, of as few instances as possible.

    While its batch only decodes, an instance's freeness falls. So an instance that cannot be a
    destination stays so, and one that is no source becomes one at a known moment. In most rounds
    there are no sources, or no destinations. `changed` has to be called whenever something other
    than decoding happens on an instance, and `gone` when it does not serve any more."""

    def __init__(
        self, load_of: Callable[[InstanceSnapshot], InstanceLoad], config: ReschedulingConfig
    ) -> None:
        self._load_of = load_of
        self._config = config
        self._sources = Moments(lambda status: is_source(load_of(status), config))
        self._changed: dict[SimInstance, None] = {}
        """The instances that have changed, so that it is not known whether they may be
        destinations."""
        self._destinations: dict[SimInstance, None] = {}
        """The instances that may be destinations until they change."""

    def changed(self, instance: SimInstance) -> None:
        self._sources.changed(instance)
        self._changed[instance] = None

    def gone(self, instance: SimInstance) -> None:
        self._sources.gone(instance)
        self._changed.pop(instance, None)
        self._destinations.pop(instance, None)

    def in_pairs(self, now_s: float) -> list[InstanceSnapshot]:
        """The statuses of all instances that can be in a pair now, if no other reason is against
        them."""
        config = self._config
        self._look_for_destinations()
        if not self._destinations:
            return []
        sources = self._sources.come(now_s)
        if not sources:
            return []
        found = list[InstanceSnapshot]()
        # The fewer ones come first: with little load there are no sources.
        kinds = ((sources, is_source), (list(self._destinations), is_destination))
        for instances, is_one in sorted(kinds, key=lambda kind: len(kind[0])):
            statuses = [each.status() for each in instances]
            of_kind = [each for each in statuses if is_one(self._load_of(each), config)]
            if not of_kind:
                return []
            found += of_kind
        return found

    def _look_for_destinations(self) -> None:
        for instance in self._changed:
            if is_destination(self._load_of(instance.freest_status()), self._config):
                self._destinations[instance] = None
            else:
                self._destinations.pop(instance, None)
        self._changed.clear()


DRAINS = frozenset({Closed.DRAINING})
FRONTEND = "f-0"


class SimCluster:
    """One run: `run` may be called once."""

    def __init__(self, setup: ClusterSetup) -> None:
        self.setup = setup
        self.events = EventQueue()
        self.outcome = Outcome()
        self.instances: dict[str, SimInstance] = {}
        profile, policy = setup.profile, setup.policy
        self._config = ModelConfig.of(
            profile,
            mode=setup.mode,
            prefix_caching=setup.prefix_caching,
            host_cache_bytes=setup.host_cache_bytes,
        )
        self._runs: dict[str, RequestRun] = {}
        """The requests that have arrived and not ended, by id."""
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
        """The instances that did more than decode since their last report."""
        holding = policy.holding
        self._need_help = Moments(lambda s: holding is not None and needs_help(s, holding))
        self._are_below_half_free = Moments(below_half_free)
        self._last_seq: dict[str, int] = {}
        """For each instance, the number of the last dispatch that its engine has."""
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
        self.fetches = SimFetches(
            self.events,
            self.links,
            self.outcome,
            self._config.block_size,
            self.emptying.block_bytes,
        )
        self.handovers = SimHandovers(self.events, self.fetches, self.outcome)
        self._filling = Filling()
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
        """Runs until all requests have ended."""
        self._hash_tokens = trace.prefix_hash_tokens
        self._arrivals = arrivals = Arrivals(self.events, trace, self._arrive)
        if self.setup.policy.rescheduling.enabled:
            self._round()
        self._sample()
        self.events.run(lambda: not arrivals.num_to_come and not self._runs)
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
        rank = traced.rank if self.setup.policy.by_rank else 0
        request = model_request(number, traced, rank, self._hash_tokens, self._config.block_size)
        self._runs[request.request_id] = RequestRun(number, request, traced)
        requested = DispatchRequested(
            request.request_id,
            FRONTEND,
            request.num_prompt_tokens,
            request.rank,
            request.arrival_time_s,
            traced.session,
            # As in a live cluster: where engines cache no prefixes, prompts that begin alike share
            # nothing.
            traced.prefix_hashes if self._config.prefix_caching else (),
            self._hash_tokens,
        )
        self._report_for(requested)
        self._follow(self._scheduler.handle(requested, self.events.now_s))

    def _report_for(self, requested: DispatchRequested) -> None:
        """Tells the scheduler the statuses on which the dispatch of this request depends. To tell
        it all statuses took half of the time of a run. An instance that only decodes gets worse for
        a newcomer, so only the instance that seems best has to report, until the best one has
        reported its present state. With late binding there is an exception: once memory is short on
        one instance, the instances where many requests wait take no more."""
        if self.setup.policy.status_age_s or self._scheduler.num_waiting:
            self._report_all()
            return
        for instance in list(self._changed):
            self._report(instance)
        if self.setup.policy.holding is not None and self._many_wait_somewhere():
            for instance in self._are_below_half_free.come(self.events.now_s):
                if not below_half_free(self._reported[instance.instance_id][0]):
                    self._report(instance)
        while (choice := self._scheduler.choice(requested, self.events.now_s)) is not None:
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
                case AskCache():
                    self.instances[instruction.instance_id].report_caches_anew()

    def _dispatch(self, dispatch: Dispatch) -> None:
        run = self._runs[dispatch.request_id]
        run.dispatched(self.events.now_s)
        self._overtake(run)
        instance = self.instances[dispatch.instance_id]

        instance.coming[dispatch.request_id] = run

        def enter() -> None:
            if instance.coming.pop(dispatch.request_id, None) is not None:
                instance.add(run)

        def arrive() -> None:
            self._last_seq[instance.instance_id] = dispatch.seq
            if dispatch.fetch is None:
                enter()
            else:
                source = self.instances.get(dispatch.fetch.instance_id)
                self.fetches.begin(run, dispatch.fetch, source, instance, enter)

        instance.between_steps(arrive)

    def _overtake(self, run: RequestRun) -> None:
        """Notes that the request overtook the waiting requests that were before it in order: the
        requests that came earlier and have no lower rank."""
        placement = self._scheduler.placement
        if placement is None:
            return
        rank, arrival_s = run.request.rank, run.request.arrival_time_s
        for waiting in placement.queue:
            if (-waiting.rank, waiting.arrival_time_s) >= (-rank, arrival_s):
                return
            if waiting.arrival_time_s < arrival_s:
                self._runs[waiting.request_id].overtaken(self.events.now_s)

    def _finish(self, run: RequestRun) -> None:
        del self._runs[run.request.request_id]
        self.links.owners.ended(run.request.request_id)
        self.outcome.rows.add(run)
        self.outcome.downtimes_s += run.downtimes_s
        self._arrivals.answered(run.number)

    def _fail(self, run: RequestRun) -> None:
        del self._runs[run.request.request_id]
        self.links.owners.ended(run.request.request_id)
        num_lost = 1 + self._arrivals.failed(run.number)
        self.outcome.num_failed_by_rank[run.traced.rank] += num_lost

    # -- instances -------------------------------------------------------------------------

    def new_id(self) -> str:
        """Returns the id for one more instance."""
        self._num_launched += 1
        return f"i-{self._num_launched - 1}"

    def launch(self, instance_id: str) -> None:
        """Adds an instance, which serves at once."""
        instance = self.instances[instance_id] = SimInstance(
            instance_id,
            self._config,
            self.setup.profile,
            self.events,
            self._finish,
            self._on_changed,
            self.setup.policy.rescheduling.max_moves,
        )
        policy = self.setup.policy
        instance.engine.limit_steps(
            limit_of_steps(
                policy.step_time_s, policy.levels, late_binding=policy.holding is not None
            )
        )
        self._last_seq[instance_id] = 0
        self._filling.handle(Started(instance_id))
        self._scheduler.handle(InstanceStarted(instance_id, INCARNATION), self.events.now_s)
        self._on_changed(instance)

    def drain(self, instance: SimInstance) -> None:
        """Begins to drain the instance: it gets no more requests, and the requests that it has
        leave or end."""
        self._scheduler.handle(ClosedBy(instance.instance_id, DRAINS), self.events.now_s)
        instance.between_steps(lambda: setattr(instance, "draining", True))

    def keep(self, instance: SimInstance) -> None:
        """Ends the instance's drain."""
        self._scheduler.handle(ClosedBy(instance.instance_id), self.events.now_s)

        def keep() -> None:
            instance.draining = False
            self.emptying.drain_ended(instance)

        instance.between_steps(keep)

    def is_empty(self, instance: SimInstance) -> bool:
        """Whether the instance has no request, and no move to it or from it is under way."""
        status = instance.status()
        return (
            not instance.runs
            and status.num_free_blocks == status.num_total_blocks
            and not self.emptying.is_moving(instance.instance_id)
        )

    def hand_over(self, instance: SimInstance, limit_s: float, then: Then) -> None:
        """Lets the instance hand what it has cached over to the others, the freest first."""
        schedulable = self._scheduler.schedulable_snapshots()
        freest_first = sorted(schedulable, key=lambda each: -each.num_free_blocks)
        ids = [each.instance_id for each in freest_first]
        there = [self.instances[i] for i in ids if i != instance.instance_id]
        self.handovers.begin(instance, there, limit_s, None, then)

    def remove(self, instance: SimInstance) -> None:
        """Removes the instance, which must be empty."""
        instance_id = instance.instance_id
        lost = self._lost_with(instance)
        self.outcome.num_steps += instance.num_steps
        self.outcome.busy_s += instance.busy_s
        for known in (self.instances, self._reported, self._last_seq):
            known.pop(instance_id, None)
        self._changed.pop(instance, None)
        self._need_help.gone(instance)
        self._are_below_half_free.gone(instance)
        self.emptying.instance_gone(instance)
        self._gone(instance)
        self._scheduler.handle(InstanceRemoved(instance_id), self.events.now_s)
        for run in lost:
            self._fail(run)

    def _gone(self, instance: SimInstance) -> None:
        self._filling.handle(Gone(instance.instance_id))
        self.handovers.gone(instance)

    def _fill_newcomers(self) -> None:
        """Lets the others hand prompts over to new instances, whose first status has come."""
        ids = [each.instance_id for each in self._scheduler.schedulable_snapshots()]
        looked = CachesLooked({each: self._scheduler.num_cached_tokens(each) for each in ids})
        for fill in self._filling.handle(looked):
            sources = [self.instances[each] for each in fill.source_ids]
            self.handovers.fill(fill, self.instances[fill.newcomer_id], sources)

    def waiting_demands(self) -> list[int]:
        """The demands, in blocks, of the requests that wait at the controller."""
        if not self._scheduler.num_waiting:
            return []
        entries = self._scheduler.waiting_view().entries
        return [waiting.demand_blocks for waiting in entries]

    @property
    def waiting_work_s(self) -> float:
        """How long one instance would compute the prompts of those requests."""
        return self._scheduler.waiting_work_s

    def _on_changed(self, instance: SimInstance) -> None:
        """Notes that the instance has changed. While requests are held, it also reports, so that
        they go as soon as they fit. A status is a message: what follows from it happens after the
        instance's next step has begun."""
        self._changed[instance] = None
        self._need_help.changed(instance)
        self._are_below_half_free.changed(instance)
        self.emptying.instance_changed(instance)
        if self._scheduler.num_waiting:
            self.events.after(0.0, lambda: self._report(instance))
        if self._fleet is not None:
            self._fleet.on_changed(instance)

    def _report_all(self) -> None:
        """Tells the scheduler what has changed since it was told last."""
        for instance in self.instances.values():
            self._report(instance)

    def _report(self, instance: SimInstance) -> bool:
        """Reports the instance's status to the scheduler. Returns whether there was anything to
        report."""
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
        reported = StatusReported(
            status,
            self._last_seq[instance_id],
            instance.status_age_s(),
            instance.take_cache_report(),
            instance.take_host_cache_report(),
        )
        self._follow(self._scheduler.handle(reported, now_s))
        if self._filling.view():
            self._fill_newcomers()
        return True

    def _suffer(self, fault: Fault) -> None:
        instance = self.instances.get(fault.instance_id)
        if instance is None or not instance.alive:
            return
        match fault.kind:
            case "kill":
                self.kill(instance)
            case "drain":
                self.drain(instance)
            case "slow-steps":
                instance.between_steps(lambda: setattr(instance, "slowdown", fault.factor))
            case "slow-links":
                self.emptying.slow_link(fault.instance_id, fault.factor)
            case _:
                raise ValueError(f"unknown fault {fault.kind!r}")

    def kill(self, instance: SimInstance) -> None:
        lost = self._lost_with(instance)
        self._need_help.gone(instance)
        self._are_below_half_free.gone(instance)
        self.emptying.instance_died(instance)
        self._gone(instance)
        died = InstanceDied(instance.instance_id, INCARNATION)
        self._follow(self._scheduler.handle(died, self.events.now_s))
        if self._fleet is not None:
            self._fleet.on_died(instance)
        for run in lost:
            self._fail(run)

    def _lost_with(self, instance: SimInstance) -> list[RequestRun]:
        """Ends the instance. Returns the requests that are lost with it. An empty instance may be
        the one that is about to be asked for a request, because a move to it had just begun when
        the source died."""
        had = instance.die()
        living = [each for each in self.instances.values() if each.alive]
        return self.links.owners.died(instance, had, living)

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
        """Whether a round finds requests to help. If not, no instance has to report for it; the
        reports took a third of the time of a run."""
        if self._scheduler.num_waiting:
            return True
        maybe = self._need_help.come(self.events.now_s)
        return any(needs_help(each.status(), holding) for each in maybe)

    def _sample(self) -> None:
        statuses = [each.status() for each in self.instances.values() if each.alive]
        sampled = self.outcome.sampled
        num_blocks = sum(each.capacity_blocks for each in statuses) or 1
        sampled.times_s.append(self.events.now_s)
        waiting = self.waiting_demands()
        num_starting = self._fleet.num_starting if self._fleet is not None else 0
        sampled.num_waiting.append(sum(each.num_queued for each in statuses) + len(waiting))
        sampled.num_running.append(sum(each.num_running for each in statuses))
        sampled.num_instances.append(len(statuses) + num_starting)
        sampled.fragmentation.append(fragmented_blocks(statuses, waiting) / num_blocks)
        sampled.used_share.append(sum(each.num_used_blocks for each in statuses) / num_blocks)
        self.events.after(self.setup.sample_s, self._sample)
