"""Lets engines compile only grammars that a trial has shown to be bounded.

Every grammar is tried once in a separate process (grammars/process.py), and the verdict is
remembered. Most take milliseconds; a hostile one takes its whole limit, and must not keep the
others waiting. So a grammar that is not compiled within the short trial goes to the end of another,
shorter queue, and starts anew there with the full time.

    a vocabulary of 128,000, CPU time:     tool schema 0.02 s, 50 of them in one object 0.09 s,
    2,000 choices 0.2 s, "minLength": 100 2.7 s, "maxLength": 4000 8.8 s (xgrammar 0.2.8)
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from controller.adapters.vllm.grammars.process import (
    TOO_COSTLY,
    Grammar,
    ProcessGoneError,
    TooBusyError,
    TrialLimits,
    Verdict,
)
from controller.adapters.vllm.grammars.trial import MAX_STEP_S

log = logging.getLogger(__name__)

MAX_CPU_S = 10.0
SHORT_CPU_S = 0.5
# On a busy machine a trial may take so many times its CPU time; then another one gets its place.
WALL_PER_CPU = 4.0
BUSY_RETRY_AFTER_S = 5
MAX_TRIAL_BYTES = 256 * 1024 * 1024
# An engine keeps so much for each request that runs under a grammar; see VLLM_XGRAMMAR_CACHE_MB.
MAX_COMPILED_BYTES = 32 * 1024 * 1024
MAX_VERDICTS = 4096


class GrammarRefusedError(Exception):
    """Requests under the grammar are answered with this status and message."""

    def __init__(self, status: HTTPStatus, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


class Tries(Protocol):
    async def try_grammar(self, grammar: Grammar, limits: TrialLimits) -> Verdict:
        """Raises ProcessGoneError and TooBusyError."""


class NoTries:
    """Refuses every grammar, as none can be tried."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def try_grammar(self, _grammar: Grammar, _limits: TrialLimits) -> Verdict:
        return Verdict(error=self._why)


class Queue:
    """`num_at_once` trials run at a time, and `max_waiting` may wait."""

    def __init__(self, limits: TrialLimits, num_at_once: int, max_waiting: int) -> None:
        self.limits = limits
        self._places = asyncio.Semaphore(num_at_once)
        self._num_waiting = 0
        self._max_waiting = max_waiting

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Raises GrammarRefusedError (429)."""
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
    """Requests that wait; the trial ends when the last one has left."""


class GrammarTrials:
    def __init__(self, process: Tries, *queues: Queue) -> None:
        self._process = process
        self._queues = queues or (short_queue(), long_queue())
        self._trials: dict[bytes, _Trial] = {}
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._stopped: GrammarRefusedError | None = None

    def stop(self, why: str) -> None:
        """Refuses with 503 the requests that wait for a trial, and all later ones."""
        self._stopped = GrammarRefusedError(HTTPStatus.SERVICE_UNAVAILABLE, why)
        for trial in self._trials.values():
            trial.task.cancel()

    @property
    def num_waiting(self) -> int:
        """Requests whose grammar is being tried."""
        return sum(trial.num_waiting for trial in self._trials.values())

    async def check(self, grammar: Grammar) -> float:
        """Returns the CPU time that a token takes an engine. Cancelled with its request.

        Raises GrammarRefusedError: 400 if the grammar is wrong or too costly, 429 if too many wait,
        503 if it could not be tried, as the machine is busy or trials have stopped."""
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
        """None: its time was over before its CPU time."""
        for is_last in (False, True):
            try:
                return await self._process.try_grammar(grammar, limits)
            except TooBusyError:
                log.warning("busy: no %g s of CPU time in %g s", limits.cpu_s, limits.wall_s)
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
