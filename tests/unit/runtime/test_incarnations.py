"""An incarnation is given only once, even if controllers die too."""

import pytest

from controller.core.fleet.incarnations import LastIncarnation
from controller.runtime.controller.roster import Roster
from controller.runtime.messages.members import Directory, Welcome
from tests.unit.runtime.controller_bed import Bed
from tests.unit.runtime.fakes import FakeNetwork, hello, virtual_time


@pytest.mark.parametrize(
    ("last", "named", "given", "fenced"),
    [
        (LastIncarnation(1, alive=True), 0, 2, False),  # both died at once
        (LastIncarnation(1, alive=False), 0, 2, False),  # the instance died first
        (LastIncarnation(2, alive=True), 2, 2, False),  # it runs on
        (LastIncarnation(2, alive=False), 2, 3, True),  # it was taken for dead
        (LastIncarnation(2, alive=True), 1, 3, True),  # another process took its place
        (LastIncarnation(2, alive=True), 5, 5, False),  # the disk was full
    ],
)
def test_a_new_controller_goes_on_from_the_last_one_given(
    last: LastIncarnation, named: int, given: int, fenced: bool
) -> None:
    members = Roster(before={"i-0": last})
    members.expect("instance", "i-0")
    change = members.hello(hello(incarnation=named), 0.0)
    assert change is not None
    assert change.welcome == Welcome("a", given, fenced=fenced)
    assert change.member.num_restarts == 0


@virtual_time
async def test_one_that_died_before_its_controller_comes_back_as_another(
    network: FakeNetwork,
) -> None:
    """A frontend that has seen incarnation 1 die would take tokens of another incarnation 1 for
    those of the dead one, after a move there, and its client would wait for ever."""
    bed = Bed(network)
    await bed.serve()
    network.lose("mem://i-0")
    bed.restart_controller()
    bed.peers["i-0"] = network.peer("mem://i-0")
    await bed.joins("f-0", incarnation=1)
    await bed.joins("i-0", nonce="b")
    welcome = await bed.peers["i-0"].receive(Welcome)
    assert (welcome.incarnation, welcome.fenced) == (2, False)
    told = await bed.f0.receive(Directory, lambda d: d.instances)
    assert [(e.instance_id, e.incarnation) for e in told.instances] == [("i-0", 2)]


@virtual_time
async def test_one_that_was_fenced_is_fenced_by_the_next_controller(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    controller = bed.controller
    controller.member_events.fence(controller.roster.members["i-0"], "silent")
    bed.restart_controller()
    await bed.joins("i-0", incarnation=1)
    welcome = await bed.peers["i-0"].receive(Welcome)
    assert (welcome.incarnation, welcome.fenced) == (2, True)
