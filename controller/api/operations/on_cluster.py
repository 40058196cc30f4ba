"""Orders about the whole cluster (scale, rolling restarts, settings, auto-scaling), each with its
body and its report.

The compatibility rules are those of `controller.api.wire`. Times in reports are seconds since the
epoch unless the name says for how long. `revision` counts the changes of the cluster's spec.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field, JsonValue, model_validator

from controller.api.operations.on_instances import (
    DrainReport,
    InstanceIds,
    OnDeadline,
    awaited,
    capacity,
    departures,
    would_move,
)
from controller.api.operations.order import (
    Awaited,
    Controller,
    Danger,
    End,
    OnCluster,
    Order,
    Outcome,
    Plan,
    SpecOrderBody,
)
from controller.api.settings import MAX_DEADLINE_S, MAX_INSTANCES, MAX_WARM_S, PYTHON
from controller.api.text.quantities import duration, setting_value
from controller.api.text.status_words import (
    RELEASE,
    engine_arguments,
    rolling_plan,
    rolling_progress,
)
from controller.api.wire import (
    AnswerModel,
    SettingValue,
    WireModel,
)
from controller.api.wire.status import RollingReport

ALL = "all"
"""What an operator must type if the rolling restart includes the last instance that serves."""
AUTOSCALE_MODE = "autoscale.mode"
MAX_NAMED_ROLES = 12


class ScaleRequest(SpecOrderBody):
    """Sets the number of instances. A `change` of the number can only be planned (`dry_run`): the
    plan names the number to ask for, and the revision. `deadline_s` (seconds from now) and
    `on_deadline` apply to the drains of a scale-in."""

    target: int | None = Field(default=None, ge=0, le=MAX_INSTANCES)
    change: int | None = Field(default=None, ge=-MAX_INSTANCES, le=MAX_INSTANCES)
    force: bool = False
    """Starts instances even if there seems to be no room for them, and drains the instances to be
    removed even if no other instance serves."""
    draining: InstanceIds | None = None
    """Removes exactly these instances, or fails. None: removes the instances with the fewest
    running requests."""
    deadline_s: float | None = Field(default=None, gt=0, le=MAX_DEADLINE_S)
    on_deadline: OnDeadline = "keep"
    warm_s: float = Field(default=0.0, ge=0, le=MAX_WARM_S)
    """For how long an emptied instance stays before it is removed, so that other instances can
    fetch what it has cached."""

    @model_validator(mode="after")
    def _one_of_both(self) -> "ScaleRequest":
        if (self.target is None) == (self.change is None):
            raise ValueError("give either target or change")
        if self.change is not None and not self.dry_run:
            raise ValueError("a change can only be planned: ask for the target of the plan")
        return self


class ScaleReport(AnswerModel):
    """`previous` and `target` count planned instances: instances that start are included, instances
    that are to be removed are not. `undrained`: instances that were to be removed, and stay."""

    previous: int
    target: int
    revision: int = 0
    dry_run: bool = False
    added: tuple[str, ...] = ()
    undrained: tuple[str, ...] = ()
    draining: tuple[DrainReport, ...] = ()
    holds_autoscale: bool = False
    """Whether auto-scaling is on, or in its dry-run mode, but leaves the number of instances as it
    is until an operator releases auto-scaling."""


class Scale(OnCluster[ScaleRequest, ScaleReport]):
    """`wanted` has a target number, or a change of the number, which the plan turns into a
    target."""

    kind, word = "scale", "Scale"
    does = "Change the number of instances"
    meaning = "another number of instances"
    typed, usage = "scale N", "llumctl scale N"
    path = "/v1/scale"
    body = ScaleRequest
    report = ScaleReport
    wants_body = True
    repeatable = True
    undone_by = "scale"

    @staticmethod
    def to(text: str) -> "Scale":
        """`4`, `+1` or `-1`. Raises ValueError."""
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
            raise ValueError(text)
        if text[0] in "+-":
            return Scale(ScaleRequest(change=int(text), dry_run=True))
        return Scale(ScaleRequest(target=int(text)))

    @classmethod
    def bringing_back(cls, previous: Mapping[str, SettingValue]) -> Mapping[str, Any]:
        return {"target": int(previous["instances"] or 0)}

    @property
    def _number(self) -> str:
        wanted = self.wanted
        return str(wanted.target) if wanted.change is None else f"{wanted.change:+d}"

    @property
    def title(self) -> str:
        return f"scale {self._number}"

    @property
    def question(self) -> str:
        return f"Scale {'to ' if self.wanted.change is None else ''}{self._number}?"

    def plan(self, client: Controller) -> Plan[Order[Any, Any]]:
        """The resulting order names the instances that the plan would remove, so that no others are
        removed."""
        report = client.send(self.dry())
        if not (report.added or report.undrained or report.draining):
            return Plan((f"there are {report.target} instances already",), None)
        going = tuple(drain.instance_id for drain in report.draining)
        lines = [f"{report.previous} -> {report.target} instances"]
        lines += [f"{each} would start" for each in report.added]
        lines += [f"{each} would stay after all" for each in report.undrained]
        if going:
            lines += [f"{would_move(each)}, then it is removed" for each in report.draining]
            lines.append(capacity(client.status(), going))
            lines += [line for each in report.draining for line in departures(each.plan)]
        if report.holds_autoscale:
            lines.append(f"auto-scaling would leave it there, until {RELEASE}")
        return Plan(tuple(lines), self.planned(report))

    def planned(self, report: ScaleReport) -> "Scale":
        """The order that does exactly what this report of a dry run says."""
        going = tuple(drain.instance_id for drain in report.draining)
        order = self.but(target=report.target, change=None, dry_run=False, draining=going)
        return order if self.revision is not None else order.at(report.revision)

    def outcome(self, report: ScaleReport) -> Outcome:
        facts = [f"{report.previous} -> {report.target} instances"]
        facts += [f"{each} starts" for each in report.added]
        facts += [f"{each} stays" for each in report.undrained]
        facts += [f"{each.instance_id} goes" for each in report.draining]
        if report.holds_autoscale:
            facts.append(f"auto-scaling leaves it there, until {RELEASE}")
        changed = report.added or report.undrained or report.draining
        return Outcome(", ".join(facts), can_undo=bool(changed), awaits=awaited_of_scale(report))


MAX_ENGINE_ARGS = 64
DESCRIBE_TIMEOUT_S = 60.0
"""How long a Python environment may take to describe itself."""


class RollingRequest(SpecOrderBody):
    """Restarts all instances, one after the other. If an instance is not empty at its deadline, its
    restart is given up, and so are the restarts of all later instances; the requests that are left
    stay where they run."""

    at_once: int = Field(default=1, ge=0, le=MAX_INSTANCES)
    """How many instances may be away at a time; 0: as many as the others have room for."""
    deadline_s: float | None = Field(default=None, gt=0, le=MAX_DEADLINE_S)
    """Seconds that emptying one instance may take. None: any time."""
    warm_s: float = Field(default=0.0, ge=0, le=MAX_WARM_S)
    """For how long at most each emptied process stays, so that other instances copy what it has
    cached."""
    start_timeout_s: float = Field(default=600.0, gt=0, le=MAX_DEADLINE_S)
    """Seconds that a new process may take until it serves."""
    force: bool = False
    """Restarts the instances even if no other instance serves meanwhile; new requests are held
    then."""
    engine_args: dict[str, JsonValue] = Field(default_factory=dict, max_length=MAX_ENGINE_ARGS)
    """Engine arguments that every instance gets, by their Python names; null takes an argument back
    to its value at the cluster's start. Other arguments stay as they are."""


