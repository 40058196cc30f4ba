"""Checks vLLM's engine arguments, by name and by value, before anything is started or changed. It
checks the arguments that a user writes into `[engine]`, and the arguments that a rolling restart
would change.

Some faults can only be found by an engine, for example arguments that contradict each other. Then
the first process with these arguments fails and says why, and `explain_cause` makes its words
readable. A rolling restart stops there, and leaves the other instances alone
(`controller/core/fleet/rolling.py`)."""

import difflib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from controller.api.errors import LlumctlError, UsageError, WrongSettingError
from controller.api.settings import without_python
from controller.api.settings.setting_values import complaint, shown, wanted
from controller.api.settings.settings import EmulatedTable
from controller.api.settings.vllm_options import (
    CHANGEABLE,
    CHANGEABLE_EMULATED,
    EndpointOptions,
    code_in,
    why_not_changed,
    why_refused,
)
from controller.main import emulation
from controller.main.checks import preflight
from controller.main.checks.model_weights import cached_config
from controller.main.checks.vllm_arguments import ARGUMENTS
from controller.main.machine.capacity import available_bytes, gib
from controller.main.plan import ClusterPlan

STRUCTURED_OUTPUTS = "structured_outputs_config"
GRAMMAR_BACKENDS = ("auto", "xgrammar")
RESTART = "llumctl restart --rolling --engine-arg"
KEYS_AT_START = "llumctl down      then      llumctl up --engine-arg {}=..."
# A part of vLLM's own message, and the command that helps in this case.
KNOWN_CAUSES = (
    (
        "KV cache",
        "llumctl up --engine-arg kv_cache_memory_bytes=...      or      "
        "--engine-arg max_model_len=...",
    ),
    ("memory", "llumctl up -n 1      or      --engine-arg max_model_len=..."),
    ("address already in use", "llumctl up --port ..."),
)
# The parts that pydantic adds to vLLM's sentence: the value as Python writes it, and a link.
PYDANTIC_ADDS = re.compile(r"\[type=[^\n]*\]\n|For further information visit \S+")


def check_engine_args(args: Mapping[str, Any]) -> None:
    """Raises WrongSettingError for the first argument that llumctl refuses, that vLLM does not
    have, or whose value vLLM does not take."""
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
                f"is not an engine argument of vLLM{meant}",
                f"llumctl up --engine-arg {near[0] if near else 'max_model_len'}=...",
            )
        check_value(key, ARGUMENTS[name], value)
    check_grammar_backend(args.get(STRUCTURED_OUTPUTS) or {})


def check_value(key: tuple[str, ...], kind: Any, value: Any) -> None:
    try:
        text = json.dumps(value)
    except TypeError as error:
        raise WrongSettingError(key, f"must be a value that JSON can express: {error}") from None
    try:
        TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False)
        where = _place(found[0], value)
        raise WrongSettingError(
            (*key, *map(str, where)), _complaint(found, where, value), _hint(key, found, value)
        ) from None


