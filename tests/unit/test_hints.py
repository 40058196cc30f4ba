"""What errors say to try exists: every command and option that a message names."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from llumctl.app import app

ROOT = Path(__file__).parents[2]
HINT = re.compile(
    r"(?:^|try:|then:|then|or|; |\s{2,})\s*llumctl ([a-z][a-z-]*)([^;]*?)(?=\s{2,}|$|;)"
)
PLACEHOLDER = "X"


PROSE = ("runs", "hooks", "hosts", "extends", "moves", "does", "sends", "balances")
"""What llumctl does, not what is to be typed."""


@cache
def commands() -> dict[str, Any]:
    """By name, those of a group with the group's name before theirs."""
    found = dict(typer.main.get_command(app).commands)
    groups = {name: each.commands for name, each in found.items() if hasattr(each, "commands")}
    return found | {
        f"{group} {name}": each for group, known in groups.items() for name, each in known.items()
    }


def literals(file: Path) -> Iterator[tuple[int, str]]:
    """Every string of a file with its line; what is filled in is a placeholder. No docstrings."""
    text = file.read_text(encoding="utf-8")
    if "llumctl " not in text:
        return
    nodes = list(ast.walk(ast.parse(text)))
    inner = {id(each) for node in nodes if isinstance(node, ast.JoinedStr)
             for each in ast.walk(node) if each is not node}  # fmt: skip
    told = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if id(node) in inner or id(node) in told:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (v.value if isinstance(v, ast.Constant) else PLACEHOLDER for v in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@cache
def hints() -> list[tuple[str, str, str]]:
    """(where, command, its arguments). Tests go through them: as parameters they would be 200
    tests, for which every collection reads all source."""
    found = []
    for folder in ("llumctl", "controller", "tui"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for line, text in literals(file):
                if "llumctl " not in text or not text.isprintable():
                    continue
                for name, arguments in HINT.findall(text):
                    if name in PROSE:
                        continue
                    where = f"{file.relative_to(ROOT)}:{line}"
                    found.append((where, name, arguments.strip()))
    return found


def test_there_are_hints() -> None:
    assert len(hints()) > 80


def test_what_is_to_be_tried_exists() -> None:
    faults = [fault for hint in hints() for fault in faults_of(*hint)]
    assert faults == []


def faults_of(where: str, name: str, arguments: str) -> Iterator[str]:
    words = arguments.split()
    known = commands()
    if words and (f"{name} {words[0]}" in known or name == "config"):
        name = f"{name} {words.pop(0)}"
    command = known.get(name)
    if command is None:
        yield f"{where}: there is no {name}"
        return
    params = command.get_params(typer.Context(command))
    positionals = [word for word in words if not word.startswith("-") or re.match(r"-\d", word)]
    required = [p.name for p in params if p.required and p.param_type_name == "argument"]
    if "--help" not in words and len(positionals) < len(required):
        yield f"{where}: {name} needs {required}"
    options = {flag for param in params for flag in (*param.opts, *param.secondary_opts)}
    options |= {"--help", "-h"}
    for word in words:
        is_option = word.startswith("-") and not re.fullmatch(r"-?[0-9X]+", word)
        if is_option and word.split("=")[0] not in options:
            yield f"{where}: {name} has no {word}"


@pytest.mark.parametrize("wrong", ["lauch", "drain", "status --no-such-option", "config nothing"])
def test_what_does_not_exist_is_found(wrong: str) -> None:
    name, _, arguments = wrong.partition(" ")
    assert list(faults_of("here", name, arguments))


def test_no_command_says_to_try_itself_again() -> None:
    """Not without anything that is different."""
    for where, name, arguments in hints():
        own = re.fullmatch(r"llumctl/commands/(\w+)\.py:\d+", where)
        if own is not None and own[1].removesuffix("_settings") == name:
            assert arguments, where
