"""Runs the batches of the endpoint's batch API (`core/admission/batches.py` decides).

Each frontend looks for batches that no process runs, and takes them by their locks
(`api/state/batch_files.py`). It asks its own gate, so a line passes the same checks and limits as a
request of a client, without HTTP in between. Answers that come while others are being written are
written together.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from controller.adapters.vllm.endpoint.answers import INTERNAL, error_body
from controller.adapters.vllm.endpoint.gate import OwnAnswer, OwnRequest
from controller.api.state.batch_files import BatchFiles, BatchRecord, BatchRun, Done
from controller.core.admission.batches import (
    Abort,
    Answered,
    Ask,
    BatchLines,
    Began,
    CancelAsked,
    Ending,
    Event,
    Finish,
    Instruction,
    NotWritten,
    Placed,
    Stopped,
    Ticked,
    Write,
    WriteUnanswered,
    Written,
)

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""How often a frontend looks for new batches and for cancelled ones."""
MAX_BATCHES = 8
"""How many batches a frontend runs at a time. The lines of each take up to 10 MB of its memory.
Batches that were cancelled while they waited, or expired, are ended in any case."""
SAVE_COUNTS_S = 1.0
"""How often the counts that clients see are written while a batch runs."""
FINISH_AGAIN_S = 5.0
"""The pause before a batch is ended again that could not be, because the disk is full."""

UNANSWERED = {
    Ending.EXPIRED: ("batch_expired", "the batch expired before this line was answered"),
    Ending.CANCELLED: ("batch_cancelled", "the batch was cancelled before this line was answered"),
}


