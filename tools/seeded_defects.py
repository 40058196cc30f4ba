"""Seeds defects in the code and sees which of them the unit tests find.

    python -m tools.seeded_defects draw 200 --seed 1 --to defects.json
    python -m tools.seeded_defects run defects.json --to before.jsonl
    python -m tools.seeded_defects compare before.jsonl after.jsonl

A defect is one edit of one place: an off-by-one, a message that is not sent, a swapped branch, a
missing await, a wrong comparison, a changed constant. The number of defects in a module goes by how
many places it has, and within the module each kind is as likely as any other. A place is named by
its module, the qualified name of its function or class, its kind and its index there, with the text
that it has; so it is found again in a tree where the function has moved to another module.

`run` edits a copy of the working tree, never the tree itself. For each defect it runs the unit
tests that import the module, the nearest first, until one fails or the time is up. A test that
fails without the defect too finds nothing. A run that was interrupted goes on where it was, if it
is started again with the same file of results.
"""

import argparse
import ast
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("controller", "llumctl", "tui")
GENERATED = (
    "controller.main.checks.vllm_arguments.v0_32",
    "controller.main.checks.vllm_arguments.v0_33",
)
COPIED = (*PACKAGES, "tests", "tools", "benchmarks", "examples", "docs", "requirements")
COPIED_FILES = (
    "pyproject.toml",
    "Makefile",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
)
TEST_LIMIT_S = 180.0
HANGS_S = 60.0
"""A test that takes longer fails: some defects make a test wait for ever."""
REACH = 2
"""How many modules of the product may stand between a test and the one with the defect."""


class Kind(StrEnum):
    OFF_BY_ONE = "off by one"
    DROPPED_MESSAGE = "dropped message"
    SWAPPED_BRANCH = "swapped branch"
    MISSING_AWAIT = "missing await"
    WRONG_COMPARISON = "wrong comparison"
    CONSTANT_CHANGED = "constant changed"


@dataclass(frozen=True, slots=True)
class Defect:
    """`name`: the qualified name of the function or class, empty at the module's level. `index`:
    which of the places of this kind there. `before`, `after`: the text of the place, on one
    line."""

    module: str
    name: str
    kind: Kind
    index: int
    before: str
    after: str

    @property
    def id(self) -> str:
        """Stays the same when the module gets another name."""
        text = f"{self.name} {self.kind} {self.index} {self.before}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:6]
        return f"{self.name or self.module.rpartition('.')[2]}:{digest}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a defect may be seeded: the node's text is replaced by `after`."""

    name: str
    kind: Kind
    index: int
    node: ast.expr | ast.stmt
    after: str

    @property
    def before(self) -> str:
        return ast.unparse(self.node)


# -- places ------------------------------------------------------------------------------


def places(source: str) -> list[Place]:
    """All places of a module, in their order."""
    found = _Places()
    found.visit(ast.parse(source))
    return found.found


_OPPOSITE: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SENDS = re.compile(r"_?(send|emit|push|put|append|extend|tell|notify|publish|post|order|ask)")


