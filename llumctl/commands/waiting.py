"""Waits until a condition is true, for `llumctl status --wait` and `llumctl scale --wait`.

A condition is read from text. Given a status, a request or the drains, it says whether it is true,
what is true instead, and whether it can still become true.

`wait` polls the controller, and does not use the watch stream: so each question ends in time, and
one loop serves statuses, requests, lost connections and controllers that do not run yet.
"""

import difflib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from controller.api.errors import (
    LlumctlError,
    NotFoundError,
    NotRunningError,
    TimedOutError,
    UnreachableError,
    UsageError,
)
from controller.api.operations.on_instances import DrainList
from controller.api.text.quantities import latency
from controller.api.wire.requests import ENDED_STATES, RequestState, RequestStatus
from controller.api.wire.status import ClusterState, ClusterStatus, InstanceState
from llumctl import arguments, connect, output

POLL_S = 0.25
# A question about drains makes the controller ask every frontend and every draining instance.
DRAINS_POLL_S = 1.0
# Each question may take at least this long, even if less time is left.
LEAST_TIMEOUT_S = 0.5
FLAG = "--wait"
FORMS = (
    "ready",
    "idle",
    "cluster=STATE",
    "instance/ID=STATE",
    "frontend/ID=STATE",
    "request/ID=STATE",
    "drained=ID",
)
GONE = "gone"
"""State of an instance that the cluster does not have, or has no longer."""


class Verdict(StrEnum):
    HOLDS = "holds"
    NOT_YET = "not yet"
    NEVER = "never"


@dataclass(frozen=True)
class Judged:
    """A condition's verdict. `now` says in words what is true: "instance i-0 is starting"."""

    verdict: Verdict
    now: str


@dataclass(frozen=True)
class ClusterIs:
    state: ClusterState

    def judge(self, status: ClusterStatus) -> Judged:
        now = _is(f"cluster {status.cluster}", status.state, status.detail)
        if status.state is self.state:
            return Judged(Verdict.HOLDS, now)
        final = ClusterState.FAILED, ClusterState.STOPPING
        if status.state in final and self.state not in final:
            return Judged(Verdict.NEVER, now)
        return Judged(Verdict.NOT_YET, now)


@dataclass(frozen=True)
class MemberIs:
    """`kind`: instance or frontend."""

    kind: str
    member_id: str
    state: str

    def judge(self, status: ClusterStatus) -> Judged:
        """Whether the member is in the wanted state. Raises NotFoundError for a member that the
        cluster does not have."""
        members = status.instances if self.kind == "instance" else status.frontends
        found = next((item for item in members if item.id == self.member_id), None)
        name = f"{self.kind} {self.member_id}"
        if found is None:
            if self.state == GONE:
                return Judged(Verdict.HOLDS, f"{name} is gone")
            known = ", ".join(item.id for item in members) or "none"
            raise NotFoundError(
                f"there is no {name} in cluster {status.cluster}",
                f"llumctl status      ({self.kind}s: {known})",
            )
        holds = found.state == self.state
        verdict = Verdict.HOLDS if holds else Verdict.NOT_YET
        if found.state is InstanceState.FAILED and self.state not in (found.state, GONE):
            verdict = Verdict.NEVER
        return Judged(verdict, _is(name, found.state, found.detail))


@dataclass(frozen=True)
class Idle:
    """No request is running, waiting or held anywhere."""

    def judge(self, status: ClusterStatus) -> Judged:
        at_frontends = sum(item.num_live_reqs for item in status.frontends)
        at_instances = sum(
            (item.num_running_reqs or 0) + (item.num_waiting_reqs or 0) + item.num_unreported_reqs
            for item in status.instances
        )
        # Frontends and instances count the same requests, but learn of them at different times.
        num_live = max(at_frontends, at_instances, status.num_held_reqs)
        if num_live:
            requests = "1 request is" if num_live == 1 else f"{num_live} requests are"
            return Judged(Verdict.NOT_YET, f"{requests} live")
        return Judged(Verdict.HOLDS, "no request is live")