class BatchRunner:
    """`ask`: the gate's. `most_live`: returns how many requests this frontend serves at a time. At
    most half of them are of batches, but always one may be."""

    def __init__(
        self,
        files: BatchFiles,
        ask: Callable[[OwnRequest], Awaitable[OwnAnswer]],
        most_live: Callable[[], int],
    ) -> None:
        self._files = files
        self._ask_gate = ask
        self._most_live = most_live
        self._lines = BatchLines(self._most_in_flight())
        self._running: dict[str, _Running] = {}
        self._ended: set[str] = set()
        """Batches that are known to be over."""
        self._look = asyncio.Event()
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def _most_in_flight(self) -> int:
        return max(1, self._most_live() // 2)  # the other half stays for the requests of clients

    def look(self) -> None:
        """Looks for batches now: a client has made one or cancelled one."""
        self._look.set()

    async def run(self) -> None:
        """Runs batches until it is closed. A disk that fails is tried again."""
        is_prepared, said = False, ""
        while not self._closed:
            try:
                if not is_prepared:
                    await asyncio.to_thread(self._files.prepare)
                    is_prepared = True
                await self._look_once()
                said = ""
            except OSError as error:
                if said != (said := str(error)):
                    log.error("the batches cannot be read: %s", error)
            self._lines.most_in_flight = self._most_in_flight()
            self._handle(Ticked())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._look.wait()
            self._look.clear()

    async def close(self) -> None:
        """Ends what is under way and lets other processes run the batches. Answers that have come
        are written."""
        self._closed = True
        self._look.set()
        self._handle(Stopped())
        running = list(self._running.values())
        for each in running:
            each.closes = True
            each.wakes.set()
        await asyncio.gather(*(each.writer for each in running), return_exceptions=True)

    # -- taking batches ------------------------------------------------------------------

    async def _look_once(self) -> None:
        ids = self._files.batch_ids()
        self._ended.intersection_update(ids)
        for batch_id in [each for each in ids if each not in self._ended]:
            if batch_id in self._running and self._files.cancelled_at_s(batch_id) is not None:
                self._handle(CancelAsked(batch_id))
        failed: OSError | None = None
        waiting = set(ids) - self._ended - self._running.keys()
        for record in await asyncio.to_thread(self._oldest_first, waiting):
            if record.has_ended:
                self._ended.add(record.id)
            elif not self._closed and (len(self._running) < MAX_BATCHES or self._only_ends(record)):
                try:
                    await self._take(record.id)
                except OSError as error:  # another batch may be on a better place of the disk
                    failed = error
        if failed is not None:
            raise failed

    def _only_ends(self, record: BatchRecord) -> bool:
        """Whether the batch asks no line any more: it is cancelled, or its time is over."""
        is_cancelled = self._files.cancelled_at_s(record.id) is not None
        return is_cancelled or time.time() >= record.expires_at_s

    def _oldest_first(self, batch_ids: set[str]) -> list[BatchRecord]:
        records = [self._files.batch(each) for each in batch_ids]
        return sorted(
            (each for each in records if each is not None),
            key=lambda each: (each.created_at_s, each.id),
        )

    async def _take(self, batch_id: str) -> None:
        run = self._files.take(batch_id)
        if run is None:
            return
        try:
            done = await asyncio.to_thread(_opened, run)
            if isinstance(done, list):
                await asyncio.to_thread(run.finish, Ending.FAILED, done)
                log.info("batch %s failed before its first line: %d errors", batch_id, len(done))
                run.close()
                return
            await asyncio.to_thread(
                run.save,
                status="in_progress",
                in_progress_at_s=run.record.in_progress_at_s or int(time.time()),
                num_lines=len(run.lines),
                num_completed=len(done.completed),
                num_failed=len(done.failed),
            )
            is_cancelled = self._files.cancelled_at_s(batch_id) is not None
        except BaseException:
            run.close()
            raise
        num_done = len(done.completed) + len(done.failed)
        log.info("batch %s: %d of %d lines are answered", batch_id, num_done, len(run.lines))
        if self._closed:
            run.close()
            return
        running = self._running[batch_id] = _Running(run)
        running.writer = asyncio.create_task(self._write(running))
        self._handle(
            Began(
                batch_id,
                len(run.lines),
                run.record.expires_at_s,
                done.completed,
                done.failed,
                is_cancelled=is_cancelled,
            )
        )

    # -- what the machine wants ----------------------------------------------------------

    def _handle(self, event: Event) -> None:
        for each in self._lines.handle(event, time.time()):
            self._do(each, self._running[each.batch_id])

    def _do(self, instruction: Instruction, running: "_Running") -> None:
        match instruction:
            case Ask(line=line):
                running.wanted.add(line)
                task = asyncio.create_task(self._ask(running, line))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case Abort(line=line):
                running.wanted.discard(line)
                if line in running.requests:
                    running.requests[line].leave()
            case Write(line=line, is_error=is_error):
                running.results.append((line, is_error, running.answers.pop(line)))
                running.wakes.set()
            case WriteUnanswered(lines=lines, ending=ending):
                code, message = UNANSWERED[ending]
                error = {"code": code, "message": message}
                running.results += [
                    (line, True, running.result(line, error=error)) for line in lines
                ]
                running.wakes.set()
            case Finish():
                running.finish = instruction
                running.wakes.set()

    async def _ask(self, running: "_Running", line: int) -> None:
        batch = running.run.record
        answer = OwnAnswer()
        try:
            body = await asyncio.to_thread(running.run.body_of, line)
            if line in running.wanted:
                request = running.requests[line] = OwnRequest(
                    batch.endpoint,
                    body,
                    batch.owner,
                    running.request_id(line),
                    lambda: self._handle(Placed(batch.id, line)),
                )
                answer = await self._ask_gate(request)
        except Exception:
            log.exception("line %d of %s failed", line, batch.id)
        running.requests.pop(line, None)
        if line not in running.wanted:
            return  # it was aborted
        running.wanted.discard(line)
        running.answers[line] = running.result(line, answer=answer)
        self._handle(Answered(batch.id, line, answer.status, answer.retry_after_s))

    async def _write(self, running: "_Running") -> None:
        """Writes the answers of one batch, and ends it."""
        batch_id = running.run.record.id
        saved_s = time.monotonic()
        try:
            while running.finish is None and not running.closes:
                # Counts are also saved if no answer comes after the ones that they count.
                due_in_s = saved_s + SAVE_COUNTS_S - time.monotonic()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due_in_s if self._new_counts(running) else None):
                        await running.wakes.wait()
                running.wakes.clear()
                await self._write_results(running)
                if running.finish is None and time.monotonic() - saved_s >= SAVE_COUNTS_S:
                    await self._save_counts(running)
                    saved_s = time.monotonic()
            if running.finish is not None:
                await _finish(running, running.finish)
            else:
                await self._write_results(running)
        except Exception:
            log.exception("batch %s stopped; it is taken up again", batch_id)
            self._handle(NotWritten(batch_id, "the frontend failed"))
        finally:
            running.run.close()
            self._running.pop(batch_id, None)

    async def _write_results(self, running: "_Running") -> None:
        results, running.results = running.results, []
        if not results:
            return
        batch_id = running.run.record.id
        try:
            answers = [(is_error, answer) for _, is_error, answer in results]
            await asyncio.to_thread(running.run.append, answers)
        except OSError as error:
            self._handle(NotWritten(batch_id, error.strerror or str(error)))
        else:
            self._handle(Written(batch_id, [line for line, _, _ in results]))

    def _new_counts(self, running: "_Running") -> dict[str, int]:
        """The counts of the batch; empty if those are in its record."""
        record = running.run.record
        view = self._lines.view(record.id)
        before = record.num_completed, record.num_failed
        if view is None or (view.num_completed, view.num_failed) == before:
            return {}
        return {"num_completed": view.num_completed, "num_failed": view.num_failed}

    async def _save_counts(self, running: "_Running") -> None:
        if counts := self._new_counts(running):
            with contextlib.suppress(OSError):  # the next answer that cannot be written tells it
                await asyncio.to_thread(running.run.save, **counts)


