"""The batch API as OpenAI's client calls it: its routes and its runner behind the gate, before a
fake model that answers by what a line asks for."""

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from controller.adapters.vllm.endpoint import batch_routes, batch_runner
from controller.adapters.vllm.endpoint.batch_runner import BatchRunner
from controller.adapters.vllm.endpoint.exchange import PLACING
from controller.adapters.vllm.endpoint.gate import Gate, GateLimits
from controller.adapters.vllm.endpoint.headers import ASKED_KEY, ASKED_PRIORITY
from controller.api.settings.key_file import key_id
from controller.api.state.batch_files import BatchFiles, BatchRun
from controller.core.load.snapshot import BACKGROUND
from tests.unit.endpoint.gate_support import LEVELS, until

PATH = "/v1/completions"
ENDED = ("completed", "failed", "cancelled", "expired")


class Endpoint:
    """One frontend: `files` may be shared with others."""

    def __init__(self, files: BatchFiles, keys: Sequence[str] = ()) -> None:
        self.gate = Gate(GateLimits(max_live_requests=20), keys, LEVELS)
        self.seen: list[tuple[str, str, int]] = []
        """Of each line that came: its prompt, its key, and its rank."""
        self.overloads: dict[str, int] = {}
        """By prompt, how many times it is answered 429."""
        self.goes = asyncio.Event()
        """Whether lines with the prompt `wait` are answered."""
        self.num_left = 0
        """How many lines were told that their client has left."""
        app = FastAPI()
        app.add_api_route(PATH, self._complete, methods=["POST"])
        self.runner = BatchRunner(files, self.gate.ask, lambda: self.gate.limits.max_live_requests)
        batch_routes.add_routes(app, files, self.runner.look)
        self.gate.app, self.gate.json_paths = app, frozenset({PATH, batch_routes.BATCHES})
        self.gate.upload_paths = {batch_routes.FILES: batch_routes.MAX_UPLOAD_BYTES}
        self._running = asyncio.create_task(self.runner.run())

    async def _complete(self, request: Request) -> Response:
        prompt = (await request.json())["prompt"]
        asked = ASKED_PRIORITY.get()
        assert asked is not None
        self.seen.append((prompt, ASKED_KEY.get(), asked.rank(None)))
        if self.overloads.get(prompt, 0) > 0:
            self.overloads[prompt] -= 1
            return JSONResponse({"error": {"message": "full"}}, 429, {"Retry-After": "0"})
        if prompt == "bad":
            return JSONResponse({"error": {"message": "no"}}, 400)
        placing = PLACING.get()
        assert placing is not None
        placing.began()
        await placing.placed()
        if prompt == "wait":
            left = asyncio.create_task(request.is_disconnected())
            while not self.goes.is_set():
                if await request.is_disconnected():
                    self.num_left += 1
                    break
                await asyncio.sleep(0.001)
            await left
        return JSONResponse({"text": prompt.upper()})

    async def close(self) -> None:
        await self.runner.close()
        await self._running

    def client(self, key: str = "none") -> openai.AsyncOpenAI:
        transport = httpx.ASGITransport(app=self.gate)
        http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        return openai.AsyncOpenAI(
            base_url="http://localhost/v1", api_key=key, http_client=http, max_retries=0
        )


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_runner, "LOOK_S", 0.01)
    monkeypatch.setattr(batch_runner, "FINISH_AGAIN_S", 0.01)


@pytest.fixture
def files(tmp_path: Path) -> BatchFiles:
    found = BatchFiles(tmp_path, 1 << 30)
    found.prepare()
    return found


@asynccontextmanager
async def serving(files: BatchFiles, keys: Sequence[str] = ()) -> AsyncIterator[Endpoint]:
    found = Endpoint(files, keys)
    try:
        yield found
    finally:
        await found.close()


def lines(*prompts: str) -> bytes:
    return b"\n".join(
        json.dumps(
            {"custom_id": f"c{n}", "method": "POST", "url": PATH, "body": {"prompt": prompt}}
        ).encode()
        for n, prompt in enumerate(prompts)
    )


