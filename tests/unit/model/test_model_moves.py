"""What moves do to an engine model, rule by rule; `test_model_moves_machine` tries everything."""

from collections.abc import Callable, Hashable
from dataclasses import replace

import pytest

from controller.core.emptying.relief import Candidate
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.migration.refusals import MoveRefusal, refusal_of
from controller.model.engine_model import EngineModel
from controller.model.engine_state import ModelRequest
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


def hashes(group: str) -> Callable[[int], Hashable]:
    return lambda index: (group, index)


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
    assert found["r"] == Candidate("r", 1, 43, 3, 3, queued=False, arrival_time_s=3.0)
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
    alike = {"block_hash": hashes("a")}
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
@pytest.mark.parametrize("end", ["abort", "evict", "finish", "release"])
def test_pinned_blocks_stay_whatever_becomes_of_the_request(group: str | None, end: str) -> None:
    config = CACHING if group else CHUNKED
    block_hash = hashes(group) if group else None
    model = engine(config, request("a", 40, 3, block_hash=block_hash, arrival_time_s=5.0))
    assert model.moves.pin("a", 0) == 2
    if end == "abort":
        model.abort(["a"])
    elif end == "evict":
        # The other one grows into everything that is not pinned.
        model.add(request("b", 106, 50, rank=1))
        model.moves.suspend("a")
        for _ in range(7):
            model.step()
        model.moves.resume("a")
        while not model.num_evictions:
            model.step()
    elif end == "finish":
        for _ in range(2):
            model.step()
        assert not model.has_work()
    else:
        model.moves.suspend("a")
        model.moves.release("a")
    model.abort(["a", "b"])
    assert seen(model).num_used_blocks == 2
    model.moves.unpin("a")
    assert seen(model).num_used_blocks == 0
    model.moves.unpin("a")
    assert seen(model).num_used_blocks == 0


@pytest.mark.parametrize("config", [CHUNKED, CACHING])
def test_a_block_pinned_twice_or_of_a_running_request_counts_once(config: ModelConfig) -> None:
    model = engine(config, request("a", 50, block_hash=hashes("a")))
    for first_block in (0, 2, 0):
        assert model.moves.pin("a", first_block) == 3
        assert seen(model).num_used_blocks == 4
    model.moves.unpin("a")
    assert seen(model).num_used_blocks == 4


def test_more_is_pinned_as_more_blocks_are_full() -> None:
    model = engine(CHUNKED, request("a", 40))
    assert model.moves.pin("a", 0) == 2
    for _ in range(8):
        model.step()
    assert model.moves.pin("a", 2) == 3
    model.abort(["a"])
    assert seen(model).num_used_blocks == 3


def test_who_does_not_decode_is_not_pinned() -> None:
    model = engine(CHUNKED, request("a", 150), request("b", 20))
    for request_id in ("a", "b", "unknown"):
        assert model.moves.pin(request_id, 0) is None
    model.step()
    assert model.moves.pin("a", 0) == 9
    model.moves.suspend("a")
    assert model.moves.pin("a", 0) is None
    assert seen(model).num_used_blocks == 10


def test_pinned_blocks_hold_up_who_waits_and_nobody_spins() -> None:
    model = engine(CHUNKED, request("a", 50))
    model.moves.pin("a", 0)
    model.abort(["a"])
    model.add(request("b", 120))
    assert not model.has_work()
    assert model.step().admitted == ()
    model.moves.unpin("a")
    assert model.has_work()
    assert model.step().admitted == ("b",)


# -- source: suspend ------------------------------------------------------------------------


