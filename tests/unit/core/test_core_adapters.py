"""An instance ends up with the LoRA adapters that the controller told it last, in whatever order
files, the engine and the controller answer; and dispatch goes where an adapter need not wait."""

import random
from dataclasses import replace

import pytest

from controller.core import scheduler_events as events
from controller.core.admission.policies import SchedulerConfig
from controller.core.fleet import adapters
from controller.core.fleet.adapters import GONE, Adapter, InstanceAdapters
from controller.core.settings import HoldingConfig
from tests.unit.core.core_builders import request, run_seeds, scheduler_with, snapshot_of


def adapter(number: int) -> Adapter:
    return Adapter(f"a{number}", number, f"/models/a{number}", str(number) * 64, 8)


class World:
    """An instance whose files and engine answer late, in any order, and may refuse. Some adapters
    are in use for a while."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.machine = InstanceAdapters()
        self.listed: list[Adapter] = []
        self.next_number = 1
        self.bad_files = {n for n in range(1, 40) if self.rng.random() < 0.1}
        self.bad_weights = {n for n in range(1, 40) if self.rng.random() < 0.1}
        self.used: set[int] = set()
        self.files: set[int] = set()
        self.engine: set[int] = set()
        self.pending: list[adapters.Instruction] = []

    def take(self, event: adapters.Event) -> None:
        for instruction in self.machine.handle(event):
            if isinstance(instruction, adapters.Drop):
                assert instruction.adapter.number not in self.engine, "the engine still needs it"
                self.files.remove(instruction.adapter.number)
            elif not isinstance(instruction, adapters.Report):
                self.pending.append(instruction)
        self.machine.check()
        for number in range(1, self.next_number):
            assert not self.machine.is_loaded(number) or number in self.engine
            assert not (self.machine.is_loaded(number) and self.machine.why_never(number))

    def answer(self) -> None:
        instruction = self.pending.pop(self.rng.randrange(len(self.pending)))
        match instruction:
            case adapters.Fetch(each):
                if each.number in self.bad_files:
                    self.take(adapters.Fetched(each.number, why="no such folder"))
                else:
                    self.files.add(each.number)
                    self.take(adapters.Fetched(each.number, f"/copies/{each.number}"))
            case adapters.Load(each, folder):
                assert folder == f"/copies/{each.number}"
                assert each.number in self.files
                why = "bad weights" if each.number in self.bad_weights else ""
                if not why:
                    self.engine.add(each.number)
                self.take(adapters.Loaded(each.number, why))
            case adapters.Unload(number):
                in_use = number in self.used
                if not in_use:
                    self.engine.remove(number)
                self.take(adapters.Unloaded(number, in_use))
            case adapters.LookAgain(number, _):
                self.take(adapters.Looked(number))

    def tell(self) -> None:
        drawn = self.rng.random()
        if drawn < 0.6 and self.next_number < 40:
            self.listed.append(adapter(self.next_number))
            self.next_number += 1
        elif self.listed:
            self.listed.remove(self.rng.choice(self.listed))
        self.take(adapters.Told(tuple(self.listed), self.next_number))

    def run(self) -> None:
        for _ in range(120):
            drawn = self.rng.random()
            if drawn < 0.2:
                self.tell()
            elif drawn < 0.3:
                self.used = {n for n in self.engine if self.rng.random() < 0.5}
            elif self.pending:
                self.answer()
        self.used.clear()
        while self.pending:
            self.answer()
        self.take(adapters.Told(tuple(self.listed), self.next_number))  # changes nothing
        assert not self.pending
        wanted = {each.number for each in self.listed}
        good = wanted - self.bad_files - self.bad_weights
        assert self.engine == self.files == good
        assert {n for n in range(1, 40) if self.machine.is_loaded(n)} == good
        assert set(self.machine.failures()) == wanted - good
        gone = set(range(1, self.next_number)) - wanted
        assert {n for n in range(1, 40) if self.machine.why_never(n) == GONE} == gone


def test_an_instance_ends_up_with_the_adapters_that_it_was_told_last() -> None:
    run_seeds(300, lambda seed: World(seed).run())


@pytest.mark.parametrize("holding", [None, HoldingConfig()], ids=["at once", "late binding"])
def test_a_request_goes_where_it_waits_the_least_for_its_adapter(holding) -> None:
    """First where a step can have the adapter now, then where it is loaded, else anywhere."""
    policy = "llumnix" if holding is None else "llumnix+"
    scheduler = scheduler_with(SchedulerConfig(policy, holding=holding), a=0, b=0, c=0)
    plain = {each: snapshot_of(instance_id=each) for each in "abc"}
    now_s = 1.0

    def where(**changes: dict[str, object]) -> list[str]:
        nonlocal now_s
        found = []
        for each, snapshot in plain.items():
            with_slots = replace(snapshot, max_live_adapters=1, **changes.get(each, {}))
            scheduler.handle(events.StatusReported(with_slots, 10_000), now_s)
        for number in range(3):
            asked = replace(request(f"r-{now_s}-{number}", tokens=16), adapter=7)
            (told,) = scheduler.handle(asked, now_s)
            found.append(told.instance_id)
        now_s += 100.0  # what was sent counts as lost by then
        return found

    loaded = {"adapters": (7, 8)}
    taken = loaded | {"live_adapters": (8,)}
    failed = {"failed_adapters": {7: "no"}}
    assert where(b=loaded) == ["b", "b", "b"]
    assert where(a=taken, b=loaded, c=taken) == ["b", "b", "b"]
    assert where(a=taken, b=failed, c=loaded | {"live_adapters": (7,)}) == ["c", "c", "c"]
    assert set(where(a=failed, b=failed)) == {"c"}
    assert set(where(a=failed, b=failed, c=failed)) == {"a", "b", "c"}, "any of them says why"
    assert set(where(a=taken, c=taken)) == {"a", "c"}
    assert set(where()) == {"a", "b", "c"}
    scheduler.handle(events.Ticked(), now_s)


def test_a_request_on_its_way_takes_a_place_for_its_adapter() -> None:
    """Else all of a burst with different adapters would go to the instance that is freest."""
    scheduler = scheduler_with(SchedulerConfig("llumnix"), a=0, b=0)
    for each in "ab":
        snapshot = replace(snapshot_of(instance_id=each), adapters=(1, 2), max_live_adapters=1)
        scheduler.handle(events.StatusReported(snapshot, 0), 0.0)
    asked = [replace(request(f"r-{n}", tokens=16), adapter=1 + n % 2) for n in range(6)]
    sent = [scheduler.handle(each, 0.0)[0].instance_id for each in asked]
    assert sent[:2] == ["a", "b"]


def test_a_request_that_some_instance_cannot_serve_does_not_wait_for_room() -> None:
    """It would have to wait for single instances; so it waits in an instance's own queue."""
    scheduler = scheduler_with(SchedulerConfig("llumnix+", holding=HoldingConfig()), a=99, b=0)
    for snapshot in (
        replace(scheduler.instances["a"].snapshot, adapters=(7,), max_live_adapters=1),
        replace(snapshot_of(instance_id="b"), failed_adapters={7: "no"}, max_live_adapters=1),
    ):
        scheduler.handle(events.StatusReported(snapshot, 0), 0.0)
    (told,) = scheduler.handle(replace(request("r", tokens=800), adapter=7), 0.0)
    assert told.instance_id == "a"
    (told,) = scheduler.handle(request("other", tokens=800, arrival=1.0), 1.0)
    assert told.instance_id == "b"


@pytest.mark.parametrize("holding", [None, HoldingConfig()])
def test_a_request_that_cannot_be_carried_over_goes_to_no_attached_server(holding) -> None:
    policy = "llumnix" if holding is None else "llumnix+"
    scheduler = scheduler_with(SchedulerConfig(policy, holding=holding), a=0, b=0)
    attached = replace(snapshot_of(instance_id="a", total_blocks=1000), is_attached=True)
    full = replace(snapshot_of(instance_id="b", total_blocks=20), num_free_blocks=1)
    for snapshot in (attached, full):
        scheduler.handle(events.StatusReported(snapshot, 0), 0.0)
    sent = [
        scheduler.handle(each, 0.0)[0].instance_id
        for each in (
            request("r-0", tokens=160),
            replace(request("r-1", tokens=160), hosted_only=True),
            replace(request("r-2", tokens=160), adapter=1),
            request("r-3", tokens=160),
        )
    ]
    assert sent == ["a", "b", "b", "a"]
