"""The file that says that this machine will be taken away (`evacuate.notice_file`)."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from controller.core.emptying.notices import MAX_NOTICE_BYTES, within_of

log = logging.getLogger(__name__)


class NoticeFile:
    """Reads the file. A number of seconds in it counts from when these contents were first read."""

    def __init__(
        self, path: str | Path, notice_s: float, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._path = Path(path)
        self._notice_s = notice_s
        self._wall_clock = wall_clock
        self._seen: tuple[int, bytes] | None = None
        """When the file was written, and its contents, as they were read last."""
        self._leaves_at_s: float | None = None

    @property
    def why(self) -> str:
        return f"file {self._path} on its machine"

    def leaves_in_s(self) -> float | None:
        """How long until the machine is left, negative once that moment has passed; None if the
        file is missing, or says that the machine stays. A file that cannot be read or understood is
        no notice; that is logged once."""
        try:
            with self._path.open("rb") as file:
                seen = os.fstat(file.fileno()).st_mtime_ns, file.read(MAX_NOTICE_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            self._seen = self._leaves_at_s = None
            return None
        except OSError as error:
            self._seen = self._is_no_notice((0, str(error).encode()), error.strerror or str(error))
            return None
        if seen != self._seen:
            self._take(seen)
        if self._leaves_at_s is None:
            return None
        return self._leaves_at_s - self._wall_clock()

    def _take(self, seen: tuple[int, bytes]) -> None:
        now_s = self._wall_clock()
        try:
            if len(seen[1]) > MAX_NOTICE_BYTES:
                raise ValueError(f"more than {MAX_NOTICE_BYTES} bytes")
            within_s = within_of(seen[1].decode(), now_s, self._notice_s)
        except (ValueError, RecursionError) as error:
            self._is_no_notice(seen, str(error) or type(error).__name__)
            within_s = None
        self._seen = seen
        self._leaves_at_s = None if within_s is None else now_s + within_s

    def _is_no_notice(self, seen: tuple[int, bytes], why: str) -> tuple[int, bytes]:
        if seen != self._seen:
            log.warning(
                "%s is no notice: %s. It is to be empty, or to have a number of seconds or a moment"
                " like 2026-01-31T12:00:00Z",
                self._path,
                why,
            )
        self._leaves_at_s = None
        return seen
