"""What the instance's process wants of an engine besides its steps: moves of requests, and copies
of KV blocks. An attached server has neither. Requests that were lost elsewhere go on there."""
# ruff: noqa: ARG002 - most of these methods do nothing, whatever they are given

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from controller.core.emptying.relief import Candidate
from controller.core.load.snapshot import blocks_for
from controller.core.migration.refusals import MoveFacts, MoveRefusal, why
from controller.ports.engine import (
    Frames,
    KvBlocks,
    Peer,
    PinnedBlocks,
    ReservedBlocks,
    StageCopy,
    SuspendedRequest,
    TransferError,
)

if TYPE_CHECKING:
    from controller.adapters.attached.server_engine import ServerEngine

UNABLE = "the server that this instance is attached to cannot take it"
_NEVER = MoveFacts(never=MoveRefusal.ATTACHED)


class NoBlocks:
    """The blocks of an engine whose memory nobody here can read."""

    block_bytes = 1

    def buffer(self, num_blocks: int) -> Any:
        return bytearray(num_blocks)

    def gather(self, block_ids: Sequence[int], into: Any) -> memoryview:
        raise NotImplementedError

    def scatter(self, block_ids: Sequence[int], buffer: Any) -> None:
        raise NotImplementedError

    def writable(self, buffer: Any, num_blocks: int) -> memoryview:
        raise NotImplementedError


class NoTransfer:
    """The KvTransfer of an instance that copies nothing: every copy fails."""

    max_bytes_per_s: float | None = None

    def start(self, blocks: KvBlocks, tell: Callable[[Peer, Frames], None]) -> None: ...

    def told(self, peer: Peer, frames: Frames) -> None: ...

    def warm_up(self, peer: Peer) -> None: ...

    def send(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        return _no_copy()

    def receive(
        self, peer: Peer, stage_id: str, block_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        return _no_copy()

    def load(
        self, stage_id: str, from_ids: Sequence[int], to_ids: Sequence[int]
    ) -> asyncio.Future[StageCopy]:
        return _no_copy()

    def cancel(self, stage_id: str) -> None: ...

    def stalled_s(self, peer: Peer) -> float:
        return 0.0

    def forget(self, peer: Peer) -> None: ...

    async def close(self) -> None: ...


def _no_copy() -> asyncio.Future[StageCopy]:
    failed: asyncio.Future[StageCopy] = asyncio.get_running_loop().create_future()
    failed.set_exception(TransferError(why(MoveRefusal.ATTACHED)))
    return failed


class AttachedMoves:
    """No request of an attached server moves, and none moves there. Requests that were lost
    elsewhere go on there, with their outputs as a part of the prompt."""

    def __init__(self, engine: "ServerEngine[Any, Any]") -> None:
        self._engine = engine
        self.blocks: KvBlocks = NoBlocks()
        self.fingerprint = f"server={engine.server.url}"

    def set_rank(self, request_id: str, rank: int) -> None:
        """The server is not told: it has its own order."""
        if live := self._engine.live.get(request_id):
            live.rank = rank

    def facts(self, request_id: str) -> MoveFacts | None:
        return _NEVER if request_id in self._engine.live else None

    def is_queued(self, request_id: str) -> bool:
        return False

    def candidates(self) -> Sequence[Candidate]:
        queued = self._engine.queued()
        size = self._engine.block_size
        return [
            Candidate(
                request_id,
                live.rank,
                live.num_tokens,
                num_blocks := 0 if request_id in queued else blocks_for(live.num_tokens, size),
                num_blocks,
                request_id in queued,
                arrival_time_s=live.arrival_time_s,
                num_tokens_left=max(0, live.max_tokens - live.num_outputs),
                facts=_NEVER,
                num_outputs=live.num_outputs,
            )
            for request_id, live in self._engine.live.items()
        ]

    def outputs(self, request_id: str) -> Sequence[int]:
        return ()  # they are asked for only in a move

    def pin(self, request_id: str, first_block: int) -> PinnedBlocks | None:
        return None

    def unpin(self, request_id: str) -> None: ...

    def suspend(self, request_id: str) -> SuspendedRequest | None:
        raise KeyError(request_id)

    def resume(self, request_id: str) -> None: ...

    def release(self, request_id: str) -> None: ...

    def compiling(self, prepared: Any) -> None:
        """No request with a grammar is taken."""

    def reserve(
        self,
        prepared: Any,
        output_token_ids: Sequence[int],
        num_blocks: int,
    ) -> ReservedBlocks | MoveRefusal:
        return MoveRefusal.ATTACHED

    def extend(self, request_id: str, num_blocks: int) -> ReservedBlocks | None:
        return None

    def cancel(self, request_id: str) -> None: ...

    def commit(self, request_id: str, state: Frames) -> None:
        raise ValueError(why(MoveRefusal.ATTACHED))

    def drop(self, request_id: str) -> None:
        self._engine.abort([request_id])

    def drawn_generator(self, prepared: Any, num_output_tokens: int) -> None:
        """No request with a seed is taken."""

    def reenter(self, prepared: Any, output_token_ids: Sequence[int], generator: None) -> None:
        assert generator is None
        self._engine.reenter(prepared, output_token_ids)
