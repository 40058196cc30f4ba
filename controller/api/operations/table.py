"""Every order of operators, once."""

from collections.abc import Mapping
from typing import Any

from controller.api.operations.on_cluster import (
    DismissRolling,
    Rolling,
    Scale,
    SetSettings,
    StopRolling,
)
from controller.api.operations.on_instances import Drain, Evacuate, Restart, Undrain
from controller.api.operations.on_requests import Abort, Migrate, SetPriority
from controller.api.operations.order import Order

ORDERS: Mapping[str, type[Order[Any, Any]]] = {
    each.kind: each
    for each in (
        Migrate,
        SetPriority,
        Abort,
        SetSettings,
        Drain,
        Undrain,
        Restart,
        Evacuate,
        Scale,
        Rolling,
        StopRolling,
        DismissRolling,
    )
}
"""By kind."""
