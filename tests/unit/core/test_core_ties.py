"""Which of several instances that are equal in every figure each decision takes: the first by id.
Ids are compared as text, so i-10 comes before i-2 (docs/metrics.md)."""

from collections.abc import Callable, Sequence

import pytest

from controller.core.admission.asking import (
    CONTROLLER_SILENCE_S,
    Asked,
    Asking,
    PacedRelease,
    Resumed,
    Woken,
)
from controller.core.admission.placement import Placement
from controller.core.admission.policies import POLICIES, SchedulerConfig
from controller.core.admission.waiting_requests import Waiting
from controller.core.emptying.claims import Remove
from controller.core.emptying.relief import Candidate, choose_destination
from controller.core.emptying.room_plan import (
    MakeRoom,
    MoveHead,
    help_blocked,
    plan_leaving,
    plan_room,
)
from controller.core.emptying.rounds import InstanceLoad, pair
from controller.core.fleet.autoscaler import ScaleState, decide
from controller.core.fleet.cluster_spec import ClusterSpec, plan_scale
from controller.core.fleet.liveness import Rest, Silent, Slowness, StepsSeen, to_fence
from controller.core.fleet.outlook import ClusterLoad
from controller.core.load.freeness import Room
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceRef, InstanceSnapshot
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import InstanceStarted
from controller.core.settings import AutoscaleConfig, HoldingConfig, ReschedulingConfig
from tests.unit.core.core_builders import (
    all_as_soon,
    queued,
    request,
    running,
    snapshot_of,
    status,
)

Ids = Sequence[str]
IDS = ("i-10", "i-3", "i-2")
AS_TEXT, LAST_FIRST = ["i-10", "i-2", "i-3"], ["i-3", "i-2", "i-10"]
RULES = ReschedulingConfig()


def one_by_one(choose: Callable[[Ids], str]) -> Callable[[Ids], list[str]]:
    """The order in which `choose` takes them, each time without those that it took before."""

    def found(ids: Ids) -> list[str]:
        left, order = list(ids), []
        while left:
            order.append(choose(left))
            left.remove(order[-1])
        return order

    return found


# -- admission ----------------------------------------------------------------------------


def scheduler_with(ids: Ids, policy: str = "llumnix+") -> GlobalScheduler:
    holding = HoldingConfig() if policy == "llumnix+" else None
    scheduler = GlobalScheduler(SchedulerConfig(policy=policy, holding=holding))
    for each in ids:
        scheduler.handle(InstanceStarted(each, 1), 0.0)
        scheduler.handle(status(each), 0.0)
    return scheduler


def dispatched(policy: str) -> Callable[[Ids], list[str]]:
    """By a burst of which no status tells."""

    def found(ids: Ids) -> list[str]:
        scheduler = scheduler_with(ids, policy)
        order = []
        for number in range(len(ids)):
            order.append(scheduler.choice(request(f"r{number}"), 0.0))
            (dispatch,) = scheduler.handle(request(f"r{number}"), 0.0)
            assert dispatch.instance_id == order[-1], "what it would do is what it does"
        return order

    return found


def with_reservations(ids: Ids, share: float) -> tuple[Placement, dict[str, Room]]:
    """The first request has as many instances as the share allows."""
    config = HoldingConfig(reserved_share=share, reserve_after_s=0.0)
    placement = Placement(config)
    placement.queue.push(Waiting(("f", "low"), 0, 0.0, 50, 0.0))
    rooms = {each: Room(each, 20, 100, 1, 100, 0, 80) for each in ids}
    score = dict.fromkeys(ids, 0.0).__getitem__
    for _ in placement.place(rooms, lambda _rank: score, all_as_soon, 0.0):
        pass
    return placement, rooms


def reserved(ids: Ids) -> str:
    return next(iter(with_reservations(ids, 0.0)[0].reserved))


def given_up(ids: Ids) -> str:
    """To a request of a higher rank, by one that has all of them."""
    placement, rooms = with_reservations(ids, 1.0)
    placement.queue.push(Waiting(("f", "high"), 1, 0.0, 50, 0.0))
    score = dict.fromkeys(ids, 0.0).__getitem__
    for _ in placement.place(rooms, lambda _rank: score, all_as_soon, 0.0):
        pass
    return next(each for each, key in placement.reserved.items() if key == ("f", "high"))


# -- a frontend alone ---------------------------------------------------------------------


class Alone:
    """What a frontend knows while the controller is silent."""

    def __init__(self, ids: Ids) -> None:
        self.ids = ids

    def ref(self, instance_id: str, incarnation: int) -> InstanceRef:
        return InstanceRef(instance_id, incarnation, instance_id)

    def snapshots(self) -> list[InstanceSnapshot]:
        return [InstanceSnapshot(each, 1, 16, 100, 100) for each in self.ids]

    open_snapshots = snapshots

    def num_by_owner(self) -> dict[str, int]:
        return {}

    def blocks_by_owner(self, _demand_for: object) -> dict[str, int]:
        return {}


def chosen_alone(ids: Ids) -> str:
    alone = Alone(ids)
    asking = Asking(alone, alone, lambda *_: None)
    asking.handle(Asked(request("r")), 0.0)
    for now_s in (CONTROLLER_SILENCE_S, 2 * CONTROLLER_SILENCE_S):
        asking.handle(Woken("r", now_s), now_s)
    (use,) = asking.handle(Resumed("r"), 2 * CONTROLLER_SILENCE_S)
    return use.dispatch.instance_id


