"""The process in which a frontend has grammars tried (grammars/trial.py), and one trial in it.

Each trial has a socket. A trial that is cancelled closes its socket, which ends the fork.
"""

import asyncio
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.adapters.vllm.grammars import trial as grammar_trial

PROGRAM = Path(grammar_trial.__file__)
# The process needs 2.5 s of CPU time to begin, on a machine that may be busy. The kernel enforces a
# trial's limits; this one is for a process that hangs.
START_S = 60.0


@dataclass(frozen=True, slots=True)
class Grammar:
    kind: str
    """json, regex, ebnf, lark or structural_tag."""
    text: str


@dataclass(frozen=True, slots=True)
class TrialLimits:
    cpu_s: float
    """Beyond this the grammar is too costly."""
    wall_s: float
    """Beyond this the machine is too busy to tell."""
    max_bytes: int
    """What the compiler may take while it compiles."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The compiled grammar takes `num_bytes`, and a token `step_s` of CPU time in the median; or
    `error` says why it does not compile; with neither, it was too costly within the limits."""

    num_bytes: int | None = None
    step_s: float = field(default=0.0, compare=False)
    error: str | None = None


TOO_COSTLY = Verdict()


class TooBusyError(Exception):
    """The trial's time was over before the CPU time that it may take: the machine is busy, and
    nothing is known of the grammar."""


class ProcessGoneError(Exception):
    """The process ended or could not be started, so nothing is known of the grammar."""


class GrammarProcess:
    """Starts the process with the first trial, or by `start`, and again if it has died."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self._setup = json.dumps(setup).encode()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._starting: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Returns at once if the process runs. A caller that is cancelled does not end the start:
        others wait for it, and a second start beside it would mix up the two. Raises OSError."""
        if self._starting is None or self._starting.done():
            if not self._is_gone():
                return
            self.close()
            self._starting = asyncio.create_task(asyncio.to_thread(self._start))
        await asyncio.shield(self._starting)

    def close(self) -> None:
        """Ends the process, which would also end by itself once its control socket is closed."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._control is not None:
            self._control.close()
        self._process = self._control = None

    async def try_grammar(self, grammar: Grammar, limits: TrialLimits) -> Verdict:
        """Raises ProcessGoneError and TooBusyError."""
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
        with suppress(ValueError):  # the fork was ended before its answer was whole
            return Verdict(**json.loads(answer))
        if self._is_gone():
            raise ProcessGoneError("the process ended in the middle of a trial")
        if time.monotonic() - asked_s >= limits.wall_s:
            raise TooBusyError
        return TOO_COSTLY

    def _is_gone(self) -> bool:
        """Also looks at the control socket, which closes a little before the process has ended."""
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
            # Isolated from the working folder: no file there is imported instead of a module.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        self._control = ours
        ours.sendall(grammar_trial.LENGTH.pack(len(self._setup)) + self._setup)
        ours.setblocking(False)  # from here on the event loop writes to it
