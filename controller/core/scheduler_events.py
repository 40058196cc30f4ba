"""What the global scheduler is told (past tense) and what it asks for (imperative)."""

from dataclasses import field
from enum import StrEnum

from controller.core.load.closed import OPEN, Reasons
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.value import value


@value
class InstanceStarted:
    """A new incarnation of an instance exists. Incarnations of one id only go up."""

    instance_id: str
    incarnation: int


@value
class StatusReported:
    """An instance's llumlet pushed its status, or answered a pull.

    `last_dispatch_seq` is the highest dispatch sequence number among the requests that have
    reached the instance (0: none): the snapshot counts all up to it.
    """

    snapshot: InstanceSnapshot
    last_dispatch_seq: int


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
    """This incarnation reports no progress (`fleet.liveness`). That ends with its next status, or
    as soon as this is told to be `over`."""

    instance_id: str
    incarnation: int
    over: bool = False


@value
class ClosedBy:
    """What the spec has against the instance from now on, whichever incarnation; the instance need
    not be known yet. One that drained gets requests again once its own status says so too."""

    instance_id: str
    reasons: Reasons = OPEN


@value
class DispatchRequested:
    """A frontend asks where to send a request. It asks again for a replay, of which the outputs so
    far count as prompt, and if the rank changed while the request was held.

    `session` names the client or conversation; empty: not known. Each of `prefix_hashes` names the
    prompt from its beginning to the end of one more block of `prefix_hash_tokens` tokens, the last
    of which the prompt's end may cut. Empty: not known.
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
    """It ran on an instance that died: no limit of what may be held, or of its key, applies."""
    api_key: str = ""
    """The hash of its client's API key; empty: the endpoint has none."""
    num_live_of_key: int = 0
    """Requests of the key at its frontend when it came, with it; 0 without a key."""
    num_tokens_of_key: int = 0
    """Tokens that the key used there in the minute before."""

    @property
    def order(self) -> tuple[int, float, str, str]:
        """In which requests wait, wherever that is: the smallest goes first."""
        return (-self.rank, self.arrival_time_s, self.request_id, self.frontend_id)


@value
class DispatchCancelled:
    """The client went away before an answer came."""

    request_id: str
    frontend_id: str


@value
class FrontendDied:
    """Nobody waits for the answers to this frontend's requests any more."""

    frontend_id: str


@value
class KeyUsed:
    """What an API key uses of one frontend: live requests and tokens of the last minute (prompts
    and outputs); since the frontend began, how many requests that had an instance ended, and what
    those put out; of the live ones, how many have put out something, and how much."""

    key: str
    num_live: int
    num_tokens: int
    num_ended: int
    num_ended_tokens: int
    num_running: int
    num_running_tokens: int


@value
class KeysTold:
    """A frontend says what these keys use of it. Keys that it does not name use what they did."""

    frontend_id: str
    keys: tuple[KeyUsed, ...]


@value
class Ticked:
    """Time passed. The scheduler needs this every second or so while it holds requests."""


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
class Dispatch:
    """Send the request with `seq` to this incarnation; any other one refuses it. The scheduler
    counts `seq` from 1 and says how it chose; a frontend that chose alone gives 0."""

    request_id: str
    frontend_id: str
    instance_id: str
    incarnation: int
    seq: int
    candidates: tuple[tuple[str, float], ...] = field(default=(), compare=False, repr=False)
    """(instance id, score): the chosen instance, then the best of the others, best first."""
    policy: str = field(default="", compare=False)
    num_considered: int = field(default=0, compare=False)


class RejectCode(StrEnum):
    OVERLOADED = "overloaded"
    """Too many requests are held, and this one is the newest of the lowest rank among them."""
    UNAVAILABLE = "unavailable"
    """No instance became schedulable in time."""
    LIVE_LIMIT = "live_limit"
    """Its API key has as many live requests as it may have."""
    TOKEN_LIMIT = "token_limit"
    """Its API key used its tokens of this minute."""


@value
class Reject:
    """Answer the request with an error. It may have been held until now."""

    request_id: str
    frontend_id: str
    code: RejectCode
    retry_after_s: int = 1
    """When the client may try again: an estimate (`DrainRate`). One that found no
    instance may at once, as it is held again until one comes."""
    rank: int = field(default=0, compare=False)


Instruction = Dispatch | Reject
