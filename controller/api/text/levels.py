"""What a priority level has on an instance, in a few characters."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.api.wire.models import InstanceStatus, LevelStatus


def ranked(levels: "Iterable[LevelStatus]") -> "list[LevelStatus]":
    """The highest first."""
    return sorted(levels, key=lambda level: (-level.rank, level.name))


def run_and_wait(item: "InstanceStatus", level: str) -> str:
    """`6+2`: running and waiting requests of the level; `6+-` in a recording of an older version,
    which does not tell by level what waits."""
    if item.num_running_reqs is None:
        return "-"
    waiting = item.num_waiting_by_level.get(level, 0)
    unknown = item.num_waiting_reqs and not item.num_waiting_by_level
    return f"{item.num_running_by_level.get(level, 0)}+{'-' if unknown else waiting}"
