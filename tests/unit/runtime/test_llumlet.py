"""The llumlet with a deterministic engine on a real thread, its peers played by the test."""

import asyncio
import queue
from itertools import pairwise
from types import SimpleNamespace

import pytest

from controller.core.load.snapshot import InstanceRef
from controller.core.load.step_times import StepLimit
from controller.core.migration.move_records import MoveOrder
from controller.ports.engine import StepPhase
from controller.runtime.instance import engine_thread
from controller.runtime.messages.members import (
    Hello,
    StatusPull,
    StatusPushed,
    StatusPushSet,
    StepTimeSet,
    Welcome,
)
from controller.runtime.messages.move_messages import MoveAnswered, MoveAsked, RequestLost
from controller.runtime.messages.requests import (
    AbortRequests,
    AddRequest,
    DispatchUnused,
    OutputItem,
    OutputsEmitted,
    OutputsUnread,
    RequestRefused,
)
from tests.unit.runtime.fake_engine import tokens_of
from tests.unit.runtime.fake_transfer import FakeTransfer
from tests.unit.runtime.fakes import INFO, PATIENCE_S, FakeNetwork, until
from tests.unit.runtime.llumlet_bed import HERE, Bed

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
async def bed(unstarted: Bed) -> Bed:
    await unstarted.start()
    return unstarted


# -- requests -----------------------------------------------------------------------------


async def test_a_request_s_tokens_arrive_once_each_and_in_order(bed: Bed) -> None:
    """Also without the controller."""
    bed.engine.hold()
    bed.add("r", max_tokens=40)
    bed.engine.allow(2)
    bed.network.lose("mem://controller")
    bed.engine.go_on()
    assert await bed.tokens("r") == tokens_of("r", 40)
    assert bed.llumlet.num_live_reqs == 0


async def test_once_nothing_is_left_those_are_told_who_were_told_of_a_load(bed: Bed) -> None:
    """Else vLLM's metrics show what ran last for ever: the last one's end, its client's or its
    frontend's, of which another frontend is told."""
    bed.add("a", frontend=bed.f1)
    await bed.tokens("a", bed.f1)
    assert await bed.load(bed.f1) == []
    bed.add("b", max_tokens=400)
    await bed.output()
    bed.f0.send(HERE, AbortRequests(("b",)))
    while await bed.load(bed.f0):
        pass  # the step that was under way when the abort came
    await bed.pull()
    assert bed.f1.received(OutputsEmitted) == [], "it knows already"
    bed.engine.hold(blocks_thread=False)
    bed.f0.inbox.clear()
    bed.add("c", max_tokens=400)
    bed.engine.allow(1)
    await bed.output()
    bed.network.lose("mem://f-0")
    assert await bed.load(bed.f1) == []


async def test_statistics_of_a_step_without_tokens_go_to_one_frontend_that_lives(bed: Bed) -> None:
    bed.add("a")
    await bed.tokens("a")
    await bed.load(bed.f0)
    bed.network.lose("mem://f-0")
    bed.engine.admits, bed.engine.tells_each_step = False, True
    bed.add("b", frontend=bed.f1)
    assert await bed.load(bed.f1) == []
    bed.engine.tells_each_step = False


async def test_what_nobody_reads_is_aborted_in_its_hop(bed: Bed) -> None:
    bed.engine.hold()
    bed.add("r", max_tokens=200, hop=2)
    bed.engine.allow(1)
    await bed.output()
    bed.f0.send(HERE, OutputsUnread((("r", 0, 1), ("unknown", 0, 1))))
    bed.engine.allow(1)
    await bed.output()
    assert bed.llumlet.num_live_reqs == 1
    bed.f0.send(HERE, OutputsUnread((("r", 0, 2),)))
    me = InstanceRef("i-0", 1, HERE)
    assert await bed.f0.receive(RequestLost) == RequestLost("r", 2, owner=me)
    bed.engine.go_on()
    quiet = await bed.status(lambda s: s.snapshot.num_running == 0)
    assert quiet.snapshot.num_free_blocks == 64
    assert bed.llumlet.num_live_reqs == 0


