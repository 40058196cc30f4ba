"""Messages about moves: between source and destination, with the request's frontend, and between
the controller and a source; also the orders by which a source chooses moves itself.

A hop counts within the attempt that the message names.
"""

import msgspec

from controller.core.emptying.relief import PastMoves
from controller.core.emptying.rounds import HeadOrder, ReliefOrder, RoomOrder
from controller.core.load.snapshot import InstanceRef
from controller.core.migration.move_records import MoveOrder, MovePlan, MoveRecord
from controller.core.migration.ownership import Epoch
from controller.core.migration.protocol import MoveMessage
from controller.runtime.messages.members import Message


class MoveAsked(Message, frozen=True):
    """Controller to the source: move this request, or say what a move would take."""

    query_id: str
    order: MoveOrder
    dry_run: bool = False


class MoveAnswered(Message, frozen=True):
    """Source to controller: a plan, or the record of a move that is over. If it has neither, `code`
    says why the move was not begun."""

    query_id: str
    code: str
    plan: MovePlan | None = None
    record: MoveRecord | None = None


class MoveRefusalAsked(Message, frozen=True):
    """Controller to an instance: which of these requests could not move now, and why?"""

    query_id: str
    request_ids: tuple[str, ...]


class MoveRefusalsAnswered(Message, frozen=True):
    query_id: str
    refusals: tuple[tuple[str, str], ...]
    """(request id, code) of the requests that cannot move."""


class MoveLimitsSet(Message, frozen=True):
    """Controller to instances: how many moves each instance may have, how fast it may copy (None:
    no limit), and whether requests may come from engines that compute with another rounding."""

    max_moves: int
    max_bytes_per_s: float | None
    allow_inexact: bool = False


class PrefixAsked(Message, frozen=True):
    """Destination of a fetch to its source: send what your cache has of a prefix, as the stage
    `key`. Payload frame: the names of its blocks (`ReservedPrefix`). The stage has no blocks if you
    have none of them, or if your engine has another fingerprint. `verify`: tell the digest of what
    you send, too."""

    key: str
    destination: InstanceRef
    fingerprint: str
    verify: bool = False


class PrefixUnwanted(Message, frozen=True):
    """Destination of a fetch to its source: send no more of the stage `key`."""

    key: str


class PrefixDigest(Message, frozen=True):
    """Source of a fetch to its destination: the digest of the blocks that are sent as the stage
    `key`, or of some of them (`sample_of`). Empty if none are sent, or if they cannot be read."""

    key: str
    digest: bytes


class HandoverOrdered(Message, frozen=True):
    """Controller to an instance: hand the prompts that you have cached over to these instances, for
    at most `within_s`. `max_tokens`: how many tokens they may copy; None: as many as they have room
    for. `cause_id`: of the drain or the start for which this is done."""

    cause_id: str
    destinations: tuple[InstanceRef, ...]
    within_s: float
    max_tokens: int | None = None


class PromptOffered(Message, frozen=True):
    """Source of a handover to a destination: copy what you lack of this prompt, within `limit_s`.
    `num_tokens`: so much of it is cached at most. Payload frames: a request with this prompt, as
    its frontend encoded it."""

    key: str
    source: InstanceRef
    num_tokens: int
    limit_s: float


class PromptTaken(Message, frozen=True):
    """Answer to `PromptOffered`. `outcome`: of the fetch. `num_tokens`: how many were copied."""

    key: str
    destination: InstanceRef
    outcome: str
    num_tokens: int


class HandoverEnded(Message, frozen=True):
    """Answer to `HandoverOrdered`: the destinations have `num_prompts` prompts now, and have copied
    `num_tokens` tokens of them in `took_s`. `complete`: nothing is left that another instance could
    use."""

    cause_id: str
    source: InstanceRef
    num_prompts: int
    num_tokens: int
    complete: bool
    took_s: float


class ArrivingRequest(msgspec.Struct, frozen=True, array_like=True):
    """Goes with the first PRE_ALLOC. Payload frames: the request as its frontend encoded it, then
    its output tokens so far as 32-bit integers. `verify_kv`: COMMIT will bring a digest."""

    frontend: str
    attempt: int
    hop: int
    arrival_time_s: float
    fingerprint: str
    verify_kv: bool = False
    past_instances: PastMoves = ()
    """The instances that the request has left by moves."""


