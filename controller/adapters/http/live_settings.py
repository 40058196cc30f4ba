"""The settings on the control API: how they are listed, and changed while the cluster runs.

Changed values are kept in the spec, so that they outlive the controller. After each change the
cluster's configuration is made again from all settings (`live_config`). Several models share the
settings of tables that `[models.NAME]` does not have, such as `endpoint`: these have one value, in
the spec of the first model, and a change through any model is a change for all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.adapters.http.calls import ApiError, shown
from controller.api.operations.on_cluster import (
    InstanceRole,
    Origin,
    Setting,
    SettingChange,
    SettingChanges,
    SettingList,
    SettingsPatch,
)
from controller.api.settings.setting_values import (
    LiveSetting,
    SettingError,
    changed,
    is_shared,
    live_settings,
)
from controller.api.settings.settings import Settings
from controller.core.admission.policies import POLICIES, Policy, SchedulerConfig, find_policy
from controller.core.admission.traffic import Traffic, traffic_of
from controller.core.emptying.rounds import may_differ
from controller.core.load.freeness import finite
from controller.core.load.snapshot import Level
from controller.core.settings import AutoscaleConfig, HoldingConfig, ReschedulingConfig, with_fixed
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.roster import LiveAutoscale, LiveConfig
from controller.runtime.messages.members import FrontendLimits

MIN_INTERVAL_S = 0.01
"""The shortest time between two rounds, however fast an emulated cluster is."""
MODE = "autoscale.mode"
_NAMES = {"scheduler.policy": ", ".join(POLICIES)}
"""Possible values of settings that `controller.api.settings` cannot name, because only the core
knows them."""


@dataclass(frozen=True, slots=True)
class PlannedChanges:
    """The changes, and the configuration that each model would have after them. `shared`: whether
    all models have the changed settings together."""

    patch: SettingsPatch
    after: "Sequence[tuple[LiveSettings, Settings, LiveConfig]]"
    shared: bool
    answer: SettingChanges


class LiveSettings:
    """Lists and changes the settings of the running controller. `beside`: those of the first one of
    several models."""

    def __init__(
        self,
        controller: ControllerProcess,
        settings: Settings,
        beside: "LiveSettings | None" = None,
    ) -> None:
        self._controller = controller
        self._settings = settings
        self._all: list[LiveSettings] = [] if beside is None else beside._all
        self._all.append(self)

    @property
    def engine_python(self) -> str:
        """The Python interpreter that ran instances at the cluster's start; empty: that of the
        cluster."""
        return self._settings.engine_python

    def listed(self) -> SettingList:
        return SettingList(
            settings=tuple(
                shown(
                    Setting,
                    each,
                    origin=self._origin(each),
                    allowed=_NAMES.get(each.key) or each.allowed,
                )
                for each in live_settings(self._settings).values()
            ),
            revision=self._controller.keeper.revision,
        )

    def _origin(self, setting: LiveSetting) -> Origin:
        if setting.value == setting.default:
            return "default"
        keeper = self._controller.keeper
        holder = keeper.first if is_shared(setting.key) else keeper
        return "set" if setting.key in holder.spec.settings else "start"

    def planned(self, patch: SettingsPatch) -> PlannedChanges:
        """Plans changes. Raises ApiError for an unknown key, a key that cannot be changed, or a bad
        value; also RevisionConflictError."""
        keeper = self._controller.keeper
        shared = self._are_shared(patch)
        try:
            after = [self._after(patch)]
            after += [each._after(patch) for each in self._all if shared and each is not self]
        except ValueError as error:
            hint = error.hint if isinstance(error, SettingError) else "llumctl set"
            raise ApiError(400, "bad_setting", str(error), hint) from error
        (_, becoming, config), *_ = after
        was, becomes = live_settings(self._settings), live_settings(becoming)
        changes = tuple(
            SettingChange(key=key, previous=was[key].value, value=becomes[key].value)
            for key in was
            if was[key].value != becomes[key].value
        )
        releases = MODE in patch.changes and keeper.spec.autoscale_hold is not None
        if changes or releases:  # otherwise this patch itself may have made the present revision
            keeper.check_revision(patch.if_revision)
        answer = SettingChanges(
            dry_run=patch.dry_run,
            changes=changes,
            roles=self._roles(config) if patch.dry_run else (),
            releases_autoscale=releases,
            revision=keeper.revision,
        )
        return PlannedChanges(patch, after, shared, answer)

    def _after(self, patch: SettingsPatch) -> "tuple[LiveSettings, Settings, LiveConfig]":
        """Raises ValueError."""
        after = changed(self._settings, patch.changes)
        models = [each.model for each in self._controller.all if each.model]
        return self, after, live_config(after, models)

    def _are_shared(self, patch: SettingsPatch) -> bool:
        """Whether these are settings that several models share. Raises ApiError if only some are:
        they are in different specs, and one of the two might not be saved."""
        shared = [key for key in patch.changes if is_shared(key)]
        own = [key for key in patch.changes if not is_shared(key)]
        if len(self._all) == 1 or not shared:
            return False
        if own:
            raise ApiError(
                400,
                "bad_setting",
                f"{shared[0][:60]} is of all models together, and {own[0][:60]} of one model: they"
                " are changed one after the other",
                f"llumctl set {shared[0][:60]}=...      then the others",
            )
        return True

    def _roles(self, config: LiveConfig) -> tuple[InstanceRole, ...]:
        """The role of each instance in rescheduling, now and with `config`; empty if they cannot
        differ."""
        rescheduler = self._controller.rescheduler
        now = rescheduler.config, rescheduler.levels
        then = config.rescheduling, config.scheduler.levels
        if not may_differ(now, then):
            return ()
        loads, found = rescheduler.roles(*then)
        before = rescheduler.roles(*now)[1]
        return tuple(
            InstanceRole(
                instance_id=load.instance_id,
                freeness_steps=finite(load.freeness),
                now=before[load.instance_id].value,
                then=found[load.instance_id].value,
            )
            for load in loads
        )

    def make(self, planned: PlannedChanges) -> SettingChanges:
        """Carries out planned changes; no settings may have changed since the plan. If it raises
        RevisionConflictError or LlumctlError, nothing has changed."""
        keeper = self._controller.keeper
        keeper.check_revision(planned.patch.if_revision)
        values = {each.key: each.value for each in planned.answer.changes}
        releases = planned.answer.releases_autoscale
        holder = keeper.first if planned.shared else keeper
        holder.change(holder.spec.with_settings(values, releases=releases))
        for each, settings, config in planned.after:
            each._settings = settings
            each._controller.configure(config)
        return planned.answer.model_copy(update={"revision": keeper.revision})


def live_config(settings: Settings, models: Sequence[str] = ()) -> LiveConfig:
    """The configuration with which the cluster runs, made from the settings that operators write.
    `models`: the names of all models, if there are several. Raises SettingError for a policy that
    live clusters do not have, and for traffic rules that cannot be."""
    endpoint, policy = settings.endpoint, _policy(settings.scheduler.policy)
    levels = tuple(Level(**level.model_dump()) for level in settings.priority)
    return LiveConfig(
        scheduler=with_fixed(
            SchedulerConfig,
            settings.scheduler,
            levels=levels,
            holding=_holding(settings) if policy.late_binding else None,
            key_limits=settings.limits,
        ),
        rescheduling=_rescheduling(settings),
        frontends=FrontendLimits(
            endpoint.max_live_requests,
            endpoint.request_timeout_s,
            endpoint.write_timeout_s,
            hash_prefixes=policy.by_prefix,
            key_limits=settings.limits,
            replay=settings.replay,
            levels=levels,
            traffic=_traffic(settings, models),
        ),
        autoscale=_autoscale(settings),
        max_events=settings.control.max_events,
    )


def _traffic(settings: Settings, models: Sequence[str]) -> Traffic:
    name = settings.model_names[0]
    try:
        return traffic_of(settings.traffic, name, models or (name,))
    except ValueError as error:
        raise SettingError(str(error), "llumctl set traffic.split='MODEL=90, OTHER=10'") from error


def _speed(settings: Settings) -> float:
    """How many times as fast as its profile the cluster runs. The scheduler's own times are scaled
    too, so that the faster cluster decides like the cluster that it imitates."""
    return settings.emulated.speed if settings.cluster.engine == "emulated" else 1.0


def _holding(settings: Settings) -> HoldingConfig:
    config, speed = with_fixed(HoldingConfig, settings.holding), _speed(settings)
    return replace(
        config,
        reserve_after_s=config.reserve_after_s / speed,
        share_doubles_s=config.share_doubles_s / speed,
        max_backlog_s=config.max_backlog_s / speed,
    )


def _rescheduling(settings: Settings) -> ReschedulingConfig:
    config, speed = with_fixed(ReschedulingConfig, settings.migration), _speed(settings)
    return replace(
        config,
        interval_s=max(MIN_INTERVAL_S, config.interval_s / speed),
        not_back_s=config.not_back_s / speed,
        gain_ahead_s=config.gain_ahead_s / speed,
    )


def _policy(name: str) -> Policy:
    try:
        return find_policy(name)
    except ValueError as error:
        raise SettingError(
            f"scheduler.policy: {error}",
            "llumctl set scheduler.policy=llumnix+      or, to compare others: llumctl simulate -p",
        ) from error


def _autoscale(settings: Settings) -> LiveAutoscale:
    """The configuration of auto-scaling. `cold_start_s` is measured, so it is not a setting. The
    cluster acts when two checks in a row find the same need."""
    interval_s = settings.autoscale.check_interval_s
    config = with_fixed(
        AutoscaleConfig,
        settings.autoscale,
        first_check_after_s=interval_s,
        up_persistence_s=interval_s,
        down_persistence_s=interval_s,
    )
    return LiveAutoscale(config, settings.cluster.start_timeout_s)
