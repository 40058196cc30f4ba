"""What errors say to try exists: every command and option that a message names."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

from controller.api.text import hints as aiming
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
    """All commands by name; those of a group have the group's name before theirs."""
    found = dict(typer.main.get_command(app).commands)
    groups = {name: each.commands for name, each in found.items() if hasattr(each, "commands")}
    return found | {
        f"{group} {name}": each for group, known in groups.items() for name, each in known.items()
    }


def literals(file: Path) -> Iterator[tuple[int, str]]:
    """Every string of a file with its line, except docstrings. A placeholder stands for values."""
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


def test_what_is_to_be_tried_exists() -> None:
    assert len(hints()) > 80
    faults = [fault for hint in hints() for fault in faults_of(*hint)]
    assert faults == []
    for name, arguments in (("lauch", ""), ("drain", ""), ("status", "--no-such-option")):
        assert list(faults_of("here", name, arguments))


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


# Of which cluster: `controller.api.text.hints`


def options_of(name: str) -> set[str]:
    command = commands()[name]
    return {flag for param in command.get_params(typer.Context(command)) for flag in param.opts}


def test_the_commands_that_are_about_a_cluster_are_known() -> None:
    about_one = {name for name in commands() if "--cluster" in options_of(name)}
    assert about_one == {name for name in commands() if aiming.takes_cluster(name)}
    assert {
        name
        for name in commands()
        if "--config" in options_of(name) and name != "set"  # its file is compared with
    } == aiming.WITH_CONFIG
    about_a_model = {name for name in commands() if "--model" in options_of(name)}
    # bench asks the endpoint for its model.
    assert about_a_model - {"bench"} == aiming.WITH_MODEL & commands().keys()


def test_every_command_that_a_text_names_says_of_which_cluster() -> None:
    """All texts of all packages: what errors say to try, the controller's answers, what the console
    logs, the cures of `doctor`."""
    num_aimed, faults = 0, []
    for folder in ("llumctl", "controller", "tui"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for line, text in literals(file):
                where = f"{file.relative_to(ROOT)}:{line}"
                for name, arguments in re.findall(r"\bllumctl ([a-z-]+)([^;]*)", text):
                    if not aiming.takes_cluster(name):
                        continue
                    named = re.search(r"--(cluster|help|url|replay)\b", arguments)
                    shown = aiming.aimed(f"llumctl {name}{arguments}", " --cluster h2")
                    if named is None and not shown.startswith(f"llumctl {name} --cluster h2"):
                        faults.append(f"{where}: {shown}")
                    num_aimed += named is None
    assert faults == []
    assert num_aimed > 150


def test_where_the_flag_stands() -> None:
    for text, shown in (
        ("llumctl drain i-9 -y", "llumctl drain C i-9 -y"),
        ("llumctl down      then      llumctl up", "llumctl down C      then      llumctl up C"),
        ("(llumctl uncordon i-3)", "(llumctl uncordon C i-3)"),
        ("llumctl scale +1      llumctl scale -1", "llumctl scale C +1      llumctl scale C -1"),
        ("llumctl status --cluster other", "llumctl status --cluster other"),
        ("llumctl drain --help", "llumctl drain --help"),
        ("llumctl runs one engine", "llumctl runs one engine"),
        ("TMPDIR=x llumctl up", "TMPDIR=x llumctl up C"),
    ):
        assert aiming.aimed(text, " --cluster h2").startswith(shown.replace(" C", " --cluster h2"))
        assert aiming.aimed(text, "") == text


def test_a_config_file_is_repeated_where_it_decides() -> None:
    of = " --cluster p", " --config p.toml"
    assert aiming.aimed("llumctl up -n 2", *of) == "llumctl up --config p.toml --cluster p -n 2"
    assert aiming.aimed("llumctl config show", *of) == "llumctl config show --config p.toml"
    assert aiming.aimed("llumctl status", *of) == "llumctl status --cluster p"
    assert aiming.aimed("llumctl set --config f", *of) == "llumctl set --config f"


def test_a_text_about_one_model_names_it_where_the_command_can() -> None:
    for text, shown in (
        ("llumctl scale +1", "llumctl scale --model 'a b' +1"),
        ("llumctl scale small=3", "llumctl scale small=3"),
        ("llumctl set --model small a.b=1", "llumctl set --model small a.b=1"),
        ("llumctl lora list", "llumctl lora list --model 'a b'"),
        ("llumctl drain i-3", "llumctl drain i-3"),
        ("llumctl bench --model small", "llumctl bench --model small"),
    ):
        assert aiming.aimed(text, "", model="a b") == shown
    of_both = aiming.aimed("llumctl set", " --cluster p", model="x")
    assert of_both == "llumctl set --cluster p --model x"
