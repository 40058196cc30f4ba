"""The list of alarms: those that are raised, the worst first, and those that ended."""

from dataclasses import dataclass
from datetime import tzinfo

from controller.api.text.quantities import duration, printable, time_of_day
from controller.api.wire.status import AlarmStatus
from tui.actions import Target
from tui.drawing import Column, Span, Tone
from tui.state import DashboardState


@dataclass(frozen=True, slots=True)
class AlarmRow:
    """An alarm. `since_s` and `lasted_s` are None if nobody knows since when."""

    subject: str
    words: str
    is_raised: bool
    since_s: float | None
    lasted_s: float | None
    clock: str
    target: Target

    @property
    def id(self) -> str:
        return f"{self.subject} {self.since_s}"

    @property
    def text(self) -> str:
        return f"{_state(self)} {self.subject} {self.words}"


def rows(state: DashboardState, zone: tzinfo | None) -> list[AlarmRow]:
    """The raised alarms in the order of the alarm line; then the ended ones, the newest first. If
    the status has no list (it is an older controller's), the raised ones are those of this
    dashboard."""
    status = state.status
    if status is None:
        return []
    order = {alarm.subject: place for place, alarm in enumerate(state.alarms)}
    told = list(status.alarms)
    if status.verdict is None:
        return [
            _row(state, each.subject, "; ".join(each.causes), None, zone) for each in state.alarms
        ]
    raised = [each for each in told if each.ended_s is None]
    raised.sort(key=lambda each: (order.get(each.subject, len(order)), each.since_s))
    ended = [each for each in told if each.ended_s is not None]
    return [_row(state, each.subject, each.text, each, zone) for each in (*raised, *ended)]


def _row(
    state: DashboardState,
    subject: str,
    words: str,
    alarm: AlarmStatus | None,
    zone: tzinfo | None,
) -> AlarmRow:
    status = state.status
    now_s = (status.time_s if status is not None else 0.0) or state.time_s
    since_s = ended_s = None
    if alarm is not None:
        since_s, ended_s = alarm.since_s, alarm.ended_s
    return AlarmRow(
        subject,
        printable(words),
        ended_s is None,
        since_s,
        None if since_s is None else max(0.0, (now_s if ended_s is None else ended_s) - since_s),
        "-" if since_s is None else time_of_day(since_s, zone),
        Target(subject) if state.instance(subject) is not None else Target(other=subject),
    )


def _state(row: AlarmRow) -> str:
    return "raised" if row.is_raised else "ended"


def _tone(row: AlarmRow) -> Tone:
    return Tone.BAD if row.is_raised else Tone.DIM


COLUMNS: tuple[Column[AlarmRow], ...] = (
    Column(
        "state",
        "ALARM",
        8,
        lambda row, _: Span(f"{'!' if row.is_raised else ' '} {_state(row)}", _tone(row)),
    ),
    Column("since", "SINCE", 8, lambda row, _: Span(row.clock), drop=1),
    Column("lasted", "FOR", 6, lambda row, _: Span(duration(row.lasted_s)), right=True),
    Column("subject", "WHO", 10, lambda row, _: Span(printable(row.subject))),
    Column("what", "WHAT", 30, lambda row, _: Span(row.words, _tone(row)), max_width=400),
)
