"""Messages about requests and their tokens: dispatch, hand-over to an instance, outputs, questions,
orders for one request, and recordings of traffic."""

import msgspec

from controller.core.load.snapshot import InstanceRef
from controller.core.record.event_log import LoggedEvent
from controller.core.record.request_record import RequestRecord, RequestState
from controller.core.scheduler_events import (
    Dispatch,
    DispatchCancelled,
    DispatchRequested,
    KeysTold,
    Reject,
)
from controller.runtime.messages.members import Message


class RequestEvents(Message, frozen=True):
    """Instance to a frontend: events about requests of this frontend."""

    events: tuple[LoggedEvent, ...]


class RequestsAsked(Message, frozen=True):
    """Controller to frontends: which requests do you have? `matching`: an id, the client's own id,
    the beginning of an id, or an id as tables shorten it. `request_ids`: whole ids; None means all.
    With `history`, the answer has each request's events."""

    query_id: str
    instance_id: str | None
    states: tuple[RequestState, ...]
    matching: str | None
    history: bool
    max_requests: int
    request_ids: frozenset[str] | None = None


class RequestsAnswered(Message, frozen=True):
    query_id: str
    frontend_id: str
    requests: tuple[RequestRecord, ...]
    num_matching: int


class DispatchAsked(Message, frozen=True):
    asked: DispatchRequested


class DispatchWithdrawn(Message, frozen=True):
    withdrawn: DispatchCancelled


class KeysCounted(Message, frozen=True):
    """Frontend to controller, a few times a second: what API keys use at this frontend, if that has
    changed."""

    told: KeysTold


class Dispatched(Message, frozen=True):
    dispatch: Dispatch


class Refused(Message, frozen=True):
    reject: Reject


class FetchFrom(msgspec.Struct, frozen=True, array_like=True):
    """Before the request is computed, copy what `source` has cached of the first `num_tokens`
    tokens of its prompt. `limit_s`: after this time it is sooner to compute them. Without a source,
    wait for the fetch that is under way (`scheduler_events.Fetch`)."""

    source: InstanceRef | None
    num_tokens: int
    num_prompt_tokens: int
    limit_s: float


class AddRequest(Message, frozen=True):
    """Frontend to instance. Payload frames: the engine's own encoding of the request. If the
    request had `num_output_tokens` elsewhere, they are in one more frame, as 32-bit integers. A
    higher attempt replaces an older one on the instance."""

    request_id: str
    reply_to: str
    incarnation: int
    dispatch_seq: int
    arrival_time_s: float = 0.0
    attempt: int = 0
    hop: int = 0
    rank: int = 0
    num_output_tokens: int = 0
    adapter: int = 0
    """The number of the request's LoRA adapter; 0 without one."""
    fetch: FetchFrom | None = None


class DispatchUnused(Message, frozen=True):
    """Frontend to instance: no request will come for this dispatch, so count the dispatch as
    reported."""

    incarnation: int
    dispatch_seq: int


class AbortRequests(Message, frozen=True):
    request_ids: tuple[str, ...]


