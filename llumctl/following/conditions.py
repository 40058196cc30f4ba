"""What `llumctl wait` waits for: conditions read from text and judged by what is so now.

Pure: they are given a status, a request or the drains and say whether the condition holds, what
holds instead, and whether it can still come about.
"""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from controller.api.errors import NotFoundError, UsageError
from controller.api.operations.on_instances import DrainList
from controller.api.wire.requests import ENDED_STATES, RequestState, RequestStatus
from controller.api.wire.status import ClusterState, ClusterStatus, InstanceState
from llumctl import choices

FLAG = "--for"
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
"""State of an instance that the cluster does not have (any more)."""


class Verdict(StrEnum):
    HOLDS = "holds"
    NOT_YET = "not yet"
    NEVER = "never"


@dataclass(frozen=True)
class Judged:
    """`now` says what is so, in words: "instance i-0 is starting"."""

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
        """Raises NotFoundError for a member that the cluster does not have."""
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
    """No request is live, waits anywhere, or is held."""

    def judge(self, status: ClusterStatus) -> Judged:
        at_frontends = sum(item.num_live_reqs for item in status.frontends)
        at_instances = sum(
            (item.num_running_reqs or 0) + (item.num_waiting_reqs or 0) + item.num_unreported_reqs
            for item in status.instances
        )
        # Frontends and instances count the same requests, and hear of them at their own times.
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
    """Nothing is left on the instance and nothing comes: it is safe to delete."""

    instance_id: str

    def judge(self, drains: DrainList, status: Callable[[], ClusterStatus]) -> Judged:
        """`status` is asked for if nobody drains it. Raises NotFoundError for an instance that the
        cluster does not have."""
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
    """Raises UsageError with the nearest form or state that there is."""
    subject, equals, state = text.strip().partition("=")
    kind, _, name = subject.partition("/")
    if text.strip() == "ready":
        return ClusterIs(ClusterState.READY)
    if text.strip() == "idle":
        return Idle()
    if subject == "cluster" and equals:
        return ClusterIs(ClusterState(_state(state, ClusterState, "cluster")))
    if subject == "drained" and equals:
        return Drained(choices.an_id(state, FLAG))
    if kind in ("instance", "frontend") and name and equals:
        gone = [GONE] if kind == "instance" else []
        return MemberIs(
            kind, choices.an_id(name, FLAG), _state(state, [*InstanceState, *gone], kind)
        )
    if kind == "request" and name and equals:
        return RequestIs(
            choices.an_id(name, FLAG), RequestState(_state(state, RequestState, "request"))
        )
    raise _no_condition(text)


def _no_condition(text: str) -> UsageError:
    """An example of what was probably meant, if there is a likeness."""
    kind = text.strip().partition("=")[0].partition("/")[0]
    words = {form.partition("=")[0].partition("/")[0]: form for form in FORMS}
    likely = difflib.get_close_matches(kind.lower(), words, 1)
    meant = f"; did you mean {words[likely[0]]}?" if likely else ""
    return UsageError(f"{FLAG}: {text[:60]!r} is no condition{meant}", f"one of {', '.join(FORMS)}")


def _state(text: str, known: Iterable[str], kind: str) -> str:
    article = "an" if kind == "instance" else "a"
    return choices.one_of(text, known, FLAG, f"a state of {article} {kind}")


def _is(subject: str, state: str, detail: str) -> str:
    return f"{subject} is {state} ({detail})" if detail else f"{subject} is {state}"
