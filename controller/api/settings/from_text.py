"""The value of a setting by its text, as people write it: in an assignment, or in a variable.

The setting's type says what a text means: `on` is true for a switch, and a word for
`autoscale.mode`. Pydantic knows the words of a switch: on, true, yes, 1 and off, false, no, 0.
"""

from types import GenericAlias
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from controller.api.settings.settings import OPEN_TABLES, Settings, table_model
from controller.api.settings.table import kinds, may_be_none
from controller.api.wire.settings import SettingValue


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
