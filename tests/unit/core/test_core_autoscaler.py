"""The auto-scaler in a cluster of plain values: starts that take long or fail, instances that die,
operators, full disks, and answers that never come. After each event its invariants are checked."""

import random
from dataclasses import replace

import pytest

from controller.core.fleet import autoscaler as autoscaling
from controller.core.fleet.cluster_spec import ScaleHold
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.record.event_log import EventKind
from controller.core.settings import AutoscaleConfig

TICK_S = 1.0
BLOCKS_PER_REQUEST = 10
CONFIG = AutoscaleConfig(mode="on", first_check_after_s=10.0, min_instances=2, max_instances=8)
ON = autoscaling.SettingsChanged(CONFIG, start_timeout_s=60.0)


class World:
    """Each request takes 10 of the 100 blocks of an instance, the same everywhere. `troubled`: what
    can go wrong does."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.machine = autoscaling.Autoscaler("e", ON)
        self.settings = ON
        self.now_s = 0.0
        self.num_requests = 10
        self.serving: dict[str, float] = {"i-0": 0.0, "i-1": 0.0}
        """Since when."""
        self.starts: dict[str, float] = {}
        """When each one that starts will serve; never, if it fails."""
        self.failed: set[str] = set()
        self.leaving: dict[str, tuple[str, float]] = {}
        """Who drained it, and when it will be empty."""
        self.num_named = 2
        self.hold: ScaleHold | None = None
        self.rolling = False
        self.room = 8
        self.troubled = True
        self.told: list[autoscaling.Tell] = []
        self.changed_s: list[float] = []
        """When anything was launched, drained or kept."""

    @property
    def planned(self) -> list[str]:
        there = {*self.serving, *self.starts, *self.failed}
        return sorted(there - set(self.leaving))

    @property
    def schedulable(self) -> list[InstanceSnapshot]:
        ids = sorted(set(self.serving) - set(self.leaving))
        share = {key: self.num_requests // len(ids) for key in ids}
        for key in ids[: self.num_requests % len(ids) if ids else 0]:
            share[key] += 1
        return [
            InstanceSnapshot(key, 1, 16, 100, 100 - BLOCKS_PER_REQUEST * num, num_running=num)
            for key, num in share.items()
        ]

    def tick(self) -> None:
        self.now_s += TICK_S
        self._pass_time()
        if self.troubled:
            self._make_trouble()
        serving = {key: self.now_s - since_s for key, since_s in self.serving.items()}
        ticked = autoscaling.Ticked(self.planned, serving, self.failed, len(self.schedulable))
        self.say(ticked)

    def say(self, event: autoscaling.Event) -> None:
        instructions = self.machine.handle(event, self.now_s)
        self.machine.check(self.now_s)
        for instruction in instructions:
            answer = self._carry_out(instruction)
            if answer is not None and not (self.troubled and self.draw.random() < 0.02):
                self.say(answer)

    def change(self, **settings: object) -> None:
        config = replace(self.settings.config, **settings)  # type: ignore[arg-type]
        self.settings = replace(self.settings, config=config)
        self.say(self.settings)

    # -- what happens --------------------------------------------------------------------

    def _pass_time(self) -> None:
        for key in [key for key, due_s in self.starts.items() if self.now_s >= due_s]:
            del self.starts[key]
            self.serving[key] = self.now_s
        for key in [key for key, (_, due_s) in self.leaving.items() if self.now_s >= due_s]:
            del self.leaving[key]
            self.serving.pop(key, None)
            self.starts.pop(key, None)
            self.failed.discard(key)

    def _make_trouble(self) -> None:
        draw = self.draw
        if draw.random() < 0.02:
            self.num_requests = draw.choice([0, 3, 10, 30, 60])
        if draw.random() < 0.01 and len(self.serving) > 1:
            died = draw.choice(sorted(self.serving))
            del self.serving[died]
            self.starts[died] = self.now_s + draw.choice([5.0, 30.0, 1e9])
        if draw.random() < 0.02 and self.starts:
            given_up = draw.choice(sorted(self.starts))
            del self.starts[given_up]
            self.failed.add(given_up)
        if draw.random() < 0.01:
            self.room = draw.choice([0, 1, 2, 8])
        if draw.random() < 0.005:
            self.rolling = not self.rolling
        if draw.random() < (0.003 if self.settings.config.mode == "on" else 0.02):
            self.change(mode=draw.choice(["on", "on", "dry-run", "off"]))
        if draw.random() < (0.003 if self.hold is None else 0.02):
            self._operate()

    def _operate(self) -> None:
        if self.hold is not None:
            self.hold = None
            self.say(autoscaling.HoldEnded("o", "ana"))
        else:
            wanted = self.machine.hold_for("ana", len(self.planned), self.now_s)
            assert (wanted is None) == (self.settings.config.mode == "off")
            if wanted is not None:
                self.hold = wanted
                self.say(autoscaling.HoldBegan("o", wanted))
                assert not self.machine.would_hold(len(self.planned), self.hold)

    # -- what is asked for ---------------------------------------------------------------

    def _carry_out(self, instruction: autoscaling.Instruction) -> autoscaling.Event | None:
        match instruction:
            case autoscaling.LookAtLoad():
                assert self.settings.config.mode != "off"
                return self._load()
            case autoscaling.Tell():
                self.told.append(instruction)
                return None
            case _:
                self._may(instruction.check)
        if self.troubled and self.draw.random() < 0.05:
            return autoscaling.ScaleRefused("no space left")
        self.changed_s.append(self.now_s)
        match instruction:
            case autoscaling.Launch(number=number):
                if number > self.room:
                    return autoscaling.NoRoom("no GPU is free")
                return autoscaling.ScaleDone(self._launch(number), sorted(self.leaving))
            case autoscaling.Drain(instance_ids=ids, forced=forced):
                self._drain(list(ids), forced=forced)
            case autoscaling.Keep(instance_id=instance_id):
                assert self.leaving.pop(instance_id)[0] == autoscaling.ACTOR
        return autoscaling.ScaleDone((), sorted(self.leaving))

    def _may(self, check: autoscaling.Check) -> None:
        assert self.settings.config.mode == "on", "in a dry run nothing is done"
        assert self.hold is None, "the operator's scale wins"
        assert not self.rolling
        assert check.decision.change

    def _launch(self, number: int) -> list[str]:
        assert not self.failed - set(self.leaving), "those that failed go first"
        assert not self.leaving
        assert len(self.planned) + number <= CONFIG.max_instances
        last_failed_s = self.machine.starts.last_failed_s
        assert last_failed_s is None or self.now_s - last_failed_s >= CONFIG.retry_failed_start_s
        added = [f"i-{self.num_named + n}" for n in range(number)]
        self.num_named += number
        for key in added:
            fails = self.troubled and self.draw.random() < 0.2
            self.starts[key] = 1e9 if fails else self.now_s + self.draw.choice([3.0, 20.0, 45.0])
        return added

    def _drain(self, ids: list[str], *, forced: bool) -> None:
        if forced:
            assert set(ids) == set(self.machine.starts.failed)
        else:
            (leaves,) = ids
            assert leaves in self.serving
            assert len(self.schedulable) - 1 >= CONFIG.min_instances
        for key in ids:
            due_s = self.now_s + (1.0 if forced else self.draw.choice([2.0, 25.0]))
            self.leaving[key] = (autoscaling.ACTOR, due_s)

    def _load(self) -> autoscaling.LoadSeen:
        return autoscaling.LoadSeen(
            self.now_s,
            self.schedulable,
            block_size=16,
            new_capacity_blocks=100,
            num_waiting=0 if self.schedulable else self.num_requests,
            waiting_demand_blocks=0 if self.schedulable else BLOCKS_PER_REQUEST * self.num_requests,
            leaving=[
                autoscaling.LeavingInstance(key, actor, cannot_start=key in self.failed)
                for key, (actor, _) in self.leaving.items()
            ],
            hold=self.hold,
            rolling=self.rolling,
        )


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_its_invariants_hold_and_it_comes_to_rest(seed: int) -> None:
    """Trouble for 40 minutes; then the load stays as it is and all goes well: in the end there are
    as many as the load wants, and nothing changes any more."""
    world = World(seed)
    while world.now_s < 2400:
        world.tick()
    kinds = {each.kind for each in world.told}
    assert {EventKind.AUTOSCALED, EventKind.AUTOSCALE_BLOCKED} <= kinds, "too little happened"
    world.troubled, world.rolling, world.room, world.hold = False, False, 8, None
    world.num_requests = 30
    world.change(mode="on")
    while world.now_s < 2400 + CONFIG.retry_failed_start_s + 900:
        world.tick()
    # 30 requests of 10 blocks have 160 steps each on 6 instances, and far from 960 on 8.
    assert 6 <= len(world.serving) <= CONFIG.max_instances
    assert not world.leaving
    assert world.now_s - max(world.changed_s, default=0.0) > 300, "it grows and shrinks in turn"


def on(
    machine: autoscaling.Autoscaler, now_s: float, *serving: str
) -> list[autoscaling.Instruction]:
    return machine.handle(
        autoscaling.Ticked(serving, dict.fromkeys(serving, 100.0), (), len(serving)), now_s
    )


def idle(*serving: str) -> autoscaling.LoadSeen:
    snapshots = [InstanceSnapshot(each, 1, 16, 100, 100) for each in serving]
    return autoscaling.LoadSeen(0.0, snapshots, 16, 100)


def test_an_answer_that_does_not_come_holds_no_later_check_up() -> None:
    machine = autoscaling.Autoscaler(
        "e", replace(ON, config=replace(CONFIG, down_persistence_s=0.0))
    )
    ids = ("a", "b", "c")
    assert on(machine, 0.0, *ids) == []
    assert on(machine, 10.0, *ids) == [autoscaling.LookAtLoad()]
    assert on(machine, 10.1, *ids) == [autoscaling.LookAtLoad()], "nobody looked"
    (ordered,) = machine.handle(idle(*ids), 10.1)
    assert isinstance(ordered, autoscaling.Drain)
    assert machine.phase is autoscaling.Phase.ACTING
    assert on(machine, 10.2, *ids) == []
    assert machine.phase is autoscaling.Phase.RESTING, "nobody answered"
    assert machine.handle(autoscaling.ScaleDone(), 10.3) == [], "it is too late"
    assert machine.view(ids, 10.3).last_change is None
    assert on(machine, 20.1, *ids) == [autoscaling.LookAtLoad()]
    machine.check(20.1)


def test_what_goes_on_is_told_once() -> None:
    machine = autoscaling.Autoscaler(
        "e",
        autoscaling.SettingsChanged(replace(CONFIG, mode="dry-run", down_persistence_s=0.0), 60.0),
    )
    ids, told = ("a", "b", "c"), []
    for number in range(5):
        on(machine, 10.0 * number, *ids)
        told += machine.handle(idle(*ids), 10.0 * number)
    assert [each.kind for each in told if isinstance(each, autoscaling.Tell)] == [
        EventKind.AUTOSCALE_PLANNED
    ]
    last = machine.view(ids, 40.0).last
    assert (last.outcome, last.decision.deed) == (autoscaling.Outcome.WOULD, "remove a")
