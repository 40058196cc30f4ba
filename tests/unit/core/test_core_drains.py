"""The machine of drains: claims are made and taken back in any order, while requests leave,
processes die and come back, disks are full and controllers start again. It is checked after each
event.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from controller.core.emptying import drains as emptying
from controller.core.emptying.claims import (
    Claim,
    Claims,
    Drain,
    Evacuate,
    Remove,
    Restart,
    SlowDrain,
    claimed,
)
from controller.core.emptying.drains import InstanceProcess, RestartStep, restart_step
from controller.core.record.event_log import EventKind

KINDS = (SlowDrain, Drain, Restart, Remove, Evacuate)


class FullDiskError(Exception):
    pass


@dataclass
class Instance:
    """`num_requests`: at the instance, and at the frontends."""

    nonce: str
    num_requests: int = 0
    alive: bool = True
    serving: bool = True
    failed: bool = False
    told_draining: bool = False
    leaves_in_s: float | None = None

    def seen(self) -> emptying.Seen:
        process = emptying.InstanceProcess(self.nonce, self.alive, self.serving, self.failed)
        if not self.serving:
            return emptying.Seen(process)
        return emptying.Seen(process, emptying.Remainder(self.num_requests), self.told_draining)


@dataclass
class World:
    """What the runner does, with everything at once and by hand. The clocks agree."""

    dice: random.Random
    now_s: float = 1000.0
    drains: dict[str, Claims] = field(default_factory=dict)
    machine: emptying.Drains = field(default_factory=emptying.Drains)
    instances: dict[str, Instance] = field(default_factory=dict)
    evacuated: frozenset[str] = frozenset()
    questions: list[Callable[[], None]] = field(default_factory=list)
    disk_is_full: bool = False
    launcher_fails: bool = False
    failed_s: float = 0.0
    """When anything failed last."""
    said: list[emptying.Log] = field(default_factory=list)
    """Since this controller began."""
    ordered: dict[str, int] = field(default_factory=dict)
    """The incarnations that were ordered to hand their prompts over."""
    removed: list[str] = field(default_factory=list)
    num_made: int = 0

    def __post_init__(self) -> None:
        for number in range(3):
            self.instances[f"i-{number}"] = Instance(f"n-{number}", num_requests=2)
        self.handle(emptying.Resumed(self.drains))

    def seen(self, instance_id: str) -> emptying.Seen:
        found = self.instances.get(instance_id)
        return emptying.Seen() if found is None else found.seen()

    def handle(self, event: emptying.Event) -> None:
        for instruction in self.machine.handle(event, self.now_s):
            self.do(instruction)
        self.machine.check()

    def tick(self, passed_s: float = 0.1) -> None:
        self.now_s += passed_s
        for instance_id in tuple(self.drains):
            ticked = emptying.Ticked(instance_id, self.seen(instance_id), True, self.now_s)
            try:
                for instruction in self.machine.handle(ticked, self.now_s):
                    assert isinstance(instruction, emptying.OfInstance)
                    self.do(instruction)
            except FullDiskError:
                self.handle(emptying.Failed(instance_id))
        self.machine.check()
        assert self.evacuated == {key for key, each in self.drains.items() if each.notice}
        if self.disk_is_full or self.launcher_fails:
            self.failed_s = self.now_s
        for instance_id, claims in self.drains.items():
            found, notice = self.instances.get(instance_id), claims.notice
            if found is not None and found.serving:
                assert found.told_draining
                assert (found.leaves_in_s is not None) == (notice is not None)
            if notice is not None and self.now_s > self.failed_s + emptying.RETRY_S:
                assert not notice.is_overdue(self.now_s), "it had to go"

    def save(self, drains: dict[str, Claims], why: str = "") -> None:
        if self.disk_is_full:
            raise FullDiskError
        seen = {each: self.seen(each) for each in {*drains, *self.drains}}
        self.drains = drains
        self.handle(emptying.ClaimsChanged(drains, seen, self.now_s, why))

    def claim(self, instance_id: str, claim: Claim) -> None:
        known = self.drains.get(instance_id)
        self.save({**self.drains, instance_id: claimed(known, claim)})

    def take_back(self, instance_id: str, kind: type[Claim], why: str = "") -> None:
        left = self.drains[instance_id].without(kind)
        others = {key: each for key, each in self.drains.items() if key != instance_id}
        self.save(others if left is None else {**self.drains, instance_id: left}, why)

    def do(self, instruction: emptying.Instruction) -> None:
        match instruction:
            case emptying.TellInstance(instance_id, draining, leaves_in_s):
                if instance_id in self.instances:
                    self.instances[instance_id].told_draining = draining
                    self.instances[instance_id].leaves_in_s = leaves_in_s
            case emptying.Evacuated(instance_ids):
                self.evacuated = instance_ids
            case emptying.AskFrontends(instance_id, drain_id):
                self.questions.append(lambda: self._answer(instance_id, drain_id))
            case emptying.FindStayers(instance_id, drain_id):
                told = emptying.StayersFound(instance_id, drain_id, 1, ("r no_blocks",), self.now_s)
                self.questions.append(lambda: self.handle(replace(told, epoch_s=self.now_s)))
            case emptying.TakeBack(instance_id, kind, why):
                assert isinstance(self.drains[instance_id].strongest, kind)
                is_gone = self.machine.is_replacing(instance_id)
                assert not (is_gone and "deadline" in why), "the next process comes already"
                self.take_back(instance_id, kind, why)
            case emptying.Replace(instance_id, nonce):
                self._replace(instance_id, nonce)
            case emptying.Terminate(instance_id):
                self._terminate(instance_id)
            case emptying.Forget(instance_id, num_left):
                if self.disk_is_full:
                    raise FullDiskError
                assert instance_id not in self.instances, "its process runs on, and nobody knows"
                self.drains = {k: each for k, each in self.drains.items() if k != instance_id}
                self.handle(emptying.Removed(instance_id, num_left))
                self.removed.append(instance_id)
            case emptying.HandOver(instance_id, _, within_s):
                assert 0 < within_s <= self.drains[instance_id].strongest.warm_s
                self.ordered[instance_id] = self.seen(instance_id).process.incarnation
            case emptying.Log():
                self.said.append(instruction)

    def _answer(self, instance_id: str, drain_id: str) -> None:
        seen = self.seen(instance_id)
        found = self.instances.get(instance_id)
        empty = found is None or not found.num_requests
        self.handle(emptying.FrontendsAnswered(instance_id, drain_id, empty, seen, self.now_s))

    def _replace(self, instance_id: str, nonce: str) -> None:
        if self.launcher_fails:
            raise FullDiskError
        found, claim = self.instances[instance_id], self.drains[instance_id].strongest
        assert claim.nonce == nonce == found.nonce, "another process than the one that was meant"
        assert claim.at_once or not found.num_requests, "requests are lost"
        found.alive = found.serving = False
        found.num_requests = 0
        self.handle(emptying.Replaced(instance_id, nonce))

    def _terminate(self, instance_id: str) -> None:
        if self.launcher_fails:
            raise FullDiskError
        claims, found = self.drains[instance_id], self.instances.pop(instance_id, None)
        assert claims.goes
        must = claims.notice is not None and claims.notice.is_overdue(self.now_s)
        assert must or found is None or not found.num_requests, "requests are lost"

    # -- what may happen -------------------------------------------------------------------

    def happens(self) -> None:
        dice = self.dice
        if not self.instances:
            return
        instance_id = dice.choice(sorted(self.instances))
        found = self.instances[instance_id]
        what = dice.randrange(13)
        if what < 3:
            self.operator(lambda: self.claim(instance_id, self.any_claim(found)))
        elif what < 5 and instance_id in self.drains:
            kind = dice.choice(KINDS)
            if self.drains[instance_id].made_by(kind) is not None:
                self.operator(lambda: self.take_back(instance_id, kind, "taken back"))
        elif what == 5 and found.num_requests:
            found.num_requests -= 1
            self.handle(emptying.MoveEnded(instance_id, "migrated"))
        elif what == 6 and found.serving:
            # Of a frontend that decides alone, and has not heard of the drain.
            may_come = instance_id not in self.drains or dice.random() < 0.3
            found.num_requests += may_come
        elif what == 7:
            found.alive = found.serving = False
            found.num_requests = 0
        elif what == 8:
            self.comes_back(instance_id)
        elif what == 9 and self.questions:
            self.questions.pop(dice.randrange(len(self.questions)))()
        elif what == 10:
            self.disk_is_full = dice.random() < 0.3
            self.launcher_fails = dice.random() < 0.3
        elif what == 11 and dice.random() < 0.3:
            self.restarts_controller()
        elif what == 12 and instance_id in self.ordered:
            self.hands_over(instance_id, complete=dice.random() < 0.5)

    def operator(self, order: Callable[[], None]) -> None:
        before = dict(self.drains)
        try:
            order()
        except FullDiskError:
            assert self.drains == before, "what is not on disk does not count"

    def any_claim(self, found: Instance) -> Claim:
        self.num_made += 1
        dice, known = self.dice, (f"op-{self.num_made}", self.now_s)
        kind = dice.choice(KINDS)
        deadline_s = self.now_s + dice.uniform(1.0, 20.0)
        warm_s = dice.choice((0.0, 0.0, 8.0))
        if kind is Evacuate:
            return Evacuate(*known, deadline_s=deadline_s, warm_s=warm_s)
        if kind is Restart:
            at_once = dice.random() < 0.3
            return Restart(*known, nonce=found.nonce, at_once=at_once, warm_s=warm_s)
        if kind is SlowDrain or dice.random() < 0.5:
            return kind(*known)
        return kind(*known, deadline_s, dice.choice(["keep", "abort"]))

    def comes_back(self, instance_id: str) -> None:
        found = self.instances[instance_id]
        if not found.alive:
            self.num_made += 1
            found.nonce, found.alive, found.serving = f"n-{instance_id}-{self.num_made}", True, True
            found.failed = False
            self.handle(emptying.BeganServing(instance_id, self.now_s))

    def hands_over(
        self, instance_id: str, *, complete: bool, incarnation: int | None = None
    ) -> None:
        of = self.ordered[instance_id] if incarnation is None else incarnation
        drain_id = self.drains[instance_id].drain_id if instance_id in self.drains else "op-0"
        self.handle(emptying.HandedOver(instance_id, of, drain_id, 3, 4800, complete, 0.5))

    def restarts_controller(self) -> None:
        """It knows the spec alone."""
        self.machine, self.evacuated = emptying.Drains(), frozenset()
        self.questions.clear()
        self.said.clear()
        self.handle(emptying.Resumed(self.drains))
        for instance_id, found in self.instances.items():
            if found.serving:
                self.handle(emptying.BeganServing(instance_id, self.now_s))

    def settle(self) -> None:
        """Nothing hinders any drain any more."""
        self.disk_is_full = self.launcher_fails = False
        for _ in range(300):
            for instance_id in list(self.instances):
                self.comes_back(instance_id)
                if instance_id in self.drains:
                    self.instances[instance_id].num_requests = 0
            while self.questions:
                self.questions.pop()()
            self.tick()

    def check_story(self) -> None:
        """Of each drain that began under this controller."""
        by_drain: dict[tuple[str, str], list[EventKind]] = {}
        for each in self.said:
            by_drain.setdefault((each.instance_id, each.drain_id), []).append(each.kind)
        for kinds in by_drain.values():
            if kinds[0] is EventKind.DRAIN_STARTED:
                assert kinds.count(EventKind.DRAINED) <= 1
                assert EventKind.DRAIN_ENDED not in kinds[:-1], "it goes on after its end"


@pytest.mark.parametrize("seed", range(10))
def test_claims_in_any_order_are_met_whatever_happens_beside(seed: int) -> None:
    for number in range(15):
        world = World(random.Random(15 * seed + number))
        for _ in range(120):
            world.happens()
            world.tick(world.dice.choice((0.1, 0.1, 0.5, 2.0)))
        world.settle()
        world.check_story()
        for instance_id, claims in world.drains.items():
            assert not claims.goes, "it is to be gone"
            assert not claims.restarts, "another process is to serve"
            seen = world.seen(instance_id)
            state = world.machine.view(instance_id, seen, world.now_s).state
            assert state is emptying.DrainState.DRAINED
            assert world.instances[instance_id].told_draining
        for instance_id in world.instances.keys() - world.drains.keys():
            assert not world.instances[instance_id].told_draining, "it serves again"
        assert not world.instances.keys() & set(world.removed)


def empty_world() -> World:
    world = World(random.Random(0))
    for found in world.instances.values():
        found.num_requests = 0
    return world


def state(world: World, instance_id: str = "i-0") -> emptying.DrainState:
    return world.machine.view(instance_id, world.seen(instance_id), world.now_s).state


def test_a_question_that_fails_is_asked_again_and_an_old_answer_is_none() -> None:
    world = empty_world()
    world.claim("i-0", Drain("op-1", world.now_s))
    world.tick()
    assert len(world.questions) == 1
    world.tick(1.0)
    assert len(world.questions) == 1, "one at a time"
    world.questions.clear()
    world.handle(emptying.Unanswered("i-0", "op-1"))
    world.tick(emptying.RETRY_S - 0.2)
    assert not world.questions
    world.tick(0.3)
    old = world.questions.pop()
    world.take_back("i-0", Drain)
    world.claim("i-0", Drain("op-2", world.now_s))
    old()
    assert state(world) is emptying.DrainState.DRAINING
    world.tick()
    world.questions.pop()()
    assert state(world) is emptying.DrainState.DRAINED


def test_a_restart_that_begins_anew_is_of_the_new_process_and_at_once() -> None:
    """As a rolling restart puts back arguments: the process of before was ended, the next is not
    the one to stay. An operator's drain goes on beside both."""
    world = empty_world()
    world.claim("i-0", Drain("op-1", world.now_s))
    world.claim("i-0", Restart("op-2", world.now_s, nonce="n-0", at_once=True))
    world.tick()
    assert state(world) is emptying.DrainState.RESTARTING
    world.comes_back("i-0")
    new = world.instances["i-0"].nonce
    again = world.drains["i-0"].without(Restart)
    world.save({"i-0": again.with_claim(Restart("op-3", world.now_s, nonce=new, at_once=True))})
    world.tick()
    assert not world.instances["i-0"].alive, "not only after REPLACE_AGAIN_S"
    assert emptying.REPLACE_AGAIN_S > 1.0
    world.settle()
    assert world.drains["i-0"].strongest == Drain("op-1", 1000.0)


