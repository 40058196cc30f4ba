"""Sends a case over a connection of its own and reads what comes back, however broken."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from http import HTTPStatus

import h11

from tools.fuzz.case import Case, plain

MAX_KEPT_BYTES = 1 << 20
READ_BYTES = 1 << 16
FLOWS_S = 3.0


@dataclass(slots=True)
class Answer:
    """`status` is None if none came. `closed`: the connection ended before the answer did."""

    start_s: float
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_whole: bool = False
    closed: bool = False
    late: bool = False
    left: bool = False
    """The client went as planned, or had enough of an answer that may be long."""
    heard_s: float = float("-inf")
    """When the last bytes came."""
    error: str = ""
    end_s: float = 0.0

    @property
    def flows(self) -> bool:
        """It may be a long one: a request that names no number of tokens gets thousands."""
        return time.monotonic() - self.heard_s < FLOWS_S

    @property
    def taken_s(self) -> float:
        return self.end_s - self.start_s


async def require_app(host: str, port: int, deadline_s: float) -> None:
    """Raises RuntimeError where a good request is refused: a fuzzer would then find nothing, and
    an attack reach nothing, whatever is wrong behind that refusal."""
    answer = await send(plain(), host, port, deadline_s)
    if answer.status != HTTPStatus.OK:
        raise RuntimeError(
            f"a good request was answered {answer.status}: {answer.body[:300]!r} {answer.error}"
        )


async def send(case: Case, host: str, port: int, deadline_s: float) -> Answer:
    """Never raises for what the endpoint does. `deadline_s`: from the last byte that is sent."""
    answer = Answer(time.monotonic())
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        answer.closed, answer.error, answer.end_s = True, str(error), time.monotonic()
        return answer
    reading = asyncio.create_task(_read(reader, answer))
    try:
        await _write(writer, case, reading)
        patience_s = deadline_s if case.leaves_after_s is None else case.leaves_after_s
        done, _ = await asyncio.wait({reading}, timeout=patience_s)
        if not done:
            planned = case.leaves_after_s is not None
            answer.left = planned or answer.flows or case.may_be_long
            answer.late = not answer.left
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        writer.close()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), 1.0)
    answer.end_s = time.monotonic()
    return answer


async def _write(writer: asyncio.StreamWriter, case: Case, reading: asyncio.Task[None]) -> None:
    """Stops when the answer is there: a server need not take all of what it refuses."""
    with contextlib.suppress(OSError):
        for number, piece in enumerate(case.pieces()):
            if number:
                await asyncio.wait({reading}, timeout=case.pause_s)
            writer.write(piece)
            draining = asyncio.ensure_future(writer.drain())
            await asyncio.wait({reading, draining}, return_when=asyncio.FIRST_COMPLETED)
            if not draining.done():
                draining.cancel()
                return
            draining.result()


async def _read(reader: asyncio.StreamReader, answer: Answer) -> None:
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    parser.send(h11.EndOfMessage())
    body = bytearray()
    try:
        while not answer.is_whole and not answer.closed:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(READ_BYTES)
                answer.heard_s = time.monotonic()
                parser.receive_data(data)
                if not data and parser.their_state is h11.SEND_RESPONSE:
                    answer.closed = True
            elif isinstance(event, h11.Response):
                answer.status = event.status_code
                answer.headers = {k.decode(): v.decode("latin-1") for k, v in event.headers}
            elif isinstance(event, h11.Data) and len(body) < MAX_KEPT_BYTES:
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                answer.is_whole = True
            elif isinstance(event, h11.ConnectionClosed):
                answer.closed = True
    except (OSError, h11.ProtocolError) as error:
        answer.closed, answer.error = True, f"{type(error).__name__}: {error}"
    finally:
        answer.body = bytes(body)
