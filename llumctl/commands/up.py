"""`llumctl up` starts a cluster and, unless detached, stays until the cluster is stopped; `llumctl
down` stops it."""

import inspect
import json
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from typer.core import TyperCommand

from controller.api.errors import RefusedError
from controller.api.text.quantities import printable
from llumctl import arguments, meant, output
from llumctl.commands.options import ClusterName, Config
from llumctl.config import config_file

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table as Grid

    from controller.api.settings.settings import Settings
    from controller.api.settings.table import Table
    from controller.api.wire.status import ClusterStatus, FrontendStatus, InstanceStatus
    from llumctl.config.settings import Flags


def up(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            help="'embedded' (the default), a folder, or a Hugging Face id.", show_default=False
        ),
    ] = None,
    instances: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--instances",
            help="Number of instances. Default: one per GPU, 2 on a CPU, 4 if emulated.",
        ),
    ] = None,
    frontends: Annotated[
        int | None, typer.Option(help="Number of frontends, which serve the API.")
    ] = None,
    cluster: ClusterName = None,
    config: Config = None,
    host: Annotated[
        str | None,
        typer.Option(help="Address of the endpoint. An address beyond loopback needs API keys."),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port of the endpoint (8000).")] = None,
    served_model_name: Annotated[
        str | None, typer.Option(metavar="A,B", help="The model's names for clients.")
    ] = None,
    control_port: Annotated[
        int | None, typer.Option(help="Port of the control API (8700).")
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Join this Ray. Default: start a Ray for it."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="vllm|emulated", help="What runs in the instances (vllm)."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="Profile that emulated engines follow (a10-llama-7b)."
        ),
    ] = None,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="A vLLM engine argument, V as JSON; repeatable."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the config file, such as migration.max_moves=2; repeatable.",
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Leave the cluster running in the background.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="With --detach: return only when the cluster is ready.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="S", help="How many seconds the start may take (600)."),
    ] = None,
) -> None:
    """Start a cluster. In the foreground, Ctrl-C stops it after its live requests have finished."""
    arguments.within(0, timeout, "--timeout", above=True)
    flags: Flags = {
        ("cluster", "name"): ("--cluster", cluster),
        ("cluster", "model"): ("MODEL", model),
        ("cluster", "engine"): ("--engine", engine),
        ("cluster", "instances"): ("--instances", instances),
        ("cluster", "frontends"): ("--frontends", frontends),
        ("cluster", "ray_address"): ("--ray-address", ray_address),
        ("endpoint", "host"): ("--host", host),
        ("endpoint", "port"): ("--port", port),
        ("endpoint", "served_model_name"): ("--served-model-name", served_model_name),
        ("control", "port"): ("--control-port", control_port),
        ("emulated", "profile"): ("--profile", profile),
        **_endpoint_flags(context),
    }
    start(config, flags, engine_arg or [], set_ or [], detach=detach, wait=wait, timeout_s=timeout)


def start(
    config: Path | None,
    flags: "Flags",
    engine_args: list[str],
    assigned: list[str],
    *,
    detach: bool,
    wait: bool,
    timeout_s: float | None,
) -> None:
    from llumctl.config import settings as settings_module

    settings, origins = settings_module.load_with_origins(
        config, flags, engine_args, assigned=assigned
    )
    meant.cluster_is(settings.cluster.name)
    from controller.main import up as up_main

    with Progress(settings) as progress, settings_module.located(origins):
        status = up_main.run(
            settings,
            detach=detach,
            wait=wait,
            timeout_s=timeout_s,
            progress=progress,
            config_file=_regular(origins.file.path) if origins.file else "",
        )
        if detach and status is not None:
            progress.announce(status)


def _regular(path: Path) -> str:
    """The absolute path of the file; empty for a pipe, which can be read only once."""
    return str(path.absolute()) if path.is_file() else ""


