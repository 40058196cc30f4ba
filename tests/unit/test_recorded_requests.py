"""Requests in a recording get one number each, are recorded when they change, and read back the
same."""

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from controller.api.recording import (
    RecordingHeader,
    RecordingReader,
    RecordingWriter,
    RequestNumbers,
    RequestRecorder,
    after,
    explained,
    of_instance,
)
from controller.api.wire.requests import Event, RequestList, RequestState, RequestStatus
from controller.api.wire.status import ClusterStatus
from controller.api.wire.stream import EventFrame, RequestsFrame, StatusFrame
from tests.unit.fake_controller import request_fields
from tools import synthetic_cluster as synthetic


def request(id_: str, instance_id: str | None = "i-0", **fields: Any) -> RequestStatus:
    known: dict[str, Any] = {"arrival_time_s": 100.0, "age_s": 5.0, "num_prompt_tokens": 512}
    known |= {"client_id": f"client-{id_}", "instance_id": instance_id}
    return RequestStatus(**request_fields(id_, **known | fields))


def listed(*requests: RequestStatus) -> RequestList:
    return RequestList(requests=requests, num_matching=len(requests))


def event(kind: str, time_s: float, **fields: Any) -> Event:
    return Event(kind=kind, time_s=time_s, cause_id="c", request_id="r1", **fields)


def test_what_is_read_back_is_what_was_listed() -> None:
    first = (request("r1"), request("r2", "i-1", state=RequestState.WAITING, ttft_s=None))
    grown = request("r1", num_output_tokens=90, num_moves=1, age_s=10.0)
    higher = request("r2", "i-1", level="high", age_s=10.0)
    third = request("r3", arrival_time_s=109.0, age_s=1.0)
    numbers, known = RequestNumbers(), {}
    frames = []
    for time_s, found in ((105.0, first), (110.0, (grown, higher, third)), (115.0, ())):
        frame = numbers.frame(listed(*found), time_s)
        assert frame is not None
        frames.append(frame)
        known = after(known, RequestsFrame.model_validate_json(frame.model_dump_json()))
        assert sorted(known.values(), key=lambda each: each.id) == list(found)
    assert [len(frame.began) for frame in frames] == [2, 2, 0]
    assert frames[1].num_before == 2
    assert frames[1].gone == (1,), "r2 began anew with its level"


def test_what_did_not_change_is_not_told_again() -> None:
    """Requests of a frontend that does not answer are not gone."""
    numbers = RequestNumbers()
    other = request("r2", frontend_id="f-1")
    assert numbers.frame(listed(request("r1"), other), 105.0) is not None
    assert numbers.frame(listed(request("r1", age_s=9.0), other), 110.0) is None
    silent = listed(request("r1")).model_copy(update={"silent_frontends": ("f-1",)})
    assert numbers.frame(silent, 112.0) is None
    grown = other.model_copy(update={"num_output_tokens": 41})
    frame = numbers.frame(listed(request("r1"), grown), 115.0)
    assert frame is not None
    assert (frame.began, [each.number for each in frame.stands], frame.gone) == ((), [1], ())
    frame = numbers.frame(listed(request("r1")), 120.0)
    assert frame is not None
    assert (frame.began, frame.stands, frame.gone) == ((), (), (1,))


def test_a_life_is_explained_by_the_recorded_events() -> None:
    events = [
        event("dispatched", 101.0, instance_id="i-0", frontend_id="f-1", level="high"),
        event("admitted", 102.0, instance_id="i-0"),
        event("evicted", 103.0, instance_id="i-0"),
        event("migrated", 104.0, instance_id="i-2", labels={"from": "i-0", "to": "i-2"}),
    ]
    known = {0: request("r1")}
    found = explained(known, "r1", events, 110.0)
    assert found is not None
    assert (found.request.state, found.request.instance_id) == (RequestState.EVICTED, "i-2")
    assert (found.request.client_id, found.request.age_s) == ("client-r1", 10.0)
    assert [step.kind for step in found.steps] == ["dispatched", "other", "other", "migrated"]
    events.append(event("finished", 106.0, reason="stop", numbers={"num_output_tokens": 70}))
    over = explained({}, "r1", events, 110.0)
    assert over is not None
    assert (over.request.state, over.request.finish_reason) == (RequestState.FINISHED, "stop")
    assert (over.request.level, over.request.frontend_id) == ("high", "f-1")
    assert (over.request.num_output_tokens, over.request.age_s) == (70, 5.0)
    assert explained({}, "r1", [], 110.0) is None


