"""The switch between the apps of several models, with its traffic rules, behind the gate. Each app
notes what it gets."""

import asyncio
import json
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from controller.adapters.vllm.endpoint.copies import Copies
from controller.adapters.vllm.endpoint.exchange import PLACING
from controller.adapters.vllm.endpoint.gate import GateLimits
from controller.adapters.vllm.endpoint.headers import ASKED_KEY, ASKED_PRIORITY
from controller.adapters.vllm.endpoint.model_switch import ModelSwitch
from controller.api.settings.key_file import key_id
from controller.core.admission.traffic import CopyCounts, Traffic, TrafficBook
from controller.core.load.snapshot import BACKGROUND
from controller.core.record.request_record import RequestRecord, RequestState
from tests.unit.endpoint.gate_support import PATH, ask_only, gate, until

KEY = "abcdefghijklmnop"


class App:
    """The app of one model: it answers with the model's name, by an engine request of its own."""

    def __init__(self, name: str, num_tokens: int) -> None:
        models = SimpleNamespace(base_model_paths=[SimpleNamespace(name=name)], lora_requests={})
        self.state = SimpleNamespace(openai_serving_models=models)
        self.name = name
        self.num_tokens = num_tokens
        self.bodies: list[bytes] = []
        self.keys: list[str] = []
        self.ranks: list[int] = []
        self.ids: list[str] = []
        self.goes = asyncio.Event()
        self.goes.set()
        self.num_left = 0
        self.fails = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert not message["more_body"]
        self.bodies.append(message["body"])
        asked, placing = ASKED_PRIORITY.get(), PLACING.get()
        assert asked is not None
        assert placing is not None
        self.keys.append(ASKED_KEY.get())
        self.ranks.append(asked.rank(json.loads(message["body"]).get("priority")))
        self.ids.append(dict(scope["headers"]).get(b"x-request-id", b"").decode())
        record = self._record()
        placing.records.append(lambda: record)
        if self.fails:
            raise RuntimeError("the model is broken")
        if not self.goes.is_set():
            left = asyncio.create_task(receive())
            goes = asyncio.create_task(self.goes.wait())
            await asyncio.wait((left, goes), return_when=asyncio.FIRST_COMPLETED)
            self.num_left += left.done()
            left.cancel()
            goes.cancel()
        record = self._record(RequestState.FINISHED)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.name.encode()})

    def _record(self, state: RequestState = RequestState.RUNNING) -> RequestRecord:
        return RequestRecord(
            "r", "r", None, "f-0", "normal", state, "i-0", 1, 10.0, 5, self.num_tokens, 0, 10.5,
            12.0, "stop",
        )  # fmt: skip


class Endpoint:
    def __init__(self, *, keys: tuple[str, ...] = ()) -> None:
        self.large, self.small = self.apps = [App("large", 5), App("small", 8)]
        self.book = TrafficBook()
        self.gate = gate(self._switch, GateLimits(max_live_requests=6), keys)
        self.copies = Copies(self.gate)
        books = {"large": self.book, "small": TrafficBook()}
        paths = {PATH, "/tokenize"}
        apps: Any = self.apps
        self.switch = ModelSwitch(apps, paths, books, self.copies)

    async def _switch(self, scope: Any, receive: Any, send: Any) -> None:
        await self.switch(scope, receive, send)

    async def ask(
        self, body: bytes = b'{"model": "large"}', path: str = PATH, **headers: str
    ) -> str:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        found = await ask_only(self.gate, path, content=body, headers=given)
        assert found.status_code == httpx.codes.OK, found.text
        return found.text

    async def over(self) -> CopyCounts:
        """What was counted, once all copies are over."""
        await until(lambda: not self.gate.num_live and not self.copies.num_live)
        return self.book.view().copies["small"]


@pytest.fixture
async def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


async def test_without_rules_the_named_model_answers(endpoint: Endpoint) -> None:
    body = b'{"model": "large", "prompt": "x"}'
    assert await endpoint.ask(body) == "large"
    assert endpoint.large.bodies == [body]


async def test_the_other_model_gets_the_same_body_in_its_own_name(endpoint: Endpoint) -> None:
    endpoint.book.set_rules(Traffic(split=(("small", 1.0),)))
    body = (
        '{"model": "large", "temperature": 0.10000000000000001, "prompt": "ü\\u00e9", "top_p": 1e0}'
    )
    assert await endpoint.ask(body.encode()) == "small"
    (sent,) = endpoint.small.bodies
    assert json.loads(sent) == json.loads(body) | {"model": "small"}
    assert b"0.10000000000000001" in sent, "numbers stay as they were written"
    assert endpoint.book.view().answered == {"small": 1}


