"""The app of a model on attached servers only, behind the gate, with a router whose instances the
test plays: what goes out, and what the client gets of what comes."""

import asyncio
import json
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from controller.adapters.forward_wire import Piece, Pieces, decode_request, encode
from controller.adapters.vllm.checks.body import find_fault
from controller.adapters.vllm.endpoint.copies import Copies
from controller.adapters.vllm.endpoint.forwarding import (
    BYTES_PER_TOKEN,
    FORWARDED,
    ForwardedRequests,
    PromptLengths,
    build_forward_app,
    text_bytes,
)
from controller.adapters.vllm.endpoint.gate import Gate
from controller.adapters.vllm.endpoint.model_switch import ModelSwitch
from controller.core.admission.traffic import TrafficBook
from controller.core.load.snapshot import InstanceRef
from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import Dispatch, Reject, RejectCode
from controller.runtime.messages.members import InstanceLost
from controller.runtime.messages.requests import (
    AbortRequests,
    AddRequest,
    DispatchAsked,
    Dispatched,
    OutputItem,
    OutputsEmitted,
    Refused,
)
from tests.unit.endpoint.gate_support import LEVELS, ask_only, error
from tests.unit.runtime.fakes import FakeNetwork
from tests.unit.runtime.router_bed import HERE, I0, I1, Bed

PATH = "/v1/chat/completions"
IS_WORDS = "words".__eq__
JSON, EVENTS = "application/json", "text/event-stream"


class Forwarding(Bed):
    """A router whose requests come through the gate."""

    def __init__(self, network: FakeNetwork) -> None:
        super().__init__(network, max_replays=1)
        self.requests = ForwardedRequests(self.router, LEVELS, lambda: 1000)
        self.router.routes._on_failed = lambda request_id, why: self.requests.fail(
            request_id, why, HTTPStatus.SERVICE_UNAVAILABLE, RequestState.FAILED
        )
        app = build_forward_app("words", self.requests, lambda: "")
        self.gate = Gate(levels=LEVELS, receipts=True)
        self.gate.app = ModelSwitch([app], FORWARDED, {"words": TrafficBook()}, Copies(self.gate))
        self.gate.json_paths, self.gate.is_forwarded = FORWARDED, IS_WORDS

    def ask(self, body: Any, path: str = PATH, **what: Any) -> asyncio.Task[httpx.Response]:
        content = body if isinstance(body, bytes) else json.dumps({"model": "words"} | body)
        return asyncio.create_task(ask_only(self.gate, path, content=content, **what))

    async def place(self, to: InstanceRef = I0, seq: int = 1) -> str:
        """The next request goes there. Returns its id."""
        asked = (await self.controller.receive(DispatchAsked)).asked
        dispatch = Dispatch(asked.request_id, "f-0", to.instance_id, 1, seq)
        self.say(Dispatched(dispatch))
        await self.instances[to.instance_id].receive(AddRequest)
        return asked.request_id

    def emit(self, piece: Piece, first_index: int = 0, by: InstanceRef = I0) -> None:
        attempt = 0 if by is I0 else 1
        item = OutputItem(
            piece.request_id, attempt, 0, first_index, piece.num_tokens, piece.finish_reason
        )
        told = OutputsEmitted(by, (item,))
        self.instances[by.instance_id].send(HERE, told, [bytes(f) for f in encode(Pieces([piece]))])


@pytest.fixture
async def bed() -> AsyncIterator[Forwarding]:
    found = Forwarding(FakeNetwork())
    await found.know()
    yield found
    await found.router.close()


async def test_the_body_goes_out_and_a_whole_answer_comes_back(bed: Forwarding) -> None:
    body = b'{"model": "words",  "messages": [], "store": true, "max_tokens": 9}'
    headers = {"X-Request-Id": "c-1", "Authorization": "Bearer mine", "X-Llumctl-Priority": "high"}
    asking = bed.ask(body, headers=headers)
    asked = (await bed.controller.receive(DispatchAsked)).asked
    bed.say(Dispatched(Dispatch(asked.request_id, "f-0", "i-0", 1, 1)))
    _, payload = await bed.instances["i-0"].receive_with_payload(AddRequest)
    sent = decode_request(payload)
    assert (sent.body, sent.path, sent.max_tokens) == (body, PATH, 9)
    assert (sent.rank, asked.rank) == (1, 1)
    assert sent.headers["x-request-id"] == "c-1"
    assert "authorization" not in sent.headers
    bed.emit(Piece(asked.request_id, 9, b'{"a": 1}', 201, JSON, "stop"))
    answer = await asking
    assert (answer.status_code, answer.json(), answer.headers["content-type"]) == (
        201,
        {"a": 1},
        JSON,
    )
    assert answer.headers["x-llumctl-instance"] == "i-0"
    record = bed.book.find(asked.request_id)
    assert record is not None
    assert (record.state, record.num_output_tokens) == (RequestState.FINISHED, 9)


