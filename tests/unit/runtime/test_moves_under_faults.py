"""A move is stopped in each of its phases, and there a client leaves, a process dies, or a request
ends.

The state of the machine on either side tells the phases apart. A move is held in a phase by the
transfer, an engine's thread or a message that is under way.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from controller.core.migration.protocol import DEFAULT_TIMING, Verb
from controller.core.record.event_log import EventKind
from controller.core.record.request_record import RequestState
from controller.runtime.messages.members import Message
from controller.runtime.messages.move_messages import FenceAsked, OwnerAsked, RequestMoved
from controller.runtime.messages.requests import OutputsUnread
from tests.unit.runtime.fake_engine import assert_empty, tokens_of
from tests.unit.runtime.fakes import settle
from tests.unit.runtime.moving_cluster import MovingCluster, says


@dataclass
class Phase:
    """`let_go` ends what holds the move."""

    move_id: str
    let_go: Callable[[], None]


Hold = Callable[[MovingCluster], Awaitable[Phase]]


async def ordered(moving: MovingCluster, state: str, let_go: Callable[[], None]) -> Phase:
    """A move that its source brings to this state."""
    move_id = moving.order()
    await moving.until(lambda: moving.source_state(move_id) == state)
    return Phase(move_id, let_go)


async def planning(moving: MovingCluster) -> Phase:
    return await ordered(moving, "planning", moving.a.hold_thread().set)


async def pre_allocating(moving: MovingCluster) -> Phase:
    moving.network.hold(says(Verb.PRE_ALLOC))
    phase = await ordered(moving, "pre_allocating", moving.network.release)
    await moving.until(lambda: moving.network.num_held)
    return phase


async def reserving(moving: MovingCluster) -> Phase:
    phase = await ordered(moving, "pre_allocating", moving.b.hold_thread().set)
    await moving.until(lambda: moving.destination_state(phase.move_id) == "reserving")
    return phase


async def copying(moving: MovingCluster) -> Phase:
    moving.a.transfer.holds = lambda stage_id: True
    phase = await ordered(moving, "copying", moving.a.transfer.let_go)
    await moving.until(lambda: moving.a.transfer.held(f"{phase.move_id}/0"))
    return phase


async def copying_to_one_slow_to_let_go(moving: MovingCluster) -> Phase:
    moving.b.transfer.lets_go_at_once = False
    phase = await copying(moving)

    def let_go() -> None:
        phase.let_go()
        if "i-1" in moving.instances:
            moving.b.transfer.let_go()

    return Phase(phase.move_id, let_go)


async def suspending(moving: MovingCluster) -> Phase:
    moves = moving.a.engine.moves
    moves.reluctant = True
    phase = await ordered(moving, "suspending", lambda: setattr(moves, "reluctant", False))
    await moving.until(lambda: moves.suspended)
    return phase


async def suspended(moving: MovingCluster) -> Phase:
    moving.a.transfer.holds = lambda stage_id: stage_id.endswith("/1")
    phase = await ordered(moving, "suspended", moving.a.transfer.let_go)
    await moving.until(lambda: moving.a.transfer.held(f"{phase.move_id}/1"))
    return phase


async def committing(moving: MovingCluster) -> Phase:
    moving.network.hold(says(Verb.COMMIT))
    return await ordered(moving, "committing", moving.network.release)


async def applying(moving: MovingCluster) -> Phase:
    phase = await committing(moving)
    thread = moving.b.hold_thread()
    phase.let_go()
    await moving.until(lambda: moving.destination_state(phase.move_id) == "applying")
    return Phase(phase.move_id, thread.set)


async def committed(moving: MovingCluster) -> Phase:
    """The frontend knows it, the source does not."""
    moving.network.hold(says(Verb.COMMITTED))
    phase = await ordered(moving, "committing", moving.network.release)
    await moving.until(lambda: moving.record().instance_id == "i-1")
    return phase


async def fencing(moving: MovingCluster) -> Phase:
    moving.network.hold(lambda m: says(Verb.COMMIT)(m) or isinstance(m, FenceAsked))
    phase = await ordered(moving, "committing", moving.network.release)
    moving.clock.now_s += 3.0
    await moving.until(lambda: moving.source_state(phase.move_id) == "fencing")
    return phase


async def migrated(moving: MovingCluster) -> Phase:
    """The destination does not know that the source knows."""
    moving.network.hold(says(Verb.ACKNOWLEDGED))
    return await ordered(moving, "migrated", moving.network.release)


BEFORE_THE_CUT: list[Hold] = [
    planning,
    pre_allocating,
    reserving,
    copying,
    copying_to_one_slow_to_let_go,
    suspending,
]
IN_DOUBT: list[Hold] = [committing, applying, fencing]
"""Nobody but the two knows of COMMIT."""
AFTER_COMMIT: list[Hold] = [committed, migrated]
PHASES: list[Hold] = [*BEFORE_THE_CUT, suspended, *IN_DOUBT, *AFTER_COMMIT]

every_phase = pytest.mark.parametrize("hold", PHASES)


@every_phase
@pytest.mark.parametrize("source_hears_it_first", [False, True])
async def test_the_client_leaves(
    moving: MovingCluster, hold: Hold, source_hears_it_first: bool
) -> None:
    await moving.stream()
    phase = await hold(moving)
    moving.abort()
    if source_hears_it_first and hold is not committed:
        await moving.until(lambda: "r" not in moving.a.serving.requests)
    phase.let_go()
    await moving.nothing_is_left()
    assert moving.record().state is RequestState.ABORTED
    assert moving.frontend.tokens["r"] == tokens_of("r", 5)
    assert moving.source_state(phase.move_id) is None


@every_phase
async def test_the_frontend_dies(moving: MovingCluster, hold: Hold) -> None:
    await moving.stream()
    phase = await hold(moving)
    moving.frontend.die()
    phase.let_go()


@pytest.mark.parametrize("hold", [reserving, copying, suspended])
async def test_the_destination_alone_hears_that_the_frontend_is_gone(
    moving: MovingCluster, hold: Hold
) -> None:
    """The destination frees what it holds, even if the source says nothing."""
    await moving.stream()
    phase = await hold(moving)
    moving.b.serving.address_lost("mem://f-0")
    await moving.until(lambda: moving.destination_state(phase.move_id) == "aborted")
    phase.let_go()
    await moving.at_boundary(moving.b, assert_empty)
    await moving.finishes()
    assert moving.record().instance_id == "i-0"


@every_phase
@pytest.mark.parametrize("is_dead", [True, False])
async def test_the_source_dies_or_is_fenced(
    moving: MovingCluster, hold: Hold, is_dead: bool
) -> None:
    await moving.stream()
    phase = await hold(moving)
    if is_dead:
        await moving.kill("i-0", phase.let_go)
    else:
        await moving.fence("i-0")
        phase.let_go()
    if hold in (applying, *AFTER_COMMIT):
        await moving.finishes()
        assert moving.record().instance_id == "i-1"
    else:
        assert await moving.ends() == "failed"
        assert moving.record().state is RequestState.FAILED


@pytest.mark.parametrize("comes", [True, False])
async def test_what_a_dead_source_had_sent_still_comes_with_its_commit(
    moving: MovingCluster, comes: bool
) -> None:
    """COMMIT is there before the last bytes are, and then the source dies. Who does not get them
    waits for a lease."""
    await moving.stream()
    transfer = moving.b.transfer
    transfer.comes_late = lambda stage_id: stage_id.endswith("/1")
    move_id = moving.order()
    await moving.until(lambda: moving.source_state(move_id) == "committing")
    await settle()  # COMMIT comes, and then the news of the death
    await moving.kill("i-0")
    await settle()
    assert moving.destination_state(move_id) == "receiving"
    assert transfer.forgotten == [], "its bytes would be lost"
    if comes:
        transfer.let_go()
        await moving.finishes()
        assert moving.record().instance_id == "i-1"
    else:
        moving.clock.now_s += DEFAULT_TIMING.lease_s + 1
        assert await moving.ends() == "failed"
    await moving.until(lambda: transfer.forgotten == ["i-0"])


@every_phase
@pytest.mark.parametrize("is_dead", [True, False])
async def test_the_destination_dies_or_is_fenced(
    moving: MovingCluster, hold: Hold, is_dead: bool
) -> None:
    await moving.stream()
    phase = await hold(moving)
    if is_dead:
        await moving.kill("i-1", phase.let_go)
    else:
        await moving.fence("i-1")
        phase.let_go()
    if hold in AFTER_COMMIT:
        assert await moving.ends() == "failed"
        return
    await moving.finishes()
    assert moving.record().instance_id == "i-0"
    if is_dead:
        outcome, code = await moving.outcome(phase.move_id)
        assert outcome == ("kept" if hold in BEFORE_THE_CUT else "resumed")
        assert code in ("destination_died", "no_answer")
        assert len(moving.events(EventKind.MIGRATION_FAILED)) == 1
    elif hold is pre_allocating:
        assert moving.destination_state(phase.move_id) is None, "meant for the one before it"


async def test_a_fenced_destination_names_the_incarnation_that_had_the_request(
    moving: MovingCluster,
) -> None:
    """The source has died, so the frontend asks the destination, which is another incarnation when
    the question comes. If this one said that it has the request, the frontend would wait for its
    tokens for ever."""
    owners = list[int]()

    def drops(message: Message) -> bool:
        if isinstance(message, RequestMoved):
            owners.append(message.owner.incarnation)
        return False

    await moving.stream()
    moving.network.drops = drops
    moving.network.hold(lambda message: isinstance(message, RequestMoved | OwnerAsked))
    move_id = moving.order()
    await moving.until(lambda: moving.destination_state(move_id) == "committed")
    await moving.kill("i-0")
    await moving.until(lambda: moving.network.num_held >= 2)
    await moving.fence("i-1")
    owners.clear()
    moving.network.release()
    assert await moving.ends() == "failed"
    await moving.until(lambda: owners)
    assert set(owners) == {1}


@pytest.mark.parametrize("hold", [pre_allocating, copying])
@pytest.mark.parametrize("finishes", [True, False])
async def test_the_request_finishes_or_is_evicted_meanwhile(
    moving: MovingCluster, hold: Hold, finishes: bool
) -> None:
    await moving.stream(max_tokens=6)
    phase = await hold(moving)
    if finishes:
        await moving.more("r", 1, moving.a)
        await moving.finishes()
        assert await moving.outcome(phase.move_id) == ("ended", "finished")
    else:
        moving.a.engine.admits = False
        await moving.evict("r", moving.a)
        assert await moving.outcome(phase.move_id) == ("kept", "evicted")
    phase.let_go()


@pytest.mark.parametrize("hold", [planning, suspended, committed])
async def test_a_second_move_is_not_begun(moving: MovingCluster, hold: Hold) -> None:
    await moving.stream()
    phase = await hold(moving)
    for source_id in ("i-0", "i-1")[: 1 + (hold is committed)]:
        again = await moving.move(source_id, "i-2")
        assert (again.code, again.record) == ("moving", None)
    phase.let_go()


# -- outputs that nobody reads ---------------------------------------------------------------


@pytest.mark.parametrize("hold", [committing, committed, fencing])
async def test_what_the_destination_may_have_is_not_aborted_as_unread(
    moving: MovingCluster, hold: Hold
) -> None:
    await moving.stream()
    phase = await hold(moving)
    moving.frontend.router.routes.send(moving.a.address, OutputsUnread((("r", 0, 0),)))
    phase.let_go()
    await moving.finishes()
