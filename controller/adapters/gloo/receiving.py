"""The destination's end of a link: takes in what comes."""

from collections import deque
from dataclasses import dataclass
from typing import Any

from controller.adapters.gloo.expected import ExpectedStages
from controller.adapters.gloo.group import FOREVER, LinkGroup, Posted
from controller.adapters.gloo.link import DATA_TAG, DEPTH, HEADER_TAG, STALL_TIMEOUT, Link
from controller.adapters.gloo.wire import HEADER_BYTES, Kind, NotALinkError, SliceHeader, decode


@dataclass(slots=True)
class _Place:
    """Where the next slice goes."""

    head: bytearray
    buffer: Any
    header_posted: Posted
    data_posted: Posted


class ReceivingLink(Link):
    """Places are offered to Gloo ahead of what comes, so that nothing waits for this thread."""

    def __init__(self, *args: Any, expected: ExpectedStages) -> None:
        super().__init__(*args)
        self._expected = expected
        self._superseded = False

    def supersede(self) -> None:
        """Its source has opened another one."""
        self._superseded = True
        self.break_off("its source opened another link")

    def _work(self, group: LinkGroup) -> None:
        blocks = self._ends.blocks
        buffers = [blocks.buffer(self._ends.slice_blocks) for _ in range(DEPTH)]
        places = deque(self._offer(group, buffer) for buffer in buffers)
        while True:
            place = places.popleft()
            place.header_posted.wait(FOREVER)
            header = self._check(decode(place.head))
            place.data_posted.wait(STALL_TIMEOUT)
            if header.kind is not Kind.WARM_UP:
                self._expected.take(header, place.buffer)
            places.append(self._offer(group, place.buffer))

    def _offer(self, group: LinkGroup, buffer: Any) -> _Place:
        head = bytearray(HEADER_BYTES)
        room = self._ends.blocks.writable(buffer, self._ends.slice_blocks)
        return _Place(head, buffer, group.receive(head, HEADER_TAG), group.receive(room, DATA_TAG))

    def _check(self, header: SliceHeader) -> SliceHeader:
        num_bytes = header.num_blocks * self._ends.blocks.block_bytes
        if header.num_blocks > self._ends.slice_blocks or header.num_bytes != num_bytes:
            raise NotALinkError(f"{header.num_blocks} blocks in {header.num_bytes} bytes")
        return header

    def _fail_all(self, why: str) -> None:
        self._expected.fail(why, only_begun=self._superseded)
