"""Where a frontend's requests run, with messages in any order: they are lost, doubled and late,
requests move meanwhile, instances die and clients leave."""

import random
from dataclasses import dataclass, field, replace

import pytest

from controller.core.load.snapshot import InstanceRef
from controller.core.migration import routes
from controller.core.migration.ownership import FIRST_EPOCH, Delivery, Epoch
from controller.core.migration.protocol import UNCLEAR_S
from controller.core.migration.routes import MISSING_S, Routes, RouteState
from controller.core.replay import replay_machine as replays
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.core.settings import ReplayConfig
from tests.unit.core.core_builders import run_seeds

NUM_TOKENS = 12
I0 = InstanceRef("i-0", 1, "mem://i-0")
I1 = InstanceRef("i-1", 1, "mem://i-1")


def kept(request_id: str) -> replays.Arrived:
    return replays.Arrived(DispatchRequested(request_id, "f-0", 10, 0, 0.0), (b"x",))


def with_a_request_at_i0() -> Routes:
    machine = Routes(World(0))
    machine.handle(kept("r"), 0.0)
    machine.handle(routes.Sent("r", I0, 10), 0.0)
    return machine


@dataclass
class Running:
    """A request where it runs; an owner knows all tokens before `next_index`."""

    epoch: Epoch
    next_index: int


@dataclass
class Instance:
    ref: InstanceRef
    runs: dict[str, Running] = field(default_factory=dict)


