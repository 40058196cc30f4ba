"""The streams of a cluster for commands that go on until somebody ends them, across lost
connections and new controllers: the watch stream, and the traffic for a recording."""

import queue
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from controller.api.errors import LlumctlError, NotRunningError, UnreachableError
from controller.api.text.quantities import printable
from llumctl import connect
from llumctl.text import output

if TYPE_CHECKING:
    from controller.api.wire.stream import Frame, TrafficBatch, TrafficRequest

WAIT_S = 0.2
RETRY_S = 0.5
MAX_HEARD = 4096


def follow(
    cluster: str, after: str, *, status_every_s: float | None = None, patient: bool = False
) -> Iterator["Frame | None"]:
    """Frames after a position as they come, for ever; None whenever there is none for WAIT_S.

    Trouble and its end are told on stderr, once each. `patient` bears with refusals, too.

    Raises:
        NotRunningError: the cluster was stopped.
        LlumctlError: the controller answers, and refuses.
    """
    from controller.api.client import Follower, Lost

    heard: queue.Queue[Frame | Lost] = queue.Queue(MAX_HEARD)
    follower = Follower(
        lambda: connect.client(cluster), heard.put, after=after, status_every_s=status_every_s
    )
    follower.start()
    in_trouble = False
    try:
        while True:
            try:
                item = heard.get(timeout=WAIT_S)
            except queue.Empty:
                yield None
                continue
            if isinstance(item, Lost):
                _raise_what_lasts(item.error, cluster, patient=patient)
                if not in_trouble:
                    output.say(f"{printable(item.error.message)}; trying again")
                in_trouble = True
                continue
            if in_trouble:
                output.say("the controller answers again")
                in_trouble = False
            yield item
    finally:
        follower.stop()


def _raise_what_lasts(error: LlumctlError, cluster: str, *, patient: bool) -> None:
    if isinstance(error, NotRunningError) or not (patient or isinstance(error, UnreachableError)):
        raise error
    connect.check(cluster)


def traffic(cluster: str, wanted: "TrafficRequest") -> Iterator["TrafficBatch | None"]:
    """Batches as they come, at least one a second, for ever; None whenever none could be had.

    Nobody reads beside the caller: what the caller has not taken waits at the controller. Trouble
    and its end are told on stderr, once each.

    Raises:
        NotRunningError: the cluster was stopped.
        UnreachableError: there was no controller from the beginning.
        LlumctlError: the controller answers, and refuses.
    """
    was_heard = in_trouble = False
    while True:
        try:
            with connect.client(cluster) as client:
                for batch in client.traffic(wanted):
                    if in_trouble:
                        output.say("the controller answers again")
                    was_heard, in_trouble = True, False
                    yield batch
        except UnreachableError as error:
            if isinstance(error, NotRunningError) or not was_heard:
                raise
            connect.check(cluster)
            if not in_trouble:
                output.say(f"{printable(error.message)}; trying again")
            in_trouble = True
        yield None
        time.sleep(RETRY_S)
