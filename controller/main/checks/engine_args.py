"""Checks what a user writes into `[engine]`: vLLM's engine arguments, by name and by value."""

import difflib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from controller.api.errors import WrongSettingError
from controller.api.settings.endpoint_options import EndpointOptions
from controller.api.settings.engine_options import why_refused
from controller.api.settings.setting_values import complaint, shown, wanted
from controller.main.checks.vllm_arguments import ARGUMENTS

STRUCTURED_OUTPUTS = "structured_outputs_config"
GRAMMAR_BACKENDS = ("auto", "xgrammar")


def check_engine_args(args: Mapping[str, Any]) -> None:
    """Raises WrongSettingError for the first argument that llumctl refuses or vLLM lacks, or whose
    value vLLM does not take."""
    for name, value in args.items():
        key = ("engine", name)
        if name in EndpointOptions.model_fields:
            raise WrongSettingError(
                key, "is an option of the endpoint", f"set endpoint.{name}: llumctl up --help"
            )
        if why := why_refused(name):
            raise WrongSettingError(key, f"is refused: {why}", "llumctl up --help")
        if name not in ARGUMENTS:
            near = difflib.get_close_matches(name, ARGUMENTS, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise WrongSettingError(
                key,
                f"is no engine argument of vLLM's{meant}",
                f"llumctl up --engine-arg {near[0] if near else 'max_model_len'}=...",
            )
        check_value(key, ARGUMENTS[name], value)
    check_grammar_backend(args.get(STRUCTURED_OUTPUTS) or {})


def check_value(key: tuple[str, ...], kind: Any, value: Any) -> None:
    try:
        text = json.dumps(value)
    except TypeError as error:
        raise WrongSettingError(key, f"must be what JSON can write: {error}") from None
    try:
        TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False)
        where = _place(found[0], value)
        raise WrongSettingError(
            (*key, *map(str, where)), _complaint(found, where, value), _hint(key, found, value)
        ) from None


def check_grammar_backend(config: Mapping[str, Any]) -> None:
    """Raises WrongSettingError for a backend whose grammars no frontend can try
    (docs/decisions/0013)."""
    backend = config.get("backend", "auto")
    if backend not in GRAMMAR_BACKENDS:
        raise WrongSettingError(
            ("engine", STRUCTURED_OUTPUTS, "backend"),
            f"is refused: not {backend}, but xgrammar compiles every grammar, within limits, "
            "before an engine gets it",
            "leave backend out",
        )


def _place(details: ErrorDetails, value: Any) -> list[str | int]:
    """The error's place in the value, without the union members that pydantic names too."""
    path: list[str | int] = []
    for part in details["loc"]:
        if isinstance(value, dict) and part in value:
            value = value[str(part)]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            continue
        path.append(part)
    return path


def _complaint(found: list[ErrorDetails], where: list[str | int], value: Any) -> str:
    first = found[0]
    if first["type"] == "extra_forbidden":
        return "is a key that vLLM does not have there"
    for part in where:
        value = value[part]
    wants = dict.fromkeys(filter(None, map(wanted, found)))
    if len(wants) > 1:
        return f"must be {' or '.join(wants)}, not {shown(value)}"
    return complaint(first, value)


def _hint(key: tuple[str, ...], found: list[ErrorDetails], value: Any) -> str:
    choices = [
        choice.strip("'")
        for details in found
        if details["type"] == "literal_error"
        for choice in details["ctx"]["expected"].replace(" or ", ", ").split(", ")
    ]
    near = difflib.get_close_matches(str(value), choices, n=1)
    if near:
        return f"did you mean {near[0]}? llumctl up --engine-arg {key[-1]}={near[0]}"
    if any(wanted(details) == "a string" for details in found) and isinstance(value, int):
        return f"""llumctl up --engine-arg {key[-1]}='"{value}"'"""
    return ""
