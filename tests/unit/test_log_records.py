"""No client makes a log long, or puts a record of its own into it."""

import io
import logging
from collections.abc import Iterator

import pytest

from controller.runtime import log_records
from controller.runtime.log_records import MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What a library's logger wrote, with a handler and a format of its own."""
    before = logging.getLogRecordFactory()
    log_records.install()
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    log = logging.getLogger("a.library")
    log.addHandler(handler)
    yield stream
    log.removeHandler(handler)
    logging.setLogRecordFactory(before)


def test_a_long_message_or_traceback_loses_its_middle(written: io.StringIO) -> None:
    log = logging.getLogger("a.library")
    log.warning("unknown role: %s!", "x" * 1_000_000)
    text = written.getvalue()
    assert text.startswith("WARNING unknown role: xxx")
    assert text.endswith("x!\n")
    assert len(text) < MAX_MESSAGE_CHARS + 100
    try:
        raise ValueError("y" * 1_000_000)
    except ValueError:
        log.exception("failed")
    traceback = written.getvalue().removeprefix(text)
    assert traceback.startswith("ERROR failed\nTraceback")
    assert "raise ValueError" in traceback
    assert len(traceback) < MAX_TRACEBACK_CHARS + 200


def test_a_short_one_is_whole_and_nobody_begins_a_line(written: io.StringIO) -> None:
    log = logging.getLogger("a.library")
    log.warning("\t%s of %d: é", "two", 3)
    assert written.getvalue() == "WARNING \ttwo of 3: é\n"
    forged = "a\n2026-01-01 00:00:00,000 ERROR forged\r\x1b[2J"
    log.warning("%s", forged)
    try:
        raise ValueError(forged)
    except ValueError:
        log.exception("failed")
    text = written.getvalue()
    assert text.count("ERROR forged") == 2
    assert not any(line.startswith("2026") for line in text.splitlines())
    assert not {"\r", "\x1b"} & set(text)
