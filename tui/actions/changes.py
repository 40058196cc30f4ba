"""The actions by which an operator changes the cluster, and what shows and allows them. Orders have
their words, their key, their danger and their command from their rows."""

from typing import Any

from controller.api.operations.on_cluster import (
    Autoscale,
    Rolling,
    Scale,
    SetSettings,
    StopRolling,
)
from controller.api.operations.on_instances import Drain, Evacuate, Restart, Undrain
from controller.api.operations.on_requests import Abort, Migrate, SetPriority
from controller.api.operations.order import Danger, Kind, Order
from controller.api.operations.table import ORDERS
from tui.actions.action import Action, Change, Place


def _gives(row: type[Order[Any, Any]], *, does: str = "", footer: str = "") -> Action:
    """`does`: what the key calls, if it does not act on rows; an order without a key is typed."""
    return Action(
        row.kind,
        (row.key,) if row.key else (),
        (does or f"act('{row.kind}')") if row.key else "",
        row.meaning,
        Place.ROWS,
        footer,
        row.typed,
        change=Change(row.about, row.usage, row.danger, row.several),
    )


_FIRST: tuple[Action, ...] = (
    _gives(Drain, footer="drain"),
    _gives(Undrain, footer="undrain"),
    _gives(SetPriority),
    _gives(Migrate),
    _gives(Abort),
    _gives(Restart),
    _gives(Evacuate),
    _gives(Rolling),
    _gives(StopRolling),
    Action("mark", ("x",), "mark", "mark this row, or not: keys act on all marked", Place.ROWS),
    _gives(Scale),
    Action("scale_out", ("plus",), "scale('+1')", "one instance more", Place.ROWS, live=True),
    Action("scale_in", ("minus",), "scale('-1')", "one instance fewer", Place.ROWS, live=True),
    _gives(Autoscale, does="autoscale"),
    Action(
        "tune",
        ("t",),
        "tune",
        "the settings of the running cluster",
        Place.ROWS,
        "tune",
        "tune",
        live=True,
    ),
    Action(
        "setting_edit",
        ("e",),
        "edit",
        "change the setting of this row",
        Place.TUNING,
        "edit",
        change=Change(Kind.CLUSTER, "llumctl set KEY=VALUE", Danger.CONFIRM),
    ),
    _gives(SetSettings),
    Action(
        "undo",
        ("U",),
        "undo",
        "take back what was done last, by anybody",
        Place.ROWS,
        typed="undo",
        change=Change(Kind.CLUSTER, "llumctl undo", Danger.CONFIRM),
    ),
    Action(
        "log",
        ("L",),
        "log",
        "what was done here, and its outcome",
        Place.ROWS,
        typed="log",
        live=True,
    ),
    Action(
        "read_only",
        ("R",),
        "read_only",
        "allow changes, or do not",
        Place.ROWS,
        typed="read_only",
        live=True,
    ),
)
_NAMED = {each.action_id for each in _FIRST}
CHANGES = _FIRST + tuple(
    _gives(row) for row in ORDERS.values() if row.meaning and row.kind not in _NAMED
)
