"""One session in a browser: a `llumctl top` of its own, from the web socket's begin to its end.

Page and process speak the protocols of textual-serve's page script and of Textual's driver for
browsers. The page sends JSON lists. The process reads and writes packets: a letter, four bytes of
length, and a payload; `D` is what a terminal would read or draw, `M` is JSON about it.
"""

import asyncio
import contextlib
import json
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

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
        await self.send(leave())
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
        with contextlib.suppress(asyncio.IncompleteReadError, ProtocolError, ValueError):
            self._begun = await stdout.readline() == BEGUN
            while self._begun:
                kind, payload = await read(stdout)
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
        "COLUMNS": str(within(columns, MAX_COLUMNS)),
        "ROWS": str(within(lines, MAX_LINES)),
    }


# -- messages of the page, packets of the process ---------------------------------------

MAX_COLUMNS, MAX_LINES = 1000, 500
MAX_PACKET_BYTES = 16 << 20
BEGUN = b"__GANGLION__\n"
"""The line with which Textual's driver begins."""


class ProtocolError(ValueError):
    """A message that no page of ours sends, or a packet that no driver of Textual's writes."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a message of the page comes to: bytes for the process, a text for the page."""

    packet: bytes = b""
    reply: str = ""


def heard(message: str) -> Heard:
    """Raises ProtocolError."""
    try:
        kind, *rest = json.loads(message)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"no message: {type(error).__name__}") from error
    match kind, rest:
        case "stdin", [str(keys)]:
            return Heard(packet(b"D", keys.encode("utf-8", "replace")))
        case "resize", [{"width": int(columns), "height": int(lines)}]:
            return Heard(resize(columns, lines))
        case "ping", [str(sent)]:
            return Heard(reply=json.dumps(["pong", sent]))
        case (("focus" | "blur"), []):
            return Heard(_about({"type": kind}))
    raise ProtocolError("an unknown message")


def resize(columns: int, lines: int) -> bytes:
    columns, lines = within(columns, MAX_COLUMNS), within(lines, MAX_LINES)
    return _about({"type": "resize", "width": columns, "height": lines})


def within(size: int, most: int) -> int:
    return max(1, min(size, most))


def leave() -> bytes:
    """Asks the dashboard to end, as its key for leaving does."""
    return _about({"type": "quit"})


def packet(kind: bytes, payload: bytes) -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload


async def read(stream: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The next packet's letter and payload.

    Raises:
        asyncio.IncompleteReadError: the process has ended.
        ProtocolError: the length is absurd.
    """
    head = await stream.readexactly(5)
    size = int.from_bytes(head[1:], "big")
    if size > MAX_PACKET_BYTES:
        raise ProtocolError(f"a packet of {size} bytes")
    return head[:1], await stream.readexactly(size)


def _about(facts: dict[str, str | int]) -> bytes:
    return packet(b"M", json.dumps(facts).encode())
