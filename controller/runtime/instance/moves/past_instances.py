"""Where a request has come from, move by move; it travels with the request.

As ages, because clocks differ between machines. What a move itself takes, some tens of
milliseconds, is lost on the way.
"""

from dataclasses import dataclass, field

from controller.core.rescheduling.candidate import PastMoves

MAX_HOPS = 32
"""Kept of one request, and so the most moves in a minute that can be told apart."""


@dataclass(slots=True)
class PastInstances:
    """Times are the llumlet's, in seconds."""

    _hops: list[tuple[str, float]] = field(default_factory=list)

    @classmethod
    def after(cls, ages: PastMoves, source_id: str, now_s: float) -> "PastInstances":
        """Of a request that has just come from there, with what its source knew."""
        hops = [(instance_id, now_s - ago_s) for instance_id, ago_s in ages]
        return cls([*hops, (source_id, now_s)][-MAX_HOPS:])

    def ages(self, now_s: float) -> PastMoves:
        return tuple((instance_id, now_s - at_s) for instance_id, at_s in self._hops)