@pytest.mark.parametrize("config", [CHUNKED, PAPER])
def test_a_queued_request_goes_back_to_its_place(config: ModelConfig) -> None:
    waiting = [request(name, 20, arrival_time_s=n) for n, name in enumerate("abcd")]
    model = engine(replace(config, max_num_running=1), *waiting)
    before = seen(model)
    assert before.queue_head.request_id == "b"
    assert model.moves.is_queued("b")
    assert not model.moves.is_queued("a")
    assert model.moves.suspend("b") == MovingState(20, 0, queued=True, evicted=False)
    assert seen(model) == before, "it waits as before until it lives elsewhere"
    model.abort(["a"])
    assert model.step().admitted == ("c",), "but is not admitted"
    model.moves.resume("b")
    model.abort(["c"])
    assert model.step().admitted == ("b",)
    model.moves.suspend("d")
    model.moves.release("d")
    found = seen(model)
    assert (found.num_queued, found.queued_demand_blocks, found.queue_head) == (0, 0, None)


def test_who_cannot_be_suspended_resumed_or_released() -> None:
    model = engine(CHUNKED, request("long", 150), request("next", 20))
    before = seen(model)
    assert model.moves.suspend("long") is None, "in prefill"
    for request_id in ("long", "next", "unknown"):
        model.moves.resume(request_id)
        assert not model.moves.release(request_id)
    assert seen(model) == before
    for operation in (model.moves.suspend, model.moves.is_queued):
        with pytest.raises(KeyError):
            operation("unknown")
    model.step()
    model.moves.suspend("long")
    with pytest.raises(ValueError, match="suspended already"):
        model.moves.suspend("long")
    model.check()


def test_refusals() -> None:
    model = engine(CHUNKED, request("long", 150), request("next", 20))
    assert refusal_of(model.moves.facts("long")) is MoveRefusal.IN_PREFILL
    assert refusal_of(model.moves.facts("next")) is None
    assert refusal_of(model.moves.facts("unknown")) is MoveRefusal.UNKNOWN
    model.step()
    assert refusal_of(model.moves.facts("long")) is None
    model.moves.pin("long", 0)
    assert refusal_of(model.moves.facts("long")) is MoveRefusal.MOVING
    model.moves.unpin("long")
    for request_id in ("long", "next"):
        model.moves.suspend(request_id)
        assert refusal_of(model.moves.facts(request_id)) is MoveRefusal.MOVING


@pytest.mark.parametrize("config", [CHUNKED, PAPER])
def test_a_new_rank(config: ModelConfig) -> None:
    waiting = [request(name, 20, arrival_time_s=n) for n, name in enumerate("abcd")]
    model = engine(replace(config, max_num_running=2), *waiting, request("e", 20, rank=2))
    assert seen(model).num_running_by_rank == {0: 1, 2: 1}
    for request_id, rank in (("a", 1), ("b", 3), ("d", 2), ("unknown", 9)):
        model.moves.set_rank(request_id, rank)
    head = seen(model).queue_head
    assert (head.request_id, head.rank) == ("b", 3)
    assert seen(model).num_running_by_rank == {1: 1, 2: 1}
    for request_id in ("a", "d"):
        model.moves.suspend(request_id)
        model.moves.set_rank(request_id, 5)
    head = seen(model).queue_head
    assert (head.request_id, head.rank) == ("d", 5)
    assert seen(model).num_running_by_rank == {2: 1, 5: 1}
    for request_id in ("a", "d"):
        model.moves.resume(request_id)
    model.abort(["a", "e"])
    assert model.step().admitted == ("d", "b")
    assert seen(model).num_running_by_rank == {5: 1, 3: 1}


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
    model = engine(CACHING, request("old", 40, 1, block_hash=hashes("same")))
    assert seen(model).num_used_blocks == 0
    moving = request("a", 40, block_hash=hashes("same"))
    assert model.moves.reserve(moving, 8, num_blocks) == 2
    assert seen(model).num_used_blocks == num_blocks
    model.moves.extend("a", 3)
    model.moves.commit("a", running(49))
    # What it brought is found by others.
    assert model.moves.reserve(request("b", 49, block_hash=hashes("same")), 1, 4) == 3
    assert seen(model).num_used_blocks == 4