class _Places(ast.NodeVisitor):
    """Docstrings, annotations, assertions, text and log lines have no places: a change there is
    none of behaviour. Neither has what stands within an f-string, whose nodes Python 3.11 places
    wrongly."""

    def __init__(self) -> None:
        self.found: list[Place] = []
        self._names: list[str] = []
        self._depth = 0
        """How many functions it is within."""
        self._counts = Counter[tuple[str, Kind]]()

    def _add(self, kind: Kind, node: ast.expr | ast.stmt, after: str) -> None:
        name = ".".join(self._names)
        self.found.append(Place(name, kind, self._counts[name, kind], node, after))
        self._counts[name, kind] += 1

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.ClassDef(name=name):
                self._inside(name, node.body)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self._depth += 1
                self._inside(name, node.body)
                self._depth -= 1
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name))
            ) if not self._depth and node.value is not None:
                self._inside(name, [ast.Return(node.value)])
            case _:
                super().visit(node)

    def _inside(self, name: str, nodes: Iterable[ast.AST]) -> None:
        """A constant outside of functions has a name as they have: many have the same value."""
        self._names.append(name)
        for each in nodes:
            self.visit(each)
        self._names.pop()

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) not in ("TYPE_CHECKING", "__name__ == '__main__'"):
            self._add(Kind.SWAPPED_BRANCH, node.test, f"not ({ast.unparse(node.test)})")
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._add(Kind.SWAPPED_BRANCH, node.test, f"(not ({ast.unparse(node.test)}))")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        match node.value:
            case ast.Yield():
                self._add(Kind.DROPPED_MESSAGE, node.value, "False and (yield)")
            case ast.Await(value=ast.Call() as call) | (ast.Call() as call):
                if _is_log(call):
                    return
                if _SENDS.match(_method(call)):
                    self._add(Kind.DROPPED_MESSAGE, node, "pass")
            case ast.Constant():
                return
        self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> None:
        self._add(Kind.MISSING_AWAIT, node, f"({ast.unparse(node.value)})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        changed = ast.Compare(
            node.left, [_OPPOSITE[type(node.ops[0])](), *node.ops[1:]], node.comparators
        )
        self._add(Kind.WRONG_COMPARISON, node, ast.unparse(changed))
        self._off_by_one(node.left, *node.comparators)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add | ast.Sub):
            self._off_by_one(node.right)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not self._depth:
            return  # of types
        match node.slice:
            case ast.Slice(lower=low, upper=high):
                self._off_by_one(*(each for each in (low, high) if each is not None))
            case only:
                self._off_by_one(only)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _is_log(node):
            return
        if isinstance(node.func, ast.Name) and node.func.id == "range":
            self._off_by_one(*node.args)
        self.generic_visit(node)

    def _off_by_one(self, *nodes: ast.expr) -> None:
        for each in nodes:
            if isinstance(each, ast.Constant) and type(each.value) is int:
                self._add(Kind.OFF_BY_ONE, each, f"{each.value + 1}")

    def visit_Assign(self, node: ast.Assign) -> None:
        self._constant(node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._constant(node.value)
            self.visit(node.value)

    def visit_keyword(self, node: ast.keyword) -> None:
        self._constant(node.value)
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self._constant(node.value)
            self.visit(node.value)

    def _constant(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant):
            match node.value:
                case bool(value):
                    self._add(Kind.CONSTANT_CHANGED, node, f"{not value}")
                case int(number) | float(number):
                    self._add(Kind.CONSTANT_CHANGED, node, repr(number * 2 or type(number)(1)))

    def visit_JoinedStr(self, _: ast.JoinedStr) -> None:
        pass

    def visit_Assert(self, _: ast.Assert) -> None:
        pass


def _method(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _is_log(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id=name)):
            return name in ("log", "logger", "warnings")
    return False


# -- drawing -----------------------------------------------------------------------------


def modules(root: Path, tops: Iterable[str] = PACKAGES) -> dict[str, Path]:
    """The file of each module of these folders, by its name."""
    found = {}
    for top in tops:
        for file in sorted((root / top).rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def draw(root: Path, number: int, seed: int) -> list[Defect]:
    """So many different defects. By systematic sampling: each module gets its share by its number
    of places, to within one."""
    rng = random.Random(seed)
    by_module = {
        name: there
        for name, file in modules(root).items()
        if name not in GENERATED and (there := places(file.read_text(encoding="utf-8")))
    }
    ends, total = [], 0
    for name, there in by_module.items():
        total += len(there)
        ends.append((total, name))
    step = total / number
    start = rng.random() * step
    found: dict[str, Defect] = {}
    for each in range(number):
        name = next(module for end, module in ends if start + each * step < end)
        left = [p for p in by_module[name] if _defect(name, p).id not in found]
        if not left:
            continue
        kind = rng.choice(sorted({each.kind for each in left}))
        place = rng.choice([each for each in left if each.kind is kind])
        defect = _defect(name, place)
        found[defect.id] = defect
    return list(found.values())


def _defect(module: str, place: Place) -> Defect:
    return Defect(module, place.name, place.kind, place.index, place.before, place.after)


def located(root: Path, defect: Defect) -> tuple[str, Place] | None:
    """The module and the place of a defect in this tree: in its own module or, if the function is
    not there any more, in any other one. A function may have come to another class, or may have
    left one. Where the text is more than once, the index decides."""
    known = modules(root)
    for names in ([defect.module] if defect.module in known else [], sorted(known)):
        there = [
            (name, place)
            for name in names
            for place in places(known[name].read_text(encoding="utf-8"))
            if (place.kind, place.before) == (defect.kind, defect.before)
            and place.name.rpartition(".")[2] == defect.name.rpartition(".")[2]
        ]
        exact = [each for each in there if each[1].name == defect.name]
        same = [each for each in exact or there if each[1].index == defect.index]
        for found in (same, exact, there):
            if len(found) == 1:
                return found[0]
    return None


def seeded(source: str, place: Place) -> str:
    """The module's source with the defect. Columns of nodes count bytes."""
    lines = source.encode().splitlines(keepends=True)
    first, last = place.node.lineno - 1, (place.node.end_lineno or 0) - 1
    text = (
        lines[first][: place.node.col_offset]
        + place.after.encode()
        + lines[last][place.node.end_col_offset :]
    )
    return b"".join((*lines[:first], text, *lines[last + 1 :])).decode()


# -- which tests -------------------------------------------------------------------------


def imports(file: Path, known: Mapping[str, Path]) -> set[str]:
    """The modules among `known` that a file imports, also lazily."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found |= {each.name for each in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module, *(f"{module}.{each.name}" for each in names)}
    return found & known.keys()


def files_of_tests(root: Path, module: str, reach: int) -> list[Path]:
    """The unit tests that import the module, the nearest first: themselves, by their helpers, or by
    modules of the product, of which at most `reach` stand between. If there is none so near, the
    nearest there are."""
    known = modules(root, (*PACKAGES, "tests", "tools", "benchmarks"))
    importers: dict[str, set[str]] = {}
    for name, file in known.items():
        for each in imports(file, known):
            importers.setdefault(each, set()).add(name)
    distances = {module: 0}
    queue = deque([module])
    while queue:
        name = queue.popleft()
        for each in importers.get(name, ()):
            is_product = each.partition(".")[0] in PACKAGES
            distance = distances[name] + is_product
            if distance < distances.get(each, 1_000_000):
                distances[each] = distance
                (queue.append if is_product else queue.appendleft)(each)
    tests = {
        name: distance
        for name, distance in distances.items()
        if name.startswith("tests.unit.") and name.rpartition(".")[2].startswith("test_")
    }
    limit = max(reach, min(tests.values(), default=0))
    near = sorted((distance, name) for name, distance in tests.items() if distance <= limit)
    return [known[name] for _, name in near]


# -- running -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    """`outcome`: found; not found; late (not found in the time that all tests have together); gone
    (the place is not in this tree any more); no tests; broken (the test fails without the defect,
    too)."""

    id: str
    kind: Kind
    module: str
    outcome: str
    by: str = ""
    duration_s: float = 0.0

    @property
    def is_found(self) -> bool:
        return self.outcome == "found"


Runner = Callable[[Path, Sequence[str], float], "tuple[int | None, str]"]
"""(the tree, files or tests, how long it may take) -> (exit code or None, output)."""


def pytest(tree: Path, tests: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    """Runs tests of a tree in a process group of their own, up to the first that fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider"]
    command += [
        "--hypothesis-seed=0",
        f"--timeout={HANGS_S:g}",
        "-m",
        "not full and not process",
        *tests,
    ]
    environ = os.environ | {
        "HYPOTHESIS_PROFILE": "few",
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=tree, env=environ, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
        output.seek(0)
        return code, output.read()


def copied(root: Path, to: Path) -> None:
    """The part of the tree that unit tests see."""
    skip = shutil.ignore_patterns("__pycache__", "results", "*.pyc")
    for name in COPIED:
        if (root / name).exists():
            shutil.copytree(root / name, to / name, ignore=skip)
    for name in COPIED_FILES:
        if (root / name).exists():
            shutil.copy(root / name, to / name)


def tried(tree: Path, defect: Defect, limit_s: float, run: Runner = pytest) -> Result:
    """Seeds the defect in the tree, runs the tests, and takes the defect back."""
    began_s = time.monotonic()

    def result(outcome: str, by: str = "", module: str = defect.module) -> Result:
        lasted_s = round(time.monotonic() - began_s, 1)
        return Result(defect.id, defect.kind, module, outcome, by, lasted_s)

    found = located(tree, defect)
    if found is None:
        return result("gone")
    module, place = found
    file = modules(tree)[module]
    tests = [str(each.relative_to(tree)) for each in files_of_tests(tree, module, REACH)]
    if not tests:
        return result("no tests", module=module)
    source = file.read_text(encoding="utf-8")
    file.write_text(seeded(source, place), encoding="utf-8")
    try:
        code, output = run(tree, tests, limit_s)
    finally:
        file.write_text(source, encoding="utf-8")
    if code is None:
        return result("late", module=module)
    if code in (0, 5):
        return result("not found", module=module)
    by = failed(output)
    again, _ = run(tree, [by] if by else tests, limit_s)
    return result("found" if again in (0, 5) else "broken", by, module)


def failed(output: str) -> str:
    """The test, or the file, that pytest's summary names first."""
    match = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", output, re.MULTILINE)
    return match[1] if match else ""


def run_all(
    root: Path, defects: Sequence[Defect], to: Path, limit_s: float, run: Runner = pytest
) -> Iterator[Result]:
    """Those that `to` has no result of yet; appends each to it."""
    done = {each.id for each in results(to)} if to.exists() else set()
    with tempfile.TemporaryDirectory(prefix="llumctl-defects-") as folder:
        tree = Path(folder)
        copied(root, tree)
        for defect in defects:
            if defect.id not in done:
                found = tried(tree, defect, limit_s, run)
                with to.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(found)) + "\n")
                yield found


# -- comparing ---------------------------------------------------------------------------


def compared(before: Sequence[Result], after: Sequence[Result]) -> list[str]:
    """The lines of the paired table, then the defects that were found before and no more."""
    pairs = {each.id: each for each in after}
    both = [(each, pairs[each.id]) for each in before if each.id in pairs]
    lines = [f"{'':18}{'both':>7}{'before':>8}{'after':>7}{'neither':>9}{'gone':>6}"]
    for kind in (None, *Kind):
        cells = Counter(
            _cell(old, new) for old, new in both if kind is None or Kind(old.kind) is kind
        )
        lines.append(
            f"{kind or 'all':18}{cells['both']:7}{cells['before']:8}{cells['after']:7}"
            f"{cells['neither']:9}{cells['gone']:6}"
        )
    missing = len(before) + len(after) - 2 * len(both)
    if missing:
        lines.append(f"{missing} defects are in one of the two runs only")
    lost = [(old, new) for old, new in both if _cell(old, new) in ("before", "gone")]
    return lines + [
        f"found before, now {new.outcome}: {old.id} ({old.kind}) in {new.module}, by {old.by}"
        for old, new in lost
        if old.is_found
    ]


def _cell(old: Result, new: Result) -> str:
    if "gone" in (old.outcome, new.outcome):
        return "gone"
    names = {(True, True): "both", (True, False): "before", (False, True): "after"}
    return names.get((old.is_found, new.is_found), "neither")


# -- files and the command line ----------------------------------------------------------


def results(file: Path) -> list[Result]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return [Result(**_kinded(json.loads(line))) for line in lines]


def defects_of(file: Path) -> list[Defect]:
    return [Defect(**_kinded(each)) for each in json.loads(file.read_text(encoding="utf-8"))]


def _kinded(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {"kind": Kind(fields["kind"])}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.seeded_defects")
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="draw defects by a seed")
    drawing.add_argument("number", type=int)
    drawing.add_argument("--seed", type=int, default=1)
    drawing.add_argument("--to", type=Path, required=True)
    running = commands.add_parser("run", help="seed each in a copy of the tree, and run tests")
    running.add_argument("defects", type=Path)
    running.add_argument("--to", type=Path, required=True)
    running.add_argument("--first", type=int, help="only so many of them")
    running.add_argument("--limit", type=float, default=TEST_LIMIT_S, help="seconds for each")
    comparing = commands.add_parser("compare", help="the paired table of two runs")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args(arguments)
    if given.command == "draw":
        found = draw(ROOT, given.number, given.seed)
        given.to.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
        _say(f"{len(found)} defects in {len({each.module for each in found})} modules")
    elif given.command == "run":
        for each in run_all(ROOT, defects_of(given.defects)[: given.first], given.to, given.limit):
            _say(f"{each.outcome:10} {each.duration_s:6.1f} s  {each.id} ({each.kind}) {each.by}")
    else:
        _say("\n".join(compared(results(given.before), results(given.after))))
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
