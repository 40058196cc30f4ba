"""Turns of held requests, by which the API keys of one rank share what becomes free: who was served
least goes first.

Each request has a turn from when it is held, a number of tokens: that of the last one of its key
plus what that one costs, but no less than the least turn that waits. So a key that was away has
neither credit nor debt, and the first of a rank stays the first: whoever comes has no earlier turn
(start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM '96). Decision 0034 says why turns do not
change while a request waits.
"""

from bisect import bisect_left, insort


class _Rank:
    __slots__ = ("next_turns", "waiting")

    def __init__(self) -> None:
        self.next_turns: dict[str, float] = {}
        """By key: where its next request may begin. Only while something waits."""
        self.waiting: list[float] = []
        """The turns that wait, the least first."""


class FairTurns:
    """`rank` and `key` are those of a request, `cost` what it is expected to take, in tokens."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def take(self, rank: int, key: str, cost: float) -> float:
        """The turn of a request that waits from now on."""
        found = self._ranks.setdefault(rank, _Rank())
        least = found.waiting[0] if found.waiting else 0.0
        turn = max(least, found.next_turns.get(key, 0.0))
        found.next_turns[key] = turn + cost
        insort(found.waiting, turn)
        return turn

    def gone(self, rank: int, key: str, turn: float, cost: float, *, served: bool) -> None:
        """It waits no more. If it was not served and is the last of its key, the next one has its
        turn."""
        found = self._ranks[rank]
        del found.waiting[bisect_left(found.waiting, turn)]
        if not found.waiting:
            del self._ranks[rank]
        elif not served and found.next_turns[key] == turn + cost:
            found.next_turns[key] = turn

    def __len__(self) -> int:
        return sum(len(each.waiting) for each in self._ranks.values())
