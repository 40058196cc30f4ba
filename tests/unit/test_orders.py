"""The table of orders is complete: each row has its half in the controller, its command, and an
inverse that exists.
"""

import pytest

from controller.adapters.http.control_server import HANDLERS
from controller.adapters.http.perform import Handler
from controller.api.operations.on_cluster import Autoscale
from controller.api.operations.order import Kind
from controller.api.operations.table import ORDERS, Undo
from llumctl.app import app

KINDS = sorted(ORDERS)
INVERSES = sorted({row.undone_by for row in ORDERS.values()} - {""})


def test_each_row_has_one_handler() -> None:
    assert sorted(each.row.kind for each in HANDLERS) == KINDS


def test_the_audit_log_knows_each_inverse_and_no_other() -> None:
    for kind in INVERSES:
        assert Undo(kind=kind, previous={}, made={}).kind == kind
    with pytest.raises(ValueError, match="takes another one back"):
        Undo(kind="abort", previous={}, made={})


@pytest.mark.parametrize("kind", INVERSES)
def test_an_inverse_can_say_why_not(kind: str) -> None:
    handler = next(each for each in HANDLERS if each.row.kind == kind)
    assert handler.why_not.__func__ is not Handler.why_not.__func__


@pytest.mark.parametrize("kind", KINDS)
def test_what_names_a_revision_changes_the_spec(kind: str) -> None:
    row = ORDERS[kind]
    assert ("if_revision" in row.body.model_fields) == row.changes_spec
    assert row.changes_spec == (row.about is not Kind.REQUEST)
    assert {"dry_run", "reason"} <= set(row.body.model_fields)


@pytest.mark.parametrize("row", [*ORDERS.values(), Autoscale], ids=lambda row: row.kind)
def test_what_the_console_gives_has_a_command(row: type) -> None:
    commands = {each.name for each in app.registered_commands}
    if row.meaning:
        assert row.usage.split()[1] in commands
