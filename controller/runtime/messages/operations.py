"""Messages by which operators, or the controller's policies, steer a running cluster."""

import msgspec

from controller.core.emptying.rounds import ReliefOrder
from controller.core.record.request_record import RequestState
from controller.core.settings import KeyLimits, ReplayConfig
from controller.ports.engine import StepPhase
from controller.runtime.messages.message import Message


class ReliefOrdered(Message, frozen=True):
    """Controller to a source, in each round: relieve yourself. Without `relief`: begin no more
    moves. An order ends by itself if no other follows."""

    round_id: str
    relief: ReliefOrder | None = None


class ReliefFruitless(Message, frozen=True):
    """Source to controller, at most once per order: no request of mine may or can go to that
    destination now, and none is on its way there. The destination's incarnation is the order's."""

    round_id: str
    source_id: str
    source_incarnation: int
    destination_id: str
    destination_incarnation: int


class RankChangeAsked(Message, frozen=True):
    """Controller to the request's frontend: the request has this rank from now on, wherever it is.
    With `dry_run`: what would change?"""

    query_id: str
    request_id: str
    rank: int
    cause_id: str
    actor: str
    reason: str
    dry_run: bool


class RankChangeAnswered(Message, frozen=True):
    """Frontend to controller. `code`: empty, `ended`, or `unknown` for a request that is not this
    frontend's. `instance_id`: where the request runs."""

    query_id: str
    code: str = ""
    previous_level: str = ""
    instance_id: str | None = None


class RankSet(Message, frozen=True):
    """Frontend to the request's owner, until it confirms: the request has this rank. `change`
    counts the changes from 1; an older one is ignored."""

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
    they are. With `dry_run`: which ones would end?"""

    query_id: str
    request_id: str
    cause_id: str
    actor: str
    reason: str
    dry_run: bool


class AbortAnswered(Message, frozen=True):
    """Frontend to controller. `code`: as of RankChangeAnswered. The rest is how the request was
    before; `request_ids`: it and its siblings that lived."""

    query_id: str
    code: str = ""
    request_ids: tuple[str, ...] = ()
    state: RequestState | None = None
    instance_id: str | None = None
    num_output_tokens: int = 0


class DrainSet(Message, frozen=True):
    """Controller to instance, when it begins to serve and at each change: whether it drains, takes
    no moves in, and says so in each status. `leaves_in_s`: how long until it is ended, whatever it
    has then; None: once it is empty, or never."""

    draining: bool
    leaves_in_s: float | None = None


class StatusPushSet(Message, frozen=True):
    """Controller to instance: the least time between two of your statuses, and at which phases of a
    step one may go out. No phase: only when you are asked."""

    status_interval_s: float
    phases: tuple[StepPhase, ...] = ("before-return",)


class FrontendLimits(Message, frozen=True):
    """Controller to each frontend: how many requests it may have, and how long each may take.
    None: no limit. `hash_prefixes`: whether the controller goes by which prompts begin alike."""

    max_live_requests: int = 4096
    request_timeout_s: float | None = None
    write_timeout_s: float = 60.0
    hash_prefixes: bool = False
    key_limits: KeyLimits = KeyLimits()
    """Of each API key, in the whole cluster: a frontend goes by its part while the controller is
    away."""
    replay: ReplayConfig = msgspec.field(default_factory=ReplayConfig)
