"""Live moves between llumlets with deterministic engines, seen by a streaming client."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pytest

from controller.core.migration.protocol import DEFAULT_TIMING, Verb
from controller.core.migration.refusals import MoveRefusal, why
from controller.core.record.event_log import EventKind
from controller.core.record.request_record import RequestState
from controller.runtime.instance.move_ends import KvDigest
from controller.runtime.messages.members import InstanceLost, Message
from controller.runtime.messages.move_messages import (
    MoveEnvelope,
    MoveLimitsSet,
    MoveRefusalAsked,
    RequestMoved,
)
from controller.runtime.messages.requests import AbortRequests, OutputsEmitted, OutputsReceived
from tests.unit.runtime.fake_engine import WRONG, tokens_of
from tests.unit.runtime.fake_transfer import COPY_TIME_S
from tests.unit.runtime.moving_cluster import MovingCluster


async def test_a_request_moves_while_it_streams(moving: MovingCluster) -> None:
    await moving.stream()
    answer = await moving.move()
    record = answer.record
    assert record is not None
    assert (answer.code, record.outcome) == ("", "migrated")
    # 105 tokens, 104 of them computed: 6 full blocks, then the one that is being filled.
    assert [(s.num_blocks, s.num_bytes) for s in record.stages] == [(6, 96), (1, 16)]
    assert moving.record().instance_id == "i-1"
    assert moving.a.llumlet.serving.requests == {}
    assert await moving.at_boundary(moving.a, lambda engine: engine.blocks.refs) == {}
    await moving.more("r", 1, moving.b)
    (event,) = moving.events(EventKind.MIGRATED)
    assert event.cause_id == record.migration_id
    assert event.numbers["num_stages"] == 2
    assert event.numbers["num_bytes"] == 112
    assert event.numbers["copy_time_s"] == 2 * COPY_TIME_S
    downtime_s, step_time_s = event.numbers["downtime_s"], event.numbers["step_time_s"]
    assert downtime_s is not None
    assert step_time_s is not None
    assert downtime_s > 0
    assert event.numbers["excess_s"] == max(0.0, downtime_s - step_time_s)
    await moving.until(lambda: event in moving.controller.events)
    await moving.finishes()
    assert moving.record().num_moves == 1
    await moving.nothing_is_left()


async def test_the_link_to_a_peer_is_closed_when_that_is_gone(moving: MovingCluster) -> None:
    """Though no move is remembered any more."""
    await moving.stream()
    await moving.move()
    await moving.finishes()
    await moving.nothing_is_left()
    assert moving.a.transfer.forgotten == []
    await moving.kill("i-1")
    await moving.until(lambda: moving.a.transfer.forgotten == ["i-1"])


async def test_a_defect_in_one_move_leaves_the_others_their_end(
    moving: MovingCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    moving.hold()
    for request_id in ("r", "s"):
        await moving.frontend.submit(request_id, 100, 20)
    await moving.until(lambda: len(moving.a.engine.waiting) == 2)
    moving.a.engine.allow(1)
    await moving.until(lambda: all(moving.frontend.tokens[r] for r in ("r", "s")))
    moving.a.transfer.holds = lambda stage_id: True
    defective, other = moving.order(), moving.order(request_id="s")
    for move_id in (defective, other):
        await moving.until(lambda m=move_id: moving.source_state(m) == "copying")
    machine = moving.a.llumlet.serving.instance_moves.outgoing[defective].machine

    tick = type(machine).tick

    def tick_or_fail(self, *args) -> object:
        if self is machine:
            raise RuntimeError("a defect")
        return tick(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(type(machine), "tick", tick_or_fail)
        await moving.kill("i-1")
        await moving.until(lambda: other in moving.controller.answers)
        await moving.until(lambda: "a defect" in caplog.text)
    assert moving.controller.answers[other].code == "destination_died"
    caplog.clear()
    moving.a.transfer.let_go()
    for request_id in ("r", "s"):
        await moving.finishes(request_id, 20)


async def test_blocks_that_the_destination_has_are_not_copied(moving: MovingCluster) -> None:
    moving.b.engine.moves.num_cached = 5
    await moving.stream()
    record = (await moving.move(verify_kv=True)).record
    assert record is not None
    assert (record.outcome, record.num_cached_blocks, record.num_blocks) == ("migrated", 5, 2)
    await moving.finishes()
    await moving.nothing_is_left()


async def test_the_stages_follow_a_request_that_decodes_on(moving: MovingCluster) -> None:
    await moving.stream(max_tokens=200)
    moving.a.transfer.holds = lambda stage_id: True
    move_id = moving.order()
    for _ in range(2):
        await moving.until(lambda: moving.a.transfer._waiting)
        await moving.more("r", 50, moving.a)
        waiting, moving.a.transfer._waiting = moving.a.transfer._waiting, []
        for go_on in waiting:
            go_on()
    await moving.until(lambda: moving.a.transfer._waiting)
    moving.a.transfer.let_go()
    record = (await moving.answer(move_id)).record
    assert record is not None
    assert [stage.num_blocks for stage in record.stages] == [6, 3, 3, 1]
    await moving.finishes(max_tokens=200)
    await moving.nothing_is_left()


async def test_one_that_outgrows_what_is_reserved_stays_in_the_batch_for_another_stage(
    moving: MovingCluster,
) -> None:
    await moving.stream(prompt=20, max_tokens=100)
    thread = moving.b.hold_thread()
    move_id = moving.order()
    await moving.until(lambda: moving.destination_state(move_id) == "reserving")
    await moving.more("r", 40, moving.a)
    thread.set()
    record = (await moving.answer(move_id)).record
    assert record is not None
    assert record.outcome == "migrated"
    assert len(record.stages) == 2
    await moving.finishes(max_tokens=100)
    await moving.nothing_is_left()


async def test_there_and_back_many_times(moving: MovingCluster) -> None:
    await moving.stream(prompt=40, max_tokens=120)
    names = ["i-0", "i-1"]
    for _ in range(30):
        source_id, destination_id = names
        answer = await moving.move(source_id, destination_id)
        assert answer.record is not None, answer
        assert answer.record.outcome == "migrated"
        await moving.more("r", 2, moving.instances[destination_id])
        names.reverse()
    await moving.finishes(max_tokens=120)
    assert moving.record().num_moves == 30
    await moving.nothing_is_left()


async def test_moved_on_before_its_first_token_there(moving: MovingCluster) -> None:
    await moving.stream()
    for source_id, destination_id in (("i-0", "i-1"), ("i-1", "i-2"), ("i-2", "i-0")):
        answer = await moving.move(source_id, destination_id)
        assert answer.record is not None, answer
        assert answer.record.outcome == "migrated"
    await moving.finishes()
    await moving.nothing_is_left()


async def test_the_first_token_there_is_the_last(moving: MovingCluster) -> None:
    await moving.stream(max_tokens=6, first=5)
    await moving.move()
    await moving.finishes(max_tokens=6)
    assert len(moving.events(EventKind.MIGRATED)) == 1
    await moving.nothing_is_left()


async def test_a_waiting_request_moves_without_a_copy(moving: MovingCluster) -> None:
    moving.a.engine.admits = False
    await moving.frontend.submit("r", 40, 20)
    await moving.until(lambda: "r" in moving.a.engine.waiting)
    record = (await moving.move()).record
    assert record is not None
    assert (record.outcome, record.num_blocks) == ("migrated", 0)
    await moving.finishes(max_tokens=20)
    (event,) = moving.events(EventKind.MIGRATED)
    assert event.numbers["downtime_s"] is None, "no token came before"
    await moving.nothing_is_left()


async def test_an_evicted_request_moves_without_a_copy(moving: MovingCluster) -> None:
    await moving.stream()
    moving.a.engine.admits = False
    await moving.evict("r", moving.a)
    record = (await moving.move()).record
    assert record is not None
    assert (record.outcome, record.num_blocks) == ("migrated", 0)
    assert moving.b.llumlet.serving.requests["r"].evicted_at_s == 7.0
    await moving.finishes()
    (event,) = moving.events(EventKind.MIGRATED)
    assert event.numbers["downtime_s"] is None, "it had stopped before the move"
    assert event.numbers["excess_s"] is None
    await moving.nothing_is_left()


async def test_one_that_is_evicted_before_its_first_token_there_was_not_down_for_its_move(
    moving: MovingCluster,
) -> None:
    await moving.stream()
    assert (await moving.move()).code == ""
    await moving.evict("r", moving.b)
    await moving.finishes()
    (event,) = moving.events(EventKind.MIGRATED)
    assert event.numbers["downtime_s"] is None
    await moving.nothing_is_left()


async def test_a_waiting_request_that_is_admitted_meanwhile_stays(moving: MovingCluster) -> None:
    moving.hold()
    moving.a.engine.admits = False
    await moving.frontend.submit("r", 40, 20)
    await moving.until(lambda: "r" in moving.a.engine.waiting)
    thread = moving.b.hold_thread()
    move_id = moving.order()
    await moving.until(lambda: moving.destination_state(move_id) == "reserving")
    moving.a.engine.admits = True
    await moving.more("r", 1, moving.a)
    thread.set()
    answer = await moving.answer(move_id)
    assert answer.record is not None
    assert (answer.code, answer.record.outcome) == ("admitted", "kept")
    await moving.finishes(max_tokens=20)
    await moving.nothing_is_left()


# -- a grammar that compiles --------------------------------------------------------------


async def compiling(moving: MovingCluster) -> tuple[str, Future[None]]:
    """A move whose last stage waits for the request's grammar."""
    compile_ = moving.b.engine.moves.compiles["r"] = Future()
    await moving.stream(max_tokens=80)
    move_id = moving.order()

    def waits() -> bool:
        move = moving.a.llumlet.serving.instance_moves.outgoing.get(move_id)
        machine = move.machine if move else None
        return machine is not None and (machine.state, machine.stage) == ("pre_allocating", 1)

    await moving.until(waits)
    await moving.until(lambda: moving.destination_state(move_id) == "reserving")
    return move_id, compile_


