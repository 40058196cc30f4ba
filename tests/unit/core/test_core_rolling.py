"""Rolling restarts: which instance is next, when it is over, and what a failure does; then seeded
clusters with full disks, restarted controllers, processes that fail, hang or die, and operators."""

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest

from controller.core.emptying.claims import Remove, Restart
from controller.core.emptying.drains import InstanceProcess, RestartStep, restart_step
from controller.core.fleet import rolling
from controller.core.fleet.cluster_spec import (
    AS_MANY_AS_FIT,
    AS_STARTED,
    ClusterSpec,
    EngineChange,
    RollingOrder,
    Turn,
)
from controller.core.fleet.rolling import (
    NO_OTHER_SERVES,
    InstanceNow,
    RollingStep,
    in_turn,
    rolling_step,
    stopped,
)
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.record.event_log import EventKind

ORDER = RollingOrder("op-1", 100.0, ("i-0", "i-1", "i-2"))


def serving(instance_id: str, nonce: str = "old", **what: object) -> InstanceNow:
    now = InstanceNow(instance_id, nonce, serving=True, takes_requests=True, free_tokens=100)
    return replace(now, **what)  # type: ignore[arg-type]


THREE = [serving("i-0"), serving("i-1"), serving("i-2")]


def being_emptied(instance_id: str, **what: object) -> InstanceNow:
    return serving(instance_id, ordered=True, takes_requests=False, **what)


def with_turn(*turns: Turn, **what: object) -> RollingOrder:
    away = {turn.instance_id for turn in turns}
    left = tuple(each for each in ORDER.left if each not in away)
    return replace(ORDER, under_way=turns, left=left, **what)  # type: ignore[arg-type]


FIRST = Turn("i-0", "old", 100.0)


def test_the_first_begins_at_once_and_the_second_waits_for_it() -> None:
    step = rolling_step(ORDER, THREE, 100.0)
    assert step == RollingStep(with_turn(FIRST), begins=("i-0",))
    now = [being_emptied("i-0"), *THREE[1:]]
    assert rolling_step(step.order, now, 105.0).order is step.order
    starting = [InstanceNow("i-0", "new", ordered=True, away_s=3.0), *THREE[1:]]
    assert rolling_step(step.order, starting, 106.0).order is step.order
    serves = [serving("i-0", "new"), *THREE[1:]]
    later = rolling_step(step.order, serves, 107.5)
    assert later.begins == ("i-1",)
    assert later.order.done == {"i-0": 7.5}
    assert later.order.under_way == (Turn("i-1", "old", 107.5),)


def test_one_that_is_restarted_already_waits_for_that() -> None:
    """Its present process is the next one, and the claim names the one before; the restart would be
    mistaken for one that was taken back."""
    loading = InstanceNow("i-0", "new", restarts="old")
    step = rolling_step(ORDER, [loading, *THREE[1:]], 100.0)
    assert "i-0" not in step.begins
    assert step.order.state == "going"
    emptied = serving("i-0", restarts="old")
    assert rolling_step(ORDER, [emptied, *THREE[1:]], 100.0).begins == ("i-0",), "the same process"


@pytest.mark.parametrize(
    ("found", "deadline_s", "why"),
    [
        (
            InstanceNow("i-0", "new", failed=True, detail="no such model"),
            None,
            "i-0 could not start: no such model",
        ),
        (serving("i-0"), None, "the restart of i-0 was taken back"),
        (serving("i-0"), 60.0, "the restart of i-0 was taken back"),
        (serving("i-0"), 5.0, "i-0 was not empty within 5 s"),
        (
            InstanceNow("i-0", "new", ordered=True, away_s=601.0),
            None,
            "i-0 did not serve within 600 s of its restart",
        ),
    ],
)
def test_one_that_fails_ends_it(found: InstanceNow, deadline_s: float | None, why: str) -> None:
    order = with_turn(FIRST, deadline_s=deadline_s)
    step = rolling_step(order, [found, *THREE[1:]], 106.0)
    assert (step.order.state, step.order.why, step.order.failed_id) == ("failed", why, "i-0")
    assert (step.begins, step.taken_back, step.order.under_way) == ((), (), ())
    assert step.order.left == ("i-1", "i-2")
    step.order.check()
    assert rolling_step(step.order, THREE, 107.0) == RollingStep(step.order)


