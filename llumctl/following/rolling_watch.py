"""Follows a rolling restart until it is over: asks the controller again and again, and says how
far it is on stderr. Leaving ends nothing, and a controller may be away for a while."""

import time

from controller.api.errors import LlumctlError, NotRunningError, UnreachableError
from controller.api.text import rolling_words as words
from controller.api.wire.status import RollingReport
from llumctl import connect
from llumctl.text import output

POLL_S = 0.5
DETACHED = (
    "no longer watching: the rolling restart goes on\n"
    "try:   llumctl status      or      llumctl restart --stop"
)


class Watch:
    def __init__(self, cluster: str, begun: RollingReport) -> None:
        self._cluster = cluster
        self.report = begun
        self._said: tuple[object, ...] = ()
        self._trouble = ""

    def until_over(self) -> None:
        """Raises NotRunningError when the cluster is stopped, and LlumctlError if another rolling
        restart took its place."""
        self._tell()
        while self.report.state == "going":
            time.sleep(POLL_S)
            self._look()
            self._tell()

    def _look(self) -> None:
        try:
            with connect.client(self._cluster) as client:
                found = client.rolling()
        except NotRunningError:
            raise
        except UnreachableError as error:
            if not self._trouble:
                output.say(f"{error.message}; waiting for it")
            self._trouble = error.message
            return
        self._trouble = ""
        if found.rolling_id != self.report.rolling_id:
            raise LlumctlError("another rolling restart began meanwhile", "llumctl status")
        self.report = found

    def _tell(self) -> None:
        """A line for each step; one request fewer on an instance is no step."""
        step = words.step(self.report)
        if step != self._said:
            output.say(words.progress(self.report))
            self._said = step


def check(report: RollingReport) -> None:
    """Raises LlumctlError unless every instance was restarted."""
    if report.state == "failed":
        left = f"; not restarted: {' '.join(report.left)}" if report.left else ""
        raise LlumctlError(
            f"the rolling restart failed: {report.why}{left}",
            f"llumctl logs {report.failed_id}      then      {_again(report)}",
        )
    if report.state == "stopped":
        raise LlumctlError(
            f"the rolling restart was stopped: {report.why}",
            "llumctl events --kind operator      llumctl status",
        )


def _again(report: RollingReport) -> str:
    """Without arguments it takes the change back where it was made already."""
    plain = "llumctl restart --rolling"
    if not report.engine_args:
        return plain
    return f"{plain}      or      llumctl restart --rolling --engine-arg KEY=VALUE"
