"""An engine that takes requests and steps as an instance's does, under a clock.

A step lasts from the end of the one before it to its own: what an instance does on the engine's
thread between two steps counts, and outputs are encoded on another thread meanwhile. Nothing is
sent anywhere. The clock leaves out the time that the thread waits for a core.
"""

import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from controller.main.profile.points import Step
from controller.ports.engine import Engine, Frames

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a core, nanoseconds of waiting for one, and a count: Linux's own account."""
MAX_BYTES = 128

MakeRequest = Callable[[str, int, int], Frames]
"""Encodes a request: its id, its number of prompt tokens, and its largest number of outputs."""


class UnexpectedError(RuntimeError):
    """The engine did something else than it was asked for; the message says what."""


@dataclass(frozen=True, slots=True)
class TakenStep:
    time_s: float
    work: Step
    """What the step's outputs tell of it: prompts that it ended count whole, chunks before do
    not."""


class DrivenEngine:
    """`status_interval_s`: how often an instance looks at its requests for a status. `clock`: in
    seconds."""

    def __init__(
        self,
        engine: Engine,
        make_request: MakeRequest,
        status_interval_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._make = make_request
        self._status_interval_s = status_interval_s
        self._clock = clock
        self._ids = map("profile-{}".format, itertools.count())
        self._prompts: dict[str, int] = {}
        self._num_emitted: dict[str, int] = {}
        self._since_s = self._looked_s = clock()
        self._encoding = ThreadPoolExecutor(1)
        engine.take_events()  # of what it was used for before

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._encoding.shutdown()

    @property
    def contexts(self) -> list[int]:
        """Tokens of each request that decodes."""
        return [self._prompts[each] + n for each, n in self._num_emitted.items() if n]

    @property
    def num_pending(self) -> int:
        """Requests without a token yet."""
        return sum(not n for n in self._num_emitted.values())

    def add(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """The next step begins now."""
        request_id = next(self._ids)
        frames = self._make(request_id, num_prompt_tokens, max_tokens)
        prepared = self._engine.prepare(frames, 0)
        self._engine.add(prepared)
        self._prompts[request_id] = num_prompt_tokens
        self._num_emitted[request_id] = 0
        self._since_s = self._clock()

    def step(self) -> TakenStep:
        """Raises UnexpectedError if a request was evicted or failed, or nothing is left to do."""
        if not self._engine.has_work():
            raise UnexpectedError("the engine has lost a request")
        outputs = self._engine.step()
        for event in self._engine.take_events():
            if event.kind == "evicted":
                raise UnexpectedError("the engine evicted a request")
        prefill: list[tuple[int, int]] = []
        num_decoding = num_context_tokens = 0
        for output in outputs:
            self._encoding.submit(self._engine.encode, output.body)
            for emitted in output.emitted:
                prompt = self._prompts[emitted.request_id]
                if num_before := self._num_emitted[emitted.request_id]:
                    num_decoding += 1
                    num_context_tokens += prompt + num_before
                else:
                    prefill.append((prompt, 0))
                self._num_emitted[emitted.request_id] += emitted.num_tokens
                if emitted.finish_reason not in (None, "length"):
                    raise UnexpectedError(f"a request ended by {emitted.finish_reason}")
                if emitted.finish_reason:
                    self._forget(emitted.request_id)
        self._look()
        now_s = self._clock()
        took_s, self._since_s = now_s - self._since_s, now_s
        return TakenStep(took_s, Step(tuple(prefill), num_decoding, num_context_tokens))

    def clear(self) -> None:
        """Ends all requests, and what the engine has begun for them."""
        self._engine.abort(list(self._prompts))
        for request_id in list(self._prompts):
            self._forget(request_id)
        while self._engine.has_work():
            self._engine.step()
        self._engine.take_events()

    def _forget(self, request_id: str) -> None:
        del self._prompts[request_id], self._num_emitted[request_id]

    def _look(self) -> None:
        now_s = self._clock()
        if now_s - self._looked_s >= self._status_interval_s:
            self._looked_s = now_s
            self._engine.snapshot("profile", 1)


class CoreClock:
    """A clock that stands still while its thread waits for a core that others have. It is made and
    called on one thread.

    The waits belong to the machine's other work, not to the engine. On two cores with a load of 12
    the embedded model's steps took five times as long by the wall's clock, and a fit of its decode
    steps was off by 15% in the median; without the waits by 2.5%. On a quiet machine, and without
    Linux's account, it is the wall's clock. Threads that the engine's thread waits for
    (OMP_NUM_THREADS above 1) may have waited themselves: that is not seen.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        if SCHEDSTAT.exists():
            self._file = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        self._began_s, self._began_waited_s = time.perf_counter(), self._waited_s()

    def __call__(self) -> float:
        waited_s = self._waited_s()
        while True:
            now_s, before_s = time.perf_counter(), waited_s
            waited_s = self._waited_s()
            if waited_s == before_s:
                return now_s - waited_s
            # A wait between the two would be in one of them alone: on a busy machine a step took
            # less than nothing by that.

    @property
    def waited_ratio(self) -> float:
        """Of the time since this clock was made."""
        waited_s = self._waited_s() - self._began_waited_s
        return waited_s / (time.perf_counter() - self._began_s)

    def _waited_s(self) -> float:
        if self._file is None:
            return 0.0
        return int(os.pread(self._file, MAX_BYTES, 0).split()[1]) / 1e9
