"""What the cluster's processes need from the world: who starts and ends them, how they send
messages, where a frontend's clients come from, and where the controller's knowledge outlives it.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from controller.core.fleet.cluster_spec import ClusterSpec
from controller.core.fleet.incarnations import LastIncarnation
from controller.core.record.event_log import LoggedEvent


@dataclass(frozen=True, slots=True)
class LauncherLoss:
    """What keeps a launcher from starting and ending processes."""

    what: str
    for_s: float
    """How long it has lasted."""
    ends_after_s: float | None
    """After so long every process of the cluster ends by itself; None: they do not."""

    def ends_soon(self, within_s: float) -> bool:
        """Whether all processes end within `within_s`, once at least half of the time has
        passed."""
        ends_s = self.ends_after_s
        return ends_s is not None and self.for_s >= max(ends_s - within_s, ends_s / 2)


class LauncherLostError(Exception):
    """The launcher can start and end no process now."""


class Launcher(Protocol):
    """Starts and ends the cluster's processes. Each call but `loss` and `no_room` raises
    LauncherLostError while there is a loss."""

    def loss(self) -> LauncherLoss | None:
        """The loss as it was known a second ago; returns at once."""

    def launch_instance(self, instance_id: str) -> None:
        """Start (or find again) the process of an instance; it says Hello by itself, and
        is started again whenever it dies, until `terminate`."""

    def launch_frontend(self, frontend_id: str) -> None: ...

    def no_room(self, num_instances: int) -> str:
        """Why so many more instances would not start, in words; empty if nothing keeps them from
        starting."""

    def restart(self, member_id: str) -> None:
        """End the process; another one is started in its place. Unknown ids are ignored."""

    def terminate(self, member_id: str) -> None:
        """End the process for good; unknown ids are ignored."""


OnMessage = Callable[[bytes | memoryview, Sequence[memoryview]], None]
OnLost = Callable[[str], None]


class Mailbox(Protocol):
    """A process's inbox and its way to the inboxes of others.

    Delivery is ordered per sender and without loss between two live processes. A peer that goes
    away is reported once through `on_lost`; what was not delivered to it is discarded.
    """

    address: str

    def start(self, on_message: OnMessage, on_lost: OnLost) -> None: ...

    def send(
        self, address: str, frame: bytes, payload: Sequence[Any] = (), *, droppable: bool = False
    ) -> None:
        """Queue for `address`. A `droppable` message is dropped while the peer lags behind."""

    def forget(self, address: str) -> None:
        """Close the way to `address` and discard what still waits for it."""

    async def close(self) -> None: ...


class Listener(Protocol):
    """Where a frontend's clients come from."""

    async def open(self) -> socket.socket:
        """The listening socket that all frontends share. Raises OSError."""

    def set_write_timeout(self, write_timeout_s: float) -> None:
        """Sets the time-out of connections that come from then on, to every frontend."""


class SpecStore(Protocol):
    """Where the cluster's spec outlives the controller."""

    def load(self) -> ClusterSpec | None:
        """The spec that was saved last in this run of the cluster; None if none was. Raises
        LlumctlError if it cannot be read, as a part of it would mean something else."""

    def save(self, spec: ClusterSpec) -> None:
        """Returns when the spec is safe. Raises LlumctlError; then the spec that was saved before
        stays."""


class IncarnationStore(Protocol):
    """Where the numbers of members' incarnations outlive the controller."""

    def load(self) -> Mapping[str, LastIncarnation]:
        """By member id: its last incarnation that was stored in this run of the cluster."""

    def keep(self, member_id: str, last: LastIncarnation) -> None:
        """Returns when the next controller on this machine would find it. Never fails; a failure is
        only logged."""


class EventStore(Protocol):
    """Where the last events outlive the controller."""

    def load(self, max_events: int) -> Sequence[tuple[str, LoggedEvent]]:
        """The last readable events of this run of the cluster, with their positions."""

    def keep(self, position: str, event: LoggedEvent) -> None:
        """Returns at once and never fails: the event is safe soon, or lost."""
