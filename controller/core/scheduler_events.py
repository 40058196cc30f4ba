"""The events of the global scheduler (past tense) and its instructions (imperative)."""

from dataclasses import field
from enum import StrEnum

from controller.core.load.cached_prefixes import CacheReport
from controller.core.load.closed import OPEN, Reasons
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.value import value


@value
class InstanceStarted:
    """A new incarnation of an instance exists. Incarnations of one id only go up. `fingerprint`:
    that of its engine (`refusal_between` in core/migration/refusals.py)."""

    instance_id: str
    incarnation: int
    fingerprint: str = ""


@value
class StatusReported:
    """An instance's llumlet pushed its status, or answered a pull.

    `last_dispatch_seq` is the highest dispatch sequence number among the requests that have reached
    the instance (0: none): the snapshot counts all requests up to that number.
    """

    snapshot: InstanceSnapshot
    last_dispatch_seq: int
    age_s: float = 0.0
    """How old the snapshot is. It counts for the prompts that were computed since then."""
    cache: CacheReport | None = None
    """What the instance's prefix cache has gained and lost; None: nothing."""
    host_cache: CacheReport | None = None
    """What its host cache has gained and lost; None: nothing, or it has none."""


@value
class InstanceDied:
    """This incarnation will never run anything again."""

    instance_id: str
    incarnation: int


@value
class InstanceRemoved:
    """The instance was terminated on purpose; its id may be forgotten."""

    instance_id: str


@value
class InstanceStalled:
    """This incarnation reports no progress (`fleet.liveness`). The stall ends with the instance's
    next status, or with an InstanceStalled that has `over` set."""

    instance_id: str
    incarnation: int
    over: bool = False


@value
class ClosedBy:
    """The spec's reasons against the instance changed. They are now the given ones, for any
    incarnation of the instance; the instance need not be known yet. After a drain the instance gets
    requests again only once its own status no longer says that it drains."""

    instance_id: str
    reasons: Reasons = OPEN


@value
class DispatchRequested:
    """A frontend asks where to send a request. It also asks for a replay, whose outputs so far
    count as prompt, and again when the rank of a waiting request changes.

    `session` names the client or conversation; empty if it is not known. Hash k of `prefix_hashes`
    names the first k blocks of the prompt. A block has `prefix_hash_tokens` tokens; the prompt's
    final block may have fewer. `prefix_hashes` is empty if the hashes are not known.
    """

    request_id: str
    frontend_id: str
    num_prompt_tokens: int
    rank: int
    arrival_time_s: float
    session: str = ""
    prefix_hashes: tuple[int, ...] = ()
    prefix_hash_tokens: int = 0
    replayed: bool = False
    """Whether the request ran on an instance that died. Then neither the limit of waiting requests
    nor the limits of its key apply."""
    api_key: str = ""
    """The hash of its client's API key; empty if the endpoint has no keys."""
    num_live_of_key: int = 0
    """How many live requests of the key the frontend had when this request came, including this
    one; 0 without a key."""
    num_tokens_of_key: int = 0
    """How many tokens the key used at its frontend in the minute before the request came."""
    adapter: int = 0
    """The number of the request's LoRA adapter; 0 without one."""
    hosted_only: bool = False
    """Whether the request cannot be carried over to an attached server (`fleet/attached.py`)."""

    @property
    def order(self) -> tuple[int, float, str, str]:
        """The order in which all waiting requests are sorted: the smallest goes first."""
        return (-self.rank, self.arrival_time_s, self.request_id, self.frontend_id)


@value
class DispatchCancelled:
    """The client went away before the scheduler answered."""

    request_id: str
    frontend_id: str


@value
class FrontendDied:
    """The frontend died, so nobody waits for answers to its requests any more."""

    frontend_id: str


@value
class KeyUsed:
    """What an API key uses at one frontend. `num_live`: its live requests. `num_tokens`: tokens of
    prompts and outputs in the last minute. `num_ended`, `num_ended_tokens`: requests that had an
    instance and ended since the frontend began, and their output tokens. `num_running`,
    `num_running_tokens`: live requests with output, and their output tokens."""

    key: str
    num_live: int
    num_tokens: int
    num_ended: int
    num_ended_tokens: int
    num_running: int
    num_running_tokens: int


@value
class KeysTold:
    """A frontend reports what these API keys use at this frontend. The use of all other keys has
    not changed since the frontend's previous message."""

    frontend_id: str
    keys: tuple[KeyUsed, ...]


@value
class Ticked:
    """Time has passed. The scheduler needs this event about every second while requests wait."""


Event = (
    InstanceStarted
    | StatusReported
    | InstanceDied
    | InstanceRemoved
    | InstanceStalled
    | ClosedBy
    | DispatchRequested
    | DispatchCancelled
    | FrontendDied
    | KeysTold
    | Ticked
)


@value
class Fetch:
    """Before the request is computed, copy what this incarnation has cached of its prompt, up to
    `num_tokens` tokens. If it is the incarnation that computes the request, it has them in its host
    cache. `limit_s`: after this time it is sooner to compute them. Without an instance, another
    fetch is already under way for an earlier request that begins alike: the request is computed
    after it."""

    instance_id: str
    incarnation: int
    num_tokens: int
    limit_s: float


THE_EARLIER_FETCH = Fetch("", 0, 0, 0.0)


@value
class Dispatch:
    """Send the request with `seq` to this incarnation; any other incarnation refuses it. The
    scheduler counts `seq` from 1, and `candidates` shows how it chose. If the frontend chose the
    instance by itself, `seq` is 0."""

    request_id: str
    frontend_id: str
    instance_id: str
    incarnation: int
    seq: int
    candidates: tuple[tuple[str, float], ...] = field(default=(), compare=False, repr=False)
    """(instance id, score): first the chosen instance, then the best other instances, the best
    first."""
    policy: str = field(default="", compare=False)
    num_considered: int = field(default=0, compare=False)
    fetch: Fetch | None = None


class RejectCode(StrEnum):
    OVERLOADED = "overloaded"
    """Too many requests wait, and this one is the newest of the lowest rank among them."""
    UNAVAILABLE = "unavailable"
    """No instance became schedulable in time."""
    LIVE_LIMIT = "live_limit"
    """The API key has as many live requests as it may have."""
    TOKEN_LIMIT = "token_limit"
    """The API key has used its tokens of this minute."""
    LATE = "late"
    """The request has waited as long as its level says until the first token should come."""


@value
class Reject:
    """Answer the request with an error. The request may have waited before."""

    request_id: str
    frontend_id: str
    code: RejectCode
    retry_after_s: int = 1
    """In how many seconds the client should try again: an estimate (`DrainRate`). If no instance
    took requests, the client may try again at once, because the request would then wait at the
    controller again."""
    rank: int = field(default=0, compare=False)


@value
class AskCache:
    """Ask this incarnation to start over with the reports of its caches. The scheduler does
    not know all reports so far, because one was lost or the controller has started again."""

    instance_id: str
    incarnation: int


Instruction = Dispatch | Reject | AskCache
