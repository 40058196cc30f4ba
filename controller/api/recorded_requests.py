"""The requests of all instances in a recording: whole when they begin, then as they change; and the
queue at the controller at a moment.

The watch stream has none, so `record` asks for them now and then. A request is numbered by its
place among all that began in the file, and told by its number from then on. Of a held request it is
told only that it waited, at no instance: its place follows from its rank and arrival, its demand
from its prompt. The instance that was kept for it is in the status.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from controller.api.errors import LlumctlError
from controller.api.explain import explain, held_back
from controller.api.recording import RecordingWriter
from controller.api.wire.requests import (
    LIVE_STATES,
    Event,
    Explanation,
    RequestList,
    RequestState,
    RequestStatus,
)
from controller.api.wire.status import ClusterStatus, HeldPlaceStatus
from controller.api.wire.stream import RequestBegan, RequestsFrame, RequestStands

if TYPE_CHECKING:  # a replay needs no client
    from controller.api.client import Connect

EVERY_S = 5.0
"""What runs gets tokens all the time, so each request costs some 36 bytes whenever it is told; and
all frontends are asked."""
MAX_REQUESTS = 10_000

Recorded = Mapping[int, RequestStatus]
"""The requests that lived when requests were recorded last, by their numbers."""


class RequestNumbers:
    """The numbers that a recording has given, and how the requests stood when it told them last."""

    def __init__(self) -> None:
        self._num_begun = 0
        self._known: dict[tuple[str, str, str], RequestStands] = {}
        """By frontend, id and priority level: a request that gets another level begins anew."""

    def frame(self, found: RequestList, time_s: float) -> RequestsFrame | None:
        """What is new since the last call; None if nothing is. Requests of a frontend that did not
        answer stand as they did: under load that happens, and none of them has ended by it."""
        began: list[RequestBegan] = []
        stands: list[RequestStands] = []
        num_before, known = self._num_begun, self._known
        self._known = {}
        for request in found.requests:
            key = request.frontend_id, request.id, request.level
            before = known.pop(key, None)
            number = self._num_begun if before is None else before.number
            if before is None:
                self._num_begun += 1
                began.append(_began(request))
            now = _stands(request, number)
            if now != before:
                stands.append(now)
            self._known[key] = now
        silent = {key: each for key, each in known.items() if key[0] in found.silent_frontends}
        self._known |= silent
        gone = tuple(each.number for key, each in known.items() if key not in silent)
        if not (stands or gone):
            return None
        return RequestsFrame(
            time_s=time_s,
            num_before=num_before,
            began=tuple(began),
            stands=tuple(stands),
            gone=gone,
        )


class RequestRecorder:
    """Asks for the requests and records them, on a daemon thread that nobody waits for."""

    def __init__(self, connect: "Connect", writer: RecordingWriter) -> None:
        self._connect = connect
        self._writer = writer
        self._numbers = RequestNumbers()
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._record, name="requests", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _record(self) -> None:
        while not self._stopped.wait(EVERY_S):
            try:
                with self._connect() as client:
                    found = client.requests(states=LIVE_STATES, limit=MAX_REQUESTS)
            except LlumctlError:  # the stream says that the controller is gone
                continue
            if self._writer.is_closed:
                return
            # The controller's clock, which is the file's: ours may be another machine's.
            frame = self._numbers.frame(found, self._writer.time_s)
            try:
                if frame is not None:
                    self._writer.append(frame)
            except LlumctlError:  # the next frame of the stream tells why
                return


def after(known: Recorded, frame: RequestsFrame) -> Recorded:
    """The requests once this was recorded."""
    found = dict(known)
    for number in frame.gone:
        found.pop(number, None)
    for number, began in enumerate(frame.began, frame.num_before):
        found[number] = RequestStatus(
            **began._asdict(),
            state=RequestState.WAITING,
            age_s=max(0.0, frame.time_s - began.arrival_time_s),
            num_output_tokens=0,
        )
    for stands in frame.stands:
        if (status := found.get(stands.number)) is not None:
            update = stands._asdict() | {"age_s": max(0.0, frame.time_s - status.arrival_time_s)}
            del update["number"]
            found[stands.number] = status.model_copy(update=update)
    return found


def of_instance(
    known: Recorded, instance_id: str, status: ClusterStatus | None = None
) -> RequestList:
    """As the controller lists them; of all instances where the id is empty. `status`: of that
    moment."""
    found = [
        each
        for each in with_places(known.values(), status)
        if instance_id in ("", each.instance_id)
    ]
    found.sort(key=_listed_at)
    return RequestList(requests=tuple(found), num_matching=len(found))


def _listed_at(item: RequestStatus) -> tuple[int, int, float]:
    place = item.held.place if item.held else 0
    return (LIVE_STATES.index(item.state), place, item.arrival_time_s)


def explained(
    known: Recorded,
    request_id: str,
    events: Sequence[Event],
    now_s: float,
    status: ClusterStatus | None = None,
) -> Explanation | None:
    """A request's life by the recorded events about it; None if nothing is recorded of it.
    `status`: of that moment."""
    found = next((r for r in with_places(known.values(), status) if r.id == request_id), None)
    if found is None and not events:
        return None
    request = _as_events_say(found, request_id, events, now_s)
    return Explanation(
        request=request,
        steps=explain(events),
        waiting=held_back(request.held) if request.held is not None else None,
    )


def _as_events_say(
    status: RequestStatus | None, request_id: str, events: Sequence[Event], now_s: float
) -> RequestStatus:
    """Events are newer than requests that were asked for seconds ago: whether it ended, where it
    is."""
    told = RequestStatus(
        id=request_id,
        client_id="",
        state=RequestState.DISPATCHING,
        level=next((event.level for event in events if event.level), ""),
        frontend_id=next((event.frontend_id for event in events if event.frontend_id), ""),
        arrival_time_s=events[0].time_s if events else now_s,
        age_s=0.0,
        num_prompt_tokens=0,
        num_output_tokens=0,
    )
    found = (status or told).model_dump()
    for event in events:
        if event.kind in _STATES:
            found["state"] = _STATES[event.kind]
        if event.kind in ("dispatched", "admitted", "migrated", "replayed", "request_found"):
            found["instance_id"], found["held"] = event.instance_id, None
        if event.kind == "request_lost":
            found["instance_id"] = None
        if event.kind in _ENDS:
            found["held"] = None
            figures = ("num_prompt_tokens", "num_output_tokens", "ttft_s", "num_evictions")
            found |= {name: event.numbers[name] for name in figures if name in event.numbers}
            found["finish_reason"] = event.reason
            now_s = event.time_s
    found["age_s"] = max(0.0, now_s - found["arrival_time_s"])
    return RequestStatus.model_validate(found)


_ENDS = ("finished", "aborted", "failed")
_STATES = {
    "dispatched": RequestState.WAITING,
    "admitted": RequestState.RUNNING,
    "evicted": RequestState.EVICTED,
    "request_lost": RequestState.DISPATCHING,
    "request_found": RequestState.RUNNING,
    **{kind: RequestState(kind) for kind in _ENDS},
}


def _began(request: RequestStatus) -> RequestBegan:
    return RequestBegan(**{name: getattr(request, name) for name in RequestBegan._fields})


def _stands(request: RequestStatus, number: int) -> RequestStands:
    figures = {name: getattr(request, name) for name in RequestStands._fields[1:]}
    return RequestStands(number, **figures)


def with_places(
    requests: Iterable[RequestStatus], status: ClusterStatus | None
) -> list[RequestStatus]:
    """`status`: of the moment; without held requests in it none is given a place."""
    found = list(requests)
    if status is None or status.held is None:
        return found
    ranks = {level.name: level.rank for level in status.levels}
    held = [item for item in found if _is_held(item)]
    held.sort(key=lambda r: (-ranks.get(r.level, 0), r.arrival_time_s, r.id, r.frontend_id))
    places = {id(item): _place(item, place, status) for place, item in enumerate(held, 1)}
    return [
        item if id(item) not in places else item.model_copy(update={"held": places[id(item)]})
        for item in found
    ]


def _is_held(item: RequestStatus) -> bool:
    return item.state is RequestState.WAITING and item.instance_id is None


def _place(item: RequestStatus, place: int, status: ClusterStatus) -> HeldPlaceStatus:
    held = status.held
    if held is not None and held.head.request_id == item.id:
        return HeldPlaceStatus(**{name: getattr(held.head, name) for name in _HELD_FIELDS})
    sizes = (each.block_size for each in status.instances if each.block_size)
    block_size = next(sizes, None)
    kept = next(
        (
            (each.id, each.kept_for.lacking_blocks)
            for each in status.instances
            if each.kept_for is not None and each.kept_for.request_id == item.id
        ),
        (None, None),
    )
    return HeldPlaceStatus(
        place=place,
        why="kept" if kept[0] else "",
        demand_blocks=None if block_size is None else -(-item.num_prompt_tokens // block_size),
        instance_id=kept[0],
        lacking_blocks=kept[1],
    )


_HELD_FIELDS = tuple(HeldPlaceStatus.model_fields)
