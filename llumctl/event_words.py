"""An event in words: when, to whom, where, and why, with its figures."""

import time

from controller.api.models import Event
from llumctl.status_table import duration

KINDS = (
    "dispatched",
    "rejected",
    "admitted",
    "evicted",
    "finished",
    "aborted",
    "failed",
    "instance_started",
    "instance_died",
    "instance_stalled",
    "instance_recovered",
    "instance_failed",
    "frontend_started",
    "frontend_died",
    "frontend_failed",
    "controller_started",
    "operator",
)
"""Those that controllers of this version write; others are shown too."""

_UNITS = ("tokens", "blocks", "steps", "bytes")


def clock_time(time_s: float, *, millis: bool = False) -> str:
    """Local: HH:MM:SS, or HH:MM:SS.mmm."""
    clock = time.strftime("%H:%M:%S", time.localtime(time_s))
    return f"{clock}.{int(time_s % 1 * 1000):03d}" if millis else clock


def subject(event: Event) -> str:
    """The request that it is about, else the member."""
    return event.request_id or where(event) or event.actor or "controller"


def where(event: Event) -> str:
    """The instance with its incarnation, as `i-0/2`; else the frontend."""
    member = event.instance_id or event.frontend_id
    if member is None:
        return ""
    return member if event.incarnation is None else f"{member}/{event.incarnation}"


def what(event: Event) -> str:
    """Where (if that is not the subject), then why."""
    on = [f"on {event.instance_id}"] if event.request_id and event.instance_id else []
    return ", ".join((*on, why(event))).removesuffix(", ")


def why(event: Event) -> str:
    """The reason, who asked for it, and the figures that are known."""
    parts = [event.reason] if event.reason else []
    if event.actor:
        parts.append(f"by {event.actor}")
    parts += [words(name, value) for name, value in event.numbers.items() if value is not None]
    return ", ".join(parts)


def words(name: str, value: float) -> str:
    """`num_output_tokens`, 12 -> "12 output tokens"; `waited_s`, 0.3 -> "waited 300ms"."""
    if name.endswith("_s"):
        return f"{name.removesuffix('_s').replace('_', ' ')} {short_time(value)}"
    if name.endswith("_ratio"):
        return f"{name.removesuffix('_ratio').replace('_', ' ')} {100 * value:.0f}%"
    plain, counted = name.replace("_", " "), name.startswith("num_")
    if counted:
        return f"{_figure(value)} {plain.removeprefix('num ')}"
    what_, _, unit = plain.rpartition(" ")
    if unit in _UNITS and what_:
        return f"{what_} {_figure(value)} {unit}"
    return f"{plain} {_figure(value)}"


def short_time(seconds: float | None) -> str:
    """As `duration`, but below a second in milliseconds."""
    if seconds is not None and 0 <= seconds < 1:
        return f"{1000 * seconds:.0f}ms"
    return duration(seconds)


def _figure(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
