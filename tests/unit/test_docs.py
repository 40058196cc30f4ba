"""The documents agree with the tree: packages, links, make targets, commands, field names."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from click import Group
from pydantic import BaseModel
from typer.main import get_command

from controller.api.wire import status
from llumctl.app import app

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
INDEX = ROOT / "docs" / "README.md"
DOCUMENTS = [
    README,
    CONTRIBUTING,
    *sorted((ROOT / "docs").rglob("*.md")),
]

_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


COMMANDS = set(cast(Group, get_command(app)).commands)


def code(text: str) -> Iterator[str]:
    """All that is set in code font: blocks, then words in the text around them."""
    yield from _FENCE.findall(text)
    yield from _CODE.findall(_FENCE.sub("", text))


def prose(text: str) -> str:
    return _CODE.sub("", _FENCE.sub("", text))


def named_after(word: str, text: str) -> set[str]:
    """Every X of `{word} X` where code gives it as a command: a line's start, a prompt, a hint."""
    pattern = re.compile(rf"(?:^|\$ |try: +| or +){word} ([a-z][a-z-]*)", re.MULTILINE)
    return {name for piece in code(text) for name in pattern.findall(piece)}


def anchors(text: str) -> set[str]:
    """Of each heading, as GitHub makes them: of two that are alike the second one ends in -1."""
    headings = [_LINK.sub("", each) for each in _HEADING.findall(_FENCE.sub("", text))]
    slugs = [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings]
    seen = Counter[str]()
    found = set()
    for slug in slugs:
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def first_cells(text: str) -> Iterator[str]:
    """Of each table row, headers and rules too."""
    for line in text.splitlines():
        if line.startswith("|"):
            yield line.split("|")[1].strip()


def test_the_package_map_lists_the_packages() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.split("## Package map\n")[1].split("\n## ")[0]
    listed = [cell.strip("`") for cell in first_cells(section) if cell.startswith("`")]
    packages = [
        ".".join(file.parent.relative_to(ROOT).parts)
        for top in ("controller", "llumctl", "tui")
        for file in (ROOT / top).rglob("__init__.py")
    ]
    assert sorted(listed) == sorted(packages)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_their_anchors_make_targets_and_commands_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named_after("make", path.read_text()) <= targets
    assert named_after("llumctl", path.read_text()) <= COMMANDS
    missing = []
    for link in _LINK.findall(prose(path.read_text())):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if "://" in link:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            missing.append(link)
    assert not missing


def test_the_index_lists_every_page_once() -> None:
    links = _LINK.findall(prose(INDEX.read_text()))
    listed = [link for link in links if link.endswith(".md") and "/" not in link]
    pages = {file.name for file in INDEX.parent.glob("*.md")} - {INDEX.name}
    assert sorted(listed) == sorted(pages)


def test_every_command_is_shown_where_operators_look() -> None:
    how_to = prose(INDEX.read_text()).split("## How to")[1].split("## Reference")[0]
    pages = [README, INDEX.with_name("command-line.md")]
    pages += [INDEX.with_name(link) for link in _LINK.findall(how_to)]
    shown = {name for page in pages for name in named_after("llumctl", page.read_text())}
    assert shown == COMMANDS


def test_files_that_are_named_exist() -> None:
    missing = [
        (path.name, name)
        for path in (CONTRIBUTING, README, *(ROOT / "docs").glob("*.md"))
        for name in re.findall(
            r"`((?:controller|llumctl|tui|tests|tools|benchmarks|docs|examples)/[\w/.]+)`",
            path.read_text(),
        )
        if not ("NAME" in name or "/results" in name or (ROOT / name).exists())
    ]
    assert not missing


def test_metrics_name_each_field_once() -> None:
    cells = first_cells((ROOT / "docs" / "metrics.md").read_text())
    counts = Counter(cell.strip("`") for cell in cells if cell.startswith("`"))
    elsewhere = {
        *("AdapterStatus", "AutoscaleHoldStatus", "AutoscaleStatus", "EngineChangeStatus"),
        *("AlarmStatus", "AttachedStatus", "LevelStatus", "MirrorStatus", "SplitStatus"),
        "VerdictStatus",
    }
    names = {name for name in vars(status) if name.endswith("Status")} - elsewhere
    models: list[type[BaseModel]] = [getattr(status, name) for name in names]
    fields = {field for model in models for field in model.model_fields}
    assert counts == dict.fromkeys(fields, 1)
