"""`llumctl undo` and the control API's list of operations: what can be undone and what cannot."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from controller.api.operations.table import OperationEntry, OperationList
from controller.core.migration.rank_changes import RankChanges
from controller.core.migration.routes import Routes
from controller.core.record.request_record import RequestState
from controller.runtime.frontend.dispatcher import Dispatcher, FrontendKeys, KnownInstances
from controller.runtime.frontend.router import RankRunner
from controller.runtime.messages.requests import RankChangeAsked, RequestsAsked
from llumctl.app import run
from tests.unit.cli_support import remember
from tests.unit.control_support import AUTHORIZED, LABELS, TOKEN, Listener, listening
from tests.unit.move_support import serve_running_request

Captured = pytest.CaptureFixture[str]


class Bed:
    """Three instances; r-1 runs on i-0."""

    def __init__(self, listener: Listener, client: httpx.AsyncClient) -> None:
        self.listener, self.client = listener, client
        self.controller = listener.cluster.controller
        self.book = serve_running_request(listener)
        self.book._level_names = {0: "normal", 1: "high"}
        nobody, known = cast("Any", None), KnownInstances()
        routes = Routes(known)
        changes = RankRunner(
            RankChanges(routes),
            Dispatcher(nobody, nobody, known, routes, FrontendKeys("f-0", nobody)),
            self.book,
            nobody,
        )
        listener.cluster.mailbox.answers["mem://f-0"] = lambda message: (
            changes.asked(message) if isinstance(message, RankChangeAsked) else None
        )

    async def posts(self, path: str, method: str = "POST", **body: Any) -> None:
        answer = await self.client.request(method, f"/v1/{path}", headers=AUTHORIZED, json=body)
        assert answer.status_code == 200, answer.text

    async def set(self, **changes: Any) -> None:
        named = {f"migration.{key}": value for key, value in changes.items()}
        await self.posts("settings", "PATCH", changes=named)

    async def done(self, limit: int = 20) -> tuple[OperationEntry, ...]:
        path = f"/v1/operations?limit={limit}"
        answer = await self.client.get(path, headers=AUTHORIZED)
        assert answer.status_code == 200, answer.text
        return OperationList.model_validate_json(answer.content).operations

    async def why_not(self) -> str:
        return (await self.done())[0].why_not


@pytest.fixture
async def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("controller.runtime.controller.queries.REFUSALS_PATIENCE_S", 0.05)
    async with listening(3) as (listener, client):
        remember(listener.url, token=TOKEN)
        yield Bed(listener, client)


async def llumctl(*arguments: str) -> int:
    return await asyncio.to_thread(run, list(arguments))


async def undone(bed: Bed, capsys: Captured) -> str:
    """The order by which `undo` says that it takes the last operation back; a dry run says the same
    and does nothing."""
    revision = bed.controller.keeper.spec.revision
    assert await llumctl("undo", "--dry-run", "-o", "json") == 10
    assert bed.controller.keeper.spec.revision == revision
    capsys.readouterr()
    assert await llumctl("undo", "-y") == 0
    told = capsys.readouterr().out.splitlines()[1].split("  ")[-1].strip()
    first, second = (await bed.done())[:2]
    assert first.reason == f"undo of {second.id}"
    return told


async def test_a_drain_and_its_undo(bed: Bed, capsys: Captured) -> None:
    await bed.posts("instances/i-1/drain")
    assert await undone(bed, capsys) == "uncordon i-1"
    assert bed.controller.keeper.spec.drains == {}
    assert await undone(bed, capsys) == "drain i-1"
    assert set(bed.controller.keeper.spec.drains) == {"i-1"}


async def test_settings_and_their_undo(bed: Bed, capsys: Captured) -> None:
    await bed.set(max_moves=2, max_bytes_per_s=5.0)
    entry = (await bed.done())[0]
    assert sorted(entry.actions) == [
        "set migration.max_bytes_per_s = 5, was 0",
        "set migration.max_moves = 2, was 4",
    ]
    assert "set " in await undone(bed, capsys)
    limits = bed.controller.live.rescheduling
    assert (limits.max_moves, limits.max_bytes_per_s) == (4, 0.0)


async def test_a_scale_and_its_undo(bed: Bed, capsys: Captured) -> None:
    await bed.posts("scale", target=4)
    assert await undone(bed, capsys) == "scale 3"
    assert bed.controller.scaling.num_planned == 3


@pytest.mark.parametrize(
    ("orders", "question"),
    [
        ([("scale", {"target": 5})], "Drain and remove i-3, i-4 (5 -> 3)?"),
        ([("instances/i-1/drain", {}), ("instances/i-1/undrain", {})], "Drain i-1?"),
    ],
)
async def test_it_asks_before_instances_go(
    bed: Bed,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    orders: list[tuple[str, dict[str, Any]]],
    question: str,
) -> None:
    """As `scale -2` and `drain` do, which take these operations back."""
    for path, body in orders:
        await bed.posts(path, **body)
    before = bed.controller.keeper.spec
    assert await llumctl("undo") == 5
    assert "asks before it acts, and there is no terminal" in capsys.readouterr().err
    monkeypatch.setattr("llumctl.output.is_terminal", lambda _: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\ny\n"))
    assert await llumctl("undo") == 5
    err = capsys.readouterr().err
    assert question in err
    assert "nothing was changed" in err
    assert bed.controller.keeper.spec == before
    assert await llumctl("undo") == 0
    assert bed.controller.keeper.spec.revision == before.revision + 1


async def test_one_is_found_behind_many_others(bed: Bed) -> None:
    await bed.set(max_moves=2)
    first = (await bed.done())[0]
    for n in range(25):
        bed.listener.audit.write(
            actor="ana", action="scale 3 to 99", target="", outcome="failed", cause_id=f"op-{n}"
        )
    assert first.id not in [each.id for each in await bed.done()]
    assert await llumctl("undo", first.id, "--dry-run") == 10
    assert await llumctl("undo") == 0, "the last that was done"
    assert bed.controller.live.rescheduling.max_moves == 4


async def test_silent_frontends_are_waited_for_once(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an incident `undo` ran into the client's own timeout, because it waited for each of the
    moves."""
    for level in ("high", "normal") * 4:
        await bed.posts("requests/r-1/priority", level=level)
    monkeypatch.setattr("controller.runtime.controller.queries.PATIENCE_S", 0.2)
    mailbox = bed.listener.cluster.mailbox
    num_asked = len(mailbox.sent_to("mem://f-0", RequestsAsked))
    assert await bed.why_not() == ""
    assert len(mailbox.sent_to("mem://f-0", RequestsAsked)) == num_asked + 1
    del mailbox.engine_state["mem://f-0"]
    told = {each.why_not for each in await bed.done()}
    assert len(mailbox.sent_to("mem://f-0", RequestsAsked)) == num_asked + 2
    assert told == {"request r-1 is not known any more: f-0 may know it and did not answer"}