WARM_S = 10.0


def drained_with(claim: Claim) -> World:
    world = empty_world()
    world.claim("i-0", claim)
    world.tick()
    world.questions.pop()()
    world.tick()
    assert state(world) is emptying.DrainState.DRAINED
    return world


def ends(world: World) -> bool:
    """Whether the process has been told to end."""
    return "i-0" not in world.instances or not world.instances["i-0"].alive


@pytest.mark.parametrize("kind", [Remove, Evacuate, Restart])
def test_an_emptied_process_stays_while_others_fetch_what_it_has_cached(kind: type[Claim]) -> None:
    claim: Claim = Remove("op-1", 1000.0, warm_s=WARM_S)
    if kind is Evacuate:
        claim = Evacuate("op-1", 1000.0, deadline_s=1060.0, warm_s=WARM_S)
    elif kind is Restart:
        claim = Restart("op-1", 1000.0, nonce="n-0", warm_s=WARM_S)
    world = drained_with(claim)
    assert not ends(world)
    world.tick(WARM_S - 0.5)
    assert not ends(world)
    world.tick(0.6)
    assert ends(world)


def test_it_goes_once_nothing_is_left_to_hand_over() -> None:
    world = drained_with(Remove("op-1", 1000.0, warm_s=WARM_S))
    world.hands_over("i-0", incarnation=7, complete=True)
    world.tick()
    assert not ends(world), "another process of it said so"
    world.hands_over("i-0", complete=False)
    world.tick()
    assert not ends(world), "others may fetch the rest"
    assert world.said[-1].kind is EventKind.HANDED_OVER
    world.hands_over("i-0", complete=True)
    world.tick()
    assert ends(world)


