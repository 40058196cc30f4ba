"""What answers say of how their requests were served, and when their traces begin and end."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

import pytest

from controller.adapters.vllm.endpoint.answers import INTERNAL
from controller.adapters.vllm.endpoint.exchange import PLACING
from controller.adapters.vllm.endpoint.headers import RefusedError
from controller.core.record.request_record import RequestRecord, RequestState
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.runtime.frontend.request_book import RequestBook
from tests.unit.endpoint.gate_support import OK, App, answering, ask, gate, until

STREAM = (b"content-type", b"text/event-stream")


class Traces:
    """Notes each trace that begins, and how it ends."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, str]] = []
        self.ended: list[tuple[int | None, list[str], str]] = []

    def begin(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> "Traces":
        assert dict(headers)[b"host"] == b"localhost"
        self.begun.append((method, path))
        return self

    def onward(self) -> dict[str, str]:
        raise NotImplementedError

    def end(
        self,
        status: int | None,
        records: Sequence[RequestRecord],
        end_s: float,
        error: str = "",
    ) -> None:
        assert 0 <= time.time() - end_s < 20
        self.ended.append((status, [each.request_id for each in records], error))

    def close(self) -> None:
        raise NotImplementedError


def serving(*request_ids: str, then: App) -> App:
    """Makes these requests, which get an instance, and then answers as the other app does."""
    book = RequestBook("f-0", {0: "normal"}, wall_clock=lambda: 10.5)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        placing = PLACING.get()
        assert placing is not None
        for number, request_id in enumerate(request_ids):
            placing.began()
            asked = DispatchRequested(request_id, "f-0", 4, 0, 10.0)
            placing.records.append(book.arrived(asked, f"cmpl-{request_id}", None))
            book.dispatched(Dispatch(request_id, "f-0", f"i-{number}", 1, 1))
            await placing.placed()
        await then(scope, receive, send)

    return app


def told(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("x-llumctl")}


async def test_an_answer_says_how_its_requests_were_served() -> None:
    answer = await ask(gate(serving("a", "b", then=OK), receipts=True))
    assert told(answer.headers) == {
        "x-llumctl-instance": "i-0,i-1",
        "x-llumctl-queue-ms": "500",
        "x-llumctl-moves": "0",
        "x-llumctl-replays": "0",
    }


async def test_the_head_of_a_stream_claims_nothing_of_its_future() -> None:
    found = gate(serving("a", then=answering(200, b"data: x", STREAM)), receipts=True)
    answer = await ask(found)
    assert told(answer.headers) == {"x-llumctl-instance": "i-0", "x-llumctl-queue-ms": "500"}


async def test_an_error_of_a_request_that_had_an_instance_says_which() -> None:
    found = gate(serving("a", then=answering(503, b"{}")), receipts=True)
    assert told((await ask(found)).headers)["x-llumctl-instance"] == "i-0"


@pytest.mark.parametrize("receipts", [True, False])
async def test_no_receipt_without_an_instance_or_if_switched_off(receipts: bool) -> None:
    app = OK if receipts else serving("a", then=OK)
    assert told((await ask(gate(app, receipts=receipts))).headers) == {}


async def test_a_trace_ends_with_the_status_and_the_records_of_its_answer() -> None:
    async def refusing(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "full")

    async def failing(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RuntimeError

    for app, status, requests, error in (
        (serving("a", "b", then=OK), 200, ["a", "b"], ""),
        (serving("a", then=answering(200, b"data: x", STREAM)), 200, ["a"], ""),
        (refusing, 429, [], ""),
        (failing, 500, [], INTERNAL),
    ):
        traces = Traces()
        answer = await ask(gate(app, traces=traces))
        assert traces.begun == [("POST", "/v1/completions")]
        await until(lambda found=traces: found.ended)
        assert traces.ended == [(status, requests, error)]
        assert answer.status_code == status


async def test_the_trace_of_an_answer_that_was_cut_waits_for_the_end_of_its_requests() -> None:
    """vLLM aborts them a little later. The trace ends when the answer did."""
    book = RequestBook("f-0", {0: "normal"})
    seen: list[RequestRecord] = []

    class Noting(Traces):
        def end(
            self,
            status: int | None,
            records: Sequence[RequestRecord],
            end_s: float,
            error: str = "",
        ) -> None:
            seen.extend(records)
            super().end(status, records, end_s, error)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        placing = PLACING.get()
        assert placing is not None
        asked = DispatchRequested("a", "f-0", 4, 0, 10.0)
        placing.records.append(book.arrived(asked, "cmpl-a", None))
        await answering(200, b"data: x", STREAM)(scope, receive, send)
        asyncio.get_running_loop().call_later(
            0.01, book.ended, "a", RequestState.ABORTED, "the client left"
        )

    traces = Noting()
    await ask(gate(app, traces=traces))
    assert seen == []
    await until(lambda: seen)
    assert seen[0].state is RequestState.ABORTED


async def test_nobody_without_a_key_makes_a_trace_and_a_page_makes_none() -> None:
    traces = Traces()
    found = gate(OK, keys=("sk-1",), traces=traces)
    assert (await ask(found)).status_code == 401
    key = {"authorization": "Bearer sk-1"}
    assert (await ask(found, "/v1/models", "GET", headers=key)).status_code == 200
    assert (await ask(found, headers=key)).status_code == 200
    assert traces.ended == [(200, [], "")]


async def test_a_trace_that_fails_harms_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Traces):
        def end(self, *what: Any) -> None:
            raise ValueError(what)

    assert (await ask(gate(OK, traces=Broken()))).status_code == 200
    assert "the trace of POST /v1/completions was lost" in caplog.text
