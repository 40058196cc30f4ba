"""How a frontend asks where its requests go: random histories, with a controller that answers, lets
requests wait, is silent, or is replaced by another one. Single events are tested by
`tests/unit/runtime/test_router.py`. Requests that waited at a controller that died go once, in
order, at a bounded rate."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.admission import asking
from controller.core.admission.api_keys import Refusal
from controller.core.admission.asking import AT_LEAST_EVERY_S, PacedRelease
from controller.core.load.snapshot import DemandFor, InstanceRef, InstanceSnapshot
from controller.core.scheduler_events import Dispatch, DispatchRequested, Reject, RejectCode
from tests.unit.core.core_builders import run_seeds

IDS = ("i-0", "i-1")


class Known:
    def __init__(self) -> None:
        self.incarnations = dict.fromkeys(IDS, 1)

    def ref(self, instance_id: str, incarnation: int) -> InstanceRef | None:
        listed = self.incarnations.get(instance_id) == incarnation
        return InstanceRef(instance_id, incarnation, instance_id) if listed else None

    def snapshots(self) -> Iterable[InstanceSnapshot]:
        return self.open_snapshots()

    def open_snapshots(self) -> Sequence[InstanceSnapshot]:
        return [InstanceSnapshot(i, n, 16, 100, 50) for i, n in self.incarnations.items()]


class Own:
    def num_by_owner(self) -> Mapping[str, int]:
        return {"i-0": 1}

    def blocks_by_owner(self, demand_for: DemandFor) -> Mapping[str, int]:
        return {"i-0": demand_for(160)}


class History:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.known = Known()
        self.machine = asking.Asking(self.known, Own(), self.refusal_alone)
        self.now_s = 0.0
        room_to_grow, hold_s = self.rng.choice([None, 64]), self.rng.choice([2.0, 30.0])
        self.heard = asking.ControllerHeard("one", 2, room_to_grow, True, hold_s)
        self.live: dict[str, DispatchRequested] = {}
        self.wakes: dict[str, float] = {}
        self.resumable: dict[str, None] = {}
        self.bypass_s: float | None = None
        self.ends: dict[str, list[str]] = {}
        self.num_dispatches = 0
        self.given: dict[int, Dispatch] = {}
        """By number, the dispatches that the machine got, and has neither used nor given back."""
        self.answers: dict[str, int] = {}
        """The number of the dispatch that answered a request."""
        self.seen: set[type] = set()

    def refusal_alone(self, asked: DispatchRequested, num_frontends: int) -> Refusal | None:
        assert num_frontends <= 2
        return Refusal(RejectCode.LIVE_LIMIT, 3) if asked.num_prompt_tokens == 13 else None

    def run(self, num_events: int) -> "History":
        for _ in range(num_events):
            self.now_s += self.rng.choice([0.0, 0.0, 0.02, 0.3, 1.1])
            self.take(self.rng.choice(list(self.possible())))
        for request_id in list(self.live):
            self.take(asking.Aborted(request_id))
        assert all(len(ends) == 1 for ends in self.ends.values()), self.ends
        assert list(self.machine) == []
        self.take(self.heard)
        assert self.given == {}, "a dispatch was not given back"
        return self

    def possible(self) -> Iterator[asking.Event]:
        rng = self.rng
        name = f"r-{len(self.ends)}"
        tokens = rng.choice([10, 13, 500, 3000])
        yield asking.Asked(
            DispatchRequested(name, "f-0", tokens, 0, self.now_s, replayed=bool(tokens % 2))
        )
        yield replace(self.heard, controller=rng.choice(["one", "one", "one", "two"]))
        if self.bypass_s is not None and self.bypass_s <= self.now_s:
            yield asking.BypassDue()
        if not self.ends:
            return
        request_id = rng.choice([*self.ends, *self.live])
        self.num_dispatches += 1
        instance_id, incarnation = rng.choice(IDS), rng.choice([1, 1, 2])
        dispatch = Dispatch(request_id, "f-0", instance_id, incarnation, self.num_dispatches)
        yield asking.Answered(dispatch)
        yield asking.Answered(Reject(request_id, "f-0", RejectCode.OVERLOADED, 5))
        if request_id not in self.live:
            yield asking.Unused(dispatch)
        if rng.random() < 0.2:
            yield asking.Aborted(request_id)
        yield asking.RankChanged(request_id, rng.choice([0, 1]))
        yield asking.Woken(request_id, self.now_s - 0.07)
        for resumable in self.resumable:
            yield asking.Resumed(resumable)
        for request_id, time_s in self.wakes.items():
            if time_s <= self.now_s:
                yield asking.Woken(request_id, time_s)

    def take(self, event: asking.Event) -> None:
        match event:
            case asking.Asked(request):
                self.live[request.request_id] = request
                self.ends[request.request_id] = []
            case asking.Answered(Dispatch() as dispatch) | asking.Unused(dispatch):
                self.given[dispatch.seq] = dispatch
                if self.machine.state(dispatch.request_id) is not asking.AskState.ANSWERED:
                    self.answers[dispatch.request_id] = dispatch.seq
            case asking.Resumed(request_id):
                self.resumable.pop(request_id, None)
                self.answers.pop(request_id, None)
            case asking.Woken(request_id, time_s) if self.wakes.get(request_id) == time_s:
                del self.wakes[request_id]
            case asking.BypassDue():
                self.bypass_s = None
            case asking.ControllerHeard():
                self.known.incarnations = {
                    i: self.rng.choice([1, 1, 2]) for i in IDS if self.rng.random() < 0.7
                }
            case _:
                pass
        told = self.machine.handle(event, self.now_s)
        self.seen |= {type(each) for each in told}
        given_back = [each.dispatch.seq for each in told if isinstance(each, asking.TellUnused)]
        for seq in given_back:
            del self.given[seq]  # unless it is given back twice
        if isinstance(event, asking.ControllerHeard):
            self.forget_gone()
        for instruction in told:
            self.follow(instruction, event)
        if isinstance(event, asking.Aborted) and event.request_id in self.live:
            self.end(event.request_id, "aborted")
        self.machine.check()
        self.check()

    def follow(self, instruction: asking.Instruction, event: asking.Event) -> None:
        match instruction:
            case asking.AskController(request):
                assert self.machine.state(request.request_id) is not asking.AskState.OVER
            case asking.Withdraw(cancelled):
                assert event == asking.Aborted(cancelled.request_id)
            case asking.WakeAt(request_id, time_s):
                assert time_s > self.now_s
                self.wakes[request_id] = time_s
            case asking.BypassAt(time_s):
                assert self.bypass_s is None
                assert time_s == self.now_s + asking.BYPASS_EVERY_S
                self.bypass_s = time_s
            case asking.Resume(request_id):
                self.resumable[request_id] = None
            case asking.Use(dispatch):
                assert self.known.ref(dispatch.instance_id, dispatch.incarnation) is not None
                self.given.pop(dispatch.seq, None)  # None if the frontend decided alone
                self.end(dispatch.request_id, "used")
            case asking.Refuse():
                assert isinstance(event, asking.Resumed)
                self.end(event.request_id, "refused")
            case asking.TellUnused() | asking.TellKeysAgain():
                pass

    def forget_gone(self) -> None:
        """Of the dispatches that answer nobody, only those to instances that are gone are left."""
        answered = asking.AskState.ANSWERED
        in_use = {self.answers.get(r) for r in self.live if self.machine.state(r) is answered}
        for seq in self.given.keys() - in_use:
            dispatch = self.given.pop(seq)
            assert self.known.ref(dispatch.instance_id, dispatch.incarnation) is None

    def end(self, request_id: str, how: str) -> None:
        del self.live[request_id]
        self.ends[request_id].append(how)

    def check(self) -> None:
        assert set(self.machine) == set(self.live)
        for request_id in self.live:
            match self.machine.state(request_id):
                case asking.AskState.ANSWERED:
                    assert request_id in self.resumable
                case _:
                    assert request_id in self.wakes, "nobody asks again"


def test_histories_in_any_order() -> None:
    histories = run_seeds(150, lambda seed: History(seed).run(80))
    assert len({kind for each in histories for kind in each.seen}) == 9, "each instruction"
    ends = {how for each in histories for hows in each.ends.values() for how in hows}
    assert ends == {"used", "refused", "aborted"}


def test_a_dispatch_to_one_that_is_not_listed_is_asked_for_again_so_often() -> None:
    known = Known()
    machine, now_s = asking.Asking(known, Own(), lambda *_: None), 0.0
    machine.handle(asking.ControllerHeard("one", 1, None, True, 30.0), now_s)
    machine.handle(asking.Asked(DispatchRequested("r", "f-0", 10, 0, 0.0)), now_s)
    waits = []
    for seq in range(len(asking.GONE_WAITS_S) + 1):
        machine.handle(asking.Answered(Dispatch("r", "f-0", "i-0", 2, seq + 1)), now_s)
        told = machine.handle(asking.Resumed("r"), now_s)
        if isinstance(told[-1], asking.WakeAt):
            waits.append(told[-1].time_s - now_s)
            now_s = told[-1].time_s
            asked, wake = machine.handle(asking.Woken("r", now_s), now_s)
            assert isinstance(asked, asking.AskController)
            assert wake == asking.WakeAt("r", now_s + asking.CONTROLLER_SILENCE_S)
    assert waits == pytest.approx(asking.GONE_WAITS_S)
    assert told == [asking.Refuse(RejectCode.UNAVAILABLE)]
    known.incarnations["i-0"] = 2
    told = machine.handle(asking.ControllerHeard("one", 1, None, True, 30.0), now_s)
    assert (
        len([each for each in told if isinstance(each, asking.TellUnused)])
        == len(asking.GONE_WAITS_S) + 1
    )


def test_alone_a_frontend_counts_its_own_blocks_from_when_it_last_heard_of_the_controller() -> None:
    """Its share of the 50 free blocks is 25, and the 10 that its requests had then stay its own."""
    known = Known()
    known.incarnations = {"i-0": 1}
    machine = asking.Asking(known, Own(), lambda *_: None)
    machine.handle(asking.ControllerHeard("one", 2, 0, True, 30.0), 0.0)
    machine.handle(asking.Asked(DispatchRequested("r", "f-0", 20 * 16, 0, 0.0)), 0.0)
    told = machine.handle(asking.BypassDue(), 10.0)
    assert asking.Resume("r") in told


# -- requests that waited at a controller that died ----------------------------------------------


ROOM_TO_GROW_TOKENS = 480
GROWTH = ROOM_TO_GROW_TOKENS // 16


def snapshot(name: str, spare: int) -> InstanceSnapshot:
    """A busy instance with so much room beside what those that run may grow by."""
    return InstanceSnapshot(name, 1, 16, 1000, spare + GROWTH, num_running=1)


def release_of(
    snapshots: Iterable[InstanceSnapshot], own_blocks: Mapping[str, int], num_frontends: int = 1
) -> PacedRelease:
    return PacedRelease(snapshots, own_blocks, num_frontends, ROOM_TO_GROW_TOKENS, 0.0)


def waiting(*blocks: int) -> list[DispatchRequested]:
    return [
        DispatchRequested(f"r{n}", "f", 16 * each, 0, float(n)) for n, each in enumerate(blocks)
    ]


def test_as_many_go_at_once_as_fit_the_freest_instance_first() -> None:
    release = release_of([snapshot("a", 30), snapshot("b", 20)], {})
    found = release.due(waiting(20, 15, 10, 10), {}, "ab", 0.0)
    assert found == [("r0", "a"), ("r1", "b"), ("r2", "a")]
    release = release_of([snapshot("a", 30), snapshot("b", 20)], {})
    assert release.due(waiting(31, 1), {}, "a", 0.5) == [], "nobody goes ahead of one"
    assert release.due(waiting(10), {}, "b", 0.5) == [("r0", "b")], "a is gone"
    assert release.due(waiting(10), {}, (), 9.0) == []


def test_a_higher_rank_goes_first_then_who_came_first() -> None:
    release = release_of([snapshot("a", 10)], {})
    late, early = waiting(10, 10)
    late = replace(late, arrival_time_s=9.0)
    assert release.due([late, early], {}, "a", 0.0) == [("r1", "a")]
    release = release_of([snapshot("a", 10)], {})
    assert release.due([replace(late, rank=1), early], {}, "a", 0.0) == [("r0", "a")]


def test_own_requests_that_end_make_room_and_those_that_grow_take_it() -> None:
    release = release_of([snapshot("a", 10)], {"a": 40})
    assert release.due(waiting(11), {"a": 40}, "a", 0.1) == []
    assert release.due(waiting(11), {"a": 41}, "a", 0.2) == []
    assert release.due(waiting(11), {"a": 39}, "a", 0.3) == [("r0", "a")]
    # The caller counts it as its own from now on.
    assert release.due(waiting(1), {"a": 50}, "a", 0.4) == []


def test_the_first_goes_after_a_while_even_where_nothing_seems_to_fit() -> None:
    release = release_of([snapshot("a", 3), snapshot("b", 2)], {})
    late_s = 1.1 * AT_LEAST_EVERY_S
    assert release.due(waiting(50, 50), {}, "ab", 0.9 * AT_LEAST_EVERY_S) == []
    assert release.due(waiting(50, 50), {}, "ab", late_s) == [("r0", "a")]
    assert release.due(waiting(50), {"a": 50}, "ab", late_s + 0.1) == []
    assert release.due(waiting(50), {"a": 50}, "ab", late_s + 1.1) == [("r0", "b")]


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 60), min_size=1),
    st.lists(st.integers(1, 40), max_size=20),
    st.integers(1, 3),
)
def test_all_go_in_the_end_in_order_and_never_much_more_than_fits(
    spare: dict[str, int], blocks: list[int], num_frontends: int
) -> None:
    release = release_of([snapshot(i, free) for i, free in spare.items()], {}, num_frontends)
    left, own, now_s = waiting(*blocks), dict.fromkeys(spare, 0), 0.0
    gone: list[str] = []
    for _ in range(100 * len(blocks) + 1):
        forced = 0
        for request_id, instance_id in release.due(left, own, spare, now_s):
            demand = next(w.num_prompt_tokens for w in left if w.request_id == request_id) // 16
            own[instance_id] += demand
            forced += own[instance_id] > spare[instance_id] // num_frontends
            gone.append(request_id)
        assert forced <= 1, "one for want of an end, each second"
        left = [each for each in left if each.request_id not in gone]
        now_s += 0.05
    assert gone == [f"r{n}" for n in range(len(blocks))]
