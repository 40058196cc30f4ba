"""What vLLM declares of its arguments, read from its source, as importing vLLM takes 9 s.

An annotation becomes a type that pydantic checks values against, as JSON or TOML can write them:
members that only Python can write (a class, a function) are left out, and an annotation that cannot
be read allows any value. A class of vLLM's configuration becomes a table of its fields. Bounds are
those of pydantic's `Field`. A field that vLLM's own validators look at first (mode "before") may
take more than its annotation says, so it takes any value here.

Touch points of vLLM: engine/arg_utils.py `EngineArgs`, `AsyncEngineArgs`, of which the methods
say into which configuration an argument goes; config/*.py, classes of pydantic dataclasses.
"""

import ast
import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, Field, create_model

from controller.api.errors import LlumctlError

_BUILTINS = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "dict": dict,
    "list": list,
    "set": set,
    "tuple": tuple,
    "Any": Any,
    "object": Any,
}
_GENERIC: dict[str, Any] = {"list": list, "set": set, "dict": dict, "tuple": tuple}
_BOUNDS = frozenset({"ge", "gt", "le", "lt", "min_length", "max_length", "multiple_of"})
_ANY_FIELD = "*"


class _UnwritableError(Exception):
    """No value of this type can stand in a configuration."""


@dataclass(frozen=True)
class Declared:
    """A field of a class, with its module and class."""

    module: "Module"
    owner: ast.ClassDef
    node: ast.AnnAssign

    @property
    def bounds(self) -> dict[str, Any]:
        calls = [self.node.value, *ast.walk(self.node.annotation)]
        return {
            keyword.arg: ast.literal_eval(keyword.value)
            for call in calls
            if isinstance(call, ast.Call) and _name(call.func) == "Field"
            for keyword in call.keywords
            if keyword.arg in _BOUNDS and _is_literal(keyword.value)
        }

    @property
    def has_no_default_but_none(self) -> bool:
        value = self.node.value
        if isinstance(value, ast.Call):
            value = next((k.value for k in value.keywords if k.arg == "default"), None)
        return isinstance(value, ast.Constant) and value.value is None

    @property
    def is_looked_at_first(self) -> bool:
        """Whether a validator of vLLM's sees the value before the annotation counts."""
        name = _target(self.node)
        return any(name in names or _ANY_FIELD in names for names in _validated_first(self.owner))


class Source:
    """vLLM's source tree; `root` is the folder of the package."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> "Module | None":
        """The module of a dotted name; None if it is not vLLM's, or does not exist."""
        if name not in self._modules:
            self._modules[name] = self._parse(name)
        return self._modules[name]

    def need(self, name: str) -> "Module":
        """Raises LlumctlError if the module does not exist: this is another vLLM."""
        module = self.module(name)
        if module is None:
            raise LlumctlError(f"vLLM has no module {name}", "llumctl doctor")
        return module

    def _parse(self, name: str) -> "Module | None":
        package, *parts = name.split(".")
        if package != "vllm":
            return None
        place = self.root.joinpath(*parts)
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                tree = ast.parse(file.read_text(encoding="utf-8"))
                return Module(self, name, tree, is_package=file.name == "__init__.py")
        return None


