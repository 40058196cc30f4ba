"""Live moves between llumlets with deterministic engines, seen by a streaming client."""

from concurrent.futures import Future
from operator import attrgetter

import pytest

from controller.core.migration.protocol import Verb
from controller.core.migration.refusals import MoveRefusal, why
from controller.core.record.event_log import EventKind
from controller.core.record.request_record import RequestState
from controller.runtime.messages.members import InstanceLost, Message
from controller.runtime.messages.move_messages import MoveEnvelope, MoveLimitsSet, RequestMoved
from controller.runtime.messages.requests import AbortRequests, OutputsEmitted, OutputsReceived
from tests.unit.runtime.fake_transfer import COPY_TIME_S
from tests.unit.runtime.moving_cluster import MovingCluster, says

MIGRATED = ("migrated", "")


async def test_a_request_moves_while_it_streams(moving: MovingCluster) -> None:
    await moving.stream()
    answer = await moving.move()
    record = answer.record
    assert (record.outcome, answer.code) == MIGRATED
    # 105 tokens, 104 of them computed: 6 full blocks, then the one that is being filled.
    assert [(s.num_blocks, s.num_bytes) for s in record.stages] == [(6, 96), (1, 16)]
    assert moving.record().instance_id == "i-1"
    assert moving.a.serving.requests == {}
    assert await moving.at_boundary(moving.a, lambda engine: engine.blocks.refs) == {}
    await moving.more("r", 1, moving.b)
    (event,) = moving.events(EventKind.MIGRATED)
    assert event.cause_id == record.migration_id
    assert (event.numbers["num_stages"], event.numbers["num_bytes"]) == (2, 112)
    assert event.numbers["copy_time_s"] == 2 * COPY_TIME_S
    downtime_s, step_time_s = event.numbers["downtime_s"], event.numbers["step_time_s"]
    assert downtime_s > 0
    assert event.numbers["excess_s"] == max(0.0, downtime_s - step_time_s)
    await moving.until(lambda: event in moving.controller.events)
    await moving.finishes()
    assert moving.record().num_moves == 1
    await moving.nothing_is_left()
    assert moving.a.transfer.forgotten == []
    await moving.kill("i-1")  # though no move is remembered any more
    await moving.until(lambda: moving.a.transfer.forgotten == ["i-1"])


