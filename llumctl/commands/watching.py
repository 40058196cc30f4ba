"""What `top` and `record` share: the way to a running cluster and to a new recording."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from controller.api.errors import UsageError
from llumctl import connect

if TYPE_CHECKING:
    from controller.api.recording import RecordingWriter

MIN_REFRESH_S, MAX_REFRESH_S = 0.1, 60.0


def check_refresh(refresh_s: float) -> None:
    if not MIN_REFRESH_S <= refresh_s <= MAX_REFRESH_S:
        raise UsageError(
            f"--refresh: must be {MIN_REFRESH_S:g} to {MAX_REFRESH_S:g} seconds, not {refresh_s:g}"
        )


def reached(cluster: str) -> str:
    """The cluster's name; of a remote one its controller says it. Raises what `status` would: later
    on, a controller that goes away is waited for."""
    with connect.client(cluster) as client:
        found = client.status()
    return found.cluster if connect.is_url(cluster) else cluster


@contextlib.contextmanager
def writer(path: Path, cluster: str, called: str, refresh_s: float) -> Iterator["RecordingWriter"]:
    """What comes is for the caller to write; the instances' requests are asked for beside it.
    `called`: as `reached` gives it."""
    from controller.api.recorded_requests import RequestRecorder
    from controller.api.recording import RecordingWriter, new_header

    opened = RecordingWriter(path, new_header(called, time.time(), refresh_s))
    requests = RequestRecorder(lambda: connect.client(cluster), opened)
    requests.start()
    try:
        yield opened
    finally:
        requests.stop()
        opened.close()