async def test_a_request_stops_only_once_its_grammar_is_compiled_there(
    moving: MovingCluster,
) -> None:
    move_id, compile_ = await compiling(moving)
    await moving.more("r", 30, moving.a)
    compile_.set_result(None)
    record = (await moving.answer(move_id)).record
    assert record is not None
    assert record.outcome == "migrated"
    assert [stage.num_blocks for stage in record.stages] == [6, 2, 1], "it had outgrown its room"
    await moving.finishes(max_tokens=80)
    await moving.nothing_is_left()


async def test_a_grammar_that_takes_too_long_there_leaves_the_request_where_it_is(
    moving: MovingCluster,
) -> None:
    move_id, compile_ = await compiling(moving)
    source = moving.a.llumlet.serving.instance_moves.outgoing[move_id].machine
    for _ in range(int(DEFAULT_TIMING.reserve_timeout_s)):
        moving.clock.now_s += 1.0
        await moving.until(lambda: source.over or source._clock.working_s == moving.clock.now_s)
    answer = await moving.answer(move_id)
    assert answer.record is not None
    assert (answer.code, answer.record.outcome) == ("not_ready", "kept")
    assert compile_.cancelled()
    await moving.finishes(max_tokens=80)
    await moving.nothing_is_left()


async def test_a_grammar_that_does_not_compile_there_is_refused(moving: MovingCluster) -> None:
    move_id, compile_ = await compiling(moving)
    compile_.set_exception(RuntimeError("no such rule"))
    answer = await moving.answer(move_id)
    assert answer.record is not None
    assert (answer.code, answer.record.outcome) == (MoveRefusal.NOT_TAKEN, "kept")
    await moving.finishes(max_tokens=80)
    await moving.nothing_is_left()


