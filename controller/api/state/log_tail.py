"""Reads the last lines of a log file, and the lines that are added to it."""

import contextlib
import os
import re
from pathlib import Path
from typing import BinaryIO

from controller.api.errors import LlumctlError
from controller.api.state import user_files
from controller.api.text.quantities import printable

BLOCK_BYTES = 1 << 16
# The longest line that is kept together. A longer line that is not finished yet is shown in pieces.
MAX_LINE_BYTES = 1 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class LogTail:
    """The lines of one file: first its last lines, then what is added.

    A file that shrank or was replaced (a new `up` puts the old logs aside) is read to its end, and
    then from its start. A file that is gone may come back.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._open()
        self._unfinished = b""

    def last(self, num_lines: int) -> list[str]:
        """The last lines. It must be called before `added`, if at all."""
        if self._file is None:
            return []
        self._file.seek(_before_last(self._file, num_lines))
        lines = self._read(self._file)
        if len(lines) <= num_lines and (aside := self._aside()).exists():
            # The rotation may have split a line: its beginning is in the file aside.
            with contextlib.closing(LogTail(aside)) as before:
                earlier = before.last(num_lines - len(lines))
                self._unfinished = before._unfinished
            self._file.seek(0)
            lines = earlier + self._read(self._file)
        return lines[-num_lines:] if num_lines else []

    def unfinished(self) -> list[str]:
        """The beginning of a line whose end is not written yet. It is returned once."""
        line, self._unfinished = self._unfinished, b""
        return [_text(line)] if line else []

    def added(self) -> list[str]:
        """The lines that were finished since the last call."""
        lines = self._rest_of_what_was_emptied() + self._read(self._file)
        if self._is_another():
            lines += self.unfinished()
            self.close()
            self._file = self._open()
            lines += self._read(self._file)
        return lines

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> BinaryIO | None:
        try:
            return user_files.opened(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LlumctlError(
                f"cannot read {self._path}: {error.strerror}", f"ls -l {self._path}"
            ) from error

    def _is_another(self) -> bool:
        """Whether the path names a file other than the open one."""
        try:
            found = self._path.stat()
        except OSError:
            return False
        if self._file is None:
            return True
        ours = os.fstat(self._file.fileno())
        return (ours.st_dev, ours.st_ino) != (found.st_dev, found.st_ino)

    def _rest_of_what_was_emptied(self) -> list[str]:
        """The unread rest of a full log, which was copied aside and then emptied in its place. The
        part that had been read has the same length in the copy."""
        if self._file is None or os.fstat(self._file.fileno()).st_size >= self._file.tell():
            return []
        read_bytes, lines = self._file.tell(), []
        with contextlib.suppress(OSError), user_files.opened(self._aside()) as aside:
            if aside.seek(0, os.SEEK_END) >= read_bytes:
                aside.seek(read_bytes)
                lines = self._read(aside)
        self._file.seek(0)
        return lines

    def _aside(self) -> Path:
        return self._path.with_name(f"{self._path.name}.1")

    def _read(self, file: BinaryIO | None) -> list[str]:
        if file is None:
            return []
        *whole, self._unfinished = (self._unfinished + file.read()).split(b"\n")
        if len(self._unfinished) > MAX_LINE_BYTES:
            whole.append(self._unfinished)
            self._unfinished = b""
        return [_text(line) for line in whole]


def harmless(line: str) -> str:
    """The line for a terminal, without colours and without anything that moves the cursor. Tabs
    stay. If a progress bar wrote over itself, its last text is left."""
    line = _COLOUR.sub("", line).rstrip("\r").rpartition("\r")[2]
    return printable(line, keep="\t")


def _before_last(file: BinaryIO, num_lines: int) -> int:
    """An offset with at least `num_lines` lines behind it, or the start of the file."""
    at = file.seek(0, os.SEEK_END)
    seen = 0
    while at > 0 and seen <= num_lines:
        at = max(0, at - BLOCK_BYTES)
        file.seek(at)
        seen += file.read(BLOCK_BYTES).count(b"\n")
    return at


def _text(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace")
