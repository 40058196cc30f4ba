"""The present spec: it is saved before it counts, and never changed by two at once."""

import pytest

from controller.api.errors import LlumctlError
from controller.core.fleet.cluster_spec import ClusterSpec, Mark
from controller.core.load.closed import Closed
from controller.runtime.controller.operations.operated_cluster import (
    RevisionConflictError,
    SpecKeeper,
)
from controller.runtime.messages.members import Directory
from tests.unit.runtime.controller_bed import Bed, Disk
from tests.unit.runtime.fakes import FakeNetwork, virtual_time

FIRST = ClusterSpec.first(2)


def test_a_change_counts_once_it_is_saved() -> None:
    disk = Disk()
    keeper = SpecKeeper(FIRST, disk)
    after = FIRST.with_settings({"a.x": 1})
    keeper.change(after)
    assert (keeper.spec, keeper.spec.revision, disk.load()) == (after, 1, after)
    disk.is_full = True
    with pytest.raises(LlumctlError):
        keeper.change(after.with_instances_added(1))
    assert (keeper.spec, disk.load()) == (after, after)


def test_of_two_changes_of_the_same_one_is_made() -> None:
    keeper = SpecKeeper(FIRST)
    mine, yours = FIRST.with_settings({"a.x": 1}), FIRST.with_instances_added(1)
    keeper.check_revision(0)
    keeper.change(mine)
    with pytest.raises(RevisionConflictError) as raised:
        keeper.change(yours)
    assert (raised.value.expected, raised.value.found) == (0, 1)
    assert keeper.spec is mine
    for looked_at in (0, 2):
        with pytest.raises(RevisionConflictError, match="1 is the present one"):
            keeper.check_revision(looked_at)


@virtual_time
async def test_a_cordon_outlives_the_controller_and_frontends_alone_know_it(
    network: FakeNetwork,
) -> None:
    bed = await Bed.serving(network)
    bed.keeper.change(bed.keeper.spec.with_mark(Closed.CORDONED, "i-0", Mark("op-1", 1.0, "ana")))
    assert set(await bed.chosen()) == {"i-1"}
    bed.restart_controller()
    for each in ("f-0", "i-0", "i-1"):
        await bed.joins(each, incarnation=1)
    for each in ("i-0", "i-1"):
        await bed.reports(each)
    assert set(await bed.chosen()) == {"i-1"}
    bed.f0.inbox.clear()
    told = (await bed.f0.receive(Directory)).instances
    assert {each.instance_id: each.takes_requests for each in told} == {"i-0": False, "i-1": True}
    bed.keeper.change(bed.keeper.spec.without_mark(Closed.CORDONED, "i-0"))
    assert (await bed.dispatched("t")).instance_id == "i-0"
