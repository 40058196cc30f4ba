"""Follows the watch stream across lost connections and new controllers."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller.api.errors import LlumctlError
from controller.api.wire.stream import EventFrame, Frame, GapFrame, StatusFrame

if TYPE_CHECKING:
    from controller.api.client import ControlClient

RETRY_S = 0.5

Connect = Callable[[], "ControlClient"]
"""Makes a client from the cluster's present run state; raises LlumctlError."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream ended or could not be opened. It is tried again until the next frame comes."""

    error: LlumctlError


class Follower:
    """Follows a controller; after a loss it goes on from the last event.

    A daemon thread that nobody waits for reads the stream, so that a controller that hangs holds up
    neither the listener nor the program's end. It calls `hear` with each frame and each loss; while
    `hear` blocks, nothing is read, and TCP slows the controller down.
    """

    def __init__(
        self,
        connect: Connect,
        hear: Callable[[Frame | Lost], None],
        *,
        after: str = "latest",
        status_every_s: float | None = 1.0,
    ) -> None:
        self._connect = connect
        self._hear = hear
        self._after = after
        self._status_every_s = status_every_s
        self._stopped = threading.Event()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def start(self) -> None:
        threading.Thread(target=self._follow, name="watch", daemon=True).start()

    def stop(self) -> None:
        """Lets no later frame be heard; does not wait."""
        self._stopped.set()

    def _follow(self) -> None:
        while not self.stopped:
            try:
                self._listen()
            except LlumctlError as error:
                self._lose(error)
            except Exception as error:  # any other error is reported too, and the stream retried
                self._lose(LlumctlError(f"unexpected {type(error).__name__}: {error}"))
            self._stopped.wait(RETRY_S)

    def _listen(self) -> None:
        with self._connect() as client:
            for frame in client.watch(after=self._after, status_every_s=self._status_every_s):
                if self.stopped:
                    return
                self._remember(frame)
                self._hear(frame)

    def _lose(self, error: LlumctlError) -> None:
        if not self.stopped:
            self._hear(Lost(error))

    def _remember(self, frame: Frame) -> None:
        if isinstance(frame, EventFrame):
            self._after = frame.event.position or self._after
        elif isinstance(frame, GapFrame):
            self._after = frame.position or self._after
        elif isinstance(frame, StatusFrame) and self._after == "latest":
            self._after = frame.status.last_event or self._after