def down(
    cluster: ClusterName = None,
    confirm: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Refuse unless the cluster has this name."),
    ] = None,
    drain: Annotated[
        bool,
        typer.Option("--drain/--now", help="Let live requests finish first, or cut them off."),
    ] = True,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="How many seconds live requests may take (scheduler.grace_s)."
        ),
    ] = None,
) -> None:
    """Stop the cluster and all its processes."""
    arguments.within(0, timeout, "--timeout", above=True)
    name = config_file.cluster_name(cluster)
    if confirm is not None and confirm != name:
        raise RefusedError(
            f"the cluster is {name!r}, not {confirm!r}: nothing was stopped",
            f"llumctl down --confirm {name}",
        )
    from controller.main import down as down_main

    if not down_main.run(name, drain=drain, timeout_s=timeout, progress=output.say):
        output.say(f"nothing to stop: cluster {name} is not running")


# -- flags of the endpoint -----------------------------------------------------------------

_META = "llumctl.endpoint_flags"


class UpCommand(TyperCommand):
    """`up` with a flag for each of vLLM's options of the endpoint, in sections of the help.

    These flags are made only when `up` is parsed or shows its help: the list of options
    (controller/api/settings/vllm_options.py) imports pydantic, which takes 0.1 s.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        *own, help_option = super().get_params(ctx)
        return [*own, *(flag for flags in _sections().values() for flag in flags), help_option]

    def invoke(self, ctx: Any) -> Any:
        names = {str(flag.name) for flags in _sections().values() for flag in flags}
        ctx.meta[_META] = {name: ctx.params.pop(name) for name in names}
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        own = super().get_params(ctx)
        titles = {
            "Arguments": [item for item in own if item.param_type_name == "argument"],
            "Options": [item for item in own if item.param_type_name == "option"],
        }
        for title, items in (titles | _sections()).items():
            with formatter.section(title):
                formatter.write_dl([_help(item, ctx) for item in items])


def _endpoint_flags(context: typer.Context) -> "Flags":
    """The endpoint's flags of this call, in the form in which settings are merged."""
    return {("endpoint", name): (_flag(name), value) for name, value in context.meta[_META].items()}


@cache
def _sections() -> dict[str, list[Any]]:
    """For each section of the help its title and options, as typer makes them of parameters."""
    from controller.api.settings.vllm_options import SECTIONS

    return {f"{table.__doc__} (endpoint)": _options(table) for table in SECTIONS}


def _options(table: "type[Table]") -> list[Any]:
    def function(**_: object) -> None:
        """The parameters of this function are set below; typer reads them."""

    parameters = list(_parameters(table))
    # Typer reads it; mypy's FunctionType has no such attribute.
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {item.name: item.annotation for item in parameters}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(add_help_option=False)(function)
    return list(typer.main.get_command(app).params)


def _parameters(table: "type[Table]") -> Iterator[inspect.Parameter]:
    from controller.api.settings.vllm_options import Code

    for name, info in table.model_fields.items():
        if Code in info.metadata:
            continue  # only a private file may name code
        kind, shown = _kind(info.annotation)
        sentence = (info.description or "").replace("\n", " ")
        option = typer.Option(*_declared(name, kind), metavar=shown, help=sentence)
        yield inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind | None, option],
        )


def _kind(annotation: Any) -> tuple[Any, str | None]:
    """The type of a flag's value, and the name that the help gives the value."""
    text = str(annotation)
    if "bool" in text:
        return bool, None
    if "tuple" in text:
        return str, "A,B"
    if "dict" in text or "SamplingDefaults" in text:
        return str, "JSON"
    if annotation is int:
        return int, "N"
    if "Literal" in text:
        return str, text.removeprefix("typing.Literal[").rstrip("]").replace("'", "").replace(
            ", ", "|"
        )
    return str, "TEXT"


def _declared(name: str, kind: Any) -> list[str]:
    flag = _flag(name)
    return [f"{flag}/--no-{flag[2:]}"] if kind is bool else [flag]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _help(item: Any, ctx: Any) -> tuple[str, str]:
    names, text = item.get_help_record(ctx)
    on, _, off = names.partition(" / ")
    return (f"--[no-]{on[2:]}" if off else names), text


# -- what `up` shows while instances start, and how to reach the endpoint afterwards ---------

STOPPING = "the cluster is being stopped"

