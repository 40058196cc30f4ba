"""Which instances are asked for their status, whose silence is recorded, and which are fenced: rule
by rule, and in seeded clusters whose instances hang, come back and fall silent together. Then which
one steps slowly, and which ones compute without a request."""

import random
from dataclasses import replace

import pytest

from controller.core.fleet import liveness

STALL_S = 5.0
FENCE_S = 30.0
NEVER = 0.0
REPORTED = liveness.Serving("i-0", 1, 0.0, 10, STALL_S)
"""At 0 s."""


def look(
    machine: liveness.Liveness, now_s: float, *serving: liveness.Serving, **how: bool
) -> list[liveness.Instruction]:
    found = machine.handle(liveness.InstancesSeen(serving, NEVER, **how), now_s)
    machine.check(now_s)
    return found


@pytest.mark.parametrize(
    ("serving", "now_s", "asked"),
    [
        (replace(REPORTED, last_report_s=None), 0.0, True),
        (REPORTED, liveness.PULL_AFTER_S, False),
        (REPORTED, liveness.PULL_AFTER_S + 0.1, True),
        (replace(REPORTED, is_dead=True), 0.0, True),
    ],
)
def test_whoever_does_not_report_is_asked(serving, now_s, asked) -> None:
    assert look(liveness.Liveness(), now_s, serving) == ([liveness.Pull("i-0")] if asked else [])
    everybody = look(liveness.Liveness(), 0.1, serving, pulls_all=True)
    assert everybody == [liveness.Pull("i-0")], "where nobody pushes"


def test_a_silence_is_put_on_record_once_and_its_end() -> None:
    machine = liveness.Liveness()
    assert look(machine, 6.0, REPORTED) == [liveness.Pull("i-0"), liveness.TellStall("i-0", 6.0)]
    assert look(machine, 7.0, REPORTED) == [liveness.Pull("i-0")]
    again = replace(REPORTED, last_report_s=8.0)
    assert look(machine, 8.0, again) == [liveness.TellStall("i-0", 8.0, over=True)]
    assert look(machine, 9.0, again) == []
    look(machine, 16.0, again)
    again = replace(REPORTED, last_report_s=17.0)  # it is old by the next look
    over, stalls = liveness.TellStall("i-0", 9.0, over=True), liveness.TellStall("i-0", 13.0)
    assert look(machine, 30.0, again) == [liveness.Pull("i-0"), over, stalls]