async def test_a_priority_and_its_undo(bed: Bed, capsys: Captured) -> None:
    await bed.posts("requests/r-1/priority", level="high")
    assert await undone(bed, capsys) == "priority r-1 normal"
    found = bed.book.find("r-1")
    assert found is not None
    assert found.level == "normal"


async def test_what_was_changed_since_is_not_undone(bed: Bed, capsys: Captured) -> None:
    await bed.set(max_moves=2)
    await bed.set(max_moves=3)
    last, first = await bed.done()
    assert (last.why_not, first.why_not) == ("", "migration.max_moves is 3 by now")
    assert await llumctl("undo", first.id) == 5
    err = capsys.readouterr().err
    assert f"{first.id} (set migration.max_moves = 2, was 4) cannot be undone" in err
    assert err.endswith("try:   llumctl undo --list\n")
    assert await llumctl("undo", last.id, "-m", "too many") == 0
    assert bed.controller.live.rescheduling.max_moves == 2
    assert (await bed.done())[0].reason == "too many"


async def test_why_each_cannot_be_undone(bed: Bed) -> None:
    await bed.posts("instances/i-1/drain")
    await bed.posts("instances/i-1/undrain")
    assert [each.why_not for each in await bed.done()] == [
        "",
        "i-1 is not being drained by it any more",
    ]
    await bed.posts("instances/i-1/drain")
    assert (await bed.done())[1].why_not == "i-1 is being drained"
    await bed.posts("instances/i-1/drain", reason="another")
    assert await bed.why_not() == "it cannot be undone", "a drain was there before"
    await bed.posts("scale", target=4)
    await bed.posts("scale", target=5)
    assert (await bed.done())[1].why_not == "5 instances are planned by now"
    await bed.posts("requests/r-1/priority", level="high")
    bed.book.ended("r-1", RequestState.FINISHED, "stop")
    assert await bed.why_not() == "request r-1 has ended"
    await bed.posts("instances/i-2/restart")
    assert await bed.why_not() == ""
    await bed.posts("instances/i-2/undrain")
    assert (await bed.done())[1].why_not == "i-2 is not being drained by it any more"
    await bed.posts("instances/i-0/restart", now=True)
    assert await bed.why_not() == "it cannot be undone"


