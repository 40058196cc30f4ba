"""One session in a browser: a `llumctl top` of its own, from the web socket's begin to its end."""

import asyncio
import contextlib
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence

from llumctl.web import packets

DRIVER = "textual.drivers.web_driver:WebDriver"
LEAVE_S = 2.0
"""How long a process that is asked to leave may take; then it is killed."""
MAX_TOLD_BYTES = 4096
_PLAIN_SCREEN = b"\x1b[?1049l\x1b[2J\x1b[H\x1b[?25h"

Draw = Callable[[bytes], Awaitable[None]]


class Session:
    """The process gets no secret: it finds the cluster as any `llumctl top` does."""

    def __init__(self, command: Sequence[str], draw: Draw) -> None:
        self._command = command
        self._draw = draw
        self._process: Process | None = None
        self._begun = False
        self._told = b""

    async def start(self, columns: int, lines: int) -> None:
        """In a process group of its own: the terminal's Ctrl-C is the server's to hear."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=environment(os.environ, columns, lines),
            start_new_session=True,
        )

    async def send(self, packet: bytes) -> None:
        """Waits while the process does not read; what it will never read is dropped."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._process.stdin.write(packet)
            await self._process.stdin.drain()

    async def show(self) -> None:
        """Draws what the process draws until it ends, and then why it ended."""
        assert self._process is not None
        listening = asyncio.create_task(self._listen())
        try:
            await self._relay()
            await listening
            await self._draw(_PLAIN_SCREEN + self._last_words(await self._process.wait()))
        finally:
            listening.cancel()

    async def end(self) -> None:
        """Asks the process to leave, kills it if it does not, and returns when it is gone."""
        process = self._process
        if process is None:
            return
        leaving = asyncio.create_task(self._leave(process))
        try:
            await asyncio.wait((leaving,), timeout=LEAVE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            leaving.cancel()
            await process.wait()

    async def _leave(self, process: Process) -> None:
        """Reads on meanwhile: a process that cannot write does not hear."""
        await self.send(packets.leave())
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        while await process.stdout.read(65536):
            pass
        await process.wait()

    async def _relay(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        stdout = self._process.stdout
        with contextlib.suppress(asyncio.IncompleteReadError, packets.ProtocolError, ValueError):
            self._begun = await stdout.readline() == packets.BEGUN
            while self._begun:
                kind, payload = await packets.read(stdout)
                if kind == b"D":
                    await self._draw(payload)

    async def _listen(self) -> None:
        """Keeps the end of what goes to stderr, which must not fill the pipe."""
        assert self._process is not None
        assert self._process.stderr is not None
        while text := await self._process.stderr.read(MAX_TOLD_BYTES):
            self._told = (self._told + text)[-MAX_TOLD_BYTES:]

    def _last_words(self, code: int) -> bytes:
        """What a terminal would show below the dashboard, but for a traceback: Textual's have the
        values of variables, and the control token may be among them."""
        if self._begun and code:
            return f"the dashboard ended by a defect (exit code {code})\r\n".encode()
        return self._told.replace(b"\n", b"\r\n")


def environment(inherited: Mapping[str, str], columns: int, lines: int) -> dict[str, str]:
    """Textual's own switches are left behind: they would open a port, or write a log."""
    kept = {key: value for key, value in inherited.items() if not key.startswith("TEXTUAL")}
    return {
        **kept,
        "TEXTUAL_DRIVER": DRIVER,
        "TEXTUAL_COLOR_SYSTEM": "truecolor",
        "TERM": "xterm-256color",
        "COLUMNS": str(packets.within(columns, packets.MAX_COLUMNS)),
        "ROWS": str(packets.within(lines, packets.MAX_LINES)),
    }
