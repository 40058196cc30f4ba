"""A frontend's router: controller and instances are played by the test, on virtual time."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from controller.core.admission.asking import (
    AT_LEAST_EVERY_S,
    CONTROLLER_SILENCE_S,
    GONE_WAITS_S,
    Answered,
)
from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import (
    Dispatch,
    DispatchCancelled,
    DispatchRequested,
    KeysTold,
    KeyUsed,
    Reject,
    RejectCode,
)
from controller.core.settings import KeyLimits
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
    AddRequest,
    DispatchAsked,
    Dispatched,
    DispatchUnused,
    DispatchWithdrawn,
    KeysCounted,
    Refused,
    RequestRefused,
)
from tests.unit.runtime.fakes import FakeNetwork, directory, idle_snapshot, settle, virtual_time
from tests.unit.runtime.router_bed import BOTH, HERE, Bed

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
    bed.say(InstanceLost("i-0", 1))
    await bed.know(directory(idle_snapshot("i-1")))
    assert [request_id for request_id, _ in bed.told.failed] == ["a", "c"], "once"
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


# -- tokens -------------------------------------------------------------------------------


# -- membership ---------------------------------------------------------------------------


async def test_it_belongs_to_the_cluster(network: FakeNetwork) -> None:
    bed = Bed(network)
    nonce = (await bed.controller.receive(Hello)).nonce
    bed.say(Welcome(nonce, 3))
    await bed.controller.receive(Hello, lambda h: h.incarnation == 3)
    bed.say(DrainFrontend(2.5))
    bed.say(FrontendLimits(3, None, 4.0))
    bed.say(StatusPull())  # not for a frontend: logged, and nothing else happens
    await settle()
    assert (bed.told.drains, bed.told.limits) == ([2.5], [FrontendLimits(3, None, 4.0)])
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


# -- limits of API keys -------------------------------------------------------------------


def submit_with_key(bed: Bed, request_id: str) -> asyncio.Task[None]:
    request = DispatchRequested(request_id, "f-0", 10, 0, 5.0, api_key="k")
    return asyncio.create_task(bed.router.submit(request, (b"x",), request_id))


async def asked_with_key(bed: Bed, request_id: str) -> DispatchRequested:
    found = await bed.controller.receive(DispatchAsked, lambda a: a.asked.request_id == request_id)
    return found.asked


async def test_a_frontend_says_what_a_key_uses_and_with_each_request(bed: Bed) -> None:
    first, second = submit_with_key(bed, "r"), submit_with_key(bed, "s")
    counted = [await asked_with_key(bed, name) for name in ("r", "s")]
    assert [(a.num_live_of_key, a.num_tokens_of_key) for a in counted] == [(1, 0), (2, 10)]
    bed.say(Dispatched(Dispatch("r", "f-0", "i-0", 1, 1)))
    bed.say(Refused(Reject("s", "f-0", RejectCode.LIVE_LIMIT, 9)))
    await first
    with pytest.raises(NotDispatchedError) as caught:
        await second
    assert (caught.value.code, caught.value.retry_after_s) == (RejectCode.LIVE_LIMIT, 9)
    await bed.instances["i-0"].receive(AddRequest)
    bed.accept(0, [7, 8])
    told = await bed.controller.receive(KeysCounted, lambda m: m.told.keys[0].num_live == 1)
    assert told.told == KeysTold("f-0", (KeyUsed("k", 1, 12, 0, 0, 1, 2),)), (
        "a refused prompt is no use"
    )
    bed.accept(2, [9], last=True)
    told = await bed.controller.receive(KeysCounted, lambda m: m.told.keys[0].num_live == 0)
    assert told.told.keys == (KeyUsed("k", 0, 13, 1, 3, 0, 0),)
    bed.router.keys.use.check()


async def test_without_the_controller_a_frontend_goes_by_its_share(bed: Bed) -> None:
    bed.say(FrontendLimits(key_limits=KeyLimits(live_requests=5)))
    await bed.know(msgspec.structs.replace(BOTH, num_frontends=2))
    await asyncio.sleep(CONTROLLER_SILENCE_S + 0.1)
    alone = [submit_with_key(bed, f"r{number}") for number in range(4)]
    done = await asyncio.gather(*alone, return_exceptions=True)
    codes = [each.code for each in done if isinstance(each, NotDispatchedError)]
    assert (done[:2], codes) == ([None, None], [RejectCode.LIVE_LIMIT] * 2)
    bed.router.abort(["r0"], RequestState.ABORTED, "the client left")
    await submit_with_key(bed, "r4")
    await bed.submit("one without a key")


# -- requests that wait for room ----------------------------------------------------------


HOLDING: Directory = replace(
    directory(
        idle_snapshot("i-0", free=5, num_running=2), idle_snapshot("i-1", free=4, num_running=2)
    ),
    controller="one",
    room_to_grow_tokens=48,
)
"""Each instance has room for one more request of 160 tokens."""


def arrivals(holding: Bed) -> list[tuple[str, str]]:
    peers = holding.instances.items()
    return sorted((add.request_id, i) for i, peer in peers for add in peer.received(AddRequest))


@pytest.fixture
async def holding(network: FakeNetwork) -> Bed:
    holding = Bed(network)
    await holding.know(HOLDING)
    return holding


async def test_what_a_dead_controller_held_goes_in_order(holding: Bed) -> None:
    """A block each, as far as it fits, and then one after the other."""
    tasks = [holding.submit(f"r{n}") for n in range(6)]
    await settle()
    holding.network.lose("mem://controller")
    await asyncio.sleep(0.9 * CONTROLLER_SILENCE_S)
    assert arrivals(holding) == []
    await asyncio.sleep(0.3 * CONTROLLER_SILENCE_S)
    assert arrivals(holding) == [("r0", "i-0"), ("r1", "i-0"), ("r2", "i-1")]
    for num in (4, 5, 6):
        await asyncio.sleep(1.05 * AT_LEAST_EVERY_S)
        assert [r for r, _ in arrivals(holding)] == [f"r{n}" for n in range(num)]
    await asyncio.gather(*tasks)
