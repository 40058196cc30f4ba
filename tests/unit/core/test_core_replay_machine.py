"""What a frontend does with requests whose instance is gone: every state and event of the machine,
then random histories.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from controller.core.load.snapshot import InstanceRef
from controller.core.replay import replay_machine as replays
from controller.core.replay.replay_machine import SENTENCES, ReplayRefusal, why_not
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.core.settings import ReplayConfig
from tests.unit.core.core_builders import run_seeds

I0 = InstanceRef("i-0", 1, "mem://i-0")
I1 = InstanceRef("i-1", 1, "mem://i-1")
LOSS = replays.Lost("r", I0, "instance i-0 died", 0.5)


def requested(request_id: str = "r", num_tokens: int = 10) -> DispatchRequested:
    return DispatchRequested(request_id, "f-0", num_tokens, 0, 5.0)


def dispatched(request_id: str = "r", seq: int = 9) -> replays.Dispatched:
    return replays.Dispatched(Dispatch(request_id, "f-0", "i-1", 1, seq), I1)


def refused(*, retryable: bool = True, attempt: int = 0) -> replays.Refused:
    return replays.Refused("r", I0, "restarted", retryable, attempt, None)


@dataclass
class Bed:
    machine: replays.ReplayMachine = field(default_factory=replays.ReplayMachine)
    now_s: float = 100.0

    def take(self, *events: replays.Event) -> list[replays.Instruction]:
        """The instructions of the last of them."""
        told: list[replays.Instruction] = []
        for event in events:
            told = list(self.machine.handle(event, self.now_s))
            self.machine.check()
        return told

    @property
    def state(self) -> replays.CopyState:
        return self.machine.state("r")


@pytest.fixture
def bed() -> Bed:
    bed = Bed()
    bed.take(replays.Arrived(requested(), (b"x",)))
    return bed


def kinds(told: list[replays.Instruction]) -> list[type]:
    return [type(each) for each in told]


REACHED: dict[replays.CopyState, tuple[replays.Event, ...]] = {
    replays.CopyState.STANDBY: (),
    replays.CopyState.ASKING: (LOSS,),
    replays.CopyState.PAUSING: (LOSS, replays.NotDispatched("r")),
    replays.CopyState.OVER: (replays.Over("r"),),
}
WOKEN = replays.Woken("r", 100.0 + replays.ASK_AGAIN_S)
TABLE: dict[tuple[replays.CopyState, replays.Event], tuple[replays.CopyState, list[type]]] = {
    (replays.CopyState.STANDBY, LOSS): (
        replays.CopyState.ASKING,
        [replays.RecordLoss, replays.Ask],
    ),
    (replays.CopyState.STANDBY, refused()): (
        replays.CopyState.PAUSING,
        [replays.RecordLoss, replays.WakeAt],
    ),
    (replays.CopyState.STANDBY, refused(retryable=False)): (
        replays.CopyState.OVER,
        [replays.Refuse],
    ),
    (replays.CopyState.PAUSING, WOKEN): (replays.CopyState.ASKING, [replays.Ask]),
    (replays.CopyState.PAUSING, replays.Found("r")): (
        replays.CopyState.STANDBY,
        [replays.RecordFound, replays.CallOff],
    ),
    (replays.CopyState.PAUSING, replays.Over("r")): (replays.CopyState.OVER, [replays.CallOff]),
    (replays.CopyState.ASKING, replays.NotDispatched("r")): (
        replays.CopyState.PAUSING,
        [replays.WakeAt],
    ),
    (replays.CopyState.ASKING, dispatched()): (replays.CopyState.STANDBY, [replays.Send]),
    (replays.CopyState.ASKING, replays.NotSent("r")): (replays.CopyState.OVER, [replays.Fail]),
    (replays.CopyState.ASKING, replays.Found("r")): (
        replays.CopyState.STANDBY,
        [replays.RecordFound, replays.CallOff],
    ),
    (replays.CopyState.ASKING, replays.Over("r")): (replays.CopyState.OVER, [replays.CallOff]),
    (replays.CopyState.STANDBY, replays.Over("r")): (replays.CopyState.OVER, []),
}
EVENTS = (
    LOSS,
    refused(),
    refused(retryable=False),
    WOKEN,
    replays.Found("r"),
    replays.NotDispatched("r"),
    dispatched(),
    replays.NotSent("r"),
    replays.Over("r"),
    replays.Delivered("r", (1, 2)),
    replays.Taken("r", 0),
    replays.Taken("r", 1),
)


@pytest.mark.parametrize("state", replays.CopyState)
def test_each_event_in_each_state(state: replays.CopyState) -> None:
    for event in EVENTS:
        bed = Bed()
        bed.take(replays.Arrived(requested(), (b"x",)), *REACHED[state])
        assert bed.state is state
        told = bed.take(event)
        late = [replays.Decline] if isinstance(event, replays.Dispatched) else []
        assert (bed.state, kinds(told)) == TABLE.get((state, event), (state, late)), event


def test_after_each_refusal_it_waits_twice_as_long_and_that_is_no_replay(bed: Bed) -> None:
    waits = []
    for attempt in range(replays.MAX_REFUSALS):
        record, wake = bed.take(refused(attempt=attempt))
        assert record.loss.num_replays == 0
        waits.append(wake.time_s - bed.now_s)
        assert bed.take(replays.Woken("r", wake.time_s - 0.01)) == [], "of an earlier wait"
        bed.take(replays.Woken("r", wake.time_s), dispatched())
    assert waits == pytest.approx([0.05 * 2**n for n in range(replays.MAX_REFUSALS)])
    assert bed.take(refused(attempt=replays.MAX_REFUSALS)) == [
        replays.Refuse("r", "restarted", True)
    ]


def test_a_token_ends_the_row_of_refusals(bed: Bed) -> None:
    for attempt in range(replays.MAX_REFUSALS + 3):
        _, wake = bed.take(replays.Delivered("r", (attempt,)), refused(attempt=attempt))
        bed.take(replays.Woken("r", wake.time_s), dispatched())


def test_a_request_that_was_found_was_not_replayed(bed: Bed) -> None:
    assert bed.take(LOSS, replays.Found("r"))[0] == replays.RecordFound("r", 0)
    bed.take(LOSS, dispatched())
    found = bed.take(refused(attempt=1), replays.Found("r"))[0]
    assert found == replays.RecordFound("r", 1), "the refusal had not counted as one"


def test_a_host_that_dies_takes_no_request_with_it(bed: Bed) -> None:
    """Its instances are noticed one after the other, and the request is sent to each of them."""
    bed.machine.config = ReplayConfig(max_replays=1)
    for _ in range(replays.MAX_NOT_TAKEN + 1):
        record, ask = bed.take(LOSS)
        assert record.loss.num_replays == 1, "the one that had it"
        assert isinstance(ask, replays.Ask)
        bed.take(dispatched())
    (fail,) = bed.take(LOSS)
    assert isinstance(fail, replays.Fail), "nobody ever says that it has it"
    assert fail.refusal is replays.ReplayRefusal.TOO_OFTEN


def test_patience_begins_when_an_instance_is_asked_for(bed: Bed) -> None:
    bed.machine.config = ReplayConfig(patience_s=1.0)
    told = bed.take(refused())
    while kinds(told) != [replays.Fail]:
        wake = told[-1]
        bed.now_s = wake.time_s
        told = bed.take(replays.Woken("r", wake.time_s), replays.NotDispatched("r"))
    assert bed.now_s == pytest.approx(100.05 + 1.0)
    (fail,) = told
    assert fail.refusal is replays.ReplayRefusal.NO_INSTANCE
    assert fail.message == (
        "restarted, and it cannot be replayed: no instance could take it in time; send it again"
    )


def test_tokens_that_come_while_it_waits_may_rule_the_replay_out() -> None:
    bed = Bed()
    marked = bed.take(replays.Arrived(requested(), (b"x",), replays.ReplayRefusal.MULTIMODAL))
    assert marked == [replays.Mark("r", replays.ReplayRefusal.MULTIMODAL)]
    assert kinds(bed.take(LOSS)) == [replays.RecordLoss, replays.Ask], "it has no outputs"
    told = bed.take(replays.Delivered("r", (1,)), dispatched())
    assert kinds(told) == [replays.Decline, replays.Fail]


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
        self.machine = replays.ReplayMachine()
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

    def run(self, num_events: int) -> "History":
        for _ in range(num_events):
            self.now_s += self.rng.choice([0.0, 0.01, 0.3])
            self.take(self.rng.choice(list(self.possible())))
        for request_id in list(self.live):
            self.take(replays.Over(request_id))
        assert (self.machine.num_copied_tokens, self.asked, self.wakes) == (0, set(), {})
        assert all(len(ends) == 1 for ends in self.ends.values()), self.ends
        return self

    def possible(self) -> Iterator[replays.Event]:
        rng = self.rng
        mark = rng.choice([None, None, replays.ReplayRefusal.MULTIMODAL])
        new = requested(f"r-{len(self.ends)}", rng.randint(1, 20))
        yield replays.Arrived(new, (b"x" * rng.randint(1, 3),), mark)
        self.num_dispatches += 1
        if not self.ends:
            return
        request_id = rng.choice(list(self.ends))
        tokens = tuple(rng.randrange(1000) for _ in range(rng.randint(1, 5)))
        known = self.live.get(request_id, Live(()))
        attempt = known.attempt - (known.attempt > 0 and rng.random() < 0.2)
        yield replays.Delivered(request_id, tokens)
        yield replays.Taken(request_id, attempt)
        yield replays.Lost(request_id, I0, "instance i-0 died", None)
        yield replays.Found(request_id)
        yield replays.Refused(request_id, I1, "no", rng.random() < 0.8, attempt, None)
        yield dispatched(request_id, self.num_dispatches)
        yield replays.NotDispatched(request_id)
        if rng.random() < 0.1:
            yield replays.NotSent(request_id)
            yield replays.Over(request_id)
        yield replays.Woken(request_id, self.wakes.get(request_id, self.now_s))
        for asked in self.asked:
            yield rng.choice([dispatched(asked, self.num_dispatches), replays.NotDispatched(asked)])
        for waiting, time_s in self.wakes.items():
            yield replays.Woken(waiting, time_s)

    def take(self, event: replays.Event) -> None:
        self.before(event)
        num_answers = 0
        for instruction in self.machine.handle(event, self.now_s):
            self.seen.add(type(instruction))
            num_answers += isinstance(instruction, replays.Send | replays.Decline)
            self.follow(instruction, event)
        assert num_answers == isinstance(event, replays.Dispatched), "sent or declined, and once"
        if isinstance(event, replays.Over) and event.request_id in self.live:
            self.end(event.request_id, "over")
        self.machine.check()
        self.check()

    def before(self, event: replays.Event) -> None:
        match event:
            case replays.Arrived(request, frames, _):
                assert request.request_id not in self.ends
                self.live[request.request_id] = Live(tuple(bytes(frame) for frame in frames))
                self.ends[request.request_id] = []
            case replays.Delivered(request_id, token_ids) if request_id in self.live:
                self.live[request_id].outputs += token_ids
                self.live[request_id].is_taken = True
            case replays.Taken(request_id, attempt) if request_id in self.live:
                live = self.live[request_id]
                if self.machine.state(request_id) is replays.CopyState.STANDBY:
                    live.is_taken |= attempt == live.attempt
            case replays.Dispatched(dispatch):
                self.asked.discard(dispatch.request_id)
            case replays.NotDispatched(request_id) | replays.NotSent(request_id):
                self.asked.discard(request_id)
            case replays.Woken(request_id, time_s) if self.wakes.get(request_id) == time_s:
                del self.wakes[request_id]
            case _:
                pass

    def follow(self, instruction: replays.Instruction, event: replays.Event) -> None:
        match instruction:
            case replays.Ask(request):
                self.may_begin(request.request_id)
                self.asked.add(request.request_id)
            case replays.WakeAt(request_id, time_s):
                self.may_begin(request_id)
                assert time_s > self.now_s
                self.wakes[request_id] = time_s
            case replays.CallOff(request_id):
                assert request_id in self.asked or request_id in self.wakes
                self.asked.discard(request_id)
                self.wakes.pop(request_id, None)
            case replays.Send(request=request):
                live = self.live[request.request_id]
                live.attempt += 1
                live.is_taken = False
                assert instruction.replay.attempt == live.attempt
                assert (instruction.frames, list(instruction.outputs)) == (
                    live.frames,
                    live.outputs,
                )
            case replays.RecordLoss(request_id, loss):
                assert loss.num_replays <= self.machine.config.max_replays
                live = self.live[request_id]
                counts = isinstance(event, replays.Lost) and live.is_taken
                assert loss.num_replays == live.num_replays + counts
                live.num_replays = loss.num_replays
            case replays.RecordFound(request_id, num_replays):
                self.live[request_id].num_replays = num_replays
            case replays.Fail(request_id):
                self.end(request_id, "failed")
            case replays.Refuse(request_id):
                self.end(request_id, "refused")
            case replays.Decline() | replays.Mark():
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
            assert (state is replays.CopyState.OVER) == (request_id not in self.live)
            assert (state in replays.LOST) == (request_id in self.asked or request_id in self.wakes)
        assert self.machine.num_copied_tokens <= self.machine.config.max_tokens_kept


def test_histories_in_any_order() -> None:
    histories = run_seeds(150, lambda seed: History(seed).run(80))
    assert len({kind for each in histories for kind in each.seen}) == 10, "each instruction"
    ends = {how for each in histories for hows in each.ends.values() for how in hows}
    assert ends == {"over", "failed", "refused"}


# -- which requests are replayed after the death of their instance -------------------------


CONFIG = ReplayConfig(max_replays=2)


def test_one_with_outputs_is_replayed_as_often_as_allowed() -> None:
    assert [why_not(CONFIG, n, 7, None) for n in range(3)] == [None, None, ReplayRefusal.TOO_OFTEN]


def test_none_is_if_it_is_switched_off() -> None:
    assert why_not(ReplayConfig(max_replays=0), 0, 0, None) is ReplayRefusal.OFF


@pytest.mark.parametrize(
    "mark",
    [ReplayRefusal.MULTIMODAL, ReplayRefusal.PROMPT_EMBEDS, ReplayRefusal.STREAMED_PROMPT],
)
def test_one_of_which_the_input_cannot_be_sent_beside_outputs(mark: ReplayRefusal) -> None:
    assert why_not(CONFIG, 0, 0, mark) is None, "it begins anew"
    assert why_not(CONFIG, 0, 1, mark) is mark


@pytest.mark.parametrize("num_outputs", [0, 1])
def test_one_that_was_not_kept_has_nothing_to_be_sent(num_outputs: int) -> None:
    assert why_not(CONFIG, 0, num_outputs, ReplayRefusal.NOT_KEPT) is ReplayRefusal.NOT_KEPT


def test_each_refusal_has_its_sentence() -> None:
    assert set(SENTENCES) == set(ReplayRefusal)
