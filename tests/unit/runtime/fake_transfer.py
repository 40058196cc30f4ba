"""A KV transfer by the mailboxes of the fake network: as fast as the event loop, or on hold."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.ports.engine import Frames, KvBlocks, Peer, StageCopy, TransferError

STAGE, TAKEN, REFUSED = b"stage", b"taken", b"refused"
COPY_TIME_S = 0.25
_NOBODY = Peer("", 0, "")


@dataclass(slots=True)
class _Copy:
    peer: Peer
    block_ids: Sequence[int]
    future: asyncio.Future[StageCopy]


class FakeTransfer:
    def __init__(self) -> None:
        self.max_bytes_per_s: float | None = None
        self.holds: Callable[[str], bool] = lambda stage_id: False
        """Which stages wait for `let_go` before they are sent."""
        self.corrupts = False
        """Flips a bit of each stage that is sent."""
        self.comes_late: Callable[[str], bool] = lambda stage_id: False
        """Which stages are sent in whole, but come here only with `let_go`."""
        self.forgotten: list[str] = []
        self.lets_go_at_once = True
        """Whether a copy that is cancelled is done with its blocks then, or at `let_go`."""
        self.stalled = 0.0
        """What `stalled_s` says."""
        self._sends: dict[str, _Copy] = {}
        self._receives: dict[str, _Copy] = {}
        self._loads: dict[str, _Copy] = {}
        self._waiting: list[Callable[[], None]] = []

    @property
    def num_under_way(self) -> int:
        return len(self._sends) + len(self._receives) + len(self._loads)

    def held(self, stage_id: str) -> bool:
        return stage_id in self._sends and bool(self._waiting)

    @property
    def holds_some(self) -> bool:
        return bool(self._waiting)

    def let_go(self) -> None:
        self.holds, self.lets_go_at_once = (lambda stage_id: False), True
        self.let_go_once()

    def let_go_once(self) -> None:
        """What is held now; what comes next is held again."""
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def start(self, blocks: KvBlocks, tell: Callable[[Peer, Frames], None]) -> None:
        self._blocks, self._tell = blocks, tell

    def warm_up(self, _peer: Peer) -> None:
        pass

    def send(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        copy = self._begin(self._sends, peer, stage_id, block_ids)
        if self.holds(stage_id):
            self._waiting.append(lambda: self._send(stage_id))
        else:
            self._send(stage_id)
        return copy.future

    def receive(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        return self._begin(self._receives, peer, stage_id, block_ids).future

    def load(
        self, stage_id: str, from_ids: Sequence[int], to_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        copy = self._begin(self._loads, _NOBODY, stage_id, to_ids)
        if self.holds(stage_id):
            self._waiting.append(lambda: self._load(stage_id, from_ids))
        else:
            self._load(stage_id, from_ids)
        return copy.future

    def told(self, peer: Peer, frames: Frames) -> None:
        kind, stage, *contents = (bytes(frame) for frame in frames)
        stage_id = stage.decode()
        if kind == STAGE:
            taken = stage_id in self._receives
            if taken and self.comes_late(stage_id):
                self._waiting.append(lambda: self._take(stage_id, contents[0]))
            elif taken:
                self._take(stage_id, contents[0])
            self._tell(peer, [TAKEN if taken else REFUSED, stage])
        elif stage_id in self._sends:
            if kind == TAKEN:
                self._succeed(self._sends, stage_id)
            else:
                self._fail(self._sends, stage_id, "refused")

    def cancel(self, stage_id: str) -> None:
        def let_go() -> None:
            for copies in (self._sends, self._receives, self._loads):
                self._fail(copies, stage_id, "cancelled")

        if self.lets_go_at_once:
            let_go()
        else:
            self._waiting.append(let_go)

    def stalled_s(self, _peer: Peer) -> float:
        return self.stalled

    def forget(self, peer: Peer) -> None:
        self.forgotten.append(peer.instance_id)
        for copies in (self._sends, self._receives):
            for stage_id in [s for s, copy in copies.items() if copy.peer.key == peer.key]:
                self._fail(copies, stage_id, "the peer is gone")

    async def close(self) -> None:
        for copies in (self._sends, self._receives, self._loads):
            for stage_id in list(copies):
                self._fail(copies, stage_id, "closed")

    def _begin(
        self, copies: dict[str, _Copy], peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> _Copy:
        assert stage_id not in copies
        copies[stage_id] = _Copy(peer, block_ids, asyncio.get_running_loop().create_future())
        return copies[stage_id]

    def _send(self, stage_id: str) -> None:
        if (copy := self._sends.get(stage_id)) is None:  # cancelled meanwhile
            return
        contents = bytearray(
            self._blocks.gather(copy.block_ids, self._blocks.buffer(len(copy.block_ids)))
        )
        if self.corrupts and contents:
            contents[0] ^= 1
        self._tell(copy.peer, [STAGE, stage_id.encode(), bytes(contents)])

    def _load(self, stage_id: str, from_ids: Sequence[int]) -> None:
        if (copy := self._loads.get(stage_id)) is None:  # cancelled meanwhile
            return
        buffer = self._blocks.buffer(len(from_ids))
        self._blocks.gather(from_ids, buffer)
        self._blocks.scatter(copy.block_ids, buffer)
        self._succeed(self._loads, stage_id)

    def _take(self, stage_id: str, contents: bytes) -> None:
        if (copy := self._receives.get(stage_id)) is None:  # nobody expects it any more
            return
        copy.block_ids = copy.block_ids[: len(contents) // self._blocks.block_bytes]
        buffer = self._blocks.buffer(len(copy.block_ids))
        self._blocks.writable(buffer, len(copy.block_ids))[:] = contents
        self._blocks.scatter(copy.block_ids, buffer)
        self._succeed(self._receives, stage_id)

    def _succeed(self, copies: dict[str, _Copy], stage_id: str) -> None:
        copy = copies.pop(stage_id)
        num_bytes = len(copy.block_ids) * self._blocks.block_bytes
        copy.future.set_result(StageCopy(len(copy.block_ids), num_bytes, COPY_TIME_S))

    def _fail(self, copies: dict[str, _Copy], stage_id: str, why: str) -> None:
        if (copy := copies.pop(stage_id, None)) is not None:
            copy.future.set_exception(TransferError(why))
