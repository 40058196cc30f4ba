"""An event in words: how grave it is, its subject, its place, its reason and its figures; many
events as sums; and which events have the words that somebody looks for.

The command line and the dashboard use the same words, and arrange them as their room allows. This
module imports no models, so that `llumctl events --help` stays fast.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from controller.api.text.quantities import latency, sized

if TYPE_CHECKING:
    from controller.api.wire.requests import Event

KINDS = (
    "dispatched",
    "rejected",
    "admitted",
    "evicted",
    "prefix_fetched",
    "copy_corrupt",
    "migrated",
    "migration_failed",
    "request_lost",
    "request_found",
    "replayed",
    "held",
    "held_ended",
    "instance_kept",
    "overtaken",
    "not_moved",
    "room_not_made",
    "priority_changed",
    "finished",
    "aborted",
    "failed",
    "instance_started",
    "instance_died",
    "node_lost",
    "ray_lost",
    "ray_found",
    "instance_stalled",
    "instance_recovered",
    "instance_busy",
    "instance_quiet",
    "instance_failed",
    "drain_started",
    "drain_overdue",
    "drained",
    "handed_over",
    "drain_ended",
    "rolling_started",
    "rolling_stepped",
    "rolling_ended",
    "rolling_failed",
    "frontend_started",
    "frontend_died",
    "frontend_failed",
    "controller_started",
    "autoscaled",
    "autoscale_planned",
    "autoscale_blocked",
    "autoscale_held",
    "autoscale_released",
    "verdict",
    "alarm_raised",
    "alarm_cleared",
    "operator",
    "events_lost",
)
"""The kinds of events that controllers of this version write. Other kinds are shown, too."""


class Severity(StrEnum):
    """A `noted` event is neither good nor bad, but rare and caused on purpose."""

    PLAIN = "plain"
    GOOD = "good"
    NOTED = "noted"
    WARN = "warn"
    BAD = "bad"


_SEVERITIES: Mapping[str, Severity] = {
    "started": Severity.GOOD,
    "recovered": Severity.GOOD,
    "quiet": Severity.GOOD,
    "held": Severity.NOTED,
    "held_ended": Severity.GOOD,
    "instance_kept": Severity.NOTED,
    "overtaken": Severity.NOTED,
    "operator": Severity.NOTED,
    "autoscaled": Severity.NOTED,
    "autoscale_planned": Severity.NOTED,
    "autoscale_blocked": Severity.WARN,
    "autoscale_held": Severity.NOTED,
    "autoscale_released": Severity.NOTED,
    "verdict": Severity.NOTED,
    "alarm_raised": Severity.WARN,
    "alarm_cleared": Severity.GOOD,
    "migrated": Severity.NOTED,
    "request_lost": Severity.WARN,
    "request_found": Severity.GOOD,
    "replayed": Severity.NOTED,
    "priority_changed": Severity.NOTED,
    "drain_started": Severity.NOTED,
    "drain_ended": Severity.NOTED,
    "rolling_started": Severity.NOTED,
    "rolling_stepped": Severity.GOOD,
    "rolling_ended": Severity.NOTED,
    "drained": Severity.GOOD,
    "handed_over": Severity.GOOD,
    "overdue": Severity.WARN,
    "migration_failed": Severity.WARN,
    "evicted": Severity.WARN,
    "aborted": Severity.WARN,
    "busy": Severity.WARN,
    "rejected": Severity.BAD,
    "copy_corrupt": Severity.BAD,
    "failed": Severity.BAD,
    "died": Severity.BAD,
    "stalled": Severity.BAD,
    "lost": Severity.BAD,
}
"""The severities of events. A key is a whole kind of event, or the last word of a kind that has no
key of its own."""


class Weight(StrEnum):
    """How interesting an event is. A `routine` event is so frequent in a healthy cluster that a
    rate says more than a line for each event."""

    ROUTINE = "routine"
    NOTABLE = "notable"
    TROUBLE = "trouble"


_ROUTINE = frozenset(
    {
        "dispatched",
        "admitted",
        "prefix_fetched",
        "finished",
        "aborted",
        "evicted",
        "migrated",
        "migration_failed",
        "not_moved",
        "room_not_made",
        "request_lost",
        "request_found",
    }
)

_UNITS = ("tokens", "blocks", "steps")


def severity(event: "Event") -> Severity:
    return _severity_of(event.kind)


def _severity_of(kind: str) -> Severity:
    by_word = _SEVERITIES.get(kind.rpartition("_")[2], Severity.PLAIN)
    return _SEVERITIES.get(kind, by_word)


def weight(event: "Event") -> Weight:
    return weight_of(event.kind)


def weight_of(kind: str) -> Weight:
    if kind in _ROUTINE:
        return Weight.ROUTINE
    grave = _severity_of(kind) in (Severity.WARN, Severity.BAD)
    return Weight.TROUBLE if grave else Weight.NOTABLE


def member(event: "Event") -> str:
    """The process where the event happened; empty if there is none."""
    if event.kind.startswith("controller_"):
        return "controller"
    if event.kind.startswith("frontend_"):
        return event.frontend_id or ""
    return event.instance_id or event.frontend_id or ""


def where(event: "Event") -> str:
    """The member with its incarnation, such as `i-0/2`."""
    found = member(event)
    return f"{found}/{event.incarnation}" if found and event.incarnation is not None else found


def subject(event: "Event") -> str:
    """The request that the event is about, or else the member, or else the operator."""
    return event.request_id or where(event) or event.actor or "controller"


def reasons(event: "Event") -> tuple[str, ...]:
    """The event's reason and the operator, as far as the event has them."""
    by = f"by {event.actor}" if event.actor else ""
    return tuple(words for words in (event.reason, by) if words)