def test_it_is_told_to_hand_over_again_if_it_was_not_empty_any_more() -> None:
    world = drained_with(Remove("op-1", 1000.0, warm_s=WARM_S))
    incarnation = world.ordered.pop("i-0")
    world.tick()
    assert not world.ordered, "once is enough"
    world.hands_over("i-0", incarnation=incarnation, complete=True)
    world.instances["i-0"].num_requests = 1
    world.tick()
    world.instances["i-0"].num_requests = 0
    world.tick()
    world.questions.pop()()
    world.tick()
    assert world.ordered
    assert not ends(world)


def test_it_stays_no_longer_than_its_deadline_and_not_if_it_is_dead_or_has_a_request_again() -> (
    None
):
    evacuated = drained_with(Evacuate("op-1", 1000.0, deadline_s=1003.0, warm_s=WARM_S))
    evacuated.tick(1.0)
    assert not ends(evacuated)
    evacuated.tick(2.0)
    assert ends(evacuated)
    dead = drained_with(Remove("op-1", 1000.0, warm_s=WARM_S))
    dead.instances["i-0"].alive = dead.instances["i-0"].serving = False
    dead.tick()
    assert "i-0" not in dead.instances
    again = drained_with(Remove("op-1", 1000.0, warm_s=WARM_S))
    again.tick(WARM_S / 2)
    again.instances["i-0"].num_requests = 1
    again.tick()
    again.instances["i-0"].num_requests = 0
    again.tick()
    again.questions.pop()()
    again.tick(WARM_S - 0.5)
    assert not ends(again), "it counts from when it is empty again"
    again.tick(0.6)
    assert ends(again)


