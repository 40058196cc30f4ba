"""Settings of a cluster: parsed once, frozen, the same object in every process.

The TOML file has one table per class below; `llumctl.config.settings` merges file, environment
and flags into a `Settings` and hands it to `up`, which hands it to the controller.
"""

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator

from controller.api.settings.autoscale import AutoscaleTable
from controller.api.settings.bounds import MAX_INSTANCES
from controller.api.settings.console import ConsoleTable
from controller.api.settings.endpoint_options import EndpointOptions, Words, words
from controller.api.settings.evacuate import EvacuateTable
from controller.api.settings.own_commands import OwnCommandTable
from controller.api.settings.table import Port, Seconds, Table

ClusterName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,23}$")]
ModelNames = Annotated[Words, Field(max_length=32)]

HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,253}$")]
HostNames = Annotated[tuple[HostName, ...], BeforeValidator(words)]

EMBEDDED_MODEL = "embedded"


class ClusterTable(Table):
    """`[cluster]`: what runs and where."""

    name: ClusterName = "default"
    model: str = EMBEDDED_MODEL
    """`embedded`, a local path, or a Hugging Face id."""
    engine: Literal["vllm", "emulated"] = "vllm"
    """What runs in an instance: vLLM, or a model of its timing that computes nothing."""
    instances: Annotated[int, Field(ge=1, le=MAX_INSTANCES)] | None = None
    """None: one per GPU (divided by the tensor-parallel size), 2 on a CPU machine, 4 emulated."""
    frontends: Annotated[int, Field(ge=1, le=64)] | None = None
    """None: two with 4 cores and 2.2 GB of memory beside the instances, else one."""
    ray_address: str | None = None
    """`host:port` of a running Ray head; None starts one of our own."""
    host: str = "127.0.0.1"
    """Address that the cluster's own sockets bind and advertise; routable for several machines."""
    start_timeout_s: Seconds = 600.0
    """How long `up` waits for the cluster. An instance that auto-scaling adds counts as one that
    cannot start after so long."""


class EndpointServer(Table):
    """Where the OpenAI-compatible API is served, to whom, and how much of it."""

    host: str = "127.0.0.1"
    port: Port = 8000
    api_key_file: str | None = None
    """A file of mode 0600 with a key that clients may use in each line, alone or before the names
    of the priority levels that it may ask for. None: anybody may ask for any level."""
    allowed_hosts: HostNames = ()
    """Host headers under which clients may call an endpoint without API keys, beside `host` and
    names of loopback. Others are answered 403, as pages in a browser can call here under any name.
    With API keys any name will do."""
    served_model_name: ModelNames = ()
    """The model's names for clients, the first of which is in answers; none: `cluster.model`."""
    max_body_bytes: Annotated[int, Field(ge=1024, le=2**30)] = 2 * 1024 * 1024
    """A larger request is answered 413."""
    max_live_requests: Annotated[int, Field(ge=1)] = 4096
    """Requests with a complete body that one frontend serves at a time; one more gets 429."""
    request_timeout_s: Seconds | None = None
    """A request that takes longer is answered 504, a stream ends with an error; None: no limit."""
    write_timeout_s: Annotated[float, Field(ge=0.1, le=86_400)] = 60.0
    """A client that takes nothing of its answer for so long is cut, and its request aborted."""


class EndpointTable(EndpointOptions, EndpointServer):
    """`[endpoint]`: the OpenAI-compatible API."""


class ControlTable(Table):
    """`[control]`: the operators' API, on its own listener with its own token."""

    host: str = "127.0.0.1"
    port: Port = 8700
    max_events: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """The last events, which the controller keeps for later questions; one takes about 1 KB."""


StatusPush = Literal["begin", "after-schedule", "after-update", "before-return", "all", "never"]


