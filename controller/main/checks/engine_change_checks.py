"""Checks engine arguments that a rolling restart is to change, before anything is touched.

What only an engine can judge, as arguments that do not go together, its first new process says; the
rolling restart ends there (`controller/core/operations/rolling.py`).
"""

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from controller.api.errors import UsageError, WrongSettingError
from controller.api.settings.endpoint_options import code_in
from controller.api.settings.engine_options import (
    CHANGEABLE,
    CHANGEABLE_EMULATED,
    why_not_changed,
    why_refused,
)
from controller.api.settings.setting_values import complaint
from controller.api.settings.settings import EmulatedTable
from controller.main import emulation
from controller.main.checks import preflight
from controller.main.checks.engine_args import check_engine_args
from controller.main.checks.model_weights import cached_config
from controller.main.checks.vllm_arguments import ARGUMENTS
from controller.main.machine.capacity import available_bytes
from controller.main.plan import ClusterPlan

COMMAND = "llumctl restart --rolling --engine-arg"
KEYS_AT_START = "llumctl down      then      llumctl up --engine-arg {}=..."


def check_engine_change(
    plan: ClusterPlan, given: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    """`given`: what the operator gave; None takes a change back. `before`, `after`: all that
    differs from the plan's arguments. Raises UsageError."""
    if plan.profile is not None:
        _check_emulated(plan, given, after)
        return
    _check_names(given, CHANGEABLE, ARGUMENTS, "engine", "engine argument of vLLM's")
    if code := code_in(after):
        raise WrongSettingError(
            ("engine", code[0]),
            "names code to run: only a configuration file of yours may set it",
            KEYS_AT_START.format(code[0]),
        )
    try:
        check_engine_args({key: each for key, each in given.items() if each is not None})
        if not plan.num_gpus_per_instance:
            _check_memory(plan, before, after)
    except UsageError as error:
        hint = error.hint.replace("llumctl up", "llumctl restart --rolling")
        raise UsageError(error.message, hint) from error


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
                f"{COMMAND} {near[0]}=..." if near else f"they are: {' '.join(sorted(changeable))}"
            )
            raise WrongSettingError((table, name), f"is no {what}{meant}", hint)
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
    _check_names(given, CHANGEABLE_EMULATED, known, "emulated", "setting of an emulated engine")
    try:
        emulation.with_changes(plan.profile, plan.settings.emulated, after)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        name = str(details["loc"][0])
        raise WrongSettingError(
            ("emulated", name), complaint(details, after.get(name)), f"{COMMAND} {name}=..."
        ) from error
    except ValueError as error:
        raise UsageError(f"emulated engines cannot start so: {error}", COMMAND) from error


def _check_memory(plan: ClusterPlan, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """For CPUs: whether one request still fits, and what all instances take more."""
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
            f"{plan.num_instances} instances would take {needed / preflight.GIB:.1f} GiB more,"
            f" {available / preflight.GIB:.1f} GiB are available",
            f"{COMMAND} kv_cache_memory_bytes=...",
        )
