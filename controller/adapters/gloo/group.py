"""A Gloo process group of two: an ordered stream of messages that can be broken off.

What Gloo does (torch 2.13, measured on one machine): opening takes 1-2 ms. When the other process
dies, what waits fails within 1 ms. When it hangs, what waits stays until its time is up, and that
breaks the whole group. There is no other way to call back who waits, so `break_off` lets a receive
of its own time out: within 2-12 ms both ends have failed. Works keep the group's socket open.

Gloo neither encrypts nor asks who connects. Only addresses are exchanged under the cluster's key:
whoever reaches its port and guesses a small number may take the place of the other end. So the
port belongs on a network that is trusted. Bytes that fit no number do no harm (tried).
"""

import contextlib
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo, Store

SOURCE, DESTINATION = 0, 1
OPEN_TIMEOUT = timedelta(seconds=5)
# Whoever is connected to waits five times as long as the group's timeout says.
_GROUP_TIMEOUT = OPEN_TIMEOUT / 5
FOREVER = timedelta(days=365)
_BREAK_TAG = 1 << 16


class GroupBrokenError(Exception):
    """Nothing goes through it any more."""


class Posted:
    """A message that Gloo sends or fills; its memory must stay as it is until `wait` returns."""

    def __init__(self, work: Any, data: Any) -> None:
        self._work = work
        self._data = data

    def wait(self, timeout: timedelta) -> None:
        try:
            self._work.wait(timeout)
        except RuntimeError as error:
            raise GroupBrokenError(str(error)) from None


class LinkGroup:
    """Made on the thread that uses it, which it holds until the other end is there, too. Messages
    of one tag come in the order in which they were sent and may be shorter than their place."""

    def __init__(self, store: Store, rank: int, device: Any) -> None:
        options = ProcessGroupGloo._Options()
        options._devices = [device]
        options._threads = 0  # for collectives only
        options._timeout = _GROUP_TIMEOUT
        self._store = store  # C++ keeps only its own half of it
        self._other = 1 - rank
        try:
            self._group = ProcessGroupGloo(store, rank, 2, options)
        except RuntimeError as error:
            raise GroupBrokenError(str(error)) from None

    def send(self, data: bytearray | memoryview, tag: int) -> Posted:
        return self._post(self._group.send, data, tag)

    def receive(self, into: bytearray | memoryview, tag: int) -> Posted:
        return self._post(self._group.recv, into, tag)

    def break_off(self) -> None:
        """From any thread."""
        with contextlib.suppress(GroupBrokenError):
            self.receive(bytearray(1), _BREAK_TAG).wait(timedelta(milliseconds=1))

    def _post(self, post: Any, data: bytearray | memoryview, tag: int) -> Posted:
        try:
            return Posted(post([torch.frombuffer(data, dtype=torch.uint8)], self._other, tag), data)
        except RuntimeError as error:
            raise GroupBrokenError(str(error)) from None
