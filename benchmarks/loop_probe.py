"""How late an event loop runs what is due: a callback every millisecond, by the kernel's clock.

The loop's own timers cannot show it: uvloop's are whole milliseconds by a clock that it reads
once per turn, so they come up to 0.4 ms early and 1 ms late on a loop that has nothing to do.
Linux only.
"""

import asyncio
import ctypes
import os
import time

PERIOD_S = 0.001
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_TIMER_ABSTIME = 1


class _TimeSpec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _TimerSpec(ctypes.Structure):
    _fields_ = [("interval", _TimeSpec), ("first", _TimeSpec)]


class LoopProbe:
    """On the running loop from its making until `stop`. One value per period, in seconds: of two
    periods that passed unserved, both are late."""

    def __init__(self) -> None:
        self.late_s: list[float] = []
        self._loop = asyncio.get_running_loop()
        libc = ctypes.CDLL(None, use_errno=True)
        self._timer = libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._due_ns = time.monotonic_ns() + 10_000_000
        first = _TimeSpec(*divmod(self._due_ns, 1_000_000_000))
        spec = _TimerSpec(_TimeSpec(0, int(PERIOD_S * 1e9)), first)
        if libc.timerfd_settime(self._timer, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        self._loop.add_reader(self._timer, self._on_time)

    def stop(self) -> list[float]:
        self._loop.remove_reader(self._timer)
        os.close(self._timer)
        return self.late_s

    def _on_time(self) -> None:
        num_periods = int.from_bytes(os.read(self._timer, 8), "little")
        now_ns = time.monotonic_ns()
        for _ in range(num_periods):
            self.late_s.append((now_ns - self._due_ns) / 1e9)
            self._due_ns += int(PERIOD_S * 1e9)
