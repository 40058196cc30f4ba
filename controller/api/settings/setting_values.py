"""One value of a setting: what a text means, as people write it in an assignment or a variable;
which values are allowed, in words; and what is wrong with one.

The setting's type says what a text means: `on` is true for a switch, and a word for
`autoscale.mode`. Pydantic knows the words of a switch: on, true, yes, 1 and off, false, no, 0.
"""

from collections.abc import Mapping
from types import GenericAlias
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from controller.api.settings.settings import OPEN_TABLES, Settings, table_model
from controller.api.settings.table import kinds, may_be_none, schemas
from controller.api.text.quantities import setting_value
from controller.api.wire.base import SettingValue

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
    """Raises ValidationError for a text that is no value of this setting."""
    # Without the tables' strictness, and in a tuple, as a type cannot be given a `config` alone.
    one: Any = GenericAlias(tuple, kinds(table)[key])
    adapter = TypeAdapter[Any](one, config=ConfigDict(allow_inf_nan=False))
    return adapter.validate_python((text,))[0]


def value_of(key: str, text: str) -> Any:
    """The inverse of `quantities.setting_value`. For an unknown setting, and for one that cannot
    have this value, it is what the text looks like: whoever validates the settings refuses it."""
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
    """`0.01 to 3600`, `true, false`, `more than 0, none`: what the schema says of the field; rules
    about several fields are not in it."""
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
    """What the value must be, by pydantic's error; empty if the error says something else."""
    kind, context = details["type"], details.get("ctx", {})
    if kind in _KINDS:
        return _KINDS[kind]
    if kind in _BOUNDS:
        limit, words = _BOUNDS[kind]
        return f"{words} {context[limit]:g}"
    return str(context["expected"]) if kind == "literal_error" else ""


def complaint(details: ErrorDetails, value: object) -> str:
    """The rest of a sentence that begins with the setting's name."""
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
