"""Which instance steps slowly."""

from controller.core.fleet.liveness import Empty, Slowness, StepsSeen

WINDOW_S, FACTOR = 10.0, 3.0
STEP_S = 0.04


class Watched:
    """Looked at ten times a second, from 0 s on."""

    def __init__(self, *drained: str) -> None:
        self.machine = Slowness()
        self.drained = drained
        self.now_s = -0.1

    def look(self, **step_times_s: float) -> list[Empty]:
        """Of those that have something to do."""
        self.now_s += 0.1
        found = {(name, 1): step_s for name, step_s in step_times_s.items()}
        asked = self.machine.handle(StepsSeen(found, self.drained, FACTOR, WINDOW_S), self.now_s)
        self.machine.check()
        return asked

    def go_on(self, seconds: float, **step_times_s: float) -> list[Empty]:
        """What is asked for at last."""
        found = [self.look(**step_times_s) for _ in range(round(10 * seconds) + 1)]
        return found[-1]


def test_the_one_far_behind_the_others() -> None:
    (slow,) = Watched().go_on(12.0, a=STEP_S, b=1.5 * STEP_S, c=6 * STEP_S)
    assert slow.why == "its steps take 240 ms, 4.8 times as long as the others'"
    assert (slow.instance_id, slow.incarnation, round(slow.factor, 1)) == ("c", 1, 4.8)


def test_a_difference_of_load_is_none() -> None:
    assert Watched().go_on(12.0, a=STEP_S, b=STEP_S, c=2.5 * STEP_S) == []


def test_of_two_nobody_knows_which_is_the_exception() -> None:
    assert Watched().go_on(12.0, a=STEP_S, b=9 * STEP_S) == []


def test_for_the_whole_window_or_not_at_all() -> None:
    assert Watched().go_on(8.0, a=STEP_S, b=STEP_S, c=9 * STEP_S) == []


def test_long_prompts_now_and_then_are_no_slowness() -> None:
    watched = Watched()
    for turn in range(121):
        assert watched.look(a=STEP_S, b=STEP_S, c=0.5 if turn % 3 == 0 else STEP_S) == []


def test_one_that_rested_begins_anew() -> None:
    watched = Watched()
    assert watched.go_on(12.0, a=STEP_S, b=STEP_S, c=9 * STEP_S)
    watched.look(a=STEP_S, b=STEP_S)
    assert watched.look(a=STEP_S, b=STEP_S, c=9 * STEP_S) == []


def test_none_while_another_one_is_emptied_and_then_one_that_rested_begins_anew() -> None:
    watched = Watched("d")
    assert watched.go_on(12.0, a=STEP_S, b=STEP_S, c=9 * STEP_S, d=9 * STEP_S) == []
    watched.drained = ()
    (slow,) = watched.look(a=STEP_S, b=STEP_S, c=9 * STEP_S, d=99 * STEP_S)
    assert slow.instance_id == "c", "nobody watched d"
