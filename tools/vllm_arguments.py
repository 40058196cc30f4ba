"""Writes the engine arguments and parsers that the installed vLLM declares, as types.

`make vllm-arguments` writes the module of the installed version in
`controller/main/checks/vllm_arguments/`. The product reads it, as importing vLLM takes 9 s; a
contract test compares it with the installed vLLM.

An annotation becomes a type against which pydantic checks values as JSON or TOML can write them.
The members of a union that only Python can write (a class, a function) are left out; if none is
left, the annotation becomes Any. A class of vLLM's configuration becomes a table of its fields. A
field that one of vLLM's validators sees first (mode "before") may take more than its annotation
says, so it becomes Any, too. An argument has the bounds of the configuration's field that gets its
value; only the source of vLLM's `EngineArgs` says which field that is.
"""

import ast
import dataclasses
import inspect
import json
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from controller.main.checks.vllm_arguments import module_name

TABLES = Path(__file__).parents[1] / "controller/main/checks/vllm_arguments"
_HEAD = '''"""What vLLM declares of its engine arguments and its parsers.

`make vllm-arguments` writes this file. The value of an argument is checked against its type by
pydantic. A table is a class of vLLM's configuration; each of its keys may be left out.

Touch points of vLLM: engine/arg_utils.py `AsyncEngineArgs`; tool_parsers/__init__.py
`ToolParserManager`; reasoning/__init__.py `ReasoningParserManager`.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

'''
_WORDS: dict[Any, str] = {
    kind: kind.__name__ for kind in (bool, int, float, str, dict, list, set, tuple)
}
_WORDS |= {Path: "str", type(None): "None", ...: "...", Any: "Any", object: "Any"}
_ALONE = {dict: "dict[Any, Any]", list: "list[Any]", set: "set[Any]", tuple: "tuple[Any, ...]"}
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length")


@dataclasses.dataclass(frozen=True)
class Declared:
    """An argument, or a field of the configuration."""

    kind: Any
    bounds: Mapping[str, Any]
    is_none_by_default: bool
    takes_any: bool
    """Whether one of vLLM's validators sees the value before the annotation is applied."""


class _UnwritableError(Exception):
    """No value of this type can stand in a configuration."""


def table() -> Path:
    """The file of the installed version."""
    from vllm import __version__

    return TABLES / f"{module_name(__version__)}.py"


