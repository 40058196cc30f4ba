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

INVERSES = sorted({row.undone_by for row in ORDERS.values()} - {""})


def test_each_row_has_one_handler_and_says_whether_it_changes_the_spec() -> None:
    assert sorted(each.row.kind for each in HANDLERS) == sorted(ORDERS)
    for row in ORDERS.values():
        assert ("if_revision" in row.body.model_fields) == row.changes_spec
        assert row.changes_spec == (row.about is not Kind.REQUEST)


def test_the_audit_log_knows_each_inverse_and_no_other() -> None:
    for kind in INVERSES:
        assert Undo(kind=kind, previous={}, made={}).kind == kind
        handler = next(each for each in HANDLERS if each.row.kind == kind)
        assert handler.why_not.__func__ is not Handler.why_not.__func__
    with pytest.raises(ValueError, match="takes another one back"):
        Undo(kind="abort", previous={}, made={})


def test_what_the_console_gives_has_a_command() -> None:
    commands = {each.name for each in app.registered_commands}
    given = [row for row in (*ORDERS.values(), Autoscale) if row.meaning]
    assert {row.usage.split()[1] for row in given} <= commands
