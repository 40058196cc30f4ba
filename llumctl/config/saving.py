"""Keeps in the configuration file what was changed in the running cluster.

The rest of the file stays as it was: comments, order, spaces, endings of lines. Each edit is
checked by parsing what came out.
"""

import codecs
import copy
import difflib
import os
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller.api.errors import LlumctlError, RefusedError, UsageError
from controller.api.settings.live_settings import live_settings
from controller.api.settings.settings import PriorityTable, Settings
from controller.api.state import user_files
from llumctl.config import config_file, settings, toml_text
from llumctl.config.config_file import ConfigFile
from llumctl.config.toml_text import KeyPath

if TYPE_CHECKING:
    from controller.api.state.run_state import RunState
    from controller.api.wire.base import SettingValue

OF_THE_CLUSTER = "the cluster was started with it"
NO_HINT = "llumctl set --toml"


def find(flag: Path | None, state: "RunState") -> tuple[Path, ConfigFile | None]:
    """The configuration file in force: that of `--config`, else the one that the cluster was
    started with, else the one that `up` would read now; None if there is no such file.

    Raises UsageError for a file that was asked for and is absent, or that does not parse."""
    started_with = Path(state.config_file) if state.config_file else None
    if flag is None and started_with is not None:
        return started_with, config_file.read(started_with, OF_THE_CLUSTER)
    return config_file.locate(flag)[1], config_file.find(flag)


def differing(
    in_force: "Mapping[str, SettingValue]", file: ConfigFile | None
) -> "dict[str, SettingValue]":
    """Live settings whose value is not the one that the file gives, without flags and variables.
    Raises UsageError for a file that `up` would refuse."""
    of_file = live_settings(Settings() if file is None else settings.of_file(file))
    return {
        key: value
        for key, value in in_force.items()
        if key not in of_file or of_file[key].value != value
    }


def overriding(keys: Sequence[str]) -> list[str]:
    """Variables of this shell that set one of these keys, and so win over the file."""
    names = [f"{settings.PREFIX}{key.replace('.', '_').upper()}" for key in keys]
    return [name for name in names if os.environ.get(name)]


@dataclass(frozen=True, slots=True)
class Saving:
    """Values to be written into a file, as the text that it will have."""

    path: Path
    before: bytes
    after: bytes

    @property
    def changes(self) -> bool:
        return self.before != self.after

    @property
    def lines(self) -> list[str]:
        """Lines that go (-) and that come (+)."""
        texts = (self.before.decode().splitlines(), self.after.decode().splitlines())
        found = difflib.unified_diff(*texts, lineterm="", n=0)
        return [line for line in list(found)[2:] if not line.startswith("@@")]

    def write(self) -> None:
        """Replaces the file in one step; its mode stays. Raises LlumctlError, and leaves the file
        as it was."""
        if not self.changes:
            return
        try:
            raw, status = user_files.read_with_status(self.path, config_file.MAX_BYTES)
            if raw != self.before:
                raise OSError(0, "somebody else has changed it meanwhile")
            user_files.replace(self.path, self.after.decode(), stat.S_IMODE(status.st_mode))
        except OSError as error:
            raise LlumctlError(
                f"{self.path} was not written: {error.strerror}", "llumctl set --toml"
            ) from error


def planned(path: Path, values: "Mapping[str, SettingValue]") -> Saving:
    """Raises UsageError if there is no such file or it does not parse, and RefusedError if it
    cannot be written, or not without touching something else."""
    try:
        file = config_file.read(path, "--save writes into it")
    except config_file.AbsentError as error:
        raise UsageError(
            f"{path}: there is no configuration file to save in",
            f"mkdir -p {path.parent} && touch {path}",
        ) from error
    target = path.resolve()  # a link stays one
    _check_writable(target)
    text = file.text
    for key, value in values.items():
        try:
            text = _edited(text, key, value)
        except CannotEditError as error:
            raise RefusedError(
                f"{path}:{error.line}: {error}", config_file.edit_command(path, error.line)
            ) from error
    mark = (
        codecs.BOM_UTF8
        if user_files.read(target, config_file.MAX_BYTES).startswith(codecs.BOM_UTF8)
        else b""
    )
    return Saving(target, mark + file.text.encode(), mark + text.encode())


def _edited(text: str, key: str, value: "SettingValue") -> str:
    table, *level, name = key.split(".")
    if not level:
        return set_value(text, (table,), name, value)
    levels = tomllib.loads(text).get(table)
    if levels is None:  # those without a file are all written, as a file has all or none
        defaults = Settings().priority
        text = with_tables(text, table, [_pairs(each) for each in defaults])
        levels = tomllib.loads(text)[table]
    found = [n for n, each in enumerate(levels) if each.get("name") == level[0]]
    if not found:
        raise CannotEditError(1, f"it has no priority level {level[0]!r}")
    return set_value(text, (table, found[0]), name, value)


