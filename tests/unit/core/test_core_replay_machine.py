"""What a frontend does with requests whose instance is gone: every state and event of the machine,
then random histories."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from controller.core.load.snapshot import InstanceRef
from controller.core.replay.replay_machine import (
    ASK_AGAIN_S,
    LOST,
    MAX_NOT_TAKEN,
    MAX_REFUSALS,
    Arrived,
    Ask,
    CallOff,
    CopyState,
    Decline,
    Delivered,
    Dispatched,
    Event,
    Fail,
    Found,
    Instruction,
    Lost,
    Mark,
    NotDispatched,
    NotSent,
    Over,
    RecordFound,
    RecordLoss,
    Refuse,
    Refused,
    ReplayMachine,
    ReplayRefusal,
    Send,
    Taken,
    WakeAt,
    Woken,
)
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.core.settings import ReplayConfig

I0 = InstanceRef("i-0", 1, "mem://i-0")
I1 = InstanceRef("i-1", 1, "mem://i-1")
LOSS = Lost("r", I0, "instance i-0 died", 0.5)


def requested(request_id: str = "r", num_tokens: int = 10) -> DispatchRequested:
    return DispatchRequested(request_id, "f-0", num_tokens, 0, 5.0)


def dispatched(request_id: str = "r", seq: int = 9) -> Dispatched:
    return Dispatched(Dispatch(request_id, "f-0", "i-1", 1, seq), I1)


def refused(*, retryable: bool = True, attempt: int = 0) -> Refused:
    return Refused("r", I0, "restarted", retryable, attempt, None)


@dataclass
class Bed:
    machine: ReplayMachine = field(default_factory=ReplayMachine)
    now_s: float = 100.0

    def take(self, *events: Event) -> list[Instruction]:
        """The instructions of the last of them."""
        told: list[Instruction] = []
        for event in events:
            told = list(self.machine.handle(event, self.now_s))
            self.machine.check()
        return told

    @property
    def state(self) -> CopyState:
        return self.machine.state("r")


@pytest.fixture
def bed() -> Bed:
    bed = Bed()
    bed.take(Arrived(requested(), (b"x",)))
    return bed


def kinds(told: list[Instruction]) -> list[type]:
    return [type(each) for each in told]


REACHED: dict[CopyState, tuple[Event, ...]] = {
    CopyState.STANDBY: (),
    CopyState.ASKING: (LOSS,),
    CopyState.PAUSING: (LOSS, NotDispatched("r")),
    CopyState.OVER: (Over("r"),),
}
WOKEN = Woken("r", 100.0 + ASK_AGAIN_S)
TABLE: dict[tuple[CopyState, Event], tuple[CopyState, list[type]]] = {
    (CopyState.STANDBY, LOSS): (CopyState.ASKING, [RecordLoss, Ask]),
    (CopyState.STANDBY, refused()): (CopyState.PAUSING, [RecordLoss, WakeAt]),
    (CopyState.STANDBY, refused(retryable=False)): (CopyState.OVER, [Refuse]),
    (CopyState.PAUSING, WOKEN): (CopyState.ASKING, [Ask]),
    (CopyState.PAUSING, Found("r")): (CopyState.STANDBY, [RecordFound, CallOff]),
    (CopyState.PAUSING, Over("r")): (CopyState.OVER, [CallOff]),
    (CopyState.ASKING, NotDispatched("r")): (CopyState.PAUSING, [WakeAt]),
    (CopyState.ASKING, dispatched()): (CopyState.STANDBY, [Send]),
    (CopyState.ASKING, NotSent("r")): (CopyState.OVER, [Fail]),
    (CopyState.ASKING, Found("r")): (CopyState.STANDBY, [RecordFound, CallOff]),
    (CopyState.ASKING, Over("r")): (CopyState.OVER, [CallOff]),
    (CopyState.STANDBY, Over("r")): (CopyState.OVER, []),
}
EVENTS = (
    LOSS,
    refused(),
    refused(retryable=False),
    WOKEN,
    Found("r"),
    NotDispatched("r"),
    dispatched(),
    NotSent("r"),
    Over("r"),
    Delivered("r", (1, 2)),
    Taken("r", 0),
    Taken("r", 1),
)


@pytest.mark.parametrize("state", CopyState)
def test_each_event_in_each_state(state: CopyState) -> None:
    for event in EVENTS:
        bed = Bed()
        bed.take(Arrived(requested(), (b"x",)), *REACHED[state])
        assert bed.state is state
        told = bed.take(event)
        late = [Decline] if isinstance(event, Dispatched) else []
        assert (bed.state, kinds(told)) == TABLE.get((state, event), (state, late)), event


def test_it_is_sent_with_all_that_was_delivered(bed: Bed) -> None:
    bed.take(Delivered("r", (7, 8)))
    record, ask = bed.take(LOSS)
    assert isinstance(record, RecordLoss)
    assert (record.loss.num_tokens, record.loss.num_replays) == (12, 1)
    assert isinstance(ask, Ask)
    assert (ask.request.num_prompt_tokens, ask.request.replayed) == (12, True)
    (send,) = bed.take(Delivered("r", (9,)), dispatched())
    assert isinstance(send, Send)
    assert (list(send.outputs), send.frames) == ([7, 8, 9], (b"x",))
    assert (send.replay.attempt, send.replay.num_tokens) == (1, 13)
    assert (send.replay.source_id, send.replay.cause_id) == ("i-0", "lost-i-0-1")


def test_after_each_refusal_it_waits_twice_as_long_and_that_is_no_replay(bed: Bed) -> None:
    waits = []
    for attempt in range(MAX_REFUSALS):
        record, wake = bed.take(refused(attempt=attempt))
        assert isinstance(record, RecordLoss)
        assert record.loss.num_replays == 0
        assert isinstance(wake, WakeAt)
        waits.append(wake.time_s - bed.now_s)
        assert bed.take(Woken("r", wake.time_s - 0.01)) == [], "of an earlier wait"
        bed.take(Woken("r", wake.time_s), dispatched())
    assert waits == pytest.approx([0.05 * 2**n for n in range(MAX_REFUSALS)])
    assert bed.take(refused(attempt=MAX_REFUSALS)) == [Refuse("r", "restarted", True)]


def test_a_token_ends_the_row_of_refusals(bed: Bed) -> None:
    for attempt in range(MAX_REFUSALS + 3):
        _, wake = bed.take(Delivered("r", (attempt,)), refused(attempt=attempt))
        assert isinstance(wake, WakeAt)
        bed.take(Woken("r", wake.time_s), dispatched())


def test_a_request_that_was_found_was_not_replayed(bed: Bed) -> None:
    assert bed.take(LOSS, Found("r"))[0] == RecordFound("r", 0)
    bed.take(LOSS, dispatched())
    found = bed.take(refused(attempt=1), Found("r"))[0]
    assert found == RecordFound("r", 1), "the refusal had not counted as one"


def test_a_host_that_dies_takes_no_request_with_it(bed: Bed) -> None:
    """Its instances are noticed one after the other, and the request is sent to each of them."""
    bed.machine.config = ReplayConfig(max_replays=1)
    for _ in range(MAX_NOT_TAKEN + 1):
        record, ask = bed.take(LOSS)
        assert isinstance(record, RecordLoss)
        assert record.loss.num_replays == 1, "the one that had it"
        assert isinstance(ask, Ask)
        bed.take(dispatched())
    (fail,) = bed.take(LOSS)
    assert isinstance(fail, Fail), "nobody ever says that it has it"
    assert fail.refusal is ReplayRefusal.TOO_OFTEN


@pytest.mark.parametrize("begun", [Taken("r", 2), Delivered("r", (1,))])
def test_an_instance_that_had_it_counts(bed: Bed, begun: Event) -> None:
    bed.machine.config = ReplayConfig(max_replays=1)
    bed.take(LOSS, dispatched(), LOSS, dispatched(), Taken("r", 1), begun)
    assert kinds(bed.take(LOSS)) == [Fail]


def test_what_an_earlier_attempt_says_counts_for_nothing(bed: Bed) -> None:
    bed.machine.config = ReplayConfig(max_replays=1)
    bed.take(LOSS, dispatched(), LOSS, Taken("r", 1), dispatched(), Taken("r", 1))
    assert kinds(bed.take(LOSS)) == [RecordLoss, Ask]


def test_patience_begins_when_an_instance_is_asked_for(bed: Bed) -> None:
    bed.machine.config = ReplayConfig(patience_s=1.0)
    told = bed.take(refused())
    while kinds(told) != [Fail]:
        wake = told[-1]
        assert isinstance(wake, WakeAt)
        bed.now_s = wake.time_s
        told = bed.take(Woken("r", wake.time_s), NotDispatched("r"))
    assert bed.now_s == pytest.approx(100.05 + 1.0)
    (fail,) = told
    assert isinstance(fail, Fail)
    assert fail.refusal is ReplayRefusal.NO_INSTANCE
    assert fail.message == (
        "restarted, and it cannot be replayed: no instance could take it in time; send it again"
    )


def test_tokens_that_come_while_it_waits_may_rule_the_replay_out() -> None:
    bed = Bed()
    marked = bed.take(Arrived(requested(), (b"x",), ReplayRefusal.MULTIMODAL))
    assert marked == [Mark("r", ReplayRefusal.MULTIMODAL)]
    assert kinds(bed.take(LOSS)) == [RecordLoss, Ask], "it has no outputs"
    told = bed.take(Delivered("r", (1,)), dispatched())
    assert kinds(told) == [Decline, Fail]


# -- histories -----------------------------------------------------------------------------


@dataclass
class Live:
    frames: tuple[bytes, ...]
    outputs: list[int] = field(default_factory=list)
    attempt: int = 0
    is_taken: bool = True
    num_replays: int = 0


class History:
    """A frontend that carries out its instructions, while events come in any order."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.machine = ReplayMachine()
        self.machine.config = ReplayConfig(
            rng.choice([0, 1, 3]), rng.choice([30, 100, 10_000]), rng.choice([0.5, 30.0])
        )
        self.now_s = 0.0
        self.live: dict[str, Live] = {}
        self.asked: set[str] = set()
        self.wakes: dict[str, float] = {}
        self.ends: dict[str, list[str]] = {}
        self.seen: set[type] = set()
        self.num_dispatches = 0

    def run(self, num_events: int) -> None:
        for _ in range(num_events):
            self.now_s += self.rng.choice([0.0, 0.01, 0.3])
            self.take(self.rng.choice(list(self.possible())))
        for request_id in list(self.live):
            self.take(Over(request_id))
        assert (self.machine.num_copied_tokens, self.asked, self.wakes) == (0, set(), {})
        assert all(len(ends) == 1 for ends in self.ends.values()), self.ends

    def possible(self) -> Iterator[Event]:
        rng = self.rng
        mark = rng.choice([None, None, ReplayRefusal.MULTIMODAL])
        new = requested(f"r-{len(self.ends)}", rng.randint(1, 20))
        yield Arrived(new, (b"x" * rng.randint(1, 3),), mark)
        self.num_dispatches += 1
        if not self.ends:
            return
        request_id = rng.choice(list(self.ends))
        tokens = tuple(rng.randrange(1000) for _ in range(rng.randint(1, 5)))
        known = self.live.get(request_id, Live(()))
        attempt = known.attempt - (known.attempt > 0 and rng.random() < 0.2)
        yield Delivered(request_id, tokens)
        yield Taken(request_id, attempt)
        yield Lost(request_id, I0, "instance i-0 died", None)
        yield Found(request_id)
        yield Refused(request_id, I1, "no", rng.random() < 0.8, attempt, None)
        yield dispatched(request_id, self.num_dispatches)
        yield NotDispatched(request_id)
        if rng.random() < 0.1:
            yield NotSent(request_id)
            yield Over(request_id)
        yield Woken(request_id, self.wakes.get(request_id, self.now_s))
        for asked in self.asked:
            yield rng.choice([dispatched(asked, self.num_dispatches), NotDispatched(asked)])
        for waiting, time_s in self.wakes.items():
            yield Woken(waiting, time_s)

    def take(self, event: Event) -> None:
        self.before(event)
        num_answers = 0
        for instruction in self.machine.handle(event, self.now_s):
            self.seen.add(type(instruction))
            num_answers += isinstance(instruction, Send | Decline)
            self.follow(instruction, event)
        assert num_answers == isinstance(event, Dispatched), "sent or declined, and once"
        if isinstance(event, Over) and event.request_id in self.live:
            self.end(event.request_id, "over")
        self.machine.check()
        self.check()

    def before(self, event: Event) -> None:
        match event:
            case Arrived(request, frames, _):
                assert request.request_id not in self.ends
                self.live[request.request_id] = Live(tuple(bytes(frame) for frame in frames))
                self.ends[request.request_id] = []
            case Delivered(request_id, token_ids) if request_id in self.live:
                self.live[request_id].outputs += token_ids
                self.live[request_id].is_taken = True
            case Taken(request_id, attempt) if request_id in self.live:
                live = self.live[request_id]
                if self.machine.state(request_id) is CopyState.STANDBY:
                    live.is_taken |= attempt == live.attempt
            case Dispatched(dispatch):
                self.asked.discard(dispatch.request_id)
            case NotDispatched(request_id) | NotSent(request_id):
                self.asked.discard(request_id)
            case Woken(request_id, time_s) if self.wakes.get(request_id) == time_s:
                del self.wakes[request_id]
            case _:
                pass

    def follow(self, instruction: Instruction, event: Event) -> None:
        match instruction:
            case Ask(request):
                self.may_begin(request.request_id)
                self.asked.add(request.request_id)
            case WakeAt(request_id, time_s):
                self.may_begin(request_id)
                assert time_s > self.now_s
                self.wakes[request_id] = time_s
            case CallOff(request_id):
                assert request_id in self.asked or request_id in self.wakes
                self.asked.discard(request_id)
                self.wakes.pop(request_id, None)
            case Send(request=request):
                live = self.live[request.request_id]
                live.attempt += 1
                live.is_taken = False
                assert instruction.replay.attempt == live.attempt
                assert (instruction.frames, list(instruction.outputs)) == (
                    live.frames,
                    live.outputs,
                )
            case RecordLoss(request_id, loss):
                assert loss.num_replays <= self.machine.config.max_replays
                live = self.live[request_id]
                counts = isinstance(event, Lost) and live.is_taken
                assert loss.num_replays == live.num_replays + counts
                live.num_replays = loss.num_replays
            case RecordFound(request_id, num_replays):
                self.live[request_id].num_replays = num_replays
            case Fail(request_id):
                self.end(request_id, "failed")
            case Refuse(request_id):
                self.end(request_id, "refused")
            case Decline() | Mark():
                pass

    def may_begin(self, request_id: str) -> None:
        assert request_id in self.live
        assert request_id not in self.asked
        assert request_id not in self.wakes

    def end(self, request_id: str, how: str) -> None:
        del self.live[request_id]
        self.ends[request_id].append(how)

    def check(self) -> None:
        for request_id in self.ends:
            state = self.machine.state(request_id)
            assert (state is CopyState.OVER) == (request_id not in self.live)
            assert (state in LOST) == (request_id in self.asked or request_id in self.wakes)
        assert self.machine.num_copied_tokens <= self.machine.config.max_tokens_kept


def test_histories_in_any_order() -> None:
    seen: set[type] = set()
    ends: set[str] = set()
    for seed in range(150):
        history = History(seed)
        try:
            history.run(80)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        seen |= history.seen
        ends |= {how for hows in history.ends.values() for how in hows}
    assert len(seen) == 10, "each instruction was given"
    assert ends == {"over", "failed", "refused"}
