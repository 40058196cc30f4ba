"""Messages between the controller and its members: who is there and how it goes, and what the
controller has its members observe. Also the base of all messages."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from controller.core.fleet.cluster_spec import AS_STARTED, EngineChange
from controller.core.load.snapshot import InstanceRef, InstanceSnapshot
from controller.core.migration.move_records import MoveInFlight
from controller.core.record.event_log import LoggedEvent
from controller.core.settings import KeyLimits, ReplayConfig
from controller.ports.engine import Emulation, StepPhase

MemberKind = Literal["instance", "frontend"]
Phase = Literal["starting", "active", "failed", "stopped"]


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What one process of the cluster sends to another."""


class EngineInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a frontend must know of the engines to stand in for them."""

    max_model_len: int
    num_gpu_blocks: int
    """Blocks as vLLM counts them: with its null block, which holds no tokens."""
    block_size: int
    supported_tasks: tuple[str, ...]


LAUNCHING = "launching"
IMPORTING = "importing vLLM"
"""Both: the `detail` of a member that starts, before vLLM has seen its arguments."""


class Hello(Message, frozen=True):
    """Member to controller, about once a second: who I am, where, and how far I have got.

    `incarnation` is 0 until the controller has given one. Repeating it lets a restarted
    controller rebuild its table from what its members say.
    """

    kind: MemberKind
    member_id: str
    nonce: str
    incarnation: int
    address: str
    node: str
    pid: int
    phase: Phase
    detail: str = ""
    info: EngineInfo | None = None
    num_live_reqs: int = 0
    up_s: float = 0.0
    ttft_p99_s: float | None = None
    """A frontend's, over the last minute."""
    ttft_p99_by_level_s: Mapping[str, float] = {}
    asks: bool = False
    """Whether it wants a Welcome whatever the controller knows of it."""
    tpot_p99_s: float | None = None
    """Of the requests that ended in the last minute."""
    num_first_tokens: int = 0
    """In the last minute."""
    leaves_in_s: float | None = None
    """How long until this process is ended, whatever it has then; None: not known to be."""
    generation: int | None = None
    """Of its engine's arguments; None: it has not been told which they are."""
    fingerprint: str = ""
    """What its engine has in common with those to which its requests can move."""


class Welcome(Message, frozen=True):
    """Controller to member: your incarnation. `fenced`: drop all that you were running. `engine`:
    the arguments with which an instance's engine starts, if it has not yet."""

    nonce: str
    incarnation: int
    fenced: bool = False
    engine: EngineChange = AS_STARTED


class InstanceEntry(msgspec.Struct, frozen=True, array_like=True):
    instance_id: str
    incarnation: int
    address: str
    info: EngineInfo
    snapshot: InstanceSnapshot | None
    takes_requests: bool = True
    """No order stands against new requests; whether it is stalled is not asked."""

    @property
    def ref(self) -> InstanceRef:
        return InstanceRef(self.instance_id, self.incarnation, self.address)


class Directory(Message, frozen=True):
    """Controller to frontends: the instances that serve, with their last known status.
    `controller`: which process says so."""

    instances: tuple[InstanceEntry, ...]
    controller: str = ""
    num_frontends: int = 1
    room_to_grow_tokens: int | None = None
    """With late binding, where requests are held for want of room: `HoldingConfig`'s. None: they
    are not held."""
    takes_requests: bool = True
    """Whether any instance may get new requests: none may that drains, or is stalled."""
    hold_timeout_s: float = 30.0
    """For how long a request waits while no instance may get it."""

    @property
    def late_binding(self) -> bool:
        return self.room_to_grow_tokens is not None


class StatusPushed(Message, frozen=True):
    """Instance to controller. `last_dispatch_seq`: the highest dispatch that `snapshot` counts."""

    snapshot: InstanceSnapshot
    last_dispatch_seq: int
    num_steps: int
    step_time_s: float
    emulation: Emulation | None = None
    ttft_p99_s: float | None = None
    ttft_p99_by_rank_s: Mapping[int, float] = {}
    moves: tuple[MoveInFlight, ...] = ()
    """Moves of which the instance is the source."""
    num_moves_in: int = 0
    cpu_cores: float | None = None
    """Cores that its process kept busy over the last second or so; None in the first second."""
    busy_s: float = 0.0
    """What its steps took in all, with what lay between steps that followed each other."""


class StatusPull(Message, frozen=True):
    """Controller to instance: push a status now."""


class EventsReported(Message, frozen=True):
    """Member to controller. `num_before`: how many events this incarnation has reported before, so
    that a controller that lagged can count the events that it missed."""

    member_id: str
    incarnation: int
    num_before: int
    events: tuple[LoggedEvent, ...]


class InstanceLost(Message, frozen=True):
    """Controller to frontends and the other instances: this incarnation is gone, and with it its
    requests and its moves."""

    instance_id: str
    incarnation: int


class DrainFrontend(Message, frozen=True):
    """Controller to frontend: answer 503 from now on, and end requests that still run after
    `grace_s`."""

    grace_s: float


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
