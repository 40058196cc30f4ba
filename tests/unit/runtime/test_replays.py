"""A frontend's requests go on elsewhere: controller and instances are played by the test."""

import asyncio

import pytest

from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import Dispatch, Reject, RejectCode
from controller.core.settings import ReplayConfig
from controller.runtime.messages.codec import encode_tokens
from controller.runtime.messages.members import InstanceLost
from controller.runtime.messages.move_messages import (
    FenceAnswered,
    FenceAsked,
    MoveAnnounced,
    RequestLost,
    RequestMoved,
)
from controller.runtime.messages.requests import (
    AbortAsked,
    AbortRequests,
    AddRequest,
    DispatchAsked,
    Dispatched,
    DispatchWithdrawn,
    OutputsUnread,
    RankChangeAsked,
    RankSet,
    Refused,
    RequestRefused,
    RequestsAsked,
)
from tests.unit.runtime.fake_engine import tokens_of
from tests.unit.runtime.fakes import FakeNetwork, settle, virtual_time
from tests.unit.runtime.router_bed import HERE, I0, I1, Bed, new_tokens

T = tokens_of("r", 20)


async def lose(bed: Bed, instance_id: str = "i-0", incarnation: int = 1) -> None:
    bed.say(InstanceLost(instance_id, incarnation))
    await settle()


async def dispatch(bed: Bed, instance_id: str, seq: int = 9) -> tuple[AddRequest, list[bytes]]:
    await bed.controller.receive(DispatchAsked)
    bed.controller.inbox.clear()
    bed.say(Dispatched(Dispatch("r", "f-0", instance_id, 1, seq)))
    return await bed.instances[instance_id].receive_with_payload(AddRequest)


pytestmark = virtual_time


@pytest.fixture
async def bed(network: FakeNetwork) -> Bed:
    """A request runs on i-0, with three tokens."""
    return await running(network, 3)


async def running(network: FakeNetwork, num_tokens: int) -> Bed:
    bed = Bed(network, max_replays=3)
    await bed.know()
    await bed.runs_on("i-0")
    if num_tokens:
        bed.accept(0, T[:num_tokens])
    bed.controller.inbox.clear()
    return bed


def why_failed(bed: Bed) -> str:
    ((request_id, why),) = bed.told.failed
    assert request_id == "r"
    assert bed.router.num_live_reqs == 0
    assert bed.router.routes.machine.replays.num_copied_tokens == 0
    return why


def history(bed: Bed) -> tuple[LoggedEvent, ...]:
    asked = RequestsAsked("q", None, (), "r", history=True, max_requests=1)
    ((record,), _) = bed.book.answer(asked)
    return record.history


async def test_a_lost_request_is_sent_elsewhere_with_its_outputs(bed: Bed) -> None:
    await lose(bed)
    asked = (await bed.controller.receive(DispatchAsked)).asked
    assert asked.replayed
    assert (asked.num_prompt_tokens, asked.arrival_time_s) == (13, 5.0)
    found = bed.book.find("r")
    assert (found.state, found.instance_id) == (RequestState.DISPATCHING, None)
    assert bed.router.num_live_reqs == 1, "though it is also asked for"
    bed.say(Dispatched(Dispatch("r", "f-0", "i-1", 1, 9)))
    add, payload = await bed.instances["i-1"].receive_with_payload(AddRequest)
    assert add == AddRequest("r", HERE, 1, 9, 5.0, attempt=1, num_output_tokens=3)
    assert payload == [b"x", encode_tokens(T[:3])]
    assert bed.accept(3, T[3:4]) == [], "of the old attempt"
    assert new_tokens(bed.accept(3, T[3:5], epoch=(1, 0), last=True, sender=I1)) == T[3:5]
    assert bed.told.failed == []
    assert bed.router.routes.machine.replays.num_copied_tokens == 0
    events = {event.kind: event for event in history(bed)}
    lost = events[EventKind.REQUEST_LOST]
    assert (lost.instance_id, lost.incarnation, lost.cause_id) == ("i-0", 1, "lost-i-0-1")
    assert lost.numbers["num_tokens"] == 13
    assert lost.numbers["silent_s"] is not None
    assert "i-0 died" in lost.reason
    replayed = events[EventKind.REPLAYED]
    assert replayed.cause_id == events[EventKind.DISPATCHED].cause_id == "lost-i-0-1"
    assert replayed.reason == "from i-0 to i-1"
    assert replayed.numbers["num_tokens"] == 13
    assert replayed.numbers["attempt"] == 1
    assert replayed.numbers["downtime_s"] is not None
    record = bed.book.find("r")
    assert (record.num_replays, record.num_output_tokens) == (1, 5)


async def test_late_tokens_of_the_dead_are_delivered_and_not_computed_again(bed: Bed) -> None:
    await lose(bed)
    assert new_tokens(bed.accept(3, T[3:6])) == T[3:6]
    add, payload = await dispatch(bed, "i-1")
    assert add.num_output_tokens == 6
    assert payload[-1] == encode_tokens(T[:6])


async def test_a_late_end_calls_the_replay_off(bed: Bed) -> None:
    await lose(bed)
    await bed.controller.receive(DispatchAsked)
    assert new_tokens(bed.accept(3, T[3:6], last=True)) == T[3:6]
    assert await bed.controller.receive(DispatchWithdrawn)
    assert bed.router.num_live_reqs == 0
    assert bed.told.failed == []


