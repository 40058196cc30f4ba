"""Which instances a round relieves, and which may take from them: what a change of thresholds is
about, so that it can be seen before the change is made."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from controller.core.load.snapshot import Level
from controller.core.rescheduling.pairing import InstanceLoad, is_destination, is_source
from controller.core.settings import ReschedulingConfig


class Role(StrEnum):
    SOURCE = "source"
    DESTINATION = "destination"
    NEITHER = "neither"


def roles(loads: Sequence[InstanceLoad], config: ReschedulingConfig) -> Mapping[str, Role]:
    """By instance id."""
    return {load.instance_id: _role(load, config) for load in loads}


def _role(load: InstanceLoad, config: ReschedulingConfig) -> Role:
    if is_source(load, config):
        return Role.SOURCE
    return Role.DESTINATION if is_destination(load, config) else Role.NEITHER


def may_differ(
    before: tuple[ReschedulingConfig, Sequence[Level]],
    after: tuple[ReschedulingConfig, Sequence[Level]],
) -> bool:
    """Whether the two can give an instance different roles, however it is loaded."""
    return _deciding(*before) != _deciding(*after)


def _deciding(config: ReschedulingConfig, levels: Sequence[Level]) -> tuple[object, ...]:
    return (
        config.enabled,
        config.source_below_steps,
        config.destination_above_steps,
        *((level.rank, level.target_load_tokens) for level in levels),
    )
