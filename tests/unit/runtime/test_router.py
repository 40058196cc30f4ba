"""A frontend's router: controller and instances are played by the test, on virtual time."""

import asyncio

import pytest
from msgspec.structs import replace

from controller.core.admission.asking import CONTROLLER_SILENCE_S, GONE_WAITS_S, Answered
from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import (
    Dispatch,
    DispatchCancelled,
    DispatchRequested,
)
from controller.runtime.frontend.dispatcher import NotDispatchedError
from controller.runtime.messages.members import (
    Directory,
    DrainFrontend,
    FrontendLimits,
    Hello,
    InstanceLost,
    StatusPull,
    Welcome,
)
from controller.runtime.messages.requests import (
    AbortRequests,
    AddRequest,
    DispatchAsked,
    Dispatched,
    DispatchUnused,
    DispatchWithdrawn,
    OutputItem,
    OutputsEmitted,
    RequestRefused,
)
from tests.unit.runtime.fake_engine import FakeOutput
from tests.unit.runtime.fakes import (
    FakeNetwork,
    directory,
    idle_snapshot,
    settle,
    virtual_time,
)
from tests.unit.runtime.router_bed import BOTH, HERE, I0, Bed

pytestmark = virtual_time


@pytest.fixture
async def bed(network: FakeNetwork) -> Bed:
    bed = Bed(network)
    await bed.know()
    return bed


# -- dispatch -----------------------------------------------------------------------------


async def test_a_request_goes_where_the_controller_says(bed: Bed) -> None:
    submitted = bed.submit("r", [b"one", b"two"])
    ask = await bed.controller.receive(DispatchAsked)
    assert ask == DispatchAsked(DispatchRequested("r", "f-0", 10, 0, 5.0))
    assert bed.router.num_live_reqs == 1
    bed.say(Dispatched(Dispatch("r", "f-0", "i-1", 1, 7)))
    await submitted
    add, payload = await bed.instances["i-1"].receive_with_payload(AddRequest)
    assert add == AddRequest("r", HERE, 1, 7, arrival_time_s=5.0)
    assert payload == [b"one", b"two"]
    assert bed.router.live_request_ids == ["r"]
    await bed.router.close()


@pytest.mark.parametrize("how", ["the client leaves", "it is aborted", "it is asked for again"])
async def test_a_request_that_ends_while_it_is_asked_for_is_withdrawn(bed: Bed, how: str) -> None:
    submitted = bed.submit()
    await bed.controller.receive(DispatchAsked)
    if how == "it is asked for again":
        bed.say(Dispatched(Dispatch("r", "f-0", "i-7", 1, 1)))
        await settle()
        bed.controller.inbox.clear()
    if how == "the client leaves":
        submitted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitted
    else:
        bed.router.abort(["r"], RequestState.ABORTED, "the client left")
        await submitted
    await settle()
    if how != "it is asked for again":
        withdrawn = DispatchWithdrawn(DispatchCancelled("r", "f-0"))
        assert bed.controller.received(DispatchWithdrawn) == [withdrawn]
    assert bed.router.num_live_reqs == 0
    assert bed.controller.received(DispatchAsked) == []
    assert bed.instances["i-0"].inbox == []


async def test_an_abort_just_after_the_answer_sends_nothing_and_accounts_for_it(bed: Bed) -> None:
    submitted = bed.submit()
    await bed.controller.receive(DispatchAsked)
    answer = Dispatch("r", "f-0", "i-0", 1, 4)
    bed.router.dispatcher.take(Answered(answer))  # before the submit can go on
    bed.router.abort(["r"], RequestState.ABORTED, "the client left")
    await submitted
    await settle()
    assert [m for m, _ in bed.instances["i-0"].inbox] == [DispatchUnused(1, 4)]
    assert bed.router.num_live_reqs == 0


async def test_an_answer_that_nobody_waits_for_any_more_is_accounted(bed: Bed) -> None:
    submitted = bed.submit()
    await bed.controller.receive(DispatchAsked)
    bed.say(Dispatched(Dispatch("r", "f-0", "i-1", 1, 9)))  # under way as the client leaves
    submitted.cancel()
    assert await bed.instances["i-1"].receive(DispatchUnused) == DispatchUnused(1, 9)
    bed.say(Dispatched(Dispatch("gone", "f-0", "i-1", 8, 1)))  # of an incarnation that is no more
    await settle()
    assert bed.instances["i-1"].inbox == []


