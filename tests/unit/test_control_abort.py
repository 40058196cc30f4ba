"""`llumctl abort` and the control API's call: what is refused, checked, done and recorded."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from controller.api.client import ControlClient
from controller.api.errors import RefusedError
from controller.api.operations.on_requests import Abort, AbortReport, AbortRequest
from controller.api.wire.requests import EventPage, RequestDetail
from controller.core.record.request_record import RequestState
from controller.runtime.frontend.router import TOLD_TO_THE_CLIENT, Router, RouterEvents
from controller.runtime.messages.requests import AbortAsked
from llumctl.app import run
from tests.unit.cli_support import remember
from tests.unit.control_support import AUTHORIZED, TOKEN, VIEW_TOKEN, Listener, listening
from tests.unit.move_support import serve_running_request

Captured = pytest.CaptureFixture[str]
PATH = "/v1/requests/r-1/abort"


class Bed:
    """f-0's book and its orders are real; its requests are on no instance."""

    def __init__(self, listener: Listener, client: httpx.AsyncClient, num_choices: int = 1) -> None:
        self.listener, self.client, self.cluster = listener, client, listener.cluster
        self.book = serve_running_request(listener, num_choices=num_choices)
        self.told: list[tuple[str, str]] = []
        nobody = cast("Any", lambda *_: None)
        events = RouterEvents(
            on_failed=nobody,
            on_refused=nobody,
            on_aborted=lambda *what: self.told.append(what),
            on_directory=nobody,
            on_drain=nobody,
            on_limits=nobody,
        )
        member = cast("Any", SimpleNamespace(member_id="f-0", welcomed=nobody))
        router = Router(member, cast("Any", None), self.book, events)
        self.cluster.mailbox.answers["mem://f-0"] = lambda message: (
            router._aborted(message) if isinstance(message, AbortAsked) else None
        )

    async def asks(self, path: str = PATH, **body: Any) -> httpx.Response:
        return await self.client.post(path, headers=AUTHORIZED, json=body)

    async def report(self, path: str = PATH, **body: Any) -> AbortReport:
        answer = await self.asks(path, **body)
        assert answer.status_code == 200, answer.text
        return AbortReport.model_validate_json(answer.content)

    async def refused(self, path: str = PATH, **body: Any) -> tuple[int, str, str]:
        answer = await self.asks(path, **body)
        error = answer.json()
        return answer.status_code, error["code"], error["message"]

    def audited(self) -> list[dict[str, Any]]:
        path = self.listener.audit.path
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def asked(self) -> list[AbortAsked]:
        return self.cluster.mailbox.sent_to("mem://f-0", AbortAsked)

    async def state(self, reference: str = "r-1") -> str:
        answer = await self.client.get(f"/v1/requests/{reference}", headers=AUTHORIZED)
        return RequestDetail.model_validate_json(answer.content).state


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.runtime.controller.queries.PATIENCE_S", 0.2)
    monkeypatch.setattr("controller.runtime.controller.queries.REFUSALS_PATIENCE_S", 0.05)


@pytest.fixture
async def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with listening() as (listener, client):
        remember(listener.url, token=TOKEN)
        yield Bed(listener, client)


async def llumctl(*arguments: str) -> int:
    return await asyncio.to_thread(run, list(arguments))


# -- the control API ----------------------------------------------------------------------


async def test_it_ends_and_says_how_it_was(bed: Bed) -> None:
    found = await bed.report(reason="too long")
    assert (found.request_id, found.client_id, found.request_ids) == ("r-1", "cmpl-1", ("r-1",))
    assert (found.state, found.instance_id, found.num_output_tokens) == ("running", "i-0", 33)
    assert not found.dry_run
    assert bed.told == [("r-1", TOLD_TO_THE_CLIENT)]
    assert await bed.state() == "aborted"


async def test_who_and_why_are_audited_and_in_the_event(bed: Bed) -> None:
    await bed.report(reason="too long")
    entry, over = bed.audited()
    assert (entry["action"], entry["target"]) == ("abort r-1, was running", "r-1")
    assert (entry["reason"], entry["outcome"]) == ("too long", "begun")
    assert (over["cause_id"], over["outcome"]) == (entry["cause_id"], "done")
    page = EventPage.model_validate_json(
        (await bed.client.get("/v1/events", headers=AUTHORIZED)).content
    )
    (event,) = [event for event in page.events if event.kind == "aborted"]
    assert (event.cause_id, event.actor) == (entry["cause_id"], entry["actor"])
    assert event.reason == "an operator ended it: too long"
    assert (event.request_id, event.instance_id) == ("r-1", "i-0")


async def test_what_is_not_audited_is_not_done(bed: Bed) -> None:
    bed.listener.audit.path = bed.listener.audit.path / "no folder"
    assert (await bed.refused())[:2] == (500, "not_audited")
    assert not bed.asked()


async def test_a_dry_run_ends_nothing(bed: Bed) -> None:
    found = await bed.report(dry_run=True)
    assert (found.request_ids, found.dry_run) == (("r-1",), True)
    assert not bed.audited()
    assert not bed.told
    assert await bed.state() == "running"


async def test_a_request_that_has_ended(bed: Bed) -> None:
    bed.book.ended("r-1", RequestState.FINISHED, "stop")
    assert await bed.refused() == (
        409,
        "ended",
        "request r-1 cannot be aborted: it has finished",
    )
    assert not bed.audited()


