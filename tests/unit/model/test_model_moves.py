"""What moves do to an engine model, rule by rule; `test_model_moves_machine` tries everything."""

from dataclasses import replace

import pytest

from controller.core.emptying.relief import Candidate
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.load.step_times import LEAST_CHUNK_TOKENS, StepLimit
from controller.core.migration.refusals import MoveRefusal, refusal_of
from controller.model.engine_model import EngineModel
from controller.model.engine_state import ModelRequest, SegmentAt
from controller.model.model_moves import MovingState
from controller.model.profile import ModelConfig, load_profile

PROFILE = load_profile("a10-llama-7b")
CHUNKED = ModelConfig(
    block_size=16,
    num_total_blocks=10,
    watermark_blocks=0,
    max_num_running=4,
    max_num_batched_tokens=100,
    max_model_len=160,
    prefix_caching=False,
    mode="chunked",
)
CACHING = replace(CHUNKED, prefix_caching=True)
PAPER = replace(CHUNKED, mode="prefill-first")


def request(request_id: str, num_prompt_tokens: int, max_output_tokens: int = 50, **more):
    return ModelRequest(request_id, num_prompt_tokens, max_output_tokens, **more)


def hashes(group: str) -> SegmentAt:
    return lambda index: ((group, index), index, index + 1)


def engine(config: ModelConfig, *requests: ModelRequest, num_steps: int = 1) -> EngineModel:
    model = EngineModel(config, PROFILE)
    for each in requests:
        model.add(each)
    for _ in range(num_steps):
        model.step()
    return model


def seen(model: EngineModel) -> InstanceSnapshot:
    model.check()
    return model.snapshot("i-0", 1)


def running(num_tokens: int, rank: int = 0) -> MovingState:
    return MovingState(num_tokens, rank, queued=False, evicted=False)


# -- source: candidates -----------------------------------------------------------------------


def candidates(model: EngineModel) -> dict[str, Candidate]:
    model.check()
    found = model.moves.candidates(lambda request_id: None)
    return {candidate.request_id: candidate for candidate in found}


def test_candidates_are_all_that_run_or_wait() -> None:
    model = engine(CHUNKED, request("r", 40, rank=1, arrival_time_s=3.0), num_steps=3)
    model.add(request("waits", 30, arrival_time_s=4.0))
    found = candidates(model)
    assert found["r"] == Candidate(
        "r", 1, 43, 3, 3, queued=False, arrival_time_s=3.0, num_outputs=3
    )
    assert found["waits"] == Candidate("waits", 0, 30, 0, 0, queued=True, arrival_time_s=4.0)
    model.add(request("long", 80, arrival_time_s=5.0))
    model.step()
    assert candidates(model)["long"].facts.in_prefill
    assert model.moves.suspend("r") is not None
    assert candidates(model)["r"].facts.leaving
    model.moves.release("r")
    assert "r" not in candidates(model)


@pytest.mark.parametrize("pinned", [False, True])
def test_a_candidate_frees_what_it_does_not_share(pinned: bool) -> None:
    """A pin is its own, and goes with it."""
    alike = {"segment_at": hashes("a")}
    model = engine(CACHING, request("r", 40, **alike), num_steps=2)
    model.add(request("s", 40, **alike))
    model.step()
    if pinned:
        assert model.moves.pin("r", 0) is not None
    found = candidates(model)
    assert {name: (c.num_blocks, c.num_freed_blocks) for name, c in found.items()} == {
        "r": (3, 1),
        "s": (3, 1),
    }
    assert found["r"].facts.leaving is pinned
    before = seen(model).num_free_blocks
    model.moves.unpin("r")
    assert model.moves.suspend("r") is not None
    model.moves.release("r")
    assert seen(model).num_free_blocks == before + 1
    assert candidates(model)["s"].num_freed_blocks == 3


# -- source: pins ---------------------------------------------------------------------------


@pytest.mark.parametrize("group", [None, "a"], ids=["blank", "cached"])
@pytest.mark.parametrize("end", ["abort", "finish", "release"])
def test_pinned_blocks_stay_whatever_becomes_of_the_request(group: str | None, end: str) -> None:
    config = CACHING if group else CHUNKED
    segment_at = hashes(group) if group else None
    model = engine(config, request("a", 40, 3, segment_at=segment_at))
    for first_block in (0, 1, 0):
        assert model.moves.pin("a", first_block) == 2
        assert seen(model).num_used_blocks == 3, "a block of a running request counts once"
    if end == "abort":
        model.abort(["a"])
    elif end == "finish":
        for _ in range(2):
            model.step()
        assert not model.has_work()
    else:
        model.moves.suspend("a")
        assert model.moves.pin("a", 0) is None
        model.moves.release("a")
    assert seen(model).num_used_blocks == 2
    for _ in range(2):
        model.moves.unpin("a")
        assert seen(model).num_used_blocks == 0


