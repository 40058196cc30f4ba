"""Settings of a cluster: parsed once, frozen, the same object in every process.

The TOML file has one table for each class below or in `controller.core.settings`.
`llumctl.config.settings` merges file, environment and flags into a `Settings` and hands it to `up`,
which hands it to the controller. The controller raises alarm events by `[console]` as it was then;
`llumctl top`, `status` and `simulate` read the console's tables themselves, each time they start.
"""

from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BeforeValidator, Field, Strict, field_validator, model_validator

from controller.api.settings import ADAPTER_NAME, MAX_INSTANCES, PYTHON, without_python
from controller.api.settings.table import OfCore, Port, Seconds, Table, is_table
from controller.api.settings.vllm_options import EndpointOptions, Words, words
from controller.core.settings import (
    BACKGROUND_LEVEL,
    AutoscaleSettings,
    HoldingSettings,
    KeyLimits,
    MigrationSettings,
    ReplayConfig,
    SchedulerSettings,
    TrafficSettings,
    WhenLate,
)

ClusterName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,23}$")]
ModelNames = Annotated[Words, Field(max_length=32)]

HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,253}$")]
HostNames = Annotated[tuple[HostName, ...], BeforeValidator(words)]
# Without a name and a password, because everybody who sees the settings would see these too.
HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s/@?#]+(/\S*)?$", max_length=2000)]
Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]

EMBEDDED_MODEL = "embedded"
EMBEDDED_MODELS = (EMBEDDED_MODEL, "embedded-small")
"""The names of the models that llumctl makes itself."""


class ClusterTable(Table):
    """`[cluster]`: what runs and where."""

    name: ClusterName = "default"
    """The name of the cluster, and of its folder for state and logs."""
    model: str = EMBEDDED_MODEL
    """`embedded` or `embedded-small`, a local path, or a Hugging Face id."""
    engine: Literal["vllm", "emulated"] = "vllm"
    """What runs in an instance: vLLM, or a model of its timing that computes nothing."""
    instances: Annotated[int, Field(ge=0, le=MAX_INSTANCES)] | None = None
    """How many instances there are at the start. None: one per GPU (divided by the tensor-parallel
    size), 2 on a CPU machine, 4 emulated. 0 is for `[models.NAME]` only."""
    frontends: Annotated[int, Field(ge=1, le=64)] | None = None
    """How many processes serve the endpoint. None: two if there are 4 cores, and 2.2 GB of memory
    in addition to what the instances take; else one."""
    host_cache_gib: Annotated[float, Field(ge=0, le=65_536, allow_inf_nan=False)] = 0.0
    """How much main memory each instance takes, in GiB, for a copy of what its prefix cache has.
    What the prefix cache has dropped is loaded from there. It gains only if it is larger than the
    memory for KV blocks. An emulated instance behaves as if it had this memory, and takes none.
    Without prefix caching there is no host cache."""
    ray_address: str | None = None
    """`host:port` of a running Ray head. None: the cluster starts a Ray of its own."""
    host: str = "127.0.0.1"
    """The address on which the cluster's processes listen to each other. With several machines it
    must be an address that the other machines can reach: `auto` takes each machine's address as Ray
    knows it."""
    start_timeout_s: Seconds = 600.0
    """How long `up` waits for the cluster. An instance that auto-scaling adds counts as failed if
    it does not serve after this time."""


