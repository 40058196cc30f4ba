"""Requests that move between emulated engines: the tokens are those of the unmoved run."""

import random
from collections.abc import Callable

import msgspec
import pytest

from controller.adapters import vllm_wire as wire
from controller.adapters.emulated.emulated_engine import DIGEST_BYTES
from controller.api.token_sequence import start, token
from controller.core.migration.refusals import MoveRefusal, refusal_of
from controller.ports.engine import EngineMoves, ReservedBlocks, SuspendedRequest
from tests.unit.emulated.emulated_builders import (
    EOS,
    Clock,
    decode,
    finish,
    frames,
    make_engine,
    prompt,
)
from tools.emulated_answers import first_wrong

Spoil = Callable[[memoryview], None]


class Bed:
    """Two engines and their clients. `tokens`: what each client got, in order."""

    def __init__(self, **sizes: object) -> None:
        self.clock = Clock()
        self.engines = [make_engine(self.clock, **sizes) for _ in range(2)]
        self.frames: dict[str, list[bytes]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.outputs: dict[str, list[wire.Output]] = {}
        self.owner: dict[str, int] = {}
        self.num_copied = 0
        self.touched: set[tuple[int, int]] = set()
        """(engine, block)"""
        self.spoil: Spoil | None = None

    def add(self, request_id: str, ids: list[int], at: int = 0, **given: object) -> None:
        self.frames[request_id] = frames(request_id, ids, **given)
        engine = self.engines[at]
        engine.add(engine.prepare(self.frames[request_id], 3))
        self.tokens[request_id], self.outputs[request_id] = [], []
        self.owner[request_id] = at

    def step(self, at: int, num_steps: int = 1) -> None:
        engine = self.engines[at]
        for _ in range(num_steps):
            for step in engine.step():
                assert step.frontend_index == 3 or not step.emitted
                for output in decode(engine, step).outputs:
                    assert self.owner[output.request_id] == at
                    self.outputs[output.request_id].append(output)
                    self.tokens[output.request_id] += output.new_token_ids
                    if output.finish_reason is not None:
                        del self.owner[output.request_id]

    def finish(self) -> None:
        """Then the tokens are those of the unmoved run, and nothing is left."""
        while any(engine.has_work() for engine in self.engines):
            for at in (0, 1):
                self.step(at)
        unmoved = make_engine()
        for request in self.frames.values():
            unmoved.add(unmoved.prepare(request, 3))
        assert self.tokens == finish(unmoved)
        self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        for engine in self.engines:
            found = engine.snapshot("", 0)
            assert found.num_free_blocks == found.num_total_blocks
            assert (found.num_running, found.num_queued) == (0, 0)
            for request_id in self.frames:
                with pytest.raises(KeyError):
                    engine.moves.outputs(request_id)
        for at, block_id in self.touched:
            blocks = self.moves(at).blocks
            for touch in (blocks.gather, blocks.scatter):
                with pytest.raises(KeyError):
                    touch([block_id], blocks.buffer(1))

    def moves(self, at: int) -> EngineMoves:
        return self.engines[at].moves

    def reserve(self, request_id: str, num_blocks: int) -> ReservedBlocks | MoveRefusal:
        at = self.owner[request_id]
        prepared = self.engines[1 - at].prepare(self.frames[request_id], 3)
        return self.moves(1 - at).reserve(prepared, self.moves(at).outputs(request_id), num_blocks)

    def suspend(self, request_id: str) -> SuspendedRequest:
        suspended = self.moves(self.owner[request_id]).suspend(request_id)
        assert suspended is not None
        return suspended

    def copy(self, at: int, source: tuple[int, ...], destination: tuple[int, ...]) -> None:
        sent = self.contents(at, source)
        there = self.moves(1 - at).blocks
        buffer = there.buffer(len(destination))
        there.writable(buffer, len(destination))[:] = sent
        if self.spoil is not None:
            self.spoil(there.writable(buffer, len(destination)))
        there.scatter(destination, buffer)
        self.num_copied += len(source)
        self.touched |= {(1 - at, block_id) for block_id in destination}

    def contents(self, at: int, block_ids: tuple[int, ...]) -> bytes:
        self.touched |= {(at, block_id) for block_id in block_ids}
        blocks = self.moves(at).blocks
        return bytes(blocks.gather(block_ids, blocks.buffer(len(block_ids))))

    def move(self, request_id: str, steps_between: int = 2) -> bool:
        """Copies the full blocks while the request decodes, and then the rest. Returns whether the
        request arrived."""
        at = self.owner[request_id]
        source, destination = self.moves(at), self.moves(1 - at)
        if refusal_of(source.facts(request_id)) is not None:
            return False
        if source.is_queued(request_id):
            if isinstance(self.reserve(request_id, 0), MoveRefusal):
                return False
            suspended = self.suspend(request_id)
            assert suspended.block_ids == (), "it moves without a copy"
            self.hand_over(request_id, suspended)
            return True
        arrived = False
        pinned = source.pin(request_id, 0)
        num_full = len(pinned.block_ids)
        got = self.reserve(request_id, max(1, num_full))
        if isinstance(got, ReservedBlocks):
            first = min(got.num_cached, num_full)
            self.copy(at, pinned.block_ids[first:], got.block_ids[first:num_full])
            self.step(at, steps_between)
            still_decodes = request_id in self.owner and source.pin(request_id, num_full)
            if still_decodes:
                arrived = self.finish_move(request_id, max(num_full, got.num_cached))
        source.unpin(request_id)
        destination.cancel(request_id)
        return arrived

    def finish_move(self, request_id: str, num_copied: int) -> bool:
        at = self.owner[request_id]
        suspended = self.suspend(request_id)
        got = self.moves(1 - at).extend(request_id, len(suspended.block_ids))
        if got is None:
            self.moves(at).resume(request_id)
            return False
        ours, theirs = suspended.block_ids, got.block_ids[: len(suspended.block_ids)]
        # A block that is partly filled, and those that the cache had too many.
        first = min(num_copied, len(ours))
        self.copy(at, ours[first:], theirs[first:])
        same = self.contents(at, ours) == self.contents(1 - at, theirs)
        assert same == (self.spoil is None), "what --verify-kv compares"
        self.hand_over(request_id, suspended)
        return True

    def hand_over(self, request_id: str, suspended: SuspendedRequest) -> None:
        at = self.owner[request_id]
        self.moves(1 - at).commit(request_id, suspended.state)
        self.moves(at).release(request_id)
        self.owner[request_id] = 1 - at


def test_an_evicted_request_moves_with_its_outputs() -> None:
    bed = Bed(num_total_blocks=20, watermark_ratio=0.0, max_model_len=320)
    bed.add("stays", prompt(0, 100), max_tokens=150)
    bed.add("r", prompt(1, 100), max_tokens=150, arrival_s=1.0)
    while not bed.engines[0].snapshot("", 0).num_evicted_queued:
        bed.step(0)
    so_far = len(bed.tokens["r"])
    assert so_far > 0
    assert bed.move("r")
    there = bed.engines[1].snapshot("", 0)
    assert (there.num_evicted_queued, there.num_evictions) == (1, 0)
    bed.step(1)
    (admitted,) = bed.engines[1].take_events()
    assert (admitted.kind, admitted.num_tokens) == ("admitted", 100 + so_far)
    bed.finish()
    told = [event.type for event in bed.outputs["r"][so_far].events or ()]
    assert told == [wire.PREEMPTED, wire.SCHEDULED], "the source did not come to say it"
    assert all(output.prefill_stats is None for output in bed.outputs["r"][1:])


# -- wrong blocks -----------------------------------------------------------------------------


def flip_a_bit(filled: memoryview) -> None:
    if filled:
        filled[-1] ^= 1


def swap_two_blocks(filled: memoryview) -> None:
    if len(filled) >= 2 * DIGEST_BYTES:
        one, other = bytes(filled[:DIGEST_BYTES]), bytes(filled[DIGEST_BYTES : 2 * DIGEST_BYTES])
        filled[: 2 * DIGEST_BYTES] = other + one


@pytest.mark.parametrize("spoil", [flip_a_bit, swap_two_blocks])
def test_a_wrong_block_shows_in_its_digest_and_in_the_answer(spoil: Spoil) -> None:
    """The engine that got the block reports no error, as a real one would not."""
    ids = prompt(0, 100)
    bed = Bed()
    bed.add("r", ids, max_tokens=60)
    bed.step(0, 3)
    bed.spoil = spoil
    assert bed.move("r"), "`move` compares the digests"
    moved_at = len(bed.tokens["r"])
    bed.step(1, 3)
    bed.spoil = None
    assert bed.move("r")
    assert bed.moves(0).outputs("r") == bed.tokens["r"]
    while bed.owner:
        bed.step(0)
    assert len(bed.tokens["r"]) == 60
    assert first_wrong(start(ids), bed.tokens["r"]) == moved_at
    bed.assert_nothing_left()


def test_a_new_rank_goes_along_and_drop_forgets_a_committed_request() -> None:
    bed = Bed(max_num_running=1)
    bed.add("r", prompt(0, 50), max_tokens=40)
    bed.step(0)
    bed.moves(0).set_rank("r", 4)
    assert bed.move("r")
    assert bed.engines[1].snapshot("", 0).num_running_by_rank == {4: 1}
    bed.add("waits", prompt(1, 50), 1, max_tokens=40)
    bed.moves(1).set_rank("waits", 4)
    assert bed.move("waits")
    head = bed.engines[0].snapshot("", 0).queue_head
    assert head.rank == 4
    for at, request_id in ((1, "r"), (0, "waits")):
        bed.moves(at).drop(request_id)
    bed.assert_nothing_left()
    assert not any(engine.has_work() for engine in bed.engines)


# -- everything else ----------------------------------------------------------------------------


def test_an_aborted_request_leaves_nothing_but_its_pins() -> None:
    bed = Bed()
    for request_id in ("pinned", "suspended"):
        bed.add(request_id, prompt(0, 50), max_tokens=40)
    bed.step(0)
    pinned = bed.moves(0).pin("pinned", 0)
    assert pinned is not None
    bed.contents(0, bed.suspend("suspended").block_ids)
    bed.engines[0].abort(["pinned", "suspended"])
    assert bed.engines[0].snapshot("", 0).num_used_blocks == 3
    assert len(bed.contents(0, pinned.block_ids)) == 3 * DIGEST_BYTES
    assert bed.moves(0).pin("pinned", 0) is None
    bed.moves(0).unpin("pinned")
    for operation in (bed.moves(0).release, bed.moves(0).resume, bed.moves(0).unpin):
        operation("suspended")
    bed.assert_nothing_left()


def test_a_state_that_is_none_or_outgrew_its_blocks_leaves_the_reservation() -> None:
    bed = Bed()
    bed.add("r", prompt(0, 47), max_tokens=40)
    bed.step(0)
    reserved = bed.reserve("r", 3)
    bed.step(0, 5)
    suspended = bed.suspend("r")
    assert len(suspended.block_ids) == 4
    bad = [[], [b"\xc1"], [msgspec.msgpack.encode([1, 2])], [msgspec.msgpack.encode("no")]]
    for state in (*bad, [b"", b""], suspended.state):
        with pytest.raises(ValueError, match=r"state of an emulated request|unpack|3 blocks are"):
            bed.moves(1).commit("r", state)
        assert bed.moves(1).extend("r", 3) == reserved
    bed.moves(1).cancel("r")
    bed.moves(0).resume("r")
    bed.finish()


@pytest.mark.parametrize("seed", range(4))
def test_random_moves_in_tight_memory(seed: int) -> None:
    """Answers end by themselves, by a stop token or by their bound; beginnings are shared, by
    requests of one salt."""
    dice = random.Random(seed)
    bed = Bed(
        num_total_blocks=40,
        max_num_running=6,
        max_num_batched_tokens=64,
        max_model_len=600,
        prefix_caching=seed % 2 == 0,
    )
    num_moved = 0
    for number in range(14):
        ids = prompt(number % 5, dice.choice([1, 15, 16, 17, *range(18, 200)]))
        given: dict[str, object] = {"max_tokens": dice.randint(40, 160), "arrival_s": float(number)}
        given |= {"rank": dice.choice([0, 0, 1]), "salt": dice.choice([None, None, "mine"])}
        given |= dice.choice(
            [{}, {"_eos_token_id": EOS}, {"stop_token_ids": [token(start(ids), 30)]}]
        )
        bed.add(f"r-{number}", ids, dice.randrange(2), **given)
    while bed.owner:
        for at in (0, 1):
            bed.step(at, dice.randint(0, 3))
        for _ in range(dice.randint(0, 3)):
            if bed.owner:
                num_moved += bed.move(dice.choice(sorted(bed.owner)), dice.randint(0, 3))
    assert num_moved > 20
    assert sum(engine.snapshot("", 0).num_evictions for engine in bed.engines) > 0
    bed.finish()


def test_a_candidate_may_emit_what_its_client_allows_whatever_it_will_answer() -> None:
    """As with a real engine, it is unknown when an answer will end."""
    bed = Bed()
    bed.add("r", prompt(1, 40), max_tokens=500, _eos_token_id=EOS)
    bed.add("s", prompt(2, 40), max_tokens=None)
    bed.step(0, 3)
    found = {c.request_id: c.num_tokens_left for c in bed.moves(0).candidates()}
    num_emitted = {name: len(bed.tokens[name]) for name in found}
    assert found == {
        "r": 500 - num_emitted["r"],
        "s": bed.engines[0].max_model_len - 40 - num_emitted["s"],
    }
