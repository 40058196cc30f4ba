"""Lets engines compile only grammars that a trial has shown to be bounded.

Every grammar is tried once in a separate process (trial_program.py), and the verdict is remembered.
Most trials take milliseconds. The trial of a hostile grammar takes all the time that it may, and
must not keep the others waiting. So a grammar that is not compiled within the short trial goes to
the end of a second, shorter queue, where its trial starts again with the full time.

CPU time with a vocabulary of 128,000 (xgrammar 0.2.8): a tool's schema 0.02 s; 50 of them in one
object 0.09 s; 2,000 choices 0.2 s; `"minLength": 100` 2.7 s; `"maxLength": 4000` 8.8 s.

Each trial has a socket. A trial that is cancelled closes its socket, and this ends the fork in
which it runs.
"""

import asyncio
import hashlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from controller.adapters.vllm.grammars import trial_program
from controller.adapters.vllm.grammars.trial_program import MAX_STEP_S

log = logging.getLogger(__name__)

MAX_CPU_S = 10.0
SHORT_CPU_S = 0.5
# How long a trial may take on a busy machine, as a multiple of its CPU time. Then it gives up its
# place.
WALL_PER_CPU = 4.0
BUSY_RETRY_AFTER_S = 5
MAX_TRIAL_BYTES = 256 * 1024 * 1024
# The largest size of a compiled grammar. An engine keeps one for each request that runs under a
# grammar; see VLLM_XGRAMMAR_CACHE_MB.
MAX_COMPILED_BYTES = 32 * 1024 * 1024
MAX_VERDICTS = 4096
PROGRAM = Path(trial_program.__file__)
# The time-out for a process that hangs: a trial has this much time beyond its own limit, which the
# kernel enforces. To start, the process needs 2.5 s of CPU time on a machine that may be busy.
START_S = 60.0


@dataclass(frozen=True, slots=True)
class Grammar:
    kind: str
    """json, regex, ebnf, lark or structural_tag."""
    text: str


@dataclass(frozen=True, slots=True)
class TrialLimits:
    cpu_s: float
    """If the trial takes more CPU time, the grammar is too costly."""
    wall_s: float
    """If the trial takes longer, the machine is too busy to judge the grammar."""
    max_bytes: int
    """The memory that the compiler may take while it compiles."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a trial. Either the compiled grammar takes `num_bytes`, and a token takes
    `step_s` of CPU time in the median; or `error` says why the grammar does not compile. If neither
    is set, the grammar was too costly within the limits."""

    num_bytes: int | None = None
    step_s: float = field(default=0.0, compare=False)
    error: str | None = None


TOO_COSTLY = Verdict()


class TooBusyError(Exception):
    """The trial ran out of time before it had used its CPU time. So the machine is busy, and
    nothing is known about the grammar."""


class ProcessGoneError(Exception):
    """The process ended or could not be started, so nothing is known about the grammar."""


class GrammarRefusedError(Exception):
    """Requests under this grammar are answered with this status and message."""

    def __init__(self, status: HTTPStatus, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


class Tries(Protocol):
    async def try_grammar(self, grammar: Grammar, limits: TrialLimits) -> Verdict:
        """Tries the grammar within the limits. Raises ProcessGoneError and TooBusyError."""


class NoTries:
    """Refuses every grammar, because no grammar can be tried."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def try_grammar(self, _grammar: Grammar, _limits: TrialLimits) -> Verdict:
        return Verdict(error=self._why)


class Queue:
    """Lets `num_at_once` trials run at a time, and lets `max_waiting` more wait."""

    def __init__(self, limits: TrialLimits, num_at_once: int, max_waiting: int) -> None:
        self.limits = limits
        self._places = asyncio.Semaphore(num_at_once)
        self._num_waiting = 0
        self._max_waiting = max_waiting

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Waits for a place. Raises GrammarRefusedError (429) if too many wait already."""
        if self._places.locked() and self._num_waiting >= self._max_waiting:
            raise GrammarRefusedError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too many grammars wait to be compiled already; send it again",
            )
        self._num_waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._num_waiting -= 1
        try:
            yield
        finally:
            self._places.release()


