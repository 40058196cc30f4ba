"""A recording as a source: the frames at their old distances, and the recording's own clock.

So the screen is a function of the frames that are due, as it was when they came.
"""

import time
from collections.abc import Callable

from controller.api.errors import LlumctlError
from controller.api.recording import RecordingReader
from controller.api.wire.models import Frame
from tui.feed.state import Arrived, Heard, Lost

MIN_SPEED, MAX_SPEED = 1 / 8, 64.0


class ReplaySource:
    """Positions are seconds since the first frame; a clock that was set back adds none."""

    def __init__(
        self,
        reader: RecordingReader,
        *,
        speed: float = 1.0,
        at_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = reader.header.cluster
        self.status_every_s = reader.header.status_every_s
        self.path = reader.path
        self.speed = speed
        self.paused = False
        self.ended = False
        self._reader = reader
        self._frames = iter(reader)
        self._clock = clock
        self._counted_s = at_s
        self._since_s: float | None = None
        self._next: Frame | None = None
        self._next_at_s = 0.0
        self._origin_s: float | None = None
        self._failed = ""

    @property
    def truncated(self) -> bool:
        return self._reader.truncated

    def start(self) -> None:
        self._advance()
        self._origin_s = None if self._next is None else self._next.time_s
        self._since_s = self._clock()

    def take(self) -> list[Heard]:
        due: list[Heard] = []
        until_s = self.position_s()
        while self._next is not None and self._next_at_s <= until_s:
            due.append(Arrived(self._next, self._at(self._next_at_s)))
            self._advance()
        if self._next is None and not self.ended:
            self._count()
            self._counted_s = min(self._counted_s, self._next_at_s)
            self.ended = True
            if self._failed:
                due.append(Lost(self._failed, self.now_s()))
        return due

    def now_s(self) -> float:
        return self._at(self.position_s())

    def position_s(self) -> float:
        if self.paused or self.ended or self._since_s is None:
            return self._counted_s
        return self._counted_s + (self._clock() - self._since_s) * self.speed

    def toggle_pause(self) -> None:
        self._count()
        self.paused = not self.paused

    def change_speed(self, steps: int) -> None:
        """Doubles the speed `steps` times, or halves it."""
        self._count()
        self.speed = max(MIN_SPEED, min(MAX_SPEED, self.speed * 2.0**steps))

    def ask_requests(self, instance_id: str) -> bool:  # noqa: ARG002 - not recorded
        return False

    def stop(self) -> None:
        self._reader.close()

    def _count(self) -> None:
        """Must be called before the pace changes: counts the time so far by the old one."""
        self._counted_s = self.position_s()
        self._since_s = self._clock()

    def _at(self, position_s: float) -> float:
        return (self._origin_s or 0.0) + position_s

    def _advance(self) -> None:
        before = self._next
        try:
            self._next = next(self._frames, None)
        except LlumctlError as error:
            self._next, self._failed = None, error.message
        if before is not None and self._next is not None:
            self._next_at_s += max(0.0, self._next.time_s - before.time_s)
