"""The requests that live on an instance: what is known of each, how its outputs get to its
frontend, and the llumlet as moves see it (`MoveHost`). `Emission` sends outputs as they come, and
again if they got lost.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from controller.core.emptying.relief import PastMoves
from controller.core.load.snapshot import InstanceRef
from controller.core.migration.copy_checks import LinkChecks
from controller.core.migration.move_records import MoveRecord
from controller.core.migration.ownership import Epoch
from controller.core.record.event_log import LoggedEvent
from controller.core.record.windows import LatencyWindows, Percentiles
from controller.ports.engine import Engine, Frames, KvBlocks, KvTransfer, StepOutputs
from controller.ports.processes import Mailbox
from controller.runtime.controller_link import ControllerLink
from controller.runtime.messages.codec import encode
from controller.runtime.messages.members import Message
from controller.runtime.messages.move_messages import MoveTimed
from controller.runtime.messages.requests import OutputItem, OutputsEmitted, OutputsMissing

MAX_HOPS = 32
"""How many moves of a request are remembered, and so the largest limit of moves in a minute."""


@dataclass(slots=True)
class PastInstances:
    """The instances that a request has left by moves. Times are in seconds, by the llumlet's clock.

    The list travels with the request. Its times are sent as ages, because clocks differ between
    machines. So the duration of each move, some tens of milliseconds, is missing in the ages.
    """

    _hops: list[tuple[str, float]] = field(default_factory=list)

    @classmethod
    def after(cls, ages: PastMoves, source_id: str, now_s: float) -> "PastInstances":
        """The list for a request that has just come from `source_id` with these `ages`."""
        hops = [(instance_id, now_s - ago_s) for instance_id, ago_s in ages]
        return cls([*hops, (source_id, now_s)][-MAX_HOPS:])

    def ages(self, now_s: float) -> PastMoves:
        return tuple((instance_id, now_s - at_s) for instance_id, at_s in self._hops)


@dataclass(frozen=True, slots=True)
class UnconfirmedOutput:
    """A step's tokens for the request that its frontend has not confirmed: the engine's own object,
    or frames that an earlier source encoded."""

    first_index: int
    num_tokens: int
    body: Any
    encoded: bool = False


@dataclass(slots=True)
class LiveRequest:
    """A request that lives on this instance. `frames`: the request as its frontend encoded it."""

    frontend: str
    attempt: int
    hop: int
    arrival_time_s: float
    frames: Sequence[bytes]
    next_index: int = 0
    unconfirmed: deque[UnconfirmedOutput] = field(default_factory=deque)
    rank: int = 0
    evicted_at_s: float | None = None
    """When the request last lost its blocks, in seconds since the epoch."""
    rank_change: int = 0
    """The number of the latest change of the request's rank that this instance has applied; 0:
    none. The frontend numbers the changes."""
    arrived_by: MoveRecord | None = None
    """The move that brought the request; None after the request's first token on this instance."""
    past_instances: PastInstances = field(default_factory=PastInstances)

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.attempt, self.hop)

    def keep(self, num_tokens: int, body: Any) -> None:
        """Remembers unconfirmed output. To be called before `next_index` counts the tokens."""
        if num_tokens:
            self.unconfirmed.append(UnconfirmedOutput(self.next_index, num_tokens, body))

    def received(self, next_index: int) -> None:
        """Notes that the frontend has received all tokens below `next_index`."""
        outputs = self.unconfirmed
        while outputs and outputs[0].first_index + outputs[0].num_tokens <= next_index:
            outputs.popleft()


@dataclass(frozen=True, slots=True)
class CorruptCopy:
    """A copy whose digest is not that of its source. `cause_id`: names the move or the fetch.
    `what`: in words, what was copied."""

    source: InstanceRef
    cause_id: str
    request_id: str
    what: str
    num_blocks: int


T = TypeVar("T")


