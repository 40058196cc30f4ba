"""The frontend's machine of replays: requests whose instance is gone go on elsewhere, from the
tokens that their clients have.

A frontend has one such machine for all of its requests. The machine keeps a copy of each live
request as it was sent, and of its outputs, within a limit on all tokens. After a loss it asks for
another instance and sends the request and its outputs there. The outputs are sent next to the
prompt, not as part of it, so that the request stays exactly the same. `why_not` says which requests
cannot be replayed. A request that an instance refused only because that instance had restarted is
also sent again, and that does not count as a replay. Neither does a replay count that went to an
instance which died before it had confirmed that it has the request: when a host dies, its instances
are noticed one after the other, and a request may be sent to several of them that are dead already.

    STANDBY   An instance has the request, or an instance is asked for the first time.
    ASKING    No instance has the request, and another one is asked for.
    PAUSING   No instance has the request; another one is asked for after a pause.
    OVER      There is no copy: the request has ended, or the machine has ended it.

    state             event           next      instructions
    OVER              Arrived         STANDBY   Mark, if it cannot be replayed
    STANDBY           Lost            ASKING    RecordLoss, Ask
                                      OVER      Fail, if it cannot be replayed
    STANDBY           Refused         PAUSING   RecordLoss, WakeAt: twice as late each time
                                      OVER      Fail or Refuse, if asking again would not help
    PAUSING           Woken           ASKING    Ask
    ASKING            NotDispatched   PAUSING   WakeAt
                                      OVER      Fail, when that has lasted for too long
    ASKING            Dispatched      STANDBY   Send
                                      OVER      Decline and Fail, if it cannot be sent any more
    ASKING, PAUSING   Found           STANDBY   RecordFound, CallOff
    STANDBY, ASKING   NotSent         OVER      Fail
    any               Taken           the same
    any               Delivered       the same  Mark, if its tokens are too many to be copied
    ASKING, PAUSING   Over            OVER      CallOff
    STANDBY           Over            OVER

In any other state these events change nothing, as an answer or a timer may come late; a dispatch
that comes late is declined.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from controller.core.load.snapshot import InstanceRef
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.core.settings import ReplayConfig

ASK_AGAIN_S = 0.25
# An instance that restarted refuses requests that were sent to its predecessor. The wait doubles
# each time.
MAX_REFUSALS = 6
AFTER_REFUSAL_S = 0.05
MAX_NOT_TAKEN = 16
"""How many replays in a row may be sent to instances that do not take them without counting against
`max_replays`. The number is larger than the number of instances of a host, so the death of a host
ends no request. It is bounded because a request may kill each engine before the instance's answer
leaves."""


class CopyState(StrEnum):
    STANDBY = "standby"
    ASKING = "asking"
    PAUSING = "pausing"
    OVER = "over"


LOST = frozenset({CopyState.ASKING, CopyState.PAUSING})


class ReplayRefusal(StrEnum):
    """Why a request cannot be replayed. A request without output is dispatched again as it came,
    whatever kind of request it is. A request with outputs must go on with exactly the tokens that
    it would have had."""

    OFF = "off"
    TOO_OFTEN = "too_often"
    NOT_KEPT = "not_kept"
    NO_INSTANCE = "no_instance"
    NOT_TAKEN = "not_taken"
    # Reasons in the request itself, which are known when it comes.
    MULTIMODAL = "multimodal"
    PROMPT_EMBEDS = "prompt_embeds"
    STREAMED_PROMPT = "streamed_prompt"
    FORWARDED = "forwarded"


SENTENCES = {
    ReplayRefusal.OFF: "replays are switched off",
    ReplayRefusal.TOO_OFTEN: "it was replayed as often as allowed",
    ReplayRefusal.NOT_KEPT: "too many tokens were kept for replays already",
    ReplayRefusal.NO_INSTANCE: "no instance could take it in time",
    ReplayRefusal.NOT_TAKEN: "the engine cannot go on with it",
    ReplayRefusal.MULTIMODAL: "it has multimodal input",
    ReplayRefusal.PROMPT_EMBEDS: "its prompt is given as embeddings",
    ReplayRefusal.STREAMED_PROMPT: "its prompt was streamed in",
    ReplayRefusal.FORWARDED: "no other server can go on with an answer that has begun",
}

ALWAYS = frozenset({ReplayRefusal.OFF, ReplayRefusal.TOO_OFTEN, ReplayRefusal.NOT_KEPT})
"""The refusals that also count for a request without output."""


def why_not(
    config: ReplayConfig,
    num_replays: int,
    num_output_tokens: int,
    mark: ReplayRefusal | None,
) -> ReplayRefusal | None:
    """Why a request whose instance died is not replayed now; None if it is replayed. `num_replays`:
    how often it was replayed before. `mark`: a reason that was known when the request came."""
    if config.max_replays == 0:
        return ReplayRefusal.OFF
    if num_replays >= config.max_replays:
        return ReplayRefusal.TOO_OFTEN
    if mark is not None and (num_output_tokens or mark in ALWAYS):
        return mark
    return None


@dataclass(frozen=True, slots=True)
class Replay:
    """A request that was lost with `source_id` and begins again as `attempt` on another instance,
    with `num_tokens` to compute."""

    source_id: str
    num_tokens: int
    attempt: int
    cause_id: str


@dataclass(frozen=True, slots=True)
class RequestLoss:
    """A request that no instance has any more, because `owner` is gone. `what`: what happened, in
    words. `num_tokens`: how many tokens another instance has to compute. `silent_s`: the time since
    the client's last token; None if there was none."""

    owner: InstanceRef
    what: str
    num_tokens: int
    silent_s: float | None
    num_replays: int

    @property
    def cause_id(self) -> str:
        return cause_of(self.owner)