class SchedulerTable(Table):
    """`[scheduler]`: dispatch and liveness."""

    policy: str = "llumnix+"
    """Which instance a request is dispatched to: llumnix+ holds a request that fits on none
    (`holding`); llumnix, the paper's, takes the freest at once."""
    max_held_reqs: Annotated[int, Field(ge=0)] = 1024
    """Requests held while no instance is schedulable; of one more the lowest level's newest is
    answered 429. With llumnix+ it is `holding.max_held_reqs`."""
    hold_timeout_s: Seconds = 30.0
    """A held request is answered 503 when no instance was schedulable for this long."""
    stall_timeout_s: Seconds = 10.0
    """An instance whose engine thread showed no progress for this long is not schedulable."""
    fence_after_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """An instance whose engine thread showed no progress for this long is taken for dead: its
    requests run elsewhere, and it drops them when it comes back; 0: never."""
    slow_factor: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """An instance whose steps take so many times as long as the others' is emptied, as by a drain;
    0: none is."""
    slow_after_s: Seconds = 30.0
    """For how long its steps must have taken so long."""
    status_interval_s: Annotated[float, Field(ge=0.001, le=10.0)] = 0.02
    """Least time between two status pushes of one instance."""
    status_push: StatusPush = "before-return"
    """At which phase of a step an instance pushes its status; never: the controller asks ten times
    a second."""
    grace_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """How long live requests may take to finish when the cluster stops."""


class HoldingTable(Table):
    """`[holding]`: what the policy llumnix+ does with requests that fit nowhere;
    docs/scheduling.md."""

    max_held_reqs: Annotated[int, Field(ge=0)] = 100_000
    """Requests held because they fit nowhere; of one more the lowest level's newest is answered
    429."""
    room_to_grow_tokens: Annotated[int, Field(ge=0)] = 320
    """What an admission leaves free on an instance where others run: they grow."""
    fair_keys: bool = True
    """Whether the API keys of one level take turns by their tokens, whoever was served least first;
    off: by arrival alone."""
    making_room: bool = True
    """Whether running requests move away so that a blocked one fits."""
    reserved_share: Annotated[float, Field(ge=0, le=1)] = 0.3
    """At most this share of the instances, but at least one, is kept for the first blocked
    requests."""


class LimitsTable(Table):
    """`[limits]`: what each API key may use of the whole cluster; docs/serving.md. A key may have
    others in its line of the key file."""

    live_requests: Annotated[int, Field(ge=0)] = 0
    """Live requests of one key, each choice of `n` for itself; one more is answered 429. 0: any."""
    tokens_per_minute: Annotated[int, Field(ge=0)] = 0
    """Tokens of one key in a minute, of prompts and outputs; then it gets 429. 0: any."""


class MigrationTable(Table):
    """`[migration]`: when requests are moved, and what that may take; docs/scheduling.md."""

    enabled: bool = True
    """Whether the cluster moves requests by itself. By hand, and when it drains, it always may."""
    source_below_steps: Annotated[float, Field(allow_inf_nan=False)] = 48.0
    """An instance whose freeness is lower is relieved of requests."""
    destination_above_steps: Annotated[float, Field(allow_inf_nan=False)] = 48.0
    """An instance whose freeness is higher may get some; not lower than `source_below_steps`."""
    max_moves_per_minute: Annotated[int, Field(ge=0, le=32)] = 6
    """Moves of one request in a minute. 0: requests move only by hand and out of drains."""
    max_moves: Annotated[int, Field(ge=0, le=1024)] = 4
    """Moves of one instance at a time, to and from it; 0: none."""
    max_bytes_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Copied from one instance to another; 0: no limit."""

    @model_validator(mode="after")
    def _a_destination_is_no_source(self) -> Self:
        if self.source_below_steps > self.destination_above_steps:
            raise ValueError(
                f"source_below_steps ({self.source_below_steps:g}) must not exceed"
                f" destination_above_steps ({self.destination_above_steps:g})"
            )
        return self


class ReplayTable(Table):
    """`[replay]`: what becomes of requests whose instance dies; docs/reliability.md."""

    max_replays: Annotated[int, Field(ge=0, le=100)] = 3
    """How often one request may go on elsewhere after its instance died; 0: it ends in an error."""
    max_tokens_kept: Annotated[int, Field(ge=0)] = 16_000_000
    """Tokens of prompts and outputs that one frontend keeps for replays, about 5 bytes each. A
    request that does not fit in cannot be replayed."""
    patience_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """How long a request whose instance died may find no other one before it ends in an error.
    Where one instance is all there is, longer than Ray takes to start it again. Seconds."""


class PriorityTable(Table):
    """`[[priority]]`: one level; see definitions in docs/metrics.md."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,23}$")]
    rank: Annotated[int, Field(ge=-100, le=100)]
    target_load_tokens: Annotated[int, Field(ge=0)] | None = None
    """The load that may stay beside a running request of this level; None: any."""