def limits_of(cpu_s: float) -> TrialLimits:
    return TrialLimits(cpu_s, WALL_PER_CPU * cpu_s, MAX_TRIAL_BYTES)


def short_queue() -> Queue:
    return Queue(limits_of(SHORT_CPU_S), num_at_once=2, max_waiting=64)


def long_queue() -> Queue:
    return Queue(limits_of(MAX_CPU_S), num_at_once=1, max_waiting=8)


@dataclass(slots=True)
class _Trial:
    task: asyncio.Task[Verdict]
    num_waiting: int = 0
    """How many requests wait. When the last of them has left, the trial ends."""


class GrammarTrials:
    def __init__(self, process: Tries, *queues: Queue) -> None:
        self._process = process
        self._queues = queues or (short_queue(), long_queue())
        self._trials: dict[bytes, _Trial] = {}
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._stopped: GrammarRefusedError | None = None

    def stop(self, why: str) -> None:
        """Refuses with 503 all requests that wait for a trial, and all later ones."""
        self._stopped = GrammarRefusedError(HTTPStatus.SERVICE_UNAVAILABLE, why)
        for trial in self._trials.values():
            trial.task.cancel()

    @property
    def num_waiting(self) -> int:
        """How many requests wait for the trial of their grammar."""
        return sum(trial.num_waiting for trial in self._trials.values())

    async def check(self, grammar: Grammar) -> float:
        """Waits for the grammar's trial, and returns the CPU time that a token takes an engine. It
        is cancelled together with its request.

        Raises GrammarRefusedError: 400 if the grammar is wrong or too costly, 429 if too many
        requests wait, 503 if the grammar could not be tried because the machine is busy or trials
        have stopped."""
        if self._stopped:
            raise self._stopped
        key = _key(grammar)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = await self._join(key, grammar)
        else:
            self._verdicts.move_to_end(key)
        if verdict.error is not None:
            raise GrammarRefusedError(
                HTTPStatus.BAD_REQUEST, f"the grammar cannot be compiled: {verdict.error}"
            )
        if verdict.num_bytes is None:
            limits = self._queues[-1].limits
            raise GrammarRefusedError(
                HTTPStatus.BAD_REQUEST,
                f"the grammar takes more than {limits.cpu_s:g} s of CPU time or "
                f"{limits.max_bytes >> 20} MiB to compile, or {MAX_STEP_S:g} s for one token; make "
                "it simpler, with smaller counts and shorter lists",
            )
        if verdict.num_bytes > MAX_COMPILED_BYTES:
            raise GrammarRefusedError(
                HTTPStatus.BAD_REQUEST,
                f"the grammar takes {verdict.num_bytes >> 20} MiB when it is compiled, which is "
                f"more than {MAX_COMPILED_BYTES >> 20}; make it simpler",
            )
        return verdict.step_s

    async def _join(self, key: bytes, grammar: Grammar) -> Verdict:
        """Waits for the grammar's trial; all requests under one grammar share it."""
        trial = self._trials.get(key)
        if trial is None:
            trial = self._trials[key] = _Trial(asyncio.create_task(self._try(grammar)))
            trial.task.add_done_callback(lambda task: self._ended(key, task))
        trial.num_waiting += 1
        try:
            return await asyncio.shield(trial.task)
        except asyncio.CancelledError:
            if self._stopped and trial.task.cancelled():
                raise self._stopped from None
            raise
        finally:
            trial.num_waiting -= 1
            if not trial.num_waiting and not trial.task.done():
                self._trials.pop(key, None)  # the next request begins another trial
                trial.task.cancel()

    async def _try(self, grammar: Grammar) -> Verdict:
        verdict: Verdict | None = TOO_COSTLY
        for queue in self._queues:
            async with queue.place():
                verdict = await self._try_once(grammar, queue.limits)
            if verdict not in (TOO_COSTLY, None):
                break
        if verdict is None:
            raise GrammarRefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the machine is too busy to compile the grammar; send it again",
                BUSY_RETRY_AFTER_S,
            )
        return verdict

    async def _try_once(self, grammar: Grammar, limits: TrialLimits) -> Verdict | None:
        """Tries the grammar once. Returns None if the trial ran out of time before it had used its
        CPU time."""
        for is_last in (False, True):
            try:
                return await self._process.try_grammar(grammar, limits)
            except TooBusyError:
                log.warning(
                    "busy: a trial did not get %g s of CPU time in %g s",
                    limits.cpu_s,
                    limits.wall_s,
                )
                return None
            except ProcessGoneError as error:
                log.warning("a grammar could not be tried: %s", error)
                if is_last:
                    break
        raise GrammarRefusedError(
            HTTPStatus.SERVICE_UNAVAILABLE, "no grammar can be compiled now; send it again"
        )

    def _ended(self, key: bytes, task: asyncio.Task[Verdict]) -> None:
        trial = self._trials.get(key)
        if trial is not None and trial.task is task:
            del self._trials[key]
        if not task.cancelled() and task.exception() is None:
            self._verdicts[key] = task.result()
            if len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)


