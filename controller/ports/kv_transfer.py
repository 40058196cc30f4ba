"""How the bytes of KV blocks get from one instance to another, off the engine's thread."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from controller.core.instance_ref import InstanceRef
from controller.core.migration.move_records import StageRecord
from controller.ports.engine import Frames, KvBlocks

Peer = InstanceRef
StageCopy = StageRecord


class TransferError(Exception):
    """The bytes did not get through, or the copy was cancelled."""


class KvTransfer(Protocol):
    """Used from the event loop's thread only; the work is done elsewhere, in slices.

    A stage is named by the same `stage_id` on both sides and its blocks come in the same order.
    The future of a copy is done only when nothing touches its blocks any more; it fails with
    TransferError, never with anything else. One direction of a pair is one link: what is sent
    there goes one stage after the other, in the order of the calls.
    """

    max_bytes_per_s: float | None
    """The limit of each link; None: no limit. May be set at any time."""

    def start(self, blocks: KvBlocks, tell: Callable[[Peer, Frames], None]) -> None:
        """`tell` carries small messages to the transfer of a peer, where `told` gets them."""

    def told(self, peer: Peer, frames: Frames) -> None: ...

    def warm_up(self, peer: Peer) -> None:
        """Open the link to a destination if it is not open yet; returns at once."""

    def send(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]: ...

    def receive(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        """Expect a stage; when this returns the peer may begin to send. It sends at most as many
        blocks, for the first of these places (how many a last stage has is not known before)."""

    def cancel(self, stage_id: str) -> None:
        """Cancels a send or receive, if there is one: it fails as soon as its blocks are let go."""

    def stalled_s(self, peer: Peer) -> float:
        """How long this destination has taken none of the bytes that are ready for it; 0 while it
        takes some, while the limit or this side holds the bytes up, and with none to send."""

    def forget(self, peer: Peer) -> None:
        """The peer is dead: copies from it and to it fail."""

    async def close(self) -> None: ...
