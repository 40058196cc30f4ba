"""Virtual time: actions in the order of their times; at equal times, the one that was scheduled
first. It is a module of its own because everything that happens in a simulated cluster, or in a
bound of one, needs it.
"""

import heapq
from collections.abc import Callable

Action = Callable[[], object]


class EventQueue:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._num_scheduled = 0
        self._events: list[tuple[float, int, Action]] = []

    def at(self, time_s: float, action: Action) -> None:
        """Schedules an action. If its time has already passed, the action happens next."""
        self._num_scheduled += 1
        due_s = time_s if time_s > self.now_s else self.now_s
        heapq.heappush(self._events, (due_s, self._num_scheduled, action))

    def after(self, delay_s: float, action: Action) -> None:
        self.at(self.now_s + delay_s, action)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Runs actions until `is_over` is true, or until none is scheduled."""
        events = self._events
        while events and not is_over():
            self.now_s, _, action = heapq.heappop(events)
            action()
