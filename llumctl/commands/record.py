"""`llumctl record` writes a file: the watch stream for replays or, with `--traffic`, the lengths,
times and hashes of requests for simulations. `llumctl top --record` uses parts of it."""

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import (
    LlumctlError,
    NotRunningError,
    RefusedError,
    TimedOutError,
    UsageError,
)
from llumctl import arguments, connect, output
from llumctl.commands.options import Cluster, Model

if TYPE_CHECKING:
    from controller.api.recording import RecordingWriter
    from controller.api.wire.stream import RequestTraffic, TrafficBatch, TrafficRequest

MIN_REFRESH_S, MAX_REFRESH_S = 0.1, 60.0
DEFAULT_REFRESH_S = 1.0
PROGRESS_S = 5.0
PREFIX_HASH_TOKENS = 16
"""The block size of most engines. The simulator's engines may have any block size."""
KEY_BYTES = 32


def record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    traffic: Annotated[
        bool, typer.Option("--traffic", help="Record requests for llumctl simulate --from FILE.")
    ] = False,
    duration: Annotated[
        str | None, typer.Option(metavar="5m", help="Stop after that long.")
    ] = None,
    refresh: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds between two statuses (1).")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --traffic: replace FILE if it exists.")
    ] = False,
    cluster: Cluster = None,
    model: Model = None,  # noqa: ARG001  # its callback notes it
) -> None:
    """Record the cluster for replays, or its requests for simulations.

    llumctl top --replay FILE shows a recording. Recording goes on until Ctrl-C, or until the
    cluster is stopped. With --traffic the file has, for each request that comes and ends meanwhile:
    its time of arrival, the number of tokens in prompt and answer, rank and outcome, and hashes of
    its session and of the prompt's blocks under a random key, which is then thrown away. It has no
    text, no tokens and no ids.
    """
    if traffic:
        if refresh is not None:
            raise UsageError("--refresh: not with --traffic")
        _record_traffic(file, duration, cluster, force=force)
    else:
        if force:
            raise UsageError("--force: only with --traffic")
        _record_frames(file, duration, DEFAULT_REFRESH_S if refresh is None else refresh, cluster)


def _record_frames(file: Path, duration: str | None, refresh: float, cluster: str | None) -> None:
    duration_s = None if duration is None else arguments.seconds(duration, "--duration")
    check_refresh(refresh)
    name = connect.attached(cluster)
    with new_recording(file, name, reached(name), refresh) as writer:
        try:
            _follow(name, refresh, writer, duration_s)
        except KeyboardInterrupt:
            if not writer.num_frames:
                raise
        except NotRunningError:
            if not writer.num_frames:
                raise
            from controller.api.state.audit import last_stop_words

            output.say(last_stop_words(name))
    if not writer.num_frames:
        raise TimedOutError(
            f"cluster {name} sent nothing within {duration}: nothing is recorded",
            "llumctl status",
        )
    output.say(f"recorded {writer.num_frames} frames in {file}")
    output.say(f"next:  llumctl top --replay {file}")


def _follow(
    cluster: str, refresh_s: float, writer: "RecordingWriter", duration_s: float | None
) -> None:
    """Writes the frames that come until the time is over."""
    started_s = said_s = time.monotonic()
    for frame in connect.follow(cluster, "latest", status_every_s=refresh_s, patient=True):
        if frame is not None:
            writer.append(frame)
        now_s = time.monotonic()
        if duration_s is not None and now_s - started_s >= duration_s:
            return
        if now_s - said_s >= PROGRESS_S:
            said_s = now_s
            output.say(f"{now_s - started_s:.0f} s  {writer.num_frames} frames")


def check_refresh(refresh_s: float) -> None:
    arguments.within(MIN_REFRESH_S, refresh_s, "--refresh", MAX_REFRESH_S)


def reached(cluster: str) -> str:
    """The cluster's name; for a remote cluster, the name that its controller gives. Raises the
    errors of `status`, because a controller that does not answer is waited for only later."""
    with connect.client(cluster) as client:
        found = client.status()
    return found.cluster if connect.is_url(cluster) else cluster


