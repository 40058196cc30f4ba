"""`llumctl up`: start a cluster and, unless detached, stay until it is stopped."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llumctl import meant
from llumctl.commands import endpoint_flags
from llumctl.commands.options import ClusterName, Config, positive

if TYPE_CHECKING:
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
        **endpoint_flags.given(context),
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
    from llumctl.text.progress import Progress

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
