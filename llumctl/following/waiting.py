"""Asks the controller again and again until a condition holds, cannot hold any more, or the
time is over.

Polling, not the watch stream: each question then ends in time, and one loop serves statuses
and requests, lost connections and controllers that are not there yet.
"""

import time

from controller.api.errors import (
    LlumctlError,
    NotFoundError,
    NotRunningError,
    TimedOutError,
    UnreachableError,
)
from controller.api.text.quantities import latency
from controller.api.wire.status import ClusterState
from llumctl import connect
from llumctl.following.conditions import ClusterIs, Condition, Drained, Judged, RequestIs, Verdict
from llumctl.text import output

POLL_S = 0.25
# A question about drains makes the controller ask every frontend and every draining instance.
DRAINS_POLL_S = 1.0
# A question gets this long however little time is left.
LEAST_TIMEOUT_S = 0.5


def wait(cluster: str, condition: Condition, wanted: str, timeout_s: float) -> str:
    """Returns what is so when the condition holds, in words.

    A wait for a ready cluster may begin before there is a controller; for any other condition one
    must answer at first. Once it has answered it may be gone for a while. An instance that goes
    while its drain is waited for was drained (scale-in).

    Raises:
        TimedOutError: naming `wanted` and what holds instead.
        LlumctlError: it can never hold.
        NotFoundError: there is no such instance or request.
        UnreachableError: no controller answers, or the cluster was stopped.
    """
    deadline_s = time.monotonic() + timeout_s
    expected = timeout_s > 0 and condition == ClusterIs(ClusterState.READY)
    answered = False
    trouble = ""
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            judged = _ask(cluster, condition, left_s)
            answered, trouble, now = True, "", judged.now
            if judged.verdict is Verdict.HOLDS:
                return now
            if judged.verdict is Verdict.NEVER:
                raise LlumctlError(f"{wanted} cannot come about any more: {now}", _look(condition))
        except NotFoundError:
            if not (answered and isinstance(condition, Drained)):
                raise
            return f"instance {condition.instance_id} is gone"
        except UnreachableError as error:
            stopped = answered and isinstance(error, NotRunningError)
            if stopped or not (answered or expected):
                raise
            if not trouble:
                output.say(f"{error.message}; waiting for it")
            trouble = now = error.message
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            within = f"did not come about within {latency(timeout_s)}"
            raise TimedOutError(
                f"{wanted} {within if timeout_s else 'does not hold'}: {now}", _look(condition)
            )
        pause_s = DRAINS_POLL_S if isinstance(condition, Drained) else POLL_S
        time.sleep(min(pause_s, left_s))


def _ask(cluster: str, condition: Condition, left_s: float) -> Judged:
    timeout_s = min(connect.DEFAULT_TIMEOUT_S, max(left_s, LEAST_TIMEOUT_S))
    with connect.client(cluster, timeout_s) as client:
        if isinstance(condition, RequestIs):
            return condition.judge(client.request(condition.reference))
        if isinstance(condition, Drained):
            return condition.judge(client.drains(), client.status)
        return condition.judge(client.status())


def _look(condition: Condition) -> str:
    if isinstance(condition, RequestIs):
        return f"llumctl requests {condition.reference}"
    return "llumctl status"
