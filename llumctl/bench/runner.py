"""Open loop: each request goes out when it is due, whatever has become of those before it."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from controller.api import token_sequence
from llumctl.bench import workload
from llumctl.bench.check import RIGHT, Verdict, Verify, faults_so_far, judge
from llumctl.bench.connection import Endpoint, ExchangeError, Pool
from llumctl.bench.response import Answer
from llumctl.bench.workload import Request

PROGRESS_INTERVAL_S = 0.25
# A timer is no finer than this, and to wait for less would be to spin.
SHORTEST_WAIT_S = 0.001
HEAD_START_S = 0.05


@dataclass(slots=True)
class Result:
    """One request and what came of it. `due_s` and the answer's times are on one clock
    (time.perf_counter); `lag_s` is how late the client began to send."""

    request: Request
    due_s: float
    lag_s: float
    answer: Answer
    verdict: Verdict = RIGHT
    num_output_tokens: int = 0
    """Tokens that came, by their ids or else by the server's count."""

    @property
    def is_right(self) -> bool:
        return not self.verdict.kind


@dataclass(slots=True)
class Results:
    """`ended` in the order in which they ended. `client_cpu_s` of this whole process. The ids of
    right answers are not kept: there may be millions."""

    started_s: float = 0.0
    ended_s: float = 0.0
    num_sent: int = 0
    ended: list[Result] = field(default_factory=list)
    num_failed: int = 0
    live: dict[int, Answer] = field(default_factory=dict)
    client_cpu_s: float = 0.0
    interrupted: bool = False

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.started_s


@dataclass(frozen=True, slots=True)
class Sender:
    """How a request is written. `verify` is not AUTO here; `timeout_s` counts from when a request
    is due to its end. The salt keeps a run from finding the prompts of an earlier one of the same
    seed in a prefix cache; within the run equal prefixes are found."""

    endpoint: Endpoint
    model: str
    seed: int
    verify: Verify
    timeout_s: float
    cache_salt: str = field(default_factory=lambda: secrets.token_hex(8))
    stream_interval: int = 1
    """Tokens of an event, but for the first and the last event."""

    def name(self, request: Request) -> str:
        """Part of the ids that the request has in the cluster's events, and of no other's."""
        return f"{self.cache_salt}-{request.index}"

    def encode(self, request: Request) -> tuple[bytes, int | None]:
        """The bytes to send, and where the right answer starts if tokens are to be verified."""
        prompt = workload.prompt(self.seed, request)
        body: dict[str, object] = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": request.num_output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": self.cache_salt,
            "request_id": self.name(request),
        }
        if self.verify is not Verify.USAGE:
            body["return_token_ids"] = True
        if self.stream_interval > 1:
            body["stream_interval"] = self.stream_interval
        if request.priority:
            body["priority"] = request.priority
        is_checked = self.verify is Verify.TOKENS
        start = token_sequence.start(prompt) if is_checked else None
        return self.endpoint.encode("completions", body), start


class Run:
    """`run` once. `stop` ends it early: nothing more is sent, what is live is cut off."""

    def __init__(
        self,
        requests: Sequence[Request],
        sender: Sender,
        on_progress: Callable[[Results], None] = lambda _: None,
    ) -> None:
        self.results = Results()
        self._requests = requests
        self._sender = sender
        self._on_progress = on_progress
        self._pool = Pool(sender.endpoint)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> Results:
        results = self.results
        cpu_s = time.process_time()
        results.started_s = time.perf_counter() + HEAD_START_S
        work = asyncio.create_task(self._send_all())
        progress = asyncio.create_task(self._report())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
            results.interrupted = not work.done()
            if not results.interrupted:
                work.result()
        finally:
            for task in (work, progress, stopping):
                task.cancel()
            await asyncio.gather(work, progress, stopping, return_exceptions=True)
            self._pool.close()
        results.ended_s = time.perf_counter()
        results.client_cpu_s = time.process_time() - cpu_s
        self._on_progress(results)
        return results

    async def _send_all(self) -> None:
        """Ends when the last answer has; cancelling it cancels all that is live."""
        async with asyncio.TaskGroup() as group:
            for request in self._requests:
                message, start = self._sender.encode(request)
                due_s = self.results.started_s + request.at_s
                while (left_s := due_s - time.perf_counter()) > 0:
                    await asyncio.sleep(max(left_s, SHORTEST_WAIT_S))
                group.create_task(self._send(request, message, start, due_s))

    async def _send(
        self, request: Request, message: bytes, start: int | None, due_s: float
    ) -> None:
        results = self.results
        answer = results.live[request.index] = Answer()
        result = Result(request, due_s, time.perf_counter() - due_s, answer)
        results.num_sent += 1
        try:
            await self._pool.exchange(message, answer, self._sender.timeout_s - result.lag_s)
        except ExchangeError as error:
            faults = faults_so_far(answer, request.num_output_tokens, start)
            result.verdict = Verdict(error.kind, error.detail, faults)
        else:
            result.verdict = judge(
                answer, request.num_prompt_tokens, request.num_output_tokens, start
            )
        result.num_output_tokens = len(answer.token_ids) or answer.num_output_tokens or 0
        if result.is_right:
            answer.token_ids.clear()
        else:
            results.num_failed += 1
        del results.live[request.index]
        results.ended.append(result)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            self._on_progress(self.results)
