"""`llumctl up`: start a cluster and, unless detached, stay until it is stopped; `llumctl down`."""

import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from controller.api.errors import RefusedError
from llumctl import meant
from llumctl.commands.options import ClusterName, Config, positive
from llumctl.config import config_file
from llumctl.text import output

if TYPE_CHECKING:
    from controller.api.settings.table import Table
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
            "-n", "--instances", help="Instances; default one per GPU, 2 on CPU, 4 emulated."
        ),
    ] = None,
    frontends: Annotated[int | None, typer.Option(help="Frontends that serve the API.")] = None,
    cluster: ClusterName = None,
    config: Config = None,
    host: Annotated[
        str | None, typer.Option(help="Address of the endpoint; other than loopback needs keys.")
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
        typer.Option(metavar="HOST:PORT", help="Join this Ray; default: start one of our own."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="vllm|emulated", help="What runs in the instances (vllm)."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="What emulated engines emulate: a profile (a10-llama-7b)."
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
            help="A setting of the config file, as migration.max_moves=2; repeatable.",
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Leave the cluster running in the background.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="With --detach: return only when it is ready.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="S", help="How many seconds starting may take (600)."),
    ] = None,
) -> None:
    """Start a cluster. In the foreground, Ctrl-C lets live requests finish and stops it."""
    positive(timeout, "--timeout")
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
    from llumctl.commands.up_progress import Progress
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
    """The file's full name; empty for a pipe, which can be read once only."""
    return str(path.absolute()) if path.is_file() else ""


def down(
    cluster: ClusterName = None,
    confirm: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Refuse unless this is the name of the cluster."),
    ] = None,
    drain: Annotated[
        bool,
        typer.Option("--drain/--now", help="Let live requests finish first, or stop at once."),
    ] = True,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="How many seconds live requests may take (scheduler.grace_s)."
        ),
    ] = None,
) -> None:
    """Stop the cluster and all its processes."""
    positive(timeout, "--timeout")
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
    """`up` with the flags that follow from vLLM's options of the endpoint, in sections of its help.

    They are made when `up` is parsed or explains itself: the list of options
    (controller/api/settings/endpoint_options.py) needs pydantic, which would take the other
    commands 0.1 s.
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
    """The flags of the command line, in the form in which settings are merged."""
    return {("endpoint", name): (_flag(name), value) for name, value in context.meta[_META].items()}


@cache
def _sections() -> dict[str, list[Any]]:
    """Title -> options as typer makes them of a function's parameters."""
    from controller.api.settings.endpoint_options import SECTIONS

    return {f"{table.__doc__} (endpoint)": _options(table) for table in SECTIONS}


def _options(table: "type[Table]") -> list[Any]:
    def function(**_: object) -> None:
        """Has the parameters that follow."""

    parameters = list(_parameters(table))
    # Typer reads it; mypy's FunctionType has no such attribute.
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {item.name: item.annotation for item in parameters}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(add_help_option=False)(function)
    return list(typer.main.get_command(app).params)


def _parameters(table: "type[Table]") -> Iterator[inspect.Parameter]:
    from controller.api.settings.endpoint_options import Code

    for name, info in table.model_fields.items():
        if Code in info.metadata:
            continue  # code comes out of a private file only
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
    """The type on the command line, and how the help shows it."""
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
