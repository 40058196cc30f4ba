"""Wire models of the settings that may be changed while the cluster runs."""

from pydantic import ConfigDict, Field

from controller.api.settings.bounds import MAX_REASON_CHARS
from controller.api.wire.models import SCHEMA_VERSION, WireModel

SettingValue = int | float | str | bool | None
"""None: the setting has no value, as a time limit that is not set."""


class Setting(WireModel):
    """One that may be changed while the cluster runs. `default`: what it is where nobody says."""

    key: str
    value: SettingValue = None
    default: SettingValue = None
    meaning: str = ""


class SettingList(WireModel):
    """`revision` counts the changes of what operators want of the cluster."""

    schema_version: int = SCHEMA_VERSION
    settings: tuple[Setting, ...]
    revision: int = 0


class SettingsPatch(WireModel):
    """All of `changes` or, if one is wrong, none. With `if_revision`, only if that is still the
    revision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    changes: dict[str, SettingValue] = Field(min_length=1, max_length=100)
    dry_run: bool = False
    reason: str = Field(default="", max_length=MAX_REASON_CHARS)
    if_revision: int | None = Field(default=None, ge=0)


class SettingChange(WireModel):
    key: str
    previous: SettingValue = None
    value: SettingValue = None


class SettingChanges(WireModel):
    """`revision`: the one that these changes made; of a dry run, and where nothing changed, the
    present one."""

    schema_version: int = SCHEMA_VERSION
    dry_run: bool = False
    changes: tuple[SettingChange, ...]
    """Those whose value is another one now."""
    revision: int = 0