async def test_one_that_ends_meanwhile(bed: Bed) -> None:
    answer = bed.cluster.mailbox.answers["mem://f-0"]

    def ends_first(message: Any) -> Any:
        if isinstance(message, AbortAsked):
            bed.book.ended("r-1", RequestState.FINISHED, "stop")
        return answer(message)

    bed.cluster.mailbox.answers["mem://f-0"] = ends_first
    assert await bed.refused() == (
        409,
        "ended",
        "request r-1 cannot be aborted: it ended meanwhile",
    )
    assert bed.audited()[-1]["outcome"] == "failed: ended"


async def test_a_frontend_that_says_nothing(bed: Bed) -> None:
    del bed.cluster.mailbox.answers["mem://f-0"]
    status, code, message = await bed.refused()
    assert (status, code) == (504, "no_answer")
    assert message.endswith("it may still end it")
    assert bed.audited()[-1]["outcome"] == "unknown: no_answer"


async def test_the_same_call_again_gets_the_same_answer(bed: Bed) -> None:
    """The first answer got lost; the second call is not refused because of what the first did."""
    keyed = AUTHORIZED | {"Idempotency-Key": "k-1"}
    first, again = [await bed.client.post(PATH, headers=keyed, json={}) for _ in range(2)]
    assert (first.status_code, first.content) == (200, again.content)
    assert len(bed.asked()) == 1


async def test_a_client_that_repeats_its_call_ends_it_once(bed: Bed) -> None:
    def twice() -> AbortReport:
        with ControlClient(bed.listener.url, TOKEN) as client:
            report = client.send(Abort("r-1", AbortRequest()))
            with pytest.raises(RefusedError, match="it was aborted"):
                client.send(Abort("r-1", AbortRequest()))
            return report

    assert (await asyncio.to_thread(twice)).request_id == "r-1"


async def name(bed: Bed, reference: str) -> str:
    """The whole id of the request that the reference names, or the code of the reason why it names
    none."""
    path, _, query = reference.partition("?")
    answer = await bed.client.get(f"/v1/requests/{path}/id?{query}", headers=AUTHORIZED)
    found: str = answer.json().get("request_id") or answer.json()["code"]
    return found


@pytest.mark.parametrize("order", ["abort", "migrate", "priority"])
@pytest.mark.parametrize("reference", ["cmpl-1", "r", "r-", "1", "…1", "~1", "%2A"])
async def test_an_order_takes_whole_ids_only(bed: Bed, order: str, reference: str) -> None:
    """For looking, each of them except the last names the only request that exists."""
    assert await name(bed, reference) == ("no_such_request" if reference == "%2A" else "r-1")
    body = {"level": "high"} if order == "priority" else {}
    status, code, message = await bed.refused(f"/v1/requests/{reference}/{order}", **body)
    assert (status, code) == (404, "no_such_request")
    assert "by the whole id" in message
    assert not bed.audited()
    assert not bed.asked()
    assert await bed.state() == "running"


async def test_choices_of_one_request_end_by_the_client_s_id() -> None:
    async with listening() as (listener, client):
        bed = Bed(listener, client, num_choices=3)
        assert await name(bed, "cmpl-1?any_choice=true") == "r-1"
        found = await bed.report()
        assert found.request_ids == ("r-1", "r-2", "r-3")
        assert len(bed.told) == 1
        status, code, _ = await bed.refused("/v1/requests/r-3/abort")
        assert (status, code) == (409, "ended")


async def test_two_requests_of_one_client_are_named_one_by_one(bed: Bed, capsys: Captured) -> None:
    other = serve_running_request(bed.listener)
    entry = other._live.pop("r-1")
    entry.request_id = "r-9"
    bed.book._live["r-9"] = entry
    bed.cluster.mailbox.engine_state["mem://f-0"] = bed.book
    assert await name(bed, "cmpl-1?any_choice=true") == "ambiguous"
    assert await llumctl("abort", "cmpl-1") == 6
    assert "r-1, r-9" in capsys.readouterr().err
    assert not bed.asked()


async def test_who_may_only_look_ends_nothing(bed: Bed) -> None:
    answer = await bed.client.post(PATH, headers={"Authorization": f"Bearer {VIEW_TOKEN}"}, json={})
    assert (answer.status_code, answer.json()["code"]) == (403, "view_only")
    assert not bed.asked()


# -- the command --------------------------------------------------------------------------


async def test_the_command(bed: Bed, capsys: Captured) -> None:
    assert await llumctl("abort", "cmpl-1", "--dry-run") == 10
    assert "running -> would be aborted" in capsys.readouterr().out
    assert await bed.state() == "running"
    assert await llumctl("abort", "cmpl-1", "-m", "too long") == 0
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        ["request", "r-1"],
        ["client-id", "cmpl-1"],
        ["instance", "i-0"],
        ["state", "running -> aborted"],
        ["tokens", "33 written so far"],
    ]
    assert await bed.state() == "aborted"
    assert await llumctl("abort", "cmpl-1") == 5
    assert "request r-1 cannot be aborted: it was aborted" in capsys.readouterr().err
    assert await llumctl("abort", "nothing") == 4


async def test_the_command_as_json_and_names(bed: Bed, capsys: Captured) -> None:
    assert await llumctl("abort", "r-1", "--dry-run", "-o", "json") == 10
    found = json.loads(capsys.readouterr().out)
    assert (found["request_ids"], found["state"], found["dry_run"]) == (["r-1"], "running", True)
    assert await llumctl("abort", "r-1", "-o", "name") == 0
    assert capsys.readouterr().out == "r-1\n"
    assert bed.told


async def test_a_frontend_that_does_not_answer_is_a_time_out(bed: Bed, capsys: Captured) -> None:
    del bed.cluster.mailbox.answers["mem://f-0"]
    assert await llumctl("abort", "r-1") == 124
    assert "it may still end it" in capsys.readouterr().err