_GLYPHS = {
    "starting": "+",
    "active": "*",
    "failed": "!",
    "stalled": "!",
    "stopping": ">",
}


class Progress:
    """Shows each status or sentence with which it is called, one after the other. Two threads must
    not call it at the same time.

    On a terminal the instances are redrawn in place until the cluster is ready. Otherwise, and
    afterwards, every change is one line on stderr. The endpoint goes to stdout.
    """

    def __init__(self, settings: "Settings") -> None:
        self._settings = settings
        self._seen: dict[str, str] = {}
        self._announced = False
        self._live: Live | None = None
        self._redraws = output.can_redraw(sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_drawing()

    def __call__(self, news: "ClusterStatus | str") -> None:
        if isinstance(news, str):
            self._say(news)
            return
        if self._redraws and not self._announced:
            self._draw(news)
        else:
            self._say_changes(news)
        if is_up(news):
            self.announce(news)

    def announce(self, status: "ClusterStatus") -> None:
        """Writes the endpoint's URL and a request to try to stdout, the first time it is called."""
        if self._announced:
            return
        self._announced = True
        self._stop_drawing()
        self._seen.update((item.id, _state(item)) for item in _members(status))
        if status.state == "starting":
            output.say("still starting: llumctl status tells when it is ready")
        output.emit(endpoint_text(self._settings, status))

    def _say(self, text: str) -> None:
        if self._live is None:
            output.say(text)
        else:
            self._live.console.print(meant.aimed(text), markup=False, highlight=False)

    def _say_changes(self, status: "ClusterStatus") -> None:
        if status.state == "stopping":
            # Once the cluster stops, it is no news that its members end one after the other.
            if self._seen.get(STOPPING) is None:
                self._seen[STOPPING] = "told"
                output.say(STOPPING)
            return
        for item in _members(status):
            now = _state(item)
            if self._seen.get(item.id) != now:
                self._seen[item.id] = now
                output.say(f"{item.id}: {now}")

    def _draw(self, status: "ClusterStatus") -> None:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), auto_refresh=False)
            self._live.start()
        self._live.update(_picture(status), refresh=True)

    def _stop_drawing(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def is_up(status: "ClusterStatus") -> bool:
    """Whether the cluster is ready, or at least serves although some instances could not start."""
    serving = any(item.state == "active" for item in status.instances)
    return status.state == "ready" or (status.state == "degraded" and serving)


def endpoint_text(settings: "Settings", status: "ClusterStatus") -> str:
    """The URL, and below it a curl command, in which the shell reads an API key from its file. Then
    how the models that run on attached servers only get their first one."""
    base = status.endpoint_url.rstrip("/").removesuffix("/v1")
    names = (*settings.endpoint.served_model_name, *(each.name for each in status.models))
    body = {
        "model": next(iter(names), status.model),
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 32,
    }
    words = [f"curl {shlex.quote(f'{base}/v1/chat/completions')}"]
    if settings.endpoint.ssl_certfile:
        words.append(f"--cacert {shlex.quote(settings.endpoint.ssl_certfile)}")
    if settings.endpoint.api_key_file:
        key_file = shlex.quote(settings.endpoint.api_key_file)
        script = "/./{s/[[:space:]].*//;s/^/Authorization: Bearer /p;q}"
        words.append(f"-H @<(sed -n {shlex.quote(script)} {key_file})")
    words.append("-H 'Content-Type: application/json'")
    words.append(f"-d {shlex.quote(json.dumps(body))}")
    awaited = [name for name, table in settings.models.items() if not table.instances]
    attach = (f"\nllumctl attach URL --model {name}" for name in awaited)
    return f"{base}/v1\n{' '.join(words)}{''.join(attach)}"


def _members(status: "ClusterStatus") -> "tuple[InstanceStatus | FrontendStatus, ...]":
    return (*status.instances, *status.frontends)


def _state(item: "InstanceStatus | FrontendStatus") -> str:
    return f"{item.state} ({item.detail})" if item.detail else str(item.state)


def _picture(status: "ClusterStatus") -> "Grid":
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for item in _members(status):
        cells = (_GLYPHS.get(item.state, " "), item.id, item.state, item.detail)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table
