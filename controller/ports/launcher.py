"""Starting and stopping the cluster's processes."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LauncherLoss:
    """What keeps a launcher from starting and ending processes."""

    what: str
    for_s: float
    """How long it has lasted."""
    ends_after_s: float | None
    """After so long every process of the cluster ends by itself; None: none does."""

    def ends_soon(self, within_s: float) -> bool:
        """At least half of the time passes before."""
        ends_s = self.ends_after_s
        return ends_s is not None and self.for_s >= max(ends_s - within_s, ends_s / 2)


class LauncherLostError(Exception):
    """The launcher can start and end no process now."""


class Launcher(Protocol):
    """Each call but `loss` and `no_room` raises LauncherLostError while there is a loss."""

    def loss(self) -> LauncherLoss | None:
        """At once, as it was known a second ago."""

    def launch_instance(self, instance_id: str) -> None:
        """Start (or find again) the process of an instance; it says Hello by itself, and
        is started again whenever it dies, until `terminate`."""

    def launch_frontend(self, frontend_id: str) -> None: ...

    def no_room(self, num_instances: int) -> str:
        """Why so many more instances would not start, in words; empty if nothing speaks against
        it."""

    def restart(self, member_id: str) -> None:
        """End the process; another one is started in its place. Unknown ids are ignored."""

    def terminate(self, member_id: str) -> None:
        """End the process for good; unknown ids are ignored."""
