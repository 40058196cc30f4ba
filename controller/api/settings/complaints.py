"""Puts pydantic's errors about a value into words."""

from pydantic_core import ErrorDetails

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


def wanted(details: ErrorDetails) -> str:
    """What the value must be; empty if the error says something else."""
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
