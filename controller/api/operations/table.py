"""The table of all orders, the list of the last operations, and the order that takes an operation
back."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from controller.api.errors import NotFoundError, RefusedError
from controller.api.operations import (
    on_adapters,
    on_attached,
    on_cluster,
    on_instances,
    on_requests,
)
from controller.api.operations.order import Order
from controller.api.wire import AnswerModel, SettingValue, WireModel

ORDERS: Mapping[str, type[Order[Any, Any]]] = {
    each.kind: each
    for each in (
        *on_instances.ORDERS,
        *on_requests.ORDERS,
        *on_cluster.ORDERS,
        *on_adapters.ORDERS,
        *on_attached.ORDERS,
    )
}
"""All orders by kind."""

UNDOING = tuple(dict.fromkeys(each.undone_by for each in ORDERS.values() if each.undone_by))
"""The kinds of orders that take others back."""


def _known(kind: str) -> str:
    if kind not in UNDOING:
        raise ValueError("no order of this kind takes another one back")
    return kind


class Undo(WireModel):
    """The order that takes an operation back, and the state that the operation made. If the state
    is another one by now, somebody has changed it since."""

    kind: Annotated[str, AfterValidator(_known), Field(json_schema_extra={"enum": [*UNDOING]})]
    target: str = ""
    """An instance, or a request."""
    model: str = ""
    """The model that the operation was about, if the cluster serves several."""
    previous: dict[str, SettingValue]
    """The values that are restored, by key. A key is the name of a setting, or else `instances`,
    `level`, `instance`, or a field of an order about adapters."""
    made: dict[str, SettingValue]


class OperationEntry(WireModel):
    """One operation of the audit log. `why_not`: why it cannot be undone now; empty if it can be
    undone."""

    id: str
    time_s: float
    actor: str
    actions: tuple[str, ...]
    reason: str = ""
    outcome: str
    undo: Undo | None = None
    why_not: str = ""

    @property
    def was_done(self) -> bool:
        return not self.outcome.startswith(("refused", "failed", "unknown"))


class OperationList(AnswerModel):
    """The last operations, the newest first. `revision`: the revision of the spec at which
    `why_not` holds."""

    operations: tuple[OperationEntry, ...]
    revision: int = 0


LIST = "llumctl undo --list"
MAX_LISTED = 200
"""How many operations are searched for an id, or for the last operation that was done: many
operations that failed may be newer than that one."""


def chosen(done: OperationList, entry_id: str = "") -> OperationEntry:
    """The operation to take back: the last operation that was done, or the one with this id. Raises
    NotFoundError if there is none, and RefusedError if it cannot be taken back now."""
    found = [
        each for each in done.operations if each.id == entry_id or (not entry_id and each.was_done)
    ]
    if not found:
        what = f"operation {entry_id[:60]!r}" if entry_id else "operation that was done"
        raise NotFoundError(f"there is no {what} among the last ones", LIST)
    entry = found[0]
    if entry.why_not:
        actions = "; ".join(entry.actions)
        raise RefusedError(f"{entry.id} ({actions}) cannot be undone: {entry.why_not}", LIST)
    return entry


def taking_back(undo: Undo) -> Order[Any, Any]:
    return ORDERS[undo.kind].taking_back(undo.target, undo.previous).on(undo.model)


def words(undo: Undo) -> str:
    """`set migration.max_moves=4`: the undoing order as it can be typed after `llumctl`."""
    return taking_back(undo).whole_command.removeprefix("llumctl ")


def inverse(entry: OperationEntry, revision: int, reason: str = "") -> Order[Any, Any]:
    """The order that takes the operation back. The controller refuses it if the cluster's spec has
    a different revision by then: so nothing is undone that changed after it was found to be
    undoable."""
    assert entry.undo is not None
    return because(taking_back(entry.undo).at(revision), entry, reason)


def because(order: Order[Any, Any], entry: OperationEntry, reason: str = "") -> Order[Any, Any]:
    """The order with the reason that the audit log will show."""
    return order.but(reason=reason or f"undo of {entry.id}")
