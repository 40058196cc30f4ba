"""Writes the reference pages, `docs/reference/*.md`, from the code: `make reference`. With
`example_config.py` it also writes `examples/llumctl.toml`, and with `alert_rules.py` the alert
rules and their runbooks.

The text of a page is that of the code: the help texts of commands, the docstrings of settings and
of codes, the rows of orders and keys, the texts of metrics. So whoever changes such a text runs
`make reference`, and nobody edits these pages by hand; a unit test compares them with the code. The
page of the endpoint's paths is written by `make vllm-arguments` and compared by a contract test, as
only vLLM knows its paths, and importing vLLM takes 9 s.

Links in the text of the code name pages from the root (`docs/scheduling.md`).
"""

import ast
import html
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from typer.main import get_command

from controller.adapters import prometheus
from controller.adapters.http.control_server import CALLS
from controller.adapters.prometheus import RequestMetrics
from controller.api import errors
from controller.api.operations.order import Danger, Order, SpecOrderBody
from controller.api.operations.table import ORDERS
from controller.api.settings.setting_values import allowed, is_live, live_settings
from controller.api.settings.settings import (
    ModelTable,
    OwnCommandTable,
    PriorityTable,
    Settings,
)
from controller.api.settings.table import is_table, schemas
from controller.api.text.events import weight_of
from controller.api.text.quantities import setting_value
from controller.api.wire import OrderModel
from controller.api.wire.status import (
    AutoscaleStatus,
    ClusterState,
    ClusterStatus,
    FrontendStatus,
    InstanceState,
    InstanceStatus,
)
from controller.core.fleet.autoscaler import ScaleReason
from controller.core.load.closed import ROWS
from controller.core.migration.move_records import MoveLog
from controller.core.migration.refusals import REASONS
from controller.core.record.event_log import EventKind
from controller.core.replay.replay_machine import SENTENCES
from controller.core.scheduler_events import RejectCode
from llumctl.app import app
from tools import alert_rules, example_config
from tui.actions import ACTIONS, Action, Place, shown_key

FOLDER = Path(__file__).parents[1] / "docs/reference"
ENDPOINT = "endpoint.md"
Row = Sequence[str]


def pages() -> dict[str, str]:
    """The text of each page that needs no vLLM, by its file's name."""
    return {
        "commands.md": _page("Commands", _commands()),
        "settings.md": _page("Settings", _settings()),
        "control-api.md": _page("Control API", _control_api()),
        "metrics.md": _page("Prometheus metrics", _metrics()),
        "events.md": _page("Events", _events()),
        "codes.md": _page("Reason codes", _codes()),
        "keys.md": _page("Keys of the console", _keys()),
    }


def write() -> None:
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def write_endpoint() -> None:
    """Imports vLLM."""
    (FOLDER / ENDPOINT).write_text(endpoint(), encoding="utf-8")


def _page(title: str, parts: Iterable[str]) -> str:
    target = "vllm-arguments" if title == _ENDPOINT_TITLE else "reference"
    made = f"`make {target}` writes this page. Its text comes from {_SOURCES[title]}."
    return "\n\n".join((f"# {title}", made, *parts)) + "\n"


_ENDPOINT_TITLE = "Paths of the endpoint"
_SOURCES = {
    "Commands": "the help of each command, and the exit codes of `controller/api/errors.py`",
    "Settings": "`controller/api/settings/settings.py` and `controller/core/settings.py`",
    "Control API": "the calls of `controller/adapters/http/control_server.py` and all orders",
    "Prometheus metrics": "the metrics that the controller and the frontends serve",
    "Events": "`controller/core/record/event_log.py`",
    "Reason codes": "the lists of codes in `controller/core`",
    "Keys of the console": "`tui/actions.py`",
    _ENDPOINT_TITLE: "the routes of vLLM's server and those that llumctl adds",
}


# -- commands ----------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    yield (
        "[The command line](../command-line.md) says which cluster a command means, and how the"
        " configuration is found."
    )
    root: Any = get_command(app)
    context = typer.Context(root, info_name="llumctl")
    rows = [
        (each.rich_help_panel, f"[{name}](#llumctl-{name})", _text(each.get_short_help_str(200)))
        for name, each in root.commands.items()
    ]
    groups = list(dict.fromkeys(group for group, *_ in rows))
    rows.sort(key=lambda row: groups.index(row[0]))
    yield _table(("group", "command", "what it does"), rows)
    for name, command in root.commands.items():
        yield from _command(command, typer.Context(command, info_name=name, parent=context))
    yield "## Exit codes"
    yield _table(("code", "meaning"), [(f"{code}", text) for code, text in exit_codes().items()])