def test_restarts_beside_the_failed_one_are_taken_back_unless_their_process_has_ended() -> None:
    turns = (FIRST, Turn("i-1", "old", 100.0), Turn("i-2", "old", 100.0))
    now = [
        InstanceNow("i-0", "new", failed=True),
        being_emptied("i-1"),
        InstanceNow("i-2", "", ordered=True, away_s=1.0),
    ]
    step = rolling_step(with_turn(*turns, at_once=AS_MANY_AS_FIT), now, 106.0)
    assert (step.order.state, step.taken_back) == ("failed", ("i-1",))
    assert step.order.left == ("i-1",)
    by_hand = stopped(with_turn(*turns, at_once=3), now, "by ana", 106.0)
    assert (by_hand.order.state, by_hand.order.why) == ("stopped", "by ana")
    assert by_hand.taken_back == ("i-1",)


def test_nobody_begins_while_no_other_serves_unless_forced() -> None:
    now = [serving("i-0"), InstanceNow("i-1", "old", failed=True), InstanceNow("i-2", "")]
    alone = replace(ORDER, left=("i-0",), done={"i-1": 1.0, "i-2": 1.0})
    step = rolling_step(alone, now, 101.0)
    assert (step.order is alone, step.begins, step.waits) == (True, (), NO_OTHER_SERVES)
    assert rolling_step(replace(alone, force=True), now, 101.0).begins == ("i-0",)


def test_one_that_has_not_started_is_passed_over_and_one_that_cannot_goes_first() -> None:
    now = [serving("i-0"), InstanceNow("i-1", ""), InstanceNow("i-2", "old", failed=True)]
    assert in_turn(now) == ("i-1", "i-2", "i-0")
    assert in_turn([serving("i-0"), serving("i-1", removes=True)]) == ("i-0",)
    assert rolling_step(replace(ORDER, left=("i-1", "i-2", "i-0")), now, 1.0).begins == ("i-2",)


def test_one_that_is_removed_meanwhile_is_left_out() -> None:
    for rest in ([], [being_emptied("i-0", removes=True)]):
        step = rolling_step(with_turn(FIRST), [*rest, *THREE[1:]], 106.0)
        assert (step.order.done, step.begins) == ({}, ("i-1",))


def test_as_many_go_at_once_as_the_others_have_room_for() -> None:
    order = replace(ORDER, at_once=AS_MANY_AS_FIT)
    light = [serving(each, num_tokens=10, num_requests=2) for each in ORDER.left]
    assert rolling_step(order, light, 1.0).begins == ("i-0", "i-1"), "one stays"
    heavy = [replace(each, num_tokens=60) for each in light]
    assert rolling_step(order, heavy, 1.0).begins == ("i-0",), "two have 120, the third 100 free"
    narrow = [replace(each, free_places=3) for each in light]
    assert rolling_step(order, narrow, 1.0).begins == ("i-0",), "4 requests, 3 places"
    limited = replace(order, at_once=1)
    assert rolling_step(limited, light, 1.0).begins == ("i-0",)


# -- any history --------------------------------------------------------------------------


NEW = EngineChange(1, {"max_num_seqs": 64})
CHANGING = replace(
    ORDER,
    engine=NEW,
    left=("i-1", "i-2"),
    under_way=(Turn("i-0", "old", 100.0, AS_STARTED, "f", 8192),),
)
OTHERS = [serving("i-1"), serving("i-2")]


def anew(**what: object) -> InstanceNow:
    known = {"engine": NEW, "fingerprint": "f", "max_model_len": 8192, **what}
    return serving("i-0", "new", **known)


def test_its_turn_gives_an_instance_the_new_arguments() -> None:
    now = [serving(each, fingerprint="f", max_model_len=8192) for each in ORDER.left]
    step = rolling_step(replace(ORDER, engine=NEW), now, 100.0)
    assert (step.order, step.engines) == (CHANGING, {"i-0": NEW})
    later = rolling_step(step.order, [anew(), *now[1:]], 107.5)
    assert (later.order.done, later.begins, later.put_back) == ({"i-0": 7.5}, ("i-1",), ())


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (anew(serving=False, failed=True, detail="no memory"), "could not start: no memory"),
        (anew(serving=False, alive=False, ordered=True, away_s=1.0), "died before it served"),
        (anew(serving=False, ordered=True, away_s=601.0), "did not serve within 600 s"),
        (anew(fingerprint="g"), "its KV blocks are not those of before"),
        (anew(max_model_len=100), "takes requests of up to 100 tokens instead of 8192"),
    ],
)
def test_one_that_does_not_serve_with_them_gets_its_old_ones_back(found, why) -> None:
    step = rolling_step(CHANGING, [found, *OTHERS], 110.0)
    assert (step.order.state, step.order.failed_id, step.order.left) == (
        "failed",
        "i-0",
        ("i-1", "i-2"),
    )
    assert why in step.order.why
    assert step.order.why.endswith("; it starts again with the arguments that it had")
    assert (step.put_back, step.engines) == (("i-0",), {"i-0": AS_STARTED})


