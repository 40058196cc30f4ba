"""A dispatch decision made by asking every instance; the score board must decide the same."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.core.admission.policies import History, Policy
from controller.core.load.freeness import NOTHING_UNREPORTED
from controller.core.load.snapshot import InstanceSnapshot, Level, Unreported
from controller.core.scheduler_events import DispatchRequested


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance that may be chosen."""

    snapshot: InstanceSnapshot
    unreported: Unreported = NOTHING_UNREPORTED


@dataclass(frozen=True, slots=True)
class Choice:
    """The instance chosen, and all that were considered, in the policy's own unit."""

    instance_id: str
    scores: Mapping[str, float]


def choose(
    policy: Policy,
    candidates: Iterable[Candidate],
    level: Level,
    levels: Sequence[Level],
    last: str | None = None,
) -> Choice | None:
    """`choose_for` a request with this level, after the choice of `last`; nothing else of it is
    known."""
    history = History()
    history.last = last
    request = DispatchRequested("r", "f-0", 160, level.rank, 0.0)
    return choose_for(request, level, policy, candidates, levels, history)


def choose_for(
    request: DispatchRequested,
    level: Level,
    policy: Policy,
    candidates: Iterable[Candidate],
    levels: Sequence[Level],
    history: History,
) -> Choice | None:
    """The instance for a new request; None if none may take it.

    Draining instances are left out for every policy. The caller must know that the instances are
    alive and report.
    """
    scores = {
        candidate.snapshot.instance_id: policy.score(
            candidate.snapshot, level, levels, candidate.unreported
        )
        for candidate in candidates
        if not candidate.snapshot.draining
    }
    if not scores:
        return None
    ids = sorted(scores)
    place = policy.pick(ids, [scores[instance_id] for instance_id in ids], request, history)
    return Choice(ids[place], scores)
