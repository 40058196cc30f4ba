"""What of the configuration a member is told."""

from controller.core.settings import StatusPush
from controller.ports.engine import STEP_PHASES, StepPhase
from controller.runtime.controller.roster import Member
from controller.runtime.live_config import LiveConfig
from controller.runtime.messages.message import Message
from controller.runtime.messages.move_messages import MoveLimitsSet
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
        limits, settings = config.rescheduling, config.scheduler
        return (
            MoveLimitsSet(limits.max_moves, limits.max_bytes_per_s or None),
            StatusPushSet(settings.status_interval_s, _phases(settings.status_push)),
        )
    return (config.frontends,)


def _phases(push: StatusPush) -> tuple[StepPhase, ...]:
    if push == "never":
        return ()
    return STEP_PHASES if push == "all" else (push,)
