"""The controller's two ports: its inbox for the members, and the control API.

The head process holds both ports from before the controller's start until the cluster ends.
Otherwise another program could take them before the controller starts, or between its death and its
next start: Ray's servers take free ports by the dozen. At first both sockets are bound but do not
listen, so that callers are refused at once and need not wait."""

import contextlib
import logging
import random
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from controller.adapters.listener import Keeper, receive
from controller.main.plan import ClusterPlan

log = logging.getLogger(__name__)

CONTROL_BACKLOG = 128
# All members of the largest cluster connect at once when the controller starts again.
INBOX_BACKLOG = 2048
# These ports are above those of Ray's workers, and below those that Linux gives to outgoing
# connections. On somebody else's Ray there may be no head process to hold the port while a new
# controller starts. Without this range, a connection of another program could take the port then.
APART = range(20_000, 32_768)
MAX_TRIES = 50


def bound(host: str, port: int, *, again: bool) -> socket.socket:
    """A bound socket. `again`: whether the port was ours a moment ago, so that the kernel may still
    remember its last connections. Raises OSError."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(again))
        found.bind((host, port))
    except BaseException:
        found.close()
        raise
    return found


def bound_apart(host: str) -> socket.socket:
    """A socket that is bound to a port in `APART`, which programs do not get by chance, or to any
    port if too many of these are in use. Raises OSError."""
    for port in random.sample(APART, MAX_TRIES):
        with contextlib.suppress(OSError):
            return bound(host, port, again=False)
    return bound(host, 0, again=False)


def keep(
    plan: ClusterPlan, control: socket.socket, inboxes: Sequence[socket.socket]
) -> list[Keeper]:
    """Keeps the sockets for all later processes of the controller: `inboxes` has one for each
    model. Called by the head process."""
    kept = [
        Keeper(inbox, _inbox(of_model))
        for inbox, of_model in zip(inboxes, plan.by_model, strict=True)
    ]
    return [Keeper(control, _control(plan)), *kept]


def control_socket(plan: ClusterPlan) -> socket.socket:
    """The control API's socket, which listens. Called by the controller."""
    table = plan.settings.control
    found = _received(_control(plan), lambda: bound(table.host, table.port, again=True))
    return _listening(found, CONTROL_BACKLOG)


def inbox_socket(plan: ClusterPlan, host: str) -> socket.socket:
    """The socket of the inbox for the members of one model, which listens. The members know its
    address by `plan.members_port`. Called by the controller."""
    found = _received(_inbox(plan), lambda: bound(host, plan.members_port, again=True))
    return _listening(found, INBOX_BACKLOG)


def _listening(found: socket.socket, backlog: int) -> socket.socket:
    """Makes the socket listen. When a process ends, the kernel keeps the port for its last
    connections for a minute, unless SO_REUSEADDR was set. The option is set only after the socket
    listens: if it were set before, another program could bind the same port."""
    found.listen(backlog)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return found


def _received(path: Path, bind_anew: Callable[[], socket.socket]) -> socket.socket:
    """The socket that the head process keeps or, without a head process, a new one: on somebody
    else's Ray a cluster outlives its head process. The cluster's ports are then free, unless
    another program has taken them."""
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
    return plan.ports_dir / (f"inbox-{plan.number}.sock" if plan.number else "inbox.sock")