def cause_of(lost: InstanceRef) -> str:
    return f"lost-{lost.instance_id}-{lost.incarnation}"


# -- events --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """A new request. `frames` are what its instance gets; `mark`: why it cannot be replayed once it
    has outputs."""

    request: DispatchRequested
    frames: Sequence[bytes | memoryview]
    mark: ReplayRefusal | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """The client gets these next tokens."""

    request_id: str
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Taken:
    """The instance to which this attempt was sent has taken the request."""

    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Lost:
    """No instance has the request any more, as `owner` is gone or for another reason. `what`: what
    happened, in words. `silent_s`: the time since the client's last token; None if there was
    none. `on_purpose`: the request was taken from its instance so that it goes on elsewhere. That
    does not count as a replay, because the request did not make its engine die."""

    request_id: str
    owner: InstanceRef
    what: str
    silent_s: float | None
    on_purpose: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """An instance has the request after all, because the request had moved before its owner
    died."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    """`owner` does not take the request in this attempt. `retryable`: whether another instance may
    take it."""

    request_id: str
    owner: InstanceRef
    message: str
    retryable: bool
    attempt: int
    silent_s: float | None


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The answer to Ask: `instance` gets the request."""

    dispatch: Dispatch
    instance: InstanceRef


@dataclass(frozen=True, slots=True)
class NotDispatched:
    """The answer to Ask: no instance takes the request now."""

    request_id: str


@dataclass(frozen=True, slots=True)
class NotSent:
    """An `Ask` or a `Send` could not be carried out."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Woken:
    """The time of this WakeAt has come."""

    request_id: str
    time_s: float


@dataclass(frozen=True, slots=True)
class Over:
    """The request has ended in any way."""

    request_id: str


Event = (
    Arrived
    | Delivered
    | Taken
    | Lost
    | Found
    | Refused
    | Dispatched
    | NotDispatched
    | NotSent
    | Woken
    | Over
)


# -- instructions --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Find an instance. The answer is Dispatched or NotDispatched. `request` keeps its place in the
    order, and all of its tokens count as its prompt; its rank is the rank with which it came."""

    request: DispatchRequested


@dataclass(frozen=True, slots=True)
class Send:
    """Give the request to `instance`, which begins `replay.attempt`. `outputs` must be read at
    once, as the machine adds to them."""

    dispatch: Dispatch
    instance: InstanceRef
    request: DispatchRequested
    frames: Sequence[bytes]
    outputs: "array[int]"
    replay: Replay


@dataclass(frozen=True, slots=True)
class Decline:
    """Give this dispatch back, because its request will not come."""

    dispatch: Dispatch


@dataclass(frozen=True, slots=True)
class WakeAt:
    request_id: str
    time_s: float


