"""Settings that may be changed while the cluster runs: those of the tables below.

They hold until the controller starts again, which reads those that the cluster began with.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from controller.adapters.http.errors import ApiError
from controller.api.models import (
    Setting,
    SettingChange,
    SettingChanges,
    SettingList,
    SettingsPatch,
)
from controller.api.settings import MigrationTable, Table
from controller.core.migration.limits import MoveLimits
from controller.runtime.controller import Controller

TABLES: dict[str, type[Table]] = {"migration": MigrationTable}


def list_settings(controller: Controller) -> SettingList:
    values = _values(controller)
    return SettingList(
        settings=tuple(
            Setting(
                key=key,
                value=values[key],
                default=field.default,
                meaning=(field.description or "").replace("\n", " "),
            )
            for key, field in _fields()
        )
    )


def planned_changes(controller: Controller, patch: SettingsPatch) -> SettingChanges:
    """What differs from now. Raises ApiError for a key that there is not or cannot be changed,
    and for a value that it may not have."""
    before = _values(controller)
    for key in patch.changes:
        if key not in before:
            raise ApiError(
                400,
                "bad_setting",
                f"{key[:60]!r} is no setting that can be changed while the cluster runs",
                "llumctl get",
            )
    after = dict(before)
    for name, model in TABLES.items():
        wanted = {
            key.partition(".")[2]: patch.changes.get(key, value)
            for key, value in before.items()
            if key.startswith(f"{name}.")
        }
        try:
            table = model.model_validate(wanted, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            raise ApiError(
                400, "bad_setting", f"{name}.{first['loc'][0]}: {first['msg']}", "llumctl get"
            ) from error
        after |= {f"{name}.{field}": value for field, value in table.model_dump().items()}
    changes = tuple(
        SettingChange(key=key, previous=before[key], value=after[key])
        for key in before
        if after[key] != before[key]
    )
    return SettingChanges(dry_run=patch.dry_run, changes=changes)


def change_settings(controller: Controller, planned: SettingChanges) -> None:
    values = _values(controller) | {change.key: change.value for change in planned.changes}
    controller.set_limits(
        MoveLimits(
            max_moves=values["migration.max_moves"],
            max_bytes_per_s=values["migration.max_bytes_per_s"] or None,
            cooling_s=values["migration.cooling_s"],
        )
    )


def _values(controller: Controller) -> dict[str, Any]:
    limits = controller.limits
    return {
        "migration.max_moves": limits.max_moves,
        "migration.max_bytes_per_s": limits.max_bytes_per_s or 0.0,
        "migration.cooling_s": limits.cooling_s,
    }


def _fields() -> Iterator[tuple[str, FieldInfo]]:
    for name, model in TABLES.items():
        for field, info in model.model_fields.items():
            yield f"{name}.{field}", info
