"""Lines of a trace file, each with its number, and what is wrong with one."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MAX_LINE_BYTES = 1 << 24
"""A prompt of a million tokens has 62,500 hashes of 16 tokens: about 1 MB."""
MAX_TOKENS = 1 << 30


class TraceError(ValueError):
    """`message` says where and why, `hint` what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message}; {hint}")
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Line:
    path: Path
    number: int
    text: str
    is_whole: bool = True
    """False for a last line that no newline ends."""

    def error(self, why: str) -> TraceError:
        return bad_line(self.path, self.number, why)

    def tokens(self, name: str, value: object) -> int:
        """A number of tokens, at least 0, from a CSV cell or a JSON value. Raises TraceError."""
        if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
            value = int(value)
        if type(value) is not int or not 0 <= value <= MAX_TOKENS:
            raise self.error(f"{name} must be a number of tokens, not {_shown(value)}")
        return value

    def json_object(self) -> dict[str, object]:
        """Raises TraceError."""
        try:
            found = json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise self.error(f"not JSON ({error})") from error
        if not isinstance(found, dict):
            raise self.error("not a JSON object")
        return found

    def number_from_zero(self, name: str, unit: str, value: object) -> float:
        """Raises TraceError."""
        if type(value) not in (int, float) or not 0 <= value < 1e15:  # type: ignore[operator]
            raise self.error(f"{name} must be a number of {unit} from 0 on, not {_shown(value)}")
        return float(value)  # type: ignore[arg-type]

    def hashes(self, name: str, value: object) -> tuple[int, ...]:
        """Raises TraceError."""
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.error(f"{name} must be a list of integers")
        return tuple(value)


def bad_line(path: Path, number: int, why: str) -> TraceError:
    return TraceError(f"{path}:{number}: {why}", f"correct or delete line {number} of {path}")


def lines_of(path: Path, file: BinaryIO) -> Iterator[Line]:
    """Lines that are not blank. Raises TraceError for one that is no text."""
    number = 0
    while content := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(content) > MAX_LINE_BYTES:
            raise bad_line(path, number, f"longer than {MAX_LINE_BYTES} bytes")
        try:
            text = content.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise bad_line(path, number, f"not UTF-8 text (byte {error.start})") from error
        if text.strip():
            yield Line(path, number, text, content.endswith(b"\n"))


def _shown(value: object) -> str:
    return f"{value!r:.40}"
