"""Counts the requests that the controller refuses, and puts them on record: the first of a reason
and level at once, the others as a number, at most one event in EVERY_S. In an overload thousands
are refused, and their events would push all others out of the log.
"""

from dataclasses import dataclass, field

from controller.core.load.windows import CountWindow
from controller.core.scheduler_events import Reject, RejectCode
from controller.runtime.controller.journal import Journal

EVERY_S = 10.0


@dataclass(slots=True)
class Refused:
    """Of one reason and rank."""

    number: int = 0
    lately: CountWindow = field(default_factory=CountWindow)
    last: Reject | None = None
    num_untold: int = 0
    told_s: float = float("-inf")


class RefusalWatch:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.refused: dict[tuple[RejectCode, int], Refused] = {}
        """By reason and rank."""

    def note(self, reject: Reject, now_s: float) -> None:
        found = self.refused.setdefault((reject.code, reject.rank), Refused())
        found.number += 1
        found.lately.add(1, now_s)
        found.last, found.num_untold = reject, found.num_untold + 1
        self._tell(found, now_s)

    def tick(self, now_s: float) -> None:
        for found in self.refused.values():
            self._tell(found, now_s)

    def num_last_minute(self, code: RejectCode, rank: int, now_s: float) -> int:
        return self.refused[code, rank].lately.total(now_s)

    def _tell(self, found: Refused, now_s: float) -> None:
        if found.last is not None and found.num_untold and now_s - found.told_s >= EVERY_S:
            self._journal.rejected(found.last, found.num_untold)
            found.num_untold, found.told_s = 0, now_s
