"""Messages between the controller and its members: which members exist, how they are, and the
limits that the controller sets. Also the base class of all messages."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from controller.core.admission.traffic import (
    NO_TRAFFIC,
    NOTHING_COUNTED,
    Traffic,
    TrafficCounts,
)
from controller.core.fleet.adapters import Adapter
from controller.core.fleet.cluster_spec import AS_STARTED, EngineChange
from controller.core.load.cached_prefixes import CacheReport
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceRef, InstanceSnapshot, Level
from controller.core.load.step_times import StepLimit
from controller.core.migration.move_records import MoveInFlight
from controller.core.record.event_log import LoggedEvent
from controller.core.record.windows import NOTHING_SERVED, Kept, ServedInAll
from controller.core.settings import KeyLimits, ReplayConfig
from controller.ports.engine import Emulation, StepPhase

MemberKind = Literal["instance", "frontend"]
Phase = Literal["starting", "active", "failed", "stopped"]


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What one process of the cluster sends to another."""


class EngineInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a frontend must know of the engines: vLLM's code in the frontend gets these figures from
    its own engine, which a frontend does not have."""

    max_model_len: int
    num_gpu_blocks: int
    """Blocks as vLLM counts them: with its null block, which holds no tokens."""
    block_size: int
    supported_tasks: tuple[str, ...]


LAUNCHING = "launching"
IMPORTING = "importing vLLM"
"""`LAUNCHING` and this text are the `detail` of a member that starts, before vLLM has seen its
arguments."""


class Hello(Message, frozen=True):
    """Member to controller, about once a second: who I am, where I run, and how far my start has
    got.

    `incarnation` is 0 until the controller has given one. From repeated Hellos a restarted
    controller rebuilds its table of members. `wire`: the sender's `wire_version`. The first fields,
    up to `address`, never change, so that a controller understands the Hello of another version.
    """

    wire: str
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
    """Only from a frontend: the P99 TTFT of the last minute. None from other members, or without
    samples."""
    ttft_p99_by_level_s: Mapping[str, float] = {}
    asks: bool = False
    """Whether the member asks for a Welcome, even if the controller knows it."""
    tpot_p99_s: float | None = None
    """Only from a frontend: the P99 TPOT of the requests that ended in the last minute."""
    num_first_tokens: int = 0
    """Only from a frontend: how many first tokens its clients got in the last minute."""
    kept_targets: Mapping[str, Kept] = {}
    """Only from a frontend: of each level with targets, how many requests kept them in the last
    minute."""
    served: ServedInAll = NOTHING_SERVED
    """Only from a frontend."""
    traffic: TrafficCounts = NOTHING_COUNTED
    """Only from a frontend: what the traffic rules of the member's model did."""
    leaves_in_s: float | None = None
    """How long until this process is ended, whatever requests it has then; None: no end is
    planned."""
    machine: str = ""
    """The launcher's id of the machine on which this process runs; empty if it has none."""
    machine_leaves_in_s: float | None = None
    """How long until the machine of this instance is taken away, by a notice on the machine; None:
    there is no such notice."""
    machine_leaves_why: str = ""
    generation: int | None = None
    """The generation of the arguments of the member's engine; None if the member has not been told
    any arguments yet."""
    fingerprint: str = ""
    """The engine's fingerprint. It is the same for all engines between which requests can move."""
    python: str = ""
    """The Python interpreter that runs an instance; empty if it is that of the cluster's start."""


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
    """Whether no order keeps new requests away from it. The value may be True even for a stalled
    instance."""

    @property
    def ref(self) -> InstanceRef:
        return InstanceRef(self.instance_id, self.incarnation, self.address)