def source() -> str:
    """The text of the module."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    types_ = _Types()
    arguments = {name: types_.declared(each) for name, each in _arguments(AsyncEngineArgs).items()}
    lines = [
        _HEAD,
        *types_.tables.values(),
        "ARGUMENTS: dict[str, Any] = {",
        *(f"    {_literal(name)}: {arguments[name]}," for name in sorted(arguments)),
        "}",
        _names("TOOL_PARSERS", ToolParserManager.list_registered()),
        _names("REASONING_PARSERS", ReasoningParserManager.list_registered()),
    ]
    return "\n".join(lines) + "\n"


def _names(title: str, names: Iterable[str]) -> str:
    return f"{title} = frozenset([{', '.join(map(_literal, sorted(names)))}])"


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


class _Types:
    """Writes types as source. `tables`: the classes that were named, each after those that it names
    itself."""

    def __init__(self) -> None:
        self.tables: dict[str, str] = {}

    def declared(self, declared: Declared) -> str:
        if declared.takes_any:
            return "Any"
        try:
            members = self._members(declared.kind, declared.bounds)
        except _UnwritableError:
            return "Any"
        return _union([*members, "None"] if declared.is_none_by_default else members)

    def _members(self, kind: Any, bounds: Mapping[str, Any]) -> list[str]:
        """The members of a union, or the type itself. Raises _UnwritableError."""
        found = []
        for each in get_args(kind) if _is_union(kind) else (kind,):
            try:
                found.append(_bounded(self._written(each), each, bounds))
            except _UnwritableError:
                continue
        if not found:
            raise _UnwritableError
        return found

    def _written(self, kind: Any) -> str:
        """Raises _UnwritableError."""
        origin, inner = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self._written(inner[0])
        if origin is Literal:
            return f"Literal[{', '.join(map(_literal, inner))}]"
        if _is_union(kind):
            return _union(self._members(kind, {}))
        if origin in _WORDS:
            return f"{_WORDS[origin]}[{', '.join(map(self._written, inner))}]"
        if kind in _ALONE or kind in _WORDS:
            return _ALONE.get(kind) or _WORDS[kind]
        if isinstance(kind, type) and issubclass(kind, Enum):
            return "Any"  # vLLM's own parser takes names or values
        if _is_config(kind):
            return self._table(kind)
        raise _UnwritableError

    def _table(self, config: Any) -> str:
        fields = _fields(config)
        if not fields or _validates_all_first(config):
            return "dict[str, Any]"
        if config.__name__ not in self.tables:
            lines = [f"    {name}: {self.declared(each)}" for name, each in fields.items()]
            head = '@with_config(ConfigDict(extra="forbid"))'
            named = f"class {config.__name__}(TypedDict, total=False):"
            self.tables[config.__name__] = "\n".join([head, named, *lines, "", ""])
        return str(config.__name__)


def _union(members: list[str]) -> str:
    return "Any" if "Any" in members else " | ".join(dict.fromkeys(members))


def _bounded(text: str, kind: Any, bounds: Mapping[str, Any]) -> str:
    """In a union, bounds apply to the numbers or the collections."""
    wanted = int if bounds.keys() - {"min_length", "max_length"} else _ALONE
    is_meant = kind in (int, float) if wanted is int else (get_origin(kind) or kind) in _ALONE
    if not bounds or not is_meant:
        return text
    return f"Annotated[{text}, Field({', '.join(f'{k}={v!r}' for k, v in bounds.items())})]"


def _arguments(cls: type) -> dict[str, Declared]:
    import vllm.config.quantization as named_in_quotes  # arg_utils.py imports it for types only

    hints = get_type_hints(cls, localns=vars(named_in_quotes), include_extras=True)
    ends = _ends(cls)
    found = {}
    for field in dataclasses.fields(cls):
        if not field.name.startswith("_"):
            into = ends.get(field.name)
            is_none = field.default is None or (into is not None and into.is_none_by_default)
            found[field.name] = Declared(
                hints[field.name],
                {} if into is None else into.bounds,
                is_none,
                into is not None and into.takes_any,
            )
    return found


def _fields(config: Any) -> dict[str, Declared]:
    """The fields that may be set."""
    validators = config.__pydantic_decorators__.field_validators.values()
    first = {name for v in validators if v.info.mode == "before" for name in v.info.fields}
    return {
        name: Declared(
            info.annotation,
            {
                bound: value
                for each in info.metadata
                for bound in _BOUNDS
                if (value := getattr(each, bound, None)) is not None
            },
            info.default is None,
            bool(first & {name, "*"}),
        )
        for name, info in config.__pydantic_fields__.items()
        if not name.startswith("_") and info.init is not False
    }


def _validates_all_first(config: Any) -> bool:
    found = config.__pydantic_decorators__.model_validators.values()
    return any(each.info.mode == "before" for each in found)


def _ends(cls: type) -> dict[str, Declared]:
    """For each argument, the configuration's field that gets its value unchanged."""
    found: dict[str, Declared] = {}
    for owner in cls.__mro__[:-1]:
        module = vars(sys.modules[owner.__module__])
        for argument, config, name in _ends_in(ast.parse(inspect.getsource(owner))):
            if _is_config(module.get(config)) and (into := _fields(module[config]).get(name)):
                found.setdefault(argument, into)
    return found


def _ends_in(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Argument, configuration and field: first of `Config(field=self.argument)` in methods, then of
    defaults, `argument = Config.field` and `argument = get_field(Config, "field")`."""
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for keyword in node.keywords:
                match keyword.value:
                    case ast.Attribute(value=ast.Name(id="self"), attr=argument) if keyword.arg:
                        yield argument, node.func.id, keyword.arg
    for node in nodes:
        match node:
            case ast.AnnAssign(
                target=ast.Name(id=argument),
                value=(
                    ast.Attribute(value=ast.Name(id=config), attr=name)
                    | ast.Call(
                        func=ast.Name(id="get_field"),
                        args=[ast.Name(id=config), ast.Constant(value=str(name))],
                    )
                ),
            ):
                yield argument, config, name


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__pydantic_fields__")


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


if __name__ == "__main__":
    table().write_text(source(), encoding="utf-8")
