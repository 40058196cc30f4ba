"""What of the configuration a member is told."""

from controller.runtime.controller.roster import Member
from controller.runtime.live_config import LiveConfig
from controller.runtime.messages.message import Message
from controller.runtime.messages.moves import MoveLimitsSet
from controller.runtime.messages.operations import StatusPushSet


def config_messages(
    member: Member, config: LiveConfig, before: LiveConfig | None = None
) -> list[Message]:
    """What differs from `before`, or all if that is None."""
    known = {} if before is None else {type(m): m for m in _all(member, before)}
    return [m for m in _all(member, config) if known.get(type(m)) != m]


def _all(member: Member, config: LiveConfig) -> tuple[Message, ...]:
    """One message of each type."""
    if member.kind == "instance":
        limits = config.rescheduling
        return (
            MoveLimitsSet(limits.max_moves, limits.max_bytes_per_s or None),
            StatusPushSet(config.status_interval_s, config.status_phases),
        )
    return (config.frontends,)
