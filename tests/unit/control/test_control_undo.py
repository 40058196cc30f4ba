"""`llumctl undo` and the control API's list of operations: what can be undone and what cannot."""

import io
import json
from typing import Any

import pytest

from controller.api.operations.on_cluster import Scale, SetSettings
from controller.api.operations.on_instances import Cordon, Drain, Restart, Uncordon, Undrain
from controller.api.operations.on_requests import Migrate, SetPriority
from controller.core.record.request_record import RequestState
from controller.runtime.messages.requests import RequestsAsked
from tests.unit.control_bed import AnyOrder, Bed, llumctl
from tests.unit.control_support import LABELS

Captured = pytest.CaptureFixture[str]


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
    assert await llumctl("undo") == 5
    assert "there is no operation that was done among the last ones" in capsys.readouterr().err
    assert await llumctl("undo", "op-1") == 5
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
    bed: Bed, orders: list[tuple[AnyOrder, dict[str, Any]]], why: str
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