class Cluster:
    """Instances on nodes of two. Time goes on by a tenth of a second. Those that hang report
    nothing, until their process comes back, as another incarnation if it was fenced."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.machine = liveness.Liveness()
        self.now_s = 0.0
        self.instances = {
            f"i-{n}": liveness.Serving(f"i-{n}", 1, 0.0, 10, STALL_S, f"n-{n // 2}")
            for n in range(6)
        }
        self.comes_back_s: dict[str, float] = {}
        """Of those that hang."""
        self.free_blocks = 200
        self.fenced: list[tuple[float, int]] = []
        """When, and what their requests need."""
        self.stalled: set[str] = set()

    def tick(self) -> None:
        self.now_s += 0.1
        draw, instances = self.draw, self.instances
        if draw.random() < 0.01:
            self._hang(draw.choice(sorted(instances)))
        if draw.random() < 0.002:  # a network, or a node
            for instance_id in draw.sample(sorted(instances), draw.choice([2, 4, 6])):
                self._hang(instance_id)
        if draw.random() < 0.01:
            self.free_blocks = draw.choice([0, 15, 60, 200])
        for instance_id, each in instances.items():
            if self.now_s >= self.comes_back_s.get(instance_id, 0.0):
                self.comes_back_s.pop(instance_id, None)
                last_s, need_blocks = self.now_s, draw.choice([0, 5, 40])
                incarnation = each.incarnation + each.fenced
                instances[instance_id] = replace(
                    each,
                    incarnation=incarnation,
                    last_report_s=last_s,
                    need_blocks=need_blocks,
                    fenced=False,
                )
        self.say(liveness.InstancesSeen(list(instances.values()), FENCE_S))
        self._compare()

    def say(self, event: liveness.Event) -> None:
        instructions = self.machine.handle(event, self.now_s)
        self.machine.check(self.now_s)
        fences = [each for each in instructions if isinstance(each, liveness.Fence)]
        if isinstance(event, liveness.Rest):
            self._may(event, fences)
        for each in instructions:
            match each:
                case liveness.TellStall(instance_id, _, over):
                    assert (instance_id in self.stalled) is over, "told twice"
                    self.stalled ^= {instance_id}
                case liveness.LookAtRest():
                    self.say(self._rest())
                case liveness.Fence(instance_id):
                    self._fence(instance_id)

    def _hang(self, instance_id: str) -> None:
        lasts_s = self.draw.choice([3.0, 12.0, 60.0, 300.0])
        self.comes_back_s.setdefault(instance_id, self.now_s + lasts_s)

    def _silent_s(self, instance_id: str) -> float:
        return self.now_s - (self.instances[instance_id].last_report_s or 0.0)

    def _rest(self) -> liveness.Rest:
        num = sum(each.reports(self.now_s) for each in self.instances.values())
        num_away = sum(each.fenced for each in self.instances.values())
        return liveness.Rest(num, self.free_blocks if num else 0, num_away)

    def _may(self, rest: liveness.Rest, fences: list[liveness.Fence]) -> None:
        """The brake: beyond the first fault only what the rest has memory for."""
        assert not fences or rest.num_schedulable, "nobody is left for their requests"
        nodes = {self.instances[each.instance_id].node for each in fences}
        needed = sum(self.instances[each.instance_id].need_blocks for each in fences)
        lately = [each for each in self.fenced if self.now_s - each[0] < liveness.SETTLED_S]
        under_way = sum(need_blocks for _, need_blocks in lately)
        if rest.num_away or len(nodes) > 1:
            assert needed + under_way <= self.free_blocks or not fences
        if rest.num_schedulable and not rest.num_away:
            assert fences, "somebody was silent for long enough, and nobody is away"

    def _fence(self, instance_id: str) -> None:
        each = self.instances[instance_id]
        assert not each.fenced, "it is fenced already"
        assert self._silent_s(instance_id) >= FENCE_S - 1.0, "it reported not long ago"
        self.fenced.append((self.now_s, each.need_blocks))
        self.instances[instance_id] = replace(each, fenced=True)
        self.stalled.discard(instance_id)
        self.machine.handle(liveness.InstanceGone(instance_id, each.incarnation), self.now_s)

    def _compare(self) -> None:
        for instance_id, each in self.instances.items():
            if not each.fenced:
                is_silent = self._silent_s(instance_id) > STALL_S
                assert (instance_id in self.stalled) == is_silent


@pytest.mark.parametrize("seed", range(8))
def test_whoever_hangs_is_told_fenced_and_never_more_than_the_rest_can_take(seed: int) -> None:
    cluster = Cluster(seed)
    for _ in range(3000):
        cluster.tick()
    assert cluster.fenced, "too little happened"


# -- how long each is silent, and which ones go --------------------------------------------

KEY, OTHER = ("i-0", 1), ("i-0", 2)


def test_silence_counts_from_the_last_report_of_the_same_incarnation() -> None:
    silences = liveness.Silences()
    assert silences.turn(0.0, [(KEY, 0.0)]) == {KEY: 0.0}
    for turn in range(1, 11):
        found = silences.turn(turn / 10, [(KEY, 0.0)])
    assert 0.9 <= found[KEY] <= 1.0
    assert silences.turn(1.1, [(KEY, 1.05)]) == {KEY: 0.0}
    silent_s = silences.turn(3600.0, [(KEY, 1.05)])[KEY]
    assert silent_s <= liveness.MAX_TURN_S, "the listener slept itself"
    assert silences.turn(3601.0, [(OTHER, 3601.0)]) == {OTHER: 0.0}


def silent(name: str, silent_s: float, need_blocks: int, node: str = "n") -> liveness.Silent:
    return liveness.Silent(name, 1, silent_s, need_blocks, node)


THREE = [silent("i-0", 31, 60), silent("i-1", 40, 30), silent("i-2", 35, 20)]
LARGE = [silent("i-0", 31, 80), silent("i-1", 40, 200), silent("i-2", 29, 0)]
TWO_NODES = [
    silent("i-0", 31, 80, "a"),
    silent("i-1", 33, 80, "a"),
    silent("i-2", 0, 10, "b"),
    silent("i-3", 40, 50, "b"),
]


@pytest.mark.parametrize(
    ("found", "rest", "after_s", "faults"),
    [
        # The longest silent goes first, and alone if its requests do not fit.
        (LARGE, liveness.Rest(3, 100, 0), FENCE_S, ["i-1"]),
        (THREE, liveness.Rest(3, 100, 0), FENCE_S, ["i-1", "i-2"]),
        (THREE, liveness.Rest(3, 110, 0), FENCE_S, ["i-1", "i-2", "i-0"]),
        # While one is away the next must fit.
        (LARGE[1:], liveness.Rest(3, 100, num_away=1), FENCE_S, []),
        (LARGE[1:], liveness.Rest(3, 200, num_away=1), FENCE_S, ["i-1"]),
        # Nothing could take the requests, or fencing is off.
        (THREE, liveness.Rest(0, 110, 0), FENCE_S, []),
        (THREE, liveness.Rest(3, 110, 0), NEVER, []),
        # A node all of whose instances are silent is one fault, but not the only one.
        (TWO_NODES, liveness.Rest(1, 500, 0), FENCE_S, ["i-3", "i-0 i-1"]),
        (TWO_NODES, liveness.Rest(1, 100, 0), FENCE_S, ["i-3"]),
        (TWO_NODES[:2], liveness.Rest(1, 100, 0), FENCE_S, ["i-1"]),
    ],
)
def test_which_ones_are_fenced(found, rest, after_s, faults) -> None:
    chosen = liveness.to_fence(found, rest, after_s)
    assert [" ".join(each.instance_id for each in fault) for fault in chosen] == faults


# -- which one steps slowly ------------------------------------------------------------------

WINDOW_S, FACTOR = 10.0, 3.0
STEP_S = 0.04


class Stepping:
    """Looked at ten times a second, from 0 s on."""

    def __init__(self, *drained: str) -> None:
        self.machine = liveness.Slowness()
        self.drained = drained
        self.now_s = -0.1

    def look(self, **step_times_s: float) -> list[liveness.Empty]:
        """Of those that have something to do."""
        self.now_s += 0.1
        found = {(name, 1): step_s for name, step_s in step_times_s.items()}
        asked = self.machine.handle(
            liveness.StepsSeen(found, self.drained, FACTOR, WINDOW_S), self.now_s
        )
        self.machine.check()
        return asked

    def go_on(self, seconds: float, **step_times_s: float) -> list[liveness.Empty]:
        """What is asked for at last."""
        found = [self.look(**step_times_s) for _ in range(round(10 * seconds) + 1)]
        return found[-1]


def test_the_one_far_behind_the_others() -> None:
    (slow,) = Stepping().go_on(12.0, a=STEP_S, b=1.5 * STEP_S, c=6 * STEP_S)
    assert slow.why == "its steps take 240 ms, 4.8 times as long as the others'"
    assert (slow.instance_id, slow.incarnation, round(slow.factor, 1)) == ("c", 1, 4.8)


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [
        pytest.param(12.0, {"b": STEP_S, "c": 2.5 * STEP_S}, id="a difference of load"),
        pytest.param(12.0, {"b": 9 * STEP_S}, id="of two nobody knows which is the exception"),
        pytest.param(8.0, {"b": STEP_S, "c": 9 * STEP_S}, id="not for the whole window"),
    ],
)
def test_none_is_slow(seconds: float, steps: dict[str, float]) -> None:
    assert Stepping().go_on(seconds, a=STEP_S, **steps) == []


def test_long_prompts_now_and_then_are_no_slowness() -> None:
    watched = Stepping()
    for turn in range(121):
        assert watched.look(a=STEP_S, b=STEP_S, c=0.5 if turn % 3 == 0 else STEP_S) == []


def test_none_while_another_one_is_emptied_and_one_that_rested_begins_anew() -> None:
    watched = Stepping("d")
    assert watched.go_on(12.0, a=STEP_S, b=STEP_S, c=9 * STEP_S, d=9 * STEP_S) == []
    watched.drained = ()
    (slow,) = watched.look(a=STEP_S, b=STEP_S, c=9 * STEP_S, d=99 * STEP_S)
    assert slow.instance_id == "c", "nobody watched d"
    watched.look(a=STEP_S, b=STEP_S)
    assert watched.look(a=STEP_S, b=STEP_S, c=9 * STEP_S) == []


# -- which ones compute though no request is there -------------------------------------------


def test_one_that_computes_in_vain_is_put_on_record_once_and_its_end() -> None:
    machine, lasts_s = liveness.Busyness(), liveness.LASTS_S
    on_record = False
    for now_s, cores, told in (
        (0.0, None, []),  # it has work, or does not serve
        (1.0, 1.1, []),
        (1.0 + lasts_s - 0.1, liveness.BUSY_CORES, []),
        (1.0 + lasts_s, 1.1, [liveness.TellBusy("i-0", 1, lasts_s, 1.1)]),
        (8.0, 1.1, []),
        (9.0, 0.01, [liveness.TellBusy("i-0", 1, 8.0, over=True)]),
        *((now_s, 1.1 if now_s % 4 else 0.01, []) for now_s in range(10, 30)),  # it does not last
        (31.0, 0.01, []),
        (32.0, 1.1, []),
        (32.0 + lasts_s, 1.1, [liveness.TellBusy("i-0", 1, lasts_s, 1.1)]),
    ):
        idle = {} if cores is None else {("i-0", 1): cores}
        assert machine.handle(liveness.IdleSeen(idle), now_s) == told
        machine.check(now_s)
        on_record = not told[0].over if told else on_record
        assert machine.is_on_record("i-0", 1) is on_record
    machine.handle(liveness.InstanceGone("i-0", 1), 40.0)
    machine.check(40.0)
    assert not machine.is_on_record("i-0", 1)
    assert machine.handle(liveness.IdleSeen({}), 41.0) == []
