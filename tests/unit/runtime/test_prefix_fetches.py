"""Fetches of cached prefixes between llumlets with deterministic engines: whatever happens,
requests get their tokens and blocks come back (the `moving` fixture looks at that at the end)."""

from collections.abc import Sequence

import pytest

from controller.core.migration.copy_checks import QUARANTINE_S, VERIFIED_EVERY
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.scheduler_events import THE_EARLIER_FETCH, Fetch
from controller.runtime.messages.members import Message
from controller.runtime.messages.move_messages import PrefixAsked, PrefixDigest
from tests.unit.runtime.fake_engine import BLOCK_SIZE, FakeBlocks
from tests.unit.runtime.moving_cluster import MovingCluster

NUM_CACHED = 5
PROMPT = 7 * BLOCK_SIZE


async def fetch(
    moving: MovingCluster,
    request_id: str = "r",
    *,
    limit_s: float = 60.0,
    num_cached: int = NUM_CACHED,
    has_to_wait: bool = False,
    source_id: str = "i-0",
) -> None:
    """A request comes to i-1, which is to fetch what i-0 has."""
    source = moving.instances[source_id]
    await moving.at_boundary(source, lambda _: source.engine.prefixes.fill(num_cached))
    moving.controller.places[request_id] = "i-1"
    asked = Fetch(source_id, 1, NUM_CACHED * BLOCK_SIZE, limit_s)
    moving.controller.fetches[request_id] = THE_EARLIER_FETCH if has_to_wait else asked
    await moving.frontend.submit(request_id, PROMPT, 6)


async def told(moving: MovingCluster, request_id: str = "r") -> LoggedEvent:
    kind = EventKind.PREFIX_FETCHED
    await moving.until(lambda: moving.events(kind, request_id))
    (event,) = moving.events(kind, request_id)
    return event


async def comes_under_way(moving: MovingCluster) -> None:
    """The copy begins, and goes no further."""
    moving.a.transfer.holds = lambda stage_id: True
    await fetch(moving)
    await moving.until(lambda: moving.a.transfer.num_under_way)


async def test_what_another_instance_has_is_there_before_the_request(
    moving: MovingCluster,
) -> None:
    await fetch(moving)
    event = await told(moving)
    assert event.labels == {"from": "i-0", "outcome": "fetched"}
    assert event.numbers["num_blocks"] == NUM_CACHED
    assert event.numbers["num_tokens"] == NUM_CACHED * BLOCK_SIZE
    assert event.instance_id == "i-1"
    await moving.until(lambda: event in moving.controller.events)
    await moving.finishes()
    prefixes = moving.b.engine.prefixes
    assert (len(prefixes.cached), prefixes.is_right()) == (NUM_CACHED, True)

    def status_counts_it() -> bool:
        status = moving.controller.statuses["i-1"]
        return status.num_fetched_tokens_last_minute == NUM_CACHED * BLOCK_SIZE

    await moving.until(status_counts_it)
    assert moving.controller.statuses["i-1"].snapshot.copy_token_s > 0


async def test_only_what_the_source_still_has_comes(moving: MovingCluster) -> None:
    await fetch(moving, num_cached=2)
    assert (await told(moving)).numbers["num_blocks"] == 2
    await moving.finishes()
    assert moving.b.engine.prefixes.is_right()


