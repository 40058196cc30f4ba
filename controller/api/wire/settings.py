"""Wire models of the settings that may be changed while the cluster runs."""

from typing import Literal

from pydantic import ConfigDict, Field

from controller.api.wire.base import (
    AnswerModel,
    OrderModel,
    Reason,
    Revision,
    SettingValue,
    WireModel,
)

Origin = Literal["default", "start", "set"]
Role = Literal["source", "destination", "neither"]


class Setting(WireModel):
    """A setting that may be changed while the cluster runs. `origin`: where its value is from: the
    default, what the cluster was started with, or a change since. `allowed`: which values it may
    have, in words. Older controllers tell neither."""

    key: str
    value: SettingValue = None
    default: SettingValue = None
    meaning: str = ""
    origin: Origin | None = None
    allowed: str = ""


class SettingList(AnswerModel):
    """`revision` counts the changes of the cluster's spec."""

    settings: tuple[Setting, ...]
    revision: int = 0


class SettingsPatch(OrderModel):
    """Makes all of `changes` or, if one is wrong, none. With `if_revision`, it fails if the spec
    has another revision by now. `autoscale.mode` among them, even with the value that it has,
    releases auto-scaling from an operator's scale."""

    # Each setting has its own bounds, whose refusal names it.
    model_config = ConfigDict(allow_inf_nan=True)

    changes: dict[str, SettingValue] = Field(min_length=1, max_length=100)
    dry_run: bool = False
    reason: Reason = ""
    if_revision: Revision = None


class SettingChange(WireModel):
    key: str
    previous: SettingValue = None
    value: SettingValue = None


class InstanceRole(WireModel):
    """What an instance is for the rounds of rescheduling now, and what it would be: one that is
    relieved of requests, or one that may take some. `freeness_steps`: as it would be; null for a
    draining instance."""

    instance_id: str
    freeness_steps: float | None = None
    now: Role
    then: Role


class SettingChanges(AnswerModel):
    """`revision`: the one that these changes made, or the present one if nothing changed. `roles`:
    of all instances that report, in a dry run of changes that may give an instance another one."""

    dry_run: bool = False
    changes: tuple[SettingChange, ...]
    """The settings whose value has changed."""
    roles: tuple[InstanceRole, ...] = ()
    releases_autoscale: bool = False
    """An operator's own scale wins over auto-scaling no more."""
    revision: int = 0
