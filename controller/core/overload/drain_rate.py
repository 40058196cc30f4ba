"""How fast the queue at the controller drained lately, and so when a refused client may come again.

The estimate is the time in which all that are held would go at that rate: whoever is refused would
be the last of them. Nobody who comes then is sure of a place, as others come too.
"""

import math

from controller.core.load.windows import CountWindow

WINDOW_S = 30.0
LEAST_S, MOST_S = 1, 60
"""Bounds of what a client is told. OpenAI's clients wait for up to 60 s as they are told, and go by
a rule of their own when they are told more."""


class DrainRate:
    """Of the last WINDOW_S. Times only go up."""

    def __init__(self) -> None:
        self._num_gone = CountWindow(WINDOW_S)

    def gone(self, now_s: float, number: int = 1) -> None:
        """So many held requests went to instances."""
        if number:
            self._num_gone.add(number, now_s)

    def retry_after_s(self, num_held: int, now_s: float) -> int:
        """Whole seconds, from LEAST_S to MOST_S; MOST_S if nothing went lately."""
        per_s = self._num_gone.per_s(now_s)
        if num_held > MOST_S * per_s:
            return MOST_S
        return max(LEAST_S, math.ceil(num_held / per_s)) if num_held else LEAST_S
