"""The flags of `up` that follow from vLLM's options of the endpoint.

They are made when `up` is parsed or explains itself: the list of options
(controller/api/settings/endpoint_options.py) needs pydantic, which would take the other commands
0.1 s.
"""

import inspect
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from controller.api.settings.table import Table
    from llumctl.config.settings import Flags

_META = "llumctl.endpoint_flags"


class UpCommand(TyperCommand):
    """`up` with these flags, in sections of its help."""

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


def given(context: typer.Context) -> "Flags":
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
