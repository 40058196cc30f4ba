"""A recording of traffic as a file, private (0600) and written as the traffic comes."""

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from controller.api.errors import LlumctlError, RefusedError
from controller.api.wire.stream import PREFIX_HASH_DIGITS
from controller.sim.workload import trace_files
from controller.sim.workload.trace import TraceRequest

if TYPE_CHECKING:
    from controller.api.wire.stream import RequestTraffic, TrafficBatch


def check(path: Path, *, force: bool) -> None:
    """Raises RefusedError if there is a file that may not be replaced."""
    try:
        found = path.lstat()
    except OSError:  # opening it will tell
        return
    if not stat.S_ISREG(found.st_mode):
        raise RefusedError(f"{path} is there, and is no file that could be replaced")
    if not force:
        raise RefusedError(
            f"{path} exists already: --force replaces it", f"llumctl record-traffic {path} --force"
        )


class TrafficFile:
    """The file holds whole lines only, whenever the recorder is killed or the disk is full.

    Raises:
        RefusedError: there is a file that may not be replaced.
        LlumctlError: the file cannot be written.
    """

    def __init__(
        self, path: Path, prefix_hash_tokens: int, started_s: float, *, force: bool
    ) -> None:
        self.path = path
        self.num_requests = 0
        self.num_lost = 0
        self.num_live = 0
        self.num_breaks = 0
        self._started_s = self._now_s = started_s
        self._num_bytes = 0
        check(path, force=force)
        try:
            if force:
                path.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise self._cannot_write(error) from error
        self._write(trace_files.header_line(prefix_hash_tokens))

    @property
    def lasted_s(self) -> float:
        """By the controller's clock."""
        return max(0.0, self._now_s - self._started_s)

    def add(self, batch: "TrafficBatch") -> None:
        self._now_s = batch.time_s
        self.num_lost += batch.num_lost
        self.num_live = batch.num_live
        known = [request for request in batch.requests if request.num_prompt_tokens]
        self.num_lost += len(batch.requests) - len(known)
        if known:
            self._write("".join(map(self._line, known)))
            self.num_requests += len(known)

    def close(self) -> None:
        """Writes the last line."""
        end = trace_files.end_line(
            round(self.lasted_s, 3),
            num_requests=self.num_requests,
            num_lost=self.num_lost,
            num_live=self.num_live,
            num_breaks=self.num_breaks,
        )
        try:
            self._write(end)
        finally:
            os.close(self._descriptor)

    def _line(self, request: "RequestTraffic") -> str:
        digits = request.prefix_hashes
        finished = request.outcome == trace_files.FINISHED
        return trace_files.request_line(
            TraceRequest(
                round(max(0.0, request.arrival_time_s - self._started_s), 6),
                request.num_prompt_tokens,
                # The step of the prompt makes a token, wanted or not.
                max(int(finished), request.num_output_tokens),
                request.rank,
                request.session,
                tuple(
                    int(digits[place : place + PREFIX_HASH_DIGITS], 16)
                    for place in range(0, len(digits), PREFIX_HASH_DIGITS)
                ),
            ),
            request.outcome,
        )

    def _write(self, lines: str) -> None:
        rest = memoryview(lines.encode())
        num_bytes = self._num_bytes + len(rest)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            os.ftruncate(self._descriptor, self._num_bytes)
            raise self._cannot_write(error) from error
        self._num_bytes = num_bytes

    def _cannot_write(self, error: OSError) -> LlumctlError:
        return LlumctlError(f"cannot write the recording {self.path}: {error.strerror}")