@pytest.mark.parametrize("num_gone", [2, len(GONE_WAITS_S) + 1])
async def test_a_dispatch_to_one_that_is_gone_is_asked_for_again_and_not_without_end(
    bed: Bed, num_gone: int
) -> None:
    submitted = bed.submit()
    for number in range(num_gone):
        await bed.controller.receive(DispatchAsked)
        bed.controller.inbox.clear()
        bed.say(Dispatched(Dispatch("r", "f-0", ("i-0", "i-7")[number % 2], 2, 1)))
    if num_gone == 2:
        await bed.controller.receive(DispatchAsked)
        bed.say(Dispatched(Dispatch("r", "f-0", "i-1", 1, 2)))
        await submitted
        assert (await bed.instances["i-1"].receive(AddRequest)).dispatch_seq == 2
    else:
        with pytest.raises(NotDispatchedError, match="unavailable"):
            await submitted


async def test_a_dispatch_to_one_that_is_not_listed_is_declined_once_it_is(
    network: FakeNetwork,
) -> None:
    """Its connection broke here, and it lives."""
    bed = Bed(network)
    await bed.know(directory(idle_snapshot("i-1")))
    submitted = bed.submit()
    await bed.controller.receive(DispatchAsked)
    bed.say(Dispatched(Dispatch("r", "f-0", "i-0", 1, 7)))
    await settle()
    assert bed.instances["i-0"].inbox == []
    await bed.know()
    await bed.know()
    assert bed.instances["i-0"].received(DispatchUnused) == [DispatchUnused(1, 7)]
    bed.say(Dispatched(Dispatch("r", "f-0", "i-0", 1, 8)))
    await submitted
    assert (await bed.instances["i-0"].receive(AddRequest)).dispatch_seq == 8


# -- without the controller ---------------------------------------------------------------


