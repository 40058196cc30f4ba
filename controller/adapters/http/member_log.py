"""`GET /v1/members/{id}/log`: the last lines of the log of a member, of the controller or of the
head process, if that is on this machine."""

import asyncio
from contextlib import closing
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from controller.adapters.http.errors import ApiError
from controller.api.state.log_tail import LogTail
from controller.api.wire.models import MemberLog
from controller.runtime.controller.cluster import ControllerProcess

OURS = ("controller", "head")
"""Processes that are no members, and write logs all the same."""
MAX_LINES = 500
MAX_LINE_CHARS = 1000
"""Of a longer line the beginning is told: an answer has half a million characters at most."""


class LogQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    lines: int = Field(default=100, ge=1, le=MAX_LINES)


async def member_log(
    controller: ControllerProcess, log_dir: Path, member_id: str, query: LogQuery
) -> MemberLog:
    """Only a member's id, or one of `OURS`, names a file, so a path cannot."""
    if member_id not in controller.roster.members and member_id not in OURS:
        raise ApiError(404, "not_found", f"there is no member {member_id[:60]!r}", "llumctl status")
    path = log_dir / f"{member_id}.log"
    if not path.exists():
        message = f"the log of {member_id} is not on the controller's machine"
        raise ApiError(404, "no_log", message, "llumctl logs      on the member's machine")
    lines = await asyncio.to_thread(_last, path, query.lines)
    return MemberLog(member_id=member_id, lines=tuple(line[:MAX_LINE_CHARS] for line in lines))


def _last(path: Path, num_lines: int) -> list[str]:
    with closing(LogTail(path)) as tail:
        return (tail.last(num_lines) + tail.unfinished())[-num_lines:]
