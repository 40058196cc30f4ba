"""From when on something may hold of an instance that comes to hold as its free blocks run out.

A round asks each 0.1 s of all instances whether they need help or are sources, and that took half
of a run. But between two changes of an instance its batch only decodes: free blocks become fewer at
moments that are known in advance. So an instance is looked at once per change, and in a round only
from its moment on.
"""

import math
from collections.abc import Callable

from controller.core.load.snapshot import InstanceSnapshot
from controller.sim.instance import SimInstance

Holds = Callable[[InstanceSnapshot], bool]


class Moments:
    """`holds` of a status also holds of one that differs only in having fewer free blocks."""

    def __init__(self, holds: Holds) -> None:
        self._holds = holds
        self._changed: dict[SimInstance, None] = {}
        """Since they were looked at last."""
        self._from_s: dict[SimInstance, float] = {}

    def changed(self, instance: SimInstance) -> None:
        self._changed[instance] = None

    def gone(self, instance: SimInstance) -> None:
        self._changed.pop(instance, None)
        self._from_s.pop(instance, None)

    def come(self, now_s: float) -> list[SimInstance]:
        """The instances whose moment has come, up to one of their steps early: of all others it
        does not hold now."""
        for instance in self._changed:
            from_s = instance.first_s(self._holds)
            if from_s < math.inf:
                self._from_s[instance] = from_s
            else:
                self._from_s.pop(instance, None)
        self._changed.clear()
        return [instance for instance, from_s in self._from_s.items() if from_s <= now_s]
