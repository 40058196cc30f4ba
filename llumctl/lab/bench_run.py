"""One measurement: requests to an endpoint, and the figures of its cluster meanwhile.

The loop is open: each request is sent when it is due, even if earlier ones are not finished. Only
a later turn of a session waits for the answer to the turn before.
"""

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from controller.api import token_sequence
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError, RefusedError, UnreachableError, UsageError
from controller.api.settings import key_file
from controller.api.wire.status import ClusterStatus
from controller.sim.workload.trace import later_turns
from llumctl import connect
from llumctl.config import config_file
from llumctl.lab import bench_load
from llumctl.lab.bench_client import (
    RIGHT,
    Answer,
    Endpoint,
    ExchangeError,
    Pool,
    Verdict,
    faults_so_far,
    judge,
)
from llumctl.lab.bench_load import Level, Request
from llumctl.lab.option_values import Verify

PROGRESS_INTERVAL_S = 0.25
# The shortest wait. Timers are not finer than this, so a shorter wait would be a busy loop.
SHORTEST_WAIT_S = 0.001
HEAD_START_S = 0.05


@dataclass(slots=True)
class Result:
    """One request and its answer. `due_s` and the answer's times come from the same clock
    (time.perf_counter). `lag_s`: how late the client began to send."""

    request: Request
    due_s: float
    lag_s: float
    answer: Answer
    verdict: Verdict = RIGHT
    num_output_tokens: int = 0
    """How many tokens came: the number of ids or, if there are no ids, the server's count."""
    token_ids: list[int] = field(default_factory=list)
    """The answer's tokens, until the session's next turn has been sent; empty without one."""

    @property
    def is_right(self) -> bool:
        return not self.verdict.kind


@dataclass(slots=True)
class Results:
    """The results of a run. `ended`: requests in the order in which they ended. `client_cpu_s`: CPU
    time of this whole process. The ids of right answers are not kept, as there may be millions."""

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
    """Writes the bytes of requests. `verify` is never AUTO here. `timeout_s`: the longest time from
    the moment at which a request is due until its end. Because of the salt, a run does not find the
    prompts of an earlier run with the same seed in a prefix cache; equal prefixes within the run
    are found."""

    endpoint: Endpoint
    model: str
    seed: int
    verify: Verify
    timeout_s: float
    cache_salt: str = field(default_factory=lambda: secrets.token_hex(8))
    stream_interval: int = 1
    """How many tokens each event has, except for the first and the last event."""

    def name(self, request: Request) -> str:
        """A unique part of the request's ids in the cluster's events."""
        return f"{self.cache_salt}-{request.index}"

    def encode(
        self, request: Request, before: Sequence[int] = ()
    ) -> tuple[bytes, int | None, list[int]]:
        """The bytes to send; if tokens are verified, where the right answer starts; and the prompt.
        `before`: as for `bench_load.prompt`."""
        prompt = bench_load.prompt(self.seed, request, before)
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
        return self.endpoint.encode("completions", body), start, prompt


class Run:
    """Sends requests; `run` may be called once. `stop` ends the run early: no more requests are
    sent, and live ones are cut off."""

    def __init__(
        self,
        requests: Sequence[Request],
        sender: Sender,
        on_progress: Callable[[Results], None] = lambda _: None,
    ) -> None:
        self.results = Results()
        later = later_turns(requests)
        self._later = {requests[place].index: requests[at] for place, at in later.items()}
        """The turn that follows a request, by the request's index."""
        waiting = set(later.values())
        self._requests = [each for place, each in enumerate(requests) if place not in waiting]
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
        """Sends all requests, and ends when the last answer has ended. If it is cancelled, all live
        requests are cancelled."""
        async with asyncio.TaskGroup() as group:
            for request in self._requests:
                message, start, prompt = self._sender.encode(request)
                due_s = self.results.started_s + request.at_s
                await _until(due_s)
                sending = self._send(request, message, start, due_s)
                if request.index in self._later:
                    group.create_task(self._send_session(request, prompt, sending))
                else:
                    group.create_task(sending)

    async def _send_session(
        self, request: Request, prompt: list[int], sending: Coroutine[None, None, Result]
    ) -> None:
        """Sends a first turn and, one after the other, the turns that follow it, until one fails.
        Their prompts begin with the tokens of the turn before, if the server tells them."""
        result = await sending
        while (later := self._later.get(request.index)) is not None:
            if not result.is_right:
                return
            assert later.gap_s is not None
            due_s = result.answer.ended_s + later.gap_s
            message, start, prompt = self._sender.encode(later, [*prompt, *result.token_ids])
            result.token_ids.clear()
            await _until(due_s)
            request, result = later, await self._send(later, message, start, due_s)

    async def _send(
        self, request: Request, message: bytes, start: int | None, due_s: float
    ) -> Result:
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
            if request.index in self._later:
                result.token_ids = list(answer.token_ids)
            answer.token_ids.clear()
        else:
            results.num_failed += 1
        del results.live[request.index]
        results.ended.append(result)
        return result

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            self._on_progress(self.results)


async def _until(due_s: float) -> None:
    while (left_s := due_s - time.perf_counter()) > 0:
        await asyncio.sleep(max(left_s, SHORTEST_WAIT_S))


# -- the cluster's statuses before, during and after the load; Ctrl-C -------------------

