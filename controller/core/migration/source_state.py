"""Where the source of a move may be; `source` says what each is."""

from enum import StrEnum


class SourceState(StrEnum):
    PLANNING = "planning"
    PRE_ALLOCATING = "pre_allocating"
    COPYING = "copying"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    COMMITTING = "committing"
    FENCING = "fencing"
    MIGRATED = "migrated"
    KEPT = "kept"
    RESUMED = "resumed"
    ENDED = "ended"


_S = SourceState
BEFORE_SUSPENSION = (_S.PLANNING, _S.PRE_ALLOCATING, _S.COPYING, _S.SUSPENDING)
IN_DOUBT = (_S.COMMITTING, _S.FENCING)
OVER = (_S.MIGRATED, _S.KEPT, _S.RESUMED, _S.ENDED)
