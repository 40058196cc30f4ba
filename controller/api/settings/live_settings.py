"""The settings that may be changed while the cluster runs: those that match a line of LIVE.

A setting is a field of a table in `settings`. Keys are `table.field` and `priority.LEVEL.field`.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from controller.api.settings.setting_values import allowed, shown, wanted
from controller.api.settings.settings import PriorityTable, Settings
from controller.api.settings.table import is_table, schemas
from controller.api.wire.base import SettingValue

LIVE = (
    "migration.*",
    "scheduler.*",
    "holding.*",
    "limits.*",
    "autoscale.*",
    "replay.*",
    "endpoint.max_live_requests",
    "endpoint.request_timeout_s",
    "endpoint.write_timeout_s",
    "control.max_events",
    "priority.*.target_load_tokens",
)


CONSOLE_TABLES = ("commands", "console", "keys")


class SettingError(ValueError):
    """The setting is unknown, cannot be changed while the cluster runs, or not to this value."""

    def __init__(self, message: str, hint: str = "llumctl set") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class LiveSetting:
    key: str
    value: SettingValue
    default: SettingValue
    meaning: str
    table: type

    @property
    def allowed(self) -> str:
        """Which values it may have, in words."""
        return allowed(self.table, self.key.rpartition(".")[2])


def live_settings(settings: Settings) -> dict[str, LiveSetting]:
    return {each.key: each for each in _all(settings) if _is_live(each.key)}


def changed(settings: Settings, changes: Mapping[str, SettingValue]) -> Settings:
    """The settings after all changes. Raises SettingError for the first that cannot be made."""
    known = live_settings(settings)
    values = settings.model_dump()
    for key, value in changes.items():
        if key not in known:
            raise _not_live(key, settings)
        table, *level, field = key.split(".")
        place = values[table]
        if level:
            place = next(each for each in place if each["name"] == level[0])
        place[field] = value
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingError(_first_line(error, settings)) from error


def of_the_console(key: str) -> SettingError:
    """Says where a setting of `CONSOLE_TABLES` belongs."""
    return SettingError(
        f"{key[:60]} is no setting of a cluster: top and status read it from the config file",
        "llumctl config path",
    )


def _all(settings: Settings) -> Iterator[LiveSetting]:
    levels = {level.name: level for level in Settings().priority}
    for name in Settings.model_fields:
        found = getattr(settings, name)
        if is_table(type(found)):
            yield from _of_table(name, found, type(found)())
        elif name == "priority":
            for level in found:
                default = levels.get(level.name, PriorityTable(name=level.name, rank=level.rank))
                yield from _of_table(f"{name}.{level.name}", level, default)


def _of_table(prefix: str, table: Any, default: Any) -> Iterator[LiveSetting]:
    kind: Any = type(table)
    for field, schema in schemas(kind).items():
        meaning = schema.get("description", "").replace("\n", " ")
        yield LiveSetting(
            f"{prefix}.{field}",
            getattr(table, field),
            getattr(default, field),
            meaning,
            kind,
        )


def _is_live(key: str) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in LIVE)


def _not_live(key: str, settings: Settings) -> SettingError:
    table = key.partition(".")[0]
    if table in CONSOLE_TABLES:
        return of_the_console(key)
    if any(each.key == key for each in _all(settings)) or table == "engine":
        return SettingError(
            f"{key[:60]} cannot be changed while the cluster runs: it takes a restart",
            "llumctl down      then      llumctl up",
        )
    near = difflib.get_close_matches(key, live_settings(settings), n=1)
    hint = f": did you mean {near[0]}?" if near else ""
    return SettingError(f"there is no setting {key[:60]!r}{hint}")


def _first_line(error: ValidationError, settings: Settings) -> str:
    first = error.errors(include_url=False)[0]
    place = list(first["loc"])
    if place[0] == "priority" and len(place) > 1 and isinstance(place[1], int):
        place[1] = settings.priority[place[1]].name
    name = ".".join(str(part) for part in place)
    if must := wanted(first):
        return f"{name} must be {must}, not {shown(first['input'])}"
    return f"{name}: {first['msg'].removeprefix('Value error, ')}"
