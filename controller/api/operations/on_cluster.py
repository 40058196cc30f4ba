"""Orders about the whole cluster: scale, rolling restarts, settings."""

from controller.api.operations.order import OnCluster
from controller.api.text.engine_arguments import arguments
from controller.api.text.quantities import duration
from controller.api.text.settings import assignments
from controller.api.wire.operations import ScaleReport, ScaleRequest
from controller.api.wire.rolling import (
    RollingDismissRequest,
    RollingReport,
    RollingRequest,
    RollingStopRequest,
)
from controller.api.wire.settings import SettingChanges, SettingsPatch


class Scale(OnCluster[ScaleRequest, ScaleReport]):
    kind = "scale"
    does = "Change the number of instances"
    path = "/v1/scale"
    body = ScaleRequest
    report = ScaleReport
    wants_body = True
    undone_by = "scale"

    @property
    def title(self) -> str:
        return f"scale {self.number}"

    @property
    def number(self) -> str:
        wanted = self.wanted
        return str(wanted.target) if wanted.change is None else f"{wanted.change:+d}"


class Rolling(OnCluster[RollingRequest, RollingReport]):
    kind = "rolling"
    does = "Restart all, one after the other"
    path = "/v1/rolling-restart"
    body = RollingRequest
    report = RollingReport
    undone_by = "stop_rolling"
    title = "rolling restart"

    @property
    def deed(self) -> str:
        wanted = self.wanted
        words = "" if wanted.at_once == 1 else f" --at-once {wanted.at_once or 'max'}"
        if wanted.deadline_s is not None:
            words += f", each within {duration(wanted.deadline_s)}"
        for key, value in wanted.engine_args.items():
            words += f" --engine-arg {arguments({key: value})}"
        return f"restart --rolling{words}"


class StopRolling(OnCluster[RollingStopRequest, RollingReport]):
    kind = "stop_rolling"
    does = "Stop the rolling restart"
    path = "/v1/rolling-restart/stop"
    body = RollingStopRequest
    report = RollingReport
    title = "stop the rolling restart"
    deed = "restart --stop"


class DismissRolling(OnCluster[RollingDismissRequest, RollingReport]):
    kind = "dismiss_rolling"
    does = "Show the last rolling restart no more"
    path = "/v1/rolling-restart/dismiss"
    body = RollingDismissRequest
    report = RollingReport
    title = "show the rolling restart no more"
    deed = "restart --dismiss"


class SetSettings(OnCluster[SettingsPatch, SettingChanges]):
    kind = "set"
    does = "Change settings"
    path = "/v1/settings"
    method = "PATCH"
    body = SettingsPatch
    report = SettingChanges
    wants_body = True
    undone_by = "set"

    @property
    def title(self) -> str:
        return f"set {assignments(self.wanted.changes.items())}"
