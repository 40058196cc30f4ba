"""What the cluster's processes need from outside: a launcher that starts and ends processes, a
mailbox for messages between them, a listener for the connections of clients, stores in which the
controller's knowledge outlives the controller, and where the traces of requests go."""

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from controller.core.fleet.adapters import Adapter
from controller.core.fleet.cluster_spec import ClusterSpec
from controller.core.fleet.incarnations import LastIncarnation
from controller.core.record.event_log import LoggedEvent
from controller.core.record.history import Sample
from controller.core.record.request_record import RequestRecord


@dataclass(frozen=True, slots=True)
class LauncherLoss:
    """The reason why a launcher cannot start and end processes."""

    what: str
    for_s: float
    """How long the loss has lasted."""
    ends_after_s: float | None
    """When the loss has lasted this long, every process of the cluster ends by itself. None: the
    processes do not end."""

    def ends_soon(self, within_s: float) -> bool:
        """Whether all processes will end within `within_s`. False until half of `ends_after_s` has
        passed."""
        ends_s = self.ends_after_s
        return ends_s is not None and self.for_s >= max(ends_s - within_s, ends_s / 2)


class LauncherLostError(Exception):
    """The launcher cannot start or end any process now."""


class Launcher(Protocol):
    """Starts and ends the cluster's processes. While there is a loss, every method except `loss`,
    `no_room`, `leaving` and `avoid` raises LauncherLostError."""

    def loss(self) -> LauncherLoss | None:
        """The loss as it was known about a second ago; returns at once."""

    def launch_instance(self, instance_id: str) -> None:
        """Starts the process of an instance, or finds it if it runs. The process says Hello by
        itself. Whenever it dies it is started again, until `terminate`."""

    def launch_frontend(self, frontend_id: str) -> None: ...

    def no_room(self, num_instances: int) -> str:
        """Why `num_instances` more instances would not start, in words; empty if nothing prevents
        it."""

    def restart(self, member_id: str) -> None:
        """Ends the process; another one is started in its place. Unknown ids are ignored."""

    def is_misplaced(self, instance_id: str) -> bool:
        """Whether the instance's processes are started in another Python environment than they
        should be now, until `restart`."""

    def terminate(self, member_id: str) -> None:
        """Ends the process for good. Unknown ids are ignored."""

    def leaving(self) -> Mapping[str, float | None] | None:
        """The machines that are still there and will be taken away, as it was known about a
        second ago. That is never called off. By the id with
        which a Hello names its machine, the moment in seconds since the epoch, or None if no moment
        is named. None in place of the mapping if nothing is known. Returns at once, also during a
        loss."""

    def avoid(self, machines: frozenset[str]) -> None:
        """Launches no further instance on these machines. Returns at once, also during a loss."""


OnMessage = Callable[[bytes | memoryview, Sequence[memoryview]], None]
OnLost = Callable[[str], None]


class Mailbox(Protocol):
    """A process's inbox, and its way to the inboxes of others.

    Between two live processes, messages of one sender arrive in order and without loss. When a peer
    goes away, this is reported once through `on_lost`, and messages that were not delivered to it
    are discarded."""

    address: str

    def start(self, on_message: OnMessage, on_lost: OnLost) -> None: ...

    def send(
        self, address: str, frame: bytes, payload: Sequence[Any] = (), *, droppable: bool = False
    ) -> None:
        """Queues a message for `address`. A `droppable` message is dropped while the peer lags
        behind."""

    def forget(self, address: str) -> None:
        """Closes the way to `address`, and discards the messages that still wait for it."""

    async def close(self) -> None: ...


class Listener(Protocol):
    """Where the connections of a frontend's clients come from."""

    async def open(self) -> socket.socket:
        """The listening socket that all frontends share. Raises OSError."""

    def set_write_timeout(self, write_timeout_s: float) -> None:
        """Sets the time-out of all later connections, at every frontend."""


class SpecStore(Protocol):
    """Where the cluster's spec is kept, so that it outlives the controller."""

    def load(self) -> ClusterSpec | None:
        """The spec that was saved last in this run of the cluster; None if no spec was saved.
        Raises LlumctlError if the spec cannot be read as a whole, because a part of it would mean
        something else."""

    def save(self, spec: ClusterSpec) -> None:
        """Returns when the spec is safe. Raises LlumctlError if it cannot be saved; the spec that
        was saved before stays then."""


class IncarnationStore(Protocol):
    """Where the numbers of members' incarnations are kept, so that they outlive the controller."""

    def load(self) -> Mapping[str, LastIncarnation]:
        """For each member id, the last incarnation that was stored in this run of the cluster."""

    def keep(self, member_id: str, last: LastIncarnation) -> None:
        """Returns when the next controller on this machine would find the incarnation. It never
        raises; a failure is only logged."""


class EventStore(Protocol):
    """Where the last events are kept, so that they outlive the controller."""

    def load(self, max_events: int) -> Sequence[tuple[str, LoggedEvent]]:
        """The last readable events of this run of the cluster, with their positions."""

    def keep(self, position: str, event: LoggedEvent) -> None:
        """Returns at once and never raises. The event will be safe soon, or is lost."""


class HistoryStore(Protocol):
    """Where the samples of the history are kept, so that they outlive the controller."""

    def load(self) -> Sequence[Sample]:
        """The last readable samples of this run of the cluster, in order."""

    def keep(self, sample: Sample) -> None:
        """Returns at once and never raises. The sample will be safe soon, or is lost."""


class AdapterFiles(Protocol):
    """An instance's copies of the files of LoRA adapters. The methods take as long as a copy; any
    thread may call them."""

    def fetch(self, adapter: Adapter) -> str:
        """Copies the files, unless they are here, and returns their folder. Nobody changes what is
        in it until `drop`. Raises ValueError, with the reason in words, if the files cannot be read
        or do not have the adapter's digest."""

    def drop(self, adapter: Adapter) -> None:
        """This process does not need the copy any more."""


class RequestTrace(Protocol):
    """The trace of one HTTP request."""

    def onward(self) -> dict[str, str]:
        """The headers that make another server's spans a part of this trace."""

    def end(
        self,
        status: int | None,
        records: Sequence[RequestRecord],
        end_s: float,
        error: str = "",
    ) -> None:
        """Ends the trace. `status`: the status of the answer; None if no answer was begun.
        `records`: the requests that were made of the HTTP request, with history. `end_s`: when the
        answer was over, in seconds since the epoch. `error`: why the answer was cut, if the records
        do not say that."""


class Traces(Protocol):
    """Where a frontend tells what happened to its requests."""

    def begin(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> RequestTrace:
        """Begins the trace of an HTTP request, or goes on with the trace that its headers name."""

    def close(self) -> None:
        """Sends what is left, for a short time at most. Blocks."""