def _key(grammar: Grammar) -> bytes:
    text = grammar.text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16, person=grammar.kind.encode()[:16]).digest()


class GrammarProcess:
    """Starts the process by `start`, or with the first trial, and starts it again if it has
    died."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self._setup = json.dumps(setup).encode()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._starting: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Returns at once if the process runs. If a caller is cancelled, the start goes on, because
        others may wait for it, and a second start at the same time would confuse the two. Raises
        OSError."""
        if self._starting is None or self._starting.done():
            if not self._is_gone():
                return
            self.close()
            self._starting = asyncio.create_task(asyncio.to_thread(self._start))
        await asyncio.shield(self._starting)

    def close(self) -> None:
        """Ends the process. Without this call it would end when its control socket is closed."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._control is not None:
            self._control.close()
        self._process = self._control = None

    async def try_grammar(self, grammar: Grammar, limits: TrialLimits) -> Verdict:
        """Tries the grammar in a fork of the process. Raises ProcessGoneError and TooBusyError."""
        body = json.dumps(
            {
                "kind": grammar.kind,
                "text": grammar.text,
                "cpu_s": limits.cpu_s,
                "wall_s": limits.wall_s,
                "max_bytes": limits.max_bytes,
            }
        ).encode()
        try:
            async with asyncio.timeout(START_S + limits.wall_s):
                await self.start()
                asked_s = time.monotonic()
                answer = await self._ask(body)
        except TimeoutError:
            self.close()  # the next trial starts another process
            raise ProcessGoneError("the process does not answer") from None
        except OSError as error:
            raise ProcessGoneError(f"{type(error).__name__}: {error}") from error
        with suppress(ValueError):  # the fork was ended before its answer was complete
            return Verdict(**json.loads(answer))
        if self._is_gone():
            raise ProcessGoneError("the process ended in the middle of a trial")
        if time.monotonic() - asked_s >= limits.wall_s:
            raise TooBusyError
        return TOO_COSTLY

    def _is_gone(self) -> bool:
        """Whether the process has ended. The control socket is checked as well, because it closes a
        little earlier."""
        if self._process is None or self._control is None or self._process.poll() is not None:
            return True
        poll = select.poll()
        poll.register(self._control, 0)
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    async def _ask(self, body: bytes) -> bytes:
        if self._control is None:
            raise ConnectionError("the process is closed")
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [b"g"], [theirs.fileno()])
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        try:
            writer.write(body)
            writer.write_eof()
            return await reader.read()
        except ConnectionError:  # the fork ended before it had read everything
            return b""
        finally:
            writer.transport.abort()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # Isolated from the working folder, so that no file there is imported instead of a
            # module.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        self._control = ours
        ours.sendall(trial_program.LENGTH.pack(len(self._setup)) + self._setup)
        ours.setblocking(False)  # from here on the event loop writes to it
