"""The controller's two ports: its inbox for the members, and the control API.

The head process holds both from before the controller begins until the cluster ends, so that no
other program takes them before the controller starts, or between its death and its next start:
Ray's servers take free ports by the dozen. Both are bound and do not listen at first, so that
callers are refused at once and not kept waiting.
"""

import contextlib
import logging
import random
import socket
from collections.abc import Callable
from pathlib import Path

from controller.adapters.listener import Keeper, receive
from controller.main.plan import ClusterPlan

log = logging.getLogger(__name__)

CONTROL_BACKLOG = 128
# All members of the largest cluster connect at once when the controller starts again.
INBOX_BACKLOG = 2048
# Above those of Ray's workers, and below those that Linux gives to outgoing connections. On a Ray
# that is somebody else's no head may hold the port while a new controller starts, and another
# program's connection would have it.
APART = range(20_000, 32_768)
MAX_TRIES = 50


def bound(host: str, port: int, *, again: bool) -> socket.socket:
    """Binds a socket. `again`: the port was ours a moment ago, and the kernel may still remember
    its last connections. Raises OSError.
    """
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(again))
        found.bind((host, port))
    except BaseException:
        found.close()
        raise
    return found


def bound_apart(host: str) -> socket.socket:
    """Binds a socket to a port that programs do not get by chance; any, if too many are in use.
    Raises OSError."""
    for port in random.sample(APART, MAX_TRIES):
        with contextlib.suppress(OSError):
            return bound(host, port, again=False)
    return bound(host, 0, again=False)


def keep(plan: ClusterPlan, control: socket.socket, inbox: socket.socket) -> list[Keeper]:
    """Called by the head: keeps the sockets for each process that is the controller."""
    return [Keeper(control, _control(plan)), Keeper(inbox, _inbox(plan))]


def control_socket(plan: ClusterPlan) -> socket.socket:
    """Called by the controller: the control API's socket, which listens."""
    table = plan.settings.control
    found = _received(_control(plan), lambda: bound(table.host, table.port, again=True))
    return _listening(found, CONTROL_BACKLOG)


def inbox_socket(plan: ClusterPlan, host: str) -> socket.socket:
    """Called by the controller: the inbox's socket, which listens. The members know its address by
    `plan.members_port`."""
    found = _received(_inbox(plan), lambda: bound(host, plan.members_port, again=True))
    return _listening(found, INBOX_BACKLOG)


def _listening(found: socket.socket, backlog: int) -> socket.socket:
    """For a minute the kernel keeps the port for the last connections, unless the socket that they
    came from could be bound again. It is said once the socket listens: before, another program
    could bind the port beside it."""
    found.listen(backlog)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return found


def _received(path: Path, bind_anew: Callable[[], socket.socket]) -> socket.socket:
    """Gets a socket from the head, or binds it: on somebody else's Ray a cluster outlives its head,
    and its ports are then free unless another program has taken them."""
    try:
        found = receive(path)
    except OSError as error:
        log.warning("the head hands out no socket (%s): binding the port again", error)
        found = bind_anew()
    found.setblocking(False)
    return found


def _control(plan: ClusterPlan) -> Path:
    return plan.ports_dir / "control.sock"


def _inbox(plan: ClusterPlan) -> Path:
    return plan.ports_dir / "inbox.sock"
