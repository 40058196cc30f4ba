"""What page and child process say to each other, by the protocol of textual-serve's page script and
of Textual's driver for browsers.

The page sends JSON lists. The process reads and writes packets: a letter, four bytes of length, and
a payload; `D` is what a terminal would read or draw, `M` is JSON about it.
"""

import asyncio
import json
from dataclasses import dataclass

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