async def test_pieces_of_a_stream_come_in_order(bed: Forwarding) -> None:
    asking = bed.ask({"stream": True})
    request_id = await bed.place()
    bed.emit(Piece(request_id, 1, b"data: 2\n\n"), first_index=1)
    bed.emit(Piece(request_id, 1, b"data: 1\n\n", 200, EVENTS))
    bed.emit(Piece(request_id, 0, b"data: [DONE]\n\n", finish_reason="stop"), first_index=2)
    answer = await asking
    assert answer.content == b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"
    assert answer.headers["content-type"] == EVENTS


async def test_an_error_of_the_server_comes_in_our_form(bed: Forwarding) -> None:
    asking = bed.ask({})
    request_id = await bed.place()
    bed.emit(Piece(request_id, 1, b'{"error": {"message": "no"}}', 422, JSON, "error"))
    answer = await asking
    assert (answer.status_code, error(answer)["message"]) == (422, "no")
    record = bed.book.find(request_id)
    assert record is not None
    assert record.state is RequestState.FAILED


async def test_without_an_answer_so_far_it_is_replayed(bed: Forwarding) -> None:
    asking = bed.ask({})
    request_id = await bed.place()
    bed.say(InstanceLost("i-0", 1))
    assert await bed.place(I1, 2) == request_id
    bed.emit(Piece(request_id, 1, b"{}", 200, JSON, "stop"), by=I1)
    assert (await asking).json() == {}


async def test_an_answer_that_has_begun_ends_with_an_error(bed: Forwarding) -> None:
    asking = bed.ask({"stream": True})
    request_id = await bed.place()
    bed.emit(Piece(request_id, 1, b"data: 1\n\n", 200, EVENTS))
    bed.say(InstanceLost("i-0", 1))
    answer = await asking
    first, told, done = answer.text.split("\n\n", 2)
    assert (first, done) == ("data: 1", "data: [DONE]\n\n")
    failure = json.loads(told.removeprefix("data: "))["error"]
    assert failure["code"] == HTTPStatus.SERVICE_UNAVAILABLE
    assert "no other server can go on with an answer that has begun" in failure["message"]


async def test_a_failure_of_the_server_is_a_bad_gateway(bed: Forwarding) -> None:
    asking = bed.ask({})
    request_id = await bed.place()
    bed.emit(Piece(request_id, failure="it wants an API key", finish_reason="error"))
    answer = await asking
    assert (answer.status_code, error(answer)["message"]) == (502, "it wants an API key")


async def test_a_request_that_gets_no_instance_is_refused(bed: Forwarding) -> None:
    asking = bed.ask({"stream": True})
    asked = (await bed.controller.receive(DispatchAsked)).asked
    bed.say(Refused(Reject(asked.request_id, "f-0", RejectCode.OVERLOADED, 7)))
    answer = await asking
    assert answer.status_code == HTTPStatus.TOO_MANY_REQUESTS
    assert answer.headers["retry-after"] == "7"


async def test_a_client_that_leaves_ends_its_request(bed: Forwarding) -> None:
    asking = bed.ask({})
    request_id = await bed.place()
    asking.cancel()
    told = await bed.instances["i-0"].receive(AbortRequests)
    assert told.request_ids == (request_id,)
    record = bed.book.find(request_id)
    assert record is not None
    assert record.state is RequestState.ABORTED


async def test_another_model_is_not_forwarded(bed: Forwarding) -> None:
    answer = await bed.ask({"model": "other"})
    assert (answer.status_code, error(answer)["message"]) == (
        404,
        "there is no model 'other'; this endpoint serves words",
    )


@pytest.mark.parametrize("body", [{"priority": "high"}, {"priority": 5}])
async def test_a_bad_priority_is_refused(bed: Forwarding, body: dict[str, Any]) -> None:
    answer = await bed.ask(body)
    assert (answer.status_code, error(answer)["param"]) == (400, "priority")


async def test_what_is_about_no_model(bed: Forwarding) -> None:
    listed = await ask_only(bed.gate, "/v1/models", "GET", content=b"")
    assert [each["id"] for each in listed.json()["data"]] == ["words"]
    for path in ("/v1/models/words", "/health", "/ready", "/metrics"):
        assert (await ask_only(bed.gate, path, "GET", content=b"")).status_code == 200, path


def test_vllm_would_refuse_what_is_forwarded() -> None:
    body = b'{"model": "words", "store": true, "messages": null}'
    assert find_fault(body, lambda _: None) is not None
    assert find_fault(body, lambda _: None, is_forwarded=IS_WORDS) is None
    assert find_fault(b'{"model": ["words"]}', lambda _: None, is_forwarded=IS_WORDS) is None


def test_lengths_are_learned() -> None:
    lengths = PromptLengths()
    assert lengths.estimate(400, 0) == 400 / BYTES_PER_TOKEN
    assert lengths.estimate(10_000, 50) == 49
    for _ in range(100):
        lengths.learn(200, 100)
    assert lengths.estimate(400, 0) == pytest.approx(200, abs=1)


def test_only_text_and_ids_count() -> None:
    image = {"url": "data:image/png;base64," + "A" * 10_000}
    assert text_bytes({"messages": [{"content": ["héllo", image]}], "n": 3}) == 6
    assert text_bytes({"prompt": [1, 2, 3]}) == 3 * BYTES_PER_TOKEN