class RollingStopRequest(SpecOrderBody):
    """Stops the rolling restart: no further instance is restarted. An instance that is being
    emptied keeps its process. An instance whose process has ended still gets the next one."""


class RollingDismissRequest(SpecOrderBody):
    """Removes a rolling restart that is over from the status."""


class Rolling(OnCluster[RollingRequest, RollingReport]):
    kind, word = "rolling", "Restart"
    does = "Restart all, one after the other"
    meaning = "restart all instances, one after the other"
    typed, usage = "rolling", "llumctl restart --rolling"
    path = "/v1/rolling-restart"
    body = RollingRequest
    report = RollingReport
    keyed = True
    undone_by = "stop_rolling"
    title = "rolling restart"
    question = "Restart all, one after the other?"

    @property
    def deed(self) -> str:
        wanted = self.wanted
        words = "" if wanted.at_once == 1 else f" --at-once {wanted.at_once or 'max'}"
        if wanted.deadline_s is not None:
            words += f", each within {duration(wanted.deadline_s)}"
        for key, value in wanted.engine_args.items():
            words += f" --engine-arg {engine_arguments({key: value})}"
        return f"restart --rolling{words}"

    @property
    def command(self) -> str:
        command = "llumctl restart --rolling"
        return f"{command} --force" if self.wanted.force else command

    @property
    def takes_s(self) -> float:
        """Another Python environment is asked about itself, by a process of its own."""
        return DESCRIBE_TIMEOUT_S if self.wanted.engine_args.get(PYTHON) is not None else 0.0

    def plan(self, client: Controller) -> Plan[Order[Any, Any]]:
        report, order, name = self.asked(client, ALL)
        return Plan(rolling_plan(report), order, name)

    def outcome(self, report: RollingReport) -> Outcome:
        """The instances' own states show each step; this order is over with the last step."""
        awaits = (Awaited("", End.ROLLED, report.rolling_id),) if report.rolling_id else ()
        return Outcome(_rolling(report), can_undo=True, awaits=awaits)


