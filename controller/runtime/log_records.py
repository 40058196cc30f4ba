"""Bounds the records of a log, so that no client can make a record long, or forge another one. It
is a module of its own because every process uses it, and the head process needs no other part of
this package.

Without this, a message role of 1 MB became a line of 1 MB, and a path with an encoded line break
began a line of its own. The records of all loggers of this process pass here, including the loggers
of libraries.
"""

import logging
import traceback
from typing import Any

MAX_MESSAGE_CHARS = 4096
MAX_TRACEBACK_CHARS = 8192
# Control characters could steer the reader's terminal. Every line of a message after the first one
# is marked, so that no line can be taken for a record.
_SHOWN = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(0x80, 0xA0))} | {
    ord("\t"): "\t",
    ord("\n"): "\n  | ",
}


def install() -> None:
    logging.setLogRecordFactory(BoundedRecord)


class BoundedRecord(logging.LogRecord):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.exc_info and self.exc_info[1] is not None:
            text = "".join(traceback.format_exception(self.exc_info[1])).rstrip("\n")
            self.exc_text = bounded(text, MAX_TRACEBACK_CHARS)

    def getMessage(self) -> str:  # noqa: N802
        return bounded(super().getMessage(), MAX_MESSAGE_CHARS)


def bounded(text: str, max_chars: int) -> str:
    """The text, without its middle if it is longer than `max_chars`."""
    if len(text) > max_chars:
        kept = max_chars // 2
        text = f"{text[:kept]} ... {len(text) - 2 * kept} characters ... {text[-kept:]}"
    return text.translate(_SHOWN)