def _opened(run: BatchRun) -> Done | list[dict[str, Any]]:
    """What was done of the batch before; or why it cannot be begun."""
    try:
        return run.open()
    except OSError as error:
        why = f"the files of the batch cannot be opened: {error.strerror}"
        return [{"code": "not_opened", "message": why, "line": None, "param": None}]


class _Running:
    """A batch that this frontend runs."""

    def __init__(self, run: BatchRun) -> None:
        self.run = run
        self.wanted: set[int] = set()
        """The lines that were asked and not aborted."""
        self.requests: dict[int, OwnRequest] = {}
        self.answers: dict[int, dict[str, Any]] = {}
        self.results: list[tuple[int, bool, dict[str, Any]]] = []
        """What is to be written next: the line, whether to the errors, and the text."""
        self.finish: Finish | None = None
        self.closes = False
        self.wakes = asyncio.Event()
        self.writer: asyncio.Task[None]

    def request_id(self, line: int) -> str:
        return f"{self.run.record.id}-{line}"

    def result(
        self, line: int, answer: OwnAnswer | None = None, error: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """The line of the output, or of the errors, as OpenAI's clients read it."""
        response = None
        if answer is not None:
            request_id, body = self.request_id(line), _body(answer)
            response = {"status_code": answer.status, "request_id": request_id, "body": body}
        return {
            "id": f"batch_req_{self.run.record.id.removeprefix('batch_')}_{line}",
            "custom_id": self.run.lines.custom_ids[line],
            "response": response,
            "error": error,
        }


def _body(answer: OwnAnswer) -> Any:
    try:
        return json.loads(answer.body or error_body(answer.status, INTERNAL))
    except ValueError:
        return answer.body.decode("utf-8", "replace")


async def _finish(running: _Running, finish: Finish) -> None:
    run = running.run
    errors: list[dict[str, Any]] = []
    if finish.ending is Ending.FAILED:
        why = f"the answers could not be written: {finish.why}"
        errors.append({"code": "not_written", "message": why, "line": None, "param": None})
    counts = {"num_completed": finish.num_completed, "num_failed": finish.num_failed}
    while True:
        try:
            await asyncio.to_thread(run.finish, str(finish.ending), errors, **counts)
        except OSError as error:
            log.error("batch %s cannot be ended: %s", run.record.id, error)
            if running.closes:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FINISH_AGAIN_S):
                    await running.wakes.wait()
        else:
            log.info("batch %s %s", run.record.id, finish.ending)
            return