def _pairs(level: PriorityTable) -> "list[tuple[str, SettingValue]]":
    return list(level.model_dump().items())


def _check_writable(path: Path) -> None:
    try:
        found = path.stat()
    except OSError as error:
        raise RefusedError(f"{path} cannot be written: {error.strerror}", NO_HINT) from error
    why = ""
    if not stat.S_ISREG(found.st_mode):
        why = "it is no regular file"
    elif found.st_uid != os.geteuid():
        why = f"it belongs to another user (uid {found.st_uid})"
    elif not os.access(path, os.W_OK):
        why = "it is write-protected"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        why = f"the folder {path.parent} is write-protected"
    if why:
        raise RefusedError(f"{path} cannot be written: {why}", NO_HINT)


# -- editing a TOML text ----------------------------------------------------------------

# A number or a string, or None: the key is to have no value.
Value = str | int | float | bool | None


class CannotEditError(ValueError):
    """What the text has there cannot be changed without touching something else."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


def set_value(text: str, table: KeyPath, name: str, value: Value) -> str:
    """The text with `name = value` in `table`, which an array's index may end. A key that is to
    have no value is commented out. Raises CannotEditError."""
    lines = toml_text.scan(text)
    pair = lines.pairs.get((*table, name))
    if pair is not None:
        edited = _replaced(text, pair, name, value, lines.keys[(*table, name)])
    elif value is None:
        return text
    else:
        edited = _inserted(text, lines, table, f"{toml_text.key(name)} = {toml_text.value(value)}")
    _check(text, edited, table, name, value)
    return edited


def with_tables(text: str, array: str, tables: Sequence[Sequence[tuple[str, Value]]]) -> str:
    """The text with `[[array]]` tables at its end, which has none of that name."""
    blocks = [
        "\n".join(
            [
                f"[[{array}]]",
                *(
                    f"{name} = {toml_text.value(value)}"
                    for name, value in table
                    if value is not None
                ),
            ]
        )
        for table in tables
    ]
    edited = text
    for block in blocks:
        edited = _appended(edited, block)
    return edited


def _replaced(text: str, pair: toml_text.Pair, name: str, value: Value, line: int) -> str:
    if value is not None:
        return text[: pair.value_at] + toml_text.value(value) + text[pair.end :]
    begun = text.rfind("\n", 0, pair.key_at) + 1
    if pair.inline or text[begun : pair.key_at].strip() or "\n" in text[pair.key_at : pair.end]:
        raise CannotEditError(line, f"{name} is to have no value: take it out by hand")
    return f"{text[: pair.key_at]}# {text[pair.key_at :]}"


def _inserted(text: str, lines: toml_text.Lines, table: KeyPath, line: str) -> str:
    if table in lines.sections:
        return _below(text, *lines.sections[table], line)
    dotted = [
        pair
        for path, pair in lines.pairs.items()
        if path[: len(table)] == table and len(path) > len(table)
    ]
    if any(pair.inline for pair in dotted) or table in lines.pairs:
        where = lines.find(table) or 1
        raise CannotEditError(where, f"{table[0]} stands in braces: write {line} there by hand")
    if dotted:
        return _below(text, dotted[-1].key_at, dotted[-1].end, f"{table[0]}.{line}")
    return _appended(text, f"[{table[0]}]\n{line}")


def _below(text: str, key_at: int, end: int, line: str) -> str:
    """A line of its own behind the one that ends after `end`, indented as that of `key_at`."""
    begun = text.rfind("\n", 0, key_at) + 1
    lead = text[begun:key_at]
    indent = lead[: len(lead) - len(lead.lstrip())]
    newline = _newline(text)
    ended = text.find("\n", end)
    if ended < 0:
        return f"{text}{newline}{indent}{line}{newline}"
    return f"{text[: ended + 1]}{indent}{line}{newline}{text[ended + 1 :]}"


def _appended(text: str, block: str) -> str:
    newline = _newline(text)
    if text and not text.endswith("\n"):
        text += newline
    gap = newline if text.strip() else ""
    return text + gap + block.replace("\n", newline) + newline


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _check(before: str, after: str, table: KeyPath, name: str, value: Value) -> None:
    """Raises CannotEditError unless the text says what it said before, and the new value."""
    wanted = copy.deepcopy(tomllib.loads(before))
    place: Any = wanted
    for part in table:
        place = place.setdefault(part, {}) if isinstance(part, str) else place[part]
    if value is None:
        place.pop(name)
    else:
        place[name] = value
    try:
        found = tomllib.loads(after)
    except ValueError:
        found = {}
    if found != wanted:
        line = toml_text.scan(before).find((*table, name)) or 1
        raise CannotEditError(line, f"{name} cannot be set without changing other keys")
