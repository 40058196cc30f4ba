"""What was refused, and what API keys use, as the control API tells it."""

from controller.api.wire.overload import KeyStatus, RefusedStatus
from controller.runtime.controller.cluster import ControllerProcess

MAX_KEYS = 100
"""Keys that are told of, those that use most: each is a series of every metric by key."""


def refused(controller: ControllerProcess) -> tuple[RefusedStatus, ...]:
    names = {level.rank: level.name for level in controller.live.scheduler.levels}
    records, now_s = controller.admission_records, controller.now_s()
    return tuple(
        RefusedStatus(
            reason=code,
            level=names.get(rank, str(rank)),
            num_refused=refusals.number,
            num_refused_last_minute=records.num_last_minute(code, rank, now_s),
        )
        for (code, rank), refusals in sorted(records.refusals.items())
    )


def keys(controller: ControllerProcess) -> tuple[KeyStatus, ...]:
    totals = controller.scheduler.keys.totals()
    totals.sort(key=lambda each: (-each.num_tokens, -each.num_live, each.key))
    return tuple(
        KeyStatus(
            key=each.key,
            num_live_reqs=each.num_live,
            num_tokens_last_minute=each.num_tokens,
            num_refused=each.num_refused,
        )
        for each in totals[:MAX_KEYS]
    )
