"""Handovers of cached prompts between llumlets with deterministic engines. Blocks come back (the
`moving` fixture looks at that at the end)."""

import pytest

from controller.runtime.messages.move_messages import HandoverEnded, HandoverOrdered, PromptTaken
from tests.unit.runtime.fake_engine import BLOCK_SIZE
from tests.unit.runtime.moving_cluster import MovingCluster

NUM_CACHED = 6
PROMPT = NUM_CACHED * BLOCK_SIZE + 4


async def computed(moving: MovingCluster) -> None:
    """i-0 has computed a prompt and has it cached."""
    await moving.frontend.submit("r", PROMPT, 3)
    await moving.finishes()
    await moving.at_boundary(moving.a, lambda _: moving.a.engine.prefixes.fill(NUM_CACHED))


def order(moving: MovingCluster, *destination_ids: str, within_s: float = 10.0) -> None:
    refs = tuple(moving.controller.ref(each) for each in destination_ids)
    moving.controller.send("i-0", HandoverOrdered("op-1", refs, within_s))


async def ended(moving: MovingCluster) -> HandoverEnded:
    await moving.until(lambda: moving.controller.handovers)
    (told,) = moving.controller.handovers
    assert (told.source.instance_id, told.cause_id) == ("i-0", "op-1")
    return told


async def test_another_instance_has_what_was_computed(moving: MovingCluster) -> None:
    await computed(moving)
    order(moving, "i-1", "i-2")
    told = await ended(moving)
    assert (told.num_prompts, told.num_tokens) == (1, NUM_CACHED * BLOCK_SIZE)
    assert told.complete
    prefixes = moving.b.engine.prefixes
    assert (len(prefixes.cached), prefixes.is_right()) == (NUM_CACHED, True)
    assert moving.instances["i-2"].engine.prefixes.cached == [], "it has one place"
    status = moving.controller.statuses["i-1"]
    assert status.num_fetched_tokens == 0, "no request needed it yet"


async def test_what_is_not_cached_any_more_is_nothing_to_hand_over(moving: MovingCluster) -> None:
    await moving.frontend.submit("r", PROMPT, 3)
    await moving.finishes()
    order(moving, "i-1")
    told = await ended(moving)
    assert (told.num_prompts, told.num_tokens, told.complete) == (0, 0, True)


async def test_an_instance_that_has_no_room_or_leaves_is_not_filled(moving: MovingCluster) -> None:
    await computed(moving)
    moving.instances["i-2"].serving.instance_moves.draining = True
    async with moving.filled(55):
        order(moving, "i-1", "i-2")
        told = await ended(moving)
    assert (told.num_prompts, told.complete) == (0, False)
    assert moving.b.engine.prefixes.cached == []


async def test_a_destination_that_dies_is_not_waited_for(moving: MovingCluster) -> None:
    await computed(moving)
    moving.a.transfer.holds = lambda stage_id: True
    order(moving, "i-1", "i-2")
    await moving.until(lambda: moving.a.transfer.num_under_way)
    moving.a.transfer.holds = lambda stage_id: False
    await moving.kill("i-1")
    told = await ended(moving)
    assert (told.num_prompts, told.complete) == (1, True)
    assert len(moving.instances["i-2"].engine.prefixes.cached) == NUM_CACHED


async def test_a_source_that_dies_leaves_no_blocks_behind(moving: MovingCluster) -> None:
    await computed(moving)
    moving.a.transfer.holds = lambda stage_id: True
    order(moving, "i-1")
    await moving.until(lambda: moving.a.transfer.num_under_way)
    await moving.kill("i-0")
    await moving.until(lambda: moving.b.serving.fetches.quiet)
    assert moving.b.engine.prefixes.cached == []


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_handover_ends_at_its_limit(moving: MovingCluster, is_lost: bool) -> None:
    """Whether or not the answer that it waits for comes."""
    await computed(moving)
    moving.network.drops = lambda m: is_lost and isinstance(m, PromptTaken)
    moving.a.transfer.holds = lambda stage_id: not is_lost
    order(moving, "i-1", within_s=0.05)
    await moving.until(lambda: moving.a.transfer.num_under_way or is_lost)
    moving.clock.now_s += 1.0
    told = await ended(moving)
    assert (told.num_prompts, told.complete) == (0, False)
    moving.a.transfer.holds = lambda stage_id: False


async def test_an_order_that_comes_meanwhile_is_carried_out_afterwards(
    moving: MovingCluster,
) -> None:
    await computed(moving)
    order(moving, "i-1")
    order(moving, "i-2")
    await moving.until(lambda: len(moving.controller.handovers) == 2)
    for instance_id in ("i-1", "i-2"):
        assert len(moving.instances[instance_id].engine.prefixes.cached) == NUM_CACHED
