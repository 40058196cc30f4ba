"""Settings of a cluster: parsed once, frozen, the same object in every process.

The TOML file has one table per class below, or per class of `controller.core.settings`;
`llumctl.config.settings` merges file, environment and flags into a `Settings` and hands it to `up`,
which hands it to the controller. The console's tables are read by `llumctl top` and `llumctl
status` alone.
"""

from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BeforeValidator, Field, Strict, field_validator

from controller.api.settings import MAX_INSTANCES
from controller.api.settings.table import OfCore, Port, Seconds, Table, is_table
from controller.api.settings.vllm_options import EndpointOptions, Words, words
from controller.core.settings import (
    AutoscaleSettings,
    HoldingSettings,
    KeyLimits,
    MigrationSettings,
    ReplayConfig,
    SchedulerSettings,
)

ClusterName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,23}$")]
ModelNames = Annotated[Words, Field(max_length=32)]

HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,253}$")]
HostNames = Annotated[tuple[HostName, ...], BeforeValidator(words)]
Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]

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


class EvacuateTable(Table):
    """`[evacuate]`: instances that must go by a moment; docs/draining.md."""

    notice_s: Seconds = 30.0
    """After a SIGTERM to an instance's process so long for its requests to move to others; then it
    ends, and is not started again."""


class ConsoleTable(Table):
    """`[console]`: whether the dashboard may change the cluster, and from where on it and `llumctl
    status` raise an alarm. 0: never."""

    readonly: bool = False
    """The dashboard begins read-only; its key for that allows changes."""
    alarm_head_waited_s: Limit = 10.0
    """A request that is the first in its instance's queue and has waited that long is an alarm."""
    alarm_waiting_reqs: Count = 20
    """So many requests that wait at one instance, or are held at the controller, are an alarm."""
    alarm_ttft_p99_s: Limit = 10.0
    """A time to first token, 99th percentile of the last minute, that is this high is an alarm."""
    alarm_failed_moves: Count = 30
    """So many moves that came to nothing in the last minute are an alarm if fewer succeeded."""
    alarm_move_s: Limit = 15.0
    """A move that has been under way for so long is an alarm; nearly all take under a second."""


class OwnCommandTable(Table):
    """`[commands.NAME]`: a program that the dashboard runs for a row, never through a shell."""

    run: Annotated[list[str], Field(min_length=1, max_length=100)]
    """The program and its arguments. `{id}` as a whole argument, or behind `--name=`, is a value of
    the row."""
    key: str = ""
    """The key that runs it; without one it is typed after `:`."""
    at: Literal["instance", "request"] = "instance"
    """What the rows must be about."""
    text: str = ""
    """What the help says of it."""
    terminal: bool = False
    """It gets the terminal until it ends; else what it writes is shown."""
    timeout_s: Seconds = 30.0
    """It is ended after that long, unless it has the terminal."""


DEFAULT_PRIORITIES = (
    PriorityTable(name="normal", rank=0),
    PriorityTable(name="high", rank=1, target_load_tokens=1600),
)


class Settings(Table):
    cluster: ClusterTable = ClusterTable()
    endpoint: EndpointTable = EndpointTable()
    control: ControlTable = ControlTable()
    scheduler: OfCore[SchedulerSettings] = SchedulerSettings()
    holding: OfCore[HoldingSettings] = HoldingSettings()
    limits: OfCore[KeyLimits] = KeyLimits()
    migration: OfCore[MigrationSettings] = MigrationSettings()
    autoscale: OfCore[AutoscaleSettings] = AutoscaleSettings()
    replay: OfCore[ReplayConfig] = ReplayConfig()
    evacuate: EvacuateTable = EvacuateTable()
    priority: Annotated[tuple[PriorityTable, ...], Strict(False)] = DEFAULT_PRIORITIES
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


def table_model(table: str) -> type:
    """The class of `[table]`, or of one `[[table]]`."""
    kind = get_type_hints(Settings)[table]
    found: type = next(each for each in (kind, *get_args(kind)) if is_table(each))
    return found
