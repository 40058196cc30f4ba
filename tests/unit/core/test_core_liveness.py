"""Which instances are asked for their status, whose silence is recorded, and which are fenced. Then
which one steps slowly, and which ones compute without a request."""

from dataclasses import replace

import pytest

from controller.core.fleet import liveness

STALL_S = 5.0
FENCE_S = 30.0
NEVER = 0.0
REPORTED = liveness.Serving("i-0", 1, 0.0, 10, STALL_S)
"""At 0 s."""


def look(
    machine: liveness.Liveness,
    now_s: float,
    *serving: liveness.Serving,
    after_s: float = NEVER,
    pulls_all: bool = False,
) -> list[liveness.Instruction]:
    found = machine.handle(liveness.InstancesSeen(serving, after_s, pulls_all), now_s)
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


def test_beside_one_that_is_away_the_next_is_fenced_once_its_requests_fit() -> None:
    """Two are silent on two nodes, since 0 s and 1 s. The third has memory for one of them."""
    machine, fenced = liveness.Liveness(), dict[str, float]()
    for turn in range(round(10 * (FENCE_S + liveness.SETTLED_S + 10))):
        now_s = turn / 10
        serving = [
            liveness.Serving(f"i-{n}", 1, min(now_s, last_s), 60, STALL_S, f"n-{n}", fenced=away)
            for n, last_s in enumerate((0.0, 1.0, 1e9))
            for away in (f"i-{n}" in fenced,)
        ]
        told = look(machine, now_s, *serving, after_s=FENCE_S)
        if liveness.LookAtRest() in told:
            told = machine.handle(liveness.Rest(1, 100, num_away=len(fenced)), now_s)
        machine.check(now_s)
        for each in told:
            if isinstance(each, liveness.Fence):
                assert each.instance_id not in fenced
                fenced[each.instance_id] = now_s
                machine.handle(liveness.InstanceGone(each.instance_id, 1), now_s)
    expected = {"i-0": FENCE_S, "i-1": FENCE_S + liveness.SETTLED_S}
    assert fenced == pytest.approx(expected, abs=0.5)


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
