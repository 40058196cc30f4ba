"""`llumctl record`: the watch stream into a file, without a screen."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import TimedOutError
from llumctl import config_file, durations, output
from llumctl.commands import watching
from llumctl.commands.options import Cluster

if TYPE_CHECKING:
    from controller.api.recording import RecordingWriter
    from tui.source import LiveSource

WAIT_S = 0.2
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
    """Record the cluster for `llumctl top --replay FILE`, until Ctrl-C."""
    duration_s = None if duration is None else durations.seconds(duration, "--duration")
    watching.check_refresh(refresh)
    name = config_file.cluster_name(cluster)
    watching.check_reachable(name)
    with watching.writer(file, name, refresh) as writer:
        source = watching.live_source(name, refresh, after="latest")
        source.start()
        try:
            _follow(source, writer, duration_s)
        except KeyboardInterrupt:
            if not writer.num_frames:
                raise
        finally:
            source.stop()
    if not writer.num_frames:
        raise TimedOutError(
            f"cluster {name} sent nothing within {duration}: nothing is recorded",
            f"llumctl status --cluster {name}",
        )
    output.say(f"recorded {writer.num_frames} frames in {file}")
    output.say(f"next:  llumctl top --replay {file}")


def _follow(source: "LiveSource", writer: "RecordingWriter", duration_s: float | None) -> None:
    """Writes what comes until the time is over; says what is lost, and when it is back."""
    from tui.state import Arrived, Lost

    started_s = said_s = time.monotonic()
    lost = ""
    while duration_s is None or time.monotonic() - started_s < duration_s:
        for heard in source.wait(WAIT_S):
            if isinstance(heard, Arrived):
                writer.append(heard.frame)
                if lost:
                    lost = ""
                    output.say("connected again")
            elif isinstance(heard, Lost) and heard.reason != lost:
                lost = heard.reason
                output.say(f"lost: {output.visible(lost)}; trying again")
        now_s = time.monotonic()
        if now_s - said_s >= PROGRESS_S:
            said_s = now_s
            output.say(f"{now_s - started_s:.0f} s  {writer.num_frames} frames")
