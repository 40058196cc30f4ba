"""`[evacuate]`: what an instance does that will be ended soon."""

from controller.api.settings.table import Seconds, Table


class EvacuateTable(Table):
    """`[evacuate]`: instances that must go by a moment; docs/operating.md."""

    notice_s: Seconds = 30.0
    """After a SIGTERM to an instance's process so long for its requests to move to others; then it
    ends, and is not started again."""