def _command(command: Any, context: typer.Context) -> Iterator[str]:
    path = context.command_path
    yield f"## {path}"
    yield _paragraphs(command.help or "")
    yield f"```\n{path} {' '.join(command.collect_usage_pieces(context))}\n```"
    records = [each.get_help_record(context) for each in command.get_params(context)]
    shown = [each for each in records if each is not None and each[0] != "--help"]
    if shown:
        yield _table(
            ("argument or option", "meaning"),
            [(_code(name), _option(text)) for name, text in shown],
        )
    for name, inner in getattr(command, "commands", {}).items():
        yield from _command(inner, typer.Context(inner, info_name=name, parent=context))


def _option(text: str) -> str:
    """The defaults of the help in our words: `[default: 1]`."""
    return _text(re.sub(r" *\[(default: .*|required)\]$", r" (\1)", text))


def exit_codes() -> dict[int, str]:
    found = _documented(Path(inspect.getfile(errors)))
    return {getattr(errors, name): text for name, text in found.items() if name[:5] == "EXIT_"}


# -- settings ----------------------------------------------------------------------------


def _settings() -> Iterator[str]:
    settings = Settings()
    live = live_settings(settings)
    yield (
        "The configuration file has a table for each section below;"
        " [examples/llumctl.toml](../../examples/llumctl.toml) is such a file with every default. A"
        " setting with a star may be changed while the cluster runs, by `llumctl set`."
        " [The command line](../command-line.md#configuration) says how flags, variables and the"
        " file go together."
    )
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        if is_table(type(value)):
            yield f"## [{name}]"
            yield _about(type(value))
            yield _fields(type(value), value, {key for key in live if key.startswith(f"{name}.")})
        elif name == "priority":
            yield "## [[priority]]"
            yield _about(PriorityTable)
            live_here = {each for each in schemas(PriorityTable) if is_live(f"priority.x.{each}")}
            yield _fields(PriorityTable, None, live_here)
            levels = " and ".join(
                f"`{each.name}` (rank {each.rank}, target load"
                f" {setting_value(each.target_load_tokens)})"
                for each in value
            )
            yield f"Without such a table the levels are {levels}."
        elif name == "models":
            yield "## [models.NAME]"
            yield _about(ModelTable)
            yield _fields(ModelTable, None, set())
        elif name == "commands":
            yield "## [commands.NAME]"
            yield _about(OwnCommandTable)
            yield _fields(OwnCommandTable, None, set())
        else:
            yield f"## [{name}]"
            yield _text(field.description or "")


def _about(table: type) -> str:
    """A table's docstring, without the table's name before the colon."""
    text = re.sub(r"^`\[+[\w.]+\]+`: ", "", inspect.cleandoc(table.__doc__ or ""))
    return _paragraphs(text[:1].upper() + text[1:])


def _fields(table: type, values: Any, live: set[str]) -> str:
    names = {each.rpartition(".")[2] for each in live}
    rows = []
    for key, schema in schemas(table).items():
        star = " \\*" if key in names else ""
        default = getattr(values, key) if values is not None else schema.get("default", ...)
        rows.append(
            (
                f"`{key}`{star}",
                _default(default),
                _text(_allowed(table, key, schema)),
                _text(schema.get("description", "")),
            )
        )
    return _table(("key", "default", "values", "meaning"), rows)


def _default(value: Any) -> str:
    if value is ...:
        return "must be given"
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value) or "empty"
    if isinstance(value, int | float | str | bool):
        return f"`{setting_value(value)}`" if value != "" else "empty"
    return "empty"


_WORDS = {"array": "a list", "object": "a table", "string": "text"}


def _allowed(table: type, key: str, schema: Mapping[str, Any]) -> str:
    kinds = [_WORDS.get(each.get("type", "object")) for each in schema.get("anyOf", [schema])]
    if "enum" in schema or not any(kinds):
        return allowed(table, key)
    return ", ".join(dict.fromkeys(each or "none" for each in kinds))


