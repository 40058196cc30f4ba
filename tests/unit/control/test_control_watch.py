"""Events, the watch stream and requests of the control API, on a real socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from controller.adapters.http.cluster_view import cluster_status
from controller.api.operations.on_instances import Drain
from controller.api.wire.requests import EventPage, RequestList
from controller.api.wire.status import ClusterStatus
from controller.api.wire.stream import EventFrame, Frame, PingFrame, parse_frame
from controller.core.record.event_log import EventKind, EventLog, LoggedEvent
from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.runtime.messages.codec import encode
from controller.runtime.messages.members import EventsReported
from controller.runtime.messages.requests import DispatchAsked
from tests.unit.control.control_bed import Bed, bed_of
from tests.unit.control.move_support import arrive, new_book

PATIENCE_S = 5.0


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    """Without requests."""
    async with bed_of(1) as found:
        found.book = new_book(found.listener)
        found.cluster.report()
        found.controller.journal.log = EventLog("x", 100, ())
        yield found


@asynccontextmanager
async def watching(bed: Bed, **query: str) -> AsyncIterator[AsyncIterator[str]]:
    async with bed.client.stream("GET", "/v1/watch", params=query) as stream:
        assert stream.status_code == 200
        yield stream.aiter_lines()


async def read(lines: AsyncIterator[str], num_frames: int, *, pings: bool = False) -> list[Frame]:
    frames: list[Frame] = []
    while len(frames) < num_frames:
        line = await asyncio.wait_for(anext(lines), PATIENCE_S)
        frame = parse_frame(line.encode())
        if pings or not isinstance(frame, PingFrame):
            frames.append(frame)
    return frames


def happened(bed: Bed, *request_ids: str, num_before: int = 0) -> None:
    events = tuple(
        LoggedEvent(EventKind.EVICTED, 5.0, "step-i-0-1-9", "memory pressure", request_id=r)
        for r in request_ids
    )
    bed.mailbox.say(encode(EventsReported("i-0", 1, num_before, events)), [])


# -- events -------------------------------------------------------------------------------


async def test_what_happens_is_logged_with_its_cause(bed: Bed) -> None:
    ask = DispatchAsked(DispatchRequested("r1", "f-0", 40, 1, 3.0))
    bed.mailbox.say(encode(ask), [])
    happened(bed, "r1")
    bed.mailbox.lose("mem://i-0")
    bed.cluster.hello("i-0", "failed", nonce="b", detail="out of memory")
    events = await bed.events()
    assert [(e.kind, e.cause_id, e.instance_id) for e in events] == [
        ("dispatched", "arrive-r1", "i-0"),
        ("evicted", "step-i-0-1-9", None),
        ("instance_died", "lost-i-0-1", "i-0"),
        ("instance_failed", "start-i-0-2", "i-0"),
    ]
    assert events[-1].reason == "out of memory"
    later = await bed.get(f"events?after={events[-2].position}", EventPage)
    assert list(later.events) == events[-1:]


async def test_what_a_member_could_not_tell_is_counted(bed: Bed) -> None:
    for num_before, num_events in ((7, 1), (8, 2), (15, 1)):
        happened(bed, *"r" * num_events, num_before=num_before)
    events = (await bed.events())[-5:]
    assert [e.kind for e in events] == ["evicted"] * 3 + ["events_lost", "evicted"]
    assert (events[3].instance_id, events[3].numbers) == ("i-0", {"num_lost": 5})


# -- the stream ---------------------------------------------------------------------------


async def test_statuses_and_events_are_watched(bed: Bed) -> None:
    async with watching(bed, after="latest", status_every_s="0.1") as lines:
        assert [frame.status.cluster for frame in await read(lines, 2)] == ["c1", "c1"]
        happened(bed, "r1", "r2")
        seen: list[str | None] = []
        while len(seen) < 2:
            (frame,) = await read(lines, 1)
            if isinstance(frame, EventFrame):
                seen.append(frame.event.request_id)
        assert seen == ["r1", "r2"]


async def test_a_stream_goes_on_after_a_position_or_begins_with_a_gap(bed: Bed) -> None:
    bed.controller.journal.log = EventLog("x", 3, ())
    happened(bed, *"abcde")
    async with watching(bed, after="x-1") as lines:
        gap, *events = await read(lines, 4)
    assert gap.missed == 1
    assert [each.event.request_id for each in events] == ["c", "d", "e"]
    async with watching(bed, after="of-1") as lines:
        (gap,) = await read(lines, 1)
    assert gap.missed is None, "a position of another controller"


async def test_a_quiet_stream_pings(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.adapters.http.model_api.PING_EVERY_S", 0.05)
    async with watching(bed, events="false") as lines:
        frames = await read(lines, 3, pings=True)
    assert all(isinstance(frame, PingFrame) for frame in frames)


async def test_watchers_that_leave_make_room_for_others(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.adapters.http.model_api.MAX_WATCHERS", 1)

    async def status_code() -> int:
        async with bed.client.stream("GET", "/v1/watch") as stream:
            return stream.status_code

    async with watching(bed) as lines:
        await read(lines, 1, pings=True)
        assert await status_code() == 429
    async with asyncio.timeout(PATIENCE_S):
        while await status_code() != 200:
            await asyncio.sleep(0.01)


async def test_watchers_share_one_status_until_an_operator_acts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[ClusterStatus] = []

    def counted(*args: Any) -> ClusterStatus:
        built.append(cluster_status(*args))
        return built[-1]

    async def watch(bed: Bed) -> None:
        async with watching(bed, events="false", status_every_s="0.05") as lines:
            await read(lines, 3)

    monkeypatch.setattr("controller.adapters.http.model_api.cluster_status", counted)
    async with bed_of(status_lasts_s=60.0) as bed:
        await asyncio.gather(*(watch(bed) for _ in range(8)))
        assert ((await bed.status()).revision, len(built)) == (0, 1)
        await bed.does(Drain)
        assert ((await bed.status()).revision, len(built)) == (1, 2)


# -- requests -----------------------------------------------------------------------------


async def found(bed: Bed, reference: str) -> tuple[int, str]:
    """The status, and the id of what the reference names or the message why it names none."""
    answer = await bed.client.get(f"/v1/requests/{reference}")
    return answer.status_code, answer.json().get("id") or answer.json()["message"]


async def test_requests_are_listed_and_named(bed: Bed) -> None:
    for number, request_id in enumerate(("aa-1", "ab-2", "0_p-3", "1_p-4")):
        parent = "p" if "_" in request_id else None
        arrive(bed.book, request_id, parent or f"client-{number}", parent, after_s=number)
    bed.book.dispatched(Dispatch("ab-2", "f-0", "i-0", 1, 1, (("i-0", 3.0),)))
    bed.book.ended("aa-1", RequestState.ABORTED, "the client left")
    for query, ids, num_matching in (
        ("", ["ab-2", "0_p-3", "1_p-4", "aa-1"], 4),
        ("?state=waiting&state=aborted&limit=1", ["ab-2"], 2),
        ("?instance=i-0", ["ab-2"], 1),
    ):
        some = await bed.get(f"requests{query}", RequestList)
        assert ([r.id for r in some.requests], some.num_matching) == (ids, num_matching)
    for reference in ("ab-2", "ab", "client-1", "a"):
        detail = await bed.request(reference)
        assert (detail.id, detail.instance_id) == ("ab-2", "i-0")
        assert [event.kind for event in detail.history] == ["dispatched"]
    assert await found(bed, "p") == (409, "'p' names 2 sequences: 0_p-3, 1_p-4")
    bed.mailbox.engine_state.clear()
    some = await bed.get("requests", RequestList)
    assert (some.requests, some.silent_frontends) == ((), ("f-0",))
    assert "no answer from f-0" in (await found(bed, "r"))[1]
    bed.mailbox.lose("mem://f-0")
    assert (await bed.get("requests", RequestList)).silent_frontends == ("f-0",)


async def test_a_name_that_was_used_before_is_that_of_the_only_request_that_lives(bed: Bed) -> None:
    for number, request_id in enumerate(("old-1", "old-2", "new-3")):
        arrive(bed.book, request_id, "client", after_s=number)
    assert await found(bed, "client") == (409, "'client' names 3 sequences: old-1, old-2, new-3")
    for request_id in ("old-1", "old-2"):
        bed.book.ended(request_id, RequestState.FINISHED, "stop")
    assert await found(bed, "client") == (200, "new-3")
    assert await found(bed, "old-1") == (200, "old-1"), "its own id comes first, alive or not"
    assert (await found(bed, "old"))[0] == 409, "none of them lives"
    for number in range(11):
        arrive(bed.book, f"many-1{number}", f"client-{number}")
    arrive(bed.book, "many-1", "client-1")
    assert await found(bed, "many-1") == (200, "many-1"), "although others begin with it"
    assert (await found(bed, "many"))[1].endswith("and 2 more")
