"""The touch points with vLLM: which of its files our modules rely on, and which names there.

A module imports them, or states them in the last paragraph of its docstring: after "Touch points of
vLLM:", paths inside vLLM's package, each before the names in backquotes that are used of the file.
"""

import ast
import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
OURS = ROOT / "controller"
HEADING = re.compile(r"^Touch points of vLLM[^:]*:", re.MULTILINE)
WORD = re.compile(r"(?P<path>[\w/]+\.py)|`(?P<name>[A-Za-z_][\w.]*)`")


class TouchPoint(NamedTuple):
    path: str
    """Inside vLLM's package."""
    name: str


def by_touch_point() -> dict[TouchPoint, list[str]]:
    """Our modules that rely on each touch point."""
    users = defaultdict(list)
    for file in sorted(OURS.glob("**/*.py")):
        for point in of_module(file):
            users[point].append(str(file.relative_to(ROOT)))
    return dict(sorted(users.items()))


@cache
def of_module(file: Path) -> frozenset[TouchPoint]:
    tree = ast.parse(file.read_text())
    return frozenset([*_stated(ast.get_docstring(tree) or ""), *_imported(tree)])


def behind(places: Iterable[tuple[Path, str]], test: Path) -> list[TouchPoint]:
    """What a failure has touched. `places`: files and statements of its traceback, from the outside
    in. The innermost place in a module with touch points counts: those that its statement names, or
    all of the module. Without such a place, all touch points of the modules that the test imports.
    """
    for file, statement in reversed(list(places)):
        points = of_module(file) if file.is_relative_to(OURS) else frozenset()
        if points:
            words = set(re.findall(r"\w+", statement))
            return sorted([p for p in points if words & set(p.name.split("."))] or points)
    modules = [OURS.parent / f"{name.replace('.', '/')}.py" for name in _imports_of_ours(test)]
    return sorted({point for file in modules if file.is_file() for point in of_module(file)})


def what_is_missing(point: TouchPoint) -> str:
    """What the installed vLLM lacks; empty if it lacks nothing."""
    names = _names(point.path)
    if names is None:
        return f"vllm/{point.path} does not exist"
    missing = [name for name in point.name.split(".") if name not in names]
    return f"vllm/{point.path} has no `{missing[0]}`" if missing else ""


def _stated(text: str) -> Iterator[TouchPoint]:
    heading = HEADING.search(text)
    path = ""
    for word in WORD.finditer(text, heading.end()) if heading else ():
        if word["path"]:
            path = word["path"]
        else:
            yield TouchPoint(path, word["name"])


def _imported(tree: ast.Module) -> Iterator[TouchPoint]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm":
            folder = (node.module or "").partition(".")[2].replace(".", "/")
            package = _vllm() / folder
            path = f"{folder}/__init__.py".lstrip("/") if package.is_dir() else f"{folder}.py"
            yield from (TouchPoint(path, alias.name) for alias in node.names)


def _imports_of_ours(test: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(test.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("controller."):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def _names(path: str) -> frozenset[str] | None:
    """What a file of vLLM defines, assigns, imports or has beside it; None if it does not exist."""
    file = _vllm() / path
    if not file.is_file():
        return None
    beside = [each.stem for each in file.parent.iterdir()] if file.stem == "__init__" else []
    return frozenset([*_defined(ast.parse(file.read_text())), *beside])


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.alias):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


@cache
def _vllm() -> Path:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
