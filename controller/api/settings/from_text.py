"""The value of a setting by its text, as people write it: in an assignment, or in a variable.

The setting's type says what a text means: `on` is true for a switch, and a word for
`autoscale.mode`. Pydantic knows the words of a switch: on, true, yes, 1 and off, false, no, 0.
"""

from typing import Annotated, Any, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from controller.api.settings.settings import OPEN_TABLES, Settings, table_model
from controller.api.wire.settings import SettingValue


def converted(info: FieldInfo, text: str) -> Any:
    """Raises ValidationError for a text that is no value of this field."""
    kind: Any = info.annotation
    for item in info.metadata:
        kind = Annotated[kind, item]
    return TypeAdapter(kind).validate_python(text)


def value_of(key: str, text: str) -> Any:
    """The inverse of `quantities.setting_value`. For an unknown setting, and for one that cannot
    have this value, it is what the text looks like: whoever validates the settings refuses it."""
    info = _field(key)
    if info is None or (text == "none" and _may_lack(info)):
        return _as_it_looks(text)
    try:
        return converted(info, text)
    except ValidationError:
        return _as_it_looks(text)


def _field(key: str) -> FieldInfo | None:
    table, _, rest = key.partition(".")
    if table in OPEN_TABLES or table not in Settings.model_fields:
        return None
    return table_model(table).model_fields.get(rest.rpartition(".")[2])


def _may_lack(info: FieldInfo) -> bool:
    """Whether the setting may have no value."""
    return type(None) in get_args(info.annotation)


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
