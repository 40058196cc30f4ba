"""`llumctl profile`: measure an engine, and write its latency profile."""

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import UsageError
from llumctl.commands.options import Config
from llumctl.text import output

if TYPE_CHECKING:
    from llumctl.config.settings import Flags

ROUNDS = 5


def profile(
    model: Annotated[
        str | None,
        typer.Argument(
            help="'embedded' (the default), a folder, or a Hugging Face id.", show_default=False
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Where to (./MODEL.toml)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A figure of the profile as you know it, instead of the one measured; repeatable.",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", help="How often each point is measured.")
    ] = ROUNDS,
    instances: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--instances",
            help="Instances that share this machine later; one is started. Default as of up.",
        ),
    ] = None,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="A vLLM engine argument, V as JSON; repeatable."),
    ] = None,
    config: Config = None,
) -> None:
    """Measure an engine as `up` starts it; write what its steps cost, and its sizes."""
    if rounds < 1:
        raise UsageError(f"--rounds: must be at least 1, not {rounds}")
    from llumctl.config import settings as settings_module

    flags: Flags = {
        ("cluster", "model"): ("MODEL", model),
        ("cluster", "instances"): ("--instances", instances),
    }
    settings, origins = settings_module.load_with_origins(config, flags, engine_arg or [])
    from controller.main.profile import profile_file, run
    from llumctl.text.profile import text_of

    path = file or Path(f"{_file_stem(settings.cluster.model)}.toml")
    wanted = run.Wanted(path, force, rounds, profile_file.parse_given(set_ or []))
    with settings_module.located(origins):
        found = run.run(settings, wanted, output.say)
    output.emit(text_of(found, colours=output.use_colours(sys.stdout)))
    output.say(f"written to {path}")
    output.say(f"next:  llumctl up --engine emulated --profile {shlex.quote(str(path))}")


def _file_stem(model: str) -> str:
    """`Qwen/Qwen3-0.6B` -> `qwen3-0.6b`."""
    name = model.rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9._-]+", "-", name).strip(".-") or "model"
