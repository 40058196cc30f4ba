"""Requests that come to an instance again: random histories. `tests/unit/runtime/test_reentries.py`
tests what a real instance does with single requests."""

import random
from collections.abc import Iterator

from controller.core.migration.ownership import Epoch
from controller.core.replay import reentry_machine as reentry
from tests.unit.core.core_builders import run_seeds

REQUESTS = ("a", "b", "c")


class History:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.machine = reentry.ReentryMachine()
        self.now_s = 0.0
        self.came: list[reentry.Came] = []
        self.pending: dict[int, str] = {}
        """By entry: what the runner does for it."""
        self.accounted: list[int] = []
        self.ends: dict[int, list[str]] = {}
        self.seen: set[type] = set()

    def run(self, num_events: int) -> "History":
        for _ in range(num_events):
            self.now_s += 0.01
            self.take(self.rng.choice(list(self.possible())))
        self.take(reentry.Aborted(REQUESTS))
        assert all(len(ends) == 1 for ends in self.ends.values()), self.ends
        assert sorted(self.accounted) == [came.dispatch_seq for came in self.came]
        assert self.machine.request_ids == ()
        assert self.machine.of_frontend("f-0") == []
        return self

    def possible(self) -> Iterator[reentry.Event]:
        rng, number = self.rng, len(self.came)
        request_id = rng.choice(REQUESTS)
        attempt = 1 + sum(came.request_id == request_id for came in self.came)
        yield reentry.Came(number, request_id, attempt, "f-0", 100 + number)
        if rng.random() < 0.3:
            yield reentry.Aborted(rng.sample(REQUESTS, rng.randint(1, 2)))
        for entry in (*self.pending, rng.randrange(number + 1)):
            is_arriving = rng.random() < 0.4
            if self.pending.get(entry, "prepare") == "prepare":
                yield reentry.Prepared(entry, is_arriving)
                yield reentry.NotPrepared(entry, "its grammar does not compile", rng.random() < 0.5)
            if self.pending.get(entry, "wake") == "wake":
                yield reentry.Woken(entry, is_arriving)
            if self.pending.get(entry, "enter") == "enter":
                yield reentry.Entered(entry, rng.choice([None, "too long"]))

    def take(self, event: reentry.Event) -> None:
        if isinstance(event, reentry.Came):
            self.came.append(event)
            self.ends[event.entry] = []
        elif not isinstance(event, reentry.Aborted) and event.entry in self.pending:
            del self.pending[event.entry]
        for instruction in self.machine.handle(event, self.now_s):
            self.seen.add(type(instruction))
            self.follow(instruction, event)
        self.machine.check()
        self.check()

    def follow(self, instruction: reentry.Instruction, event: reentry.Event) -> None:
        match instruction:
            case reentry.Drop(request_id):
                assert event.request_id == request_id
            case reentry.Prepare(entry):
                self.begin(entry, "prepare")
            case reentry.WakeAt(entry, time_s):
                assert time_s > self.now_s
                self.begin(entry, "wake")
            case reentry.PutIn(entry):
                self.begin(entry, "enter")
            case reentry.EndEarlier(request_id, epoch):
                last = [came for came in self.came if came.request_id == request_id][-1]
                assert epoch == Epoch(last.attempt - 1)
            case reentry.Begin(entry):
                self.ends[entry].append("runs")
            case reentry.Refuse(entry):
                self.ends[entry].append("refused")
            case reentry.CallOff(entry):
                self.pending.pop(entry, None)
                self.ends[entry].append("called off")
            case reentry.Account(dispatch_seq):
                self.accounted.append(dispatch_seq)

    def begin(self, entry: int, what: str) -> None:
        assert entry not in self.pending
        self.pending[entry] = what

    def check(self) -> None:
        for came in self.came:
            is_over = self.machine.state(came.entry) is reentry.EntryState.OVER
            assert is_over == bool(self.ends[came.entry])
            assert is_over == (came.entry not in self.pending), "nothing is done for it"


def test_each_entry_ends_once_and_each_dispatch_counts_once() -> None:
    histories = run_seeds(100, lambda seed: History(seed).run(60))
    assert len({kind for each in histories for kind in each.seen}) == 9, "each instruction"
    ends = {how for each in histories for hows in each.ends.values() for how in hows}
    assert ends == {"runs", "refused", "called off"}