@contextlib.contextmanager
def new_recording(
    path: Path, cluster: str, called: str, refresh_s: float
) -> Iterator["RecordingWriter"]:
    """A new recording, which begins with the controller's history and into which the caller writes
    the frames that come. A thread adds the requests of the instances. `called`: the name that
    `reached` returned."""
    from controller.api.recording import RecordingWriter, RequestRecorder, new_header, past_frames

    with connect.client(cluster) as client:
        before = past_frames(client)
    opened = RecordingWriter(path, new_header(called, time.time(), refresh_s), before)
    requests = RequestRecorder(lambda: connect.client(cluster), opened)
    requests.start()
    try:
        yield opened
    finally:
        requests.stop()
        opened.close()


def _record_traffic(file: Path, duration: str | None, cluster: str | None, *, force: bool) -> None:
    duration_s = None if duration is None else arguments.positive(duration, "--duration")
    name = connect.attached(cluster)
    import secrets

    from controller.api.wire.stream import TrafficRequest

    check_new_file(file, force=force)
    wanted = TrafficRequest(key=secrets.token_hex(KEY_BYTES), prefix_hash_tokens=PREFIX_HASH_TOKENS)
    _TrafficRecorder(file, wanted, force=force).run(name, duration_s)


class _TrafficRecorder:
    """Records traffic into a file, which it makes when the controller first answers."""

    def __init__(self, path: Path, wanted: "TrafficRequest", *, force: bool) -> None:
        self._path = path
        self._wanted = wanted
        self._force = force
        self._file: TrafficFile | None = None

    def run(self, cluster: str, duration_s: float | None) -> None:
        try:
            self._follow(cluster, duration_s)
        except KeyboardInterrupt:
            if self._file is None:
                raise
        except NotRunningError:
            if self._file is None:
                raise
            from controller.api.state.audit import last_stop_words

            output.say(last_stop_words(cluster))
        finally:
            if self._file is not None:
                self._file.close()
                output.say(f"recorded {_counts(self._file)} in {self._path}")
                if self._file.num_requests:
                    output.say(f"next:  llumctl simulate --from {self._path}")

    def _follow(self, cluster: str, duration_s: float | None) -> None:
        """Writes the batches that come until the time is over."""
        batches = connect.traffic(cluster, self._wanted)
        first = next(batches)
        assert first is not None  # else it raises
        num_hash_tokens = self._wanted.prefix_hash_tokens
        file = TrafficFile(self._path, num_hash_tokens, first.time_s, force=self._force)
        self._file = file
        file.add(first)
        is_broken = False
        started_s = said_s = time.monotonic()
        for batch in batches:
            if batch is not None:
                file.add(batch)
            elif not is_broken:
                file.num_breaks += 1
            is_broken = batch is None
            now_s = time.monotonic()
            if duration_s is not None and now_s - started_s >= duration_s:
                return
            if now_s - said_s >= PROGRESS_S:
                said_s = now_s
                output.say(f"{now_s - started_s:.0f} s  {_counts(file)}")


def _counts(file: "TrafficFile") -> str:
    lost = f", {file.num_lost} lost" if file.num_lost else ""
    live = f", {file.num_live} still running" if file.num_live else ""
    return f"{file.num_requests} requests{lost}{live}"


def check_new_file(path: Path, *, force: bool) -> None:
    """Raises RefusedError if there is a file that may not be replaced."""
    try:
        found = path.lstat()
    except OSError:  # if something is wrong, opening the file reports it
        return
    if not stat.S_ISREG(found.st_mode):
        raise RefusedError(f"{path} exists and is not a regular file, so it is not replaced")
    if not force:
        raise RefusedError(
            f"{path} exists already: --force replaces it",
            f"llumctl record {path} --traffic --force",
        )


class TrafficFile:
    """A recording of traffic. The file always has whole lines only, even if the recorder is killed
    or the disk is full.

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
        from controller.sim.workload import trace_files

        check_new_file(path, force=force)
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
        """How long the recording lasted, by the controller's clock."""
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
        """Writes the last line and closes the file."""
        from controller.sim.workload import trace_files

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
        from controller.api.wire.stream import PREFIX_HASH_DIGITS
        from controller.sim.workload import trace_files
        from controller.sim.workload.trace import TraceRequest

        digits = request.prefix_hashes
        finished = request.outcome == trace_files.FINISHED
        return trace_files.request_line(
            TraceRequest(
                round(max(0.0, request.arrival_time_s - self._started_s), 6),
                request.num_prompt_tokens,
                # The step that computes the prompt always yields a token.
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
