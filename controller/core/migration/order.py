"""What a source is told to do, by the controller or by its own choice: a move of one request."""

from dataclasses import dataclass

from controller.core.instance_ref import InstanceRef
from controller.core.migration.stages import MAX_STAGES


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """`migration_id` is empty where only a plan is wanted."""

    migration_id: str
    request_id: str
    destination: InstanceRef
    reason: str
    verify_kv: bool = False
    max_stages: int = MAX_STAGES