async def test_an_abort_frees_the_blocks_and_outputs_of_the_step_under_way_are_dropped(
    bed: Bed,
) -> None:
    bed.engine.hold()
    bed.add("r", num_prompt_tokens=100, max_tokens=50, attempt=2, hop=3)
    bed.engine.allow(1)
    emitted, _ = await bed.output()
    assert emitted.sender == InstanceRef("i-0", 1, "mem://i-0")
    assert emitted.items == (OutputItem("r", 2, 3, 0, 1, None),)
    await until(lambda: bed.engine.num_begun == 2)  # or the abort would come before the step
    bed.f0.send(HERE, AbortRequests(("r", "unknown")))
    await bed.taken_in(0)
    bed.engine.go_on()  # it ends the step that it was in, with a token of "r"
    quiet = await bed.status(lambda s: s.num_steps > 1 and s.snapshot.num_running == 0)
    assert quiet.snapshot.num_free_blocks == 64
    await bed.pull()
    assert bed.num_outputs() == 0


@pytest.mark.parametrize("why", ["the prompt is too long", "no adapter of that name", ""])
async def test_a_request_that_the_engine_cannot_take_is_refused_and_accounted(
    bed: Bed, why: str
) -> None:
    bed.engine.refuses_at_add.add("r")
    if why:
        bed.add("r", seq=4, num_prompt_tokens=600 if "long" in why else 4)
    else:  # it does not decode
        bed.f0.send(HERE, AddRequest("r", "mem://f-0", 1, 4), [b"\xc1"])
    refused = await bed.f0.receive(RequestRefused)
    assert (refused.request_id, refused.retryable) == ("r", False)
    assert not why or refused.message == why
    status = await bed.status(lambda s: s.last_dispatch_seq == 4)
    assert (status.snapshot.num_running, status.snapshot.num_queued) == (0, 0)
    assert bed.llumlet.num_live_reqs == 0


async def test_a_dispatch_that_is_not_used_or_meant_for_another_is_accounted(bed: Bed) -> None:
    bed.add("r", seq=9, incarnation=2)
    refused = await bed.f0.receive(RequestRefused)
    assert (refused.request_id, refused.retryable) == ("r", True)
    bed.f0.send(HERE, DispatchUnused(1, 6))
    await bed.status(lambda s: s.last_dispatch_seq == 6)
    bed.f0.send(HERE, DispatchUnused(2, 8))
    assert (await bed.pull()).last_dispatch_seq == 6, "meant for another incarnation"


async def test_no_status_names_a_dispatch_whose_request_it_does_not_count(bed: Bed) -> None:
    bed.engine.hold()
    seen: list[StatusPushed] = []
    for seq in range(1, 40):
        bed.add(f"r{seq}", seq=seq, max_tokens=10_000)  # more than fits: none ends
        bed.engine.allow(1)
        if seq % 5 == 0:
            await bed.controller.receive(Hello, lambda h, seq=seq: h.num_live_reqs == seq)
            bed.engine.allow(2)  # the step that it is in, and one that has seen them all
            await bed.status(lambda s, seq=seq: s.last_dispatch_seq == seq)
        seen += bed.controller.received(StatusPushed)
        bed.controller.inbox.clear()
    assert len({status.last_dispatch_seq for status in seen}) > 1
    for status in seen:
        in_engine = status.snapshot.num_running + status.snapshot.num_queued
        assert in_engine == status.last_dispatch_seq


async def test_a_frontend_that_is_gone_has_its_requests_aborted(bed: Bed) -> None:
    bed.engine.hold()
    bed.add("a", frontend=bed.f0)
    bed.add("b", frontend=bed.f1)
    await bed.taken_in(2)
    bed.engine.allow(2)
    await bed.output(bed.f0)
    await bed.output(bed.f1)
    bed.network.lose("mem://f-0")
    await bed.taken_in(1)
    bed.engine.go_on()
    await bed.status(lambda s: s.snapshot.num_running + s.snapshot.num_queued == 0)
    assert bed.engine.aborted == ["a"]


# -- start, end, fencing ------------------------------------------------------------------


async def test_it_serves_only_once_the_engine_has_started(unstarted: Bed) -> None:
    bed = unstarted
    bed.build.start = queue.SimpleQueue()
    bed.run()
    await bed.welcome()
    await bed.controller.receive(Hello, lambda h: (h.phase, h.detail) == ("starting", "loading"))
    bed.add("early")
    assert (await bed.f0.receive(RequestRefused)).retryable
    for dry_run in (True, False):
        order = MoveOrder("m", "r", InstanceRef("i-1", 1, "mem://i-1"), "test")
        bed.controller.send(HERE, MoveAsked("q", order, dry_run))
        assert await bed.controller.receive(MoveAnswered) == MoveAnswered("q", "unknown")
    bed.build.start.put(None)
    active = await bed.controller.receive(Hello, lambda h: h.phase == "active")
    assert active.info == INFO
    bed.add("r")
    assert await bed.tokens("r") == tokens_of("r", 5)


