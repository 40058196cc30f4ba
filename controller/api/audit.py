"""The audit log: who asked for what, and what came of it. Appended to, never rewritten.

One JSON object per line, in the cluster's state folder, mode 0600. It outlives the cluster.
What users wrote to the model is never in it.
"""

import json
import os
import time
from pathlib import Path

FILE = "audit.log"
MAX_FIELD_CHARS = 200


class AuditLog:
    def __init__(self, state_dir: str | Path) -> None:
        self.path = Path(state_dir) / FILE

    def write(self, *, actor: str, action: str, target: str, outcome: str, cause_id: str) -> None:
        """`outcome`: done, or why not. Raises OSError if it cannot be written: then what was
        asked for must not be done either."""
        entry = {
            "time_s": round(time.time(), 3),
            "actor": printable(actor),
            "action": printable(action),
            "target": printable(target),
            "outcome": printable(outcome),
            "cause_id": cause_id,
        }
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(self.path, flags, 0o600)
        try:
            # One write: lines of several processes do not mix.
            os.write(descriptor, json.dumps(entry).encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def printable(text: str) -> str:
    """One short line: what others sent must not forge an entry or drive a terminal."""
    kept = "".join(char if char.isprintable() else "?" for char in text)
    return kept[:MAX_FIELD_CHARS]
