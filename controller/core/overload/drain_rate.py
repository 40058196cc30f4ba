"""How fast the queue at the controller drained lately, and so when a refused client may come again.

The estimate is the time in which all that are held would go at that rate: whoever is refused would
be the last of them. Nobody who comes then is sure of a place, as others come too.
"""

import math
from collections import deque

WINDOW_S = 30.0
SLOT_S = 1.0
LEAST_S, MOST_S = 1, 60
"""Bounds of what a client is told. OpenAI's clients wait for up to 60 s as they are told, and go by
a rule of their own when they are told more."""


class DrainRate:
    """Remembers WINDOW_S in slots of SLOT_S. Times only go up."""

    def __init__(self) -> None:
        self._slots: deque[tuple[int, int]] = deque()
        """(the slot's number, how many went in it)"""
        self._num_gone = 0

    def gone(self, now_s: float, number: int = 1) -> None:
        """So many held requests went to instances."""
        if not number:
            return
        slot = int(now_s // SLOT_S)
        if self._slots and self._slots[-1][0] == slot:
            number_before = self._slots.pop()[1]
            self._slots.append((slot, number_before + number))
        else:
            self._slots.append((slot, number))
        self._num_gone += number
        self._forget(now_s)

    def per_s(self, now_s: float) -> float:
        """Over the time since the first of the window went; in its first second as if that were
        one."""
        self._forget(now_s)
        if not self._slots:
            return 0.0
        return self._num_gone / max(SLOT_S, now_s - self._slots[0][0] * SLOT_S)

    def retry_after_s(self, num_held: int, now_s: float) -> int:
        """Whole seconds, from LEAST_S to MOST_S; MOST_S if nothing went lately."""
        per_s = self.per_s(now_s)
        if num_held > MOST_S * per_s:
            return MOST_S
        return max(LEAST_S, math.ceil(num_held / per_s)) if num_held else LEAST_S

    def _forget(self, now_s: float) -> None:
        while self._slots and (self._slots[0][0] + 1) * SLOT_S <= now_s - WINDOW_S:
            self._num_gone -= self._slots.popleft()[1]