async def test_meanwhile_it_counts_as_queued_and_the_dispatch_as_reported(
    moving: MovingCluster,
) -> None:
    await comes_under_way(moving)

    def is_counted() -> bool:
        status = moving.controller.statuses["i-1"]
        snapshot = status.snapshot
        queued = snapshot.num_queued, snapshot.queued_demand_blocks, snapshot.num_queued_by_rank
        return queued == (1, PROMPT // BLOCK_SIZE, {0: 1}) and status.last_dispatch_seq == 1

    await moving.until(is_counted)
    assert moving.b.llumlet.num_live_reqs == 1


@pytest.mark.parametrize(
    ("num_cached", "filled", "outcome"),
    [(0, 0, "not-there"), (NUM_CACHED, NUM_CACHED, "had-it"), (NUM_CACHED, -1, "no-room")],
)
async def test_a_fetch_that_brings_nothing_does_not_hold_the_request_up(
    moving: MovingCluster, num_cached: int, filled: int, outcome: str
) -> None:
    engine = moving.b.engine
    if filled >= 0:
        await moving.at_boundary(moving.b, lambda _: engine.prefixes.fill(filled))
        await fetch(moving, num_cached=num_cached)
        assert (await told(moving)).labels["outcome"] == outcome
    else:
        async with moving.filled(62):
            await fetch(moving)
            assert (await told(moving)).labels["outcome"] == outcome
    await moving.finishes()


async def test_a_source_that_does_not_answer_in_time_is_not_waited_for(
    moving: MovingCluster,
) -> None:
    moving.a.transfer.holds = lambda stage_id: True
    await fetch(moving, limit_s=0.0)
    await moving.until(lambda: moving.a.transfer.num_under_way)
    moving.clock.now_s += 1.0
    assert (await told(moving)).labels["outcome"] == "late"
    await moving.until(lambda: moving.a.transfer.num_under_way == 0)
    await moving.finishes()
    assert moving.b.engine.prefixes.cached == []


async def test_nothing_is_sent_that_was_given_up_before_the_source_could_look(
    moving: MovingCluster,
) -> None:
    serving = moving.a.serving
    moving.a.transfer.holds = lambda stage_id: True
    asked = PrefixAsked("key", moving.controller.ref("i-1"), serving.fingerprint)
    serving.fetches.asked(asked, [])
    serving.fetches.unwanted("key")
    await moving.until(lambda: serving.fetches.quiet)


async def test_a_source_that_dies_is_not_waited_for(moving: MovingCluster) -> None:
    await comes_under_way(moving)
    await moving.kill("i-0")
    assert (await told(moving)).labels["outcome"] == "failed"
    await moving.finishes()


async def test_an_engine_of_another_kind_lends_nothing(moving: MovingCluster) -> None:
    moving.a.serving.fingerprint = "another"
    await fetch(moving)
    assert (await told(moving)).labels["outcome"] == "not-there"
    await moving.finishes()


async def test_a_question_without_names_is_answered(moving: MovingCluster) -> None:
    """Otherwise the one that asked waits until its limit."""
    serving = moving.a.serving
    await moving.at_boundary(moving.a, lambda _: moving.a.engine.prefixes.fill(1))
    ref = moving.controller.ref("i-1")
    moving.b.transfer.receive(serving.me, "key", [])
    serving.fetches.asked(PrefixAsked("key", ref, serving.fingerprint), [])
    await moving.until(lambda: not moving.b.transfer.num_under_way)


async def test_a_client_that_leaves_meanwhile_leaves_nothing_behind(moving: MovingCluster) -> None:
    await comes_under_way(moving)
    moving.abort()
    await moving.until(lambda: moving.b.llumlet.num_live_reqs == 0)
    assert moving.b.engine.waiting == {}


async def test_an_instance_that_is_fenced_meanwhile_takes_nothing_in(moving: MovingCluster) -> None:
    await comes_under_way(moving)
    await moving.fence("i-1")
    await moving.until(lambda: moving.b.llumlet.num_live_reqs == 0)
    assert moving.b.engine.waiting == {}
    moving.a.transfer.let_go()
    await moving.ends()


async def test_one_that_begins_alike_waits_for_the_fetch_under_way(moving: MovingCluster) -> None:
    await comes_under_way(moving)
    await fetch(moving, "s", has_to_wait=True)
    await fetch(moving, "left", has_to_wait=True)
    await moving.until(lambda: moving.b.llumlet.num_live_reqs == 3)
    assert moving.b.engine.waiting == {}
    moving.frontend.router.abort(["left"], moving.record("left").state.ABORTED, "the client left")
    await moving.until(lambda: moving.b.llumlet.num_live_reqs == 2)
    moving.a.transfer.let_go()
    await moving.finishes("s")
    assert moving.events(EventKind.PREFIX_FETCHED, "s") == [], "it has copied nothing"


async def test_without_a_fetch_under_way_it_enters_at_once(moving: MovingCluster) -> None:
    await fetch(moving, has_to_wait=True)
    await moving.finishes()


@pytest.mark.parametrize("first_leaves", [False, True])
async def test_those_that_wait_enter_though_the_first_has_left(
    moving: MovingCluster, first_leaves: bool
) -> None:
    await comes_under_way(moving)
    await fetch(moving, "s", has_to_wait=True)
    await moving.until(lambda: moving.b.llumlet.num_live_reqs == 2)
    if first_leaves:
        moving.abort()
    moving.a.transfer.let_go()
    await moving.finishes("s")


# -- verified -----------------------------------------------------------------------------


def heard(moving: MovingCluster) -> list[Message]:
    """All messages from now on, as they are sent."""
    found: list[Message] = []
    moving.network.drops = lambda message: found.append(message) or False  # type: ignore[func-returns-value]
    return found


async def fetches(moving: MovingCluster, request_id: str, source_id: str = "i-0") -> str:
    """What became of the fetch of a request, which has all its tokens at the end. Before it i-1 has
    nothing cached."""
    await moving.at_boundary(moving.b, lambda _: moving.b.engine.prefixes.forget())
    await fetch(moving, request_id, source_id=source_id)
    outcome = (await told(moving, request_id)).labels["outcome"]
    await moving.finishes(request_id)
    return outcome


async def comes_to_be_verified(moving: MovingCluster, limit_s: float = 60.0) -> None:
    """All blocks have arrived, and the source's digest is on its way."""
    moving.network.hold(lambda message: isinstance(message, PrefixDigest))
    await fetch(moving, limit_s=limit_s)
    await moving.until(lambda: moving.network.num_held and not moving.b.transfer.num_under_way)


async def test_the_first_fetch_over_a_link_is_verified_and_later_one_in_16(
    moving: MovingCluster,
) -> None:
    messages, num_fetches = heard(moving), VERIFIED_EVERY + 2
    for number in range(num_fetches):
        assert await fetches(moving, f"r{number}") == "fetched"
    asked = [message.verify for message in messages if isinstance(message, PrefixAsked)]
    assert [number for number, verify in enumerate(asked) if verify] == [0, VERIFIED_EVERY]
    assert sum(isinstance(message, PrefixDigest) for message in messages) == 2
    assert await fetches(moving, "other", "i-2") == "fetched"
    assert [message.verify for message in messages if isinstance(message, PrefixAsked)][-1]


async def test_a_copy_that_arrives_changed_is_not_cached(moving: MovingCluster) -> None:
    moving.a.transfer.corrupts = True
    assert await fetches(moving, "r") == "corrupt"
    assert moving.b.engine.prefixes.cached == []
    (event,) = moving.events(EventKind.COPY_CORRUPT)
    assert event.labels == {"from": "i-0", "to": "i-1", "copied": "its prefix"}
    assert (event.numbers, event.instance_id) == ({"num_blocks": NUM_CACHED}, "i-1")
    await moving.until(lambda: event in moving.controller.events)
    await moving.until(lambda: moving.controller.statuses["i-1"].snapshot.corrupt_links == ("i-0",))
    assert moving.b.serving.fetches.num_fetched_tokens == 0


async def test_nothing_more_is_fetched_over_that_link_for_a_while(moving: MovingCluster) -> None:
    moving.a.transfer.corrupts = True
    await fetches(moving, "r")
    moving.a.transfer.corrupts = False
    messages = heard(moving)
    assert await fetches(moving, "s") == "distrusted"
    assert not any(isinstance(message, PrefixAsked) for message in messages)
    assert await fetches(moving, "other", "i-2") == "fetched"
    moving.clock.now_s += QUARANTINE_S
    assert await fetches(moving, "later") == "fetched"
    asked = [message.verify for message in messages if isinstance(message, PrefixAsked)]
    assert asked == [True, True]
    await moving.until(lambda: moving.controller.statuses["i-1"].snapshot.corrupt_links == ())


async def test_a_copy_under_way_over_that_link_is_given_up(moving: MovingCluster) -> None:
    """A move's digests are of the same link."""
    await fetches(moving, "first")
    await moving.at_boundary(moving.b, lambda _: moving.b.engine.prefixes.forget())
    await moving.stream()
    moving.a.transfer.holds = lambda stage_id: stage_id.startswith("prefix")
    await fetch(moving, "s")
    await moving.until(lambda: moving.a.transfer.num_under_way)
    moving.a.transfer.corrupts = True
    assert await moving.tried(verify_kv=True) == ("resumed", "kv_mismatch")
    assert (await told(moving, "s")).labels["outcome"] == "distrusted"
    corrupt = EventKind.COPY_CORRUPT
    await moving.until(lambda: any(each.kind is corrupt for each in moving.controller.events))
    (event,) = (each for each in moving.controller.events if each.kind is corrupt)
    assert event.labels == {"from": "i-0", "to": "i-1", "copied": "its blocks"}
    assert (event.request_id, event.instance_id) == ("r", "i-1")
    await moving.finishes("s")
    assert moving.b.engine.prefixes.cached == []


async def test_a_source_that_tells_no_digest_is_not_waited_for(moving: MovingCluster) -> None:
    await comes_to_be_verified(moving, limit_s=0.0)
    moving.clock.now_s += 1.0
    assert (await told(moving)).labels["outcome"] == "late"
    await moving.finishes()
    assert moving.b.engine.prefixes.cached == []


async def test_a_source_that_dies_before_it_tells_its_digest_is_not_waited_for(
    moving: MovingCluster,
) -> None:
    await comes_to_be_verified(moving)
    await moving.kill("i-0")
    assert (await told(moving)).labels["outcome"] == "failed"
    await moving.finishes()
    assert moving.b.engine.prefixes.cached == []


@pytest.mark.parametrize("instance_id", ["i-0", "i-1"])
async def test_blocks_that_cannot_be_read_are_not_cached(
    moving: MovingCluster, instance_id: str
) -> None:
    class Unreadable(FakeBlocks):
        def gather(self, block_ids: Sequence[int], into: bytearray) -> memoryview:  # noqa: ARG002
            raise OSError

    moving.instances[instance_id].serving.blocks = Unreadable(1)
    assert await fetches(moving, "r") == "failed"
    assert moving.b.engine.prefixes.cached == []
    assert moving.events(EventKind.COPY_CORRUPT) == [], "nobody knows"


async def test_a_client_that_leaves_while_it_is_verified_leaves_nothing_behind(
    moving: MovingCluster,
) -> None:
    await comes_to_be_verified(moving)
    moving.abort()
    await moving.until(lambda: moving.b.llumlet.num_live_reqs == 0)
    assert moving.b.engine.waiting == {}


# -- the own host cache ----------------------------------------------------------------------------


async def load(moving: MovingCluster, num_in_host: int = NUM_CACHED, limit_s: float = 60.0) -> None:
    """A request comes to i-1, which is to load what its host cache has."""
    engine = moving.b.engine
    engine.host_cache_changes = {}
    await moving.at_boundary(moving.b, lambda _: engine.prefixes.fill_host(num_in_host))
    await fetch(moving, num_cached=0, source_id="i-1", limit_s=limit_s)


async def test_what_the_host_cache_has_is_there_before_the_request(moving: MovingCluster) -> None:
    await load(moving)
    event = await told(moving)
    assert event.labels == {"from": "i-1", "outcome": "fetched"}
    assert "its host cache" in str(event)
    await moving.finishes()
    prefixes = moving.b.engine.prefixes
    assert (len(prefixes.cached), prefixes.is_right()) == (NUM_CACHED, True)

    def status_counts_it() -> bool:
        status = moving.controller.statuses["i-1"]
        return status.num_loaded_tokens_last_minute == NUM_CACHED * BLOCK_SIZE

    await moving.until(status_counts_it)
    status = moving.controller.statuses["i-1"]
    assert status.num_fetched_tokens == 0
    assert status.snapshot.load_token_s > 0
    assert status.host_cache is None or status.host_cache.number > 0


async def test_only_what_the_host_cache_still_has_is_loaded(moving: MovingCluster) -> None:
    await load(moving, num_in_host=2)
    assert (await told(moving)).numbers["num_blocks"] == 2
    await moving.finishes()
    assert moving.b.engine.prefixes.is_right()


async def test_a_load_that_takes_too_long_is_given_up(moving: MovingCluster) -> None:
    moving.b.transfer.holds = lambda stage_id: True
    await load(moving, limit_s=0.0)
    await moving.until(lambda: moving.b.transfer.num_under_way)
    moving.clock.now_s += 1.0
    assert (await told(moving)).labels["outcome"] == "late"
    assert moving.b.transfer.num_under_way == 0
    await moving.finishes()
    assert moving.b.engine.prefixes.cached == []
