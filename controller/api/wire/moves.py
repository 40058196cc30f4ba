"""Wire models of a move by hand."""

from typing import Annotated

from pydantic import Field

from controller.api.wire.base import AnswerModel, OrderModel, Reason, WireModel
from controller.api.wire.requests import MoveStage


class MigrateRequest(OrderModel):
    """Moves a live request. Without `to` the controller chooses the destination, and tries another
    if the first fails. With `dry_run` nothing moves."""

    to: str | None = Field(default=None, min_length=1, max_length=64)
    dry_run: bool = False
    verify_kv: bool = False
    """Compares a digest of the KV blocks on both sides before the destination takes over."""
    max_stages: Annotated[int | None, Field(ge=1, le=12)] = None
    """1: a stop-and-copy. None: as many as needed, 12 at most."""
    reason: Reason = ""
    timeout_s: float = Field(default=60.0, gt=0, le=600)
    """How long the call waits for the move's end. A move that is not over by then goes on."""


class MoveAttempt(WireModel):
    """One attempt to move a request. `outcome`: migrated; kept (the request never stopped at the
    source); resumed (it stopped, and runs there again); ended (it finished, or its client left);
    refused (the move was not begun); unknown (the source did not say)."""

    migration_id: str
    to_instance_id: str
    outcome: str
    code: str = ""
    why: str = ""
    duration_s: float | None = None
    num_tokens: int | None = None
    num_cached_blocks: int | None = None
    """Blocks that the destination's prefix cache had, so that they were not copied."""
    stages: tuple[MoveStage, ...] = ()


class MovePlanned(WireModel):
    """What a move would take. Times are null before the first move; a request that waits has no
    blocks and no downtime."""

    num_tokens: int
    num_blocks: int
    num_bytes: int
    copy_time_s: float | None = None
    downtime_s: float | None = None


class MigrationReport(AnswerModel):
    """How a move ended, or would end. `outcome`: that of the last attempt; in a dry run
    `would_move` or `refused`. `code` and `why` say why the request does not move."""

    request_id: str
    client_id: str
    from_instance_id: str
    to_instance_id: str | None = None
    dry_run: bool = False
    outcome: str
    code: str = ""
    why: str = ""
    note: str = ""
    hint: str = ""
    """The command that would help, if one is known."""
    num_blocks: int = 0
    num_bytes: int = 0
    """Copied by the last attempt."""
    copy_time_s: float = 0.0
    downtime_s: float | None = None
    """From the last token of one instance to the first of the other, as the client got them. Null
    for a request that waited for memory: its client's pause began before the move."""
    excess_s: float | None = None
    """`downtime_s` less the destination's step."""
    plan: MovePlanned | None = None
    attempts: tuple[MoveAttempt, ...] = ()
    """All attempts, the last one last."""
