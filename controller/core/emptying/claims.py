"""Claims: who wants an instance empty, and what happens to the instance then.

An instance drains while anybody claims it. Each claimant has one claim at most; the weakest first:

    SlowDrain   the cluster, as the instance steps slowly     it stays, empty
    Drain       an operator                                   it stays, empty
    Restart     an operator, or a rolling restart             another process takes its place
    Remove      a scale-in, by an operator or auto-scaling    it goes for good once it is empty
    Evacuate    a notice that its process will be ended       it goes at its deadline, empty or not

The strongest claim decides what happens once the instance is empty, and at the deadline. When a
claim is taken back, the next one is in force, so nobody has to remember the claims before.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self


@dataclass(frozen=True, slots=True)
class Claim:
    """The base of all claims. Times are seconds since the epoch. `cause_id`: the id of the order
    that made the claim. `deadline_s`: None means that there is no deadline. `on_deadline`: with
    "abort", the claim is taken back at the deadline, and the requests that are left stay on the
    instance. `warm_s`: how much longer the process stays at most once it is empty, before it
    ends: meanwhile it hands what it has cached over to other instances. Not beyond the
    deadline."""

    cause_id: str
    made_s: float
    deadline_s: float | None = None
    on_deadline: Literal["keep", "abort"] = "keep"
    actor: str = ""
    reason: str = ""
    warm_s: float = 0.0

    def is_overdue(self, now_s: float) -> bool:
        """Whether the deadline has passed. `now_s`: seconds since the epoch."""
        return self.deadline_s is not None and now_s >= self.deadline_s

    def like(self, other: "Claim") -> bool:
        """Whether this claim is the same as `other`, apart from who made it and when."""
        return self == replace(other, cause_id=self.cause_id, made_s=self.made_s, actor=self.actor)


@dataclass(frozen=True, slots=True)
class SlowDrain(Claim):
    """The cluster empties an instance that steps slowly. Only an operator decides whether it serves
    again."""


@dataclass(frozen=True, slots=True)
class Drain(Claim):
    """An operator wants the instance empty. Once it is empty it stays as it is: it is neither
    restarted nor removed."""


@dataclass(frozen=True, slots=True)
class Restart(Claim):
    """The instance gets a new process once it is empty. `nonce`: the nonce of the process that is
    to end; the next process has a different one. `at_once`: the process ends at once, whatever
    requests it has. `replays`: requests that cannot move, perhaps because all other engines are
    unlike, are replayed elsewhere when other instances have room for them."""

    nonce: str = ""
    at_once: bool = False
    replays: bool = False


@dataclass(frozen=True, slots=True)
class Remove(Claim):
    """The instance is removed once it is empty, and is not launched again."""


@dataclass(frozen=True, slots=True)
class Evacuate(Claim):
    """The instance's process will be ended at the deadline, which this claim always has. `by`: who
    says so: an operator, the process itself, or a notice about its machine (`notices`)."""

    by: Literal["operator", "process", "machine"] = "operator"


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims to one instance, at least one. The drain lasts from the first claim until no claim
    is left. The drain's id and beginning are those of the first claim. The fields are in the order
    of rising strength.
    """

    drain_id: str
    began_s: float
    slow: SlowDrain | None = None
    operator: Drain | None = None
    restart: Restart | None = None
    scale: Remove | None = None
    notice: Evacuate | None = None

    @classmethod
    def first(cls, claim: Claim) -> Self:
        field: dict[str, Any] = {_FIELDS[type(claim)]: claim}
        return cls(claim.cause_id, claim.made_s, **field)

    def check(self) -> None:
        """Raises ValueError if these claims cannot be the result of making claims and taking them
        back."""
        if not self.weakest_first:
            raise ValueError("a drain that nobody claims")
        if self.notice is not None and self.notice.deadline_s is None:
            raise ValueError("an evacuation without a deadline")
        if self.restart is not None and not self.restart.nonce:
            raise ValueError("a restart of no process")

    @property
    def weakest_first(self) -> tuple[Claim, ...]:
        every = (self.slow, self.operator, self.restart, self.scale, self.notice)
        return tuple(claim for claim in every if claim is not None)

    @property
    def strongest(self) -> Claim:
        return self.weakest_first[-1]

    @property
    def goes(self) -> bool:
        """Whether the instance is removed at the end of the drain."""
        return self.scale is not None or self.notice is not None

    @property
    def restarts(self) -> bool:
        """Whether the instance gets a new process at the end of the drain."""
        return self.restart is not None and not self.goes

    def made_by(self, kind: type[Claim]) -> Claim | None:
        """The claim of this kind, if there is one."""
        claim: Claim | None = getattr(self, _FIELDS[kind])
        return claim

    def with_claim(self, claim: Claim) -> "Claims":
        """Replaces the claim of the same claimant. A second claim to restart names the same process
        as the first claim, because the present process may already be its successor."""
        if isinstance(claim, Restart) and self.restart is not None:
            claim = replace(claim, nonce=self.restart.nonce)
        field: dict[str, Any] = {_FIELDS[type(claim)]: claim}
        return replace(self, **field)

    def without(self, kind: type[Claim]) -> "Claims | None":
        """The claims once the claim of this kind, if there is one, is taken back. None if no claim
        is left."""
        if self.made_by(kind) is None:
            return self
        field: dict[str, Any] = {_FIELDS[kind]: None}
        left = replace(self, **field)
        return left if left.weakest_first else None

    def would_change(self, claim: Claim) -> bool:
        """Whether the claim would change anything. A claim with a deadline always does, as its
        deadline counts from now."""
        before, after = self.made_by(type(claim)), self.with_claim(claim).made_by(type(claim))
        if before is None or after is None or after.deadline_s is not None:
            return True
        return not before.like(after)


_FIELDS: dict[type[Claim], str] = {
    SlowDrain: "slow",
    Drain: "operator",
    Restart: "restart",
    Remove: "scale",
    Evacuate: "notice",
}


def claimed(before: Claims | None, claim: Claim) -> Claims:
    """All claims to the instance once this one is made."""
    return Claims.first(claim) if before is None else before.with_claim(claim)


def why_claimed(now: Claims, before: Claims | None) -> str:
    """The purpose of the drain in words, with the reason given by whoever changed it last. If that
    change made a claim, the reason is the new claim's. If it took a claim back, the reason is that
    of the claim that is in force now."""
    strongest = now.strongest
    made = newest(now, before)
    if before is not None and made is None:
        over = _over(before.strongest)
        what = f"{over}; {_purpose(strongest) or 'it drains on'}" if over else "it drains on"
    else:
        what = _purpose(strongest)
    reason = (made or strongest).reason
    return ": ".join(words for words in (what, reason) if words)


def newest(now: Claims, before: Claims | None) -> Claim | None:
    """The claim that is in `now` and not in `before`; None if the change only took a claim back."""
    known = () if before is None else before.weakest_first
    new = [claim for claim in now.weakest_first if claim not in known]
    return new[-1] if new else None


def _purpose(claim: Claim) -> str:
    if isinstance(claim, Evacuate):
        return "to be evacuated"
    if isinstance(claim, Remove):
        return "to be removed"
    if isinstance(claim, Restart):
        return "to be restarted at once" if claim.at_once else "to be restarted"
    return ""


def _over(claim: Claim) -> str:
    """Words which say that a claim was taken back that would have restarted or removed the instance
    at the end of the drain."""
    if isinstance(claim, Remove):
        return "not to be removed any more"
    return "its restart is over" if isinstance(claim, Restart) else ""
