"""Cordon and uncordon on the control API and the command line: planned, begun, refused, undone."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from controller.api.errors import EXIT_REFUSED
from controller.api.operations.on_instances import CordonReport, cordoned
from controller.api.operations.table import OperationList
from controller.api.text.status_words import MOVES_ONLY, state_word
from controller.api.wire.status import ClusterStatus, InstanceStatus
from controller.core.load.closed import ROWS, Closed, Row
from llumctl.app import run
from tests.unit.cli_support import remember
from tests.unit.control_support import AUTHORIZED, TOKEN, Listener, listening
from tests.unit.move_support import serve_running_request

Captured = pytest.CaptureFixture[str]


class Bed:
    """r-1 runs on i-0; i-1 and i-2 are idle."""

    def __init__(self, listener: Listener, client: httpx.AsyncClient) -> None:
        self.client, self.controller = client, listener.cluster.controller
        serve_running_request(listener)
        listener.cluster.report("i-0", num_running=1, num_free_blocks=90)

    async def posts(self, path: str, **body: Any) -> httpx.Response:
        return await self.client.post(f"/v1/instances/{path}", headers=AUTHORIZED, json=body)

    async def reported(self, path: str, **body: Any) -> CordonReport:
        answer = await self.posts(path, **body)
        assert answer.status_code == 200, answer.text
        return CordonReport.model_validate_json(answer.content)

    async def instance(self, instance_id: str) -> InstanceStatus:
        answer = await self.client.get("/v1/status", headers=AUTHORIZED)
        found = ClusterStatus.model_validate_json(answer.content).instances
        return next(each for each in found if each.id == instance_id)

    async def done(self) -> OperationList:
        answer = await self.client.get("/v1/operations", headers=AUTHORIZED)
        return OperationList.model_validate_json(answer.content)

    @property
    def revision(self) -> int:
        return self.controller.keeper.spec.revision


@pytest.fixture
async def bed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    monkeypatch.setattr("controller.runtime.controller.queries.PATIENCE_S", 0.2)
    async with listening(3) as (listener, client):
        remember(listener.url, token=TOKEN)
        yield Bed(listener, client)


async def llumctl(*arguments: str) -> int:
    return await asyncio.to_thread(run, list(arguments))


async def test_a_cordon_is_planned_made_once_and_taken_back(bed: Bed) -> None:
    plan = await bed.reported("i-0/cordon", dry_run=True)
    assert (plan.cordoned, plan.closed_by, plan.changes) == (True, ("cordoned",), True)
    assert (plan.num_requests, bed.revision) == (1, 0)
    made = await bed.reported("i-0/cordon", reason="its fan", if_revision=0)
    assert (made.cordoned, made.changes, made.reason, made.revision) == (True, True, "its fan", 1)
    assert not bed.controller.scheduler.instances["i-0"].schedulable
    shown = await bed.instance("i-0")
    assert (shown.state, shown.closed_by, state_word(shown)) == (
        "active",
        ("cordoned",),
        "cordoned",
    )
    assert shown.freeness_steps is not None, "it is no draining instance"
    again = await bed.reported("i-0/cordon")
    assert (again.changes, bed.revision) == (False, 1)
    (entry,) = (await bed.done()).operations
    assert (entry.actions, entry.reason, entry.why_not) == (("cordon i-0",), "its fan", "")
    answer = await bed.posts("i-1/drain", dry_run=True)
    assert answer.status_code == 200, "i-2 would serve"
    back = await bed.reported("i-0/uncordon")
    assert (back.cordoned, back.closed_by, back.changes) == (False, (), True)
    assert (await bed.reported("i-0/uncordon")).changes is False
    assert state_word(await bed.instance("i-0")) == "active"


async def test_a_drain_and_its_end_leave_the_cordon(bed: Bed) -> None:
    await bed.reported("i-2/cordon")
    assert (await bed.posts("i-2/drain")).status_code == 200
    assert (await bed.instance("i-2")).closed_by == ("draining", "cordoned")
    back = await bed.reported("i-2/uncordon", dry_run=True)
    assert back.closed_by == ("draining",)
    assert cordoned(back) == "i-2: would not be cordoned any more, but still draining"
    assert (await bed.posts("i-2/undrain")).status_code == 200
    assert bed.controller.keeper.spec.closed == {"i-2": {Closed.CORDONED}}


async def test_the_last_one_and_an_unknown_one_are_refused(bed: Bed) -> None:
    for each in ("i-0", "i-1"):
        await bed.reported(f"{each}/cordon")
    answer = await bed.posts("i-2/cordon")
    assert (answer.status_code, answer.json()["code"]) == (409, "last_instance")
    hint = "llumctl uncordon i-0 i-1      or      llumctl cordon i-2 --force"
    assert answer.json()["hint"] == hint
    assert (await bed.reported("i-2/cordon", force=True)).cordoned
    assert (await bed.posts("i-9/cordon")).status_code == 404
    assert (await bed.posts("i-1/uncordon", if_revision=1)).status_code == 409


async def test_one_command_cordons_all_or_none(bed: Bed, capsys: Captured) -> None:
    for dry in ((), ("--dry-run",)):
        assert await llumctl("cordon", "i-0", "i-1", "i-2", *dry) == EXIT_REFUSED
        assert "without i-0, i-1, i-2 no instance would serve" in capsys.readouterr().err
    assert await llumctl("cordon", "i-0", "i-9") != 0
    assert (dict(bed.controller.keeper.spec.marked(Closed.CORDONED)), bed.revision) == ({}, 0)
    assert await llumctl("cordon", "i-0", "i-1", "i-2", "--force") == 0
    assert len(bed.controller.keeper.spec.marked(Closed.CORDONED)) == 3


async def test_no_request_is_moved_there_by_hand(bed: Bed) -> None:
    await bed.reported("i-1/cordon")
    answer = await bed.client.post(
        "/v1/requests/r-1/migrate", headers=AUTHORIZED, json={"to": "i-1", "dry_run": True}
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "unschedulable")
    assert "it is cordoned" in answer.json()["message"]
    assert bed.controller.operator_moves.choose("i-0", 1) == "i-2"


async def test_what_a_reason_does_not_stop_is_not_refused(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROWS, Closed.CORDONED, Row(False, False, False, False, "it is looked at"))
    assert (await bed.reported("i-1/cordon")).closed_by == ()
    await bed.reported("i-2/cordon")
    answer = await bed.client.post(
        "/v1/requests/r-1/migrate", headers=AUTHORIZED, json={"to": "i-1", "dry_run": True}
    )
    assert answer.json()["code"] != "unschedulable"
    assert bed.controller.operator_moves.choose("i-0", 1) == "i-1"
    told = bed.controller.directories.present().instances
    assert all(each.takes_requests for each in told)


async def test_the_commands(bed: Bed, capsys: Captured) -> None:
    assert await llumctl("cordon", "i-0", "i-1", "--dry-run") == 10
    assert capsys.readouterr().out.splitlines() == [
        "i-0: would be cordoned, would keep its 1 request",
        "i-1: would be cordoned, would keep its 0 requests",
    ]
    assert await llumctl("cordon", "i-0", "i-1", "-m", "a fan") == 0
    assert set(bed.controller.keeper.spec.marked(Closed.CORDONED)) == {"i-0", "i-1"}
    capsys.readouterr()
    assert await llumctl("status") == 0
    assert capsys.readouterr().out.count(" cordoned ") == 2
    assert await llumctl("cordon", "i-0") == 0
    assert "nothing to change" in capsys.readouterr().err
    assert await llumctl("undo", "-y") == 0
    assert set(bed.controller.keeper.spec.marked(Closed.CORDONED)) == {"i-0"}
    assert await llumctl("uncordon", "i-0", "-o", "json") == 0
    assert '"cordoned": false' in capsys.readouterr().out
    assert await llumctl("undo", "-y") == 0
    assert set(bed.controller.keeper.spec.marked(Closed.CORDONED)) == {"i-0"}


async def test_the_command_takes_back_drains_too(bed: Bed, capsys: Captured) -> None:
    assert await llumctl("drain", "i-1", "-y", "--detach") == 0
    assert await llumctl("cordon", "i-1") == 0
    assert await llumctl("cordon", "i-2") == 0
    capsys.readouterr()
    assert await llumctl("uncordon", "i-1", "i-2", "--dry-run") == 10
    assert capsys.readouterr().out.splitlines() == [
        "i-1: drain and cordon would be taken back, would get new requests again",
        "i-2: would get new requests again",
    ]
    revision = bed.controller.keeper.spec.revision
    assert await llumctl("uncordon", "i-1", "i-2", "--if-revision", str(revision)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "i-1: drain and cordon taken back, gets new requests again",
        "i-2: gets new requests again",
    ]
    spec = bed.controller.keeper.spec
    assert not spec.marked(Closed.CORDONED)
    assert not spec.drains
    assert await llumctl("uncordon", "i-1", "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["drains"] == []
    assert [each["cordoned"] for each in found["cordons"]] == [False]


def test_clients_know_which_reasons_are_about_moves_alone() -> None:
    assert {str(each) for each in Closed if not each.stops_requests} == MOVES_ONLY
