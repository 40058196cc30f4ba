"""Explains to the operator why a cluster did not start."""

import math
import re
from pathlib import Path

from controller.adapters.ray.ray_starts import failure_of
from controller.api.errors import LlumctlError, UsageError
from controller.api.wire.status import ClusterStatus, FrontendStatus, InstanceState, InstanceStatus
from controller.core.start_backoff import MAX_FAILED_STARTS
from controller.main.plan import ClusterPlan

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