async def test_a_defect_in_one_move_leaves_the_others_their_end(
    moving: MovingCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await moving.crowd({"r": 100, "s": 100})
    moving.a.transfer.holds = lambda stage_id: True
    defective, other = moving.order(), moving.order(request_id="s")
    for move_id in (defective, other):
        await moving.until(lambda m=move_id: moving.source_state(m) == "copying")
    machine = moving.a.serving.instance_moves.outgoing[defective].machine
    tick = type(machine).tick

    def tick_or_fail(self, *args) -> object:
        if self is machine:
            raise RuntimeError("a defect")
        return tick(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(type(machine), "tick", tick_or_fail)
        await moving.kill("i-1")
        assert (await moving.answer(other)).code == "destination_died"
        await moving.until(lambda: "a defect" in caplog.text)
    caplog.clear()


async def test_states_are_copied_once_when_the_request_has_stopped(moving: MovingCluster) -> None:
    """Also those of a move that was called off in its last stage, and of one to come back."""
    moving.keep_states(3)
    await moving.stream(max_tokens=80)
    moving.b.engine.moves.commits = False
    assert await moving.tried(verify_kv=True) == ("resumed", "not_applied")
    moving.b.engine.moves.commits = True
    record = (await moving.move(verify_kv=True)).record
    assert [stage.num_blocks for stage in record.stages] == [6, 4]


async def test_a_request_whose_state_is_computed_again_says_so(moving: MovingCluster) -> None:
    """Not one that moved with its state."""
    moving.keep_states(1)
    await moving.stream(max_tokens=80)
    assert (await moving.move(verify_kv=True)).record.outcome == "migrated"
    assert moving.record().num_continued == 0
    await moving.evict("r", moving.b)
    moving.b.engine.allow(1)
    await moving.until(lambda: moving.record().num_continued == 1)


async def test_blocks_that_the_destination_has_are_not_copied(moving: MovingCluster) -> None:
    moving.b.engine.moves.num_cached = 5
    await moving.stream()
    record = (await moving.move(verify_kv=True)).record
    assert (record.outcome, record.num_cached_blocks, record.num_blocks) == ("migrated", 5, 2)


async def test_the_stages_follow_a_request_that_decodes_on(moving: MovingCluster) -> None:
    await moving.stream(max_tokens=200)
    moving.a.transfer.holds = lambda stage_id: True
    move_id = moving.order()
    for _ in range(2):
        await moving.until(lambda: moving.a.transfer.holds_some)
        await moving.more("r", 50, moving.a)
        moving.a.transfer.let_go_once()
    await moving.until(lambda: moving.a.transfer.holds_some)
    moving.a.transfer.let_go()
    record = (await moving.answer(move_id)).record
    assert [stage.num_blocks for stage in record.stages] == [6, 3, 3, 1]


async def test_there_and_back_many_times(moving: MovingCluster) -> None:
    await moving.stream(prompt=40, max_tokens=66)
    names = ["i-0", "i-1", "i-2"]
    for number in range(30):
        assert await moving.tried(*names[:2]) == MIGRATED
        if number % 3:  # at times without a token in between
            await moving.more("r", 2, moving.instances[names[1]])
        names.append(names.pop(0))
    await moving.finishes()
    assert moving.record().num_moves == 20, "those with a token from there"


@pytest.mark.parametrize("is_evicted", [False, True])
async def test_a_request_that_waits_moves_without_a_copy(
    moving: MovingCluster, is_evicted: bool
) -> None:
    if is_evicted:
        await moving.stream()
        moving.a.engine.admits = False
        await moving.evict("r", moving.a)
    else:
        moving.hold()
        moving.b.engine.moves.compiles["r"] = Future()  # it waits for its grammar there
        await moving.waits()
    record = (await moving.move()).record
    assert (record.outcome, record.num_blocks) == ("migrated", 0)
    assert moving.b.serving.requests["r"].evicted_at_s == (7.0 if is_evicted else None)
    await moving.finishes()
    (event,) = moving.events(EventKind.MIGRATED)
    assert event.numbers["downtime_s"] is None, "no token came before, or it had stopped"
    assert event.numbers["excess_s"] is None


async def test_a_waiting_request_that_is_admitted_meanwhile_stays(moving: MovingCluster) -> None:
    moving.hold()
    await moving.waits()
    thread = moving.b.hold_thread()
    move_id = moving.order()
    await moving.until(lambda: moving.destination_state(move_id) == "reserving")
    moving.a.engine.admits = True
    await moving.more("r", 1, moving.a)
    thread.set()
    assert await moving.outcome(move_id) == ("kept", "admitted")


# -- a grammar that compiles --------------------------------------------------------------


async def compiling(moving: MovingCluster, **options: bool) -> tuple[str, Future[None]]:
    """A move whose last stage waits for the request's grammar."""
    compile_ = moving.b.engine.moves.compiles["r"] = Future()
    await moving.stream(max_tokens=80)
    move_id = moving.order(**options)

    def waits() -> bool:
        move = moving.a.serving.instance_moves.outgoing.get(move_id)
        machine = move.machine if move else None
        return machine is not None and (machine.state, machine.stage) == ("pre_allocating", 1)

    await moving.until(waits)
    await moving.until(lambda: moving.destination_state(move_id) == "reserving")
    return move_id, compile_


@pytest.mark.parametrize("num_states", [0, 2])
async def test_a_request_stops_only_once_its_grammar_is_compiled_there(
    moving: MovingCluster, num_states: int
) -> None:
    moving.keep_states(num_states)
    move_id, compile_ = await compiling(moving, verify_kv=True)
    await moving.more("r", 30, moving.a)
    compile_.set_result(None)
    record = (await moving.answer(move_id)).record
    assert record.outcome == "migrated"
    copied = [6, 2 + num_states, 1 + num_states]
    assert [stage.num_blocks for stage in record.stages] == copied, "it had outgrown its room"


@pytest.mark.parametrize("code", ["not_ready", "not_taken", "evicted"])
async def test_a_grammar_that_is_not_compiled_there_leaves_the_request_where_it_is(
    moving: MovingCluster, code: str
) -> None:
    move_id, compile_ = await compiling(moving)

    def time_passes() -> bool:
        moving.clock.now_s += 0.25
        return move_id in moving.controller.answers

    if code == "not_ready":
        await moving.until(time_passes)
    elif code == "not_taken":
        compile_.set_exception(RuntimeError("no such rule"))
    else:
        await moving.evict("r", moving.a)
    assert await moving.outcome(move_id) == ("kept", code)
    if code != "not_taken":
        await moving.until(compile_.cancelled)


# -- refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "outcome", "of", "name", "value"),
    [
        (MoveRefusal.FINGERPRINT, "kept", "b.serving", "fingerprint", "another"),
        (MoveRefusal.NO_SLOT, "kept", "b.engine", "max_num_running", 0),
        ("in_prefill", "kept", "a.engine.moves", "refusals", {"r": MoveRefusal.IN_PREFILL}),
        ("too_slow", "kept", "a.transfer", "max_bytes_per_s", 1.0),
        ("kv_mismatch", "resumed", "a.transfer", "corrupts", True),
        ("not_applied", "resumed", "b.engine.moves", "commits", False),
    ],
)
async def test_what_keeps_a_request_where_it_is(
    moving: MovingCluster, code: str, outcome: str, of: str, name: str, value: object
) -> None:
    await moving.stream()
    setattr(attrgetter(of)(moving), name, value)
    assert await moving.tried(verify_kv=True) == (outcome, code)
    (event,) = moving.events(EventKind.MIGRATION_FAILED)
    assert event.reason == f"{why(code)}; test"
    assert moving.record().instance_id == "i-0"
    assert moving.record().state is RequestState.RUNNING


async def test_an_engine_of_another_parallel_size_takes_requests_if_that_is_allowed(
    moving: MovingCluster,
) -> None:
    await moving.stream()
    moving.a.serving.fingerprint = "runner=v1 weights=a ranks=1"
    moving.b.serving.fingerprint = "runner=v1 weights=b ranks=2"
    assert await moving.tried() == ("kept", MoveRefusal.RANKS)
    (event,) = moving.events(EventKind.MIGRATION_FAILED)
    assert "inexact" not in event.labels
    moving.controller.send("i-1", MoveLimitsSet(4, None, allow_inexact=True))
    await moving.until(lambda: moving.b.serving.allow_inexact)
    assert await moving.tried() == ("migrated", "")
    await moving.more("r", 1, moving.b)
    (event,) = moving.events(EventKind.MIGRATED)
    assert event.labels["inexact"] == "ranks"


@pytest.mark.parametrize("in_a_later_stage", [False, True])
async def test_refused_for_want_of_blocks(moving: MovingCluster, in_a_later_stage: bool) -> None:
    await moving.stream()
    moving.a.transfer.holds = lambda stage_id: in_a_later_stage
    if in_a_later_stage:
        move_id = moving.order()
        await moving.until(lambda: moving.a.transfer.holds_some)
    async with moving.filled(58 if in_a_later_stage else 60):
        moving.a.transfer.let_go()
        if not in_a_later_stage:
            move_id = moving.order()
        assert await moving.outcome(move_id) == ("kept", "no_blocks")


async def test_limits_that_are_set_count_at_once(moving: MovingCluster) -> None:
    await moving.stream()
    for instance_id in ("i-0", "i-1"):
        moving.controller.send(instance_id, MoveLimitsSet(0, 5e6))
    await moving.until(lambda: moving.b.transfer.max_bytes_per_s == 5e6)
    assert (await moving.move()).code == MoveRefusal.TOO_MANY_MOVES
    moving.controller.send("i-0", MoveLimitsSet(1, None))
    assert await moving.tried() == ("kept", "too_many_moves"), "begun, and refused there"
    moving.controller.send("i-1", MoveLimitsSet(1, None))
    assert await moving.tried() == MIGRATED
    assert moving.a.transfer.max_bytes_per_s is None


async def test_a_dry_run_says_what_it_would_take(moving: MovingCluster) -> None:
    await moving.stream()
    plan = (await moving.move(dry_run=True)).plan
    assert (plan.num_tokens, plan.num_blocks, plan.num_bytes) == (105, 7, 112)
    assert plan.expected_copy_time_s is None
    await moving.move()
    await moving.move("i-1", "i-0")
    plan = (await moving.move(dry_run=True)).plan
    assert plan.expected_copy_time_s == pytest.approx(2 * COPY_TIME_S)
    moving.a.engine.moves.refusals["r"] = MoveRefusal.IN_PREFILL
    assert (await moving.move(dry_run=True)).code == MoveRefusal.IN_PREFILL
    assert await moving.refusals("i-0", "r", "x") == (("r", "in_prefill"), ("x", "unknown"))


async def test_moves_in_flight_are_part_of_the_status(moving: MovingCluster) -> None:
    await moving.stream()
    moving.a.transfer.holds = lambda stage_id: True
    move_id = moving.order()
    statuses = moving.controller.statuses
    await moving.until(lambda: {"i-0", "i-1"} <= statuses.keys())
    await moving.until(lambda: [move.state for move in statuses["i-0"].moves] == ["copying"])
    await moving.until(lambda: statuses["i-1"].num_moves_in)
    (move,) = statuses["i-0"].moves
    assert (move.migration_id, move.destination_id, move.num_blocks) == (move_id, "i-1", 7)
    snapshot = statuses["i-1"].snapshot
    assert (snapshot.num_running, snapshot.num_free_blocks) == (1, 58)
    moving.a.transfer.let_go()
    await moving.until(lambda: not statuses["i-0"].moves and not statuses["i-1"].num_moves_in)


# -- the content of the blocks ------------------------------------------------------------


async def test_a_stage_that_is_slow_is_not_the_destinations_fault(moving: MovingCluster) -> None:
    await moving.stream()
    for stalled, code in ((0.0, "too_slow"), (9.0, "no_answer")):
        moving.a.transfer.holds, moving.a.transfer.stalled = lambda stage_id: True, stalled
        move_id = moving.order()
        await moving.until(lambda m=move_id: moving.a.transfer.held(f"{m}/0"))
        moving.clock.now_s += 31.0
        assert await moving.outcome(move_id) == ("kept", code)
        moving.a.transfer.let_go()


# -- outputs ------------------------------------------------------------------------------


@pytest.mark.parametrize("num_left", [55, 1])
async def test_outputs_lost_with_the_source_come_from_the_destination(
    moving: MovingCluster, num_left: int
) -> None:
    """Also when the request is over there at once."""
    await moving.stream(max_tokens=15 + num_left, first=5)
    moving.network.drops = lambda m: isinstance(m, OutputsEmitted) and m.sender.instance_id == "i-0"
    moving.a.engine.allow(10)
    await moving.until(lambda: moving.a.serving.requests["r"].next_index == 15)
    assert await moving.tried() == MIGRATED
    await moving.kill("i-0")
    await moving.finishes()


async def test_a_source_keeps_what_the_frontend_has_not_confirmed(moving: MovingCluster) -> None:
    received: list[OutputsReceived] = []
    moving.network.drops = lambda m: isinstance(m, OutputsReceived) and bool(received.append(m))
    await moving.stream(max_tokens=200, first=100)
    live = moving.a.serving.requests["r"]
    await moving.until(lambda: live.unconfirmed[0].first_index == 96)
    items = [item for envelope in received for item in envelope.items]
    assert items == [("r", 32), ("r", 64), ("r", 96)]


# -- COMMIT in doubt ----------------------------------------------------------------------


async def test_an_answer_to_commit_that_is_lost_is_asked_of_the_frontend(
    moving: MovingCluster,
) -> None:
    await moving.stream()
    moving.network.drops = says(Verb.COMMITTED)
    move_id = moving.order()
    await moving.until(lambda: moving.destination_state(move_id) == "committed")
    for dry_run in (False, True):  # its source may have it back yet
        assert (await moving.move("i-1", "i-2", dry_run=dry_run)).code == MoveRefusal.MOVING
    assert await moving.refusals("i-1", "r") == (("r", "moving"),)
    moving.clock.now_s += 3.0
    assert await moving.outcome(move_id) == MIGRATED
    await moving.more("r", 3, moving.b)
    moving.network.drops = lambda envelope: False
    assert await moving.tried("i-1", "i-2") == MIGRATED


async def test_one_whose_source_seems_dead_stays_until_the_frontend_reads_it_from_there(
    moving: MovingCluster,
) -> None:
    """The connection of the two broke: the source lives, and may be granted a fence yet."""
    await moving.stream()

    def to_source(m: Message) -> bool:
        return says(Verb.COMMITTED)(m) and isinstance(m, MoveEnvelope) and m.source == source

    source = moving.controller.ref("i-0")
    moving.network.drops = lambda m: to_source(m) or isinstance(m, RequestMoved)
    move_id = moving.order()
    await moving.until(lambda: moving.destination_state(move_id) == "committed")
    moving.controller.send("i-1", InstanceLost("i-0", 1))
    assert (await moving.move("i-1", "i-2")).code == MoveRefusal.MOVING
    moving.network.drops = to_source

    moving.clock.now_s += 0.25  # the destination asks again after 0.2 s, the source asks later
    await moving.until(lambda: moving.b.serving.instance_moves.refusal("r") is None)
    assert await moving.tried("i-1", "i-2") == MIGRATED
    moving.clock.now_s += 2.0
    assert (await moving.answer(move_id)).code == "", "the source is granted none"


# -- who is asked, who is told ------------------------------------------------------------


@pytest.mark.parametrize(
    ("ways", "at"),
    [
        ([("i-0", "i-1"), ("i-1", "i-2")], "i-2"),
        ([("i-0", "i-1"), ("i-1", "i-0"), ("i-0", "i-1")], "i-1"),
    ],
)
async def test_an_abort_that_comes_late_follows_the_request_and_stops_where_it_is(
    moving: MovingCluster, ways: list[tuple[str, str]], at: str
) -> None:
    await moving.stream()
    for way in ways:
        assert await moving.tried(*way) == MIGRATED
    moving.network.peer("mem://late").send(moving.a.address, AbortRequests(("r",)))
    await moving.until(lambda: not moving.instances[at].serving.requests)
    moving.abort()
