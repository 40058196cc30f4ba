"""The cluster's events as they come, for ever: over lost connections and new controllers."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from controller.api.errors import UnreachableError
from llumctl import connect, output

if TYPE_CHECKING:
    from controller.api.models import Frame

RETRY_S = 0.5


def follow(cluster: str, after: str) -> Iterator["Frame | None"]:
    """Frames after a position; None while the controller does not answer, again and again.

    Trouble and its end are told on stderr, once each.

    Raises:
        NotRunningError: the cluster was stopped.
    """
    from controller.api.models import EventFrame

    in_trouble = False
    while True:
        try:
            with connect.client(cluster) as client:
                for frame in client.watch(after=after, status_every_s=None):
                    if in_trouble:
                        output.say("the controller answers again")
                        in_trouble = False
                    if isinstance(frame, EventFrame):
                        after = frame.event.position
                    yield frame
        except UnreachableError as error:
            connect.running(cluster)
            if not in_trouble:
                output.say(f"{error.message}; trying again until it does")
            in_trouble = True
        yield None
        time.sleep(RETRY_S)
