"""How large the product is, file by file and as a whole: `make sizes` prints it beside the aims.

How it counts:

- *Files* are all Python files of `controller`, `llumctl` and `tui`. An `__init__.py` is one too,
  even if it holds nothing but a docstring.
- *Code* is lines with code on them: no blank lines, no comments, no docstrings of modules, classes
  and functions. Other strings count with all of their lines, also those that describe a field.
- *Short* files have fewer than 60 lines of any kind. An `__init__.py` is never one, as a package
  needs it.
- *One importer* counts modules that exactly one other module of the product imports. A package
  counts where it is imported itself, and not where only a module of it is.
- *Import circles* are groups of modules that import each other.

All imports count: those inside functions and those for type checks, too. Nothing here fails; the
figures are for people. `--list` names the short files, the modules with one importer, and the
circles.
"""

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("controller", "llumctl", "tui")
TESTS = "tests"
SHORT_LINES = 60
AT_MOST = (320, 49_000, 40, 60)
BETTER = ("", 46_000)
"""The aims, in the table's columns: the limits, and better values."""
MAX_CIRCLES = 0
MAX_TEST_LINES, BETTER_TEST_LINES = 50_000, 42_000
NO_CODE = frozenset(
    {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        *(tokenize.ENCODING, tokenize.ENDMARKER),
    }
)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    path: str
    """The path from the root, with slashes."""
    num_lines: int
    num_code_lines: int
    imports: frozenset[str]
    """The other modules of the product that this one imports."""

    @property
    def room(self) -> str:
        top, *rest = self.path.split("/")
        return f"{top}/{rest[0]}" if top == "controller" and len(rest) > 1 else top

    @property
    def is_short(self) -> bool:
        return self.num_lines < SHORT_LINES and not self.path.endswith("/__init__.py")


def main() -> None:
    parser = argparse.ArgumentParser(description="How large the product is, beside the aims.")
    parser.add_argument(
        "--list",
        action="store_true",
        help="name the short files, the modules with one importer, and the circles",
    )
    asked = parser.parse_args()
    modules = modules_of(ROOT)
    tests = (path.read_text(encoding="utf-8") for path in (ROOT / TESTS).rglob("*.py"))
    lines = table(modules, sum(map(num_code_lines, tests)))
    sys.stdout.write("\n".join([*lines, *(listing(modules) if asked.list else ())]) + "\n")


def modules_of(root: Path) -> list[Module]:
    """All modules of the product below `root`."""
    paths = [path for top in PRODUCT for path in sorted((root / top).rglob("*.py"))]
    by_name = {name_of(path.relative_to(root)): path for path in paths}
    return [_module(name, path, root, by_name.keys()) for name, path in by_name.items()]


def _module(name: str, path: Path, root: Path, known: Set[str]) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    return Module(
        name,
        path.relative_to(root).as_posix(),
        len(text.splitlines()),
        num_code_lines(text),
        frozenset(known & set(imported(tree, known)) - {name}),
    )


def name_of(path: Path) -> str:
    """`tui/app.py` -> `tui.app`; a package has the name of its folder."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def num_code_lines(text: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


def imported(tree: ast.Module, known: Set[str]) -> Iterator[str]:
    """The names of the modules that a module imports anywhere. `known` tells whether `from a import
    b` imports a module. Imports of this tree are absolute."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(source), names=names):
                inner = [f"{source}.{each.name}" for each in names]
                yield from (each if each in known else source for each in inner)


def importers(modules: Iterable[Module]) -> Counter[str]:
    """For each module, how many other modules import it."""
    return Counter(name for module in modules for name in module.imports)


def circles(imports: Mapping[str, Set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module, by Tarjan's algorithm."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        path.append(name)
        for other in sorted(imports.get(name, ())):
            if other not in numbers:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in path:
                lowest[name] = min(lowest[name], numbers[other])
        if lowest[name] == numbers[name]:
            start = path.index(name)
            group = sorted(path[start:])
            del path[start:]
            if len(group) > 1:
                found.append(group)

    for name in sorted(imports):
        if name not in numbers:
            visit(name)
    return found


def table(modules: Sequence[Module], num_test_lines: int) -> list[str]:
    counts = importers(modules)
    rooms = sorted({module.room for module in modules})
    rows = [(room, [m for m in modules if m.room == room]) for room in rooms]
    lines = [_row("", "files", "code", "short", "one importer")]
    for room, found in (*rows, ("together", modules)):
        lines.append(
            _row(
                room,
                len(found),
                sum(module.num_code_lines for module in found),
                sum(module.is_short for module in found),
                sum(counts[module.name] == 1 for module in found),
            )
        )
    num_circles = len(circles({module.name: module.imports for module in modules}))
    return [
        *lines,
        _row("aim, at most", *AT_MOST),
        _row("better", *BETTER),
        "",
        f"import circles: {num_circles} (aim: {MAX_CIRCLES})",
        f"code of tests: {num_test_lines:,} lines (aim: {MAX_TEST_LINES:,} at most, better"
        f" {BETTER_TEST_LINES:,})",
    ]


def _row(room: str, *figures: int | str) -> str:
    cells = (f"{each:,}" if isinstance(each, int) else each for each in figures)
    return f"{room:<22}" + "".join(f"{cell:>14}" for cell in cells)


def listing(modules: Sequence[Module]) -> Iterator[str]:
    counts = importers(modules)
    importer = {name: m.name for m in modules for name in m.imports}
    yield f"\nshorter than {SHORT_LINES} lines:"
    yield from (f"  {m.num_lines:>3} {m.path}" for m in modules if m.is_short)
    yield "\nimported by one module:"
    yield from (f"  {m.name} by {importer[m.name]}" for m in modules if counts[m.name] == 1)
    yield "\nimport each other:"
    yield from (f"  {', '.join(group)}" for group in circles({m.name: m.imports for m in modules}))


if __name__ == "__main__":
    main()
