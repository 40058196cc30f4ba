"""The controller's part in a recording of the traffic: what the frontends report waits here for the
reader of the recording.

There is one recording at a time. The reader sends the recording's key, so that it can go on with
the same recording after a lost connection, or with the next controller. The requests that wait are
bounded: a reader that lags loses some, and is told how many.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from controller.runtime.messages.requests import RequestTraffic, TrafficAsked, TrafficTold

# A frontend stops recording by itself when it has heard nothing for several times this interval.
ASK_EVERY_S = 1.0
MAX_WAITING_BYTES = 32 << 20
# To encode a line of this size takes 3 ms of the event loop.
MAX_BATCH_BYTES = 128 << 10
# The bytes of a request in addition to its hashes.
REQUEST_BYTES = 400


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests that a reader takes at once. `num_lost`: requests of the recording that ended
    since the previous batch and are in no batch. `num_live`: requests of the recording that have
    not ended, by what the frontends told last."""

    requests: tuple[RequestTraffic, ...]
    num_lost: int
    num_live: int


@dataclass(slots=True)
class _Frontend:
    incarnation: int
    num_told: int
    num_live: int = 0


class TrafficRecording:
    """The recorded requests that one stream's reader has not taken yet. `replaced`: True once
    another reader has taken over this recording."""

    def __init__(self, asked: TrafficAsked) -> None:
        self.asked = asked
        self.replaced = False
        self._frontends: dict[str, _Frontend] = {}
        self._waiting: deque[RequestTraffic] = deque()
        self._num_bytes = 0
        self._num_lost = 0
        self.news = asyncio.Event()
        """Set while requests wait for the reader."""

    def told(self, told: TrafficTold) -> None:
        """Takes the requests that a frontend reports. Requests that it reported before the stream
        began do not count as lost."""
        known = self._frontends.get(told.frontend_id)
        if known is None or known.incarnation != told.incarnation:
            # After it was fenced, a frontend only reports requests that it notes from then on.
            known = _Frontend(told.incarnation, told.num_before)
            self._frontends[told.frontend_id] = known
        self._num_lost += max(0, told.num_before - known.num_told)
        known.num_told = told.num_before + len(told.requests)
        known.num_live = told.num_live
        for request in told.requests:
            if self._num_bytes >= MAX_WAITING_BYTES:
                self._num_lost += 1
            else:
                self._waiting.append(request)
                self._num_bytes += _num_bytes(request)
        if told.requests:
            self.news.set()

    def frontend_died(self, frontend_id: str) -> None:
        """Counts the live requests of a dead frontend as lost."""
        if known := self._frontends.pop(frontend_id, None):
            self._num_lost += known.num_live

    def replace(self) -> None:
        self.replaced = True
        self.news.set()

    def take(self) -> Batch:
        """Takes the requests that wait, or the first of them."""
        requests: list[RequestTraffic] = []
        num_bytes = 0
        while self._waiting and num_bytes < MAX_BATCH_BYTES:
            requests.append(self._waiting.popleft())
            num_bytes += _num_bytes(requests[-1])
        self._num_bytes -= num_bytes
        if not self._waiting and not self.replaced:
            self.news.clear()
        num_lost, self._num_lost = self._num_lost, 0
        num_live = sum(frontend.num_live for frontend in self._frontends.values())
        return Batch(tuple(requests), num_lost, num_live)


class Traffic:
    """The recording that is under way, if there is one. `ask` sends a message to all frontends."""

    def __init__(self, ask: Callable[[TrafficAsked], None]) -> None:
        self._ask = ask
        self._recording: TrafficRecording | None = None
        self._ask_at_s = 0.0

    def takes(self, asked: TrafficAsked) -> bool:
        """Whether this recording may begin, because no other one is on."""
        return self._recording is None or self._recording.asked == asked

    def begin(self, asked: TrafficAsked) -> TrafficRecording:
        """Begins a recording, or replaces the reader of the same recording. `takes` must be
        true."""
        assert self.takes(asked)
        if self._recording is not None:
            self._recording.replace()
        self._recording = TrafficRecording(asked)
        self._ask(asked)
        return self._recording

    def end(self, recording: TrafficRecording) -> None:
        """Ends the recording, because its reader has left. Does nothing if another reader took its
        place."""
        if recording is self._recording:
            self._recording = None
            self._ask(TrafficAsked(b""))

    def tick(self, now_s: float) -> None:
        if self._recording is not None and now_s >= self._ask_at_s:
            self._ask_at_s = now_s + ASK_EVERY_S
            self._ask(self._recording.asked)

    def told(self, told: TrafficTold) -> None:
        """Takes the requests that a frontend reports. Drops them if they belong to no recording, or
        to a recording that is over."""
        if self._recording is not None and told.key == self._recording.asked.key:
            self._recording.told(told)

    def frontend_died(self, frontend_id: str) -> None:
        if self._recording is not None:
            self._recording.frontend_died(frontend_id)


def _num_bytes(request: RequestTraffic) -> int:
    return REQUEST_BYTES + len(request.prefix_hashes)