def test_a_claim_that_comes_while_stayers_are_looked_for_has_its_own_deadline() -> None:
    world = empty_world()
    world.instances["i-0"].num_requests = 1
    world.claim("i-0", Drain("op-1", world.now_s, world.now_s + 1.0))
    world.tick(2.0)
    (look,) = world.questions
    world.claim("i-0", Drain("op-2", world.now_s, world.now_s + 60.0))
    look()
    assert [each.kind for each in world.said] == [EventKind.DRAIN_STARTED] * 2
    world.questions.clear()
    world.tick(61.0)
    world.questions.pop()()
    world.tick(5.0)
    assert [each.kind for each in world.said][2:] == [EventKind.DRAIN_OVERDUE]
    assert world.said[-1].reason == "its deadline passed, and it goes on: r no_blocks"
    world.claim("i-0", Drain("op-3", world.now_s, world.now_s + 5.0))
    world.tick(6.0)
    world.questions.pop()()
    told = [each.kind for each in world.said]
    assert told.count(EventKind.DRAIN_OVERDUE) == 2, "of each deadline once"


def test_an_instance_that_was_not_heard_yet_is_not_taken_for_empty() -> None:
    drains = emptying.Drains()
    claims = {"i-0": Claims.first(Remove("op-1", 0.0))}
    drains.handle(emptying.Resumed(claims), 100.0)
    unheard = emptying.Seen(
        emptying.InstanceProcess("", alive=True, serving=False, failed=False, incarnation=0)
    )
    early = drains.handle(emptying.Ticked("i-0", unheard, True, 101.0), 101.0)
    assert early == []
    late_s = 100.0 + emptying.HEARD_WITHIN_S
    late = drains.handle(emptying.Ticked("i-0", unheard, False, late_s), late_s)
    assert late == [emptying.AskFrontends("i-0", "op-1")]