class Directory(Message, frozen=True):
    """Controller to frontends: the instances that serve, with their latest known statuses.
    `controller`: names the controller's process."""

    instances: tuple[InstanceEntry, ...]
    controller: str = ""
    num_frontends: int = 1
    room_to_grow_tokens: int | None = None
    """With late binding: the setting of that name in `HoldingConfig`. None without late binding."""
    takes_requests: bool = True
    """Whether any instance may get new requests; an instance that drains or is stalled may not."""
    hold_timeout_s: float = 30.0
    """How long a request may wait while no instance takes requests."""

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
    """How many cores the instance's process used, on average over about the last second; None in
    the first second."""
    busy_s: float = 0.0
    """The time of all steps of the engine, with the time between steps that followed each other."""
    cache: CacheReport | None = None
    """What the engine's prefix cache has gained and lost since the report before; None: nothing."""
    host_cache: CacheReport | None = None
    """Likewise its host cache; None also if it has none."""
    num_prompt_tokens: int = 0
    """The tokens of all requests that entered the batch (`CacheUse`)."""
    num_cached_tokens: int = 0
    """How many of these tokens came from the prefix cache."""
    num_prompt_tokens_last_minute: int = 0
    num_cached_tokens_last_minute: int = 0
    num_fetched_tokens: int = 0
    """How many of the cached tokens were copied from other instances before."""
    num_fetched_tokens_last_minute: int = 0
    num_loaded_tokens: int = 0
    """How many of the cached tokens were loaded from the host cache before."""
    num_loaded_tokens_last_minute: int = 0


class CacheAsked(Message, frozen=True):
    """Controller to instance: start over with the reports of your prefix cache."""


class StatusPull(Message, frozen=True):
    """Controller to instance: push a status now."""


class EventsReported(Message, frozen=True):
    """Member to controller. `num_before`: how many events this incarnation has reported before, so
    that the controller can count the events that it missed."""

    member_id: str
    incarnation: int
    num_before: int
    events: tuple[LoggedEvent, ...]


class InstanceLost(Message, frozen=True):
    """Controller to frontends and the other instances: this incarnation is gone, together with its
    requests and its moves."""

    instance_id: str
    incarnation: int


class DrainFrontend(Message, frozen=True):
    """Controller to frontend: answer 503 from now on, and end requests that still run after
    `grace_s`."""

    grace_s: float


class DrainSet(Message, frozen=True):
    """Controller to instance, when it begins to serve and at each change: whether it drains. An
    instance that drains takes no moves in, and says in each status that it drains. `leaves_in_s`:
    how long until it is ended, whatever requests it has then; None: it is ended once it is empty,
    or never."""

    draining: bool
    leaves_in_s: float | None = None


class AdaptersSet(Message, frozen=True):
    """Controller to member, when it begins to serve and at each change: the LoRA adapters. An
    instance loads them. A frontend lets clients name those that some instance has loaded, and goes
    on with those that it offers already."""

    adapters: tuple[Adapter, ...]
    next_number: int
    """The number of the next adapter that is loaded."""
    loaded: frozenset[int] = frozenset()
    """The numbers of the adapters that some instance has loaded since this controller started."""


class StatusPushSet(Message, frozen=True):
    """Controller to instance: the least time between two of your statuses, and the phases of a step
    at which one may be sent. Without any phase, send a status only when you are asked."""

    status_interval_s: float
    phases: tuple[StepPhase, ...] = ("before-return",)


class StepTimeSet(Message, frozen=True):
    """Controller to instance: how long your steps may take while requests decode."""

    limit: StepLimit


class FrontendLimits(Message, frozen=True):
    """Controller to each frontend: how many requests it may have, and how long each may take. None:
    no limit. `hash_prefixes`: whether the controller needs to know which prompts begin alike."""

    max_live_requests: int = 4096
    request_timeout_s: float | None = None
    write_timeout_s: float = 60.0
    hash_prefixes: bool = False
    key_limits: KeyLimits = KeyLimits()
    """The limits of each API key in the whole cluster. While the controller is away, each frontend
    applies its share of them."""
    replay: ReplayConfig = msgspec.field(default_factory=ReplayConfig)
    levels: tuple[Level, ...] = DEFAULT_LEVELS
    """The priority levels, with the targets by which goodput is counted."""
    traffic: Traffic = NO_TRAFFIC
    """What other models do for the requests of this one."""
