"""Whether Ray can still start and end processes: its head answers, and this machine's raylet lives.

Ray's own calls cannot tell: without a head each of them blocks for a minute or more, and would
block the controller too. So a thread tries to connect to the head every second, and once more
before each call. A head that is stopped (SIGSTOP) still accepts connections, so it is not noticed
that the head has stopped.

While the head answers, the thread also asks it which nodes are being drained: an autoscaler, a
cloud's agent or the end of a pod makes Ray drain a node, with the moment at which the node will be
killed. Ray itself only stops placing actors there, and ends a node that is drained once no actor is
left."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping

from controller.ports.processes import LauncherLoss

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
CONNECT_TIMEOUT_S = 3.0
"""This leaves time for a second packet: if the first one is lost, it is sent again after 1 s."""
CALL_TIMEOUT_S = 1.5
"""The limit for a check before a call. The controller's event loop waits for such a check."""
RECONNECT_VARIABLE = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""The variable in which Ray's processes find how long to wait for a lost head before they end."""
RECONNECT_DEFAULT_S = 60.0
NO_HEAD = "Ray's head at {address} does not answer"
NO_RAYLET = "Ray's raylet on the controller's machine is gone"


class HeadWatch:
    """Watches Ray's head and this machine's raylet. `address`: HOST:PORT of the head. `draining`:
    asks the head which nodes it drains. The object must be made in an actor's process, because a
    raylet is the parent of that process."""

    def __init__(
        self,
        address: str,
        clock: Callable[[], float] = time.monotonic,
        parent: Callable[[], int] = os.getppid,
        draining: Callable[[], Mapping[str, float | None]] = dict,
    ) -> None:
        self._address = address
        self._draining = draining
        self.draining: Mapping[str, float | None] | None = None
        """By node, the moment at which it will be killed, in seconds since the epoch; None: no
        moment is named. None in place of the mapping: nothing is known yet."""
        self._could_ask = True
        self._clock = clock
        self._parent = parent
        self._raylet = parent()
        self._lost: tuple[float, str] | None = None
        """When the head or the raylet was first found to be lost, and which of the two it is."""

    def start(self) -> None:
        threading.Thread(target=self._watch, name="head watch", daemon=True).start()

    @property
    def loss(self) -> LauncherLoss | None:
        lost = self._lost
        if lost is None:
            return None
        since_s, what = lost
        ends_after_s = None if what == NO_RAYLET else reconnect_s()
        return LauncherLoss(what, self._clock() - since_s, ends_after_s)

    def look(self, timeout_s: float = CONNECT_TIMEOUT_S) -> LauncherLoss | None:
        what = self._trouble(timeout_s)
        if not what:
            self._lost = None
        elif self._lost is None or self._lost[1] != what:
            self._lost = (self._clock(), what)
        return self.loss

    def _watch(self) -> None:
        while True:
            if self.look() is None:
                self.ask_for_draining()
            time.sleep(LOOK_EVERY_S)

    def ask_for_draining(self) -> None:
        """Keeps what was known if the head does not say."""
        try:
            self.draining = self._draining()
            self._could_ask = True
        except Exception:  # of any kind, as Ray's interface for this is no public one
            if self._could_ask:
                log.exception("Ray does not say which nodes it drains")
            self._could_ask = False

    def _trouble(self, timeout_s: float) -> str:
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
        except OSError:
            return NO_HEAD.format(address=self._address)
        return "" if self._parent() == self._raylet else NO_RAYLET


def draining_nodes(address: str) -> Callable[[], Mapping[str, float | None]]:
    """A function that asks the head at `address` which nodes it drains, as in `HeadWatch.draining`.
    On a cluster of two nodes a call took 1 ms."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    client = GcsClient(address=address)

    def ask() -> Mapping[str, float | None]:
        found = client.get_draining_nodes(timeout=CALL_TIMEOUT_S)
        return {node: at_ms / 1000 if at_ms else None for node, at_ms in found.items()}

    return ask


def reconnect_s() -> float:
    """The value of RECONNECT_VARIABLE in the environment, which processes inherit from the
    raylet."""
    try:
        return float(os.environ.get(RECONNECT_VARIABLE, RECONNECT_DEFAULT_S))
    except ValueError:
        return RECONNECT_DEFAULT_S