class EndpointServer(Table):
    """Where the OpenAI-compatible API is served, to whom, and how much of it."""

    host: str = "127.0.0.1"
    """The address of the endpoint; any other than a loopback address needs `api_key_file`."""
    port: Port = 8000
    """The port of the endpoint."""
    api_key_file: str | None = None
    """A file of mode 0600 with one API key in each line. The names of the priority levels that the
    key may ask for can follow it; a key without names may ask for all levels. None: anybody may
    call, and may ask for any level."""
    allowed_hosts: HostNames = ()
    """Host headers under which clients may call an endpoint without API keys, in addition to `host`
    and names of loopback. Other names are answered 403. Otherwise a web page could point its own
    host name at this machine and call the endpoint from a browser (DNS rebinding). With API keys
    every name is allowed."""
    served_model_name: ModelNames = ()
    """The model's names for clients; answers have the first one. Empty: `cluster.model`."""
    max_body_bytes: Annotated[int, Field(ge=1024, le=2**30)] = 2 * 1024 * 1024
    """A larger request is answered 413."""
    max_live_requests: Annotated[int, Field(ge=1)] = 4096
    """How many requests one frontend serves at a time; further ones are answered 429."""
    request_timeout_s: Seconds | None = None
    """A request that takes longer is answered 504, and a stream ends with an error. None: no
    limit."""
    write_timeout_s: Annotated[float, Field(ge=0.1, le=86_400)] = 60.0
    """A client that reads nothing of its answer for this long is disconnected, and its request is
    aborted."""
    receipt_headers: bool = True
    """Whether answers have the headers `x-llumctl-...`, which say how the request was served: its
    instance, its time in the queue, cached tokens, moves and replays; docs/tracing.md."""
    otlp_traces_endpoint: HttpUrl | None = None
    """The URL of an OpenTelemetry collector that takes traces over HTTP, such as
    `http://localhost:4318`. Each request is told as a trace. None: no traces; docs/tracing.md."""
    batch_files_gib: Annotated[float, Field(ge=0, le=65_536, allow_inf_nan=False)] = 4.0
    """How much of the disk the files of the batch API may take together, in GiB; with a full share
    uploads and new batches are refused. They are in the cluster's state folder until clients delete
    them. 0: the endpoint has no batch API."""


class EndpointTable(EndpointOptions, EndpointServer):
    """`[endpoint]`: the OpenAI-compatible API."""


class ControlTable(Table):
    """`[control]`: the operators' API, on its own listener with its own token."""

    host: str = "127.0.0.1"
    """The address of the control API: a loopback address."""
    port: Port = 8700
    """The port of the control API."""
    max_events: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """How many of the last events the controller keeps; one takes about 1 KB."""


class PriorityTable(Table):
    """`[[priority]]`: one priority level; docs/metrics.md defines target load and headroom."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,23}$")]
    """The level's name, by which clients and operators ask for it."""
    rank: Annotated[int, Field(ge=-100, le=100)]
    """Requests of a higher rank go first. One level must have rank 0: requests that ask for no
    level get this one."""
    target_load_tokens: Annotated[int, Field(ge=0)] | None = None
    """How many tokens an instance may hold while it runs a request of this level. None: any
    number."""
    target_ttft_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """How long a request of this level should wait for its first token at most. Goodput counts the
    requests that keep the targets of their level. None: no target."""
    when_late: WhenLate = "serve"
    """What becomes of a request that has waited at the controller for `target_ttft_s`. serve: it
    keeps its place. last: it goes behind the others of its level, which may still get their first
    token in time. refuse: it is answered 429."""
    target_tpot_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """How long each further token should take, as the mean of a request. With llumnix+ a step of an
    instance takes no longer while it runs a request of this level. None: no target."""


class EmulatedTable(Table):
    """`[emulated]`: the engine of `cluster.engine = "emulated"`."""

    profile: Annotated[str, Field(min_length=1)] = "a10-llama-7b"
    """Step times and sizes: the name of a built-in profile or a TOML file."""
    mode: Literal["chunked", "prefill-first"] = "chunked"
    """How a step is filled: prefills cut to the token budget, or whole and before decodes."""
    prefix_caching: bool = True
    """Whether prompts that begin alike share KV blocks."""
    speed: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0
    """How many times faster than the profile the engines run. All times of the scheduler that are
    not settings get shorter by the same factor."""
    num_blocks: Annotated[int, Field(ge=1)] | None = None
    """How many KV blocks an instance has. None: as many as in the profile."""


class EvacuateTable(Table):
    """`[evacuate]`: instances that must be gone at a given moment; docs/notices.md."""

    notice_s: Seconds = 30.0
    """How long an instance's requests may take to move to other instances after its process got a
    SIGTERM, or after a notice about its machine that names no moment. Then the process ends, and is
    not started again."""
    notice_file: Annotated[str, Field(pattern="^(/.*)?$")] = ""
    """An absolute path on the machines of the instances. While there is a file, all instances of
    its machine are evacuated. It may say by when: docs/notices.md. Empty: no file is looked for."""