# -- the control API and its orders ------------------------------------------------------


def _control_api() -> Iterator[str]:
    yield (
        "The control API listens on loopback and wants a bearer token: the control token of the"
        " cluster's `run.json` may act, the view token of `view-token` may only look."
        " `GET /openapi.json` describes all bodies and answers;"
        " [architecture](../architecture.md#who-may-do-what) says who gets in."
    )
    yield "## Calls that look"
    yield _table(
        ("call", "what it answers"),
        [
            (f"`{method} {path}`", _text(each.does))
            for (method, path), each in CALLS.items()
            if each.body is None
        ],
    )
    yield "## Orders"
    yield (
        "Each order has a dry run: `dry_run` in its body, `--dry-run` on the command line. An order"
        " with a revision, `if_revision`, is refused once the cluster has another one."
    )
    rows = [
        (
            f"`{each.method} {each.path}`",
            f"`{each.usage}`",
            _text(each.does),
            each.undone_by or "no",
        )
        for each in ORDERS.values()
    ]
    yield _table(("call", "command", "what it does", "undone by"), rows)
    for each in ORDERS.values():
        yield f"### {each.kind}"
        if each.body.__doc__ and each.body.__doc__ != each.body.__base__.__doc__:
            yield _paragraphs(inspect.cleandoc(each.body.__doc__))
        yield _body(each)
    yield "## Other calls that act"
    yield _table(
        ("call", "what it does"),
        [
            (f"`{method} {path}`", _text(each.does))
            for (method, path), each in CALLS.items()
            if each.body is not None and not each.once
        ],
    )


def _body(order: type[Order[Any, Any]]) -> str:
    docs: dict[str, str] = {}
    for each in reversed(order.body.__mro__):
        if issubclass(each, OrderModel) and each is not OrderModel:
            docs |= _documented(Path(inspect.getfile(each)), each.__name__)
    rows = []
    fields = order.body.model_fields
    for name in sorted(fields, key=lambda each: each in SpecOrderBody.model_fields):
        required, default = fields[name].is_required(), fields[name].default
        rows.append(
            (
                f"`{name}`",
                "must be given" if required else _default(default),
                _text(docs.get(name, "")),
            )
        )
    return _table(("field", "default", "meaning"), rows)


# -- metrics -----------------------------------------------------------------------------


def _metrics() -> Iterator[str]:
    yield (
        "The control API serves the first three tables at `/metrics` (with the view token). Each"
        " frontend serves the last one on the endpoint's port, next to vLLM's own. The last part of"
        " a name is the unit. A figure that is not known has no sample."
        " [Metrics](../metrics.md) defines the quantities; the name in the last column is the field"
        " of `llumctl status -o json` that has the same figure."
    )
    fields = {
        f"llumctl_{kind}_{each.name}": each.field
        for kind, figures in (
            ("instance", (*prometheus.INSTANCE_GAUGES, *prometheus.INSTANCE_COUNTERS)),
            ("instance_level", prometheus.INSTANCE_LEVEL_GAUGES),
            ("frontend", (*prometheus.FRONTEND_GAUGES, *prometheus.FRONTEND_COUNTERS)),
        )
        for each in figures
    }
    served = list(prometheus.ClusterMetrics(_a_status(), {}, MoveLog()).collect())
    for title, prefix in (
        ("Cluster", ""),
        ("Instances", "llumctl_instance_"),
        ("Frontends", "llumctl_frontend_"),
    ):
        found = [each for each in served if _section(each.name) == prefix]
        yield f"## {title}"
        yield _table(
            ("metric", "type", "labels", "meaning", "field"),
            [
                (*_metric(each), f"`{fields[each.name]}`" if each.name in fields else "")
                for each in found
            ],
        )
    registry = CollectorRegistry()
    RequestMetrics(("normal",), registry)
    yield "## Requests, at the frontends"
    yield _table(
        ("metric", "type", "labels", "meaning"), [_metric(each) for each in registry.collect()]
    )


def _section(name: str) -> str:
    kinds = ("llumctl_instance_", "llumctl_frontend_")
    return next((each for each in kinds if name.startswith(each)), "")


