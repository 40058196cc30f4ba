"""An order to move a request, and what is remembered of the move: its plan while it runs, its
figures when it is over."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.core.instance_ref import InstanceRef
from controller.core.migration.protocol import MAX_STAGES
from controller.core.migration.refusals import why
from controller.core.record.event_log import Number

DESTINATION_DIED = "destination_died"


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """To a source, by the controller or by the source itself. `migration_id` is empty where only a
    plan is wanted."""

    migration_id: str
    request_id: str
    destination: InstanceRef
    reason: str
    verify_kv: bool = False
    max_stages: int = MAX_STAGES


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage's copy, as one side saw it; waits for the bandwidth limit are part of the time."""

    num_blocks: int
    num_bytes: int
    copy_time_s: float


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """One move that is over. `outcome` is the source's last state, `code` why it is not `migrated`.
    `num_cached_blocks` were at the destination already."""

    migration_id: str
    request_id: str
    source_id: str
    destination_id: str
    reason: str
    outcome: str
    code: str
    num_tokens: int
    num_cached_blocks: int
    duration_s: float
    stages: tuple[StageRecord, ...] = ()
    decision: Mapping[str, Number] = field(default_factory=dict)
    """The figures by which the cluster chose the move, if it did."""
    waited: bool = False
    """The request waited for memory before it moved, or at the destination before its first token
    there: that is what its client waited for, and not the move."""

    @property
    def num_blocks(self) -> int:
        return sum(stage.num_blocks for stage in self.stages)

    @property
    def num_bytes(self) -> int:
        return sum(stage.num_bytes for stage in self.stages)

    @property
    def copy_time_s(self) -> float:
        return sum(stage.copy_time_s for stage in self.stages)

    def labels(self) -> Mapping[str, str]:
        """The labels of this move's event."""
        labels = {"from": self.source_id, "to": self.destination_id, "reason": self.reason}
        return labels | ({"code": self.code, "why": why(self.code)} if self.code else {})

    def numbers(self) -> Mapping[str, Number]:
        """The figures of this move's event: the decision's, totals, then stage by stage."""
        figures: dict[str, Number] = {
            **self.decision,
            "num_stages": len(self.stages),
            "num_tokens": self.num_tokens,
            "num_blocks": self.num_blocks,
            "num_cached_blocks": self.num_cached_blocks,
            "num_bytes": self.num_bytes,
            "copy_time_s": self.copy_time_s,
            "duration_s": self.duration_s,
        }
        for index, stage in enumerate(self.stages):
            figures[f"stage_{index}_blocks"] = stage.num_blocks
            figures[f"stage_{index}_bytes"] = stage.num_bytes
            figures[f"stage_{index}_copy_time_s"] = stage.copy_time_s
        return figures


@dataclass(frozen=True, slots=True)
class MoveInFlight:
    """One move under way, as its source sees it."""

    migration_id: str
    request_id: str
    destination_id: str
    state: str
    stage: int
    num_blocks_copied: int
    num_blocks: int
    """The request's full blocks and the one that is being filled; 0 while it is queued."""
    reason: str
    age_s: float


@dataclass(frozen=True, slots=True)
class MovePlan:
    """What a move would take, without moving: an estimate by the source."""

    num_tokens: int
    num_blocks: int
    num_bytes: int
    expected_copy_time_s: float | None
    """None: nothing was copied yet from which to tell."""