async def test_a_silent_controller_is_bypassed_by_own_requests(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.know(directory(idle_snapshot("i-0", free=40), idle_snapshot("i-1", free=60)))
    bed.network.lose("mem://controller")
    began_s = asyncio.get_running_loop().time()
    await bed.submit("r0")
    waited_s = asyncio.get_running_loop().time() - began_s
    assert CONTROLLER_SILENCE_S < waited_s <= 2 * CONTROLLER_SILENCE_S
    await asyncio.gather(*[bed.submit(f"r{n}") for n in range(1, 4)])
    await settle()
    arrived = {i: peer.received(AddRequest) for i, peer in bed.instances.items()}
    assert [len(adds) for adds in arrived.values()] == [2, 2]
    assert {a.dispatch_seq for adds in arrived.values() for a in adds} == {0}
    assert arrived["i-1"][0].request_id == "r0", "more free blocks"


@pytest.mark.parametrize("comes_back", [False, True])
async def test_nobody_to_choose_from_is_unavailable_after_a_while(
    network: FakeNetwork, comes_back: bool
) -> None:
    """Unless the next controller has an instance for the request."""
    bed, loop = Bed(network), asyncio.get_running_loop()
    draining = directory(idle_snapshot("i-0", draining=True))
    await bed.know(replace(draining, takes_requests=False, hold_timeout_s=20.0))
    submitted, began_s = bed.submit(), loop.time()
    if comes_back:
        await asyncio.sleep(10.0)
        await bed.know(replace(BOTH, controller="the next one"))
        bed.say(Dispatched(Dispatch("r", "f-0", "i-1", 1, 2)))
        await submitted
        assert (await bed.instances["i-1"].receive(AddRequest)).dispatch_seq == 2
    else:
        with pytest.raises(NotDispatchedError, match="unavailable"):
            await submitted
        assert 20.0 <= loop.time() - began_s <= 22.0


# -- losses -------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["socket", "socket alone", "controller", "directory"])
async def test_a_lost_instance_fails_exactly_its_requests_once(bed: Bed, by: str) -> None:
    for instance_id, request_id in (("i-0", "a"), ("i-1", "b"), ("i-0", "c")):
        await bed.runs_on(instance_id, request_id)
    if by == "socket alone":  # a controller that was just restarted does not know all of them yet
        await bed.know(Directory(()))
    bed.say(InstanceLost("i-0", 2))  # not the one that runs them
    await settle()
    assert bed.told.failed == []
    if by == "directory":
        await bed.know(directory(idle_snapshot("i-0", incarnation=2), idle_snapshot("i-1")))
    elif by == "controller":
        bed.say(InstanceLost("i-0", 1))
    else:
        bed.network.lose("mem://i-0")
    await settle()
    assert [request_id for request_id, _ in bed.told.failed] == ["a", "c"]
    bed.say(InstanceLost("i-0", 1))
    await bed.know(directory(idle_snapshot("i-1")))
    assert len(bed.told.failed) == 2, "told already"
    assert "i-0 died" in bed.told.failed[0][1]
    assert bed.router.live_request_ids == ["b"]
    assert bed.accept(0, [1], r="a") == [], "late tokens reach nobody"
    assert by != "controller" or bed.mailbox.forgotten == ["mem://i-0"]


async def test_what_an_instance_refuses_is_told_once(bed: Bed) -> None:
    await bed.runs_on("i-0", "a")
    await bed.runs_on("i-0", "b")
    for _ in range(2):
        bed.say(RequestRefused("a", "restarted", retryable=True), bed.instances["i-0"])
        bed.say(RequestRefused("b", "too long"), bed.instances["i-0"])
    await settle()
    assert bed.told.failed == [("a", "restarted")]
    assert bed.told.refused == [("b", "too long")]
    assert bed.router.num_live_reqs == 0


async def test_aborts_go_to_the_instances_that_run_the_requests(bed: Bed) -> None:
    for instance_id, request_id in (("i-0", "a"), ("i-1", "b"), ("i-0", "c")):
        await bed.runs_on(instance_id, request_id)
    bed.router.abort(["a", "b", "c", "unknown"], RequestState.ABORTED, "the client left")
    assert (await bed.instances["i-0"].receive(AbortRequests)).request_ids == ("a", "c")
    assert (await bed.instances["i-1"].receive(AbortRequests)).request_ids == ("b",)
    assert bed.router.num_live_reqs == 0
    bed.router.abort(["a"], RequestState.ABORTED, "the client left")
    await settle()
    assert bed.instances["i-0"].inbox == []


# -- tokens -------------------------------------------------------------------------------


async def test_one_message_with_several_requests(bed: Bed) -> None:
    await bed.runs_on("i-0", "a")
    await bed.runs_on("i-0", "b")
    items = tuple(
        OutputItem(r, 0, 0, 0, 1, "stop" if r == "a" else None) for r in ("b", "gone", "a")
    )
    outputs = [FakeOutput(r, [1], r == "a") for r in ("a", "b", "gone", "aborted there")]
    due = bed.router.accept(OutputsEmitted(I0, items), outputs)
    assert [output.request_id for output, _ in due] == ["b", "a"]
    assert bed.router.live_request_ids == ["b"]


# -- membership ---------------------------------------------------------------------------


async def test_it_belongs_to_the_cluster(network: FakeNetwork) -> None:
    bed = Bed(network)
    nonce = (await bed.controller.receive(Hello)).nonce
    bed.say(Welcome(nonce, 3))
    await bed.controller.receive(Hello, lambda h: h.incarnation == 3)
    bed.say(DrainFrontend(2.5))
    bed.say(FrontendLimits(3, None, 4.0))
    emitted = OutputsEmitted(I0, ())
    bed.say(emitted, bed.instances["i-0"])
    bed.say(StatusPull())  # not for a frontend: logged, and nothing else happens
    await settle()
    assert bed.told.drains == [2.5]
    assert bed.told.limits == [FrontendLimits(3, None, 4.0)]
    assert bed.told.outputs == [emitted]
    await bed.router.close()
    assert HERE not in network.mailboxes


async def test_it_is_ready_while_an_instance_takes_requests(network: FakeNetwork) -> None:
    bed = Bed(network)
    assert "no instance" in bed.router.why_not_ready()
    one_drains = directory(idle_snapshot("i-0", draining=True), idle_snapshot("i-1"))
    for known in (BOTH, one_drains):
        await bed.know(known)
        assert bed.router.why_not_ready() == ""
    # The status of a stalled instance does not say that it is stalled.
    all_drain = directory(idle_snapshot("i-0", draining=True))
    for known in (all_drain, replace(BOTH, takes_requests=False)):
        await bed.know(known)
        assert "no instance takes new requests" in bed.router.why_not_ready()
    await asyncio.sleep(CONTROLLER_SILENCE_S + 0.1)
    assert bed.router.why_not_ready() == "", "decides alone, by what is known"
    await bed.know()
    for instance_id in ("i-0", "i-1"):
        bed.say(InstanceLost(instance_id, 1))
    await settle()
    assert "no instance takes new requests" in bed.router.why_not_ready()
