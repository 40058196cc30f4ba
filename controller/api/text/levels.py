"""What a priority level has on an instance, in a few characters."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.api.wire.models import InstanceStatus, LevelStatus
    from controller.api.wire.operations import PriorityEffect


def ranked(levels: "Iterable[LevelStatus]") -> "list[LevelStatus]":
    """The highest first."""
    return sorted(levels, key=lambda level: (-level.rank, level.name))


def run_and_wait(item: "InstanceStatus", level: str) -> str:
    """`6+2`: running and waiting requests of the level."""
    if item.num_running_reqs is None:
        return "-"
    waiting = item.num_waiting_by_level.get(level, 0)
    return f"{item.num_running_by_level.get(level, 0)}+{waiting}"


def priority_effect(effect: "PriorityEffect") -> list[tuple[str, str]]:
    """What another priority changes at the request's instance: names and changes."""
    before, after = effect.freeness_steps_before, effect.freeness_steps_after
    return [
        ("headroom", f"{effect.headroom_blocks_before} -> {effect.headroom_blocks_after} blocks"),
        ("freeness", f"{_steps(before)} -> {_steps(after)} steps"),
    ]


def _steps(freeness: float | None) -> str:
    return "-" if freeness is None else f"{freeness:.0f}"