@dataclass(frozen=True)
class RequestIs:
    reference: str
    state: RequestState

    def judge(self, found: RequestStatus) -> Judged:
        now = _is(f"request {found.id}", found.state, found.finish_reason or "")
        if found.state is self.state:
            return Judged(Verdict.HOLDS, now)
        return Judged(Verdict.NEVER if found.state in ENDED_STATES else Verdict.NOT_YET, now)


@dataclass(frozen=True)
class Drained:
    """The instance has no requests and gets none, so it is safe to delete."""

    instance_id: str

    def judge(self, drains: DrainList, status: Callable[[], ClusterStatus]) -> Judged:
        """Calls `status` if no drain of the instance is going on. Raises NotFoundError for an
        instance that the cluster does not have."""
        name = f"instance {self.instance_id}"
        for found in drains.drains:
            if found.instance_id == self.instance_id:
                if found.safe_to_delete:
                    return Judged(Verdict.HOLDS, f"{name} is drained: safe to delete")
                left = f"{found.num_requests_left} left"
                return Judged(Verdict.NOT_YET, f"{name} is {found.state}, {left}")
        now = MemberIs("instance", self.instance_id, InstanceState.DRAINING).judge(status()).now
        return Judged(Verdict.NOT_YET, f"{now}, and nobody drains it")


Condition = ClusterIs | MemberIs | Idle | RequestIs | Drained


def parse(text: str) -> Condition:
    """Reads a condition. Raises UsageError, which names the nearest form or state."""
    subject, equals, state = text.strip().partition("=")
    kind, _, name = subject.partition("/")
    if text.strip() == "ready":
        return ClusterIs(ClusterState.READY)
    if text.strip() == "idle":
        return Idle()
    if subject == "cluster" and equals:
        return ClusterIs(ClusterState(_state(state, ClusterState, "cluster")))
    if subject == "drained" and equals:
        return Drained(arguments.an_id(state, FLAG))
    if kind in ("instance", "frontend") and name and equals:
        gone = [GONE] if kind == "instance" else []
        return MemberIs(
            kind, arguments.an_id(name, FLAG), _state(state, [*InstanceState, *gone], kind)
        )
    if kind == "request" and name and equals:
        return RequestIs(
            arguments.an_id(name, FLAG), RequestState(_state(state, RequestState, "request"))
        )
    raise _no_condition(text)


def _no_condition(text: str) -> UsageError:
    """The error for a text that is not a condition, with the nearest form if one resembles it."""
    kind = text.strip().partition("=")[0].partition("/")[0]
    words = {form.partition("=")[0].partition("/")[0]: form for form in FORMS}
    likely = difflib.get_close_matches(kind.lower(), words, 1)
    meant = f"; did you mean {words[likely[0]]}?" if likely else ""
    return UsageError(f"{FLAG}: {text[:60]!r} is not a condition ({', '.join(FORMS)}){meant}")


def _state(text: str, known: Iterable[str], kind: str) -> str:
    article = "an" if kind == "instance" else "a"
    return arguments.one_of(text, known, FLAG, f"a state of {article} {kind}")


def _is(subject: str, state: str, detail: str) -> str:
    return f"{subject} is {state} ({detail})" if detail else f"{subject} is {state}"


def wait(cluster: str, condition: Condition, wanted: str, timeout_s: float) -> str:
    """Waits until the condition is true, and then returns in words what is true.

    A wait for a ready cluster may begin before there is a controller; for any other condition the
    controller must answer the first question. Later it may be away for a while. An instance that
    disappears while its drain is waited for counts as drained (scale-in).

    Raises:
        TimedOutError: it names `wanted`, and says what is true instead.
        LlumctlError: the condition can never become true.
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
                raise LlumctlError(f"{wanted} can no longer become true: {now}", _look(condition))
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
            within = f"did not become true within {latency(timeout_s)}"
            raise TimedOutError(
                f"{wanted} {within if timeout_s else 'is not true'}: {now}", _look(condition)
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
