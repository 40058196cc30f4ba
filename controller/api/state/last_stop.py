"""When a cluster was stopped last, and by whom, as the audit log tells.

The log outlives the cluster, and so tells commands a cluster that its operator stopped from one
whose controller died, which still has its run state.
"""

import contextlib
import json
import os
import time
from dataclasses import dataclass

from controller.api.state import audit, plain_file, run_state
from controller.api.text.quantities import moment

DOWN = "down"
"""Actions that stop a cluster begin with this word."""
_TAIL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class LastStop:
    """`time_s`: when the cluster was gone, or, if the log does not tell, when the stop began."""

    time_s: float
    actor: str

    def words(self, now_s: float | None = None) -> str:
        """`12:04:31 by ana@head`."""
        when = moment(self.time_s, time.time() if now_s is None else now_s)
        return f"{when} by {self.actor}"


def last_stop(cluster: str) -> LastStop | None:
    """None if the log does not tell."""
    for line in reversed(_tail(cluster).split(b"\n")):
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            entry = json.loads(line)
            if entry["action"].startswith(f"{DOWN}:"):
                return LastStop(float(entry["time_s"]), audit.one_short_line(entry["actor"]))
    return None


def told(cluster: str) -> str:
    """A sentence about a cluster that ran: `cluster prod-a was stopped at 12:04:31 by ana@head`."""
    stop = last_stop(cluster)
    return f"cluster {cluster} was stopped" + (f" at {stop.words()}" if stop else "")


def _tail(cluster: str) -> bytes:
    path = run_state.state_path(cluster) / audit.FILE
    with contextlib.suppress(OSError), plain_file.opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        return file.read(_TAIL_BYTES)
    return b""