async def test_nothing_compiles_for_a_move_that_was_called_off(moving: MovingCluster) -> None:
    move_id, compile_ = await compiling(moving)
    await moving.evict("r", moving.a)
    assert (await moving.answer(move_id)).code == "evicted"
    await moving.until(compile_.cancelled)
    await moving.finishes(max_tokens=80)
    await moving.nothing_is_left()


async def test_a_request_without_outputs_waits_for_its_grammar_where_it_goes(
    moving: MovingCluster,
) -> None:
    moving.b.engine.moves.compiles["r"] = Future()
    moving.a.engine.admits = False
    await moving.frontend.submit("r", 40, 20)
    await moving.until(lambda: "r" in moving.a.engine.waiting)
    assert (await moving.move()).code == ""
    await moving.finishes(max_tokens=20)
    await moving.nothing_is_left()


# -- refused ------------------------------------------------------------------------------


async def kept(moving: MovingCluster, code: str) -> None:
    answer = await moving.move()
    assert answer.record is not None, answer
    assert (answer.code, answer.record.outcome) == (code, "kept")
    (event,) = moving.events(EventKind.MIGRATION_FAILED)
    assert event.reason == f"{why(code)}; test"
    assert moving.record().instance_id == "i-0"
    await moving.finishes()
    await moving.nothing_is_left()