class World:
    """Instances that contradict each other in every way, and a frontend that carries out its
    instructions."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now_s = 0.0
        self.machine = Routes(self)
        self.machine.replays.config = ReplayConfig(rng.choice([0, 1, 30]), patience_s=2.0)
        self.loss, self.doubling = rng.choice([0.0, 0.3]), rng.choice([0.0, 0.3])
        self.instances = {f"i-{n}": Instance(InstanceRef(f"i-{n}", 1, f"mem://{n}")) for n in "012"}
        self.on_their_way: list[routes.Event] = []
        self.asked: set[str] = set()
        self.wakes: dict[str, float] = {}
        self.num_read: dict[str, int] = {}
        self.ends: dict[str, list[str]] = {}
        self.seen: set[type] = set()
        self.states: set[RouteState] = set()

    def incarnation(self, instance_id: str) -> int | None:
        return self.instances[instance_id].ref.incarnation

    # -- what instances do -----------------------------------------------------------------

    def say(self, event: routes.Event) -> None:
        is_end = isinstance(event, routes.Emitted) and event.finish_reason is not None
        if is_end or self.rng.random() >= self.loss:
            self.on_their_way.append(event)
            if self.rng.random() < self.doubling:
                self.on_their_way.append(event)

    def emit(self, instance: Instance, request_id: str, first: int, end: int) -> None:
        running = instance.runs[request_id]
        finish_reason = "stop" if end == NUM_TOKENS else None
        token_ids = list(range(first, end))
        self.say(
            routes.Emitted(
                instance.ref, request_id, running.epoch, first, token_ids, finish_reason, None
            )
        )

    def step(self, instance: Instance, request_id: str) -> None:
        running = instance.runs[request_id]
        first = running.next_index
        running.next_index = min(NUM_TOKENS, first + self.rng.choice([1, 1, 3]))
        self.emit(instance, request_id, first, running.next_index)
        if running.next_index == NUM_TOKENS:
            del instance.runs[request_id]

    def move(self, source: Instance, request_id: str) -> None:
        """Whatever comes of it: both may have the request then, or none."""
        running = source.runs[request_id]
        to = self.rng.choice([each for each in self.instances.values() if each is not source])
        attempt, hop = running.epoch
        epoch = Epoch(attempt, hop + 1)
        self.say(routes.Announced(request_id, epoch, to.ref))
        arrives, keeps = self.rng.random() < 0.8, self.rng.random() < 0.2
        if arrives:
            to.runs[request_id] = Running(epoch, running.next_index)
            self.say(routes.Moved(request_id, epoch, to.ref, running.next_index))
        if not keeps and self.rng.random() < 0.5:
            self.say(routes.FenceAsked(request_id, Epoch(attempt, hop + 2), source.ref))
        elif not keeps:
            del source.runs[request_id]
            if self.rng.random() < 0.2:
                self.say(routes.LostThere(request_id, epoch, to.ref))

    def die(self, instance: Instance) -> None:
        dead, rng = instance.ref, self.rng
        if rng.random() < 0.8:
            instance.runs.clear()
            instance.ref = replace(dead, incarnation=dead.incarnation + 1)
        news = (routes.InstanceDied(*dead.key), routes.AddressLost(dead.address))
        self.take(rng.choice([*news, routes.InstancesLearned()]))

    # -- what the frontend does --------------------------------------------------------------

    def take(self, event: routes.Event) -> None:
        self.follow(event)
        self.machine.check()
        for request_id in self.ends:
            state = self.machine.state(request_id)
            self.states.add(state)
            assert (state is RouteState.LOST) == (request_id in self.asked | self.wakes.keys())

    def follow(self, event: routes.Event) -> None:
        for instruction in self.machine.handle(event, self.now_s):
            self.seen.add(type(instruction))
            self.carry_out(instruction)

    def carry_out(self, instruction: routes.Instruction) -> None:
        match instruction:
            case Delivery(emitted, num_skip):
                request_id = emitted.request_id
                for token_id in emitted.token_ids[num_skip:]:
                    assert token_id == self.num_read[request_id], "skipped or repeated"
                    self.num_read[request_id] += 1
                if emitted.finish_reason is not None:
                    self.end(request_id, "finished")
            case routes.TellUnread(address, items):
                for request_id, attempt, hop in items:
                    for instance in self.at(address):
                        running = instance.runs.get(request_id)
                        if running is not None and running.epoch == (attempt, hop):
                            del instance.runs[request_id]
            case routes.AbortAt(address, request_ids):
                for request_id in request_ids:
                    for instance in self.at(address):
                        instance.runs.pop(request_id, None)
            case routes.AnswerFence(source, request_id, epoch, fenced):
                for instance in self.at(source.address):
                    if request_id in instance.runs and instance.ref == source:
                        instance.runs[request_id].epoch = epoch
                        if not fenced:
                            del instance.runs[request_id]
            case routes.AskOwner(destination, request_id, epoch):
                for instance in self.at(destination.address):
                    running = instance.runs.get(request_id)
                    if running is None:
                        self.say(routes.NotMoved(request_id, epoch))
                    else:
                        owner, next_index = instance.ref, running.next_index
                        self.say(routes.Moved(request_id, running.epoch, owner, next_index))
            case routes.AskForTokens(owner, request_id, first, end):
                for instance in self.at(owner.address):
                    if request_id in instance.runs:
                        self.emit(instance, request_id, first, end)
            case replays.Ask(request):
                self.asked.add(request.request_id)
            case replays.WakeAt(request_id, time_s):
                self.wakes[request_id] = time_s
            case replays.CallOff(request_id):
                self.asked.discard(request_id)
                self.wakes.pop(request_id, None)
            case replays.Send(instance=to, replay=replay):
                request_id = instruction.request.request_id
                assert list(instruction.outputs) == list(range(self.num_read[request_id]))
                running = Running(Epoch(replay.attempt), len(instruction.outputs))
                self.instances[to.instance_id].runs[request_id] = running
            case replays.Fail(request_id) | replays.Refuse(request_id):
                self.end(request_id, "failed")

    def at(self, address: str) -> list[Instance]:
        return [each for each in self.instances.values() if each.ref.address == address]

    def end(self, request_id: str, how: str) -> None:
        self.ends[request_id].append(how)
        self.follow(replays.Over(request_id))

    def submit(self) -> None:
        request_id = f"r-{len(self.ends)}"
        self.ends[request_id], self.num_read[request_id] = [], 0
        to = self.rng.choice(list(self.instances.values()))
        self.take(kept(request_id))
        self.take(routes.Sent(request_id, to.ref, 10))
        to.runs[request_id] = Running(FIRST_EPOCH, 0)

    def answer(self) -> None:
        for request_id in sorted(self.asked):
            self.asked.discard(request_id)
            if self.rng.random() < 0.2:
                self.take(replays.NotDispatched(request_id))
            else:
                to = self.rng.choice(list(self.instances.values())).ref
                dispatch = Dispatch(request_id, "f-0", *to.key, seq=1)
                self.take(replays.Dispatched(dispatch, to))
        for request_id, time_s in sorted(self.wakes.items()):
            if time_s <= self.now_s and self.wakes.get(request_id) == time_s:
                del self.wakes[request_id]
                self.take(replays.Woken(request_id, time_s))

    def pass_time(self, for_s: float) -> None:
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + MISSING_S)
            if self.machine.has_to_look:
                self.take(routes.Looked())
            self.answer()

    # -- histories -------------------------------------------------------------------------

    def run(self, num_turns: int) -> "World":
        rng = self.rng
        self.submit()
        for _ in range(num_turns):
            having = [(i, r) for i in self.instances.values() for r in i.runs]
            drawn = rng.random()
            if drawn < 0.1 and len(self.ends) < 6:
                self.submit()
            elif drawn < 0.4 and having:
                self.step(*rng.choice(having))
            elif drawn < 0.55 and having:
                self.move(*rng.choice(having))
            elif drawn < 0.9 and self.on_their_way:
                index = rng.choice([0, 0, rng.randrange(len(self.on_their_way))])
                self.take(self.on_their_way.pop(index))
            elif drawn < 0.92:
                self.die(rng.choice(list(self.instances.values())))
            elif drawn < 0.925 and self.machine.live:
                self.empty(rng.choice(list(self.instances.values())))
            elif drawn < 0.93 and self.machine.live:
                self.leave(rng.choice(sorted(self.machine.live)))
            elif drawn < 0.94 and self.machine.live:
                request_id = rng.choice(sorted(self.machine.live))
                self.take(routes.NotTaken(request_id, "no", rng.random() < 0.8, 0))
            else:
                self.pass_time(rng.choice([MISSING_S, 1.0]))
        return self.heal()

    def empty(self, instance: Instance) -> None:
        self.take(routes.ReplayOrdered(instance.ref.key, sorted(self.machine.live), "it goes"))

    def leave(self, request_id: str) -> None:
        self.ends[request_id].append("left")
        self.take(routes.Aborted((request_id,)))

    def heal(self) -> "World":
        """All that was said arrives. Whoever lives goes on to the end; then all die, so that no
        instance has anything, and what begins anew is served."""
        self.loss = self.doubling = 0.0
        for _ in range(40):
            while self.on_their_way:
                self.take(self.on_their_way.pop(0))
            self.pass_time(UNCLEAR_S / 8)
            for instance in self.instances.values():
                for request_id in list(instance.runs):
                    self.step(instance, request_id)
        assert RouteState.UNCLEAR not in map(self.machine.state, self.ends), "it waits for ever"
        for instance in self.instances.values():
            dead = instance.ref
            instance.runs.clear()
            instance.ref = replace(dead, incarnation=dead.incarnation + 1)
            self.take(routes.InstanceDied(*dead.key))
        self.take(routes.InstancesLearned())  # of older ones it was heard after they had died
        for _ in range(4 * NUM_TOKENS):
            self.pass_time(1.0)
            for instance in self.instances.values():
                for request_id in list(instance.runs):
                    self.step(instance, request_id)
            while self.on_their_way:
                self.take(self.on_their_way.pop(0))
        assert not self.machine.live
        assert not any(instance.runs for instance in self.instances.values())
        for request_id, ends in self.ends.items():
            assert len(ends) == 1, (request_id, ends)
            assert ends != ["finished"] or self.num_read[request_id] == NUM_TOKENS
        return self


def test_each_client_reads_each_token_once_and_gets_one_end() -> None:
    worlds = run_seeds(60, lambda seed: World(seed).run(150))
    assert {state for each in worlds for state in each.states} == set(RouteState)
    ends = {how for each in worlds for hows in each.ends.values() for how in hows}
    assert ends == {"finished", "failed", "left"}
    kinds = {kind.__name__ for each in worlds for kind in each.seen}
    assert kinds >= {"AskForTokens", "AskOwner", "AnswerFence", "TellUnread", "AbortAt", "Send"}


def test_a_request_that_was_given_up_does_not_come_back_to_where_it_is_aborted() -> None:
    """Its owner died in a move, and the word of the destination, which has it, was too late."""
    machine, epoch = with_a_request_at_i0(), Epoch(0, 1)
    machine.handle(routes.Announced("r", epoch, I1), 0.1)
    machine.handle(routes.InstanceDied(*I0.key), 0.2)
    assert machine.state("r") is RouteState.UNCLEAR
    told = machine.handle(routes.Looked(), 0.2 + UNCLEAR_S)
    assert routes.AbortAt(I1.address, ("r",)) in told
    machine.handle(routes.Moved("r", epoch, I1, 0), 5.5)
    machine.handle(routes.Emitted(I1, "r", epoch, 0, [7], None, None), 5.5)
    assert machine.state("r") is RouteState.LOST
    machine.check()
    dispatch = Dispatch("r", "f-0", *I1.key, seq=1)
    machine.handle(replays.Dispatched(dispatch, I1), 5.6)
    machine.handle(routes.Emitted(I1, "r", Epoch(1), 0, [7], None, None), 5.7)
    assert machine.state("r") is RouteState.READ
    assert machine.live["r"].next_index == 1


@pytest.mark.parametrize("says", ["that it has it", "tokens"])
def test_a_request_that_moved_to_one_that_was_taken_for_dead_goes_on_elsewhere(says: str) -> None:
    """It was a holder when its connection broke, and the source, to which it lived, moved the
    request there again. What it says counts for nothing, and the source has nothing more to say."""
    machine = with_a_request_at_i0()
    machine.handle(routes.Announced("r", Epoch(0, 1), I1), 0.1)
    machine.handle(routes.AddressLost(I1.address), 0.2)
    assert machine.state("r") is RouteState.READ
    epoch = Epoch(0, 3)
    if says == "tokens":
        machine.handle(routes.Emitted(I1, "r", epoch, 0, [7], None, None), 0.5)
        (unread,) = machine.handle(routes.Looked(), 0.6)
    else:
        unread, *_ = machine.handle(routes.Moved("r", epoch, I1, 0), 0.5)
    assert unread == routes.TellUnread(I1.address, (("r", 0, 3),))
    assert machine.state("r") is RouteState.LOST
    machine.check()


def test_a_request_is_taken_from_its_instance_on_purpose_and_keeps_its_tokens() -> None:
    machine = with_a_request_at_i0()
    machine.handle(routes.Emitted(I0, "r", FIRST_EPOCH, 0, [7], None, None), 0.1)
    ordered = routes.ReplayOrdered(I0.key, ("r", "unknown"), "i-0 is restarted")
    other = replace(ordered, instance=(I0.instance_id, I0.incarnation + 1))
    assert machine.handle(other, 0.2) == []
    machine.handle(routes.Announced("r", Epoch(0, 1), I1), 0.3)
    assert machine.handle(ordered, 0.4) == [], "it moves"
    machine.handle(routes.FenceAsked("r", Epoch(0, 2), I0), 0.5)
    abort, lost, asked = machine.handle(ordered, 0.6)
    assert abort == routes.AbortAt(I0.address, ("r",))
    assert isinstance(lost, replays.RecordLoss)
    assert (lost.loss.what, lost.loss.num_replays) == ("i-0 is restarted", 0)
    assert isinstance(asked, replays.Ask)
    machine.handle(routes.Emitted(I0, "r", Epoch(0, 2), 1, [8], None, None), 0.7)
    (sent,) = machine.handle(replays.Dispatched(Dispatch("r", "f-0", *I1.key, seq=1), I1), 0.8)
    assert isinstance(sent, replays.Send)
    assert list(sent.outputs) == [7, 8], "what it decoded before it heard of that is kept"
    assert machine.handle(ordered, 0.9) == [], "it is elsewhere already"
    machine.check()


def test_a_request_that_would_end_in_an_error_is_left_where_it_is() -> None:
    machine = with_a_request_at_i0()
    machine.replays.config = ReplayConfig(max_replays=0)
    ordered = routes.ReplayOrdered(I0.key, ("r",), "i-0 is restarted")
    assert machine.handle(ordered, 0.1) == []
    assert machine.state("r") is RouteState.READ


def test_one_that_was_given_up_may_come_back_in_a_later_attempt() -> None:
    """Its tokens were lost on their way, and the instance lives: it may get the request again."""
    machine = with_a_request_at_i0()
    machine.handle(routes.Emitted(I0, "r", FIRST_EPOCH, 1, [8], None, None), 0.1)
    told = machine.handle(routes.Looked(), 0.1 + UNCLEAR_S)
    assert routes.AbortAt(I0.address, ("r",)) in told
    machine.handle(replays.Dispatched(Dispatch("r", "f-0", *I1.key, seq=1), I1), 5.6)
    machine.handle(routes.Announced("r", Epoch(1, 1), I0), 5.7)
    told = machine.handle(routes.Moved("r", Epoch(1, 1), I0, 0), 5.8)
    assert routes.ConfirmOwner(I0, "r", Epoch(1, 1)) in told
    assert machine.live["r"].ownership.owner == I0
    machine.check()


def test_a_source_that_is_told_to_stop_a_lost_request_does_not_bring_it_back() -> None:
    """It resumes before it hears that, and its token came first, when no instance had the
    request."""
    machine = with_a_request_at_i0()
    machine.handle(routes.Moved("r", Epoch(0, 1), I1, 0), 0.1)
    machine.handle(routes.InstanceDied(*I1.key), 0.2)
    assert machine.state("r") is RouteState.LOST
    told = machine.handle(routes.FenceAsked("r", Epoch(0, 2), I0), 0.3)
    assert routes.TellUnread(I0.address, (("r", 0, 2),)) in told
    machine.handle(routes.Emitted(I0, "r", Epoch(0, 2), 0, [7], None, None), 0.4)
    assert machine.state("r") is RouteState.LOST
    machine.check()