def _metric(family: Metric) -> tuple[str, str, str, str]:
    suffix = "_total" if family.type == "counter" else ""
    sampled = (name for sample in family.samples for name in sample.labels if name != "le")
    labels = dict.fromkeys((*getattr(family, "_labelnames", ()), *sampled))
    text = _text(family.documentation)
    return f"`{family.name}{suffix}`", family.type, ", ".join(map(_code, labels)), text


def _a_status() -> ClusterStatus:
    """Of a cluster with one of each, so that every metric has its labels."""
    return ClusterStatus(
        cluster="default",
        state=ClusterState.READY,
        model="embedded",
        policy="llumnix+",
        endpoint_url="http://127.0.0.1:8000",
        time_s=0.0,
        uptime_s=0.0,
        num_held_reqs=0,
        cluster_uptime_s=0.0,
        autoscale=AutoscaleStatus(mode="off", min_instances=1, max_instances=1, num_instances=1),
        last_event="",
        instances=(InstanceStatus(id="i-0", state=InstanceState.ACTIVE, incarnation=1),),
        frontends=(FrontendStatus(id="f-0", state=InstanceState.ACTIVE, incarnation=1),),
    )


# -- events and codes --------------------------------------------------------------------


def _events() -> Iterator[str]:
    yield (
        "`llumctl events` and `GET /v1/events` list these, and [metrics](../metrics.md#events) says"
        " how long they are kept and what their fields are. *Routine* events come all the time in a"
        " cluster that works; *trouble* is for somebody to look at; the others are *notable*."
    )
    meanings = _members(EventKind)
    yield _table(
        ("kind", "weight", "meaning"),
        [(f"`{kind}`", weight_of(kind), _text(meanings[kind])) for kind in EventKind],
    )


def _codes() -> Iterator[str]:
    yield "Statuses, events, metrics and answers have these codes."
    yield "## Why a request does not move, or a move failed"
    yield (
        "*Lasting*: the request never moves. *Passing*: the reason ends within a few steps."
        " *Elsewhere*: another destination may take the request. *Avoided*: that source avoids the"
        " destination for 30 s, and after two such failures all sources do."
    )
    yield _table(
        ("code", "meaning", ""),
        [
            (
                f"`{code}`",
                _text(reason.sentence),
                ", ".join(
                    word
                    for word, holds in (
                        ("lasting", reason.lasts),
                        ("passing", reason.passes),
                        ("elsewhere", reason.elsewhere),
                        ("avoided", reason.cools),
                    )
                    if holds
                ),
            )
            for code, reason in REASONS.items()
        ],
    )
    yield "## Why an instance is closed"
    yield "`closed_by` of an instance has these; it is empty while the instance is open."
    yield _table(
        ("code", "why", "new requests", "moves to it", "moves from it"),
        [
            (
                f"`{code}`",
                row.words,
                *("no" if stops else "yes" for stops in (row.requests, row.arrivals, row.sending)),
            )
            for code, row in ROWS.items()
        ],
    )
    for title, kind in (
        ("Why a request was refused", RejectCode),
        ("What auto-scaling found", ScaleReason),
    ):
        yield f"## {title}"
        yield _table(
            ("code", "meaning"),
            [(f"`{code}`", _text(text)) for code, text in _members(kind).items()],
        )
    yield "## Why a lost request was not replayed"
    yield _table(
        ("code", "meaning"), [(f"`{code}`", _text(text)) for code, text in SENTENCES.items()]
    )


# -- keys --------------------------------------------------------------------------------

_PLACES = {
    Place.TABLE: "In a table",
    Place.ROWS: "Where rows are instances or requests",
    Place.MAIN: "On the main screen",
    Place.DETAIL: "On a screen about one thing",
    Place.DIALOG: "In a dialog",
    Place.CHOICE: "Where something is chosen",
    Place.SORTING: "In the list of orders",
    Place.TUNING: "On the tuning screen",
    Place.HELP: "In the help",
    Place.ANYWHERE: "Everywhere",
}
_DANGER = {Danger.CONFIRM: " (asks first)", Danger.CHOOSE: " (asks which)", Danger.NONE: ""}


