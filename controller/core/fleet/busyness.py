"""Which instances compute for a while though no request is there: that is put on record.

QUIET   it has work, or computes little
BUSY    it computes without work; on record once that has lasted

QUIET -> BUSY -> QUIET, which is put on record too if the first was
"""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.core.fleet.liveness import InstanceGone, Key

BUSY_CORES = 0.5
"""A compiler that nobody can end (grammar_guard.py) or a thread that spins takes more. An idle
instance takes 0.02."""
LASTS_S = 5.0
"""Longer than a second, for which the CPU time of a request that has just ended still counts."""


@dataclass(frozen=True, slots=True)
class IdleSeen:
    """The CPU cores that each incarnation takes that serves and has nothing to do."""

    cores: Mapping[Key, float]


@dataclass(frozen=True, slots=True)
class TellBusy:
    """For the journal. `over`: it computes for nobody no more, after `lasted_s`."""

    instance_id: str
    incarnation: int
    lasted_s: float
    cpu_cores: float = 0.0
    over: bool = False


class Busyness:
    """Times are seconds of any one monotonic clock."""

    def __init__(self) -> None:
        self._since_s: dict[Key, float] = {}
        """Since when an incarnation computes for nobody."""
        self._on_record: set[Key] = set()
        """Those of `_since_s` for which that has lasted."""

    def handle(self, event: IdleSeen | InstanceGone, now_s: float) -> list[TellBusy]:
        if isinstance(event, InstanceGone):
            key = (event.instance_id, event.incarnation)
            self._since_s.pop(key, None)
            self._on_record.discard(key)
            return []
        busy = {key: cores for key, cores in event.cores.items() if cores >= BUSY_CORES}
        told: list[TellBusy] = []
        for key in [key for key in self._since_s if key not in busy]:
            since_s = self._since_s.pop(key)
            if key in self._on_record:
                self._on_record.remove(key)
                told.append(TellBusy(*key, now_s - since_s, over=True))
        for key, cores in busy.items():
            since_s = self._since_s.setdefault(key, now_s)
            if now_s - since_s >= LASTS_S and key not in self._on_record:
                self._on_record.add(key)
                told.append(TellBusy(*key, now_s - since_s, cores))
        return told

    def is_on_record(self, instance_id: str, incarnation: int) -> bool:
        return (instance_id, incarnation) in self._on_record

    def check(self, now_s: float) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert self._on_record <= set(self._since_s), "on record, and not busy"
        assert all(since_s <= now_s for since_s in self._since_s.values())
        assert all(now_s - self._since_s[key] >= LASTS_S for key in self._on_record)
