"""What a controller does that can start and end no process any more: it says so, and ends the
streams with an error each before its own process is ended."""

from collections.abc import Callable

from controller.ports.launcher import Launcher
from controller.runtime.controller.journal import Journal

CUT_BEFORE_S = 8.0
"""So long before all processes end, live requests do. An error takes milliseconds; the moment at
which each process ends is known to a few seconds."""


class LauncherWatch:
    def __init__(self, launcher: Launcher, journal: Journal, cut: Callable[[], None]) -> None:
        self._launcher = launcher
        self._journal = journal
        self._cut = cut
        self._lost = ""

    def tick(self) -> None:
        loss = self._launcher.loss()
        what = "" if loss is None else loss.what
        if what != self._lost:
            self._journal.launcher(what or self._lost, lost=bool(what))
            self._lost = what
        if loss is not None and loss.ends_soon(CUT_BEFORE_S):
            self._cut()