class Module:
    def __init__(self, source: Source, name: str, tree: ast.Module, *, is_package: bool) -> None:
        self.source = source
        self.name = name
        self._package = name if is_package else name.rpartition(".")[0]
        self.values: dict[str, ast.expr] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self._imported: dict[str, tuple[str, str]] = {}
        for node in _statements(tree.body):
            self._take(node)

    def _take(self, node: ast.stmt) -> None:
        if isinstance(node, ast.ClassDef):
            self.classes.setdefault(node.name, node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self.values.setdefault(node.targets[0].id, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.values.setdefault(_target(node), node.value)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = self._package.split(".")
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                self._imported.setdefault(alias.asname or alias.name, (base, alias.name))

    def find(self, name: str) -> "tuple[Module, ast.expr | ast.ClassDef] | None":
        """The alias or class `name`, and the module that defines it."""
        found = self.classes.get(name) or self.values.get(name)
        if found is not None:
            return self, found
        base, original = self._imported.get(name, ("", ""))
        module = self.source.module(base) if base else None
        return module.find(original) if module else None

    def fields(self, class_name: str) -> dict[str, Declared]:
        """Fields of the class and its bases, without private ones."""
        found = self.find(class_name)
        if found is None:
            return {}
        module, owner = found
        if not isinstance(owner, ast.ClassDef):
            return {}
        fields: dict[str, Declared] = {}
        for base in owner.bases:
            fields |= module.fields(_name(base))
        for node in owner.body:
            if not isinstance(node, ast.AnnAssign) or _target(node).startswith("_"):
                continue
            if _name(node.annotation) not in ("ClassVar", "InitVar"):
                fields[_target(node)] = Declared(module, owner, node)
        return fields

    def keys(self, name: str) -> frozenset[str]:
        """Keys of a dictionary that is written out. Raises LlumctlError."""
        found = self.values.get(name)
        if not isinstance(found, ast.Dict):
            raise LlumctlError(f"vLLM's {self.name} has no table {name}", "llumctl doctor")
        return frozenset(str(key.value) for key in found.keys if isinstance(key, ast.Constant))

    def kind(self, node: ast.expr) -> Any:
        """The type that an annotation means. Raises _UnwritableError."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return self.kind(ast.parse(node.value, mode="eval").body)
            return node.value
        if isinstance(node, ast.BinOp):
            return _union([*self._members(node.left), *self._members(node.right)])
        if isinstance(node, ast.Subscript):
            return self._subscripted(node)
        if isinstance(node, ast.Name):
            return self._named(node.id)
        raise _UnwritableError

    def _members(self, node: ast.expr) -> list[Any]:
        try:
            return [self.kind(node)]
        except _UnwritableError:
            return []

    def _subscripted(self, node: ast.Subscript) -> Any:
        name = _name(node.value)
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name == "Literal":
            return Literal[tuple(self._choice(item) for item in inner)]
        if name in ("Annotated", "SkipValidation", "Required", "NotRequired"):
            return self.kind(inner[0])
        if name == "Optional":
            return _union([*self._members(inner[0]), None])
        if name == "Union":
            return _union([kind for item in inner for kind in self._members(item)])
        if name not in _GENERIC:
            raise _UnwritableError
        kinds = [
            ... if isinstance(item, ast.Constant) and item.value is ... else self.kind(item)
            for item in inner
        ]
        return _GENERIC[name][tuple(kinds)]

    def _choice(self, node: ast.expr) -> Any:
        """A value of a Literal, or another Literal by its name."""
        return node.value if isinstance(node, ast.Constant) else self.kind(node)

    def _named(self, name: str) -> Any:
        if name in _BUILTINS:
            return _BUILTINS[name]
        found = self.find(name)
        if found is None:
            raise _UnwritableError
        module, node = found
        if not isinstance(node, ast.ClassDef):
            return module.kind(node)
        if any(_name(base).endswith("Enum") for base in node.bases):
            return Any  # an Enum's own parser takes names or values
        return module.table(node.name)

    @functools.cache  # noqa: B019  (modules live as long as the process)
    def table(self, class_name: str) -> Any:
        """A configuration class as a table whose keys are all optional."""
        fields = self.fields(class_name)
        if not fields or _validates_all_first(self.classes[class_name]):
            return dict[str, Any]
        # Aliases keep vLLM's names apart from those of the methods that pydantic gives a model.
        keys: dict[str, Any] = {
            f"key_{number}": (kind_of(declared), Field(None, alias=name))
            for number, (name, declared) in enumerate(fields.items())
        }
        return create_model(class_name, __config__=ConfigDict(extra="forbid", strict=True), **keys)


def kind_of(declared: Declared, into: Declared | None = None) -> Any:
    """The type of a field; `into`: the field of a configuration that gets its value."""
    if declared.is_looked_at_first or (into is not None and into.is_looked_at_first):
        return Any
    try:
        kind = declared.module.kind(declared.node.annotation)
    except _UnwritableError:
        return Any
    bounds = declared.bounds | (into.bounds if into is not None else {})
    if bounds:
        kind = _bounded(kind, bounds)
    sources = [declared] if into is None else [declared, into]
    may_be_none = any(each.has_no_default_but_none for each in sources)
    return _union([kind, None]) if may_be_none else kind


def argument_kind(module: Module, declared: Declared) -> Any:
    """The type of an engine argument, also by the configuration's field that gets its value."""
    name = _target(declared.node)
    place = _ends_in(declared.owner).get(name) or _default_of(declared.node.value)
    into = module.fields(place[0]).get(place[1]) if place else None
    return kind_of(declared, into)


def _default_of(node: ast.expr | None) -> tuple[str, str] | None:
    """Class and field of a default that is `Config.field` or `get_field(Config, "field")`."""
    if isinstance(node, ast.Attribute):
        return _name(node.value), node.attr
    if isinstance(node, ast.Call) and _name(node.func) == "get_field":
        owner, name = node.args
        return _name(owner), str(ast.literal_eval(name))
    return None


@functools.cache
def _ends_in(owner: ast.ClassDef) -> dict[str, tuple[str, str]]:
    """Argument -> class and field of the configuration to which a method passes it unchanged."""
    found: dict[str, tuple[str, str]] = {}
    for call in ast.walk(owner):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            for keyword in call.keywords:
                value = keyword.value
                if (
                    keyword.arg
                    and isinstance(value, ast.Attribute)
                    and _name(value.value) == "self"
                    and call.func.id[:1].isupper()
                ):
                    found.setdefault(value.attr, (call.func.id, keyword.arg))
    return found


@functools.cache
def installed() -> Source:
    """Raises LlumctlError."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise LlumctlError("vLLM is not installed", "llumctl doctor")
    return Source(Path(spec.origin).parent)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements, also those under `if TYPE_CHECKING:`, whose types are more precise."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _statements(node.body)
            yield from _statements(node.orelse)
        else:
            yield node


def _bounded(kind: Any, bounds: dict[str, Any]) -> Any:
    """Bounds the numbers of a union; its other members stay as they are."""
    members = get_args(kind) if get_origin(kind) is Union else (kind,)
    return _union([Annotated[m, Field(**bounds)] if m in (int, float) else m for m in members])


def _union(kinds: list[Any]) -> Any:
    if not kinds:
        raise _UnwritableError
    if Any in kinds:
        return Any
    return Union[tuple(kinds)]  # noqa: UP007  (their number is not fixed)


def _validated_first(owner: ast.ClassDef) -> Iterator[set[Any]]:
    for call in _decorators(owner, "field_validator"):
        if _mode(call) == "before":
            yield {item.value for item in call.args if isinstance(item, ast.Constant)}


def _validates_all_first(owner: ast.ClassDef) -> bool:
    return any(_mode(call) == "before" for call in _decorators(owner, "model_validator"))


def _decorators(owner: ast.ClassDef, name: str) -> Iterator[ast.Call]:
    for node in owner.body:
        for call in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(call, ast.Call) and _name(call.func) == name:
                yield call


def _mode(call: ast.Call) -> str:
    return next(
        (
            str(k.value.value)
            for k in call.keywords
            if k.arg == "mode" and isinstance(k.value, ast.Constant)
        ),
        "after",
    )


def _name(node: ast.expr) -> str:
    """The name of an expression that is named or subscripted; '' for others."""
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _target(node: ast.AnnAssign) -> str:
    return node.target.id if isinstance(node.target, ast.Name) else "_"


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True