async def test_refused_for_want_of_blocks(moving: MovingCluster) -> None:
    await moving.stream()
    engine = moving.b.engine
    taken = await moving.at_boundary(moving.b, lambda _: engine.blocks.take(60))
    answer = await moving.move()
    assert answer.code == MoveRefusal.NO_BLOCKS
    await moving.at_boundary(moving.b, lambda _: engine.blocks.drop(taken))
    await moving.finishes()
    await moving.nothing_is_left()


async def test_refused_in_a_later_stage_for_want_of_blocks(moving: MovingCluster) -> None:
    await moving.stream()
    engine = moving.b.engine
    moving.a.transfer.holds = lambda stage_id: True
    move_id = moving.order()
    await moving.until(lambda: moving.a.transfer._waiting)
    taken = await moving.at_boundary(moving.b, lambda _: engine.blocks.take(58))
    moving.a.transfer.let_go()
    answer = await moving.answer(move_id)
    assert answer.code == MoveRefusal.NO_BLOCKS
    await moving.at_boundary(moving.b, lambda _: engine.blocks.drop(taken))
    await moving.finishes()
    await moving.nothing_is_left()


async def test_refused_by_its_fingerprint(moving: MovingCluster) -> None:
    moving.b.llumlet.serving.fingerprint = "another"
    await moving.stream()
    await kept(moving, MoveRefusal.FINGERPRINT)


async def test_refused_for_want_of_a_slot(moving: MovingCluster) -> None:
    moving.b.engine.max_num_running = 0
    await moving.stream()
    await kept(moving, MoveRefusal.NO_SLOT)


async def test_refused_in_prefill(moving: MovingCluster) -> None:
    await moving.stream()
    moving.a.engine.moves.refusals["r"] = MoveRefusal.IN_PREFILL
    await kept(moving, MoveRefusal.IN_PREFILL)


async def test_not_begun_what_is_unknown_or_under_way_or_too_much(moving: MovingCluster) -> None:
    assert (await moving.move(request_id="nothing")).code == MoveRefusal.UNKNOWN
    await moving.stream()
    moving.a.transfer.holds = lambda stage_id: True
    first = moving.order()
    await moving.until(lambda: moving.a.transfer._waiting)
    again = await moving.move(destination_id="i-2")
    assert (again.code, again.record) == (MoveRefusal.MOVING, None)
    moving.a.transfer.let_go()
    await moving.answer(first)
    await moving.finishes()
    await moving.nothing_is_left()


