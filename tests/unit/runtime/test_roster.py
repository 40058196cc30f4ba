"""Which members belong to the cluster, and which incarnation each one is."""

import pytest
from msgspec.structs import replace

from controller.runtime.controller.roster import Roster, RosterChange
from controller.runtime.messages.members import AdaptersSet, Directory, Welcome
from tests.unit.runtime.controller_bed import Bed
from tests.unit.runtime.fakes import FakeNetwork, hello, until, virtual_time


@pytest.fixture
def members() -> Roster:
    made = Roster(before={})
    made.expect("instance", "i-0")
    made.expect("frontend", "f-0")
    return made


def met(members: Roster, now_s: float = 1.0, **said: object) -> RosterChange:
    change = members.hello(hello(**said), now_s)
    assert change is not None
    return change


def test_a_new_process_is_welcomed_until_it_has_heard_it_and_begins_to_serve_once(
    members: Roster,
) -> None:
    change = met(members, 5.0, phase="starting")
    assert (change.welcome, change.died, change.began_serving) == (Welcome("a", 1), None, False)
    assert (change.member.alive, change.member.serving, change.member.heard_s) == (True, False, 5.0)
    assert met(members, phase="starting").welcome == Welcome("a", 1)
    change = met(members, incarnation=1)
    assert (change.welcome, change.began_serving) == (None, True)
    assert not met(members, incarnation=1).began_serving
    assert met(members, incarnation=1, asks=True).welcome == Welcome("a", 1), "it asks"
    members.expect("instance", "i-0")
    assert members.members["i-0"].incarnation == 1, "expected again, it is not forgotten"
    assert [m.member_id for m in members.frontends()] == ["f-0"]


@pytest.mark.parametrize("is_noticed", [False, True])
def test_a_new_process_replaces_the_one_before(members: Roster, is_noticed: bool) -> None:
    met(members, nonce="a")
    if is_noticed:
        members.lost("mem://i-0")
    change = met(members, nonce="b")
    assert (change.welcome, change.began_serving) == (Welcome("b", 2), True)
    assert change.died == (None if is_noticed else 1), "a death is not told twice"
    assert change.member.num_restarts == 1
    change = met(members, nonce="a", incarnation=1)
    assert change.welcome == Welcome("a", 3, fenced=True), "the displaced one speaks"
    assert change.died == 2


def test_a_process_that_was_lost_and_comes_back_is_fenced(members: Roster) -> None:
    met(members, address="mem://old")
    assert members.lost("mem://other") is None
    lost = members.lost("mem://old")
    assert lost is members.members["i-0"]
    assert (lost.alive, lost.num_live_reqs) == (False, 0)
    assert members.lost("mem://old") is None, "once"
    change = met(members, incarnation=1)
    assert (change.welcome, change.began_serving) == (Welcome("a", 2, fenced=True), True)
    assert change.member.num_restarts == 0


def test_unknown_members_are_refused(members: Roster) -> None:
    assert members.hello(hello("i-9"), 0.0) is None
    members.expect("frontend", "i-5")
    assert members.hello(hello("i-5"), 0.0) is None, "an id of another kind"
    assert "i-9" not in members.members


# -- fenced -------------------------------------------------------------------------------


def test_a_fenced_process_that_comes_back_is_another_incarnation_and_drops_what_it_ran(
    members: Roster,
) -> None:
    met(members)
    member = members.fence("i-0", "silent")
    assert (member.alive, member.fenced, member.serving) == (False, True, False)
    change = met(members, incarnation=1)
    assert (change.welcome, change.died) == (Welcome("a", 2, fenced=True), None)
    assert (member.alive, change.began_serving) == (True, True)
    met(members, incarnation=2)
    assert (member.fenced, member.detail) == (True, "silent"), "its engine may hang as before"
    members.reported(member)
    assert (member.fenced, member.detail) == (False, "")


# -- nodes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "lost_with"),
    [("aab", [[], ["i-0", "i-1"], []]), ("aa", [[], []])],
    ids=["with its last instance, unless it was the only one", "without other nodes none is"],
)
def test_a_node_is_lost(nodes: str, lost_with: list[list[str]]) -> None:
    members = Roster()
    for number, node in enumerate(nodes):
        members.expect("instance", f"i-{number}")
        assert members.hello(replace(hello(f"i-{number}"), node=node), 0.0) is not None
    lost = [members.lost(hello("i-0").address)]
    found = [[each.member_id for each in members.lost_with(lost[0])]]
    for number in range(1, len(nodes)):
        fenced = members.fence(f"i-{number}", "silent")
        found.append([each.member_id for each in members.lost_with(fenced)])
    assert found == lost_with


# -- another controller -------------------------------------------------------------------


@pytest.mark.parametrize("is_fenced", [False, True])
@virtual_time
async def test_what_happened_before_its_controller_died_is_known_to_the_next_one(
    network: FakeNetwork, is_fenced: bool
) -> None:
    """A frontend that has seen incarnation 1 die would take tokens of another incarnation 1 for
    those of the dead one, after a move there, and its client would wait for ever."""
    bed = await Bed.serving(network)
    if is_fenced:
        controller = bed.controller
        controller.member_events.fence(controller.roster.members["i-0"], "silent")
    else:
        await bed.dies("i-0")
    bed.restart_controller()
    await bed.joins("f-0", incarnation=1)
    await bed.joins("i-0", nonce="a" if is_fenced else "b", incarnation=int(is_fenced))
    welcome = await bed.peers["i-0"].receive(Welcome)
    assert (welcome.incarnation, welcome.fenced) == (2, is_fenced)
    told = await bed.f0.receive(Directory, lambda d: d.instances)
    assert [(e.instance_id, e.incarnation) for e in told.instances] == [("i-0", 2)]


# -- LoRA adapters ------------------------------------------------------------------------


@virtual_time
async def test_members_are_told_of_adapters_and_which_ones_an_instance_has(
    network: FakeNetwork,
) -> None:
    """Also by the next controller, so that no frontend ceases to offer one."""
    bed = await Bed.serving(network)
    spec = bed.keeper.spec.with_adapter("sql", "/models/sql", "ab" * 32, 8)
    bed.keeper.change(spec)
    for member_id in bed.peers:
        told = await bed.peers[member_id].receive(AdaptersSet)
        assert told == AdaptersSet(spec.adapters, 2, frozenset())
    await bed.reports("i-1", adapters=(1,))
    offered = await bed.f0.receive(AdaptersSet)
    assert offered == AdaptersSet(spec.adapters, 2, frozenset({1}))
    await bed.reports("i-0", adapters=(1,))
    assert not bed.f0.received(AdaptersSet), "nothing new"
    await bed.comes_back("i-0")
    assert (await bed.peers["i-0"].receive(AdaptersSet)).adapters == spec.adapters

    bed.restart_controller()
    await bed.joins("f-0", incarnation=1)
    assert await bed.f0.receive(AdaptersSet) == AdaptersSet(spec.adapters, 2, frozenset())
    bed.keeper.change(bed.keeper.spec.without_adapter("sql"))
    assert await bed.f0.receive(AdaptersSet) == AdaptersSet((), 2, frozenset())


@virtual_time
async def test_the_cluster_is_ready_when_instances_have_its_adapters_or_cannot(
    network: FakeNetwork,
) -> None:
    bed = Bed(network, num_instances=1)
    bed.keeper.change(bed.keeper.spec.with_adapter("sql", "/models/sql", "ab" * 32, 8))
    await bed.serve()
    assert not bed.controller.was_ready
    await bed.reports("i-0", adapters=(1,))
    await until(lambda: bed.controller.was_ready)
