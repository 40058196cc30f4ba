"""When an emulated step is over, and how well the machine keeps the profile's time.

Steps that follow each other keep the profile's time: the time that the process spends between two
steps, and the delay of a late step, are taken off the next step's wait. A real engine's profile
has such moments in it already. A delay over `MAX_CATCH_UP_S` is not caught up: the machine is too
busy then, and `Emulation` shows it.
"""

from collections.abc import Callable

from controller.ports.engine import Emulation

MAX_CATCH_UP_S = 0.01
# A step that ends later than this share of its length counts as late.
LATE_SHARE = 0.05


class Pace:
    """`clock` and `sleep` in seconds."""

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._clock = clock
        self._sleep = sleep
        self._due_s: float | None = None
        """When the last step should have ended; None before the first and after a rest."""
        self._ended_s = 0.0
        self._began_s = 0.0
        self.total = Emulation()

    def begin(self) -> None:
        """A step begins at the time when the last one should have ended, if that was just now."""
        now_s = self._clock()
        follows = self._due_s is not None and now_s - self._due_s <= MAX_CATCH_UP_S
        self._began_s = self._due_s if follows and self._due_s is not None else now_s
        if self._due_s is None:
            self._ended_s = now_s

    def end(self, duration_s: float) -> None:
        """Waits until `duration_s` after the step's beginning."""
        self._due_s = self._began_s + duration_s
        self._sleep(max(0.0, self._due_s - self._clock()))
        now_s = self._clock()
        total = self.total
        late = 0 < LATE_SHARE * duration_s < now_s - self._due_s
        self.total = Emulation(
            total.profile_time_s + duration_s,
            total.wall_time_s + now_s - self._ended_s,
            total.num_late_steps + late,
        )
        self._ended_s = now_s

    def rest(self) -> None:
        """The engine has nothing to do, so the next step follows none."""
        self._due_s = None
