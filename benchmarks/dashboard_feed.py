"""A controller that never was, with a large cluster that changes all the time: what the dashboard
is measured against. It speaks real HTTP, and serves what tests/unit/tui feeds its screens with.

Each status has a number that the screen shows, so that what came out of the dashboard's terminal
tells which status was painted, and when.
"""

import hashlib
import random
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from pydantic import BaseModel

from controller.api.recording import RecordingHeader, RecordingWriter
from controller.api.wire.requests import Event
from controller.api.wire.status import ClusterStatus, InstanceState, InstanceStatus
from controller.api.wire.stream import EventFrame, StatusFrame
from tests.unit.fake_controller import FakeController
from tests.unit.tui import tui_synthetic as synthetic

FIRST_NUMBER = 1_000_000
"""Of the numbers of statuses: no other figure on the screen is so large."""
CYCLE_S = 60
"""So many different statuses are made beforehand and come again and again."""


class BusyController(FakeController):
    """`sent_s`: when each status was handed to the socket (time.perf_counter), by its number."""

    def __init__(
        self, num_instances: int, num_requests: int, statuses_per_s: float, events_per_s: float
    ) -> None:
        """`num_requests`: how many run and wait on all instances together."""
        self._statuses = statuses(CYCLE_S, num_instances, num_requests)
        super().__init__(status=self._statuses[0])
        self.sent_s: dict[int, float] = {}
        self._every_s = 1 / statuses_per_s
        self._num_events = round(events_per_s / statuses_per_s)
        self._events = routine_events(1000, num_instances)

    def _lines(self, query: dict[str, list[str]]) -> Iterator[bytes]:  # noqa: ARG002
        """What there is to say goes out at once, as the real controller sends it. The numbers go on
        where another stream has stopped: one dashboard at a time."""
        first = FIRST_NUMBER + len(self.sent_s)
        begun_s = time.perf_counter()
        for place in count():
            due_s = begun_s + place * self._every_s
            if self._stopping.wait(max(0.0, due_s - time.perf_counter())):
                return
            now_s = time.time()
            frames: list[BaseModel] = [
                EventFrame(
                    time_s=now_s,
                    event=self._events[number % len(self._events)].model_copy(
                        update={"time_s": now_s, "position": f"{self.epoch}-{number}"}
                    ),
                )
                for number in range(place * self._num_events, (place + 1) * self._num_events)
            ]
            status = self._statuses[place % len(self._statuses)].model_copy(
                update={"time_s": now_s, "num_migrated_last_minute": first + place}
            )
            frames.append(StatusFrame(time_s=now_s, status=status))
            lines = b"".join(frame.model_dump_json().encode() + b"\n" for frame in frames)
            self.sent_s[first + place] = time.perf_counter()
            yield lines


def record(path: Path, seconds: int, num_instances: int, num_requests: int) -> None:
    """A recording of so many seconds with a status and some events in each."""
    writer = RecordingWriter(path, RecordingHeader(cluster="prod-a", time_s=synthetic.START_S))
    known = statuses(CYCLE_S, num_instances, num_requests)
    events = routine_events(1000, num_instances)
    for second in range(seconds):
        now_s = synthetic.START_S + second
        for number in range(20):
            place = second * 20 + number
            found = {"time_s": now_s, "position": f"a-{place}"}
            event = events[place % len(events)].model_copy(update=found)
            writer.append(EventFrame(time_s=now_s, event=event))
        status = known[second % len(known)].model_copy(update={"time_s": now_s})
        writer.append(StatusFrame(time_s=now_s, status=status))
    writer.close()


def statuses(seconds: int, num_instances: int, num_requests: int) -> list[ClusterStatus]:
    """All instances serve, and each one's figures differ from one status to the next."""
    chance = random.Random(11)
    found = []
    for frame in synthetic.frames(seconds, num_instances, events_per_s=0):
        if isinstance(frame, StatusFrame):
            items = frame.status.instances
            served = tuple(
                _serving(item, round(num_requests / len(items)), chance) for item in items
            )
            found.append(frame.status.model_copy(update={"instances": served}))
    return found


def _serving(item: InstanceStatus, num_requests: int, chance: random.Random) -> InstanceStatus:
    if item.state is not InstanceState.ACTIVE:
        item = synthetic.instance(item.id, node="10.0.0.20", kv_cache_usage=chance.random())
    waiting = min(item.num_waiting_reqs or 0, num_requests)
    high = num_requests // 8
    levels = {"normal": num_requests - waiting - high, "high": high}
    return item.model_copy(
        update={
            "num_running_reqs": num_requests - waiting,
            "num_running_by_level": levels,
            "num_waiting_reqs": waiting,
            "step_time_s": chance.uniform(0.02, 0.06),
        }
    )


def routine_events(count_: int, num_instances: int) -> list[Event]:
    """What requests do, whose ids are as long as real ones."""
    frames = synthetic.frames(count_ // 200 + 2, num_instances, events_per_s=200)
    found = [frame.event for frame in frames if isinstance(frame, EventFrame)]
    return [event.model_copy(update={"request_id": _long(event)}) for event in found[:count_]]


def _long(event: Event) -> str | None:
    if event.request_id is None:
        return None
    digest = hashlib.sha256(event.request_id.encode()).hexdigest()
    return f"cmpl-{digest[:16]}-0-{digest[16:24]}"
