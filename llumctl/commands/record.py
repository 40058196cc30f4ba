"""`llumctl record`: the watch stream into a file, without a screen."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import NotRunningError, TimedOutError
from llumctl import connect, durations
from llumctl.commands import watching
from llumctl.commands.options import Cluster
from llumctl.following import following
from llumctl.text import output

if TYPE_CHECKING:
    from controller.api.recording import RecordingWriter

PROGRESS_S = 5.0


def record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    duration: Annotated[
        str | None, typer.Option(metavar="5m", help="Stop after that long.")
    ] = None,
    refresh: Annotated[
        float, typer.Option(metavar="S", help="How many seconds between two statuses.")
    ] = 1.0,
    cluster: Cluster = None,
) -> None:
    """Record the cluster for `llumctl top --replay FILE`, until Ctrl-C or until it is stopped."""
    duration_s = None if duration is None else durations.seconds(duration, "--duration")
    watching.check_refresh(refresh)
    name = connect.attached(cluster)
    with watching.writer(file, name, watching.reached(name), refresh) as writer:
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
    """Writes what comes until the time is over."""
    started_s = said_s = time.monotonic()
    for frame in following.follow(cluster, "latest", status_every_s=refresh_s, patient=True):
        if frame is not None:
            writer.append(frame)
        now_s = time.monotonic()
        if duration_s is not None and now_s - started_s >= duration_s:
            return
        if now_s - said_s >= PROGRESS_S:
            said_s = now_s
            output.say(f"{now_s - started_s:.0f} s  {writer.num_frames} frames")