def check_grammar_backend(config: Mapping[str, Any]) -> None:
    """Raises WrongSettingError if frontends cannot try grammars for this backend
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
    """The error's place in the value. The members of unions, which pydantic names too, are left
    out."""
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


def check_engine_change(
    plan: ClusterPlan, given: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    """Checks the arguments of a rolling restart, except the interpreter, which has a check of its
    own (`controller.main.checks.environment`). `given`: the operator's arguments; None takes a
    change back. `before`, `after`: all arguments that differ from the plan's, before and after the
    restart. Raises UsageError."""
    given, before, after = map(without_python, (given, before, after))
    if plan.profile is not None:
        _check_emulated(plan, given, after)
        return
    _check_names(given, CHANGEABLE, ARGUMENTS, "engine", "an engine argument of vLLM")
    if code := code_in(after):
        raise WrongSettingError(
            ("engine", code[0]),
            "names code to run, so only your own configuration file may set it",
            KEYS_AT_START.format(code[0]),
        )
    try:
        check_engine_args({key: each for key, each in given.items() if each is not None})
        if plan.num_gpus_per_instance:
            _check_gpus(plan, after)
        else:
            _check_memory(plan, before, after)
    except UsageError as error:
        hint = error.hint.replace("llumctl up", "llumctl restart --rolling")
        raise UsageError(error.message, hint) from error


def _check_gpus(plan: ClusterPlan, after: Mapping[str, Any]) -> None:
    """An instance keeps the GPUs that Ray gave it when it was launched."""
    needed, has = preflight.num_ranks(plan.engine_args | dict(after)), plan.num_gpus_per_instance
    if needed > has:
        raise UsageError(
            f"an engine of this size needs {needed} GPUs, and an instance has {has} until the"
            " cluster stops",
            KEYS_AT_START.format("tensor_parallel_size"),
        )


def _check_names(
    given: Mapping[str, Any],
    changeable: Collection[str],
    known: Collection[str],
    table: str,
    what: str,
) -> None:
    for name in given:
        if name in changeable:
            continue
        if name not in known and not why_refused(name):
            near = difflib.get_close_matches(name, changeable, n=1)
            near = near or difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            hint = (
                f"{RESTART} {near[0]}=..." if near else f"they are: {' '.join(sorted(changeable))}"
            )
            raise WrongSettingError((table, name), f"is not {what}{meant}", hint)
        at_start = KEYS_AT_START.format(name)
        if table == "emulated":
            at_start = f"set emulated.{name} in the configuration      then      llumctl up"
        elif why_refused(name):
            at_start = "llumctl down      then      llumctl up --help"
        why = f"cannot be changed by a rolling restart: {why_not_changed(name)}"
        raise WrongSettingError((table, name), why, at_start)


def _check_emulated(plan: ClusterPlan, given: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    assert plan.profile is not None
    known = EmulatedTable.model_fields
    _check_names(given, CHANGEABLE_EMULATED, known, "emulated", "a setting of an emulated engine")
    try:
        emulation.with_changes(plan.profile, plan.settings.emulated, after)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        name = str(details["loc"][0])
        raise WrongSettingError(
            ("emulated", name), complaint(details, after.get(name)), f"{RESTART} {name}=..."
        ) from error
    except ValueError as error:
        raise UsageError(
            f"emulated engines cannot start with these arguments: {error}", RESTART
        ) from error


def _check_memory(plan: ClusterPlan, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """On CPUs, checks that the KV cache still has room for one request, and that the machine has
    memory for what all instances will take in addition."""
    args, as_now = plan.engine_args | dict(after), plan.engine_args | dict(before)
    config_file = Path(args["model"]) / "config.json"
    found = config_file if config_file.is_file() else cached_config(args)
    if found is not None:
        preflight.check_kv_cache(args, found)
    new, old = (
        preflight.instance_memory(each, num_gpus=0, hub_timeout_s=None).num_bytes
        for each in (args, as_now)
    )
    grows = new - old
    needed, available = grows * plan.num_instances, available_bytes()
    if grows > 0 and needed > available:
        raise UsageError(
            f"{plan.num_instances} instances would take {gib(needed)} more,"
            f" {gib(available)} are available",
            f"{RESTART} kv_cache_memory_bytes=...",
        )


def explain_cause(what: str, detail: str, log: Path) -> LlumctlError:
    """The error to show for an engine that could not start. `detail`: the exception's type and its
    text, as an engine reports them."""
    cause = " ".join(PYDANTIC_ADDS.sub("", detail).split())[:600]
    hint = next(
        (hint for part, hint in KNOWN_CAUSES if part.lower() in cause.lower()), f"less {log}"
    )
    wrong_input = cause.startswith(("ValueError", "ValidationError", "TypeError"))
    kind = UsageError if wrong_input else LlumctlError
    return kind(f"{what}: {cause}", hint)
