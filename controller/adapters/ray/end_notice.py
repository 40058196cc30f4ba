"""SIGTERM as a notice: the process will be ended soon, and may hand on what it has.

Without a listener, and for the second SIGTERM, what was there before goes on: Ray's own handler,
which ends the process at once. What Ray itself ends (`ray.kill`, a raylet that is gone) gets no
signal and waits for nobody.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class EndNotice:
    """Made on the process's main thread, as only that one may handle signals."""

    def __init__(self) -> None:
        self._listener: Callable[[], None] | None = None
        self._told = threading.Event()
        self._before: Any = signal.signal(signal.SIGTERM, self._on_signal)

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` once, on the main thread, at the first SIGTERM from now on."""
        self._listener = listener

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._listener is not None and not self._told.is_set():
            self._told.set()
            self._listener()
        elif callable(self._before):
            self._before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
