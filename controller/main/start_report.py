"""How far a start is, in the operator's words: what `up` waits for and for how long, whether vLLM
has accepted the arguments, and why a start failed."""

import math
import re
from pathlib import Path

from controller.adapters.ray.ray_starts import failure_of
from controller.api.errors import LlumctlError, UsageError
from controller.api.wire.status import ClusterStatus, FrontendStatus, InstanceState, InstanceStatus
from controller.core.start_backoff import MAX_FAILED_STARTS
from controller.main.machine.log_folders import session_logs
from controller.main.plan import ClusterPlan
from controller.runtime.messages.members import IMPORTING, LAUNCHING

FIRST_WORD_S = 5.0
# Each further word comes when 1.5 times the time so far has passed.
FACTOR = 1.5
BEFORE_ARGS = (LAUNCHING, IMPORTING)
"""What a member does before vLLM has its arguments."""
# Parts of vLLM's own messages, and the command that helps.
KNOWN_CAUSES = (
    (
        "KV cache",
        "llumctl up --engine-arg kv_cache_memory_bytes=...      or      "
        "--engine-arg max_model_len=...",
    ),
    ("memory", "llumctl up -n 1      or      --engine-arg max_model_len=..."),
    ("address already in use", "llumctl up --port ..."),
)
TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)
LONG_START_S = 1200
# pydantic adds the value in Python's words and a link to vLLM's sentence.
PYDANTIC_ADDS = re.compile(r"\[type=[^\n]*\]\n|For further information visit \S+")


class Patience:
    """Says now and then what `up` waits for, less often the longer it takes."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._next_s = FIRST_WORD_S

    def word(self, now_s: float, what: str) -> str:
        """The next message; empty if it is too early for one."""
        waited_s = now_s - self._began_s
        if waited_s < self._next_s:
            return ""
        self._next_s = waited_s * FACTOR
        return f"waiting for {what}, {waited_s:.0f} s"


def awaited(status: ClusterStatus | None, log_dir: Path, run: str, temp_dir: str) -> str:
    """The members that do not serve yet; without a status the controller, or Ray before it."""
    if status is not None:
        members: list[InstanceStatus | FrontendStatus] = [*status.instances, *status.frontends]
        absent = [m for m in members if m.state != InstanceState.ACTIVE]
        return ", ".join(f"{m.id} ({m.detail})" if m.detail else m.id for m in absent) or "a report"
    reason, _ = failure_of(log_dir, "controller", run)
    if reason:
        return f"the controller (its last start failed: {reason})"
    if (log_dir / "controller.log").exists():
        return "the controller"
    logs = session_logs(temp_dir)
    if (logs / "raylet.out").exists():
        return "Ray, whose node joins its head and starts the controller's process"
    if (logs / "gcs_server.out").exists():
        return "Ray, whose head comes up"
    return "Ray"


def are_taken(status: ClusterStatus) -> bool:
    """Whether vLLM has accepted the arguments, so that `up --detach` may return.

    vLLM finds many faults of arguments only once it is imported and has built its configuration
    (docs/decisions/0018). All members have the same arguments, so one instance and one frontend
    that have built theirs are enough. `llumctl status` tells of later failures, such as of loading
    weights."""
    return any(map(_has_taken, status.instances)) and any(map(_has_taken, status.frontends))


def _has_taken(member: InstanceStatus | FrontendStatus) -> bool:
    starts = member.state is InstanceState.STARTING
    return member.state is InstanceState.ACTIVE or (starts and member.detail not in BEFORE_ARGS)


def explain_failure(status: ClusterStatus, plan: ClusterPlan) -> LlumctlError:
    """The error of the first member that could not start, in its own words, and a hint."""
    members: list[InstanceStatus | FrontendStatus] = [*status.instances, *status.frontends]
    failed = next(m for m in members if m.state == InstanceState.FAILED)
    log = Path(plan.log_dir) / f"{failed.id}.log"
    return explain_cause(f"{failed.id} could not start {plan.model_name}", failed.detail, log)


def explain_cause(what: str, detail: str, log: Path) -> LlumctlError:
    """`detail`: the exception's type and its text, as an engine reports them."""
    cause = " ".join(PYDANTIC_ADDS.sub("", detail).split())[:600]
    hint = next(
        (hint for part, hint in KNOWN_CAUSES if part.lower() in cause.lower()), f"less {log}"
    )
    wrong_input = cause.startswith(("ValueError", "ValidationError", "TypeError"))
    kind = UsageError if wrong_input else LlumctlError
    return kind(f"{what}: {cause}", hint)


def refuse_given_up(log_dir: Path, run: str) -> None:
    """Raises LlumctlError if the controller died at its start so often that it is given up."""
    reason, given_up = failure_of(log_dir, "controller", run)
    if given_up:
        raise LlumctlError(
            f"the controller could not start, {MAX_FAILED_STARTS} times in a row: {reason}",
            f"less {log_dir / 'controller.log'}",
        )


def head_failure(log_dir: Path, ray_address: str) -> LlumctlError:
    log = log_dir / "head.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    why = lines[-1][:300] if lines else "it said nothing"
    what = f"Ray at {ray_address}" if ray_address else "Ray"
    hint = f"less {log}"
    if TIMED_OUT.search(why):
        hint = f"{retry_command()}      or      {hint}"
    return LlumctlError(f"{what} could not be started or joined: {why}", hint)


def retry_command(waited_s: float = 0.0) -> str:
    """Ray waits for its parts no shorter than `up` does."""
    return f"llumctl up --timeout {max(LONG_START_S, 2 * math.ceil(waited_s))}"
