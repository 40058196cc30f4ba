"""The connection to a live controller: how the dashboard listens to the controller, and how it
calls it.

`Source` is the interface of a live controller (`LiveSource`) and of a recording (`tui.replay`); a
`Caller` makes any call of the control API. Both work on daemon threads for which nothing ever
waits, so that a controller that hangs delays neither the screen nor the exit.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from controller.api.client import Connect, Follower
from controller.api.client import Lost as StreamLost
from controller.api.errors import LlumctlError, NotRunningError
from controller.api.recording import PAST_S, RecordingWriter, past_of
from controller.api.state import audit
from controller.api.wire.requests import LIVE_STATES
from controller.api.wire.stream import Frame, StatusFrame
from tui.state import (
    Arrived,
    ExplanationArrived,
    Heard,
    HistoryArrived,
    LogArrived,
    Lost,
    RecordingFailed,
    RequestsArrived,
    Stopped,
)

if TYPE_CHECKING:
    from controller.api.client import ControlClient

Answer = TypeVar("Answer")

MAX_HEARD = 4096
"""The largest number of unread items. When there are so many, the dashboard cannot keep up, and
stops reading the stream."""


class Source(Protocol):
    """A live controller or a recording, as the dashboard uses it."""

    cluster: str
    status_every_s: float
    wake: Callable[[], None]
    """Called, on any thread, when there is something to show that should not wait for a tick."""

    def start(self) -> None: ...

    def take(self) -> list[Heard]:
        """Everything that was heard since the last call; never blocks."""

    def now_s(self) -> float:
        """The present time on the clock that gives `at_s` in everything that was heard."""

    def ask_requests(self, instance_id: str) -> bool:
        """Asks for an instance's requests, or for all requests with ""; `take` returns the answer.
        Returns False if that is impossible."""

    def ask_explanation(self, request_id: str) -> bool:
        """Asks for a request's life, like `ask_requests`."""

    def ask_log(self, member_id: str) -> bool:
        """Asks for the last lines of a member's log, like `ask_requests`."""

    def ask_history(self, after_s: float | None) -> bool:
        """Asks for the history or, after a time by the controller's clock, for what is new; like
        `ask_requests`."""

    def stop(self) -> None: ...


class LiveSource:
    """Follows a controller, and connects again when the stream ends. If there is a recorder, it
    records what is heard."""

    def __init__(
        self,
        cluster: str,
        connect: Connect,
        *,
        status_every_s: float = 1.0,
        recorder: RecordingWriter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = cluster
        self.status_every_s = status_every_s
        self._connect = connect
        self.wake: Callable[[], None] = lambda: None
        self._recorder = recorder
        self._clock = clock
        self._heard: queue.Queue[Heard] = queue.Queue(MAX_HEARD)
        self._follower = Follower(connect, self._listen, after="", status_every_s=status_every_s)
        self._asking: set[str] = set()
        self._started = False

    def start(self) -> None:
        """Begins to listen; a second call does nothing. What is heard waits until `take` is
        called."""
        if not self._started:
            self._started = True
            self._follower.start()

    def take(self) -> list[Heard]:
        found: list[Heard] = []
        with contextlib.suppress(queue.Empty):
            while len(found) < MAX_HEARD:
                found.append(self._heard.get_nowait())
        return found

    def now_s(self) -> float:
        return self._clock()

    def ask_requests(self, instance_id: str) -> bool:
        def answer() -> RequestsArrived:
            found, reason = self._asked(
                lambda client: client.requests(instance=instance_id or None, states=LIVE_STATES)
            )
            return RequestsArrived(instance_id, found, reason, self._clock())

        self._ask("requests", answer)
        return True

    def ask_explanation(self, request_id: str) -> bool:
        def answer() -> ExplanationArrived:
            found, reason = self._asked(lambda client: client.explain(request_id))
            return ExplanationArrived(request_id, found, reason, self._clock())

        self._ask("explanation", answer)
        return True

    def ask_log(self, member_id: str) -> bool:
        def answer() -> LogArrived:
            found, reason = self._asked(lambda client: client.member_log(member_id))
            return LogArrived(member_id, found, reason, self._clock())

        self._ask("log", answer)
        return True

    def ask_history(self, after_s: float | None) -> bool:
        def answer() -> HistoryArrived:
            if after_s is None:
                found, _ = self._asked(past_of)
            else:
                # As graphs that were hidden did not ask for minutes, this may be all of the past.
                found, _ = self._asked(
                    lambda client: [client.history(PAST_S, after_s=after_s, points=int(PAST_S))]
                )
            return HistoryArrived(tuple(found or ()), self._clock())

        self._ask("history", answer)
        return True

    def stop(self) -> None:
        self._follower.stop()

    def _listen(self, item: Frame | StreamLost) -> None:
        if isinstance(item, StreamLost):
            self._hear(self._loss(item.error))
        else:
            self._record(item)
            self._hear(Arrived(item, self._clock()))

    def _loss(self, error: LlumctlError) -> Lost | Stopped:
        """The item that reports the loss of the stream. If the cluster was stopped, the recording
        ends too, because a later cluster of that name is another one."""
        if not isinstance(error, NotRunningError):
            return Lost(error.message, self._clock())
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
        return Stopped(audit.last_stop_words(self.cluster), self._clock())

    def _record(self, frame: Frame) -> None:
        if self._recorder is None:
            return
        try:
            self._recorder.append(frame)
        except LlumctlError as error:
            self._recorder = None
            self._hear(RecordingFailed(error.message, self._clock()))

    def _ask(self, kind: str, answer: Callable[[], Heard]) -> None:
        """Asks at most one question of a kind at a time: further questions of that kind are dropped
        until it is answered."""
        if kind in self._asking:
            return
        self._asking.add(kind)

        def run() -> None:
            try:
                found = answer()
            finally:
                self._asking.discard(kind)
            self._hear(found)

        threading.Thread(target=run, name=kind, daemon=True).start()

    def _asked(self, question: Callable[["ControlClient"], Answer]) -> tuple[Answer | None, str]:
        """Returns the answer, or None and the reason."""
        try:
            with self._connect() as client:
                return question(client), ""
        except LlumctlError as error:
            return None, error.message
        except Exception as error:
            return None, f"unexpected {type(error).__name__}: {error}"

    def _hear(self, item: Heard) -> None:
        while not self._follower.stopped:
            with contextlib.suppress(queue.Full):
                self._heard.put(item, timeout=0.2)
                break
        # Events wait for the next status or tick, as there may be hundreds. So does the history,
        # as each drawing takes some 10 ms.
        if isinstance(item, Arrived) and not isinstance(item.frame, StatusFrame):
            return
        if not isinstance(item, HistoryArrived):
            self.wake()


Work = Callable[["ControlClient"], Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of some work. Either `answer` or `error` is None."""

    ticket: int
    answer: Any
    error: Exception | None


class Caller(Protocol):
    """Calls the control API. `wake` is called on any thread when there is something to take."""

    wake: Callable[[], None]

    def call(self, ticket: int, work: Work) -> None:
        """Begins the work; never blocks. `take` returns the reply, once."""

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
        except Exception as error:  # of any kind: a caller waits for the reply
            reply = Reply(ticket, None, error)
        self._replies.put(reply)
        self.wake()
