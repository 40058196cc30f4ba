"""`llumctl record-traffic`: lengths, times and hashes of a cluster's requests into a file."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import NotRunningError
from llumctl import connect, durations
from llumctl.commands.options import Cluster
from llumctl.text import output

if TYPE_CHECKING:
    from controller.api.wire.stream import TrafficRequest
    from llumctl.following.traffic_file import TrafficFile

PROGRESS_S = 5.0
PREFIX_HASH_TOKENS = 16
"""As large as the blocks of most engines; the simulator takes engines of any block size."""
KEY_BYTES = 32


def record_traffic(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    duration: Annotated[
        str | None, typer.Option("--for", metavar="10m", help="Stop after that long.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    cluster: Cluster = None,
) -> None:
    """Record the cluster's requests for simulations, until Ctrl-C or until it is stopped.

    Of each request that comes and ends meanwhile: when it came, how many tokens the prompt and the
    answer had, rank and outcome, and hashes of its session and of the prompt's blocks, under a
    random key that is forgotten. No text, no tokens, no ids.
    """
    duration_s = None if duration is None else durations.positive(duration, "--for")
    name = connect.attached(cluster)
    import secrets

    from controller.api.wire.stream import TrafficRequest
    from llumctl.following import traffic_file

    traffic_file.check(file, force=force)
    wanted = TrafficRequest(key=secrets.token_hex(KEY_BYTES), prefix_hash_tokens=PREFIX_HASH_TOKENS)
    _Recorder(file, wanted, force=force).run(name, duration_s)


class _Recorder:
    """The file is made when the controller answers."""

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
        """Writes what comes until the time is over."""
        from llumctl.following import traffic
        from llumctl.following.traffic_file import TrafficFile

        batches = traffic.follow(cluster, self._wanted)
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