class MoveHost(Protocol):
    """The part of the llumlet that moves use, on the event loop's thread."""

    requests: dict[str, LiveRequest]
    transfer: KvTransfer
    blocks: KvBlocks
    fingerprint: str
    allow_inexact: bool
    """Whether a request may come from an engine that computes with another rounding."""
    links: LinkChecks

    @property
    def me(self) -> InstanceRef: ...

    def now_s(self) -> float: ...

    def between_steps(
        self, work: Callable[[Engine], T], then: Callable[[T], None] | None = None
    ) -> None:
        """Runs `work` on the engine's thread before its next step, in the order of the calls;
        `then` gets the result before any output of that step."""

    def push_status(self) -> None:
        """Tells the controller, before the next step, of the room that the calls so far have
        made."""

    def send(self, address: str, message: Message, payload: Sequence[Any] = ()) -> None: ...

    def tell(self, event: LoggedEvent, frontend: str) -> None:
        """Sends an event to the cluster's log and to the request's history at its frontend."""

    def copy_differed(self, copied: "CorruptCopy", frontend: str) -> None:
        """Called when the digest of a copy from another instance is not that of its source. Puts
        the link into quarantine and tells everybody."""

    def prepare(self, frames: Sequence[Any], frontend: str) -> Any:
        """Decodes a request for the engine. Raises ValueError for a request that this engine cannot
        take."""

    def compiling(self, prepared: Any) -> Future[Any] | None:
        """The future of the compilation of a prepared request's grammar."""

    def encode_output(self, output: UnconfirmedOutput, request_id: str) -> Frames:
        """Encodes one request's part of a step's outputs for its frontend."""

    def set_rank(self, request_id: str, rank: int) -> None:
        """Sets the rank of a request on this instance, even during a move."""

    def end(self, request_id: str, epoch: Epoch) -> None:
        """Ends the request, because its client left: frees it here, or has it freed at the instance
        to which it moved in `epoch` or later. If a later attempt of the request is on this
        instance, that attempt goes on."""


# -- outputs, to frontends -------------------------------------------------------------------------


# How many finished requests that arrived by a move are remembered. Outputs that their source sent
# may have been lost with it.
MAX_FINISHED_KEPT = 64
# The least time between two computations of a percentile; statuses are pushed every few
# milliseconds.
PERCENTILE_EVERY_S = 1.0