class ConsoleTable(Table):
    """`[console]`: whether the dashboard may change the cluster, at which figures there is an
    alarm, and what an instance costs. 0 switches an alarm off. `llumctl top` and `llumctl status`
    read this table when they start. The controller, which makes an event of each alarm, goes by the
    table as it was at `llumctl up`. `llumctl simulate` reads only the cost."""

    readonly: bool = False
    """Whether the dashboard begins read-only; the key `R` ends read-only mode."""
    alarm_head_waited_s: Limit = 10.0
    """An alarm if the first request of a queue, or any request at the controller, has waited this
    long."""
    alarm_waiting_reqs: Count = 20
    """An alarm if this many requests wait at one instance, or at the controller."""
    alarm_ttft_p99_s: Limit = 10.0
    """An alarm if the 99th percentile of the time to first token, over the last minute, is this
    high."""
    alarm_failed_moves: Count = 30
    """An alarm if this many moves failed in the last minute and fewer succeeded."""
    alarm_move_s: Limit = 15.0
    """An alarm if a move has been under way for this long. Nearly all moves take less than a
    second."""
    instance_cost_per_hour: Limit = 0.0
    """What an instance costs per hour, in any currency. With it `llumctl status`, its history and
    `llumctl simulate` say what a million output tokens cost. 0: it is not known."""


class OwnCommandTable(Table):
    """`[commands.NAME]`: a program that the dashboard runs for a row, never through a shell."""

    run: Annotated[list[str], Field(min_length=1, max_length=100)]
    """The program and its arguments. An argument `{id}`, or `--name={id}`, becomes a value of the
    row."""
    key: str = ""
    """The key that runs the command; a command without a key is typed after `:`."""
    at: Literal["instance", "request"] = "instance"
    """Whether the command is for rows of instances or of requests."""
    text: str = ""
    """What the help says about the command."""
    terminal: bool = False
    """Whether the program gets the terminal until it ends; else its output is shown."""
    timeout_s: Seconds = 30.0
    """The program is ended after this time, unless it has the terminal."""


AdapterName = Annotated[str, Field(pattern=ADAPTER_NAME)]
FolderName = Annotated[str, Field(min_length=1)]
ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,95}$")]