class OutputItem(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of one request in a payload: `num_tokens` from `first_index` in (attempt, hop)."""

    request_id: str
    attempt: int
    hop: int
    first_index: int
    num_tokens: int
    finish_reason: str | None = None


class OutputsEmitted(Message, frozen=True):
    """Instance to frontend. Payload frames: the engine's own encoding of the outputs, item by
    item."""

    sender: InstanceRef
    items: tuple[OutputItem, ...]


class OutputsReceived(Message, frozen=True):
    """Frontend to instance, from time to time: for each request, (request id, index of the next
    token that the frontend lacks)."""

    items: tuple[tuple[str, int], ...]


class OutputsUnread(Message, frozen=True):
    """Frontend to an instance whose outputs it does not read, and never will: (request id, attempt,
    hop). The request is over for its client, or another instance owns it, or the frontend took the
    instance for dead."""

    items: tuple[tuple[str, int, int], ...]


class OutputsMissing(Message, frozen=True):
    """Frontend to the request's owner: these tokens, which an earlier owner sent, did not come."""

    request_id: str
    first_index: int
    end_index: int


class ReplayTaken(Message, frozen=True):
    """Instance to frontend: I have taken the request in this attempt, which is not its first
    one."""

    request_id: str
    attempt: int


class RequestRefused(Message, frozen=True):
    """Instance to frontend: I cannot run this request. `retryable`: another instance may."""

    request_id: str
    message: str
    retryable: bool = False
    attempt: int = 0


class ReplayOrdered(Message, frozen=True):
    """Controller to frontends: take these requests from the instance, as far as they can be
    replayed, and replay them elsewhere. `why`: what happens to the instance, in words."""

    instance_id: str
    incarnation: int
    request_ids: tuple[str, ...]
    why: str


# -- orders for one request --------------------------------------------------------------


class RankChangeAsked(Message, frozen=True):
    """Controller to the request's frontend: the request has this rank from now on, wherever it is.
    With `dry_run` the frontend only answers what would change."""

    query_id: str
    request_id: str
    rank: int
    cause_id: str
    actor: str
    reason: str
    dry_run: bool


class RankChangeAnswered(Message, frozen=True):
    """Frontend to controller. `code`: empty, `ended`, or `unknown` if this frontend does not have
    the request. `instance_id`: where the request runs."""

    query_id: str
    code: str = ""
    previous_level: str = ""
    instance_id: str | None = None


class RankSet(Message, frozen=True):
    """Frontend to the request's owner, until it confirms: the request has this rank. `change`
    counts the changes from 1; an older change is ignored."""

    request_id: str
    rank: int
    change: int


class RankConfirmed(Message, frozen=True):
    """Owner to frontend: I have the request, in this attempt and hop, with this change of its
    rank."""

    request_id: str
    change: int
    instance_id: str
    incarnation: int
    hop: int
    attempt: int = 0


class AbortAsked(Message, frozen=True):
    """Controller to the request's frontend: end this request, and its siblings of `n` > 1, wherever
    they are. With `dry_run` the frontend only answers which requests would end."""

    query_id: str
    request_id: str
    cause_id: str
    actor: str
    reason: str
    dry_run: bool


class AbortAnswered(Message, frozen=True):
    """Frontend to controller. `code`: as in RankChangeAnswered. The other fields say how the
    request was before the order; `request_ids`: the request and its live siblings."""

    query_id: str
    code: str = ""
    request_ids: tuple[str, ...] = ()
    state: RequestState | None = None
    instance_id: str | None = None
    num_output_tokens: int = 0


# -- recordings of traffic ---------------------------------------------------------------


class TrafficAsked(Message, frozen=True):
    """Controller to frontends, about once a second while a recording is on: tell of the requests
    that come from now on, with hashes under `key`: one hash for each `num_hash_tokens` tokens. An
    empty key ends the recording."""

    key: bytes
    num_hash_tokens: int = 0


class RequestTraffic(msgspec.Struct, frozen=True, array_like=True):
    """A request that has ended, without its text, its tokens and its ids. `arrival_time_s` is in
    seconds since the epoch. `session` is the hash of its session, empty if it had none.
    `prefix_hashes` has the hashes of its prompt's full blocks, one after the other."""

    arrival_time_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    rank: int
    outcome: RequestState
    session: str
    prefix_hashes: bytes


class TrafficTold(Message, frozen=True):
    """Frontend to controller, several times a second while `key`'s recording is on. `num_before`:
    how many requests of the recording had ended at this frontend before those of this message,
    whether they were reported or lost. `num_live`: how many requests of the recording have not
    ended."""

    key: bytes
    frontend_id: str
    incarnation: int
    num_before: int
    num_live: int
    requests: tuple[RequestTraffic, ...]
