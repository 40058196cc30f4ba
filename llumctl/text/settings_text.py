"""Settings of a running cluster as people type and read them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from llumctl.config import config_file, toml_text

if TYPE_CHECKING:
    from controller.api.wire.base import SettingValue
    from controller.api.wire.status import LevelStatus

HINT = "llumctl set migration.max_moves=2"


def parse(texts: Iterable[str]) -> "dict[str, SettingValue]":
    """`KEY=VALUE` each; the controller says whether there is such a key and value.

    Raises UsageError for another form, and for a key that is given twice."""
    found = config_file.parse_assignments(texts, "KEY=VALUE", HINT)
    from controller.api.settings.setting_values import value_of

    return {key: value_of(key, text) for key, text in found.items()}


def toml(values: "Mapping[str, SettingValue]", levels: "Sequence[LevelStatus]") -> str:
    """Settings as lines of a configuration file. Of priority levels a file has all or none, so one
    that differs brings all of them."""
    tables: dict[str, list[str]] = {}
    for key, value in values.items():
        table, *_, name = key.split(".")
        line = f"# {name} has no value" if value is None else f"{name} = {toml_text.value(value)}"
        tables.setdefault(table, []).append(line)
    blocks = [
        "\n".join([f"[{table}]", *lines]) for table, lines in tables.items() if table != "priority"
    ]
    if "priority" in tables:
        blocks += [_level(level) for level in levels]
    return "\n\n".join(blocks)


def _level(level: "LevelStatus") -> str:
    lines = ["[[priority]]", f"name = {toml_text.value(level.name)}", f"rank = {level.rank}"]
    if level.target_load_tokens is not None:
        lines.append(f"target_load_tokens = {level.target_load_tokens}")
    return "\n".join(lines)