async def begun(client: openai.AsyncOpenAI, text: bytes) -> Any:
    uploaded = await client.files.create(file=("in.jsonl", text), purpose="batch")
    return await client.batches.create(
        input_file_id=uploaded.id, endpoint=PATH, completion_window="24h", metadata={"of": "me"}
    )


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> Any:
    async with asyncio.timeout(20):
        while (found := await client.batches.retrieve(batch_id)).status not in ENDED:
            await asyncio.sleep(0.005)
    return found


async def answers(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    """By their custom ids; none comes twice."""
    if file_id is None:
        return {}
    found = [json.loads(each) for each in (await client.files.content(file_id)).text.splitlines()]
    by_id = {each["custom_id"]: each for each in found}
    assert len(by_id) == len(found)
    return by_id


async def test_a_batch_from_its_upload_to_its_answers(files: BatchFiles) -> None:
    async with serving(files) as endpoint, endpoint.client() as client:
        endpoint.overloads["b"] = 1
        made = await begun(client, lines("a", "b", "bad"))
        assert (made.status, made.metadata) == ("validating", {"of": "me"})
        batch = await ended(client, made.id)
        counts = batch.request_counts
        assert batch.status == "completed"
        assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
        good = await answers(client, batch.output_file_id)
        assert {name: each["response"]["body"] for name, each in good.items()} == {
            "c0": {"text": "A"},
            "c1": {"text": "B"},
        }
        (bad,) = (await answers(client, batch.error_file_id)).values()
        assert (bad["response"]["status_code"], bad["error"]) == (400, None)
        assert bad["response"]["body"]["error"]["type"] == "BadRequestError"
        assert bad["response"]["request_id"] == f"{batch.id}-2"
        assert {rank for _, _, rank in endpoint.seen} == {BACKGROUND.rank}

        shown = [each async for each in client.files.list(limit=2)]
        assert {each.id for each in shown} == {
            batch.input_file_id,
            batch.output_file_id,
            batch.error_file_id,
        }
        assert [each.id async for each in client.batches.list()] == [batch.id]
        for each in shown:
            assert (await client.files.delete(each.id)).deleted
        assert files.num_bytes() == 0


async def test_of_two_frontends_one_runs_a_batch_and_the_other_goes_on(files: BatchFiles) -> None:
    """The first one is stopped while lines are under way; nothing of them is left there."""
    prompts = ["a", "b", "wait", "wait", "c"]
    async with serving(files) as second, serving(files) as first, first.client() as client:
        made = await begun(client, lines(*prompts))
        await until(lambda: {"a", "b", "c"} <= {each[0] for each in first.seen + second.seen})
        runs, other = (first, second) if first.seen else (second, first)
        assert other.seen == []
        await until(lambda: len(runs.seen) == len(prompts))
        await runs.close()
        await until(lambda: runs.num_left == 2)
        other.runner.look()
        await until(lambda: len(other.seen) >= 2)
        other.goes.set()
        async with other.client() as there:
            batch = await ended(there, made.id)
            found = await answers(there, batch.output_file_id)
        assert found.keys() == {f"c{n}" for n in range(len(prompts))}


async def test_a_batch_belongs_to_its_key_and_has_the_level_of_batches(
    files: BatchFiles, tmp_path: Path
) -> None:
    keys = ("sk-one normal,high", "sk-two")
    async with serving(files, keys) as endpoint:
        one, two = endpoint.client("sk-one"), endpoint.client("sk-two")
        async with one, two:
            batch = await ended(one, (await begun(one, lines("a"))).id)
            assert endpoint.seen == [("a", key_id("sk-one"), BACKGROUND.rank)]
            for call in (
                two.batches.retrieve(batch.id),
                two.batches.cancel(batch.id),
                two.files.retrieve(batch.output_file_id),
                two.files.content(batch.output_file_id),
                two.files.delete(batch.input_file_id),
                two.batches.create(
                    input_file_id=batch.input_file_id, endpoint=PATH, completion_window="24h"
                ),
            ):
                with pytest.raises(openai.NotFoundError):
                    await call
            assert [each async for each in two.files.list()] == []
            assert [each async for each in two.batches.list()] == []
    on_disk = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"sk-one" not in on_disk

    # Its next batch is not answered when the key is gone meanwhile.
    record = files.new_batch(key_id("sk-one"), batch.input_file_id, PATH, ("24h", 86_400), None)
    assert record is not None
    async with serving(files, ["sk-two"]) as endpoint:
        await until(lambda: (found := files.batch(record.id)) is not None and found.has_ended)
        assert endpoint.seen == []
    (told,) = files.path(record.error_file_id).read_text().splitlines()
    assert json.loads(told)["response"]["status_code"] == 401


async def test_cancelled_lines_are_told_so(files: BatchFiles) -> None:
    async with serving(files) as endpoint, endpoint.client() as client:
        made = await begun(client, lines("a", "wait", *["wait"] * 30))
        with pytest.raises(openai.ConflictError, match=made.id):
            await client.files.delete(made.input_file_id)
        await until(lambda: len(endpoint.seen) > 5)
        await client.batches.cancel(made.id)
        batch = await ended(client, made.id)
        assert batch.status == "cancelled"
        assert batch.cancelled_at >= batch.cancelling_at
        good = await answers(client, batch.output_file_id)
        unanswered = await answers(client, batch.error_file_id)
        assert good.keys() == {"c0"}
        assert unanswered.keys() == {f"c{n}" for n in range(1, 32)}
        assert {each["error"]["code"] for each in unanswered.values()} == {"batch_cancelled"}
        await until(lambda: endpoint.gate.num_live == 0)
        with pytest.raises(openai.ConflictError, match="cancelled"):
            await client.batches.cancel(made.id)


async def test_a_batch_that_was_cancelled_before_it_began_asks_nothing(files: BatchFiles) -> None:
    upload = files.upload()
    upload.write(lines("a", "b"))
    record = files.new_batch("", upload.finish("", "in", "batch").id, PATH, ("24h", 86_400), None)
    assert record is not None
    files.cancel(record.id)
    async with serving(files) as endpoint, endpoint.client() as client:
        batch = await ended(client, record.id)
        assert (batch.status, endpoint.seen) == ("cancelled", [])
        assert (await answers(client, batch.error_file_id)).keys() == {"c0", "c1"}


async def test_a_batch_that_waits_for_its_turn_can_be_cancelled(
    files: BatchFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_runner, "MAX_BATCHES", 1)
    async with serving(files) as endpoint, endpoint.client() as client:
        runs = await begun(client, lines("wait"))
        await until(lambda: len(endpoint.seen) == 1)
        waits = await begun(client, lines("a"))
        await client.batches.cancel(waits.id)
        assert (await ended(client, waits.id)).status == "cancelled"
        assert (await client.batches.retrieve(runs.id)).status == "in_progress"
        endpoint.goes.set()
        assert (await ended(client, runs.id)).status == "completed"
        assert [prompt for prompt, _, _ in endpoint.seen] == ["wait"]


async def test_the_counts_of_a_batch_are_told_while_its_last_line_takes_long(
    files: BatchFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_runner, "SAVE_COUNTS_S", 0.2)
    async with serving(files) as endpoint, endpoint.client() as client:
        made = await begun(client, lines("a", "b", "wait"))
        async with asyncio.timeout(20):
            while (await client.batches.retrieve(made.id)).request_counts.completed < 2:
                await asyncio.sleep(0.005)
        endpoint.goes.set()
        assert (await ended(client, made.id)).request_counts.completed == 3


async def test_a_page_of_batches_reads_the_files_of_its_own_batches_alone(
    files: BatchFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop waits for these files."""
    async with serving(files) as endpoint, endpoint.client() as client:
        made = [await ended(client, (await begun(client, lines("a"))).id) for _ in range(5)]
        await endpoint.close()  # the runner reads such files too
        read: list[str] = []
        cancelled_at_s = files.cancelled_at_s

        def watched(batch_id: str) -> int | None:
            read.append(batch_id)
            return cancelled_at_s(batch_id)

        monkeypatch.setattr(files, "cancelled_at_s", watched)
        first = await client.batches.list(limit=2)
        second = await client.batches.list(limit=2, after=first.data[-1].id)
        last = await client.batches.list(limit=2, after=second.data[-1].id)
        found = [each.id for page in (first, second, last) for each in page.data]
        assert sorted(found) == sorted(each.id for each in made)
        assert read == found
        assert [page.has_more for page in (first, second, last)] == [True, True, False]


async def test_lines_take_half_of_a_frontend_s_places(files: BatchFiles) -> None:
    async with serving(files) as endpoint, endpoint.client() as client:
        made = await begun(client, lines(*["wait"] * 30))
        await until(lambda: endpoint.gate.num_live == 10)
        assert (await client.post("/completions", body={"prompt": "x"}, cast_to=object)) == {
            "text": "X"
        }
        endpoint.goes.set()
        assert (await ended(client, made.id)).request_counts.completed == 30
        endpoint.gate.limits = replace(endpoint.gate.limits, max_live_requests=1)
        assert (await ended(client, (await begun(client, lines("a"))).id)).status == "completed"


async def test_a_batch_of_bad_lines_fails_before_any_is_asked(files: BatchFiles) -> None:
    async with serving(files) as endpoint, endpoint.client() as client:
        made = await begun(client, lines("a") + b"\n{}\n")
        batch = await ended(client, made.id)
        assert (batch.status, batch.failed_at is None) == ("failed", False)
        assert [(each.line, each.code) for each in batch.errors.data] == [(2, "invalid_custom_id")]
        assert endpoint.seen == []


async def test_a_full_disk_fails_the_batch_and_the_endpoint_goes_on(
    files: BatchFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = BatchRun.append
    left = [1, 0]

    def full(run: BatchRun, texts: Any) -> None:
        if left.pop(0) == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(run, texts)

    monkeypatch.setattr(BatchRun, "append", full)
    async with serving(files) as endpoint, endpoint.client() as client:
        made = await begun(client, lines("a", "wait"))
        await until(lambda: len(left) == 1)
        endpoint.goes.set()
        batch = await ended(client, made.id)
        assert batch.status == "failed"
        assert "No space left" in batch.errors.data[0].message
        assert (await answers(client, batch.output_file_id)).keys() == {"c0"}
        monkeypatch.undo()
        assert (await ended(client, (await begun(client, lines("b"))).id)).status == "completed"


async def test_a_batch_that_cannot_be_opened_fails_and_keeps_no_other_from_running(
    files: BatchFiles,
) -> None:
    upload = files.upload()
    upload.write(lines("a"))
    file_id = upload.finish("", "in.jsonl", "batch").id
    lost = files.new_batch("", file_id, PATH, ("24h", 86_400), None)
    assert lost is not None
    files.path(file_id).unlink()
    async with serving(files) as endpoint, endpoint.client() as client:
        assert (await ended(client, (await begun(client, lines("b"))).id)).status == "completed"
        batch = await ended(client, lost.id)
        assert (batch.status, batch.errors.data[0].code) == ("failed", "not_opened")


async def test_an_upload_without_room_is_refused(
    files: BatchFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with serving(files) as endpoint, endpoint.client() as client:
        for attribute, value, status in (
            ("max_bytes", 10, 413),
            ("upload", full, 507),
        ):
            monkeypatch.setattr(files, attribute, value)
            with pytest.raises(openai.APIStatusError) as told:
                await client.files.create(file=("in.jsonl", lines("a")), purpose="batch")
            assert told.value.status_code == status
            monkeypatch.undo()
        assert files.num_bytes() == 0


FORM = {"content-type": "multipart/form-data; boundary=x"}


def form(*parts: tuple[str, bytes], end: bytes = b"--x--\r\n") -> bytes:
    head = b"--x\r\nContent-Disposition: form-data; "
    return (
        b"".join(head + what.encode() + b"\r\n\r\n" + text + b"\r\n" for what, text in parts) + end
    )


PURPOSE = ("name=purpose", b"batch")
A_FILE = ('name=file; filename="../../a\nb.jsonl"', b"x")


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (form(PURPOSE, A_FILE), FORM, 200),
        (form(A_FILE, PURPOSE), FORM, 200),
        (form(A_FILE), FORM, 400),
        (form(PURPOSE), FORM, 400),
        (form(PURPOSE, A_FILE, A_FILE), FORM, 400),
        (form(("name=purpose", b"fine-tune"), A_FILE), FORM, 400),
        (form(PURPOSE, A_FILE, end=b""), FORM, 400),
        (form(PURPOSE, ("name=x", b"y" * 9000)), FORM, 400),
        (form(*((f"name=x{n}", b"") for n in range(99))), FORM, 400),
        (form((f"name={'x' * 9000}", b"")), FORM, 400),
        (b"zzz", FORM, 400),
        (b"", FORM, 400),
        (b"{}", {"content-type": "application/json"}, 400),
        (b"{}", {"content-type": "multipart/form-data"}, 400),
        (b"{}", {}, 400),
        (b"", FORM | {"content-length": str(1 << 40)}, 413),
    ],
)
async def test_no_form_breaks_the_upload(
    files: BatchFiles, body: bytes, headers: dict[str, str], status: int
) -> None:
    async with serving(files) as endpoint:
        transport = httpx.ASGITransport(app=endpoint.gate)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            told = await http.post(batch_routes.FILES, content=body, headers=headers)
        assert told.status_code == status, told.text
        if status == httpx.codes.OK:
            assert told.json()["filename"] == "a_b.jsonl"
        else:
            assert told.json()["error"]["code"] == status
            assert files.num_bytes() == 0


async def test_an_upload_that_is_too_large_or_too_slow_is_cut(
    files: BatchFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither says how long it is."""
    async with serving(files) as endpoint:

        async def sent(pieces: Callable[[], AsyncIterator[bytes]]) -> httpx.Response:
            transport = httpx.ASGITransport(app=endpoint.gate)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return await http.post(batch_routes.FILES, content=pieces(), headers=FORM)

        async def large() -> AsyncIterator[bytes]:
            yield form(PURPOSE, A_FILE, end=b"")
            yield b"x" * 2000

        async def slow() -> AsyncIterator[bytes]:
            yield form(PURPOSE, A_FILE, end=b"")
            await asyncio.sleep(30)

        endpoint.gate.upload_paths = {batch_routes.FILES: 1000}
        told = await sent(large)
        assert (told.status_code, "1000 bytes" in told.text) == (413, True)
        monkeypatch.setattr("controller.adapters.vllm.endpoint.exchange.BODY_WAIT_S", 0.05)
        assert (await sent(slow)).status_code == 408
        assert files.num_bytes() == 0


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "1d"}, "completion_window"),
        ({"completion_window": "999h"}, "completion_window"),
        ({"input_file_id": "file-../../x"}, "id"),
    ],
)
async def test_a_wrong_batch_is_refused(
    files: BatchFiles, changed: dict[str, Any], param: str
) -> None:
    async with serving(files) as endpoint, endpoint.client() as client:
        uploaded = await client.files.create(file=("in", lines("a")), purpose="batch")
        good = {"input_file_id": uploaded.id, "endpoint": PATH, "completion_window": "24h"}
        with pytest.raises(openai.APIStatusError) as told:
            await client.batches.create(**good | changed)
        assert told.value.param == param
        assert [each async for each in client.batches.list()] == []
