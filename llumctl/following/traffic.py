"""The traffic of a cluster for a recording, across lost connections and new controllers."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from controller.api.errors import NotRunningError, UnreachableError
from controller.api.text.quantities import printable
from llumctl import connect
from llumctl.text import output

if TYPE_CHECKING:
    from controller.api.wire.stream import TrafficBatch, TrafficRequest

RETRY_S = 0.5


def follow(cluster: str, wanted: "TrafficRequest") -> Iterator["TrafficBatch | None"]:
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