def test_without_other_arguments_nothing_is_put_back() -> None:
    order = replace(CHANGING, engine=AS_STARTED)
    found = InstanceNow("i-0", "new", failed=True)
    step = rolling_step(order, [found, *OTHERS], 110.0)
    assert (step.order.state, step.put_back, step.engines) == ("failed", (), {})
    dead = InstanceNow("i-0", "new", ordered=True, away_s=2.0, alive=False)
    assert rolling_step(order, [dead, *OTHERS], 110.0).order is order, "it is started again"


def test_one_whose_process_has_not_ended_keeps_its_old_ones() -> None:
    step = stopped(CHANGING, [being_emptied("i-0", engine=NEW), *OTHERS], "no", 105.0)
    assert (step.taken_back, step.put_back) == (("i-0",), ())
    assert step.engines == {"i-0": AS_STARTED}
    assert step.order.left == ("i-0", "i-1", "i-2")


def test_stopped_all_that_do_not_serve_with_them_yet_get_their_old_ones_back() -> None:
    second = Turn("i-1", "old", 101.0, AS_STARTED, "f", 8192)
    order = replace(CHANGING, at_once=2, left=("i-2",), under_way=(*CHANGING.under_way, second))
    starts = replace(anew(serving=False, ordered=True, away_s=2.0), instance_id="i-1")
    step = stopped(order, [anew(), starts, OTHERS[1]], "no", 105.0)
    assert (step.order.done, step.put_back) == ({"i-0": 5.0}, ("i-1",))
    assert (step.order.left, step.engines) == (("i-1", "i-2"), {"i-1": AS_STARTED})


def test_the_first_with_other_arguments_goes_alone() -> None:
    order = replace(ORDER, engine=NEW, at_once=AS_MANY_AS_FIT)
    four = [*THREE, serving("i-3")]
    step = rolling_step(replace(order, left=("i-0", "i-1", "i-2", "i-3")), four, 100.0)
    assert step.begins == ("i-0",)
    starts = [InstanceNow("i-0", "new", ordered=True, away_s=1.0, engine=NEW), *four[1:]]
    assert rolling_step(step.order, starts, 101.0).begins == ()
    serves = [serving("i-0", "new", engine=NEW), *four[1:]]
    assert rolling_step(step.order, serves, 102.0).begins == ("i-1", "i-2", "i-3")
    as_before = replace(order, engine=AS_STARTED, left=("i-0", "i-1", "i-2", "i-3"))
    assert len(rolling_step(as_before, four, 100.0).begins) > 1


def test_one_that_does_not_serve_is_to_be_as_the_others_are() -> None:
    broken = InstanceNow("i-0", "old", failed=True)
    others = [serving(each, fingerprint="f", max_model_len=8192) for each in ("i-1", "i-2")]
    (turn,) = rolling_step(replace(ORDER, engine=NEW), [broken, *others], 1.0).order.under_way
    assert (turn.fingerprint, turn.max_model_len) == ("f", 8192)


# -- the machine and the cluster's real spec -----------------------------------------------------


TICK_S = 0.5
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
        step = restart_step(restart, now, may_end=is_empty)
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


@pytest.mark.parametrize("kind", [{"python": "/next/bin/python"}, {"tensor_parallel_size": 2}])
def test_an_engine_of_another_kind_may_be_unlike_and_what_cannot_move_is_replayed(
    kind: dict[str, Any],
) -> None:
    next_kind = EngineChange(1, kind)
    order = replace(ORDER, engine=next_kind)
    three = [replace(each, fingerprint="vllm=1", max_model_len=9) for each in THREE]
    machine = rolling.RollingRestart()
    (began,) = machine.handle(rolling.Ticked(order, three, 100.0), 0.0)
    assert isinstance(began, rolling.ChangeSpec)
    assert began.restarts["i-0"].replays
    assert began.engines == {"i-0": next_kind}
    now = serving("i-0", "new", engine=next_kind, fingerprint="vllm=2", max_model_len=9)
    step = rolling_step(began.order, [now, *three[1:]], 105.0)
    assert (step.order.state, step.begins) == ("going", ("i-1",))
    shorter = replace(now, max_model_len=8)
    step = rolling_step(began.order, [shorter, *three[1:]], 105.0)
    assert step.order.state == "failed"
    other_arguments = replace(began.order, engine=EngineChange(1, {"max_num_seqs": 8}))
    step = rolling_step(other_arguments, [now, *three[1:]], 105.0)
    assert step.order.state == "failed", "the kind is the same"
