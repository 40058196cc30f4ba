"""The instances that a request has left by moves; the list travels with the request.

Times travel as ages, because clocks differ between machines; so the duration of each move, some
tens of milliseconds, is not counted.
"""

from dataclasses import dataclass, field

from controller.core.rescheduling.candidate import PastMoves

MAX_HOPS = 32
"""Moves kept of one request, and so the largest limit of moves in a minute."""


@dataclass(slots=True)
class PastInstances:
    """Times are the llumlet's, in seconds."""

    _hops: list[tuple[str, float]] = field(default_factory=list)

    @classmethod
    def after(cls, ages: PastMoves, source_id: str, now_s: float) -> "PastInstances":
        """The list of a request that has just come from `source_id`, which knew `ages`."""
        hops = [(instance_id, now_s - ago_s) for instance_id, ago_s in ages]
        return cls([*hops, (source_id, now_s)][-MAX_HOPS:])

    def ages(self, now_s: float) -> PastMoves:
        return tuple((instance_id, now_s - at_s) for instance_id, at_s in self._hops)