class StopRolling(OnCluster[RollingStopRequest, RollingReport]):
    kind, word = "stop_rolling", "Stop"
    does = "Stop the rolling restart"
    meaning = "stop the rolling restart: no other instance follows"
    typed, usage = "stop_rolling", "llumctl restart --stop"
    path = "/v1/rolling-restart/stop"
    body = RollingStopRequest
    report = RollingReport
    title = "stop the rolling restart"
    question = "Stop the rolling restart?"
    deed = "restart --stop"
    command = "llumctl restart --stop"

    def plan(self, client: Controller) -> Plan[Order[Any, Any]]:
        report = client.send(self.dry())
        left = " ".join(report.left) or "none"
        lines = (rolling_progress(report), f"these would keep their process: {left}")
        return Plan(lines, self.at(report.revision))

    def outcome(self, report: RollingReport) -> Outcome:
        return Outcome(_rolling(report))


class DismissRolling(OnCluster[RollingDismissRequest, RollingReport]):
    """Dismisses a rolling restart. Only the command line gives this order."""

    kind, word = "dismiss_rolling", "Dismiss"
    does = "Show the last rolling restart no more"
    path = "/v1/rolling-restart/dismiss"
    body = RollingDismissRequest
    report = RollingReport
    title = "dismiss the rolling restart"
    deed = "restart --dismiss"
    command = "llumctl restart --dismiss"


Origin = Literal["default", "start", "set"]
Role = Literal["source", "destination", "neither"]


class Setting(WireModel):
    """A setting that may be changed while the cluster runs. `origin`: where its value comes from
    (the default, the cluster's start, or a change since). `allowed`: which values it may have, in
    words. Older controllers tell neither."""

    key: str
    value: SettingValue = None
    default: SettingValue = None
    meaning: str = ""
    origin: Origin | None = None
    allowed: str = ""


class SettingList(AnswerModel):
    """`revision` counts the changes of the cluster's spec."""

    settings: tuple[Setting, ...]
    revision: int = 0


class SettingsPatch(SpecOrderBody):
    """Makes all `changes` or, if one is wrong, none. A change of `autoscale.mode`, even to the
    value that it already has, releases auto-scaling from an operator's scale."""

    # Infinity and NaN get through here: each setting has its own bounds, and a refusal by those
    # names the setting.
    model_config = ConfigDict(allow_inf_nan=True)

    changes: dict[str, SettingValue] = Field(min_length=1, max_length=100)


class SettingChange(WireModel):
    key: str
    previous: SettingValue = None
    value: SettingValue = None


class InstanceRole(WireModel):
    """The role of an instance in the rounds of rescheduling now, and the role that it would have: a
    source is relieved of requests, a destination may take some. `freeness_steps`: the freeness that
    it would have; null for a draining instance."""

    instance_id: str
    freeness_steps: float | None = None
    now: Role
    then: Role


class SettingChanges(AnswerModel):
    """`revision`: the revision that these changes made, or the present one if nothing changed.
    `roles`: the roles of all instances that report, in a dry run of changes that may change
    roles."""

    dry_run: bool = False
    changes: tuple[SettingChange, ...]
    """The settings whose value changed."""
    roles: tuple[InstanceRole, ...] = ()
    releases_autoscale: bool = False
    """Whether the change ends an operator's own scale, which takes precedence over auto-scaling
    until then."""
    revision: int = 0