STATUS_INTERVAL_S = 2.0


@dataclass(slots=True)
class Observed:
    """The cluster's statuses in order, and how many questions had no answer."""

    statuses: list[ClusterStatus] = field(default_factory=list)
    num_unanswered: int = 0


async def measure(run: Run, control: ControlClient | None) -> tuple[Results, Observed]:
    """Carries out a run and asks for statuses meanwhile. SIGINT ends the run early; the results so
    far are returned."""
    observed = Observed()
    with _interrupted_by_sigint(run.stop):
        if control is None:
            return await run.run(), observed
        await _look(control, observed)
        is_over = asyncio.Event()
        watching = asyncio.create_task(_watch(control, observed, is_over))
        try:
            results = await run.run()
        finally:
            is_over.set()
            await watching
    return results, observed


async def _watch(control: ControlClient, observed: Observed, is_over: asyncio.Event) -> None:
    """Asks for the status every STATUS_INTERVAL_S, and once more when the run is over."""
    while not is_over.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(is_over.wait(), STATUS_INTERVAL_S)
        await _look(control, observed)


async def _look(control: ControlClient, observed: Observed) -> None:
    """Asks for the status in a thread, because a controller that hangs must not delay the load."""
    try:
        observed.statuses.append(await asyncio.to_thread(control.status))
    except LlumctlError:
        observed.num_unanswered += 1


@contextlib.contextmanager
def _interrupted_by_sigint(stop: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


# -- the target of the load: an endpoint, its model, and the cluster behind it ----------

ASK_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Target:
    """The target of the load. `max_model_len`: the model's context in tokens; None if the endpoint
    does not tell. `cluster` and `control` are None if only a URL is known."""

    endpoint: Endpoint
    model: str
    max_model_len: int | None
    cluster: ClusterStatus | None = None
    control: ControlClient | None = None

    @property
    def is_emulated(self) -> bool:
        return self.cluster is not None and self.cluster.engine == "emulated"

    @property
    def levels(self) -> Sequence[Level]:
        """The cluster's priority levels; llumctl's default levels if they are unknown."""
        if self.cluster is not None and self.cluster.levels:
            return [Level(item.name, -item.rank) for item in self.cluster.levels]
        return [bench_load.DEFAULT_LEVEL, Level("high", -1)]


def target_of_cluster(cluster: str, api_key: str, model: str | None) -> Target:
    """The target for a cluster. Raises UnreachableError if no such cluster runs, or if it does not
    answer."""
    state = connect.running(cluster)
    control = ControlClient(state.control_url, state.control_token, ASK_TIMEOUT_S)
    status = control.status()
    endpoint = Endpoint(state.endpoint_url, api_key, state.endpoint_certificate)
    name, context = _ask_model(endpoint, model)
    if status.of_model(name) is not None:
        control = control.of_model(name)
        status = control.status()
    return Target(endpoint, name, context, status, control)


def target_of_url(url: str, api_key: str, model: str | None) -> Target:
    """The target for a URL. Raises UsageError, UnreachableError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"--url: {url[:80]!r} is not of the form http://HOST:PORT",
            "llumctl bench --url http://127.0.0.1:8000",
        )
    endpoint = Endpoint(url, api_key)
    name, context = _ask_model(endpoint, model)
    return Target(endpoint, name, context)


def read_key(path: Path) -> str:
    """The key in the first line with text of a private file. Raises UsageError."""
    first = config_file.read_secret(path, "--api-key-file").splitlines()[0]
    key = key_file.parse_line(first).key
    if not key.isprintable() or not key.isascii():
        raise UsageError(f"--api-key-file: {path} holds no key", f"head -c 100 {path}")
    return key


def _ask_model(endpoint: Endpoint, wanted: str | None) -> tuple[str, int | None]:
    """The name and the context length of the wanted model, or of the first one."""
    url = endpoint.url("models")
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    try:
        verify = endpoint.tls() or False
        with httpx.Client(trust_env=False, timeout=ASK_TIMEOUT_S, verify=verify) as client:
            response = client.get(url, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        reason = str(error) or type(error).__name__
        untrusted = "CERTIFICATE_VERIFY_FAILED" in reason
        raise UnreachableError(
            f"{url} cannot be reached: {reason}",
            "SSL_CERT_FILE=AUTHORITIES llumctl bench ..." if untrusted else "llumctl status",
        ) from error
    if response.status_code in (401, 403):
        raise RefusedError(
            f"{url} wants another API key ({response.status_code})",
            "llumctl bench --api-key-file FILE",
        )
    try:
        models = {item["id"]: item.get("max_model_len") for item in response.json()["data"]}
        response.raise_for_status()
    except (ValueError, KeyError, TypeError, AttributeError, httpx.HTTPError) as error:
        raise LlumctlError(
            f"{url} answered {response.status_code} and no list of models", f"curl -i {url}"
        ) from error
    if wanted is not None and wanted not in models:
        raise UsageError(
            f"--model: {url} serves no {wanted[:60]!r}; it serves {', '.join(models) or 'none'}",
            f"llumctl bench --model {next(iter(models), 'NAME')}",
        )
    if not models:
        raise LlumctlError(f"{url} lists no model", "llumctl status")
    name = wanted or next(iter(models))
    return name, models[name] if isinstance(models[name], int) else None