class UnconfirmedFrames(msgspec.Struct, frozen=True, array_like=True):
    """Tokens that were sent and that the frontend has not confirmed, in `num_frames` frames of the
    payload."""

    first_index: int
    num_tokens: int
    num_frames: int


class CommittedRequest(msgspec.Struct, frozen=True, array_like=True):
    """Goes with COMMIT. Payload frames: `num_state_frames` frames for the destination's engine,
    then the frames of `unconfirmed`. `digest`: the digest of the copied KV blocks, if it must be
    compared."""

    num_output_tokens: int
    num_state_frames: int
    unconfirmed: tuple[UnconfirmedFrames, ...]
    digest: bytes | None
    record: MoveRecord
    rank_change: int = 0
    """The number of the latest change of the request's rank that the source knows. The frontend
    numbers the changes."""
    rank: int = 0
    evicted_at_s: float | None = None


class MoveEnvelope(Message, frozen=True):
    """Source to destination, and back: a message of the protocol in its envelope."""

    migration_id: str
    request_id: str
    source: InstanceRef
    destination: InstanceRef
    message: MoveMessage
    arriving: ArrivingRequest | None = None
    committed: CommittedRequest | None = None
    differing: tuple[str, ...] = ()
    """In the destination's messages: the parts in which the fingerprints of the engines differ."""


class OfEpoch(Message, frozen=True):
    """A message about a request in an epoch."""

    request_id: str
    hop: int
    attempt: int = 0

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.attempt, self.hop)


class MoveAnnounced(OfEpoch, frozen=True, kw_only=True):
    """Source to frontend: `destination` may own the request soon, in `hop`."""

    destination: InstanceRef


class RequestMoved(OfEpoch, frozen=True, kw_only=True):
    """Destination to frontend: the request is mine from token `began_index` on."""

    owner: InstanceRef
    began_index: int


class RequestNotMoved(OfEpoch, frozen=True):
    """Destination to the frontend that asked for the owner: I do not have the request, and never
    will in `hop`."""


class RequestLost(OfEpoch, frozen=True, kw_only=True):
    """To the frontend, from one of two senders. The source reports: I gave the request to `owner`
    in `hop`, and `owner` died. Or `owner` itself, which the frontend takes for dead, reports: I had
    the request in `hop`, and it ended."""

    owner: InstanceRef


class OwnerAsked(OfEpoch, frozen=True, kw_only=True):
    """Frontend to the announced destination: the source died; do you have the request?"""

    frontend: str


class FenceAsked(OfEpoch, frozen=True, kw_only=True):
    """Source to frontend: read nothing below `hop` for this request, unless it has moved."""

    owner: InstanceRef


class FenceAnswered(OfEpoch, frozen=True, kw_only=True):
    fenced: bool


class OwnerConfirmed(OfEpoch, frozen=True):
    """Frontend to an instance that said `RequestMoved`: I read the request from you in this epoch,
    and grant its source no fence any more."""


class MoveTimed(Message, frozen=True):
    """Destination to frontend, before the first token that it sends: the step of that token took
    `step_time_s`. That token may also be the request's final one. The frontend measures the
    downtime by its own clock."""

    record: MoveRecord
    step_time_s: float


class TransferMessage(Message, frozen=True):
    """Between the KV transfers of two instances. Only the transfers read the payload."""

    sender: InstanceRef


# -- moves that the source chooses -------------------------------------------------------


class ReliefOrdered(Message, frozen=True):
    """Controller to a source, in each round: relieve yourself. Without `relief`: begin no more
    moves. The order ends by itself if no other order follows."""

    round_id: str
    relief: ReliefOrder | None = None


class ReliefFruitless(Message, frozen=True):
    """Source to controller, at most once per order: no request of mine may or can go to this
    destination now, and none is on its way to it. The message names the incarnation of the
    destination that the order named."""

    round_id: str
    source_id: str
    source_incarnation: int
    destination_id: str
    destination_incarnation: int


class HeadMoveOrdered(Message, frozen=True):
    """Controller to an instance: your queue head is to move to the queue of the destination, where
    it fits."""

    order: HeadOrder


class RoomOrdered(Message, frozen=True):
    """Controller to an instance: free this many blocks by moves, or begin no move."""

    order: RoomOrder
