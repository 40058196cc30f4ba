"""How long engines waited for a core that other programs had, by Linux's account of each thread.

On a machine with other work a real engine's steps last longer by these waits, which neither a
profile (`controller.main.profile.engine_process`) nor the simulator has.
"""

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PROC = Path("/proc")


class CoreWaits:
    """From its making on, of the processes of engines: of the thread of each that ran most."""

    def __init__(self, pids: Iterable[int], proc: Path = PROC) -> None:
        self._proc = proc
        self._before = {pid: self._threads(pid) for pid in pids}

    def waited_s(self) -> float | None:
        """In all; None where Linux does not tell."""
        waited_ns = 0
        for pid, before in self._before.items():
            after = self._threads(pid)
            grown = [
                (ran - before.get(thread, (0, 0))[0], waited - before.get(thread, (0, 0))[1])
                for thread, (ran, waited) in after.items()
            ]
            if not grown:
                return None
            waited_ns += max(grown)[1]
        return waited_ns / 1e9

    def _threads(self, pid: int) -> dict[str, tuple[int, int]]:
        """Nanoseconds on a core, and of waiting for one, by thread."""
        found = {}
        for path in (self._proc / str(pid) / "task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                ran, waited, *_ = path.read_text("utf-8").split()
                found[path.parent.name] = int(ran), int(waited)
        return found


def step_on_a_core_s(run: Mapping[str, Any]) -> float | None:
    """The mean step of a live run without the share of it that the engine waited for a core."""
    if run.get("waited_share") is None or run["step_s"] is None:
        return None
    return float(run["step_s"] * (1 - run["waited_share"]))