class Emission:
    """Used on the event loop's thread. `requests` are the llumlet's; a request that finishes is
    removed from them, and `on_finished` is called before its last output is sent."""

    def __init__(
        self,
        member: ControllerLink,
        mailbox: Mailbox,
        engine: Engine,
        requests: dict[str, LiveRequest],
        frontends: Sequence[str],
        on_finished: Callable[[str, LiveRequest], None],
    ) -> None:
        self._member = member
        self._mailbox = mailbox
        self._engine = engine
        self._requests = requests
        self._frontends = frontends
        self._on_finished = on_finished
        self._gone: set[str] = set()
        """Frontends whose processes are gone."""
        self._knows_load: dict[str, None] = {}
        """The frontends that were sent the scheduler's statistics of a busy engine, the latest one
        at the end. vLLM's metrics go on showing these statistics until others come."""
        self._finished: OrderedDict[str, LiveRequest] = OrderedDict()
        self._ttft = LatencyWindows[int]()
        self._ttft_p99: Percentiles[int] = Percentiles()
        self._percentile_at_s = 0.0

    def emit(self, outputs: Sequence[StepOutputs], step_time_s: float) -> None:
        for step in outputs:
            items: list[OutputItem] = []
            timed: list[MoveTimed] = []
            for emitted in step.emitted:
                live = self._requests.get(emitted.request_id)
                if live is None:  # the request was aborted meanwhile
                    continue
                items.append(
                    OutputItem(
                        emitted.request_id,
                        live.attempt,
                        live.hop,
                        live.next_index,
                        emitted.num_tokens,
                        emitted.finish_reason,
                    )
                )
                if live.next_index == 0 and emitted.num_tokens:
                    ttft_s = time.time() - live.arrival_time_s
                    self._ttft.add(time.monotonic(), ttft_s, live.rank)
                if live.arrived_by is not None:
                    timed.append(MoveTimed(live.arrived_by, step_time_s))
                    live.arrived_by = None
                live.keep(emitted.num_tokens, step.body)
                live.next_index += emitted.num_tokens
                if emitted.finish_reason is not None:
                    self._forget_finished(emitted.request_id)
                    self._on_finished(emitted.request_id, live)
            if not items:
                self._tell_load(step.body)
            else:
                frontend = self._frontends[step.frontend_index]
                self._note_reader(frontend)
                for move in timed:
                    self._mailbox.send(frontend, encode(move))
                self._send(frontend, items, self._engine.encode(step.body))

    def _tell_load(self, body: Any) -> None:
        """Sends statistics without tokens, for example of a step in the middle of a long prompt, to
        one frontend. The prefix-cache figures of each message count from the message before."""
        reader = next(reversed(self._knows_load), None)
        if reader is None:
            reader = next((each for each in self._frontends if each not in self._gone), None)
        if reader is not None:
            self._note_reader(reader)
            self._send(reader, (), self._engine.encode(body))

    def _note_reader(self, frontend: str) -> None:
        self._knows_load.pop(frontend, None)
        self._knows_load[frontend] = None

    def tell_rest(self) -> None:
        """Called when the engine has nothing to do. Tells the frontends whose latest statistics
        showed a busy engine."""
        readers, self._knows_load = self._knows_load, {}
        for frontend in readers:
            self._send(frontend, (), self._engine.encode_rest())

    def frontend_lost(self, address: str) -> None:
        """Handles the loss of a frontend. If frontends answer for each other, another frontend
        corrects the statistics that the lost frontend showed."""
        self._gone.add(address)
        if address in self._knows_load:
            del self._knows_load[address]
            heirs = (each for each in self._frontends if each not in self._gone)
            if (heir := next(heirs, None)) is not None:
                self._knows_load.setdefault(heir)

    def send_again(self, missing: OutputsMissing) -> None:
        """Sends missing outputs again, in the request's present epoch, even if an earlier owner
        produced them."""
        live = self._requests.get(missing.request_id) or self._finished.get(missing.request_id)
        if live is None:
            return
        for output in live.unconfirmed:
            if output.first_index < missing.end_index:
                item = OutputItem(
                    missing.request_id,
                    live.attempt,
                    live.hop,
                    output.first_index,
                    output.num_tokens,
                )
                frames = self.encode_output(output, missing.request_id)
                self._send(live.frontend, [item], frames)

    def encode_output(self, output: UnconfirmedOutput, request_id: str) -> Frames:
        return output.body if output.encoded else self._engine.encode_one(output.body, request_id)

    def ttft_p99(self) -> Percentiles[int]:
        """The P99 time to first token, over all requests and by rank."""
        now_s = time.monotonic()
        if now_s >= self._percentile_at_s:
            self._percentile_at_s = now_s + PERCENTILE_EVERY_S
            self._ttft_p99 = self._ttft.percentiles(0.99, now_s)
        return self._ttft_p99

    def _forget_finished(self, request_id: str) -> None:
        live = self._requests.pop(request_id)
        if any(output.encoded for output in live.unconfirmed):
            self._finished[request_id] = live
            if len(self._finished) > MAX_FINISHED_KEPT:
                self._finished.popitem(last=False)

    def _send(self, frontend: str, items: Sequence[OutputItem], payload: Sequence[Any]) -> None:
        member = self._member
        me = InstanceRef(member.member_id, member.incarnation, self._mailbox.address)
        self._mailbox.send(frontend, encode(OutputsEmitted(me, tuple(items))), payload)
