"""Plans the runs of `llumctl simulate` from its options, and finds errors in them before a run."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from controller.api.errors import UsageError
from controller.api.settings.setting_values import value_of
from controller.model.profile import LatencyProfile, Mode, load_profile
from controller.sim.bounds import ORACLES
from controller.sim.run import CannotRunError, Load, Run, fitting, policy_named, saturation_of
from controller.sim.setup import (
    ClusterSetup,
    Fault,
    SimPolicy,
    setting_names,
    with_autoscale,
    with_settings,
)
from controller.sim.workload.lengths import are_fixed
from controller.sim.workload.named import is_file
from llumctl.arguments import nearest

MAX_LOOKED_AT = 50_000
"""The largest number of requests from which an estimate is made."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted runs: each workload at each rate (None: the rate of a trace file) on each number
    of instances under each policy with each seed. `load` has the options that all runs share. With
    `autoscale` (the fewest and the most instances) the sizes are the numbers at first."""

    workloads: Sequence[str]
    rates: Sequence[float | None]
    sizes: Sequence[int]
    policies: Sequence[str]
    seeds: Sequence[int]
    load: Load = field(default_factory=lambda: Load(""))
    profile: str = "a10-llama-7b"
    mode: Mode = "chunked"
    prefix_caching: bool = False
    host_cache_gib: float = 0.0
    settings: Mapping[str, str] = field(default_factory=dict)
    faults: str | None = None
    warm_up: float = 0.0
    autoscale: tuple[int, int] | None = None


def shown(workload: str) -> str:
    """The workload's name on screens. A file is shown without its folder."""
    return Path(workload).name if is_file(workload) else workload


def draws(workload: str, load: Load) -> bool:
    """Whether the workload depends on the seed. A trace file that is played as it is does not, nor
    do equal requests at even gaps."""
    as_it_is = is_file(workload)
    arrivals = load.cv != 0 and (not as_it_is or load.cv is not None or load.shape is not None)
    lengths = not as_it_is and not are_fixed(workload)
    ranks = load.high_fraction not in (None, 0, 1)
    return arrivals or lengths or ranks or (load.num_clients or 1) > 1


def simulated_once(wanted: Wanted) -> list[str]:
    """The workloads that have only one run although several seeds are wanted."""
    if len(wanted.seeds) < 2:
        return []
    return [name for name in wanted.workloads if not draws(name, wanted.load)]


def runs(wanted: Wanted) -> list[Run]:
    """The runs in the order of the options, with seeds innermost. A workload that does not depend
    on the seed is simulated with the first seed only, as all others would give the same figures.

    Raises:
        UsageError: an unknown policy, profile or setting, or a wrong fault.
    """
    if wanted.host_cache_gib and not wanted.prefix_caching:
        raise UsageError(
            "--host-cache: only with --prefix-caching",
            "llumctl simulate --prefix-caching --host-cache GIB",
        )
    profile = _profile(wanted.profile)
    policies = [_policy(name) for name in wanted.policies]
    if wanted.autoscale is not None:
        policies = [with_autoscale(policy, *wanted.autoscale) for policy in policies]
    changed = _changed(policies, wanted.settings)
    return [
        Run(
            replace(wanted.load, workload=workload, rate=rate),
            ClusterSetup(
                profile,
                policy,
                size,
                mode=wanted.mode,
                prefix_caching=wanted.prefix_caching,
                host_cache_bytes=int(wanted.host_cache_gib * 2**30),
                faults=_faults(wanted, size),
            ),
            seed,
            wanted.warm_up,
            settings,
        )
        for workload in wanted.workloads
        for rate in wanted.rates
        for size in wanted.sizes
        for policy, settings in changed
        for seed in (wanted.seeds if draws(workload, wanted.load) else wanted.seeds[:1])
    ]


def _faults(wanted: Wanted, size: int) -> tuple[Fault, ...]:
    if wanted.faults is None:
        return ()
    return parse_faults(wanted.faults, size if wanted.autoscale is None else None)


@dataclass(frozen=True, slots=True)
class Overload:
    """A load that is, by an estimate, above what the instances can serve."""

    workload: str
    rate: float
    num_instances: int
    saturation_rate: float

    def __str__(self) -> str:
        return (
            f"{shown(self.workload)} at {self.rate:.4g} requests/s: {self.num_instances} instances"
            f" saturate at about {self.saturation_rate:.3g}: queues grow as long as requests come"
        )


def overloads(planned: Iterable[Run]) -> list[Overload]:
    """The loads above saturation, each once.

    Raises:
        UsageError: a workload is unknown or cannot be read, or a request does not fit into an
            instance's memory.
    """
    by_load: dict[tuple[Load, int], list[Run]] = {}
    for run in planned:
        by_load.setdefault((run.load, run.setup.max_instances), []).append(run)
    found = []
    for (load, num_instances), alike in by_load.items():
        rate, limit = estimate(alike)
        if rate > limit:
            found.append(Overload(load.workload, rate, num_instances, limit))
    return found