def figures(event: "Event") -> tuple[str, ...]:
    """The known figures in words. The freeness that other instances had when the decision was made
    is left out: only `explain` shows it."""
    return tuple(
        figure(name, value)
        for name, value in event.numbers.items()
        if value is not None and not name.startswith("freeness_of_")
    )


def why(event: "Event") -> str:
    return ", ".join((*reasons(event), *figures(event)))


def what(event: "Event") -> str:
    """The place (if it is not the subject), then the reasons and the figures."""
    on = [f"on {event.instance_id}"] if event.request_id and event.instance_id else []
    return ", ".join((*on, *reasons(event), *figures(event)))


def figure(name: str, value: float) -> str:
    """`num_output_tokens`, 12 -> "12 output tokens"; `waited_s`, 0.3 -> "waited 300ms";
    `stage_0_bytes`, 2048 -> "stage 0 2.0 KiB"."""
    if name.endswith("_s"):
        return f"{name.removesuffix('_s').replace('_', ' ')} {latency(value)}"
    if name.endswith("_bytes"):
        return f"{name.removeprefix('num_').removesuffix('bytes').replace('_', ' ')}{sized(value)}"
    if name.endswith("_ratio"):
        return f"{name.removesuffix('_ratio').replace('_', ' ')} {100 * value:.0f}%"
    words = name.replace("_", " ")
    if name.startswith("num_"):
        return f"{_number(value)} {words.removeprefix('num ')}"
    measured, _, unit = words.rpartition(" ")
    if unit in _UNITS and measured:
        return f"{measured} {_number(value)} {unit}"
    return f"{words} {_number(value)}"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


# -- many events -----------------------------------------------------------------------------------

SUMMED_S = 10.0
STORM = 3
"""So many routine events that mean trouble, within SUMMED_S, are worth a line: one or two of them
happen on a good day."""
STORM_KINDS = frozenset(
    kind for kind in _ROUTINE if _severity_of(kind) in (Severity.WARN, Severity.BAD)
)


@dataclass(frozen=True, slots=True)
class EventSum:
    """Events of one kind about requests of one member, of which the last came within SUMMED_S after
    the first; or a single event. `reason`: the reason of all; empty if they have several."""

    first: "Event"
    last_s: float
    reason: str
    count: int = 1

    @property
    def words(self) -> str:
        """`9 in 10 s`"""
        return f"{self.count} in {max(1, math.ceil(self.last_s - self.first.time_s))} s"


def summed(events: Iterable["Event"], known: Sequence[EventSum] = ()) -> list[EventSum]:
    """The events as sums, in the order of their first events. `known`: the sums of earlier events,
    which grow. An event that is about no request stands alone."""
    found = list(known)
    latest = {_summed_by(each.first): place for place, each in enumerate(found)}
    for event in events:
        key = _summed_by(event)
        place = latest.get(key)
        if place is not None and event.request_id is not None:
            before = found[place]
            if event.time_s - before.first.time_s < SUMMED_S:
                found[place] = EventSum(
                    before.first,
                    max(before.last_s, event.time_s),
                    before.reason if before.reason == event.reason else "",
                    before.count + 1,
                )
                continue
        latest[key] = len(found)
        found.append(EventSum(event, event.time_s, event.reason))
    return found


def _summed_by(event: "Event") -> tuple[str, str, bool]:
    return event.kind, member(event), event.request_id is not None


def searched(event: "Event") -> str:
    """The text in which an operator looks for words."""
    words = (event.kind, member(event), event.request_id or "", event.cause_id, *reasons(event))
    return " ".join(words)


def matches(text: str, wanted: str) -> bool:
    """Whether the text has all words of the filter, and none of the words before which the filter
    has a `!`. Upper and lower case count as equal."""
    lowered = text.lower()
    return all(
        (word[1:] not in lowered) if len(word) > 1 and word[0] == "!" else (word in lowered)
        for word in wanted.lower().split()
    )


def gap(missed: int | None, reason: str) -> str:
    """The words in the place of missing events. `reason`: why an event was left out."""
    if reason:
        return f"an event was left out: {reason}"
    return "events were missed" if missed is None else f"{missed} events were missed"