@pytest.mark.parametrize("is_built", [False, True])
async def test_an_engine_that_cannot_start_is_reported_as_failed_and_held(
    unstarted: Bed, monkeypatch: pytest.MonkeyPatch, is_built: bool
) -> None:
    def no_socket(*_: object) -> None:
        raise OSError("no socket can be had")

    bed = unstarted
    if is_built:
        monkeypatch.setattr(FakeTransfer, "start", no_socket)
    else:
        bed.build.error = OSError("no socket can be had")
    bed.run()
    failed = await bed.controller.receive(Hello, lambda h: h.phase == "failed")
    assert failed.detail == "OSError: no socket can be had"
    await bed.welcome()
    bed.add("r")
    assert (await bed.f0.receive(RequestRefused)).retryable
    bed.controller.inbox.clear()
    bed.controller.send(HERE, StatusPull())
    for _ in range(2):
        assert (await bed.controller.receive(Hello)).phase == "failed"
    assert bed.controller.received(StatusPushed) == []
    assert not bed.task.done()
    bed.task.cancel()


async def test_the_engine_thread_s_death_ends_the_process(bed: Bed) -> None:
    bed.engine.hold()
    bed.add("r", max_tokens=1000)
    bed.engine.allow(5)
    for _ in range(5):
        await bed.output()
    bed.engine.die(MemoryError("bad step"))
    with pytest.raises(MemoryError, match="bad step"):
        await asyncio.wait_for(bed.task, PATIENCE_S)
    assert HERE not in bed.network.mailboxes, "its inbox is closed, so others notice"