def estimate(alike: Sequence[Run]) -> tuple[float, float]:
    """The load's rate, and the rate at which the instances are saturated, both as means over the
    seeds. The runs differ only in seed and policy."""
    setup = alike[0].setup
    seeds = dict.fromkeys(run.seed for run in alike)
    rates, limits, num_seen = [], [], 0
    for seed in seeds:
        try:
            trace, _ = fitting(alike[0].load.trace(seed), setup, alike[0].load)
        except CannotRunError as error:
            hint = "llumctl simulate --drop-too-long ...      to leave such requests out"
            raise UsageError(f"{_named_by(alike[0])}: {error}", hint) from error
        except ValueError as error:
            raise UsageError(f"{_named_by(alike[0])}: {error}") from error
        rates.append(alike[0].load.rate or trace.rate)
        limits.append(saturation_of(trace, setup))
        num_seen += len(trace.requests)
        if num_seen >= MAX_LOOKED_AT:
            break
    return sum(rates) / len(rates), sum(limits) / len(limits)


def _named_by(run: Run) -> str:
    """What named the run's workload: a path may come from two flags."""
    return "FILE" if "/" in run.load.workload else "--workload"


def _profile(name: str) -> LatencyProfile:
    try:
        return load_profile(name)
    except ValueError as error:
        raise UsageError(f"--profile: {error}") from error


def _policy(name: str) -> SimPolicy:
    try:
        return policy_named(name)
    except ValueError as error:
        raise UsageError(f"--policy: {error}") from error


Settings = tuple[tuple[str, str], ...]


def _changed(
    policies: Sequence[SimPolicy], settings: Mapping[str, str]
) -> list[tuple[SimPolicy, Settings]]:
    """Each policy with the settings that exist under it. A policy without priorities has no levels,
    and a theoretical bound has no settings at all."""
    names = {each.name: () if each.name in ORACLES else setting_names(each) for each in policies}
    known = dict.fromkeys(key for own in names.values() for key in own)
    for key in settings:
        if key not in known:
            raise UsageError(
                f"--set: no policy here has a setting {key[:60]!r}{nearest(key, known)}",
                f"one of {', '.join(known)}",
            )
    found = []
    for policy in policies:
        own = {key: value for key, value in settings.items() if key in names[policy.name]}
        try:
            values = {key: value_of(key, text) for key, text in own.items()}
            found.append((with_settings(policy, values), tuple(own.items())))
        except ValueError as error:
            raise UsageError(f"--set: {error}") from error
    return found


# -- faults as people write them: `60:kill:i-3`, `120:slow-steps:i-2:1.5`; or a file ----

FAULT_KINDS = ("kill", "drain", "slow-steps", "slow-links")
FAULTS_WITH_FACTOR = ("slow-steps", "slow-links")
FAULTS_EXAMPLE = "--faults 60:kill:i-3,120:slow-steps:i-2:1.5"
MAX_FILE_BYTES = 1 << 20
_INSTANCE = re.compile(r"i-(0|[1-9]\d{0,6})", re.ASCII)


def parse_faults(text: str, num_instances: int | None) -> tuple[Fault, ...]:
    """Reads faults from a list with commas, or from a file with a fault on each line, where `#`
    begins a comment. Their order does not matter. `num_instances`: None if instances come and go.

    Raises:
        UsageError: a fault is wrong; in a file the message begins with FILE:LINE.
    """
    path = Path(text)
    if ":" in text and not path.exists():
        entries: Iterable[tuple[str, str]] = [
            (f"--faults, number {number}", entry) for number, entry in enumerate(text.split(","), 1)
        ]
    else:
        entries = _lines(path)
    found = [_fault(entry.strip(), where, num_instances) for where, entry in entries]
    if not found:
        raise UsageError(f"--faults: {text} holds no fault", FAULTS_EXAMPLE)
    return tuple(found)


def _lines(path: Path) -> list[tuple[str, str]]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise UsageError(
                f"--faults: {path} is larger than {MAX_FILE_BYTES} bytes", FAULTS_EXAMPLE
            )
        lines = raw.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"--faults: cannot read {path}: {why}", FAULTS_EXAMPLE) from error
    stripped = ((number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1))
    return [(f"{path}:{number}", line) for number, line in stripped if line]


def _fault(entry: str, where: str, num_instances: int | None) -> Fault:
    def wrong(why: str) -> UsageError:
        return UsageError(f"{where}: {entry[:60]!r}: {why}", FAULTS_EXAMPLE)

    parts = [part.strip() for part in entry.split(":")]
    if len(parts) not in (3, 4):
        raise wrong("a fault is SECONDS:KIND:INSTANCE, or SECONDS:KIND:INSTANCE:FACTOR")
    time_text, kind, instance_id = parts[:3]
    if kind not in FAULT_KINDS:
        raise wrong(f"the kinds are {', '.join(FAULT_KINDS)}{nearest(kind, FAULT_KINDS)}")
    time_s = _number(time_text)
    if time_s is None or time_s < 0:
        raise wrong(f"{time_text!r} is not a time in seconds from the beginning")
    known = _INSTANCE.fullmatch(instance_id)
    if num_instances is None and known is None:
        raise wrong("the instances are i-0, i-1 and so on, in the order of their launch")
    if num_instances is not None and (known is None or int(known[1]) >= num_instances):
        raise wrong(f"the instances are i-0 to i-{num_instances - 1}")
    if (kind in FAULTS_WITH_FACTOR) != (len(parts) == 4):
        raise wrong(
            f"{kind} takes no factor"
            if len(parts) == 4
            else f"{kind} takes a factor: {entry}:2 is half as fast"
        )
    factor = _number(parts[3]) if len(parts) == 4 else 1.0
    if factor is None or factor <= 0:
        raise wrong(f"{parts[3]!r} is not a positive factor")
    return Fault(time_s, kind, instance_id, factor)


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