@dataclass(frozen=True, slots=True)
class CallOff:
    """Stop what Ask or WakeAt began."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Note why the request cannot be replayed, or why it cannot be replayed once it has outputs."""

    request_id: str
    refusal: ReplayRefusal


@dataclass(frozen=True, slots=True)
class RecordLoss:
    request_id: str
    loss: RequestLoss


@dataclass(frozen=True, slots=True)
class RecordFound:
    request_id: str
    num_replays: int


@dataclass(frozen=True, slots=True)
class Fail:
    """End the request, which was lost with `owner` and cannot be replayed."""

    request_id: str
    owner: InstanceRef
    refusal: ReplayRefusal
    message: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """End the request, which no instance takes. `retryable`: its client may send it again."""

    request_id: str
    message: str
    retryable: bool


Instruction = (
    Ask | Send | Decline | WakeAt | CallOff | Mark | RecordLoss | RecordFound | Fail | Refuse
)
Instructions = Sequence[Instruction]


# -- the machine ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Loss:
    owner: InstanceRef
    what: str
    counts: bool
    """Whether the loss counts as a replay. A refusal does not count; neither does the loss of an
    attempt that no instance had taken."""
    asked_s: float | None = None
    """When another instance was first asked for after this loss."""


@dataclass(slots=True)
class _Copy:
    request: DispatchRequested
    frames: Sequence[bytes]
    """The request as it was first sent; empty exactly if its mark is one of ALWAYS."""
    mark: ReplayRefusal | None
    outputs: "array[int]" = field(default_factory=partial(array, "i"))
    """All outputs that were delivered; empty if there is a mark."""
    num_uncopied: int = 0
    """How many delivered outputs are not in `outputs`; 0 unless there is a mark."""
    state: CopyState = CopyState.STANDBY
    attempt: int = 0
    is_taken: bool = True
    """Whether an instance has said that it has this attempt. For the first attempt this is true
    from the start, because an instance only answers the first attempt with the first token."""
    num_not_taken: int = 0
    """How many attempts in a row were lost before an instance had taken them; at most
    MAX_NOT_TAKEN."""
    num_replays: int = 0
    """How often the request was replayed: at most once for each attempt after the first one, plus
    once for a present loss that counts."""
    num_refusals: int = 0
    """How many refusals came in a row, without a token in between; at most MAX_REFUSALS."""
    loss: _Loss | None = None
    """The latest loss; set in the states of LOST."""
    wake_s: float = 0.0
    """While PAUSING: when another instance will be asked for."""

    @property
    def num_copied_tokens(self) -> int:
        return self.request.num_prompt_tokens + len(self.outputs) if self.frames else 0

    @property
    def num_outputs(self) -> int:
        return len(self.outputs) + self.num_uncopied


