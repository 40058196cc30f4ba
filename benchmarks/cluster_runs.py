"""Which runs `make bench-cluster` is made of, and the folder that collects them.

Runs of one load are in one folder, a file for each policy and seed. So one run can be made per
call, and what is there is shown.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.same_trace import LIMIT_FACTOR, smaller
from benchmarks.servers import RESULTS
from controller.model.profile import load_profile
from controller.sim.run import Load, fitting
from controller.sim.setup import ClusterSetup, SimPolicy, sim_policy, with_settings
from controller.sim.workload.trace import Trace
from llumctl.lab.paper import settings as paper_settings

PROFILE = "a10-llama-7b"


@dataclass(frozen=True, slots=True)
class Wanted:
    policy: str
    seed: int


RUNS = (
    *(Wanted(policy, 1) for policy in ("infaas++", "llumnix", "llumnix+")),
    *(Wanted(policy, 1) for policy in ("vllm-dp", "round-robin")),
    *(Wanted(policy, 2) for policy in ("infaas++", "llumnix", "llumnix+")),
)
"""In the order in which they are made."""
POLICIES = tuple(dict.fromkeys(wanted.policy for wanted in RUNS))


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """`rate` in requests per second, in the profile's time."""

    lengths: str
    rate: float
    num_requests: int
    num_instances: int
    num_blocks: int | None = None
    """KV blocks of an instance; None: the profile's."""

    @property
    def name(self) -> str:
        blocks = f"-{self.num_blocks}-blocks" if self.num_blocks else ""
        return f"{self.lengths}-{self.rate:g}-{self.num_requests}x{self.num_instances}{blocks}"

    def trace(self, seed: int) -> Trace:
        """As `llumctl simulate` draws it, without requests that are too long for an instance."""
        load = Load(self.lengths, self.rate, self.num_requests, drop_too_long=True)
        return fitting(load.trace(seed), self.setup(sim_policy("infaas++")), load)[0]

    def policy(self, name: str) -> SimPolicy:
        """With the settings of runs that repeat the paper's, but for the guard, which a live
        cluster always has."""
        settings = paper_settings(name, self.lengths)
        return with_settings(
            sim_policy(name),
            {key: value for key, value in settings.items() if key != "migration.guard"},
        )

    def setup(self, policy: SimPolicy) -> ClusterSetup:
        return ClusterSetup(
            smaller(load_profile(PROFILE), self.num_blocks),
            policy,
            self.num_instances,
            limit_factor=LIMIT_FACTOR,
        )


class Collected:
    """The runs of one load that were made."""

    def __init__(self, load: ClusterLoad, folder: Path | None = None) -> None:
        self.folder = (folder or RESULTS / "cluster") / load.name

    def missing(self) -> Wanted | None:
        return next((wanted for wanted in RUNS if not self._path(wanted).exists()), None)

    def write(self, wanted: Wanted, figures: dict[str, Any]) -> Path:
        """Replaces an earlier run of the same policy and seed."""
        path = self._path(wanted)
        path.parent.mkdir(parents=True, exist_ok=True)
        date = datetime.now().astimezone().isoformat(timespec="seconds")
        content = {
            "policy": wanted.policy,
            "seed": wanted.seed,
            "date": date,
            "machine": machine.describe(),
            **figures,
        }
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return path

    def runs(self) -> Sequence[dict[str, Any]]:
        """By policy, then by seed."""
        found = [json.loads(path.read_text("utf-8")) for path in self.folder.glob("*-seed*.json")]
        order = {policy: place for place, policy in enumerate(POLICIES)}
        return sorted(found, key=lambda run: (order.get(run["policy"], len(order)), run["seed"]))

    def _path(self, wanted: Wanted) -> Path:
        return self.folder / f"{wanted.policy}-seed{wanted.seed}.json"