async def test_requests_for_the_other_model_are_not_split(endpoint: Endpoint) -> None:
    endpoint.book.set_rules(Traffic(split=(("large", 1.0),)))
    assert await endpoint.ask(b'{"model": "small"}') == "small"


async def test_a_session_stays_with_its_model(endpoint: Endpoint) -> None:
    endpoint.book.set_rules(Traffic(split=(("large", 1.0), ("small", 1.0))))
    of_sessions = [
        {await endpoint.ask(x_session_id=f"talk-{k}") for _ in range(4)} for k in range(20)
    ]
    assert all(len(each) == 1 for each in of_sessions)
    assert set.union(*of_sessions) == {"large", "small"}


async def test_questions_about_the_tokenizer_go_to_the_named_model(endpoint: Endpoint) -> None:
    endpoint.book.set_rules(Traffic((("small", 1.0),), (("small", 100.0),)))
    assert await endpoint.ask(path="/tokenize") == "large"
    assert endpoint.small.bodies == []


async def test_a_copy_is_made_in_nobodys_name_and_its_answer_is_dropped() -> None:
    endpoint = Endpoint(keys=(KEY,))
    endpoint.book.set_rules(Traffic(mirror=(("small", 100.0),)))
    body = b'{"model": "large", "priority": -1, "prompt": "x"}'
    told = await endpoint.ask(body, authorization=f"Bearer {KEY}", x_request_id="mine")
    assert told == "large"
    assert await endpoint.over() == CopyCounts(1, 0, 0, 1, 5, 8, 0.5, 0.5, 2.0, 2.0)
    assert (endpoint.large.keys, endpoint.small.keys) == ([key_id(KEY)], [""])
    assert (endpoint.large.ranks, endpoint.small.ranks) == ([1], [BACKGROUND.rank])
    assert (endpoint.large.ids, endpoint.small.ids) == (["mine"], ["mine-copy"])
    assert [json.loads(each) for each in endpoint.small.bodies] == [
        {"model": "small", "prompt": "x"}
    ]


async def test_what_another_model_answers_is_copied_by_the_rule_of_that_model(
    endpoint: Endpoint,
) -> None:
    endpoint.book.set_rules(Traffic((("small", 1.0),), (("small", 100.0),)))
    assert await endpoint.ask() == "small"
    assert await endpoint.over() == CopyCounts()


async def test_the_client_does_not_wait_for_the_copy(endpoint: Endpoint) -> None:
    endpoint.book.set_rules(Traffic(mirror=(("small", 100.0),)))
    endpoint.small.goes.clear()
    assert await endpoint.ask() == "large"
    assert endpoint.copies.num_live == 1
    endpoint.small.goes.set()
    assert (await endpoint.over()).num_compared == 1


async def test_a_copy_that_fails_is_counted_and_nobody_is_told(endpoint: Endpoint) -> None:
    endpoint.book.set_rules(Traffic(mirror=(("small", 100.0),)))
    endpoint.small.fails = True
    assert await endpoint.ask() == "large"
    found = await endpoint.over()
    assert (found.num_copies, found.num_failed, found.num_compared) == (1, 1, 0)


async def test_a_copy_ends_with_an_original_that_fails(endpoint: Endpoint) -> None:
    endpoint.book.set_rules(Traffic(mirror=(("small", 100.0),)))
    endpoint.large.fails = True
    endpoint.small.goes.clear()
    answer = await ask_only(endpoint.gate, PATH, content=b'{"model": "large"}')
    assert answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR
    assert await endpoint.over() == CopyCounts(num_copies=1)
    assert endpoint.small.num_left == len(endpoint.small.bodies)


async def test_copies_leave_places_to_clients(endpoint: Endpoint) -> None:
    endpoint.book.set_rules(Traffic(mirror=(("small", 100.0),)))
    endpoint.small.goes.clear()
    for _ in range(5):
        assert await endpoint.ask() == "large"
    assert endpoint.copies.num_live == 2
    endpoint.small.goes.set()
    found = await endpoint.over()
    assert (found.num_copies, found.num_left_out, found.num_compared) == (2, 3, 2)


async def test_copies_are_given_up_when_the_frontend_stops(endpoint: Endpoint) -> None:
    endpoint.book.set_rules(Traffic(mirror=(("small", 100.0),)))
    endpoint.small.goes.clear()
    assert await endpoint.ask() == "large"
    await until(lambda: endpoint.small.bodies)
    endpoint.copies.close()
    await endpoint.over()
    assert endpoint.small.num_left == 1
