"""The machine of batches: which line is asked, what an answer means, how a batch ends; then any
order of events, with frontends that die at any moment."""

import random
from collections.abc import Collection, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.admission.batches import (
    FAULT_PAUSE_S,
    MAX_PAUSE_S,
    MAX_TRIES,
    MAX_UNPLACED,
    Abort,
    Answered,
    Ask,
    BatchLines,
    Began,
    CancelAsked,
    Ending,
    Event,
    Finish,
    Instruction,
    NotWritten,
    Placed,
    Stopped,
    Ticked,
    Write,
    WriteUnanswered,
    Written,
)

NEVER = 1e12


class Machine(BatchLines):
    """Checked after each event."""

    def handle(self, event: Event, now_s: float = 0.0) -> list[Instruction]:
        told = super().handle(event, now_s)
        self.check()
        return told


def machine(num_lines: int, most: int = 1000, batch_id: str = "b", **more: float) -> Machine:
    found = Machine(most)
    found.handle(Began(batch_id, num_lines, more.get("expires_at_s", NEVER)))
    return found


def asked(told: Iterable[Instruction]) -> list[int]:
    return [each.line for each in told if isinstance(each, Ask)]


def test_lines_are_asked_in_order_while_few_wait_for_an_instance() -> None:
    found = Machine(1000)
    assert asked(found.handle(Began("b", 20, NEVER))) == list(range(MAX_UNPLACED))
    assert asked(found.handle(Placed("b", 3))) == [MAX_UNPLACED]
    assert asked(found.handle(Placed("b", 3))) == []


def test_only_so_many_are_under_way() -> None:
    found = machine(20, most=3)
    assert [asked(found.handle(Placed("b", line))) for line in range(3)] == [[], [], []]
    (write, ask) = found.handle(Answered("b", 1, 200))
    assert (write, ask) == (Write("b", 1, is_error=False), Ask("b", 3))


def test_the_batch_with_the_fewest_lines_under_way_is_next() -> None:
    found = machine(20, batch_id="a")
    found.handle(Began("b", 20, NEVER))
    told = found.handle(Placed("a", 0)) + found.handle(Placed("a", 1))
    assert told == [Ask("b", 0), Ask("b", 1)]


@pytest.mark.parametrize("status", [400, 401, 404, 408, 410, 413])
def test_a_line_s_own_error_is_its_answer(status: int) -> None:
    found = machine(1)
    assert found.handle(Answered("b", 0, status)) == [Write("b", 0, is_error=True)]
    assert found.handle(Written("b", [0])) == [Finish("b", Ending.COMPLETED, 0, 1)]


@pytest.mark.parametrize("status", [429, 503])
def test_an_overload_fails_no_line_however_long_it_lasts(status: int) -> None:
    found, now_s = machine(1), 0.0
    for _ in range(100):
        assert found.handle(Answered("b", 0, status, 7.0), now_s) == []
        assert found.handle(Ticked(), now_s + 6.9) == []
        now_s += 7.0
        assert found.handle(Ticked(), now_s) == [Ask("b", 0)]
    found.handle(Answered("b", 0, status, 10_000.0), now_s)
    assert found.handle(Ticked(), now_s + MAX_PAUSE_S) == [Ask("b", 0)]


def test_an_overload_of_one_batch_lets_another_go_on() -> None:
    found = machine(MAX_UNPLACED + 1, batch_id="a")
    found.handle(Began("b", 1, NEVER))
    assert found.handle(Answered("a", 0, 429, 5.0)) == [Ask("b", 0)]


@pytest.mark.parametrize("status", [500, 503, 504])
def test_a_line_that_brings_its_instance_down_is_asked_few_times(status: int) -> None:
    found, now_s = machine(1), 0.0
    for _ in range(MAX_TRIES - 1):
        found.handle(Placed("b", 0), now_s)
        assert found.handle(Answered("b", 0, status), now_s) == []
        now_s += FAULT_PAUSE_S
        assert found.handle(Ticked(), now_s) == [Ask("b", 0)]
    found.handle(Placed("b", 0), now_s)
    assert found.handle(Answered("b", 0, status), now_s) == [Write("b", 0, is_error=True)]


@pytest.mark.parametrize(
    ("event", "ending"), [(CancelAsked("b"), Ending.CANCELLED), (Ticked(), Ending.EXPIRED)]
)
def test_a_batch_that_ends_early_answers_the_rest_with_that(event: Event, ending: Ending) -> None:
    found = machine(MAX_UNPLACED + 2, expires_at_s=10.0)
    found.handle(Placed("b", 1))
    found.handle(Answered("b", 0, 200))
    told = found.handle(event, 10.0)
    under_way, rest = range(1, MAX_UNPLACED + 2), range(1, MAX_UNPLACED + 2)
    assert told[:-1] == [Abort("b", line) for line in under_way]
    assert told[-1] == WriteUnanswered("b", tuple(rest), ending)
    # The answer of an aborted request comes too late, and the order once more changes nothing.
    assert found.handle(Answered("b", 1, 200), 10.0) == found.handle(event, 10.0) == []
    assert found.handle(Written("b", [0]), 10.0) == []
    assert found.handle(Written("b", rest), 10.0) == [Finish("b", ending, 1, len(rest))]


