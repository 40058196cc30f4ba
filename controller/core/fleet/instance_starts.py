"""The starts of the planned instances: which are launched, which come, which cannot, and how long
one takes.

    STARTING   launched, or died and started again, and not serving yet
    SERVING    it serves, also if it stalls or drains
    FAILED     its process said that it cannot start, or it took too long

    STARTING -> SERVING, FAILED     SERVING -> STARTING     FAILED -> SERVING, STARTING

A failed one is STARTING again when another process of it tries. What another controller saw before
this one is not known: an instance that does not serve when this one begins is taken for one that
was launched then.
"""

from collections import deque
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

MAX_MEASURED = 8
_EARLIER_S = 1.0
"""A process that ran longer than it was waited for, by more than this, was not launched here."""


RETRY_S = 1.0
"""Until a launch that failed is repeated."""


class Launches:
    """Which instances are launched now: those that are wanted and have no process, and one whose
    launch failed a while later, as Ray may still clean up after one that died with its controller.
    Times are seconds of any one monotonic clock."""

    def __init__(self) -> None:
        self._retry_at_s: dict[str, float] = {}
        """Of just the wanted instances, at the last look, whose last launch failed."""

    def look(self, wanted: Collection[str], there: Container[str], now_s: float) -> list[str]:
        """The instances to launch. `there`: those that have a process, or have been launched.
        Mutates."""
        retry_at_s = self._retry_at_s
        self._retry_at_s = {
            key: at_s for key, at_s in retry_at_s.items() if key in wanted and key not in there
        }
        return [key for key in wanted if key not in there and now_s >= retry_at_s.get(key, now_s)]

    def failed(self, instance_id: str, now_s: float) -> None:
        """The launch of the instance failed."""
        self._retry_at_s[instance_id] = now_s + RETRY_S


class StartState(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    FAILED = "failed"


@dataclass(slots=True)
class _Start:
    since_s: float
    """When the start began: of one that serves, its last one."""
    state: StartState = StartState.STARTING
    has_served: bool = False


class InstanceStarts:
    """`look` takes in how things stand, the rest tells it. Times are seconds of any one monotonic
    clock."""

    def __init__(self) -> None:
        self._starts: dict[str, _Start] = {}
        """By id, of just the instances that were planned at the last look."""
        self._took_s: deque[float] = deque(maxlen=MAX_MEASURED)
        """How long the last starts took, from a launch that this machine saw."""
        self.last_failed_s: float | None = None
        """When an instance was last found to be one that cannot start."""

    @property
    def cold_start_s(self) -> float | None:
        """From the launch of an instance until it serves: the median of the last ones."""
        return median(self._took_s) if self._took_s else None

    @property
    def launched(self) -> Collection[str]:
        """Instances that have not served yet, and may."""
        return {key for key in self.starting if not self._starts[key].has_served}

    @property
    def starting(self) -> Collection[str]:
        """Those launched, and those that died and are started again."""
        return self._in(StartState.STARTING)

    @property
    def failed(self) -> Collection[str]:
        return self._in(StartState.FAILED)

    def look(
        self,
        planned: Collection[str],
        serving: Mapping[str, float],
        gave_up: Collection[str],
        timeout_s: float,
        now_s: float,
    ) -> None:
        """`serving`: the instances that serve, and for how long the process of each had run at its
        last Hello. `gave_up`: those that said that they cannot start. `timeout_s`: one that does
        not serve for so long has failed. Mutates."""
        self._starts = {key: self._starts.get(key) or _Start(now_s) for key in planned}
        for instance_id, start in self._starts.items():
            up_s = serving.get(instance_id)
            if up_s is not None:
                took_s = now_s - start.since_s
                if not start.has_served and up_s <= took_s + _EARLIER_S:
                    self._took_s.append(took_s)
                start.state, start.has_served = StartState.SERVING, True
                continue
            if start.state is StartState.SERVING:
                start.state, start.since_s = StartState.STARTING, now_s
            is_late = now_s - start.since_s >= timeout_s
            if not is_late and instance_id not in gave_up:
                start.state = StartState.STARTING
            elif start.state is not StartState.FAILED:
                start.state, self.last_failed_s = StartState.FAILED, now_s

    def check(self, now_s: float) -> None:
        """Raises AssertionError if an invariant is broken."""
        for instance_id, start in self._starts.items():
            assert start.since_s <= now_s, f"{instance_id} starts in the future"
            is_serving = start.state is StartState.SERVING
            assert start.has_served or not is_serving, f"{instance_id} serves and never did"
        assert all(took_s >= 0 for took_s in self._took_s), "a start took less than no time"
        if self.failed:
            assert self.last_failed_s is not None, "one failed, and nobody knows when"
        assert self.last_failed_s is None or self.last_failed_s <= now_s

    def _in(self, state: StartState) -> set[str]:
        return {key for key, each in self._starts.items() if each.state is state}