class SetSettings(OnCluster[SettingsPatch, SettingChanges]):
    kind, word = "set", "Set"
    does = "Change settings"
    meaning = "change a setting; without a value: show it"
    typed, usage = "set [KEY=VALUE...]", "llumctl set KEY=VALUE"
    path = "/v1/settings"
    method = "PATCH"
    body = SettingsPatch
    report = SettingChanges
    wants_body = True
    repeatable = True
    undone_by = "set"

    @staticmethod
    def to(assignments: Iterable[str]) -> "SetSettings":
        """The order for assignments such as `migration.max_moves=2`, as `llumctl set` takes them.
        The controller says whether there are such settings and values."""
        from controller.api.settings.setting_values import value_of  # the tables of settings

        pairs = (each.partition("=") for each in assignments)
        changes = {key: value_of(key, value) for key, _, value in pairs}
        return SetSettings(SettingsPatch(changes=changes))

    @classmethod
    def bringing_back(cls, previous: Mapping[str, SettingValue]) -> Mapping[str, Any]:
        return {"changes": previous}

    @property
    def title(self) -> str:
        return f"set {assignments(self.wanted.changes.items())}"

    @property
    def command(self) -> str:
        each = (assignments([item]) for item in self.wanted.changes.items())
        return f"llumctl set {shlex.join(each)}"

    @property
    def question(self) -> str:
        return f"Set {assignments(self.wanted.changes.items())}?"

    def plan(self, client: Controller) -> Plan[Order[Any, Any]]:
        report = client.send(self.dry())
        if not report.changes:
            return Plan(("it has this value already",), None)
        lines = [
            f"{each.key}: {setting_value(each.previous)} -> {setting_value(each.value)}"
            for each in report.changes
        ]
        return Plan((*lines, *preview(report)), self.at(report.revision))

    def outcome(self, report: SettingChanges) -> Outcome:
        if not report.changes:
            return Outcome("it had this value already")
        before = ", ".join(setting_value(each.previous) for each in report.changes)
        return Outcome(f"was {before}", can_undo=True)


class Autoscale(SetSettings):
    """The order `set` for one setting, for which the console and the command line have words of
    their own. The table of orders does not list this order."""

    kind = "autoscale"
    key = "A"
    meaning = "choose whether instances come and go with the load"
    typed, usage = "scale auto [MODE]", "llumctl scale auto MODE"
    danger = Danger.CHOOSE

    @staticmethod
    def to_mode(mode: str) -> "Autoscale":
        return Autoscale(SettingsPatch(changes={AUTOSCALE_MODE: mode}))

    @property
    def _mode(self) -> SettingValue:
        return self.wanted.changes[AUTOSCALE_MODE]

    @property
    def title(self) -> str:
        return f"scale auto {self._mode}"

    @property
    def command(self) -> str:
        return f"llumctl {self.title}"

    @property
    def question(self) -> str:
        return f"Auto-scaling {self._mode}?"

    def outcome(self, report: SettingChanges) -> Outcome:
        facts = [f"was {each.previous}" for each in report.changes]
        if report.releases_autoscale:
            facts.append("an operator's scale no longer holds it")
        return Outcome(
            ", ".join(facts) or "it had this value already", can_undo=bool(report.changes)
        )


ORDERS: tuple[type[Order[Any, Any]], ...] = (
    Scale,
    Rolling,
    StopRolling,
    DismissRolling,
    SetSettings,
)


def _rolling(report: RollingReport) -> str:
    return rolling_progress(report).removeprefix("rolling restart: ")


def awaited_of_scale(report: ScaleReport) -> tuple[Awaited, ...]:
    new = tuple(Awaited(each, End.STARTED) for each in report.added)
    return new + tuple(item for each in report.draining for item in awaited(each))


def assignments(values: Iterable[tuple[str, SettingValue]]) -> str:
    """`migration.max_moves=2`: the assignments with blanks between them, as `llumctl set` takes
    them."""
    return " ".join(f"{key}={setting_value(value)}" for key, value in values)


def preview(changes: SettingChanges) -> list[str]:
    """`sources: i-1 (-81), i-0 (86, new); no more: i-4`: which instances rescheduling would relieve
    of requests, and which instances may take some, each with its freeness. Empty if no role may
    change."""
    if not changes.roles:
        return []
    if all(each.now == each.then for each in changes.roles):
        return ["no instance becomes a source or a destination, or stops being one, now"]
    return [_side(changes.roles, "source"), _side(changes.roles, "destination")]


def _side(roles: Iterable[InstanceRole], role: str) -> str:
    ordered = sorted(roles, key=lambda each: (_role_steps(each), each.instance_id))
    if role == "destination":  # the freest destination is chosen first, as the least free source is
        ordered.sort(key=lambda each: -_role_steps(each))
    ordered.sort(key=lambda each: each.now == role)  # the roles that change come first
    then = [_named(each, each.now != role) for each in ordered if each.then == role]
    gone = [each.instance_id for each in ordered if each.now == role != each.then]
    words = f"{role}s: {_listed(then) or 'none'}"
    return f"{words}; no more: {_listed(gone)}" if gone else words


def _role_steps(each: InstanceRole) -> float:
    return float("-inf") if each.freeness_steps is None else each.freeness_steps


def _named(each: InstanceRole, is_new: bool) -> str:
    steps = "draining" if each.freeness_steps is None else f"{each.freeness_steps:.0f}"
    return f"{each.instance_id} ({steps}{', new' if is_new else ''})"


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_NAMED_ROLES
    words = ", ".join(names[:MAX_NAMED_ROLES])
    return f"{words} and {more} more" if more > 0 else words