@pytest.mark.parametrize(
    ("began", "ending"),
    [
        (Began("b", 3, NEVER, {0}, is_cancelled=True), Ending.CANCELLED),
        (Began("b", 3, 10.0, {0}), Ending.EXPIRED),
    ],
)
def test_of_a_batch_that_was_over_before_it_began_no_line_is_asked(
    began: Began, ending: Ending
) -> None:
    found = Machine(1000)
    assert found.handle(began, 10.0) == [WriteUnanswered("b", (1, 2), ending)]
    assert found.handle(Written("b", [1, 2]), 10.0) == [Finish("b", ending, 1, 2)]


def test_a_disk_that_takes_nothing_fails_the_batch_and_no_other() -> None:
    found = machine(2, batch_id="a")
    found.handle(Began("b", 1, NEVER))
    found.handle(Answered("a", 0, 200))
    told = found.handle(NotWritten("a", "it is full"))
    assert told == [Abort("a", 1), Finish("a", Ending.FAILED, 0, 0, "it is full")]
    assert found.handle(Answered("a", 1, 200)) == []
    assert found.view("a") is None
    assert found.handle(Answered("b", 0, 200)) == [Write("b", 0, is_error=False)]


def test_a_frontend_that_stops_ends_what_is_under_way_and_begins_nothing() -> None:
    found = machine(2)
    assert found.handle(Stopped()) == [Abort("b", 0), Abort("b", 1)]
    assert found.handle(Began("c", 1, NEVER)) == found.handle(Ticked()) == []


def test_a_batch_whose_lines_are_all_answered_is_over_at_once() -> None:
    assert Machine(1).handle(Began("b", 3, NEVER, {0, 2}, {1})) == [
        Finish("b", Ending.COMPLETED, 2, 1)
    ]


class Frontends:
    """A disk, and one frontend after the other that runs the batches on it."""

    def __init__(self, sizes: Collection[int], dice: random.Random) -> None:
        self.sizes = {f"b{n}": size for n, size in enumerate(sizes)}
        self.disk: dict[tuple[str, int], bool] = {}
        self.finished: dict[str, Finish] = {}
        self.dice = dice
        self.now_s = 0.0
        self.start()

    def start(self) -> None:
        """The one before is dead, with all that it had not written."""
        self.found = Machine(self.dice.choice((1, 3, 50)))
        self.asked: set[tuple[str, int]] = set()
        self.writing: list[tuple[str, int, bool]] = []
        for batch_id, size in self.sizes.items():
            if batch_id not in self.finished:
                done = [
                    {
                        line
                        for (of, line), error in self.disk.items()
                        if of == batch_id and error == e
                    }
                    for e in (False, True)
                ]
                self.give(Began(batch_id, size, NEVER, *done))

    def give(self, event: Event) -> None:
        for each in self.found.handle(event, self.now_s):
            match each:
                case Ask():
                    assert (each.batch_id, each.line) not in self.asked, "asked twice at a time"
                    self.asked.add((each.batch_id, each.line))
                case Abort():
                    self.asked.remove((each.batch_id, each.line))
                case Write():
                    self.writing.append((each.batch_id, each.line, each.is_error))
                case WriteUnanswered():
                    self.writing += [(each.batch_id, line, True) for line in each.lines]
                case Finish():
                    assert each.batch_id not in self.finished
                    self.finished[each.batch_id] = each

    def step(self) -> None:
        choice = self.dice.random()
        if choice < 0.03:
            self.start()
        elif choice < 0.05:
            self.give(CancelAsked(self.dice.choice(list(self.sizes))))
        elif choice < 0.35 and self.writing:
            self.write()
        elif choice < 0.95 and self.asked:
            batch_id, line = self.dice.choice(sorted(self.asked))
            if self.dice.random() < 0.4:
                self.give(Placed(batch_id, line))
                return
            self.asked.remove((batch_id, line))
            status = self.dice.choice((200, 200, 200, 400, 429, 503, 500))
            self.give(Answered(batch_id, line, status, self.dice.choice((1.0, 30.0))))
        else:
            self.now_s += self.dice.choice((0.1, 1.0, 20.0))
            self.give(Ticked())

    def write(self) -> None:
        """Some of the answers of one batch, and perhaps death before the machine hears of it."""
        batch_id = self.writing[0][0]
        mine = [each for each in self.writing if each[0] == batch_id]
        some = mine[: self.dice.randint(1, len(mine))]
        self.writing = [each for each in self.writing if each not in some]
        for _, line, is_error in some:
            assert (batch_id, line) not in self.disk, "answered twice"
            self.disk[batch_id, line] = is_error
        if self.dice.random() < 0.05:
            self.start()
        else:
            self.give(Written(batch_id, [line for _, line, _ in some]))


@given(st.lists(st.integers(0, 12), min_size=1, max_size=3), st.integers(0, 2**32))
def test_each_line_is_answered_once_whoever_dies_when(sizes: list[int], seed: int) -> None:
    cluster = Frontends(sizes, random.Random(seed))
    for _ in range(5000):
        if len(cluster.finished) == len(sizes):
            break
        cluster.step()
    lines = {(batch_id, line) for batch_id, size in cluster.sizes.items() for line in range(size)}
    assert cluster.disk.keys() == lines
    for batch_id, finish in cluster.finished.items():
        errors = [error for (of, _), error in cluster.disk.items() if of == batch_id]
        assert (finish.num_completed, finish.num_failed) == (
            errors.count(False),
            errors.count(True),
        )
