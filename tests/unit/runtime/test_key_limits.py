"""Limits of API keys between a frontend and the controller, and at a frontend alone."""

import asyncio

import msgspec
import pytest

from controller.core.admission.asking import CONTROLLER_SILENCE_S
from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import (
    Dispatch,
    DispatchRequested,
    KeysTold,
    KeyUsed,
    Reject,
    RejectCode,
)
from controller.core.settings import KeyLimits
from controller.runtime.frontend.dispatcher import NotDispatchedError
from controller.runtime.messages.members import FrontendLimits
from controller.runtime.messages.requests import (
    AddRequest,
    DispatchAsked,
    Dispatched,
    KeysCounted,
    Refused,
)
from tests.unit.runtime.fakes import FakeNetwork, settle, virtual_time
from tests.unit.runtime.router_bed import BOTH, Bed

pytestmark = virtual_time


@pytest.fixture
async def bed(network: FakeNetwork) -> Bed:
    found = Bed(network)
    await found.know()
    return found


def submit(bed: Bed, request_id: str) -> asyncio.Task[None]:
    request = DispatchRequested(request_id, "f-0", 10, 0, 5.0, api_key="k")
    return asyncio.create_task(bed.router.submit(request, (b"x",), request_id))


async def asked(bed: Bed, request_id: str) -> DispatchRequested:
    found = await bed.controller.receive(DispatchAsked, lambda a: a.asked.request_id == request_id)
    return found.asked


async def test_a_frontend_says_what_a_key_uses_and_with_each_request(bed: Bed) -> None:
    first, second = submit(bed, "r"), submit(bed, "s")
    counted = [await asked(bed, name) for name in ("r", "s")]
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
    alone = [submit(bed, f"r{number}") for number in range(4)]
    done = await asyncio.gather(*alone, return_exceptions=True)
    codes = [each.code for each in done if isinstance(each, NotDispatchedError)]
    assert (done[:2], codes) == ([None, None], [RejectCode.LIVE_LIMIT] * 2)
    bed.router.abort(["r0"], RequestState.ABORTED, "the client left")
    await submit(bed, "r4")
    await settle()
