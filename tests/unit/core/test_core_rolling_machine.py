"""Rolling restarts by the machine and the cluster's real spec, in a cluster of plain values: full
disks, restarted controllers, processes that fail, hang or die, operators. Seeded; the machine and
the spec are checked after each event."""

import random
from dataclasses import dataclass, replace

import pytest

from controller.core.emptying.claims import Remove, Restart
from controller.core.emptying.drains import InstanceProcess, RestartStep, restart_step
from controller.core.fleet import rolling
from controller.core.fleet.cluster_spec import (
    AS_STARTED,
    ClusterSpec,
    EngineChange,
    RollingOrder,
)
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.record.event_log import EventKind

TICK_S = 0.5
NEW = EngineChange(1, {"max_num_seqs": 64})
OVER = (EventKind.ROLLING_ENDED, EventKind.ROLLING_FAILED)


@dataclass
class Process:
    """Of one instance. `due_s`: when the next one comes, or when its own start is over."""

    nonce: str
    engine: EngineChange
    state: str = "serves"
    due_s: float = float("inf")


class World:
    """Each process empties, ends, starts and serves after times that are drawn; while `troubled`,
    what can go wrong does."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.machine = rolling.RollingRestart()
        self.now_s = 1000.0
        self.spec = ClusterSpec.first(5)
        self.processes = {key: Process("p0", AS_STARTED) for key in self.spec.instance_ids}
        self.gone: set[str] = set()
        """Instances whose process has ended for its restart, and is not back."""
        self.troubled = True
        self.disk_is_full = False
        self.num_processes = 1
        self.told: list[rolling.Tell] = []

    def begin(self, order: RollingOrder) -> None:
        assert rolling.refusal(self.spec.rolling, self.seen(), force=False) is None
        self.say(rolling.Began(order, self.seen()))

    def tick(self) -> None:
        self.now_s += TICK_S
        for key in list(self.processes):
            self._go_on(key)
        if self.troubled:
            self._make_trouble()
        self.say(rolling.Ticked(self.spec.rolling, self.seen(), self.now_s))
        order = self.spec.rolling
        if order is not None and order.goes:
            assert rolling.refusal(order, self.seen(), force=True) is rolling.RollingRefusal.GOES

    def say(self, event: rolling.Event) -> None:
        instructions = self.machine.handle(event, self.now_s)
        self.machine.check()
        for instruction in instructions:
            match instruction:
                case rolling.Tell():
                    self.told.append(instruction)
                case rolling.ChangeSpec() if self.disk_is_full:
                    self.say(rolling.SpecNotChanged())
                case rolling.ChangeSpec():
                    self._change(instruction)
                    self.say(rolling.SpecChanged(self.now_s))

    def seen(self) -> list[rolling.InstanceNow]:
        return [self._seen(key, process) for key, process in self.processes.items()]

    # -- inside --------------------------------------------------------------------------

    def _seen(self, key: str, process: Process) -> rolling.InstanceNow:
        claims = self.spec.drains.get(key)
        restart = claims.restart if claims is not None and claims.restarts else None
        serves = process.state == "serves"
        is_another = restart is not None and process.nonce not in ("", restart.nonce)
        now = rolling.InstanceNow(
            key,
            process.nonce,
            serving=serves,
            failed=process.state == "failed",
            detail="no memory" if process.state == "failed" else "",
            alive=process.state in ("serves", "failed", "starts"),
            removes=claims is not None and claims.goes,
            restarts="" if restart is None else restart.nonce,
            is_away=restart is not None and (key in self.gone or is_another),
            takes_requests=serves and claims is None,
            engine=self.spec.engine_of(key),
            fingerprint="f" if serves else "",
            max_model_len=8192 if serves else 0,
        )
        load = InstanceSnapshot(key, 1, 16, 100, 80, num_running=2)
        return now.with_load(load) if serves else now

    def _change(self, step: rolling.ChangeSpec) -> None:
        before = self.spec
        self.spec = before.with_rolling(step.order, step.restarts, step.taken_back, step.engines)
        self.spec.check()
        limit = step.order.at_once
        assert not limit or len(step.order.under_way) <= limit
        if step.order.goes and step.restarts:
            assert any(each.takes_requests for each in self.seen()), "nobody serves"

    def _go_on(self, key: str) -> None:
        process, claims = self.processes[key], self.spec.drains.get(key)
        restart = claims.restart if claims is not None and claims.restarts else None
        if claims is not None and claims.goes and self.draw.random() < 0.1:
            del self.processes[key]
            self.gone.discard(key)
            self.spec = self.spec.without_instance(key)
            return
        if process.state in ("starts", "dead") and self.now_s >= process.due_s:
            self._comes(key, process)
        if restart is None:
            self.gone.discard(key)
            return
        alive = process.state not in ("dead", "ended")
        serves, failed = process.state == "serves", process.state == "failed"
        now = InstanceProcess(process.nonce, alive, serves, failed)
        is_empty = not serves or self.draw.random() < 0.2
        step = restart_step(restart, now, is_empty=is_empty)
        if step in (RestartStep.DONE, RestartStep.FAILED):
            self.gone.discard(key)
            self.spec = self.spec.without_claim(key, Restart)
        elif step is RestartStep.REPLACE:
            self.gone.add(key)
            process.state, process.due_s = "dead", self.now_s + self.draw.choice([0.5, 3.0, 8.0])
        elif restart.is_overdue(self.now_s) and key not in self.gone:
            self.spec = self.spec.without_claim(key, Restart)

    def _comes(self, key: str, process: Process) -> None:
        """The next process, which starts with what the spec has for it, or the start's outcome."""
        if process.state == "dead":
            nonce = f"p{self.num_processes}"
            self.num_processes += 1
            due_s = self.now_s + self.draw.choice([1.0, 4.0])
            self.processes[key] = Process(nonce, self.spec.engine_of(key), "starts", due_s)
            return
        luck = self.draw.random() if self.troubled else 1.0
        if luck < 0.05:
            process.state, process.due_s = "failed", float("inf")
        elif luck < 0.1:
            process.state, process.due_s = "dead", self.now_s + 1.0
        elif luck < 0.15:
            process.due_s = self.now_s + 100.0
        else:
            process.state, process.due_s = "serves", float("inf")

    def _make_trouble(self) -> None:
        draw, order = self.draw, self.spec.rolling
        if draw.random() < (0.3 if self.disk_is_full else 0.02):
            self.disk_is_full = not self.disk_is_full
        if draw.random() < 0.02:
            self.machine = rolling.RollingRestart()
        key = draw.choice(sorted(self.processes))
        if draw.random() < 0.002 and order is not None:
            self.say(rolling.Stopped(order, self.seen(), self.now_s, "stopped by ana", "ana"))
        if draw.random() < 0.002 and key in self.spec.drains and key not in self.gone:
            self.spec = self.spec.without_claim(key, Restart)
        if draw.random() < 0.003 and len(self.processes) > 3:
            self.spec = self.spec.with_claims({key: Remove("s", self.now_s)})
        if draw.random() < 0.01 and self.processes[key].state == "serves":
            self.processes[key].state, self.processes[key].due_s = "dead", self.now_s + 2.0
        if draw.random() < 0.003 and len(self.processes) < 8:
            self.spec = self.spec.with_instances_added(1)
            added = self.spec.instance_ids[-1]
            process = Process("", AS_STARTED, "dead", self.now_s + 2.0)
            self.processes[added] = process


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_it_ends_and_leaves_none_half_started(seed: int) -> None:
    world = World(seed)
    engine = NEW if seed % 2 else AS_STARTED
    order = RollingOrder(
        "op-1",
        world.now_s,
        (),
        at_once=seed % 3,
        deadline_s=60.0 if seed % 4 == 0 else None,
        start_timeout_s=50.0,
        engine=engine,
    )
    world.begin(order)
    for _ in range(40 + seed % 5 * 60):
        world.tick()
    world.troubled, world.disk_is_full = False, False
    for _ in range(1200):
        world.tick()
    ended = world.spec.rolling
    assert not ended.goes, world.machine.waits
    kinds = [each.kind for each in world.told]
    assert (kinds[0], kinds[-1]) == (EventKind.ROLLING_STARTED, kinds[-1])
    assert sum(kind in OVER for kind in kinds) == 1
    assert kinds[-1] in OVER
    stepped = [each.instance_id for each in world.told[1:-1]]
    assert sorted(stepped) == sorted(ended.done)
    assert not world.spec.drains, "a claim is left"
    for key, process in world.processes.items():
        if process.state != "serves":
            assert key == ended.failed_id or process.state == "failed"
        elif ended.state == "done":
            assert process.engine == engine
            assert key not in ended.done or process.nonce != "p0"
        else:
            assert process.engine == world.spec.engine_of(key), "half started"
            assert process.engine == (engine if key in ended.done else AS_STARTED)