async def test_tokens_beyond_the_limit_are_not_kept(bed: Bed) -> None:
    bed.router.routes.machine.replays.config = ReplayConfig(max_tokens_kept=15)
    bed.accept(3, T[3:6])
    assert bed.router.routes.machine.replays.num_copied_tokens == 0
    assert bed.book.find("r").not_replayable == "not_kept", "beforehand"
    await lose(bed)
    assert "too many tokens were kept" in why_failed(bed)


async def test_an_abort_while_it_waits(bed: Bed) -> None:
    await lose(bed)
    await bed.controller.receive(DispatchAsked)
    bed.say(AbortAsked("q", "r", dry_run=False, cause_id="op", actor="me", reason=""))
    await bed.controller.receive(DispatchWithdrawn)
    await settle()
    assert bed.router.num_live_reqs == 0
    bed.say(Dispatched(Dispatch("r", "f-0", "i-1", 1, 9)))
    await settle()
    assert bed.instances["i-1"].received(AddRequest) == []
    assert bed.instances["i-0"].received(AbortRequests) == [], "nobody listens there"


async def test_a_rank_that_changes_while_it_waits(bed: Bed) -> None:
    await lose(bed)
    await bed.controller.receive(DispatchAsked)
    bed.say(RankChangeAsked("q", "r", 1, "op", "me", "", dry_run=False))
    asked = (await bed.controller.receive(DispatchAsked, lambda a: a.asked.rank == 1)).asked
    assert asked.replayed
    await asyncio.sleep(1.0)
    assert bed.instances["i-0"].received(RankSet) == []
    bed.say(Dispatched(Dispatch("r", "f-0", "i-1", 1, 9)))
    add = await bed.instances["i-1"].receive(AddRequest)
    assert add.rank == 1
    told = await bed.instances["i-1"].receive(RankSet)
    assert (told.rank, told.change) == (1, 1)


async def test_an_engine_that_cannot_go_on_with_it(bed: Bed) -> None:
    await lose(bed)
    await dispatch(bed, "i-1")
    bed.say(RequestRefused("r", "of the old attempt"), bed.instances["i-1"])
    bed.say(RequestRefused("r", "the engine decodes speculatively", attempt=1))
    await settle()
    assert "cannot be replayed: the engine decodes speculatively" in why_failed(bed)
    record = bed.book.find("r")
    assert record.not_replayable == "not_taken"


async def test_no_instance_for_long(bed: Bed) -> None:
    patience_s = 7.0
    bed.router.routes.machine.replays.config = ReplayConfig(patience_s=patience_s)
    began_s = asyncio.get_running_loop().time()
    await lose(bed)
    while not bed.told.failed:
        await bed.controller.receive(DispatchAsked)
        bed.controller.inbox.clear()
        bed.say(Refused(Reject("r", "f-0", RejectCode.UNAVAILABLE)))
        await settle()
        if not bed.told.failed:
            await asyncio.sleep(1.0)
    assert "no instance could take it in time" in why_failed(bed)
    waited_s = asyncio.get_running_loop().time() - began_s
    assert patience_s <= waited_s < patience_s + 3


async def test_a_silent_controller_is_bypassed_for_a_replay_too(bed: Bed) -> None:
    bed.network.lose("mem://controller")
    bed.network.lose("mem://i-0")
    await asyncio.sleep(3.0)
    (add,) = bed.instances["i-1"].received(AddRequest)
    assert (add.attempt, add.num_output_tokens, add.dispatch_seq) == (1, 3, 0)


async def test_one_that_had_moved_before_its_source_died_is_not_replayed(bed: Bed) -> None:
    """The source's announcement was lost with it."""
    await lose(bed)
    await bed.controller.receive(DispatchAsked)
    bed.say(RequestMoved("r", 1, owner=I1, began_index=3), bed.instances["i-1"])
    assert await bed.controller.receive(DispatchWithdrawn)
    await settle()
    record = bed.book.find("r")
    assert (record.num_replays, record.instance_id) == (0, "i-1")
    assert record.state is RequestState.RUNNING
    assert history(bed)[-1].reason == "i-1 has it after all"
    assert new_tokens(bed.accept(3, T[3:4], epoch=(0, 1), last=True, sender=I1)) == T[3:4]
    assert bed.instances["i-1"].received(AddRequest) == []


async def test_words_of_an_old_attempt_count_for_nothing_and_it_is_stopped(bed: Bed) -> None:
    await lose(bed)
    await dispatch(bed, "i-1")
    old = bed.instances["i-0"]
    bed.say(MoveAnnounced("r", 3, destination=I0), old)
    bed.say(RequestLost("r", 3, owner=I0), old)
    bed.say(RequestMoved("r", 1, owner=I0, began_index=3), old)
    assert (await old.receive(OutputsUnread)).items == (("r", 0, 1),)
    bed.say(FenceAsked("r", 2, owner=I0), old)
    assert await old.receive(FenceAnswered) == FenceAnswered("r", 2, fenced=True)
    assert (await old.receive(OutputsUnread)).items == (("r", 0, 2),)
    assert old.received(AbortRequests) == [], "which would end a new attempt there too"
    assert new_tokens(bed.accept(3, T[3:4], epoch=(1, 0), sender=I1)) == T[3:4]
    assert bed.told.failed == []


async def test_tokens_that_were_lost_on_their_way_are_computed_again(bed: Bed) -> None:
    assert bed.accept(5, T[5:6]) == [], "3 and 4 do not come"
    add, _ = await dispatch(bed, "i-1")
    assert add.num_output_tokens == 3
    assert await bed.instances["i-0"].receive(AbortRequests)
    assert new_tokens(bed.accept(3, T[3:7], epoch=(1, 0), last=True, sender=I1)) == T[3:7]
