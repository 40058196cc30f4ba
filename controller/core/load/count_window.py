"""How many of something came within a while, in slots of a second: a count that no limit on samples
cuts short."""

from collections import deque

MINUTE_S = 60.0
SLOT_S = 1.0


class CountWindow:
    """Times only go up, but for `take_back`'s."""

    def __init__(self, window_s: float = MINUTE_S) -> None:
        self._window_s = window_s
        self._slots: deque[list[int]] = deque()
        """[the slot's number, how many]"""
        self._total = 0

    def add(self, number: int, now_s: float) -> None:
        slot = int(now_s // SLOT_S)
        if self._slots and self._slots[-1][0] == slot:
            self._slots[-1][1] += number
        else:
            self._slots.append([slot, number])
        self._total += number

    def take_back(self, number: int, added_s: float) -> None:
        """Undoes an `add` at `added_s`."""
        slot = int(added_s // SLOT_S)
        for found in reversed(self._slots):
            if found[0] == slot:
                found[1] -= number
                self._total -= number
                return

    def total(self, now_s: float) -> int:
        """Those of the last `window_s` and up to SLOT_S more."""
        while self._slots and (self._slots[0][0] + 1) * SLOT_S <= now_s - self._window_s:
            self._total -= self._slots.popleft()[1]
        return self._total
