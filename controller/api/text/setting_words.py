"""Puts changes of settings into words, for the command line and the dashboard alike."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from controller.api.text.quantities import setting_value

if TYPE_CHECKING:
    from controller.api.operations.on_cluster import InstanceRole, SettingChanges
    from controller.api.wire.base import SettingValue

MAX_NAMED = 12


def assignments(values: "Iterable[tuple[str, SettingValue]]") -> str:
    """`migration.max_moves=2`, several with a blank between: as `llumctl set` takes them."""
    return " ".join(f"{key}={setting_value(value)}" for key, value in values)


def preview(changes: "SettingChanges") -> list[str]:
    """`sources: i-1 (-81), i-0 (86, new); no more: i-4`: which instances rescheduling would relieve
    of requests, and which may take some, with their freeness. Nothing if no role may change."""
    if not changes.roles:
        return []
    if all(each.now == each.then for each in changes.roles):
        return ["no instance becomes a source or a destination, or stops being one, now"]
    return [_side(changes.roles, "source"), _side(changes.roles, "destination")]


def _side(roles: "Iterable[InstanceRole]", role: str) -> str:
    ordered = sorted(roles, key=lambda each: (_steps(each), each.instance_id))
    if role == "destination":  # the freest is chosen first, as the least free source is
        ordered.sort(key=lambda each: -_steps(each))
    ordered.sort(key=lambda each: each.now == role)  # what changes is named first
    then = [_named(each, each.now != role) for each in ordered if each.then == role]
    gone = [each.instance_id for each in ordered if each.now == role != each.then]
    words = f"{role}s: {_listed(then) or 'none'}"
    return f"{words}; no more: {_listed(gone)}" if gone else words


def _steps(each: "InstanceRole") -> float:
    return float("-inf") if each.freeness_steps is None else each.freeness_steps


def _named(each: "InstanceRole", is_new: bool) -> str:
    steps = "draining" if each.freeness_steps is None else f"{each.freeness_steps:.0f}"
    return f"{each.instance_id} ({steps}{', new' if is_new else ''})"


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    words = ", ".join(names[:MAX_NAMED])
    return f"{words} and {more} more" if more > 0 else words
