"""The values of settings: what a text means, as people write it in an assignment or a variable;
which values are allowed, in words; what is wrong with a value; and which settings may be changed
while the cluster runs.

The setting's type says what a text means: `on` means true for a switch, and stays a word for
`autoscale.mode`. Pydantic knows the words of a switch: on, true, yes, 1 and off, false, no, 0.

The settings that match a pattern in LIVE may be changed while the cluster runs. A setting is a
field of a table in `settings`; keys are `table.field` and `priority.LEVEL.field`.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import GenericAlias
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from controller.api.settings.settings import (
    MODEL_TABLES,
    OPEN_TABLES,
    PriorityTable,
    Settings,
    table_model,
)
from controller.api.settings.table import is_table, kinds, may_be_none, schemas
from controller.api.text.quantities import setting_value
from controller.api.wire import SettingValue

LIVE = (
    "migration.*",
    "scheduler.*",
    "holding.*",
    "limits.*",
    "autoscale.*",
    "replay.*",
    "traffic.*",
    "endpoint.max_live_requests",
    "endpoint.request_timeout_s",
    "endpoint.write_timeout_s",
    "control.max_events",
    "priority.*.target_*",
    "priority.*.when_late",
)
CONSOLE_TABLES: Mapping[str, str] = {
    "commands": "top reads it there",
    "console": "top, status and simulate read it there, the controller as it was at up",
    "keys": "top reads it there",
}
"""The tables that are no part of a cluster's settings, and who reads them."""

_KINDS = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "finite_number": "a finite number",
    "dataclass_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "dict_type": "a table",
    "list_type": "an array",
    "set_type": "an array",
    "tuple_type": "an array of tables, each written as [[priority]]",
    "none_required": "null",
}
_BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def converted(table: type, key: str, text: str) -> Any:
    """The value that a text means for this setting. Raises ValidationError if it means none."""
    # Tables are strict, and texts need conversion. The type is put in a tuple because pydantic
    # takes no `config` for a bare type.
    one: Any = GenericAlias(tuple, kinds(table)[key])
    adapter = TypeAdapter[Any](one, config=ConfigDict(allow_inf_nan=False))
    return adapter.validate_python((text,))[0]


def value_of(key: str, text: str) -> Any:
    """The inverse of `quantities.setting_value`. If the setting is unknown, or cannot have this
    value, the result has the type that the text seems to have. The validation of the settings then
    refuses it."""
    name, _, rest = key.partition(".")
    key = rest.rpartition(".")[2]
    if name in OPEN_TABLES or name not in Settings.model_fields:
        return _as_it_looks(text)
    table = table_model(name)
    if key not in kinds(table) or (text == "none" and may_be_none(table, key)):
        return _as_it_looks(text)
    try:
        return converted(table, key, text)
    except ValidationError:
        return _as_it_looks(text)


def _as_it_looks(text: str) -> SettingValue:
    if text in ("true", "false"):
        return text == "true"
    if text == "none":
        return None
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if value == value and abs(value) != float("inf"):
            return value
    return text


def allowed(table: type, field: str) -> str:
    """`0.01 to 3600`, `true, false`, `more than 0, none`: the values that the schema allows for the
    field. Rules about several fields are not in the schema."""
    schema = schemas(table)[field]
    return ", ".join(_words_of_schema(each) for each in schema.get("anyOf", [schema]))


def _words_of_schema(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(str(each) for each in schema["enum"])
    kind = schema.get("type")
    if kind == "null":
        return "none"
    if kind == "boolean":
        return "true, false"
    low, above, high = (schema.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
    if low is not None and high is not None:
        return f"{setting_value(low)} to {setting_value(high)}"
    if above is not None:
        return f"more than {setting_value(above)}"
    if low is not None:
        return f"{setting_value(low)} or more"
    return {"number": "a number", "integer": "a whole number"}.get(str(kind), "a word")


def wanted(details: ErrorDetails) -> str:
    """What the value must be, in words, from pydantic's error; empty if the error is about
    something else."""
    kind, context = details["type"], details.get("ctx", {})
    if kind in _KINDS:
        return _KINDS[kind]
    if kind in _BOUNDS:
        limit, words = _BOUNDS[kind]
        return f"{words} {context[limit]:g}"
    return str(context["expected"]) if kind == "literal_error" else ""


def complaint(details: ErrorDetails, value: object) -> str:
    """What is wrong with a value: the rest of a sentence that begins with the setting's name."""
    if must := wanted(details):
        return f"must be {must}, not {shown(value)}"
    kind, context = details["type"], details.get("ctx", {})
    if kind == "string_pattern_mismatch":
        return f"{shown(value)} does not match {context['pattern']}"
    if kind == "string_too_short":
        return "is empty"
    if kind == "value_error":
        return f"is refused: {context['error']}"
    return f"{details['msg']}: {shown(value)}"


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class SettingError(ValueError):
    """The setting is unknown, cannot be changed while the cluster runs, or cannot have this
    value."""

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
        """The values that the setting may have, in words."""
        return allowed(self.table, self.key.rpartition(".")[2])


def live_settings(settings: Settings) -> dict[str, LiveSetting]:
    return {each.key: each for each in _all(settings) if is_live(each.key)}


def changed(settings: Settings, changes: Mapping[str, SettingValue]) -> Settings:
    """The settings after all changes. Raises SettingError for the first change that cannot be
    made."""
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
    """The error for a setting of `CONSOLE_TABLES`. It says where such a setting belongs."""
    return SettingError(
        f"{key[:60]} is set in the config file only: {CONSOLE_TABLES[key.partition('.')[0]]}",
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


def is_live(key: str) -> bool:
    """Whether the setting may be changed while the cluster runs."""
    return any(fnmatchcase(key, pattern) for pattern in LIVE)


def is_shared(key: str) -> bool:
    """Whether the models of a cluster have one value of this setting together: one of a table that
    `[models.NAME]` does not have."""
    return key.partition(".")[0] not in MODEL_TABLES


def changed_for_model(
    own: Mapping[str, SettingValue], of_first: Mapping[str, SettingValue]
) -> dict[str, SettingValue]:
    """The changes that are in force for a model, from those in its own spec and those in the spec
    of the first model. The settings that all models share are in the latter only."""
    changes = {key: value for key, value in own.items() if not is_shared(key)}
    return changes | {key: value for key, value in of_first.items() if is_shared(key)}


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