def test_pinned_blocks_hold_up_who_waits_and_nobody_spins() -> None:
    model = engine(CHUNKED, request("a", 50))
    assert model.moves.pin("a", 0) == 3
    for _ in range(14):
        model.step()
    assert model.moves.pin("a", 3) == 4, "more blocks are full"
    model.abort(["a"])
    assert seen(model).num_used_blocks == 4
    model.add(request("b", 120))
    assert not model.has_work()
    assert model.step().admitted == ()
    model.moves.unpin("a")
    assert model.has_work()
    assert model.step().admitted == ("b",)


# -- source: suspend ------------------------------------------------------------------------


def test_who_cannot_leave_and_why() -> None:
    model = engine(CHUNKED, request("long", 150), request("next", 20))
    assert refusal_of(model.moves.facts("long")) is MoveRefusal.IN_PREFILL
    assert refusal_of(model.moves.facts("next")) is None
    assert refusal_of(model.moves.facts("unknown")) is MoveRefusal.UNKNOWN
    before = seen(model)
    assert model.moves.suspend("long") is None, "in prefill"
    for request_id in ("long", "next", "unknown"):
        assert model.moves.pin(request_id, 0) is None, "it does not decode"
        model.moves.resume(request_id)
        assert not model.moves.release(request_id)
    assert seen(model) == before
    for operation in (model.moves.suspend, model.moves.is_queued):
        with pytest.raises(KeyError):
            operation("unknown")
    model.step()
    assert refusal_of(model.moves.facts("long")) is None
    model.moves.pin("long", 0)
    assert refusal_of(model.moves.facts("long")) is MoveRefusal.MOVING
    model.moves.unpin("long")
    for request_id in ("long", "next"):
        model.moves.suspend(request_id)
        assert refusal_of(model.moves.facts(request_id)) is MoveRefusal.MOVING
        with pytest.raises(ValueError, match="suspended already"):
            model.moves.suspend(request_id)
    model.check()


@pytest.mark.parametrize("config", [CHUNKED, PAPER])
def test_a_new_rank(config: ModelConfig) -> None:
    waiting = [request(name, 20, arrival_time_s=n) for n, name in enumerate("abcd")]
    model = engine(replace(config, max_num_running=2), *waiting, request("e", 20, rank=2))
    for request_id, rank in (("a", 1), ("b", 3), ("d", 2), ("unknown", 9)):
        model.moves.set_rank(request_id, rank)
    found = seen(model)
    assert (found.queue_head.request_id, found.queue_head.rank) == ("b", 3)
    assert found.num_running_by_rank == {1: 1, 2: 1}
    for request_id in ("a", "d"):
        model.moves.suspend(request_id)
        model.moves.set_rank(request_id, 5)
    found = seen(model)
    assert (found.queue_head.request_id, found.queue_head.rank) == ("d", 5)
    assert found.num_running_by_rank == {2: 1, 5: 1}
    for request_id in ("a", "d"):
        model.moves.resume(request_id)
    model.abort(["a", "e"])
    assert model.step().admitted == ("d", "b")


# -- destination ----------------------------------------------------------------------------


def test_what_arrives_is_no_work_and_blocks_beyond_its_next_token_are_freed() -> None:
    model = engine(CHUNKED, num_steps=0)
    assert model.moves.reserve(request("a", 30, rank=1), 0, 3) == 0
    assert model.moves.extend("a", 9)
    assert model.moves.extend("a", 4), "it has more"
    model.abort(["a"])
    found = seen(model)
    assert (found.num_running_by_rank, found.num_used_blocks) == ({1: 1}, 9), "its move goes on"
    assert not model.has_work()
    with pytest.raises(ValueError, match="already there"):
        model.add(request("a", 40))
    model.moves.commit("a", running(33, rank=2))
    found = seen(model)
    assert found.num_running_by_rank == {2: 1}
    assert found.num_used_blocks == 3, "two are full, and the next token has its own"
    assert model.step().emitted == ("a",)
    assert seen(model).num_used_blocks == 3


def test_the_first_step_of_what_has_arrived_is_a_short_one() -> None:
    """It has waited for a step of the destination already."""
    config = replace(CHUNKED, max_num_batched_tokens=1000, max_model_len=1000, num_total_blocks=99)
    model = engine(config, num_steps=0)
    model.limit_steps(StepLimit(0.3))
    assert model.moves.reserve(request("a", 30), 0, 3) == 0
    model.moves.commit("a", running(31))
    model.add(request("long", 900))
    computed = [model.step().num_prefill_tokens["long"] for _ in range(2)]
    assert computed[0] == LEAST_CHUNK_TOKENS < computed[1]


