"""Which values a setting may have, in words: `0.01 to 3600`, `true, false`, `more than 0, none`."""

from collections.abc import Mapping
from typing import Any

from controller.api.settings.table import schemas
from controller.api.text.quantities import setting_value


def allowed(table: type, field: str) -> str:
    """What the schema says of the field; rules about several fields are not in it."""
    schema = schemas(table)[field]
    return ", ".join(_words(each) for each in schema.get("anyOf", [schema]))


def _words(schema: Mapping[str, Any]) -> str:
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
