"""Turns the settings that operators write into the configuration that the cluster runs with."""

from dataclasses import replace

from controller.api.settings.live_settings import SettingError
from controller.api.settings.settings import Settings
from controller.core.dispatch.policies import Policy, find_policy
from controller.core.load.snapshot import Level
from controller.core.scheduler_config import SchedulerConfig
from controller.core.settings import (
    AutoscaleConfig,
    HoldingConfig,
    ReschedulingConfig,
    with_fixed,
)
from controller.runtime.live_config import LiveAutoscale, LiveConfig
from controller.runtime.messages.members import FrontendLimits

MIN_INTERVAL_S = 0.01
"""From one round to the next, however fast an emulated cluster is."""


def live_config(settings: Settings) -> LiveConfig:
    """Raises SettingError for a policy that no live cluster has."""
    endpoint, policy = settings.endpoint, _policy(settings.scheduler.policy)
    return LiveConfig(
        scheduler=with_fixed(
            SchedulerConfig,
            settings.scheduler,
            levels=tuple(Level(p.name, p.rank, p.target_load_tokens) for p in settings.priority),
            holding=_holding(settings) if policy.late_binding else None,
            key_limits=settings.limits,
        ),
        rescheduling=_rescheduling(settings),
        frontends=FrontendLimits(
            endpoint.max_live_requests,
            endpoint.request_timeout_s,
            endpoint.write_timeout_s,
            hash_prefixes=policy.late_binding or policy.by_prefix,
            key_limits=settings.limits,
            replay=settings.replay,
        ),
        autoscale=_autoscale(settings),
        max_events=settings.control.max_events,
    )


def _speed(settings: Settings) -> float:
    """How many times as fast as its profile the cluster is. The scheduler's own times are the
    profile's too, so that a cluster that is faster decides as the one that it stands for."""
    return settings.emulated.speed if settings.cluster.engine == "emulated" else 1.0


def _holding(settings: Settings) -> HoldingConfig:
    config, speed = with_fixed(HoldingConfig, settings.holding), _speed(settings)
    return replace(
        config,
        reserve_after_s=config.reserve_after_s / speed,
        share_doubles_s=config.share_doubles_s / speed,
    )


def _rescheduling(settings: Settings) -> ReschedulingConfig:
    config, speed = with_fixed(ReschedulingConfig, settings.migration), _speed(settings)
    return replace(
        config,
        interval_s=max(MIN_INTERVAL_S, config.interval_s / speed),
        not_back_s=config.not_back_s / speed,
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
    """The cold start is not set but measured. What two checks in a row found is acted on."""
    interval_s = settings.autoscale.check_interval_s
    config = with_fixed(
        AutoscaleConfig,
        settings.autoscale,
        first_check_after_s=interval_s,
        up_persistence_s=interval_s,
        down_persistence_s=interval_s,
    )
    return LiveAutoscale(config, settings.cluster.start_timeout_s)
