"""How many tokens came within the last minute, in slots of a second."""

from collections import deque

from controller.core.overload.key_limits import WINDOW_S

SLOT_S = 1.0


class TokenWindow:
    """Times only go up, but for `take_back`'s."""

    def __init__(self) -> None:
        self._slots: deque[list[int]] = deque()
        """[the slot's number, tokens]"""
        self._num_tokens = 0

    def add(self, num_tokens: int, now_s: float) -> None:
        slot = int(now_s // SLOT_S)
        if self._slots and self._slots[-1][0] == slot:
            self._slots[-1][1] += num_tokens
        else:
            self._slots.append([slot, num_tokens])
        self._num_tokens += num_tokens

    def take_back(self, num_tokens: int, added_s: float) -> None:
        """Undoes an `add` at `added_s`."""
        slot = int(added_s // SLOT_S)
        for found in reversed(self._slots):
            if found[0] == slot:
                found[1] -= num_tokens
                self._num_tokens -= num_tokens
                return

    def num_tokens(self, now_s: float) -> int:
        """Those of the last WINDOW_S and up to SLOT_S more."""
        while self._slots and (self._slots[0][0] + 1) * SLOT_S <= now_s - WINDOW_S:
            self._num_tokens -= self._slots.popleft()[1]
        return self._num_tokens