class EmulatedTable(Table):
    """`[emulated]`: the engine of `cluster.engine = "emulated"`."""

    profile: Annotated[str, Field(min_length=1)] = "a10-llama-7b"
    """Step times and sizes: the name of a built-in profile or a TOML file."""
    mode: Literal["chunked", "prefill-first"] = "chunked"
    """How a step is filled: prefills cut to the token budget, or whole and before decodes."""
    prefix_caching: bool = True
    speed: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0
    """How many times faster than the profile's wall-clock time. The scheduler's own times, which
    are no settings, are the profile's too."""
    num_blocks: Annotated[int, Field(ge=1)] | None = None
    """KV blocks of an instance; None: the profile's."""


DEFAULT_PRIORITIES = (
    PriorityTable(name="normal", rank=0),
    PriorityTable(name="high", rank=1, target_load_tokens=1600),
)


class Settings(Table):
    cluster: ClusterTable = ClusterTable()
    endpoint: EndpointTable = EndpointTable()
    control: ControlTable = ControlTable()
    scheduler: SchedulerTable = SchedulerTable()
    holding: HoldingTable = HoldingTable()
    limits: LimitsTable = LimitsTable()
    migration: MigrationTable = MigrationTable()
    autoscale: AutoscaleTable = AutoscaleTable()
    replay: ReplayTable = ReplayTable()
    evacuate: EvacuateTable = EvacuateTable()
    priority: tuple[PriorityTable, ...] = DEFAULT_PRIORITIES
    engine: dict[str, Any] = Field(default_factory=dict)
    """vLLM engine arguments by their Python names, passed through."""
    emulated: EmulatedTable = EmulatedTable()
    console: ConsoleTable = ConsoleTable()
    keys: dict[str, str] = Field(default_factory=dict)
    """Keys of the dashboard: action id -> a key, or several between commas. Only `llumctl top`
    reads them."""
    commands: dict[str, OwnCommandTable] = Field(default_factory=dict)
    """Commands of your own in the dashboard, by their names. Only `llumctl top` reads them."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """The served model's names for clients."""
        return self.endpoint.served_model_name or (self.cluster.model,)

    @property
    def served_model_name(self) -> str | list[str]:
        """`model_names` as vLLM takes them."""
        names = self.model_names
        return names[0] if len(names) == 1 else list(names)

    @field_validator("priority")
    @classmethod
    def _levels_are_distinct(cls, levels: tuple[PriorityTable, ...]) -> tuple[PriorityTable, ...]:
        for key in ("name", "rank"):
            values = [getattr(level, key) for level in levels]
            if len(set(values)) != len(values):
                raise ValueError(f"two priority levels have the same {key}")
        if not any(level.rank == 0 for level in levels):
            raise ValueError("one priority level must have rank 0: requests get it by default")
        return levels


OPEN_TABLES = ("commands", "engine", "keys")
"""These tables take any key."""


def table_model(table: str) -> type[BaseModel]:
    """The model of `[table]`, or of one `[[table]]`."""
    annotation: Any = Settings.model_fields[table].annotation
    candidates = (annotation, *get_args(annotation))
    return next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
