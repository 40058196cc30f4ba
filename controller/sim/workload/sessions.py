"""Sessions: clients that take turns with the model, and send all that was said before with each.

Each turn's prompt is the one before, its answer, and what the client adds: a message, or the output
of a tool. So most of a prompt was computed before, if the request goes where that is still cached.
The client sends a turn only when it has the previous answer and has taken its own time (`gap_s`).
All sessions of one application begin with the same instructions.

`agents` are programs that use tools: dozens of turns of 60,000 tokens in the mean, of which 95% are
cached at best. `chats` are people: short messages, and half a minute between them. Their figures
are ours, chosen to be like Mooncake's tool-and-agent trace and what coding agents report; no trace
of such sessions with their gaps is public.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from controller.core.value import value
from controller.sim.workload.trace import TraceRequest

HASH_TOKENS = 256
ESTIMATED_TTFT_S, ESTIMATED_TPOT_S = 1.0, 0.02
"""By these a turn's arrival is estimated. When it really arrives depends on the cluster."""


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A distribution of positive numbers with a heavy tail. `sigma`: of the logarithm."""

    mean: float
    sigma: float

    def draw(self, rng: np.random.Generator) -> float:
        return float(rng.lognormal(math.log(self.mean) - self.sigma**2 / 2, self.sigma))


@value
class SessionKind:
    """What sessions of one kind are like, in tokens and seconds. `num_applications`: how many
    different beginnings of `shared_tokens` there are. `first`: what the first turn adds to that;
    `added`: what each later one adds to the answer before. When a prompt would exceed
    `max_prompt_tokens`, its client sums the session up and begins anew with a first turn. The
    number of turns is geometric with the mean `mean_turns`."""

    num_applications: int
    shared_tokens: int
    first: LogNormal
    added: LogNormal
    outputs: LogNormal
    gap_s: LogNormal
    mean_turns: float
    max_prompt_tokens: int


KINDS: Mapping[str, SessionKind] = MappingProxyType(
    {
        "agents": SessionKind(
            num_applications=4,
            shared_tokens=12_288,
            first=LogNormal(18_000, 0.8),
            added=LogNormal(2_400, 1.0),
            outputs=LogNormal(400, 0.8),
            gap_s=LogNormal(6.0, 1.2),
            mean_turns=24.0,
            max_prompt_tokens=140_000,
        ),
        "chats": SessionKind(
            num_applications=4,
            shared_tokens=1_536,
            first=LogNormal(400, 1.0),
            added=LogNormal(150, 1.0),
            outputs=LogNormal(300, 0.8),
            gap_s=LogNormal(30.0, 1.0),
            mean_turns=6.0,
            max_prompt_tokens=30_000,
        ),
    }
)
"""The kinds of sessions by the names of their workloads."""


def turns(name: str, begins_s: Iterable[float], seed: int) -> Iterator[TraceRequest]:
    """The turns, by their estimated arrivals, of sessions that begin at these ascending times.
    `name`: of `KINDS`. Each session has random numbers of its own, so that it is the same at any
    rate. Their hashes cover `HASH_TOKENS` tokens."""
    kind = KINDS[name]
    begins = iter(enumerate(begins_s))
    beginning = next(begins, None)
    due: list[tuple[float, int, TraceRequest, Iterator[TraceRequest]]] = []
    """The next turn of each session that has begun."""
    while due or beginning is not None:
        if beginning is not None and (not due or beginning[1] <= due[0][0]):
            number, begin_s = beginning
            coming = _session(kind, number, begin_s, seed)
            heapq.heappush(due, (begin_s, number, next(coming), coming))
            beginning = next(begins, None)
            continue
        _, number, request, coming = heapq.heappop(due)
        yield request
        following = next(coming, None)
        if following is not None:
            heapq.heappush(due, (following.arrival_s, number, following, coming))


def _session(kind: SessionKind, number: int, begin_s: float, seed: int) -> Iterator[TraceRequest]:
    """The turns of one session, at least one."""
    rng = np.random.default_rng([seed, number])
    application = int(rng.integers(kind.num_applications))
    num_turns = int(rng.geometric(1 / kind.mean_turns))
    most = kind.max_prompt_tokens
    arrival_s, gap_s = begin_s, None
    names, num_prompt_tokens, num_begun = list[int](), most + 1, 0
    for _ in range(num_turns):
        if num_prompt_tokens > most:
            num_prompt_tokens = min(most, kind.shared_tokens + _tokens(kind.first, rng))
            names = _names(kind, application, number, num_begun)
            num_begun += 1
        num_output_tokens = _tokens(kind.outputs, rng)
        num_full = num_prompt_tokens // HASH_TOKENS
        num_answered = (num_prompt_tokens + num_output_tokens) // HASH_TOKENS
        yield TraceRequest(
            arrival_s,
            num_prompt_tokens,
            num_output_tokens,
            session=f"session-{number}",
            prefix_hashes=tuple(names[:num_full]),
            answer_hashes=tuple(names[num_full:num_answered]),
            gap_s=gap_s,
        )
        gap_s = kind.gap_s.draw(rng)
        arrival_s += ESTIMATED_TTFT_S + ESTIMATED_TPOT_S * num_output_tokens + gap_s
        num_prompt_tokens += num_output_tokens + _tokens(kind.added, rng)


MAX_BEGUN = 1 << 10


def _names(kind: SessionKind, application: int, session: int, num_begun: int) -> list[int]:
    """The hashes of a text of the greatest length, which begins with the application's
    instructions. `num_begun`: how often this session has begun a text before."""
    most_blocks, num_shared = (
        kind.max_prompt_tokens // HASH_TOKENS,
        kind.shared_tokens // HASH_TOKENS,
    )
    text = kind.num_applications + session * MAX_BEGUN + num_begun % MAX_BEGUN
    shared, own = application * most_blocks, text * most_blocks
    return [*range(shared, shared + num_shared), *range(own + num_shared, own + most_blocks)]


def _tokens(lengths: LogNormal, rng: np.random.Generator) -> int:
    return max(1, round(lengths.draw(rng)))
