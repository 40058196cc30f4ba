"""Options that several commands share, and the completion of ids in a shell."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from controller.api.errors import LlumctlError, UsageError
from controller.api.settings import MAX_REASON_CHARS
from controller.api.text.hints import extra_command
from llumctl import arguments, connect, meant
from llumctl.output import Format

# -- completion of ids ---------------------------------------------------------------------

# The shell asks for ids at each Tab, and they come from the controller. The user waits meanwhile,
# so nothing is imported that takes long, and a controller that is slow or absent gives no ids.
# No message is written: it would appear in the line that is being typed. A cluster that is known
# by its URL is not asked, because its token may be on another machine.

TIMEOUT_S = 0.15
MAX_BYTES = 8 << 20
MAX_REQUESTS = 200
LIVE = ("dispatching", "waiting", "running", "evicted")
"""Equal to `LIVE_STATES` of controller/api/wire/requests.py, which takes too long to import."""


def complete_instances(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids of instances, each with its state, which some shells show."""
    found = _answer(context, "status").get("instances", ())
    return _completions(incomplete, context, ((item["id"], item["state"]) for item in found))


def complete_members(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    found = _answer(context, "status")
    items = (*found.get("instances", ()), *found.get("frontends", ()))
    named = [(item["id"], item["state"]) for item in items]
    others = [("controller", "the default"), ("head", "Ray and the sockets")]
    return _completions(incomplete, context, iter(named + others))


def complete_requests(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    states = "".join(f"&state={state}" for state in LIVE)
    found = _answer(context, f"requests?limit={MAX_REQUESTS}{states}").get("requests", ())
    rows = ((item["id"], f"{item['state']} at {item.get('instance_id') or '-'}") for item in found)
    return _completions(incomplete, context, rows)


def complete_models(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The names of the models, if there are several."""
    found = _answer(context, "status").get("models", ())
    rows = ((item["name"], f"{item['num_serving']} serve") for item in found)
    return _completions(incomplete, context, rows)


def _completions(
    incomplete: str, context: typer.Context, rows: Iterator[tuple[str, str]]
) -> list[tuple[str, str]]:
    """The rows whose id begins with the text, without ids that are already on the command line."""
    lists = [value for value in context.params.values() if isinstance(value, (list, tuple))]
    given = {each for value in lists for each in value}
    try:
        return [row for row in rows if row[0].startswith(incomplete) and row[0] not in given]
    except (KeyError, TypeError):
        return []


def _answer(context: typer.Context, path: str) -> dict[str, Any]:
    import urllib.request  # only here: every command imports this module

    from controller.api.state import run_state

    try:
        cluster = connect.attached(context.params.get("cluster"))
        state = None if connect.is_url(cluster) else run_state.load(cluster)
        if state is None:
            return {}
        request = urllib.request.Request(
            f"{state.control_url}/v1/{path}",
            headers={"Authorization": f"Bearer {state.control_token}"},
        )
        # Without the proxies of the environment.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            found = json.loads(answer.read(MAX_BYTES))
    except (OSError, ValueError, LlumctlError):
        return {}
    return found if isinstance(found, dict) else {}


# -- options -------------------------------------------------------------------------------

Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        callback=meant.cluster_is,
        metavar="NAME|URL",
        help="Name of the cluster, or URL of its control API. Default: $LLUMCTL_CLUSTER_NAME, else"
        " the config file's, else 'default', else the only one.",
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        callback=meant.cluster_is,
        metavar="NAME",
        help="Name of the cluster. Default: $LLUMCTL_CLUSTER_NAME, else the config file's, else"
        " 'default'.",
    ),
]
"""The `--cluster` of commands that need the cluster's files. If no cluster is named, these commands
never fall back to the only cluster there is, which may not be the one that was meant."""
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        callback=meant.model_is,
        autocompletion=complete_models,
        metavar="NAME",
        help="Only this one of the cluster's models.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=meant.config_is,
        metavar="FILE",
        help="Config file. Default: $LLUMCTL_CONFIG, else ~/.config/llumctl/config.toml.",
    ),
]


ClusterConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Config file. Default: the one that the cluster was started with.",
    ),
]


class TableOrJson(StrEnum):
    TABLE = "table"
    JSON = "json"


def _one_line(reason: str) -> str:
    """The reason, if it is a line that the audit log takes."""
    if len(reason) > MAX_REASON_CHARS or not reason.isprintable():
        raise UsageError(f"--reason: one line of up to {MAX_REASON_CHARS} characters")
    return reason


def _a_revision(value: int | None) -> int | None:
    arguments.within(0, value, "--if-revision")
    return value


format_option = typer.Option("-o", "--output", help="Format of the output.")
OutputFormat = Annotated[Format, format_option]
Reference = Annotated[
    str,
    typer.Argument(
        metavar="REQUEST",
        autocompletion=complete_requests,
        help="Its id (the beginning, or the shortened form in tables, is enough) or the client's"
        " id.",
    ),
]
Reason = Annotated[
    str,
    typer.Option(
        "-m", "--reason", callback=_one_line, metavar="MSG", help="Reason, for the audit log."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would change; change nothing.")]
Force = Annotated[
    bool, typer.Option("--force", help="Do it even to the last instance that serves.")
]
Detach = Annotated[
    bool,
    typer.Option("--detach/--monitor", help="Return at once, or follow it until it is over."),
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]
IfRevision = Annotated[
    int | None,
    typer.Option(
        "--if-revision",
        callback=_a_revision,
        metavar="R",
        help="Refuse (exit 6) unless the cluster is at this revision, which status shows.",
    ),
]


LONGEST_DEADLINE = "7d"
"""`MAX_DEADLINE_S` as people type it."""


def deadline_of(text: str | None) -> float | None:
    """How many seconds a drain may take, as `--deadline` says."""
    if text is None:
        return None
    return arguments.positive(text, "--deadline", LONGEST_DEADLINE)


@dataclass(frozen=True, slots=True)
class Flags:
    """Options that the forms of one command have in common."""

    cluster: str | None
    dry_run: bool
    yes: bool
    reason: str
    if_revision: int | None
    output_format: Format
    detach: bool = False
    force: bool = False


# -- extras: packages that only some commands need -----------------------------------------

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "lab": ("matplotlib",),
    "mcp": ("mcp",),
    "web": ("aiohttp", "textual_serve"),
}
"""The modules that each extra of pyproject.toml installs, and that only llumctl imports."""


def check_extra(extra: str, what: str) -> None:
    """Raises LlumctlError if `what`, an option, needs an extra that is not installed."""
    missing = [module for module in EXTRAS[extra] if find_spec(module) is None]
    if missing:
        raise LlumctlError(
            f"{what} needs the extra [{extra}], which is not installed (no {', '.join(missing)})",
            extra_command(extra),
        )


def check_plot(plot: Path | None) -> None:
    """Refuses a picture that cannot be drawn, before any work is done for it. `-` draws in the
    terminal."""
    if plot is None or str(plot) == "-":
        return
    if plot.suffix not in (".png", ".svg"):
        raise UsageError(f"--plot: {plot} must end in .png or .svg", "--plot run.svg")
    if not plot.parent.is_dir():
        raise UsageError(f"--plot: there is no folder {plot.parent}", f"mkdir -p {plot.parent}")
    check_extra("lab", "--plot")