def released(ids: Ids) -> str:
    release = PacedRelease(Alone(ids).snapshots(), {}, 1, 0, 0.0)
    ((_, instance_id),) = release.due([request("r")], {}, ids, 0.0)
    return instance_id


# -- moves ----------------------------------------------------------------------------------


def loads(ids: Ids, freeness: float) -> list[InstanceLoad]:
    return [InstanceLoad(each, freeness) for each in ids]


def relieved(ids: Ids) -> str:
    (paired,) = pair([*loads(ids, -1.0), *loads(["free"], 1e6)], RULES)
    return paired.source_id


def paired_with(ids: Ids) -> str:
    (paired,) = pair([*loads(["full"], -1.0), *loads(ids, 1e6)], RULES)
    return paired.destination_id


def moved_to(ids: Ids) -> str:
    there = [snapshot_of(instance_id=each) for each in ids]
    found = choose_destination(there, DEFAULT_LEVELS, 10)
    assert found is not None
    return found


def helped(ids: Ids, head_blocks: int) -> list[MoveHead | MakeRoom]:
    full = snapshot_of([running("x", 95), queued("head", head_blocks)], instance_id="full")
    there = [snapshot_of([running("y", 50)], instance_id=each) for each in ids]
    rooms = {each.instance_id: Room.of(each, 0) for each in (full, *there)}
    config = HoldingConfig(evict_margin_steps=0.0)
    return help_blocked([full], there, rooms, Placement(config))


def head_moved_to(ids: Ids) -> str:
    (order,) = helped(ids, 20)
    return order.destination_id


def offered(ids: Ids) -> list[str]:
    (order,) = helped(ids, 100)
    return list(order.spare_blocks)


def room_made_on(ids: Ids) -> str:
    placement, rooms = with_reservations(ids, 1.0)
    sources = [snapshot_of([running("x", 80)], instance_id=each) for each in ids]
    open_ = snapshot_of([running("x", 60)], instance_id="open")
    rooms = {**rooms, "open": Room.of(open_, 0)}
    (order,) = help_blocked(sources, [*sources, open_], rooms, placement)
    return order.source_id


def room_made_by_leaving_for(ids: Ids) -> str:
    batch = [Candidate("r", 0, 160, 10, 10, queued=False)]
    (move,) = plan_room(batch, 5, dict.fromkeys(ids, 20), 16, 0)
    return move.destination_id


def followed_to(ids: Ids) -> str:
    names = ("head", "behind")
    batch = [Candidate(name, 0, 160, 0, 0, True, arrival_time_s=n) for n, name in enumerate(names)]
    (move,) = plan_leaving(batch, "head", dict.fromkeys(ids, 20), 16)
    return move.destination_id


# -- the fleet -------------------------------------------------------------------------------


def removed(ids: Ids) -> str:
    schedulable = [snapshot_of([running("r", 1)], instance_id=each) for each in (*ids, "i-99")]
    config = AutoscaleConfig(up_persistence_s=0, down_persistence_s=0, down_above_steps=200.0)
    decision, _ = decide(config, ScaleState(0.0), ClusterLoad(schedulable, 16, 100), 0.0)
    assert decision.removed_id is not None
    return decision.removed_id


def spec_of(ids: Ids) -> ClusterSpec:
    return ClusterSpec(0, (*ids, "i-99"), 100, {}, {})


def scaled_in(ids: Ids) -> list[str]:
    plan = plan_scale(spec_of(ids), 1, {**dict.fromkeys(ids, 2), "i-99": 9})
    return list(plan.drained)


def brought_back(ids: Ids) -> list[str]:
    """The other way round than they were removed."""
    spec = spec_of(ids).with_claims({each: Remove("s", 0.0) for each in ids})
    plan = plan_scale(spec, 1 + len(ids), dict.fromkeys(ids, 2))
    return list(plan.undrained)


def fenced(ids: Ids) -> list[str]:
    faults = to_fence([Silent(each, 1, 40.0, 1) for each in ids], Rest(1, 100, 0), 30.0)
    return [each.instance_id for fault in faults for each in fault]


def found_slow(ids: Ids) -> str:
    machine = Slowness()
    steps = {(each, 1): 0.5 for each in ids} | {(f"fast-{n}", 1): 0.04 for n in range(5)}
    for turn in range(130):
        told = machine.handle(StepsSeen(steps, (), 3.0, 10.0), turn / 10)
    return told[0].instance_id


def row(place: Callable[[Ids], list[str]], expected: list[str] = AS_TEXT) -> object:
    return pytest.param(place, expected, id=place.__qualname__.removesuffix(".<locals>.found"))


def single(choose: Callable[[Ids], str], expected: list[str] = AS_TEXT) -> object:
    return pytest.param(one_by_one(choose), expected, id=choose.__name__)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        *(pytest.param(dispatched(each), AS_TEXT, id=each) for each in POLICIES),
        single(reserved),
        single(given_up, LAST_FIRST),
        single(chosen_alone),
        single(released),
        single(relieved),
        single(paired_with),
        single(moved_to),
        single(head_moved_to),
        row(offered),
        single(room_made_on),
        single(room_made_by_leaving_for),
        single(followed_to),
        single(removed),
        row(scaled_in),
        row(brought_back, LAST_FIRST),
        row(fenced),
        single(found_slow),
    ],
)
def test_of_equal_instances(place: Callable[[Ids], list[str]], expected: list[str]) -> None:
    assert place(IDS) == expected
