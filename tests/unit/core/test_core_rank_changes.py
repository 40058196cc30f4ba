"""The last owner of a request is told its last rank until it has confirmed it."""

from controller.core.load.snapshot import InstanceRef
from controller.core.migration import rank_changes, routes
from controller.core.migration.ownership import Epoch
from controller.core.migration.rank_changes import RankChanges, TellRank
from controller.core.migration.routes import Routes
from controller.core.replay import replay_machine as replays
from controller.core.scheduler_events import DispatchRequested

I0, I1 = (InstanceRef(f"i-{n}", 1, f"mem://{n}") for n in range(2))


class Listed:
    def incarnation(self, _instance_id: str) -> int | None:
        return 1


def test_an_owner_is_told_until_it_has_confirmed_and_each_new_owner_anew() -> None:
    known = Routes(Listed())
    machine = RankChanges(known)

    def told(event: rank_changes.Event) -> list[TellRank]:
        found = list(machine.handle(event))
        machine.check()
        return found

    def confirmed(number: int, by: InstanceRef, epoch: Epoch) -> bool:
        assert told(rank_changes.Confirmed("r", number, by.key, epoch)) == []
        return machine.is_confirmed("r")

    known.handle(replays.Arrived(DispatchRequested("r", "f-0", 10, 0, 0.0), (b"x",)), 0.0)
    assert told(rank_changes.Changed("r", 2)) == [], "nobody has it yet"
    known.handle(routes.Sent("r", I0, 10), 0.0)
    for event in (rank_changes.Sent("r"), rank_changes.Due()):
        assert told(event) == [TellRank(I0, "r", 2, 1)]
    assert told(rank_changes.Changed("r", 1)) == [TellRank(I0, "r", 1, 2)]
    assert not confirmed(1, I0, Epoch()), "only the change before"
    assert confirmed(2, I0, Epoch())
    assert told(rank_changes.Due()) == []
    known.handle(routes.Moved("r", Epoch(0, 1), I1, 0), 0.0)
    assert told(rank_changes.Due()) == [TellRank(I1, "r", 1, 2)]
    assert not confirmed(2, I0, Epoch(0, 1)), "it is no owner any more"
    assert not confirmed(2, I1, Epoch()), "as it had the request before"
    assert confirmed(2, I1, Epoch(0, 2)), "it took the request back meanwhile"
    known.handle(routes.InstanceDied(*I1.key), 0.0)
    assert told(rank_changes.Changed("r", 0)) == [], "nobody has it"
    assert machine.has_changes
    assert told(rank_changes.Ended("r")) == []
    assert not machine.has_changes