async def test_an_engine_of_which_nobody_could_be_told_ends_the_process(
    unstarted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # it fails in a callback
    monkeypatch.setattr(unstarted.member, "report", defect)
    unstarted.run()
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(unstarted.task, PATIENCE_S)


async def test_a_fenced_instance_drops_all_that_it_ran(bed: Bed) -> None:
    bed.engine.hold()
    for request_id in ("a", "b"):
        bed.add(request_id, seq=5)
    await bed.taken_in(2)
    bed.engine.allow(2)
    await bed.status(lambda s: s.last_dispatch_seq == 5 and s.snapshot.num_running == 2)
    await bed.welcome(2, fenced=True)
    await bed.taken_in(0)
    bed.engine.go_on()
    status = await bed.status(lambda s: s.snapshot.num_running == 0)
    assert (status.snapshot.incarnation, status.snapshot.num_free_blocks) == (2, 64)
    assert (await bed.pull()).last_dispatch_seq == 5, "the numbers go on"
    bed.f0.inbox.clear()
    bed.add("r", seq=1, incarnation=2)
    assert await bed.tokens("r") == tokens_of("r", 5)


# -- statuses -----------------------------------------------------------------------------


async def test_a_hanging_engine_is_silent(bed: Bed) -> None:
    bed.engine.hold()
    bed.add("r")
    await bed.taken_in(1)
    for _ in range(3):  # the event loop goes on
        await bed.controller.receive(Hello)
    bed.controller.inbox.clear()
    bed.controller.send(HERE, StatusPull())
    for _ in range(3):
        await bed.controller.receive(Hello)
    assert len(bed.controller.received(StatusPushed)) <= 1, "one may have been under way"
    bed.engine.go_on()
    assert await bed.tokens("r") == tokens_of("r", 5)


@pytest.mark.parametrize(
    ("phase", "seen"),
    [  # (steps that are over, running, waiting)
        ("begin", (0, 0, 1)),
        ("after-schedule", (0, 1, 0)),
        ("after-update", (0, 0, 0)),
        ("before-return", (1, 0, 0)),
    ],
)
async def test_a_status_goes_out_at_the_phase_that_is_asked_for(
    bed: Bed, phase: StepPhase, seen: tuple[int, int, int]
) -> None:
    bed.controller.send(HERE, StatusPushSet(0.0, (phase,)))
    bed.f0.send(HERE, DispatchUnused(1, 6))
    await bed.status(lambda s: s.last_dispatch_seq == 6)  # nothing before it wants a status now
    bed.add("r", max_tokens=1, seq=7)
    status = await bed.status(lambda s: s.last_dispatch_seq == 7)
    found = status.snapshot
    assert (status.num_steps, found.num_running, found.num_queued) == seen


async def test_the_engine_is_told_how_long_its_steps_may_take(bed: Bed) -> None:
    for limit in (StepLimit(0.05), StepLimit(0.0, {1: 0.02}), StepLimit()):
        bed.controller.send(HERE, StepTimeSet(limit))
        await until(lambda asked=limit: bed.engine.step_limit == asked)


class Stepping:
    """Each step takes a millisecond, and the tenth as long as the test wants."""

    def __init__(self, bed: Bed, monkeypatch: pytest.MonkeyPatch, tenth_s: float = 0.001) -> None:
        self.now_s, self.tenth_s, self.num_steps = 10_000.0, tenth_s, 0
        clock = dict.fromkeys(("monotonic", "perf_counter", "time"), lambda: self.now_s)
        stands_in = SimpleNamespace(**clock, sleep=lambda _seconds: None)
        monkeypatch.setattr(engine_thread, "time", stands_in)
        bed.engine.on_step = self._step

    def _step(self) -> None:
        self.num_steps += 1
        self.now_s += self.tenth_s if self.num_steps == 10 else 0.001


@pytest.mark.parametrize("every", [5, 20])
async def test_a_busy_instance_pushes_no_more_often_than_asked(
    network: FakeNetwork, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    bed = Bed(network, status_interval_s=0.005)
    Stepping(bed, monkeypatch)
    await bed.start()
    for _ in range(3):
        status = await bed.status()
    assert (status.num_steps, status.snapshot.num_free_blocks) == (0, 64), "idle, and alive"
    if every == 20:
        bed.controller.send(HERE, StatusPushSet(0.02))
        await bed.pull()
    bed.add("r", max_tokens=100)
    last = await bed.status(lambda s: s.num_steps == 100)
    assert last.snapshot.num_running == 0, "the end of the work is told at once"
    assert (last.step_time_s, last.busy_s) == pytest.approx((0.001, 0.1))
    busy = [s.num_steps for s in bed.controller.received(StatusPushed) if s.snapshot.num_running]
    assert len(busy) in (100 // every - 1, 100 // every)
    assert {b - a for a, b in pairwise(busy)} == {every}
    await bed.end()


@pytest.mark.parametrize("answer", ["welcome", "fenced", "none"])
async def test_after_a_long_turn_it_makes_no_step_before_it_knows_whether_it_is_fenced(
    network: FakeNetwork, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """The process was stopped for a while in its tenth step. Without a controller it goes on, and
    if it was fenced it drops its requests before the next step."""
    monkeypatch.setattr(engine_thread, "ANSWER_S", 0.01 if answer == "none" else 1000.0)
    monkeypatch.setattr("controller.runtime.controller_link.HELLO_INTERVAL_S", 1000.0)
    bed = Bed(network, status_interval_s=0.005)
    stepping = Stepping(bed, monkeypatch, engine_thread.LONG_TURN_S)
    bed.run()
    nonce = (await bed.controller.receive(Hello, lambda h: h.phase == "active")).nonce
    bed.controller.send(HERE, Welcome(nonce, 1))
    await bed.pull()
    bed.add("r", max_tokens=100)
    asked = await bed.controller.receive(Hello, lambda h: h.asks)
    assert asked.incarnation == 1
    if answer != "none":
        assert stepping.num_steps == 10
        fenced = answer == "fenced"
        bed.controller.send(HERE, Welcome(nonce, 2 if fenced else 1, fenced=fenced))
    if answer == "fenced":
        last = await bed.status(lambda s: s.snapshot.incarnation == 2)
        assert (last.snapshot.num_running, last.num_steps, stepping.num_steps) == (0, 10, 10)
    else:
        assert await bed.tokens("r") == tokens_of("r", 100)
    await bed.end()


async def test_a_notice_on_the_machine_is_told_from_the_first_hello_on_until_it_is_gone(
    network: FakeNetwork,
) -> None:
    bed = Bed(network)
    bed.notice.within_s = 30.0
    await bed.start()
    first = bed.controller.received(Hello)[0]
    assert first.machine_leaves_in_s == pytest.approx(30.0, abs=PATIENCE_S)
    assert first.machine_leaves_why == "a file"
    bed.notice.within_s = None
    await bed.controller.receive(Hello, lambda h: h.machine_leaves_in_s is None)
    await bed.end()
