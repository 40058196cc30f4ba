"""The audit log: who asked for what, and how it ended; and when a cluster was stopped last.

The log is a file of mode 0600 in the cluster's state folder, with one JSON object per line. Entries
are appended and never rewritten. The log outlives the cluster, and never has what users wrote to
the model.
"""

import contextlib
import errno
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.api.errors import LlumctlError
from controller.api.settings import MAX_REASON_CHARS
from controller.api.state import run_state, user_files
from controller.api.text.quantities import moment

FILE = "audit.log"
# The same as the length of the longest reason, so that a reason is recorded whole.
MAX_FIELD_CHARS = MAX_REASON_CHARS
MAX_TAIL_BYTES = 1 << 18
DOWN = "down"
"""Actions that stop a cluster begin with this word."""


class AuditLog:
    def __init__(self, state_dir: str | Path) -> None:
        self.path = Path(state_dir) / FILE

    def write(
        self,
        *,
        actor: str,
        action: str,
        target: str,
        outcome: str,
        cause_id: str,
        reason: str = "",
    ) -> None:
        """Writes an entry. `outcome`: begun, done, or why not. Raises LlumctlError if the entry
        cannot be written; then the operation should not be done either."""
        self.write_all(
            [(action, target)], actor=actor, outcome=outcome, cause_id=cause_id, reason=reason
        )

    def write_all(
        self,
        deeds: Iterable[tuple[str, str]],
        *,
        actor: str,
        outcome: str,
        cause_id: str,
        reason: str = "",
        undo: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes an entry for each (action, target), all or none. `undo`: the JSON of the order
        that takes all of them back. Raises what `write` raises."""
        lines = []
        for action, target in deeds:
            entry: dict[str, Any] = {
                "time_s": round(time.time(), 3),
                "actor": one_short_line(actor),
                "action": one_short_line(action),
                "target": one_short_line(target),
                "outcome": one_short_line(outcome),
                "cause_id": cause_id,
                "reason": one_short_line(reason),
            }
            if undo is not None:
                entry["undo"] = undo
            lines.append(json.dumps(entry).encode() + b"\n")
        try:
            self._append(b"".join(lines))
        except OSError as error:
            raise LlumctlError(
                f"cannot write the audit log {self.path}: {error.strerror}", "llumctl doctor"
            ) from error

    def tail(self) -> list[dict[str, Any]]:
        """The last entries, the oldest first; lines that are no entries are left out."""
        try:
            with user_files.opened(self.path) as file:
                begin = max(0, file.seek(0, os.SEEK_END) - MAX_TAIL_BYTES)
                file.seek(begin)
                lines = file.read(MAX_TAIL_BYTES).splitlines()[1 if begin else 0 :]
        except OSError:
            return []  # nothing was written yet
        return [entry for line in lines if (entry := _parsed(line)) is not None]

    def _append(self, lines: bytes) -> None:
        """Appends the lines in one write, so that lines of several processes do not mix."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if not _ends_a_line(descriptor):
                lines = b"\n" + lines
            if os.write(descriptor, lines) < len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _ends_a_line(descriptor: int) -> bool:
    """Whether the file ends with a whole line; false if a full disk has cut the last entry."""
    size = os.fstat(descriptor).st_size
    return not size or os.pread(descriptor, 1, size - 1) == b"\n"


def one_short_line(text: str) -> str:
    """The text as one short line that can neither forge an entry nor drive a terminal."""
    kept = "".join(char if char.isprintable() else "?" for char in text)
    return kept[:MAX_FIELD_CHARS]


@dataclass(frozen=True, slots=True)
class LastStop:
    """`time_s`: when the cluster was gone; if the log does not say that, when the stop began."""

    time_s: float
    actor: str

    def words(self, now_s: float | None = None) -> str:
        """`12:04:31 by ana@head`."""
        when = moment(self.time_s, time.time() if now_s is None else now_s)
        return f"{when} by {self.actor}"


def last_stop(cluster: str) -> LastStop | None:
    """When a cluster was stopped last, and by whom; None if the log does not tell. As the log
    outlives the cluster, commands can distinguish a cluster that its operator stopped from one
    whose controller died, which still has its run state."""
    for entry in reversed(AuditLog(run_state.state_path(cluster)).tail()):
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            if entry["action"].startswith(f"{DOWN}:"):
                return LastStop(float(entry["time_s"]), one_short_line(entry["actor"]))
    return None


def last_stop_words(cluster: str) -> str:
    """A sentence about a cluster that ran: `cluster prod-a was stopped at 12:04:31 by ana@head`."""
    stop = last_stop(cluster)
    return f"cluster {cluster} was stopped" + (f" at {stop.words()}" if stop else "")
