"""Keeps in the configuration file what was changed in the running cluster."""

import codecs
import difflib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from controller.api.errors import LlumctlError, RefusedError, UsageError
from controller.api.settings.live_settings import live_settings
from controller.api.settings.settings import PriorityTable, Settings
from controller.api.state import user_files
from llumctl.config import config_file, settings, toml_edit
from llumctl.config.config_file import ConfigFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controller.api.state.run_state import RunState
    from controller.api.wire.base import SettingValue

OF_THE_CLUSTER = "the cluster was started with it"
NO_HINT = "llumctl get --toml"


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


def overriding(keys: "Sequence[str]") -> list[str]:
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
                f"{self.path} was not written: {error.strerror}", "llumctl get --toml"
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
        except toml_edit.CannotEditError as error:
            raise RefusedError(
                f"{path}:{error.line}: {error}", config_file.edit_command(path, error.line)
            ) from error
    mark = codecs.BOM_UTF8 if _read(target).startswith(codecs.BOM_UTF8) else b""
    return Saving(target, mark + file.text.encode(), mark + text.encode())


def _edited(text: str, key: str, value: "SettingValue") -> str:
    table, *level, name = key.split(".")
    if not level:
        return toml_edit.set_value(text, (table,), name, value)
    levels = config_file.tables_of(text).get(table)
    if levels is None:  # those without a file are all written, as a file has all or none
        defaults = Settings().priority
        text = toml_edit.with_tables(text, table, [_pairs(each) for each in defaults])
        levels = config_file.tables_of(text)[table]
    found = [n for n, each in enumerate(levels) if each.get("name") == level[0]]
    if not found:
        raise toml_edit.CannotEditError(1, f"it has no priority level {level[0]!r}")
    return toml_edit.set_value(text, (table, found[0]), name, value)


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


def _read(path: Path) -> bytes:
    return user_files.read(path, config_file.MAX_BYTES)
