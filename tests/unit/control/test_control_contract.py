"""What all orders of the control API have in common, over the real listener; what can be undone,
also by `llumctl undo`.

Each row of the table says how one order is given, and what the audit log says of it. The other
files are about what is special in each order.
"""

import asyncio
import io
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from controller.adapters.http.model_api import HANDLERS
from controller.adapters.http.perform import Handler
from controller.api.operations.on_adapters import LoadAdapter, UnloadAdapter
from controller.api.operations.on_cluster import (
    Autoscale,
    DismissRolling,
    Rolling,
    Scale,
    SetSettings,
    StopRolling,
)
from controller.api.operations.on_instances import (
    Cordon,
    Drain,
    Evacuate,
    Restart,
    Uncordon,
    Undrain,
)
from controller.api.operations.on_requests import Abort, Migrate, SetPriority
from controller.api.operations.order import Kind
from controller.api.operations.table import ORDERS, Undo, taking_back
from controller.core.record.request_record import RequestState
from controller.runtime.messages.codec import encode
from controller.runtime.messages.move_messages import MoveRefusalAsked
from controller.runtime.messages.requests import RequestsAsked
from llumctl.app import app
from tests.unit.control.control_bed import VIEWER, AnyOrder, Bed, bed_of, llumctl
from tests.unit.control.control_support import LABELS

