"""One request as its frontend knows it, with its history."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum, auto

from controller.core.record.event_log import LoggedEvent


class RequestState(StrEnum):
    DISPATCHING = "dispatching"
    """No instance has the request yet."""
    WAITING = "waiting"
    RUNNING = "running"
    EVICTED = "evicted"
    """The request lost its blocks to memory pressure and waits to run again."""
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


ENDED = frozenset({RequestState.FINISHED, RequestState.ABORTED, RequestState.FAILED})


class Match(IntEnum):
    """How well a request matches a given name; the best match comes first."""

    ID = auto()
    ALIAS = auto()
    """The given name is the client's id for the request, or the parent's id."""
    BEGINNING = auto()
    """The given name is the beginning of the id."""
    SHORTENED = auto()
    """The given name is the id as tables shorten it: `8d36…67f4` of `cmpl-8d36e06fa6a667f4`."""
    NONE = auto()


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. Times are seconds since the epoch, by the frontend's clock.

    `parent_id` is set if one client request became several requests (`n` > 1).
    """

    request_id: str
    client_request_id: str
    parent_id: str | None
    frontend_id: str
    level: str
    state: RequestState
    instance_id: str | None
    incarnation: int | None
    arrival_time_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_evictions: int
    first_token_time_s: float | None
    end_time_s: float | None
    finish_reason: str | None
    """vLLM's finish reason (stop, length), or why the request was aborted or failed."""
    num_moves: int = 0
    rank: int = 0
    num_replays: int = 0
    """How often the request was lost with its instance. Each time it went on, or is to go on, on
    another instance."""
    num_continued: int = 0
    """How often its state was computed again (`EngineEvent.continued`)."""
    not_replayable: str = ""
    """The code of the reason why the request cannot, or could not, go on on another instance; empty
    if it can."""
    adapter: str = ""
    """The name of the request's LoRA adapter; empty without one."""
    model: str = ""
    """The name of its model, if the cluster serves several."""
    last_token_time_s: float | None = None
    history: tuple[LoggedEvent, ...] = ()
    num_forgotten: int = 0
    """How many events are missing between the first and the second half of `history`."""

    def match(self, wanted: str) -> Match:
        return match_names(wanted, self.request_id, self.client_request_id, self.parent_id)


_LISTED_FIRST = (
    RequestState.RUNNING,
    RequestState.EVICTED,
    RequestState.WAITING,
    RequestState.DISPATCHING,
)


ListingOrder = tuple[int, int, float, str]


def listing_order(record: RequestRecord) -> ListingOrder:
    """The sort key of lists of requests. First come the running, then the evicted, then the waiting
    requests, each in the order of their arrival; then the requests that wait at the controller, the
    highest rank first; last the requests that ended, the latest first."""
    if record.state in ENDED:
        assert record.end_time_s is not None
        return (len(_LISTED_FIRST), 0, -record.end_time_s, record.request_id)
    first = -record.rank if record.state is RequestState.DISPATCHING else 0
    place = _LISTED_FIRST.index(record.state)
    return (place, first, record.arrival_time_s, record.request_id)


def match_names(
    wanted: str, request_id: str, client_request_id: str, parent_id: str | None
) -> Match:
    if request_id == wanted:
        return Match.ID
    if wanted in (client_request_id, parent_id):
        return Match.ALIAS
    if request_id.startswith(wanted):
        return Match.BEGINNING
    return Match.SHORTENED if _is_shortened(wanted, request_id) else Match.NONE


def _is_shortened(wanted: str, request_id: str) -> bool:
    """Whether `wanted` is a shortened form of the id: without the id's first words, and with an
    ellipsis for each piece that is left out. The check takes one pass over the id; a regular
    expression could take exponentially long."""
    first, *others = wanted.replace("~", "…").split("…")
    words = [place + 1 for place, char in enumerate(request_id) if char in "-_.:/"]
    if not others:
        return any(request_id[word:] == wanted for word in words)
    begun = (word for word in (0, *words) if request_id.startswith(first, word))
    place = next(begun, len(request_id)) + len(first)
    for piece in others[:-1]:
        begin = request_id.find(piece, place + 1)
        if begin < 0:
            return False
        place = begin + len(piece)
    last = others[-1]
    anything = bool(first) or any(others)
    return anything and request_id.endswith(last) and len(request_id) - len(last) > place


def found_order(wanted: str | None, record: RequestRecord) -> tuple[Match, ListingOrder]:
    """The sort key of a search: first how well a request matches `wanted`, then the order of
    `listing_order`."""
    match = Match.NONE if wanted is None else record.match(wanted)
    return (match, listing_order(record))