# -- the next step of a restart, for each state of the process and the instance ------------


EMPTIED = Restart("d", 1.0, nonce="old")
AT_ONCE = Restart("d", 1.0, nonce="old", at_once=True)
WAIT, REPLACE = RestartStep.WAIT, RestartStep.REPLACE


@pytest.mark.parametrize(
    ("nonce", "alive", "serving", "failed", "step", "step_at_once"),
    [
        ("old", True, True, False, WAIT, REPLACE),
        # A process that hangs or could not start is alive and does not serve.
        ("old", True, False, True, WAIT, REPLACE),
        ("old", False, False, False, WAIT, WAIT),
        # An instance that died while it was emptied has its new process by that.
        ("new", True, False, False, WAIT, WAIT),
        ("new", True, True, False, RestartStep.DONE, RestartStep.DONE),
        ("new", True, False, True, RestartStep.FAILED, RestartStep.FAILED),
    ],
)
def test_the_old_process_ends_once_it_may_and_the_next_one_never(
    nonce, alive, serving, failed, step, step_at_once
) -> None:
    process = InstanceProcess(nonce, alive=alive, serving=serving, failed=failed)
    assert restart_step(EMPTIED, process, may_end=False) is step
    assert restart_step(EMPTIED, process, may_end=True) is step_at_once
    for is_empty in (False, True):
        assert restart_step(AT_ONCE, process, may_end=is_empty) is step_at_once


def test_requests_that_cannot_move_are_replayed_for_a_restart_that_says_so() -> None:
    for replays in (True, False):
        machine = emptying.Drains()
        claim = Restart("op-1", 1000.0, nonce="n-0", replays=replays)
        instance = Instance("n-0", num_requests=2, told_draining=True)

        def tick(
            now_s: float, machine: emptying.Drains = machine, instance: Instance = instance
        ) -> list[emptying.Instruction]:
            ticked = emptying.Ticked("i-0", instance.seen(), True, 1000.0 + now_s)
            return machine.handle(ticked, now_s)

        drains = {"i-0": Claims.first(claim)}
        machine.handle(emptying.ClaimsChanged(drains, {"i-0": instance.seen()}, 1000.0), 0.0)
        asked = [emptying.FindStayers("i-0", "op-1")] if replays else []
        assert tick(0.1) == asked
        assert tick(0.1 + emptying.REPLAY_EVERY_S) == [], "not before the answer"
        found = emptying.StayersFound("i-0", "op-1", 2, ("r fingerprint",), 1001.0, ("r",))
        elsewhere = [emptying.ReplayElsewhere("i-0", ("r",))] if replays else []
        assert machine.handle(found, 1.0) == elsewhere
        assert tick(1.1) == asked
        machine.check()