def test_a_full_batch_and_places_that_are_kept() -> None:
    model = engine(replace(CHUNKED, max_num_running=2), request("a", 20))
    assert model.moves.reserve(request("b", 20), 1, 2) == 0
    assert model.moves.reserve(request("c", 20), 1, 2) is MoveRefusal.NO_SLOT
    assert model.moves.reserve(request("d", 20), 1, 0) == 0, "it will wait"
    model.add(request("e", 20))
    assert model.step().admitted == ()
    model.moves.cancel("b")
    assert model.step().admitted == ("e",)
    model.moves.commit("d", MovingState(21, 0, queued=True, evicted=True))
    assert seen(model).num_evicted_queued == 1


def test_what_a_running_prefill_still_takes_is_left_free() -> None:
    """The prompt of 140 tokens was admitted for 9 blocks, and has 7 after the first step of 100."""
    long_context = replace(CHUNKED, num_total_blocks=14)
    model = engine(long_context, request("long", 140, 5))
    now = seen(model)
    assert (now.num_free_blocks, now.fill_blocks, now.arrivable_blocks) == (7, 2, 5)
    assert model.moves.reserve(request("a", 80), 1, 6) is MoveRefusal.NO_BLOCKS
    assert model.moves.reserve(request("a", 60), 1, 4) == 0
    assert not model.moves.extend("a", 6)
    assert model.moves.extend("a", 5)
    result = model.step()
    assert (result.evicted, result.emitted) == ((), ("long",))
    assert model.moves.extend("a", 5), "and it asks for no more than that"


def test_the_watermark_is_left_free_unless_it_is_alone() -> None:
    careful = replace(CHUNKED, watermark_blocks=2)
    model = engine(careful, num_steps=0)
    assert model.moves.reserve(request("a", 100), 1, 7) == 0
    assert model.moves.extend("a", 10)
    assert not model.moves.extend("a", 11)
    model.moves.cancel("a")
    model.add(request("b", 20))
    model.step()
    assert model.moves.reserve(request("a", 100), 1, 7) is MoveRefusal.NO_BLOCKS
    assert model.moves.reserve(request("a", 80), 1, 6) == 0
    assert not model.moves.extend("a", 7)
    assert seen(model).num_free_blocks == 2
    model.abort(["b"])
    assert model.moves.extend("a", 7)


@pytest.mark.parametrize("num_blocks", [3, 2])
def test_cached_blocks_need_no_copy(num_blocks: int) -> None:
    model = engine(CACHING, request("old", 40, 1, segment_at=hashes("same")))
    moving = request("a", 40, segment_at=hashes("same"))
    assert model.moves.reserve(moving, 8, num_blocks) == 2
    assert seen(model).num_used_blocks == num_blocks
    model.moves.extend("a", 3)
    model.moves.commit("a", running(49))
    # What it brought is found by others, and what is shared costs nothing.
    assert model.moves.reserve(request("b", 49, segment_at=hashes("same")), 1, 4) == 3
    assert seen(model).num_used_blocks == 4


def test_what_cannot_be_taken() -> None:
    model = engine(CHUNKED, request("there", 20))
    model.moves.reserve(request("arriving", 20), 0, 1)
    before = seen(model)
    for asked, num_outputs in (
        (request("there", 20), 0),
        (request("arriving", 20), 0),
        (request("a", 20, 5), 5),
        (request("a", 160), 0),
    ):
        assert model.moves.reserve(asked, num_outputs, 1) is MoveRefusal.NOT_TAKEN
        assert seen(model) == before


def test_a_state_that_does_not_fit() -> None:
    model = engine(CHUNKED, num_steps=0)
    model.moves.reserve(request("a", 40), 5, 3)
    before = seen(model)
    for moved, complaint in (
        (running(44), "cannot have 44 tokens"),
        (running(90), "cannot have 90 tokens"),
        (running(50), "but 3 blocks are kept"),
        (MovingState(46, 0, queued=True, evicted=True), "queued on one side"),
    ):
        with pytest.raises(ValueError, match=complaint):
            model.moves.commit("a", moved)
        assert seen(model) == before
    model.moves.commit("a", running(49))
    assert model.step().emitted == ("a",)
    for operation, more in ((model.moves.commit, running(49)), (model.moves.extend, 3)):
        with pytest.raises(KeyError):
            operation("a", more)


def test_a_queued_arrival_gets_no_blocks_before_its_turn() -> None:
    model = engine(replace(CHUNKED, max_num_running=1), request("a", 20, 1))
    model.add(request("late", 20, arrival_time_s=9.0))
    assert model.moves.reserve(request("b", 20, arrival_time_s=5.0), 6, 0) == 0
    assert not model.moves.extend("b", 2)
    with pytest.raises(ValueError, match="queued on one side"):
        model.moves.commit("b", running(26))
    model.moves.commit("b", MovingState(26, 1, queued=True, evicted=True))
    found = seen(model)
    assert (found.num_queued, found.num_evicted_queued, found.num_evictions) == (2, 1, 0)
    assert (found.queue_head.request_id, found.queue_head.rank) == ("b", 1)
    assert model.step().num_prefill_tokens == {"b": 26}
