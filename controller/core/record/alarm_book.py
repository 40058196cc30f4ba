"""The machine that records alarms: which are raised, since when, and how long those lasted that are
over."""

from collections import deque
from collections.abc import Mapping, Sequence

from controller.core.value import value

QUIET_S = 10.0
"""An alarm is over once it has not been seen for so long. One that comes again within this time is
the same one."""
MAX_ENDED = 200


@value
class Raised:
    subject: str
    text: str


@value
class Cleared:
    """`text`: what the alarm said last."""

    subject: str
    text: str
    lasted_s: float


@value
class RaisedAlarm:
    """An alarm that is raised. Times are in seconds since the epoch. `text`: what it says now."""

    subject: str
    text: str
    since_s: float
    seen_s: float


@value
class EndedAlarm:
    subject: str
    text: str
    since_s: float
    ended_s: float


class AlarmBook:
    """The alarms by their subjects: each member, and the cluster, has at most one."""

    def __init__(self) -> None:
        self._raised: dict[str, RaisedAlarm] = {}
        self._ended: deque[EndedAlarm] = deque(maxlen=MAX_ENDED)

    def handle(self, found: Mapping[str, str], now_s: float) -> list[Raised | Cleared]:
        """`found`: the words of each alarm that is seen now, by subject."""
        out: list[Raised | Cleared] = []
        for subject, alarm in self._raised.items():
            if alarm.seen_s > now_s:  # the clock was set back
                self._raised[subject] = RaisedAlarm(subject, alarm.text, now_s, now_s)
        for subject, text in found.items():
            known = self._raised.get(subject)
            if known is None:
                out.append(Raised(subject, text))
            since_s = now_s if known is None else known.since_s
            self._raised[subject] = RaisedAlarm(subject, text, since_s, now_s)
        for subject, alarm in list(self._raised.items()):
            if now_s - alarm.seen_s >= QUIET_S:
                del self._raised[subject]
                out.append(Cleared(subject, alarm.text, alarm.seen_s - alarm.since_s))
                ended = EndedAlarm(subject, alarm.text, alarm.since_s, alarm.seen_s)
                self._ended.append(ended)
        return out

    def view(self) -> tuple[Sequence[RaisedAlarm], Sequence[EndedAlarm]]:
        """The raised ones, the oldest first, and those that ended, the newest first."""
        return list(self._raised.values()), list(reversed(self._ended))

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        for subject, alarm in self._raised.items():
            assert subject == alarm.subject
            assert alarm.since_s <= alarm.seen_s, "it was seen before it was raised"
        for each in self._ended:
            assert each.since_s <= each.ended_s