async def test_limits_that_are_set_count_at_once(moving: MovingCluster) -> None:
    await moving.stream()
    for instance_id, max_moves in (("i-0", 0), ("i-1", 0)):
        moving.controller.send(instance_id, MoveLimitsSet(max_moves, 5e6))
    await moving.until(lambda: moving.b.transfer.max_bytes_per_s == 5e6)
    assert (await moving.move()).code == MoveRefusal.TOO_MANY_MOVES
    moving.controller.send("i-0", MoveLimitsSet(1, None))
    answer = await moving.move()
    assert answer.record is not None, "begun, and refused there"
    assert answer.code == MoveRefusal.TOO_MANY_MOVES
    moving.controller.send("i-1", MoveLimitsSet(1, None))
    answer = await moving.move()
    assert answer.code == ""
    assert moving.a.transfer.max_bytes_per_s is None
    await moving.finishes()
    await moving.nothing_is_left()


async def test_a_dry_run_says_what_it_would_take(moving: MovingCluster) -> None:
    await moving.stream()
    first = await moving.move(dry_run=True)
    assert first.plan is not None
    assert (first.plan.num_tokens, first.plan.num_blocks, first.plan.num_bytes) == (105, 7, 112)
    assert first.plan.expected_copy_time_s is None
    await moving.move()
    await moving.move("i-1", "i-0")
    again = await moving.move(dry_run=True)
    assert again.plan is not None
    assert again.plan.expected_copy_time_s == pytest.approx(2 * COPY_TIME_S)
    moving.a.engine.moves.refusals["r"] = MoveRefusal.IN_PREFILL
    assert (await moving.move(dry_run=True)).code == MoveRefusal.IN_PREFILL
    moving.controller.send("i-0", MoveRefusalAsked("q", ("r", "x")))
    await moving.until(lambda: "q" in moving.controller.answers)
    found = moving.controller.answers["q"].refusals
    assert found == (("r", "in_prefill"), ("x", "unknown"))
    await moving.finishes()
    await moving.nothing_is_left()


async def test_moves_in_flight_are_part_of_the_status(moving: MovingCluster) -> None:
    await moving.stream()
    moving.a.transfer.holds = lambda stage_id: True
    move_id = moving.order()
    statuses = moving.controller.statuses
    await moving.until(lambda: {"i-0", "i-1"} <= statuses.keys())
    await moving.until(lambda: [move.state for move in statuses["i-0"].moves] == ["copying"])
    await moving.until(lambda: statuses["i-1"].num_moves_in)
    (move,) = statuses["i-0"].moves
    assert (move.migration_id, move.destination_id) == (move_id, "i-1")
    assert move.num_blocks == 7, "six full ones, and the one that is being filled"
    snapshot = statuses["i-1"].snapshot
    assert (snapshot.num_running, snapshot.num_free_blocks) == (1, 58)
    moving.a.transfer.let_go()
    await moving.answer(move_id)
    await moving.until(lambda: not statuses["i-0"].moves and not statuses["i-1"].num_moves_in)
    await moving.finishes()
    await moving.nothing_is_left()


# -- the content of the blocks ------------------------------------------------------------


async def test_a_digest_of_equal_blocks_lets_it_move(moving: MovingCluster) -> None:
    await moving.stream()
    assert (await moving.move(verify_kv=True)).code == ""
    await moving.finishes()
    await moving.nothing_is_left()


