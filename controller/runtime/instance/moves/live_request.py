"""A request that lives on this instance: its frontend, and what a move takes along."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.core.emptying.relief import PastMoves
from controller.core.migration.move_records import MoveRecord
from controller.core.migration.ownership import Epoch

MAX_HOPS = 32
"""Moves kept of one request, and so the largest limit of moves in a minute."""


@dataclass(slots=True)
class PastInstances:
    """The instances that a request has left by moves. Times are the llumlet's, in seconds.

    The list travels with the request, and its times as ages, because clocks differ between
    machines; so the duration of each move, some tens of milliseconds, is not counted.
    """

    _hops: list[tuple[str, float]] = field(default_factory=list)

    @classmethod
    def after(cls, ages: PastMoves, source_id: str, now_s: float) -> "PastInstances":
        """The list of a request that has just come from `source_id`, which knew `ages`."""
        hops = [(instance_id, now_s - ago_s) for instance_id, ago_s in ages]
        return cls([*hops, (source_id, now_s)][-MAX_HOPS:])

    def ages(self, now_s: float) -> PastMoves:
        return tuple((instance_id, now_s - at_s) for instance_id, at_s in self._hops)


@dataclass(frozen=True, slots=True)
class Kept:
    """A step's tokens for the request: the engine's own object, or frames that an earlier source
    encoded."""

    first_index: int
    num_tokens: int
    body: Any
    encoded: bool = False


@dataclass(slots=True)
class LiveRequest:
    """`frames`: the request as its frontend encoded it."""

    frontend: str
    attempt: int
    hop: int
    arrival_time_s: float
    frames: Sequence[bytes]
    next_index: int = 0
    kept: deque[Kept] = field(default_factory=deque)
    rank: int = 0
    evicted_at_s: float | None = None
    """When it lost its blocks last; seconds since the epoch."""
    rank_change: int = 0
    """The number, by its frontend's count, of the last change of its rank that counts here; 0:
    none."""
    arrived_by: MoveRecord | None = None
    """The move that brought it, until its first token here."""
    past_instances: PastInstances = field(default_factory=PastInstances)

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.attempt, self.hop)

    def keep(self, num_tokens: int, body: Any) -> None:
        """Call it before `next_index` counts the tokens."""
        if num_tokens:
            self.kept.append(Kept(self.next_index, num_tokens, body))

    def received(self, next_index: int) -> None:
        """The frontend has all tokens below `next_index`."""
        while self.kept and self.kept[0].first_index + self.kept[0].num_tokens <= next_index:
            self.kept.popleft()
