"""One direction between two instances: a Gloo group of two, and a thread that works on it.

A broken link is never mended: the next stage opens another, under a name of its own.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from controller.adapters.gloo.group import OPEN_TIMEOUT, GroupBrokenError, LinkGroup
from controller.adapters.gloo.rendezvous import LinkClosedError, MailboxStore
from controller.adapters.gloo.wire import NotALinkError
from controller.ports.kv_transfer import Peer
from controller.ports.moves import KvBlocks

log = logging.getLogger(__name__)

HEADER_TAG, DATA_TAG = 0, 1
# A slice that does not move for so long breaks the link, and its stages fail. Cancelled ones end
# long before that: their blocks are not what hangs, only a copy of them is.
STALL_TIMEOUT = timedelta(seconds=10)
# Slices on their way at once: while one is sent the next is gathered, while one is scattered the
# next comes in. With slices of 2 MiB that is 15-25% more bytes per second than one at a time, and
# three are no better than two (benchmarks.transfer, two busy cores).
DEPTH = 2


@dataclass(frozen=True, slots=True)
class Ends:
    """What all links of an instance have in common."""

    device: Any
    blocks: KvBlocks
    slice_blocks: int

    @property
    def slice_bytes(self) -> int:
        """Gloo ends the process, from a thread of its own, when a message is longer than its
        place. So both ends of a link must agree on this."""
        return self.slice_blocks * self.blocks.block_bytes


class Link(ABC):
    """`on_over` is called on the link's thread, at its very end."""

    def __init__(
        self,
        name: str,
        peer: Peer,
        rank: int,
        ends: Ends,
        publish: Callable[[str, bytes], None],
        on_over: Callable[["Link"], None],
    ) -> None:
        self.name = name
        self.peer = peer
        self.store = MailboxStore(publish, OPEN_TIMEOUT)
        self._ends = ends
        self._rank = rank
        self._on_over = on_over
        self._group: LinkGroup | None = None
        self._why: str | None = None
        """It shall end, or has ended."""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"kv {name}", daemon=True)
        self._breaker: threading.Thread | None = None

    @property
    def over(self) -> bool:
        return self._why is not None

    def start(self) -> None:
        self._thread.start()

    def break_off(self, why: str) -> None:
        """From any thread; returns at once. Its stages fail at once, too; the thread may take
        until OPEN_TIMEOUT if it is still opening."""
        with self._changed:
            if self._why is not None:
                return
            self._why = why
            group = self._group
            self._changed.notify_all()
        self._fail_all(why)
        self.store.close()
        if group is not None:
            self._breaker = threading.Thread(
                target=group.break_off, name=f"kv break {self.name}", daemon=True
            )
            self._breaker.start()

    def wake(self) -> None:
        """Something that it may be waiting for has changed."""
        with self._changed:
            self._changed.notify_all()

    def join(self) -> None:
        """Once `on_over` was called: waits no longer than 2-12 ms."""
        self._thread.join()
        if self._breaker is not None:
            self._breaker.join()

    def _run(self) -> None:
        why = "the link broke"
        group: LinkGroup | None = None
        try:
            group = LinkGroup(self.store, self._rank, self._ends.device)
            with self._changed:
                self._group = group
                wanted = self._why is None
            if wanted:
                self._work(group)
        except (GroupBrokenError, LinkClosedError, NotALinkError) as error:
            why = f"the link broke: {error}"
        except Exception as error:
            log.exception("link %s", self.name)
            why = f"the link broke: {error!r}"
        if group is not None:
            group.break_off()
        with self._changed:
            self._group = None
            broken_off, self._why = self._why, self._why or why
        del group
        log.info("link %s is over: %s", self.name, self._why)
        if broken_off is None:
            self._fail_all(why)
        self._on_over(self)

    @abstractmethod
    def _work(self, group: LinkGroup) -> None: ...

    @abstractmethod
    def _fail_all(self, why: str) -> None:
        """Once: what is expected later may come over the next link."""