def test_shared_blocks_cost_nothing() -> None:
    model = engine(CACHING, request("old", 113, 40, block_hash=hashes("same")), num_steps=2)
    assert seen(model).num_free_blocks == 2
    found = model.moves.reserve(request("a", 113, block_hash=hashes("same")), 8, 8)
    assert found == 7
    assert seen(model).num_free_blocks == 1


def test_a_cached_block_that_nobody_uses_is_one_of_the_free() -> None:
    model = engine(CACHING, request("old", 40, 1, block_hash=hashes("same")))
    model.add(request("b", 100))
    model.step()
    moving = request("a", 40, block_hash=hashes("same"))
    before = seen(model)
    assert before.num_free_blocks == 3
    assert model.moves.reserve(moving, 20, 4) is MoveRefusal.NO_BLOCKS
    assert seen(model) == before
    assert model.moves.reserve(moving, 8, 3) == 2


@pytest.mark.parametrize(
    ("asked", "num_outputs"),
    [
        (request("there", 20), 0),
        (request("arriving", 20), 0),
        (request("a", 20, 5), 5),
        (request("a", 160), 0),
        (request("a", 0), 0),
    ],
)
def test_what_cannot_be_taken(asked: ModelRequest, num_outputs: int) -> None:
    model = engine(CHUNKED, request("there", 20))
    model.moves.reserve(request("arriving", 20), 0, 1)
    before = seen(model)
    assert model.moves.reserve(asked, num_outputs, 1) is MoveRefusal.NOT_TAKEN
    assert seen(model) == before


@pytest.mark.parametrize(
    ("moved", "complaint"),
    [
        (running(44), "cannot have 44 tokens"),
        (running(90), "cannot have 90 tokens"),
        (running(50), "but 3 blocks are kept"),
        (MovingState(46, 0, queued=True, evicted=True), "queued on one side"),
    ],
)
def test_a_state_that_does_not_fit(moved: MovingState, complaint: str) -> None:
    model = engine(CHUNKED, num_steps=0)
    model.moves.reserve(request("a", 40), 5, 3)
    before = seen(model)
    with pytest.raises(ValueError, match=complaint):
        model.moves.commit("a", moved)
    assert seen(model) == before
    model.moves.commit("a", running(49))
    assert model.step().emitted == ("a",)
    for request_id in ("a", "unknown"):
        with pytest.raises(KeyError):
            model.moves.commit(request_id, running(49))
        with pytest.raises(KeyError):
            model.moves.extend(request_id, 3)


def test_a_queued_arrival_gets_no_blocks_before_its_turn() -> None:
    model = engine(replace(CHUNKED, max_num_running=1), request("a", 20, 1))
    model.add(request("late", 20, arrival_time_s=9.0))
    assert model.moves.reserve(request("b", 20, arrival_time_s=5.0), 6, 0) == 0
    assert not model.moves.extend("b", 2)
    assert seen(model).num_queued == 1
    with pytest.raises(ValueError, match="queued on one side"):
        model.moves.commit("b", running(26))
    model.moves.commit("b", MovingState(26, 1, queued=True, evicted=True))
    found = seen(model)
    assert (found.num_queued, found.num_evicted_queued, found.num_evictions) == (2, 1, 0)
    assert (found.queue_head.request_id, found.queue_head.rank) == ("b", 1)
    step = model.step()
    assert step.admitted == ("b",)
    assert step.num_prefill_tokens == {"b": 26}


def test_a_committed_request_without_a_free_block_takes_another_s() -> None:
    """Its destination evicts like for any running request."""
    model = engine(CHUNKED, request("low", 100, arrival_time_s=9.0))
    model.moves.reserve(request("a", 40, rank=1), 5, 3)
    model.moves.commit("a", running(49, rank=1))
    step = model.step()
    assert step.evicted == ("low",)
    assert step.emitted == ("a",)
    model.check()
