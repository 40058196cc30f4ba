"""How the two ends of a link find each other: their keys travel in the instances' own messages.

Gloo's ends exchange their socket addresses through a key-value store. A store that listens on a
port of its own would be one more socket that anybody may talk to; this one speaks through the
mailbox, which is encrypted and knows its peers.
"""

import threading
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import Store


class LinkClosedError(Exception):
    """The link is not wanted any more, or its other end did not come."""


class MailboxStore(Store):
    """Used by Gloo on the link's thread while it connects; `put` and `close` from any thread."""

    def __init__(self, publish: Callable[[str, bytes], None], patience: timedelta) -> None:
        super().__init__()
        self._patience_s = patience.total_seconds()
        self._publish = publish
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False

    def put(self, key: str, value: bytes) -> None:
        """By the other end."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def close(self) -> None:
        """Whoever waits for a key gets LinkClosedError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # -- what Gloo calls (torch/csrc/distributed/c10d/Store.hpp) -------------------------

    def set(self, key: str, value: bytes) -> None:
        self.put(key, bytes(value))
        self._publish(key, bytes(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # noqa: ARG002
        """For as long as the link may take, whatever Gloo's own patience is."""
        deadline_s = time.monotonic() + self._patience_s
        with self._changed:
            while not self.check(keys):
                left_s = deadline_s - time.monotonic()
                if self._closed or left_s <= 0:
                    raise LinkClosedError(f"no {keys} from the other end")
                self._changed.wait(left_s)