class ModelTable(Table):
    """`[models.NAME]`: one of several models of the cluster, by the name that clients ask for. Its
    tables (`[models.NAME.autoscale]`) have the same keys as the tables of the cluster, and replace
    their values for this model."""

    model: str | None = None
    """`embedded` or `embedded-small`, a local path, or a Hugging Face id. None: the name is the
    id."""
    instances: Annotated[int, Field(ge=0, le=MAX_INSTANCES)] = 1
    """How many instances of the model there are at the start. 0: the model runs only on servers
    that `llumctl attach` adds, of any tokenizer. It then has none of `model`, `engine`, `emulated`,
    `adapters` and `autoscale`."""
    engine: dict[str, Any] = Field(default_factory=dict)
    """vLLM engine arguments that only this model has, or that differ from those in `[engine]`."""
    adapters: dict[AdapterName, FolderName] = Field(default_factory=dict)
    """LoRA adapters of this model, as in `[adapters]`."""
    emulated: dict[str, Any] = Field(default_factory=dict)
    """The profile of the model, and what else differs from `[emulated]`."""
    scheduler: dict[str, Any] = Field(default_factory=dict)
    """What differs from `[scheduler]`. Each model has a scheduler of its own."""
    holding: dict[str, Any] = Field(default_factory=dict)
    """What differs from `[holding]`."""
    limits: dict[str, Any] = Field(default_factory=dict)
    """What differs from `[limits]`. What an API key uses is counted for each model."""
    migration: dict[str, Any] = Field(default_factory=dict)
    """What differs from `[migration]`."""
    autoscale: dict[str, Any] = Field(default_factory=dict)
    """What differs from `[autoscale]`. Each model is scaled by its own load."""
    replay: dict[str, Any] = Field(default_factory=dict)
    """What differs from `[replay]`."""
    traffic: dict[str, Any] = Field(default_factory=dict)
    """Which models answer the requests for this one, and which get copies; as in `[traffic]`."""

    @model_validator(mode="after")
    def _has_what_it_can_use(self) -> "ModelTable":
        unused = ("model", "engine", "adapters", "emulated", "autoscale")
        given = [name for name in unused if getattr(self, name)]
        if not self.instances and given:
            raise ValueError(
                f"with instances = 0 the model runs on attached servers only, which have no"
                f" {given[0]}"
            )
        return self


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
    traffic: OfCore[TrafficSettings] = TrafficSettings()
    evacuate: EvacuateTable = EvacuateTable()
    priority: Annotated[tuple[PriorityTable, ...], Strict(False)] = DEFAULT_PRIORITIES
    engine: dict[str, Any] = Field(default_factory=dict)
    """vLLM engine arguments by their Python names, passed through; and `python`, the path of the
    Python interpreter, or of the environment, with which instances run (docs/upgrading.md)."""
    adapters: dict[AdapterName, FolderName] = Field(default_factory=dict)
    """LoRA adapters: the name by which clients call each, and the folder with its files."""
    emulated: EmulatedTable = EmulatedTable()
    models: dict[ModelName, ModelTable] = Field(default_factory=dict)
    """The models of a cluster that serves several; empty: it serves `cluster.model`."""
    console: ConsoleTable = ConsoleTable()
    keys: dict[str, str] = Field(default_factory=dict)
    """Keys of the dashboard: action id -> a key, or several between commas. Only `llumctl top`
    reads them."""
    commands: dict[str, OwnCommandTable] = Field(default_factory=dict)
    """Commands of your own in the dashboard, by their names. Only `llumctl top` reads them."""

    def by_model(self) -> dict[str, "Settings"]:
        """The settings of each model that the cluster serves, by the name that clients ask for. A
        cluster without `models` serves one. Raises ValidationError for a value that a model's table
        cannot have."""
        if not self.models:
            return {self.model_names[0]: self}
        return {name: self.of_model(name) for name in self.models}

    def of_model(self, name: str) -> "Settings":
        """The settings of one of `models`. Raises ValidationError as `by_model` does."""
        table, values = self.models[name], self.model_dump(exclude={"models"})
        for key in MODEL_TABLES:
            values[key] |= getattr(table, key)
        values["cluster"] |= {"model": table.model or name, "instances": table.instances}
        values["endpoint"]["served_model_name"] = (name,)
        return Settings.model_validate(values)

    def hosted_models(self) -> dict[str, "Settings"]:
        """`by_model` without the models that run on attached servers only."""
        return {name: own for name, own in self.by_model().items() if not own.attached_only}

    @property
    def attached_only(self) -> bool:
        """Whether the model has no instances of the cluster's own."""
        return self.cluster.instances == 0

    @property
    def engine_python(self) -> str:
        """The Python interpreter that runs instances; empty: that of the cluster."""
        return str(self.engine.get(PYTHON) or "")

    @property
    def vllm_args(self) -> dict[str, Any]:
        """The arguments in `engine` that vLLM gets."""
        return without_python(self.engine)

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
        if any(level.name == BACKGROUND_LEVEL for level in levels):
            raise ValueError(f"{BACKGROUND_LEVEL} is the level of batches, below all others")
        if not any(level.rank == 0 for level in levels):
            raise ValueError("one priority level must have rank 0: requests get it by default")
        return levels


MODEL_TABLES = tuple(
    name for name, info in ModelTable.model_fields.items() if info.default_factory is not None
)
"""The tables that a model may have for itself."""
OPEN_TABLES = ("adapters", "commands", "engine", "keys", "models")
"""These tables take any key."""


def table_model(table: str) -> type:
    """The class of `[table]`, or of one `[[table]]`."""
    kind = get_type_hints(Settings)[table]
    found: type = next(each for each in (kind, *get_args(kind)) if is_table(each))
    return found
