"""A trace: the requests that clients send, in order of their arrivals."""

from dataclasses import dataclass
from itertools import pairwise

from controller.core.value import value


@value
class TraceRequest:
    """`arrival_s` counts from the trace's start. The engine ends the request after exactly
    `num_output_tokens` tokens. `rank` is the scheduling priority; larger goes first.

    `session` names the client or the conversation that sends it; empty: unknown.

    Each of `prefix_hashes` names the prompt from its beginning to the end of one more block of
    `Trace.prefix_hash_tokens` tokens, the last block possibly cut by the prompt's end: two prompts
    with an equal hash agree in all tokens up to there. Empty: the prompt shares nothing.
    """

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    rank: int = 0
    session: str = ""
    prefix_hashes: tuple[int, ...] = ()

    def arriving(self, arrival_s: float) -> "TraceRequest":
        """The same request at another time."""
        return TraceRequest(
            arrival_s,
            self.num_prompt_tokens,
            self.num_output_tokens,
            self.rank,
            self.session,
            self.prefix_hashes,
        )

    def sent_by(self, rank: int, session: str) -> "TraceRequest":
        """The same request of another rank and client."""
        return TraceRequest(
            self.arrival_s,
            self.num_prompt_tokens,
            self.num_output_tokens,
            rank,
            session,
            self.prefix_hashes,
        )


@dataclass(frozen=True, slots=True)
class Trace:
    """`requests` ascend by arrival; the place in the list is a request's identity.

    A request takes about 160 bytes, and 8 for each prefix hash beside the hash itself.

    Raises:
        ValueError: there is no request, they do not ascend, or hashes come without their size.
    """

    name: str
    requests: list[TraceRequest]
    prefix_hash_tokens: int = 0
    """Tokens per prefix hash; 0: there are no hashes."""

    def __post_init__(self) -> None:
        if not self.requests:
            raise ValueError(f"the trace {self.name} holds no request")
        if any(later.arrival_s < r.arrival_s for r, later in pairwise(self.requests)):
            raise ValueError(f"the requests of {self.name} must ascend by arrival_s")
        if self.prefix_hash_tokens < 1 and any(r.prefix_hashes for r in self.requests):
            raise ValueError(
                f"{self.name} has prefix hashes, so prefix_hash_tokens must be positive"
            )

    @property
    def span_s(self) -> float:
        """From the first arrival to the last one."""
        return self.requests[-1].arrival_s - self.requests[0].arrival_s

    @property
    def rate(self) -> float:
        """Requests per second in the mean; 0 where all arrive at once."""
        return (len(self.requests) - 1) / self.span_s if self.span_s > 0 else 0.0
