"""Calls of the control API for the dashboard, each on a daemon thread that nothing waits for."""

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from controller.api.following import Connect

if TYPE_CHECKING:
    from controller.api.client import ControlClient

Work = Callable[["ControlClient"], Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of some work; one of `answer` and `error` is None."""

    ticket: int
    answer: Any
    error: Exception | None


class Caller(Protocol):
    """`wake` is called on any thread when there is something to take."""

    wake: Callable[[], None]

    def call(self, ticket: int, work: Work) -> None:
        """Begins the work; never blocks. `take` brings what came of it, once."""

    def take(self) -> list[Reply]: ...


class LiveCaller:
    def __init__(self, connect: Connect) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._connect = connect
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()

    def call(self, ticket: int, work: Work) -> None:
        threading.Thread(target=self._run, args=(ticket, work), name="call", daemon=True).start()

    def take(self) -> list[Reply]:
        found: list[Reply] = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._replies.get_nowait())
        return found

    def _run(self, ticket: int, work: Work) -> None:
        try:
            with self._connect() as client:
                reply = Reply(ticket, work(client), None)
        except Exception as error:  # whatever it is, somebody waits for the reply
            reply = Reply(ticket, None, error)
        self._replies.put(reply)
        self.wake()
