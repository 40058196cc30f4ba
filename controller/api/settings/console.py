"""What `llumctl top` and `llumctl status` read in the configuration file about their display."""

from typing import Annotated

from pydantic import Field

from controller.api.settings.table import Table

Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class ConsoleTable(Table):
    """`[console]`: whether the dashboard may change the cluster, and from where on it and `llumctl
    status` raise an alarm. 0: never."""

    readonly: bool = False
    """The dashboard begins read-only; its key for that allows changes."""
    alarm_head_waited_s: Limit = 10.0
    """A request that is the first in its instance's queue and has waited that long is an alarm."""
    alarm_waiting_reqs: Count = 20
    """So many requests that wait at one instance, or are held at the controller, are an alarm."""
    alarm_ttft_p99_s: Limit = 10.0
    """A time to first token, 99th percentile of the last minute, that is this high is an alarm."""
    alarm_failed_moves: Count = 30
    """So many moves that came to nothing in the last minute are an alarm if fewer succeeded."""
    alarm_move_s: Limit = 15.0
    """A move that has been under way for so long is an alarm; nearly all take under a second."""