def test_a_full_disk_delays_a_step_and_an_order_that_was_not_saved_is_given_up() -> None:
    world = World(0)
    world.troubled, world.disk_is_full = False, True
    world.begin(RollingOrder("op-1", world.now_s, ()))
    assert world.spec.rolling is None
    world.disk_is_full = False
    world.now_s += rolling.RETRY_S
    world.tick()
    assert world.told == []
    world.begin(RollingOrder("op-2", world.now_s, ()))
    world.disk_is_full = True
    world.tick()
    assert world.spec.drains == {}
    world.disk_is_full = False
    world.tick()
    assert world.spec.drains == {}, "not at once"
    world.tick()
    assert list(world.spec.drains) == ["i-0"]


def test_the_time_that_emptying_took_is_told_by_the_controller_that_saw_it() -> None:
    told = []
    for restarts in (False, True):
        world = World(1)
        world.troubled = False
        world.begin(replace(RollingOrder("op-1", world.now_s, ()), at_once=1))
        while len(world.told) < 2:
            world.tick()
            if restarts and "i-0" in world.gone:
                world.machine, restarts = rolling.RollingRestart(), False
        told.append(world.told[1])
    assert [each.instance_id for each in told] == ["i-0", "i-0"]
    emptied_s = told[0].numbers["emptied_s"]
    assert emptied_s is not None
    assert 0 < emptied_s < (told[0].numbers["took_s"] or 0)