async def test_the_digest_of_full_blocks_is_taken_before_the_request_stops(
    moving: MovingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last stage's alone after that, on either side."""
    engines = {id(i.engine.blocks): i for i in moving.instances.values()}
    taken: list[tuple[str, int, bool]] = []
    read = KvDigest._read

    def reading(digest: KvDigest, block_ids: Sequence[int]) -> bytes:
        where = engines[id(digest._blocks)].member.member_id
        taken.append((where, len(block_ids), "r" in moving.a.engine.moves.suspended))
        return read(digest, block_ids)

    monkeypatch.setattr(KvDigest, "_read", reading)
    await moving.stream()
    assert (await moving.move(verify_kv=True)).code == ""
    stages = [(num_blocks, stopped) for where, num_blocks, stopped in taken if where == "i-0"]
    assert stages == [(6, False), (1, True)]
    assert sorted(n for where, n, _ in taken if where == "i-1") == [0, 1, 6]
    await moving.finishes()
    await moving.nothing_is_left()


async def test_a_stage_that_is_slow_is_not_the_destinations_fault(moving: MovingCluster) -> None:
    await moving.stream()
    for stalled, code in ((0.0, "too_slow"), (9.0, "no_answer")):
        moving.a.transfer.holds, moving.a.transfer.stalled = lambda stage_id: True, stalled
        move_id = moving.order()
        await moving.until(lambda: moving.a.transfer.held(f"{move_id}/0"))  # noqa: B023
        moving.clock.now_s += 31.0
        answer = await moving.answer(move_id)
        assert (answer.code, answer.record and answer.record.outcome) == (code, "kept")
        moving.a.transfer.let_go()
    await moving.finishes()
    await moving.nothing_is_left()


async def test_a_limit_that_lets_too_little_through_does_not_stop_the_request(
    moving: MovingCluster,
) -> None:
    await moving.stream()
    moving.a.transfer.max_bytes_per_s = 1.0
    answer = await moving.move()
    assert (answer.code, answer.record and answer.record.outcome) == ("too_slow", "kept")
    await moving.finishes()
    await moving.nothing_is_left()


async def test_a_corrupted_block_is_found_by_the_digest(moving: MovingCluster) -> None:
    moving.a.transfer.corrupts = True
    await moving.stream()
    answer = await moving.move(verify_kv=True)
    assert answer.record is not None
    assert (answer.code, answer.record.outcome) == ("kv_mismatch", "resumed")
    await moving.finishes()
    await moving.nothing_is_left()


async def test_a_corrupted_block_shows_in_the_answer_without_a_digest(
    moving: MovingCluster,
) -> None:
    """The negative control: what these tests compare depends on the blocks."""
    moving.a.transfer.corrupts = True
    await moving.stream()
    await moving.move()
    assert await moving.ends() == "finished"
    assert moving.frontend.tokens["r"] == [*tokens_of("r", 5), *[WRONG] * 55]


async def test_a_state_that_does_not_fit_is_refused_and_the_request_resumes(
    moving: MovingCluster,
) -> None:
    moving.b.engine.moves.commits = False
    await moving.stream()
    answer = await moving.move()
    assert answer.record is not None
    assert (answer.code, answer.record.outcome) == ("not_applied", "resumed")
    await moving.finishes()
    await moving.nothing_is_left()


# -- outputs ------------------------------------------------------------------------------


@pytest.mark.parametrize("num_left", [55, 1])
async def test_outputs_lost_with_the_source_come_from_the_destination(
    moving: MovingCluster, num_left: int
) -> None:
    """Also when the request is over there at once."""
    await moving.stream(max_tokens=15 + num_left, first=5)
    moving.network.drops = lambda m: isinstance(m, OutputsEmitted) and m.sender.instance_id == "i-0"
    moving.a.engine.allow(10)
    await moving.until(lambda: moving.a.llumlet.serving.requests["r"].next_index == 15)
    assert (await moving.move()).code == ""
    await moving.kill("i-0")
    await moving.finishes(max_tokens=15 + num_left)
    await moving.nothing_is_left()


async def test_a_source_keeps_what_the_frontend_has_not_confirmed(moving: MovingCluster) -> None:
    received: list[OutputsReceived] = []
    moving.network.drops = lambda m: isinstance(m, OutputsReceived) and bool(received.append(m))
    await moving.stream(max_tokens=200, first=100)
    live = moving.a.llumlet.serving.requests["r"]
    await moving.until(lambda: live.unconfirmed[0].first_index == 96)
    assert [item for envelope in received for item in envelope.items] == [
        ("r", 32),
        ("r", 64),
        ("r", 96),
    ]
    await moving.finishes(max_tokens=200)
    await moving.nothing_is_left()


# -- COMMIT in doubt ----------------------------------------------------------------------


def says(verb: Verb) -> Callable[[Message], bool]:
    return lambda m: isinstance(m, MoveEnvelope) and m.message.verb is verb


async def test_a_commit_that_is_lost_is_fenced_off_and_drops_when_it_comes_late(
    moving: MovingCluster,
) -> None:
    await moving.stream()
    moving.network.hold(says(Verb.COMMIT))
    move_id = moving.order()
    await moving.until(lambda: moving.source_state(move_id) == "committing")
    moving.clock.now_s += 3.0
    answer = await moving.answer(move_id)
    assert answer.record is not None
    assert (answer.code, answer.record.outcome) == ("no_answer", "resumed")
    await moving.more("r", 3, moving.a)
    assert moving.a.llumlet.serving.requests["r"].hop == 2
    moving.network.release()
    await moving.until(lambda: moving.destination_state(move_id) == "aborted")
    assert (await moving.move()).code == "", "and it may move again"
    await moving.finishes()
    await moving.nothing_is_left()


async def test_an_answer_to_commit_that_is_lost_is_asked_of_the_frontend(
    moving: MovingCluster,
) -> None:
    await moving.stream()
    moving.network.drops = says(Verb.COMMITTED)
    move_id = moving.order()
    await moving.until(lambda: moving.destination_state(move_id) == "committed")
    refused = await moving.move("i-1", "i-2")
    assert refused.code == MoveRefusal.MOVING, "its source may have it back yet"
    assert (await moving.move("i-1", "i-2", dry_run=True)).code == MoveRefusal.MOVING
    moving.controller.send("i-1", MoveRefusalAsked("q", ("r",)))
    await moving.until(lambda: "q" in moving.controller.answers)
    assert moving.controller.answers["q"].refusals == (("r", "moving"),), "and that is shown"
    moving.clock.now_s += 3.0
    answer = await moving.answer(move_id)
    assert answer.code == ""
    await moving.more("r", 3, moving.b)
    moving.network.drops = lambda envelope: False
    assert (await moving.move("i-1", "i-2")).code == ""
    await moving.finishes()
    await moving.nothing_is_left()


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
    refused = await moving.move("i-1", "i-2")
    assert refused.code == MoveRefusal.MOVING
    moving.network.drops = to_source
    here = moving.b.serving.instance_moves

    def is_read_from_here() -> bool:
        moving.clock.now_s += 0.02  # the destination asks again each 0.2 s
        return here.refusal("r") is None

    await moving.until(is_read_from_here)
    assert (await moving.move("i-1", "i-2")).code == ""
    moving.clock.now_s += 2.0
    assert (await moving.answer(move_id)).code == "", "the source is granted none"
    moving.network.drops = lambda envelope: False
    await moving.finishes()
    await moving.nothing_is_left()


async def test_what_a_destination_emits_that_was_fenced_off_is_not_read(
    moving: MovingCluster,
) -> None:
    """It applied COMMIT; neither its source nor the frontend heard of it in time."""
    await moving.stream()

    def from_b(envelope: Message) -> bool:
        emitted = isinstance(envelope, OutputsEmitted) and envelope.sender.instance_id == "i-1"
        return emitted or isinstance(envelope, RequestMoved) or says(Verb.COMMITTED)(envelope)

    moving.network.hold(from_b)
    move_id = moving.order()
    await moving.until(lambda: moving.destination_state(move_id) == "committed")
    moving.b.engine.allow(3)
    await moving.until(lambda: moving.network.num_held >= 5)
    moving.clock.now_s += 3.0
    answer = await moving.answer(move_id)
    assert (answer.code, answer.record and answer.record.outcome) == ("no_answer", "resumed")
    moving.network.release()
    await moving.finishes()
    assert moving.events(EventKind.MIGRATED) == []
    await moving.nothing_is_left()


async def test_an_answer_that_never_comes_ends_the_move_before_the_cut(
    moving: MovingCluster,
) -> None:
    await moving.stream()
    moving.network.drops = says(Verb.PRE_ALLOCATED)
    move_id = moving.order()
    await moving.until(lambda: moving.destination_state(move_id) == "receiving")
    moving.clock.now_s += 3.0
    assert (await moving.answer(move_id)).code == "no_answer"
    await moving.finishes()
    await moving.nothing_is_left()


# -- who is asked, who is told ------------------------------------------------------------


async def test_the_last_of_several_moves_to_an_instance_answers_for_it(
    moving: MovingCluster,
) -> None:
    """All of them began in the same hop; the first ones came to nothing."""
    await moving.stream()
    engine = moving.b.engine
    taken = await moving.at_boundary(moving.b, lambda _: engine.blocks.take(60))
    assert (await moving.move()).code == MoveRefusal.NO_BLOCKS
    await moving.at_boundary(moving.b, lambda _: engine.blocks.drop(taken))
    moving.network.drops = lambda m: isinstance(m, RequestMoved)
    assert (await moving.move()).code == ""
    moving.network.drops = lambda envelope: False
    await moving.kill("i-0")
    await moving.finishes()
    await moving.nothing_is_left()


async def test_an_abort_that_comes_late_follows_the_request_and_stops_where_it_is(
    moving: MovingCluster,
) -> None:
    await moving.stream()
    await moving.move("i-0", "i-1")
    await moving.move("i-1", "i-2")
    moving.network.peer("mem://late").send(moving.a.address, AbortRequests(("r",)))
    await moving.until(lambda: not moving.instances["i-2"].llumlet.serving.requests)
    moving.frontend.router.abort(["r"], RequestState.ABORTED, "the client left")
    await moving.nothing_is_left()


async def test_an_end_does_not_go_round_in_circles(moving: MovingCluster) -> None:
    await moving.stream()
    ways = [("i-0", "i-1"), ("i-1", "i-2"), ("i-2", "i-0"), ("i-0", "i-1"), ("i-1", "i-0")]
    for way in ways:
        assert (await moving.move(*way)).code == ""
        await moving.more("r", 1, moving.instances[way[1]])
    ends: list[Message] = []

    def counts(envelope: Message) -> bool:
        if says(Verb.END)(envelope):
            ends.append(envelope)
        return False

    moving.network.drops = counts
    moving.frontend.router.abort(["r"], RequestState.ABORTED, "the client left")
    await moving.nothing_is_left()
    assert ends == [], "it was here, and what went away earlier came back"
    moving.network.peer("mem://late").send(moving.b.address, AbortRequests(("r",)))
    await moving.nothing_is_left()
    assert ends == [], "forgotten"


async def test_a_late_abort_at_an_instance_that_it_left_twice(moving: MovingCluster) -> None:
    await moving.stream()
    for way in (("i-0", "i-1"), ("i-1", "i-0"), ("i-0", "i-1")):
        assert (await moving.move(*way)).code == ""
    moving.network.peer("mem://late").send(moving.a.address, AbortRequests(("r",)))
    await moving.until(lambda: not moving.b.llumlet.serving.requests)
    moving.frontend.router.abort(["r"], RequestState.ABORTED, "the client left")
    await moving.nothing_is_left()


@pytest.mark.parametrize("code", ["", "draining"])
async def test_a_move_that_is_over_keeps_no_prompt(moving: MovingCluster, code: str) -> None:
    """Though it is remembered for a minute, refused or not."""
    await moving.stream()
    moves = moving.b.llumlet.serving.instance_moves
    moves.draining = bool(code)
    move_id = moving.order()
    assert (await moving.answer(move_id)).code == code
    over = moves.incoming[move_id]
    assert [*over._frames, *over._outputs, *over._state, *over._unconfirmed] == []
    gone = moving.a.llumlet.serving.instance_moves.outgoing[move_id]
    assert [*gone._live.frames, *gone._live.unconfirmed, *gone._outputs, *gone._encoded] == []
    assert gone._suspended is None
    await moving.finishes()
    await moving.nothing_is_left()
