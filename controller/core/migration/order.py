"""An order to a source to move one request, from the controller or from the source itself."""

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