def _keys() -> Iterator[str]:
    yield (
        "[The console](../console.md) describes the screens. `[keys]` of the configuration gives an"
        " action other keys, by its id. What stands under *typed* is typed after `:`."
    )
    changes = [each for each in ACTIONS if each.change is not None]
    yield "## Changing the cluster"
    yield _table(
        ("key", "action id", "what it does", "typed", "the same on the command line"),
        [
            (
                _pressed(each),
                f"`{each.action_id}`",
                _text(each.text + _DANGER[each.change.danger]),
                _code(each.typed),
                _code(each.change.command),
            )
            for each in changes
            if each.change is not None
        ],
    )
    for place, title in _PLACES.items():
        for replay in (False, True):
            found = [
                each
                for each in ACTIONS
                if each.place is place and each.change is None and each.replay is replay
            ]
            if found:
                yield f"## {'In a replay' if replay else title}"
                yield _table(
                    ("key", "action id", "what it does", "typed"),
                    [
                        (
                            _pressed(each),
                            f"`{each.action_id}`",
                            _text(each.text),
                            _code(each.typed),
                        )
                        for each in found
                    ],
                )


def _pressed(action: Action) -> str:
    return " ".join(_code(shown_key(each)) for each in action.keys)


# -- the endpoint ------------------------------------------------------------------------


def endpoint() -> str:
    """The page of the paths that the endpoint serves; imports vLLM."""
    from controller.adapters.vllm import process_setup

    process_setup.prepare()
    from controller.adapters.vllm.endpoint import batch_routes, openai_app
    from controller.api.state.batch_files import BatchFiles

    args = openai_app.parse_args({"model": "embedded"}, {}, [], "127.0.0.1", 8000)
    app = openai_app.routed(args, ("generate",), None, str)
    batch_routes.add_routes(app, BatchFiles("", 0), lambda: None)
    return endpoint_page(app)


def endpoint_page(server: Any) -> str:
    """`server`: the FastAPI app."""
    rows = []
    for route in server.routes:
        name = getattr(route, "name", "") or ""
        methods = sorted(set(getattr(route, "methods", None) or ()) - {"HEAD"})
        if methods and not name.startswith("disabled"):
            title = "" if name == "decorated_func" else name.replace("_", " ")
            rows.append((f"`{', '.join(methods)}`", f"`{route.path}`", title))
    return _page(_ENDPOINT_TITLE, [_ENDPOINT, _table(("method", "path", "handler"), rows)])


_ENDPOINT = (
    "These are the paths of a model that generates text, with the names of vLLM's handlers; `GET"
    " /docs` of the endpoint describes their bodies. [The endpoint](../endpoint.md) has errors and"
    " bounds. HEAD is answered where GET is."
)


# -- text --------------------------------------------------------------------------------


def _members(kind: type[StrEnum]) -> dict[str, str]:
    """The docstring of each member, by its value; one without any is said by its name."""
    found = _documented(Path(inspect.getfile(kind)), kind.__name__)
    return {each.value: found.get(each.name, each.value.replace("_", " ")) for each in kind}


def _documented(file: Path, name: str = "") -> dict[str, str]:
    """The docstring below each assignment of a module, or of its class of that name."""
    tree: Any = ast.parse(file.read_text(encoding="utf-8"))
    if name:
        tree = next(
            each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name
        )
    found = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        match before, after:
            case (
                ast.Assign(targets=[ast.Name(id=target)])
                | ast.AnnAssign(target=ast.Name(id=target)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[target] = " ".join(text.split())
    return found


_PAGE = re.compile(r"\bdocs/([\w-]+)\.md\b")


def _text(text: str) -> str:
    """One line of Markdown: no tags, and pages as links."""
    line = html.escape(" ".join(text.split()), quote=False).replace("*", "\\*")
    line = re.sub(r"`([^`]*)`", lambda code: html.unescape(code[0]).replace("\\*", "*"), line)
    return _PAGE.sub(r"[\1](../\1.md)", line)


def _paragraphs(text: str) -> str:
    return "\n\n".join(_text(each) for each in re.split(r"\n\s*\n", text.strip()))


def _code(text: str) -> str:
    """Code in a table, where a backtick would not keep a bar from ending the cell."""
    if not set(text) & set("|<>&"):
        return f"`{text}`" if text else ""
    return f"<code>{html.escape(text, quote=False)}</code>"


def _table(head: Row, rows: Iterable[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |" for cells in lines
    )


if __name__ == "__main__":
    write()
    example_config.write()
    alert_rules.write()
