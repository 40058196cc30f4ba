"""What answers say of how their requests were served, and when their traces begin and end."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from controller.adapters.vllm.endpoint.exchange import PLACING
from controller.adapters.vllm.endpoint.headers import RefusedError
from controller.core.record.request_record import RequestRecord
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.runtime.frontend.request_book import RequestBook
from tests.unit.endpoint.gate_support import OK, App, answering, ask, gate

STREAM = (b"content-type", b"text/event-stream")


class Traces:
    """Notes each trace that begins, and how it ends."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, str]] = []
        self.ended: list[tuple[int | None, list[str]]] = []

    def begin(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> "Traces":
        assert dict(headers)[b"host"] == b"localhost"
        self.begun.append((method, path))
        return self

    def onward(self) -> dict[str, str]:
        raise NotImplementedError

    def end(self, status: int | None, records: Sequence[RequestRecord]) -> None:
        self.ended.append((status, [each.request_id for each in records]))

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
        raise RefusedError(429, "full")  # type: ignore[arg-type]

    async def failing(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RuntimeError

    for app, status, expected in (
        (serving("a", "b", then=OK), 200, ["a", "b"]),
        (serving("a", then=answering(200, b"data: x", STREAM)), 200, ["a"]),
        (refusing, 429, []),
        (failing, 500, []),
    ):
        traces = Traces()
        answer = await ask(gate(app, traces=traces))
        assert traces.begun == [("POST", "/v1/completions")]
        assert traces.ended == [(status, expected)]
        assert answer.status_code == status


async def test_nobody_without_a_key_makes_a_trace_and_a_page_makes_none() -> None:
    traces = Traces()
    found = gate(OK, keys=("sk-1",), traces=traces)
    assert (await ask(found)).status_code == 401
    key = {"authorization": "Bearer sk-1"}
    assert (await ask(found, "/v1/models", "GET", headers=key)).status_code == 200
    assert (await ask(found, headers=key)).status_code == 200
    assert traces.ended == [(200, [])]


async def test_a_trace_that_fails_harms_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Traces):
        def end(self, status: int | None, records: Sequence[RequestRecord]) -> None:
            raise ValueError(status, records)

    assert (await ask(gate(OK, traces=Broken()))).status_code == 200
    assert "the trace of POST /v1/completions was lost" in caplog.text
