"""The global scheduler against a model that keeps a table of everything, in random histories."""

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller.core import scheduler_events as events
from controller.core.admission.instance_pool import LOST_AFTER_S, MAX_CANDIDATES
from controller.core.admission.policies import POLICIES, SchedulerConfig
from controller.core.load.closed import Closed
from controller.core.load.snapshot import Level, Unreported, blocks_for
from controller.core.scheduler import GlobalScheduler
from tests.unit.core.core_builders import CORDONED, DRAINS, queued, request, running, status

MAX_HELD, HOLD_S = 3, 20.0
REASONS = (
    Closed.NOT_SERVING,
    Closed.NO_STATUS,
    Closed.STALLED,
    Closed.DRAINING,
    Closed.CORDONED,
)
"""In the order in which people are told."""
IDS = st.sampled_from(["a", "b", "c"])
FRONTENDS = st.sampled_from(["f", "g"])
INCARNATIONS = st.integers(1, 3)


@dataclass
class ModelInstance:
    incarnation: int
    alive: bool = True
    draining: bool = False
    stalled: bool = False
    last_report_s: float | None = None
    issued: list[tuple[int, float, str, int]] = field(default_factory=list)
    """Not reported yet: (sequence number, when it was sent, by which frontend, its blocks)."""
    last_seq: int = 0


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.instances: dict[str, ModelInstance] = {}
        self.held: dict[tuple[str, str], tuple[events.DispatchRequested, float]] = {}
        self.draining: set[str] = set()
        self.cordoned: set[str] = set()
        self.num_requests = 0

    @initialize(policy=st.sampled_from(list(POLICIES)), serving=st.sets(IDS))
    def start(self, policy: str, serving: set[str]) -> None:
        self.config = SchedulerConfig(
            policy=policy,
            max_held_reqs=MAX_HELD,
            hold_timeout_s=HOLD_S,
        )
        self.most_held = MAX_HELD
        self.scheduler = GlobalScheduler(self.config)
        for instance_id in sorted(serving):
            self.comes_to_serve(instance_id)

    def closed_by(self, instance_id: str) -> tuple[Closed, ...]:
        known = self.instances[instance_id]
        reports = known.alive and known.last_report_s is not None
        holds = {
            Closed.NOT_SERVING: not known.alive,
            Closed.NO_STATUS: known.alive and known.last_report_s is None,
            Closed.STALLED: reports and known.stalled,
            Closed.DRAINING: instance_id in self.draining or (reports and known.draining),
            Closed.CORDONED: instance_id in self.cordoned,
        }
        return tuple(each for each in REASONS if holds[each])

    def schedulable(self) -> set[str]:
        return {each for each in self.instances if not self.closed_by(each)}

    def feed(self, event: events.Event) -> None:
        self.check_answers(self.scheduler.handle(event, self.now_s), event)

    def check_answers(
        self, instructions: list[events.Instruction], event: events.Event | None = None
    ) -> None:
        """Each instruction against the model."""
        ready = self.schedulable()
        waiting = dict(self.held)
        for x in instructions:
            asked, since_s = self.held.pop((x.frontend_id, x.request_id))  # answered once
            if isinstance(x, events.Dispatch):
                assert x.instance_id in ready
                target = self.instances[x.instance_id]
                assert x.incarnation == target.incarnation
                assert x.seq == target.last_seq + 1
                named = [instance_id for instance_id, _ in x.candidates]
                assert named[0] == x.instance_id
                assert ready.issuperset(named)
                assert len(set(named)) == len(named) == min(len(ready), MAX_CANDIDATES)
                assert x.num_considered == len(ready)
                target.last_seq = x.seq
                demand = blocks_for(asked.num_prompt_tokens, 16)
                target.issued.append((x.seq, self.now_s, x.frontend_id, demand))
            elif x.code == "overloaded":
                assert not event.replayed, "it is held in any case"
                assert not asked.replayed, "another one would have been refused"
                assert len(waiting) > self.config.max_held_reqs
                assert not ready
                stay = [each for each, _ in self.held.values() if not each.replayed]
                assert all(each.order < asked.order for each in stay)
            else:
                assert isinstance(event, events.Ticked)
                assert self.now_s >= since_s + self.config.hold_timeout_s
        order = [waiting[x.frontend_id, x.request_id][0] for x in instructions]
        assert order == sorted(
            order, key=lambda r: (-r.rank, r.arrival_time_s, r.request_id, r.frontend_id)
        )
        if ready:
            assert not self.held, "an instance was free to take them"

    @rule(
        policy=st.sampled_from(list(POLICIES)),
        max_held=st.sampled_from([0, 1, MAX_HELD]),
        hold_s=st.sampled_from([5.0, HOLD_S]),
        load=st.sampled_from([None, 160]),
    )
    def reconfigure(self, policy: str, max_held: int, hold_s: float, load: int | None) -> None:
        """What is held stays, however few may be held from now on."""
        self.config = replace(
            self.config,
            policy=policy,
            max_held_reqs=max_held,
            hold_timeout_s=hold_s,
            levels=(Level("normal", 0), Level("high", 1, load)),
        )
        self.most_held = max(max_held, len(self.held))
        self.check_answers(self.scheduler.reconfigure(self.config, self.now_s))

    @rule(seconds=st.sampled_from([0.0, 0.5, 7.0, HOLD_S]))
    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self.feed(events.Ticked())
        hold_s = self.config.hold_timeout_s
        assert all(self.now_s < since_s + hold_s for _, since_s in self.held.values())

    @rule(seconds=st.sampled_from([0.5, 7.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(
        frontend_id=FRONTENDS,
        rank=st.sampled_from([-1, 0, 1, 9]),
        arrival=st.integers(0, 3),
        tokens=st.integers(1, 4000),
        count=st.sampled_from([1, 1, 3, 5]),
        replayed=st.sampled_from([False, False, True]),
    )
    def ask(
        self,
        frontend_id: str,
        rank: int,
        arrival: int,
        tokens: int,
        count: int,
        replayed: bool,
    ) -> None:
        for _ in range(count):
            event = request(
                f"r{self.num_requests}",
                frontend_id=frontend_id,
                rank=rank,
                arrival=float(arrival),
                tokens=tokens,
            )
            event = replace(event, replayed=replayed)
            self.num_requests += 1
            self.most_held += replayed
            self.held[frontend_id, event.request_id] = (event, self.now_s)
            self.feed(event)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), rank=st.sampled_from([-1, 0, 1, 9]))
    def ask_again(self, data: st.DataObject, rank: int) -> None:
        """Its priority may have changed since; its place in time has not."""
        key = data.draw(st.sampled_from(sorted(self.held)))
        asked, since_s = self.held[key]
        event = replace(asked, rank=rank)
        self.held[key] = (event, since_s)
        self.feed(event)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        frontend_id, request_id = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[frontend_id, request_id]
        self.feed(events.DispatchCancelled(request_id, frontend_id))

    @rule(frontend_id=FRONTENDS)
    def frontend_dies(self, frontend_id: str) -> None:
        self.held = {key: value for key, value in self.held.items() if key[0] != frontend_id}
        for known in self.instances.values():
            known.issued = [each for each in known.issued if each[2] != frontend_id]
        self.feed(events.FrontendDied(frontend_id))

    @rule(instance_id=IDS, incarnation=INCARNATIONS)
    def instance_starts(self, instance_id: str, incarnation: int) -> None:
        known = self.instances.get(instance_id)
        if known is None or incarnation > known.incarnation:
            self.instances[instance_id] = ModelInstance(
                incarnation, draining=instance_id in self.draining
            )
        self.feed(events.InstanceStarted(instance_id, incarnation))

    @rule(instance_id=IDS)
    def comes_to_serve(self, instance_id: str) -> None:
        """All that this takes in one step; otherwise few histories would get so far."""
        known = self.instances.get(instance_id)
        incarnation = 1 if known is None else known.incarnation + 1
        self.instance_starts(instance_id, incarnation)
        self.cordoned.discard(instance_id)
        self.drain_ends(instance_id)
        self.instances[instance_id].draining = False
        self.instances[instance_id].last_report_s = self.now_s
        self.instances[instance_id].stalled = False
        self.feed(status(instance_id, incarnation=incarnation))

    @rule(instance_id=IDS, incarnation=INCARNATIONS)
    def instance_dies(self, instance_id: str, incarnation: int) -> None:
        known = self.instances.get(instance_id)
        if known is not None and incarnation >= known.incarnation:
            known.alive = False
        self.feed(events.InstanceDied(instance_id, incarnation))

    @rule(instance_id=IDS)
    def instance_is_removed(self, instance_id: str) -> None:
        self.instances.pop(instance_id, None)
        self.draining.discard(instance_id)
        self.cordoned.discard(instance_id)
        self.feed(events.InstanceRemoved(instance_id))

    @rule(instance_id=IDS)
    def drain_begins(self, instance_id: str) -> None:
        self.draining.add(instance_id)
        if instance_id in self.instances:
            self.instances[instance_id].draining = True
        self._spec_changes(instance_id)

    @rule(instance_id=IDS)
    def drain_ends(self, instance_id: str) -> None:
        """Its next status decides."""
        self.draining.discard(instance_id)
        self._spec_changes(instance_id)

    @rule(instance_id=IDS, incarnation=INCARNATIONS, over=st.sampled_from([False, False, True]))
    def stalls(self, instance_id: str, incarnation: int, over: bool) -> None:
        known = self.instances.get(instance_id)
        if known is not None and incarnation == known.incarnation:
            known.stalled = not over
        self.feed(events.InstanceStalled(instance_id, incarnation, over))

    @rule(instance_id=IDS)
    def cordon_changes(self, instance_id: str) -> None:
        self.cordoned ^= {instance_id}
        self._spec_changes(instance_id)

    def _spec_changes(self, instance_id: str) -> None:
        drains = DRAINS if instance_id in self.draining else frozenset()
        cordoned = CORDONED if instance_id in self.cordoned else frozenset()
        self.feed(events.ClosedBy(instance_id, drains | cordoned))

    @precondition(lambda self: self.instances)
    @rule(
        data=st.data(),
        draining=st.sampled_from([False, False, True]),
        late=st.sampled_from([0, 0, 0, -1, 1]),
        held=st.integers(0, 60),
        waits=st.integers(0, 2),
    )
    def report(self, data: st.DataObject, draining: bool, late: int, held: int, waits: int) -> None:
        instance_id = data.draw(st.sampled_from(sorted(self.instances)))
        known = self.instances[instance_id]
        incarnation = known.incarnation + late
        seqs = [seq for seq, *_ in known.issued]
        of_a_predecessor = known.last_seq + 500
        seen = data.draw(st.sampled_from([0, known.last_seq, *seqs, of_a_predecessor]))
        if incarnation == known.incarnation and known.alive:
            known.draining = draining or instance_id in self.draining
            known.last_report_s, known.stalled = self.now_s, False
            known.last_seq = max(known.last_seq, seen)
            known.issued = [
                each
                for each in known.issued
                if each[0] > seen and each[1] > self.now_s - LOST_AFTER_S
            ]
        requests = [running("x", held)] if held else []
        requests += [queued(f"q{i}", 30) for i in range(waits)]
        self.feed(
            status(
                instance_id,
                incarnation=incarnation,
                seen=seen,
                requests=requests,
                draining=draining,
            )
        )

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check()
        assert self.scheduler.num_waiting == len(self.held) <= self.most_held
        records = self.scheduler.instances
        assert records.keys() == self.instances.keys()
        for instance_id, known in self.instances.items():
            record = records[instance_id]
            assert record.incarnation == known.incarnation
            issued = known.issued if known.alive else []
            assert record.unreported == Unreported(len(issued), sum(each[3] for each in issued))
            last_s = known.last_report_s
            assert record.last_report_s == (float("-inf") if last_s is None else last_s)
            assert record.closed_by == self.closed_by(instance_id)
            assert record.schedulable is (not record.closed_by)
            reports = known.alive and last_s is not None and not known.stalled
            assert (record.reports, record.may_send) == (reports, reports)


SchedulerMachine.TestCase.settings = settings(stateful_step_count=40)
TestGlobalScheduler = SchedulerMachine.TestCase
