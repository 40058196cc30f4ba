"""The audit log: who asked for what, and how it ended. It is appended to, never rewritten.

The log has one JSON object per line, in the cluster's state folder, mode 0600. It outlives the
cluster, and never has what users wrote to the model.
"""

import errno
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

from controller.api.errors import LlumctlError
from controller.api.settings.bounds import MAX_REASON_CHARS

FILE = "audit.log"
# A reason is recorded whole.
MAX_FIELD_CHARS = MAX_REASON_CHARS


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
        """`outcome`: begun, done, or why not. Raises LlumctlError if the entry cannot be written:
        the operation should not be done then either."""
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
    ) -> None:
        """Writes an entry for each (action, target), all or none. Raises what `write` does."""
        lines = []
        for action, target in deeds:
            entry = {
                "time_s": round(time.time(), 3),
                "actor": one_short_line(actor),
                "action": one_short_line(action),
                "target": one_short_line(target),
                "outcome": one_short_line(outcome),
                "cause_id": cause_id,
                "reason": one_short_line(reason),
            }
            lines.append(json.dumps(entry).encode() + b"\n")
        try:
            self._append(b"".join(lines))
        except OSError as error:
            raise LlumctlError(
                f"cannot write the audit log {self.path}: {error.strerror}", "llumctl doctor"
            ) from error

    def _append(self, lines: bytes) -> None:
        """Appends in one write, so that lines of several processes do not mix."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if not _ends_a_line(descriptor):
                lines = b"\n" + lines
            if os.write(descriptor, lines) < len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _ends_a_line(descriptor: int) -> bool:
    """False if a full disk has cut the last entry."""
    size = os.fstat(descriptor).st_size
    return not size or os.pread(descriptor, 1, size - 1) == b"\n"


def one_short_line(text: str) -> str:
    """Makes text from elsewhere unable to forge an entry or to drive a terminal."""
    kept = "".join(char if char.isprintable() else "?" for char in text)
    return kept[:MAX_FIELD_CHARS]