Captured = pytest.CaptureFixture[str]
Given = tuple[AnyOrder, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """`action` and `target`: what the audit log says. `before`: orders that are given first.
    `again`: how a second order is answered. `more_each_time`: whether it changes something, too.
    `bad`: fields that no body of this kind may have."""

    row: AnyOrder
    action: str
    body: dict[str, Any] = field(default_factory=dict)
    target: str = ""
    before: tuple[Given, ...] = ()
    again: tuple[int, str] = (200, "")
    more_each_time: bool = False
    bad: tuple[dict[str, Any], ...] = ()


ADAPTER = {"name": "sql", "path": "/models/sql"}
MANY = {f"a.{n}": 1 for n in range(101)}
NAN, INFINITY = float("nan"), float("inf")
DEADLINES = tuple({"deadline_s": each} for each in (0, 31_536_000, "60", NAN, INFINITY))
ENDS = ({"on_deadline": "kill"}, *DEADLINES)
CASES = (
    Case(Drain, "drain i-0", bad=(*ENDS, {"with_ids": "i-1"})),
    Case(
        Undrain,
        "undrain i-0",
        before=((Drain, {}),),
        again=(409, "not_draining"),
        bad=({"deadline_s": 5},),
    ),
    Case(Cordon, "cordon i-0", bad=({"with_ids": "i-1"},)),
    Case(Uncordon, "uncordon i-0", before=((Cordon, {}),), bad=({"force": True},)),
    Case(Restart, "restart i-0", bad=(*DEADLINES, {"now": True, "deadline_s": 5})),
    Case(
        Evacuate,
        "evacuate i-0 within 20s",
        {"within_s": 20},
        more_each_time=True,
        bad=tuple({"within_s": each} for each in (None, 0, 31_536_000)),
    ),
    Case(
        Migrate,
        "migrate r-1 to i-1 (",
        {"to": "i-1"},
        again=(400, "same_instance"),
        bad=(
            *({"to": each} for each in ("", 7, "i" * 65)),
            *({"timeout_s": each} for each in (0, 600.1, NAN)),
            *({"max_stages": each} for each in ("3", 0, 13)),
        ),
    ),
    Case(
        SetPriority,
        "priority r-1 high, was normal",
        {"level": "high"},
        bad=tuple({"level": each} for each in (None, 1, "", "h" * 65)),
    ),
    Case(Abort, "abort r-1, was running", again=(409, "ended"), bad=({"force": True},)),
    Case(
        Scale,
        "scale 3 to 4",
        {"target": 4},
        bad=(
            {"change": 1},  # with a target
            *({"target": each} for each in (None, -1, 1.5, "2", True, 100_000)),
            *ENDS,
        ),
    ),
    Case(
        Rolling,
        "restart --rolling",
        again=(409, "rolling"),
        bad=({"at_once": -1}, {"at_once": "all"}, {"start_timeout_s": 0}, *DEADLINES),
    ),
    Case(StopRolling, "restart --stop", before=((Rolling, {}),), again=(409, "not_rolling")),
    Case(DismissRolling, "restart --dismiss", before=((Rolling, {}), (StopRolling, {}))),
    Case(
        SetSettings,
        "set migration.max_moves = 2, was 4",
        {"changes": {"migration.max_moves": 2}},
        "migration.max_moves",
        bad=tuple({"changes": each} for each in ({}, None, {"a": {"b": 1}}, MANY)),
    ),
    Case(
        LoadAdapter,
        "lora load sql /models/sql",
        ADAPTER,
        "sql",
        bad=(
            *({"name": each} for each in ("", "a b", "-a", "a" * 129, 7)),
            *({"path": each} for each in ("", "models/sql", 7)),
            {"digest": "abc"},
        ),
    ),
    Case(
        UnloadAdapter,
        "lora unload sql",
        {"name": "sql"},
        "sql",
        before=((LoadAdapter, ADAPTER),),
        again=(404, "no_adapter"),
        bad=({"path": "/models/sql"}, {"name": "a b"}),
    ),
)


each_order = pytest.mark.parametrize("case", CASES, ids=lambda case: case.row.kind)
TARGETS = {Kind.INSTANCE: "i-0", Kind.REQUEST: "r-1", Kind.CLUSTER: "the cluster"}


def test_the_table_has_all_orders() -> None:
    """Each row has its half in the controller, its command, and an inverse that exists."""
    assert sorted(case.row.kind for case in CASES) == sorted(ORDERS)
    handlers = {each.row.kind: each for each in HANDLERS}
    assert sorted(each.row.kind for each in HANDLERS) == sorted(ORDERS)
    commands = {each.name for each in app.registered_commands}
    for row in (*ORDERS.values(), Autoscale):
        assert not row.meaning or row.usage.split()[1] in commands
    for row in ORDERS.values():
        assert ("if_revision" in row.body.model_fields) == row.changes_spec
        assert row.changes_spec == (row.about is not Kind.REQUEST)
        if row.undone_by:
            assert Undo(kind=row.undone_by, previous={}, made={}).kind == row.undone_by
            assert handlers[row.undone_by].why_not.__func__ is not Handler.why_not.__func__
    with pytest.raises(ValueError, match="takes another one back"):
        Undo(kind="abort", previous={}, made={})


def state_of(bed: Bed) -> dict[str, Any]:
    """Everything that an order may change."""
    spec, request = bed.controller.keeper.spec, bed.book.find("r-1")
    return {
        "closed": {each: spec.closed.get(each) for each in ("i-0", "i-1", "i-2")},
        "instances": bed.controller.scaling.num_planned,
        "limits": bed.controller.live.rescheduling,
        "rolling": spec.rolling is not None and spec.rolling.goes,
        "dismissed": spec.rolling is not None and spec.rolling.dismissed,
        "adapters": [(each.name, each.path, each.digest) for each in spec.adapters],
        "request": (request.state, request.instance_id, request.level),
    }


def traces(bed: Bed) -> tuple[Any, ...]:
    """What shows that an order was carried out: the state, the spec's revision, the audit log, the
    events, and what members were told, except for questions."""
    told = [
        (address, encode(message))
        for address, message in bed.mailbox.sent
        if not isinstance(message, RequestsAsked | MoveRefusalAsked)
        and not getattr(message, "dry_run", False)
    ]
    last_event = bed.controller.journal.log.last_position
    return state_of(bed), bed.revision, bed.audited(), last_event, told


async def prepare(bed: Bed, case: Case) -> None:
    for row, body in case.before:
        await bed.does(row, **body)


def at_revision(bed: Bed, case: Case) -> dict[str, Any]:
    present = {"if_revision": bed.revision} if case.row.changes_spec else {}
    return {**case.body, **present}


@each_order
async def test_an_order_is_planned_carried_out_once_and_recorded(case: Case) -> None:
    async with bed_of() as bed:
        await prepare(bed, case)
        before, revision, num_entries = traces(bed), bed.revision, len(bed.audited())
        planned = await bed.does(case.row, dry_run=True, **at_revision(bed, case))
        assert planned.dry_run
        assert traces(bed) == before

        order = at_revision(bed, case) | {"reason": "a fan"}
        headers = {"Idempotency-Key": "k", "X-Llumctl-Actor": "ana@host"}
        first, meanwhile = await asyncio.gather(
            *(bed.gives(case.row, headers=headers, **order) for _ in range(2))
        )
        assert first.status_code == 200, first.text
        assert first.content == meanwhile.content == (await bed.answered("k")).content
        assert "dry_run" not in case.row.report.model_fields or not first.json()["dry_run"]
        assert bed.revision == revision + case.row.changes_spec
        assert state_of(bed) != before[0]

        begun, over = bed.audited()[num_entries:]
        for entry in (begun, over):
            assert entry["action"].startswith(case.action)
            assert entry["target"] == (case.target or TARGETS[case.row.about])
            assert (entry["actor"], entry["reason"]) == ("ana@host from 127.0.0.1", "a fan")
            assert entry["cause_id"] == begun["cause_id"]
        assert begun["outcome"] == "begun"
        assert over["outcome"] == ("migrated" if case.row is Migrate else "done")
        event = (await bed.events("operator"))[-1]
        assert (event.cause_id, event.actor) == (begun["cause_id"], begun["actor"])
        assert event.reason == f"{begun['action']} ({over['outcome']}): a fan"

        other = await bed.gives(case.row, headers=headers, **order | {"reason": "two fans"})
        assert (other.status_code, other.json()["code"]) == (409, "key_reused")
        before = traces(bed)
        again = {**case.body, "reason": "a fan"}
        assert await bed.refused(case.row, **again) == case.again
        if not case.more_each_time:
            assert traces(bed) == before


@each_order
async def test_an_order_is_undone_once_or_says_that_it_cannot_be(case: Case) -> None:
    async with bed_of() as bed:
        await prepare(bed, case)
        before = state_of(bed)
        await bed.does(case.row, **case.body)
        entry = (await bed.done())[0]
        if not case.row.undone_by:
            assert entry.why_not == "no order takes it back"
            return
        assert (entry.undo.kind, entry.why_not) == (case.row.undone_by, "")
        order = taking_back(entry.undo)
        await bed.does(type(order), order.target, **order.wanted.model_dump(exclude_unset=True))
        assert state_of(bed) == before
        assert (await bed.done())[1].why_not


@each_order
async def test_an_order_that_is_refused_leaves_no_trace(case: Case) -> None:
    row = case.row
    stranger = {"Authorization": "Bearer wrong"}
    no_token = {"Authorization": ""}
    no_target = "no_such_instance" if row.about is Kind.INSTANCE else "no_such_request"
    async with bed_of() as bed:
        await prepare(bed, case)
        before, body = traces(bed), case.body

        async def told(*target: str, **how: Any) -> tuple[int, str]:
            return await bed.refused(row, *target, **how)

        assert await told(headers=no_token, **body) == (401, "no_token")
        assert await told(headers=stranger, **body) == (403, "bad_token")
        for content in (b'{"dry_run": ', b"[]", b"7", b"null", b"\xff"):
            assert await told(content=content) == (400, "bad_request"), content
        if row.wants_body and row is not Evacuate:
            assert await told(content=b"") == (400, "bad_request")
        for bad in (
            *({"dryrun": True}, {"dry_run": "perhaps"}, {"dry_run": 1}, {"reason": "x" * 201}),
            *({"if_revision": each} for each in (-1, "x")),
            *case.bad,
        ):
            assert await told(**body | bad) == (400, "bad_request"), bad
        for key in ("", "k" * 65):
            refusal = await told(headers={"Idempotency-Key": key}, **body)
            assert refusal == (400, "bad_key")
        if row.changes_spec:
            for dry_run in (False, True):
                conflict = await told(**body, if_revision=99, dry_run=dry_run)
                assert conflict == (409, "revision_conflict")
        if row.about is not Kind.CLUSTER:
            for target in ("x-9", "f-0", "x" * 64):
                assert await told(target, **body) == (404, no_target)
            assert await told("", **body) == (404, "not_found")
        assert traces(bed) == before

        assert await told(headers=VIEWER, **body) == (403, "view_only")
        assert state_of(bed) == before[0]
        assert bed.audited()[-1]["outcome"] == "refused: view_only"


@each_order
async def test_an_order_that_fails_changes_nothing(case: Case) -> None:
    async with bed_of() as bed:
        await prepare(bed, case)
        before, body = state_of(bed), case.body
        path = bed.listener.audit.path
        bed.listener.audit.path = path / "no folder"
        assert await bed.refused(case.row, **body) == (500, "not_audited")
        bed.listener.audit.path = path
        if case.row.changes_spec:
            bed.cluster.disk.is_full = True
            assert await bed.refused(case.row, **body) == (500, "failed")
            assert bed.audited()[-1]["outcome"].startswith("failed: no space left")
            bed.cluster.disk.is_full = False
            keeper = bed.controller.keeper
            bed.while_recording(lambda: keeper.change(keeper.spec.with_settings({})))
            order = at_revision(bed, case)
            assert await bed.refused(case.row, **order) == (409, "revision_conflict")
            assert bed.audited()[-1]["outcome"] == "failed: revision_conflict"
        assert state_of(bed) == before
        if case.row.changes_spec and case.row is not SetSettings:
            bed.controller.stop(drain=True, grace_s=5.0)
            assert await bed.refused(case.row, **body) == (409, "stopping")


# -- revisions and keys --------------------------------------------------------------------


async def test_of_several_who_act_on_one_revision_one_is_obeyed(bed: Bed) -> None:
    answers = await asyncio.gather(
        bed.gives(Drain, if_revision=0),
        bed.gives(Scale, target=4, if_revision=0),
        bed.gives(Drain, "i-1", if_revision=0),
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409]
    told = next(answer.json() for answer in answers if answer.status_code == 409)
    assert "revision 0 was looked at, and 1 is the present one" in told["message"]
    assert (told["code"], told["hint"]) == ("revision_conflict", "llumctl status")
    assert bed.revision == 1


async def test_a_key_is_for_one_path_and_refusals_are_repeated_too(bed: Bed) -> None:
    keyed = {"headers": {"Idempotency-Key": "k"}}
    answers = [await bed.gives(Drain, **keyed, if_revision=9) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [409, 409]
    assert answers[0].content == answers[1].content == (await bed.answered("k")).content
    assert (await bed.answered("k")).status_code == 409
    assert await bed.refused(Undrain, **keyed, if_revision=9) == (409, "key_reused")


async def test_a_call_under_way_has_no_answer_yet(bed: Bed) -> None:
    told: list[tuple[int, str]] = []

    async def ask() -> None:
        for key in ("k", "l"):
            answer = await bed.answered(key)
            told.append((answer.status_code, answer.json()["code"]))

    bed.while_recording(ask)
    await bed.gives(Drain, headers={"Idempotency-Key": "k"})
    assert told == [(409, "under_way"), (404, "no_such_call")]


async def test_old_keys_are_forgotten(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.adapters.http.calls.MAX_KEPT", 2)
    for key in "abc":
        await bed.gives(Drain, headers={"Idempotency-Key": key}, reason="a fan")
    refusals = [
        await bed.refused(Drain, headers={"Idempotency-Key": key}, reason="two fans")
        for key in "ba"
    ]
    assert refusals == [(409, "key_reused"), (200, "")]


# -- undo -------------------------------------------------------------------------------


async def set_moves(bed: Bed, max_moves: int) -> None:
    await bed.does(SetSettings, changes={"migration.max_moves": max_moves})


async def why_not(bed: Bed, number: int = 0) -> str:
    """Of the last operation, or of the one so many before it."""
    return (await bed.done())[number].why_not


@pytest.mark.parametrize(
    ("row", "body", "command"),
    [
        (Drain, {}, "uncordon i-0"),
        (SetSettings, {"changes": {"migration.max_moves": 2}}, "set migration.max_moves=4"),
        (Scale, {"target": 4}, "scale 3"),
        (SetPriority, {"level": "high"}, "priority r-1 normal"),
        (Migrate, {"to": "i-1"}, "migrate r-1 --to i-0"),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
async def test_the_command_takes_the_last_operation_back(
    bed: Bed, capsys: Captured, row: AnyOrder, body: dict[str, Any], command: str
) -> None:
    await bed.does(row, **body)
    revision = bed.revision
    assert await llumctl("undo", "--dry-run", "-o", "json") == 10
    assert bed.revision == revision
    capsys.readouterr()
    assert await llumctl("undo", "-y") == 0
    assert capsys.readouterr().out.splitlines()[1].split("  ")[-1].strip() == command
    first, second = (await bed.done())[:2]
    assert first.reason == f"undo of {second.id}"


async def test_it_asks_before_instances_go(
    bed: Bed, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `scale -2` and `drain` do, which take these operations back."""
    await bed.does(Drain)
    await bed.does(Undrain)
    assert await llumctl("undo") == 5
    assert "asks before it acts, and there is no terminal" in capsys.readouterr().err
    monkeypatch.setattr("llumctl.output.is_terminal", lambda _: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\ny\n" * 2))
    for question in ("Drain i-0?", "Drain and remove i-3, i-4 (5 -> 3)?"):
        before = bed.revision
        assert await llumctl("undo") == 5
        err = capsys.readouterr().err
        assert question in err
        assert "nothing was changed" in err
        assert bed.revision == before
        assert await llumctl("undo") == 0
        assert bed.revision == before + 1
        await bed.does(Scale, target=5)


async def test_an_operation_is_found_behind_many_others(bed: Bed, capsys: Captured) -> None:
    assert await llumctl("undo") == 4
    assert "there is no operation that was done among the last ones" in capsys.readouterr().err
    assert await llumctl("undo", "op-1") == 4
    assert await llumctl("undo", "op-1", "--list") == 2
    await set_moves(bed, 2)
    first = (await bed.done())[0]
    for n in range(25):
        bed.listener.audit.write(
            actor="ana", action="scale 3 to 99", target="", outcome="failed", cause_id=f"op-{n}"
        )
    assert first.id not in [each.id for each in await bed.done()]
    assert await llumctl("undo", first.id, "--dry-run") == 10
    assert await llumctl("undo") == 0, "the last that was done"
    assert bed.controller.live.rescheduling.max_moves == 4


async def test_silent_frontends_are_asked_once_for_all_requests(bed: Bed) -> None:
    """In an incident `undo` ran into the client's own timeout, because it waited for each of the
    moves."""
    for level in ("high", "normal") * 2:
        await bed.does(SetPriority, level=level)
    num_asked = len(bed.mailbox.sent_to("mem://f-0", RequestsAsked))
    assert await why_not(bed) == ""
    assert len(bed.mailbox.sent_to("mem://f-0", RequestsAsked)) == num_asked + 1
    del bed.mailbox.engine_state["mem://f-0"]
    told = {each.why_not for each in await bed.done()}
    assert len(bed.mailbox.sent_to("mem://f-0", RequestsAsked)) == num_asked + 2
    assert told == {"request r-1 is not known any more: f-0 may know it and did not answer"}


async def test_what_was_changed_since_is_not_undone(bed: Bed, capsys: Captured) -> None:
    await set_moves(bed, 2)
    await set_moves(bed, 3)
    last, first = await bed.done()
    assert (last.why_not, first.why_not) == ("", "migration.max_moves is 3 by now")
    assert await llumctl("undo", first.id) == 5
    err = capsys.readouterr().err
    assert f"{first.id} (set migration.max_moves = 2, was 4) cannot be undone" in err
    assert "llumctl undo --list" in err
    assert await llumctl("undo", last.id, "-m", "too many") == 0
    assert bed.controller.live.rescheduling.max_moves == 2
    assert (await bed.done())[0].reason == "too many"


@pytest.mark.parametrize(
    ("orders", "why"),
    [
        ([(Drain, {}), (Undrain, {})], "i-0 is not being drained by it any more"),
        ([(Drain, {}), (Undrain, {}), (Drain, {})], "i-0 is being drained"),
        ([(Restart, {}), (Undrain, {})], "i-0 is not being drained by it any more"),
        ([(Cordon, {}), (Uncordon, {})], "i-0 is not cordoned by it any more"),
        ([(Cordon, {}), (Uncordon, {}), (Cordon, {})], "i-0 is cordoned"),
        ([(Scale, {"target": 4}), (Scale, {"target": 5})], "5 instances are planned by now"),
        (
            [(SetPriority, {"level": "high"}), (SetPriority, {"level": "normal"})],
            "its priority is normal by now",
        ),
        ([(Migrate, {"to": "i-1"}), (Migrate, {"to": "i-2"})], "it is on i-2 by now"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(row.kind for row, _ in value),
)
async def test_why_the_operation_before_the_last_cannot_be_undone(
    bed: Bed, orders: list[Given], why: str
) -> None:
    for row, body in orders:
        await bed.does(row, **body)
    assert (await why_not(bed), await why_not(bed, 1)) == ("", why)


@pytest.mark.parametrize("back", [Undrain, Uncordon], ids=lambda row: row.kind)
async def test_an_instance_that_is_gone_is_not_closed_again(bed: Bed, back: AnyOrder) -> None:
    await bed.does(Drain if back is Undrain else Cordon)
    await bed.does(back)
    keeper = bed.controller.keeper
    keeper.change(keeper.spec.without_instance("i-0"))
    assert await why_not(bed) == "i-0 is gone"


async def test_what_was_not_done_is_not_the_last(bed: Bed, capsys: Captured) -> None:
    await bed.does(SetPriority, level="high")
    bed.book.ended("r-1", RequestState.FINISHED, "stop")
    assert await why_not(bed) == "request r-1 has ended"
    await set_moves(bed, 2)
    bed.while_recording(lambda: bed.controller.stop(drain=True, grace_s=9.0))
    assert await bed.refused(Scale, target=5) == (409, "stopping")
    assert await why_not(bed) == "it was not done"
    assert await llumctl("undo", "--dry-run") == 10
    assert "set migration.max_moves=4" in capsys.readouterr().out


async def test_the_list_is_of_this_run_and_skips_what_is_no_entry(
    bed: Bed, capsys: Captured
) -> None:
    bed.listener.audit.write(
        actor="ana", action="set x = 1, was 2", target="x", outcome="done", cause_id="op-old"
    )
    old = bed.listener.audit.tail()[0] | {"time_s": LABELS.started_at_s - 1}
    lines = [json.dumps(old), "{torn", "[1]", json.dumps({"cause_id": "x"})]
    bed.listener.audit.path.write_text("\n".join(lines) + "\n")
    await set_moves(bed, 2)
    await bed.does(Drain, "i-1")
    assert len(await bed.done(1)) == 1
    assert await llumctl("undo", "--list") == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["ID", "TIME", "BY", "DID", "UNDO"]
    assert [row.split("  ")[-1].strip() for row in rows] == [
        "uncordon i-1",
        "set migration.max_moves=4",
    ]
