"""What a cluster's own events say of a load: moves, and what evictions cost its requests."""

import re
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.wire.requests import Event
from llumctl.lab.bench_run import Result

POLL_S = 1.0
LAST_S = 10.0
"""For the last poll to succeed; one before it is made up for by the next."""
RETRY_S = 0.1
PAGE = 1000


@dataclass(slots=True)
class Told:
    """`num_missed`: events that the controller had forgotten, or never got."""

    events: list[Event] = field(default_factory=list)
    num_missed: int = 0

    def number(self, kind: str) -> int:
        return sum(event.kind == kind for event in self.events)


class EventTap(threading.Thread):
    """Collects events from now on until `finish`."""

    def __init__(self, control: ControlClient) -> None:
        super().__init__(daemon=True)
        self.told = Told()
        self._control = control
        self._is_over = threading.Event()
        self._position = ""
        self._take()
        self.told = Told()  # what happened before is not the load's

    def run(self) -> None:
        while not self._is_over.wait(POLL_S):
            self._take()
        deadline_s = time.monotonic() + LAST_S
        while not (is_all := self._take()) and time.monotonic() < deadline_s:
            time.sleep(RETRY_S)
        if not is_all:
            self.told.num_missed += 1  # or more

    def finish(self) -> Told:
        self._is_over.set()
        self.join()
        return self.told

    def _take(self) -> bool:
        """False if the controller did not answer: it is busy, or away."""
        while True:
            try:
                page = self._control.events(self._position, PAGE)
            except LlumctlError:
                return False
            self._position = page.next_position
            self.told.events += page.events
            self.told.num_missed += page.missed or 0
            for event in page.events:
                if event.kind == "events_lost":
                    self.told.num_missed += int(event.numbers.get("num_lost") or 0)
            if len(page.events) < PAGE:
                return True


@dataclass(frozen=True, slots=True)
class Eviction:
    """`num_tokens`: prompt and outputs that the request had by then; `time_s` on the client's
    clock."""

    time_s: float
    num_tokens: int


def evictions(
    events: Iterable[Event], salt: str, clock_offset_s: float
) -> Mapping[int, list[Eviction]]:
    """By a request's number in its load, in order. `clock_offset_s`: seconds since the epoch
    less the client's clock."""
    its_id = re.compile(rf"\b{re.escape(salt)}-(\d+)(?!\d)")
    found: dict[int, list[Eviction]] = {}
    for event in events:
        if event.kind == "evicted" and (match := its_id.search(event.request_id or "")):
            num_tokens = int(event.numbers.get("num_tokens") or 0)
            eviction = Eviction(event.time_s - clock_offset_s, num_tokens)
            found.setdefault(int(match[1]), []).append(eviction)
    return found


def preemption_loss_s(result: Result, its_evictions: Sequence[Eviction]) -> float:
    """From each eviction to the next new token, summed; of two with none in between, the first
    counts."""
    times_s = result.answer.token_times_s
    loss_s, until_s = 0.0, float("-inf")
    for eviction in its_evictions:
        if eviction.time_s < until_s:
            continue
        num_merged = result.num_output_tokens - len(times_s)
        next_token = eviction.num_tokens - result.request.num_prompt_tokens - num_merged
        # What was emitted before may arrive after it; tokens that came together have one time.
        place = max(bisect_right(times_s, eviction.time_s), next_token)
        if place < len(times_s):
            until_s = times_s[place]
            loss_s += until_s - eviction.time_s
    return loss_s