def test_events_about_a_request_are_found_in_the_file(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "r", RecordingHeader(cluster="c", time_s=1.0))
    for number in range(20):
        about = Event(kind="admitted", time_s=number, cause_id="r1", request_id=f"r{number}")
        writer.append(EventFrame(time_s=number, event=about))
    writer.close()
    with RecordingReader(tmp_path / "r") as reader:
        marks = list(reader.marks())
        end = marks[-1].offset + 1
        assert [each.time_s for each in reader.events_about("r1", marks[0].offset, end)] == [1.0]
        assert reader.events_about("r19", marks[0].offset, marks[-1].offset) == []
        assert [each.time_s for each in reader.events_about("r19", marks[5].offset, end)] == [19.0]


def test_requests_are_recorded_by_the_files_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.api.recording.REQUESTS_EVERY_S", 0.0)
    writer = RecordingWriter(tmp_path / "r", RecordingHeader(cluster="c", time_s=1.0))
    writer.append(EventFrame(time_s=77.0, event=event("admitted", 76.0)))

    class Client:
        num_asked = 0

        def requests(self, **_: object) -> RequestList:
            self.num_asked += 1
            if self.num_asked == 3:
                writer.close()
            return listed(request("r1"))

    client: Any = Client()
    RequestRecorder(lambda: nullcontext(client), writer).start()
    for thread in threading.enumerate():
        if thread.name == "requests":  # unless it has already ended
            thread.join(10)
    with RecordingReader(tmp_path / "r") as reader:
        _, told = reader
    assert isinstance(told, RequestsFrame)
    assert (told.time_s, [each.id for each in told.began]) == (77.0, ["r1"])
    assert client.num_asked == 3, "it ends with the recording"


# -- the queue at the controller ------------------------------------------------------------


def held_status() -> ClusterStatus:
    """i-0 is kept for the head; blocks have 16 tokens."""
    *_, frame = synthetic.late_binding(1)
    assert isinstance(frame, StatusFrame)
    held = frame.status.held
    assert held is not None
    head = held.head.model_copy(update={"request_id": "r-high"})
    return frame.status.model_copy(update={"held": held.model_copy(update={"head": head})})


def waiting(id_: str, **fields: Any) -> RequestStatus:
    unplaced = {"state": RequestState.WAITING, "ttft_s": None, "num_output_tokens": 0}
    return request(id_, None, **unplaced | fields)


def recorded(*found: RequestStatus) -> dict[int, RequestStatus]:
    """The frame after it was written and read back."""
    frame = RequestNumbers().frame(listed(*found), 105.0)
    assert frame is not None
    return dict(after({}, RequestsFrame.model_validate_json(frame.model_dump_json())))


QUEUE = (
    request("r-runs"),
    waiting("r-later", arrival_time_s=103.0),
    waiting("r-first", arrival_time_s=101.0),
    waiting("r-high", arrival_time_s=104.0, level="high"),
)


def test_what_was_held_stands_in_its_order() -> None:
    found = of_instance(recorded(*QUEUE), "", held_status())
    assert [item.id for item in found.requests] == ["r-runs", "r-high", "r-first", "r-later"]
    _, high, first, later = (item.held for item in found.requests)
    assert found.requests[0].held is None
    assert high is not None
    assert first is not None
    assert later is not None
    assert (high.place, first.place, later.place) == (1, 2, 3)
    assert (high.why, high.instance_id, high.lacking_blocks) == ("kept", "i-9", 172)
    assert (first.demand_blocks, first.instance_id) == (32, None)
    # One that is not the first may have an instance kept for it.
    known = recorded(*QUEUE, waiting("r9002c2", arrival_time_s=102.0))
    found = of_instance(known, "", held_status())
    (kept,) = [item.held for item in found.requests if item.id == "r9002c2"]
    assert kept is not None
    assert (kept.place, kept.instance_id, kept.lacking_blocks) == (3, "i-2", 96)
