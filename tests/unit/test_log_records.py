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


def test_a_long_message_loses_its_middle(written: io.StringIO) -> None:
    logging.getLogger("a.library").warning("unknown role: %s!", "x" * 1_000_000)
    text = written.getvalue()
    assert text.startswith("WARNING unknown role: xxx")
    assert text.endswith("x!\n")
    assert " 995919 characters " in text
    assert len(text) < MAX_MESSAGE_CHARS + 100


def test_a_long_traceback_loses_its_middle(written: io.StringIO) -> None:
    try:
        raise ValueError("y" * 1_000_000)
    except ValueError:
        logging.getLogger("a.library").exception("failed")
    text = written.getvalue()
    assert text.startswith("ERROR failed\nTraceback")
    assert "raise ValueError" in text
    assert len(text) < MAX_TRACEBACK_CHARS + 200


def test_a_short_one_is_whole(written: io.StringIO) -> None:
    logging.getLogger("a.library").warning("\t%s of %d: é", "two", 3)
    assert written.getvalue() == "WARNING \ttwo of 3: é\n"
    try:
        raise KeyError("k")
    except KeyError:
        logging.getLogger("a.library").exception("failed")
    assert written.getvalue().endswith("KeyError: 'k'\n")


@pytest.mark.parametrize("through", ["message", "traceback"])
def test_nobody_begins_a_line(written: io.StringIO, through: str) -> None:
    forged = "a\n2026-01-01 00:00:00,000 ERROR forged\r\x1b[2J"
    log = logging.getLogger("a.library")
    if through == "message":
        log.warning("%s", forged)
    else:
        try:
            raise ValueError(forged)
        except ValueError:
            log.exception("failed")
    assert "forged" in written.getvalue()
    assert not any(line.startswith("2026") for line in written.getvalue().splitlines())
    assert "\r" not in written.getvalue()
    assert "\x1b" not in written.getvalue()
