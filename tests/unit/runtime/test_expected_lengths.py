"""What a frontend expects of its requests' outputs."""

from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import DispatchRequested
from controller.runtime.frontend.expected_lengths import ExpectedLengths
from controller.runtime.messages.operations import FrontendLimits
from tests.unit.runtime.fakes import FakeNetwork, settle, virtual_time
from tests.unit.runtime.router_bed import Bed


async def serve(
    bed: Bed,
    name: str,
    num_tokens: int,
    session: str,
    outcome: RequestState = RequestState.FINISHED,
) -> int:
    """What was expected of a request that then put out so many tokens."""
    expected = bed.router.expected_lengths.expect(name, session, None)
    bed.book.arrived(DispatchRequested(name, "f-0", 10, 0, 0.0, session), name, None)
    bed.book.emitted(name, num_tokens, None)
    bed.book.ended(name, outcome, "stop")
    return expected


@virtual_time
async def test_a_session_s_requests_are_expected_to_go_on_alike(network: FakeNetwork) -> None:
    bed = Bed(network)
    assert [await serve(bed, f"off-{n}", 100, "s") for n in range(5)] == [0] * 5
    bed.say(FrontendLimits(predict_lengths=True))
    await settle()
    assert [await serve(bed, f"s-{n}", 100, "s") for n in range(5)] == [0, 0, 0, 0, 100]
    assert [await serve(bed, f"t-{n}", 7, "t") for n in range(5)] == [100, 100, 100, 100, 7]
    assert bed.router.expected_lengths.expect("limited", "s", 40) == 40
    await bed.router.close()


@virtual_time
async def test_only_requests_that_finished_teach(network: FakeNetwork) -> None:
    bed = Bed(network)
    bed.router.expected_lengths.switch(True)
    for number in range(5):
        await serve(bed, f"a-{number}", 3, "s", RequestState.ABORTED)
    assert bed.router.expected_lengths.expect("r", "s", None) == 0
    await bed.router.close()


def test_switched_off_it_forgets() -> None:
    expected = ExpectedLengths()
    expected.switch(True)
    expected.expect("r", "s", None)
    expected.switch(True)
    assert "r" in expected._sessions
    expected.switch(False)
    assert not expected._sessions
    assert expected.expect("r", "s", None) == 0