class ReplayMachine:
    def __init__(self) -> None:
        self.config = ReplayConfig()
        """The limit may be set at any time. Requests that have no copy by then do not get one."""
        self._copies: dict[str, _Copy] = {}
        """The copies of all requests that are not over, by request id."""
        self.num_copied_tokens = 0
        """The tokens of all copies together. They exceed the limit only after the limit was
        lowered."""

    def state(self, request_id: str) -> CopyState:
        copy = self._copies.get(request_id)
        return CopyState.OVER if copy is None else copy.state

    def is_lost(self, request_id: str) -> bool:
        """Whether the request waits for an instance: no instance has it, and its next attempt was
        not sent yet."""
        return self.state(request_id) in LOST

    def may_leave(self, request_id: str) -> bool:
        """Whether the request would go on elsewhere if it were taken from its instance now."""
        copy = self._copies.get(request_id)
        if copy is None or copy.state is not CopyState.STANDBY or not copy.is_taken:
            return False
        return why_not(self.config, 0, copy.num_outputs, copy.mark) is None

    def handle(self, event: Event, now_s: float) -> Instructions:
        """Takes one event in; returns what to do now, in order. Mutates."""
        match event:
            case Delivered(request_id, token_ids):
                return self.delivered(request_id, token_ids)
            case Arrived():
                return self._copy(event)
            case Dispatched():
                return self._dispatched(event)
            case Over(request_id):
                was_lost = self.is_lost(request_id)
                self._forget(request_id)
                return [CallOff(request_id)] if was_lost else []
        copy = self._copies.get(event.request_id)
        if copy is None:
            return []
        match event, copy.state:
            case Taken(attempt=attempt), CopyState.STANDBY if attempt == copy.attempt:
                copy.is_taken, copy.num_not_taken = True, 0
            case Lost() as lost, CopyState.STANDBY:
                return self._lost(lost, copy, now_s)
            case Refused() as refused, CopyState.STANDBY:
                return self._refused(refused, copy, now_s)
            case Woken(time_s=time_s), CopyState.PAUSING if time_s == copy.wake_s:
                return self._ask(copy, now_s)
            case NotDispatched(), CopyState.ASKING:
                return self._not_dispatched(copy, now_s)
            case Found(request_id), CopyState.ASKING | CopyState.PAUSING:
                return self._found(request_id, copy)
            case NotSent(), CopyState.STANDBY | CopyState.ASKING if copy.loss is not None:
                return self._fail(copy, copy.loss.owner, copy.loss.what, ReplayRefusal.NOT_TAKEN)
        return []

    # -- what is copied ------------------------------------------------------------------

    def _copy(self, arrived: Arrived) -> Instructions:
        request, mark = arrived.request, arrived.mark
        if self.config.max_replays == 0:
            mark = ReplayRefusal.OFF
        elif self.num_copied_tokens + request.num_prompt_tokens > self.config.max_tokens_kept:
            mark = ReplayRefusal.NOT_KEPT
        frames = () if mark in ALWAYS else tuple(bytes(frame) for frame in arrived.frames)
        self._copies[request.request_id] = copy = _Copy(request, frames, mark)
        self.num_copied_tokens += copy.num_copied_tokens
        return [] if mark is None else [Mark(request.request_id, mark)]

    def delivered(self, request_id: str, token_ids: Sequence[int]) -> Instructions:
        """The same as `handle` with `Delivered`. It is called for each delivery of each stream, and
        making the event would take longer than the call itself."""
        copy = self._copies.get(request_id)
        if copy is None:
            return ()
        copy.num_refusals, copy.is_taken = 0, True
        if copy.mark is not None:
            copy.num_uncopied += len(token_ids)
            return ()
        copy.outputs.extend(token_ids)
        self.num_copied_tokens += len(token_ids)
        if self.num_copied_tokens <= self.config.max_tokens_kept:
            return ()
        self.num_copied_tokens -= copy.num_copied_tokens
        copy.mark, copy.num_uncopied = ReplayRefusal.NOT_KEPT, len(copy.outputs)
        copy.frames, copy.outputs = (), array("i")
        return [Mark(request_id, copy.mark)]

    def _forget(self, request_id: str) -> None:
        copy = self._copies.pop(request_id, None)
        if copy is not None:
            self.num_copied_tokens -= copy.num_copied_tokens

    # -- what is lost --------------------------------------------------------------------

    def _lost(self, lost: Lost, copy: _Copy, now_s: float) -> Instructions:
        counts = copy.is_taken or copy.num_not_taken == MAX_NOT_TAKEN
        counts = counts and not lost.on_purpose
        num_replays = copy.num_replays if counts else 0
        refusal = why_not(self.config, num_replays, copy.num_outputs, copy.mark)
        if refusal is not None:
            return self._fail(copy, lost.owner, lost.what, refusal)
        if counts:
            copy.num_replays += 1
        elif not lost.on_purpose:
            copy.num_not_taken += 1
        copy.loss = _Loss(lost.owner, lost.what, counts)
        return [_record(copy, copy.loss, lost.silent_s), *self._ask(copy, now_s)]

    def _refused(self, refused: Refused, copy: _Copy, now_s: float) -> Instructions:
        owner, message = refused.owner, refused.message
        if refused.attempt != copy.attempt:
            return []
        if not refused.retryable and copy.num_outputs:
            what = f"instance {owner.instance_id} refused this request as a replay"
            return self._fail(copy, owner, what, ReplayRefusal.NOT_TAKEN, message)
        if not refused.retryable or not copy.frames or copy.num_refusals == MAX_REFUSALS:
            self._forget(refused.request_id)
            return [Refuse(refused.request_id, message, refused.retryable)]
        wait_s = AFTER_REFUSAL_S * 2**copy.num_refusals
        copy.num_refusals += 1
        copy.loss = _Loss(owner, message, counts=False)
        return [_record(copy, copy.loss, refused.silent_s), self._pause(copy, now_s + wait_s)]

    def _found(self, request_id: str, copy: _Copy) -> Instructions:
        assert copy.loss is not None
        copy.num_replays -= copy.loss.counts
        copy.state = CopyState.STANDBY
        return [RecordFound(request_id, copy.num_replays), CallOff(request_id)]

    # -- elsewhere -----------------------------------------------------------------------

    def _ask(self, copy: _Copy, now_s: float) -> Instructions:
        assert copy.loss is not None
        copy.state = CopyState.ASKING
        if copy.loss.asked_s is None:
            copy.loss.asked_s = now_s
        num_tokens = copy.request.num_prompt_tokens + len(copy.outputs)
        return [Ask(replace(copy.request, num_prompt_tokens=num_tokens, replayed=True))]

    def _pause(self, copy: _Copy, until_s: float) -> WakeAt:
        copy.state, copy.wake_s = CopyState.PAUSING, until_s
        return WakeAt(copy.request.request_id, until_s)

    def _not_dispatched(self, copy: _Copy, now_s: float) -> Instructions:
        loss = copy.loss
        assert loss is not None
        assert loss.asked_s is not None
        if now_s - loss.asked_s >= self.config.patience_s:
            return self._fail(copy, loss.owner, loss.what, ReplayRefusal.NO_INSTANCE)
        return [self._pause(copy, now_s + ASK_AGAIN_S)]

    def _dispatched(self, told: Dispatched) -> Instructions:
        dispatch = told.dispatch
        copy = self._copies.get(dispatch.request_id)
        if copy is None or copy.state is not CopyState.ASKING:
            return [Decline(dispatch)]
        loss = copy.loss
        assert loss is not None
        if copy.mark in ALWAYS or (copy.mark is not None and copy.num_outputs):
            # Tokens of the lost attempt have come meanwhile.
            return [Decline(dispatch), *self._fail(copy, loss.owner, loss.what, copy.mark)]
        copy.attempt += 1
        copy.is_taken = False
        copy.state = CopyState.STANDBY
        num_tokens = copy.request.num_prompt_tokens + len(copy.outputs)
        replayed = Replay(loss.owner.instance_id, num_tokens, copy.attempt, cause_of(loss.owner))
        return [Send(dispatch, told.instance, copy.request, copy.frames, copy.outputs, replayed)]

    def _fail(
        self,
        copy: _Copy,
        owner: InstanceRef,
        what: str,
        refusal: ReplayRefusal,
        detail: str | None = None,
    ) -> Instructions:
        request_id = copy.request.request_id
        self._forget(request_id)
        why = f", and it cannot be replayed: {detail or SENTENCES[refusal]}"
        if refusal is ReplayRefusal.OFF:
            why = ""
        return [Fail(request_id, owner, refusal, f"{what}{why}; send it again")]

    # ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        num_tokens = sum(copy.num_copied_tokens for copy in self._copies.values())
        assert num_tokens == self.num_copied_tokens, "copied tokens are counted wrongly"
        for request_id, copy in self._copies.items():
            assert request_id == copy.request.request_id
            assert copy.state is not CopyState.OVER, "a request that is over has a copy"
            assert bool(copy.frames) == (copy.mark not in ALWAYS), "copied in vain, or not copied"
            assert copy.mark is None or not copy.outputs, "copies that can never be used"
            assert copy.mark is not None or not copy.num_uncopied, "an output is missing"
            assert copy.num_refusals <= MAX_REFUSALS
            assert copy.num_not_taken <= MAX_NOT_TAKEN
            assert copy.is_taken or copy.attempt
            loss, is_lost = copy.loss, copy.state in LOST
            assert loss is not None or not (is_lost or copy.attempt)
            counts = is_lost and loss is not None and loss.counts
            assert 0 <= copy.num_replays <= copy.attempt + counts, "a replay too many is counted"
            assert copy.state is not CopyState.ASKING or (loss and loss.asked_s is not None)


def _record(copy: _Copy, loss: _Loss, silent_s: float | None) -> RecordLoss:
    num_tokens = copy.request.num_prompt_tokens + copy.num_outputs
    told = RequestLoss(loss.owner, loss.what, num_tokens, silent_s, copy.num_replays)
    return RecordLoss(copy.request.request_id, told)