async def test_what_was_not_done_is_not_the_last(bed: Bed, capsys: Captured) -> None:
    await bed.set(max_moves=2)
    assert (await bed.client.post("/v1/scale", json={"target": 5})).status_code == 401
    bed.book.ended("r-1", RequestState.FINISHED, "stop")
    assert await undone(bed, capsys) == "set migration.max_moves=4"


@pytest.mark.usefixtures("bed")
async def test_nobody_did_anything(capsys: Captured) -> None:
    assert await llumctl("undo") == 5
    assert "there is no operation that was done among the last ones" in capsys.readouterr().err
    assert await llumctl("undo", "op-1") == 5
    assert "there is no operation 'op-1'" in capsys.readouterr().err
    assert await llumctl("undo", "op-1", "--list") == 2


async def test_the_list_is_of_this_run_and_skips_what_is_no_entry(
    bed: Bed, capsys: Captured
) -> None:
    old = {
        "time_s": LABELS.started_at_s - 1,
        "actor": "ana",
        "action": "set x = 1, was 2",
        "target": "x",
        "outcome": "done",
        "cause_id": "op-old",
        "reason": "",
    }
    lines = [json.dumps(old), "{torn", "[1]", json.dumps({"cause_id": "x"})]
    bed.listener.audit.path.write_text("\n".join(lines) + "\n")
    await bed.set(max_moves=2)
    await bed.posts("instances/i-1/drain")
    assert [each.actions[0] for each in await bed.done()] == [
        "drain i-1",
        "set migration.max_moves = 2, was 4",
    ]
    assert len(await bed.done(1)) == 1
    assert await llumctl("undo", "--list") == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["ID", "TIME", "BY", "DID", "UNDO"]
    assert [row.split("  ")[-1].strip() for row in rows] == [
        "uncordon i-1",
        "set migration.max_moves=4",
    ]


async def test_of_two_who_undo_one_is_told(bed: Bed, capsys: Captured) -> None:
    """The cluster's revision is that of the list, so only what was judged is done."""
    await bed.posts("instances/i-1/drain")
    entry = (await bed.done())[0]
    assert entry.undo is not None
    body = {"if_revision": 1}
    await bed.set(max_moves=2)
    answer = await bed.client.post("/v1/instances/i-1/undrain", headers=AUTHORIZED, json=body)
    assert answer.json()["code"] == "revision_conflict"
    assert await llumctl("undo", entry.id) == 0
    assert bed.controller.keeper.spec.drains == {}
    assert capsys.readouterr().out
