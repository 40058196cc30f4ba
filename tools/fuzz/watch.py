"""What a cluster does beside answering: its logs, its processes, whether it comes to rest."""

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from controller.api.errors import LlumctlError
from tools import footprints
from tools.cluster import Cluster, is_empty
from tools.footprints import Footprint, ProcessKey
from tools.fuzz.judge import Fault

TRACEBACK = "Traceback (most recent call last)"
# vLLM puts its prefix before every line of a traceback, and, if it caught the exception with
# others, a bar beside the lines.
LAST_LINE = re.compile(
    r"^(?:\(\w+ pid=\d+\) )?(?:[A-Z]+ [\d: -]+\[[\w.]+:\d+\] )?(?:  \| )?"
    r"([\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Failure)\b.*)$",
    re.M,
)
QUIET_TIMEOUT_S = 30.0
IDLE_S = 3.0
MAX_IDLE_CORES = 0.3
MAX_MORE_BYTES = 512 << 20
"""An instance of the embedded model takes 420 MiB more once its 128 MiB of KV blocks and malloc's
arenas have been in use, and then no more: it grew by 360 MiB in 10 minutes of attacks, by 416 in 10
more, and stayed there."""
MAX_MORE_FDS = 24
MAX_MORE_THREADS = 24


def last_lines(text: str) -> list[str]:
    """The exception that each traceback of a log ends with."""
    found = []
    for part in text.split(TRACEBACK)[1:]:
        match = LAST_LINE.search(part)
        found.append(match.group(1)[:300] if match else "a traceback without an end")
    return found


def growth(
    first: Mapping[ProcessKey, Footprint], last: Mapping[ProcessKey, Footprint]
) -> list[Fault]:
    """Between two times of rest."""
    faults = []
    for key, before in first.items():
        after = last.get(key)
        if after is None:
            faults.append(Fault("growth", f"{key.role} is not there any more"))
            continue
        if after.rss_bytes - before.rss_bytes > MAX_MORE_BYTES:
            sizes = f"{before.rss_bytes >> 20} to {after.rss_bytes >> 20} MiB"
            faults.append(Fault("growth", f"{key.role} grew from {sizes}"))
        if after.num_fds - before.num_fds > MAX_MORE_FDS:
            counts = f"{before.num_fds} to {after.num_fds}"
            faults.append(Fault("growth", f"{key.role} holds descriptors, {counts}"))
        if after.num_threads - before.num_threads > MAX_MORE_THREADS:
            counts = f"{before.num_threads} to {after.num_threads}"
            faults.append(Fault("growth", f"{key.role} has more threads, {counts}"))
    return faults


class Watch:
    """Of an endpoint of which nothing more is known than its address."""

    def new_tracebacks(self) -> list[str]:
        return []

    def sample(self) -> None:
        """One more look at the processes."""

    def rest(self) -> list[Fault]:
        """What is wrong after all clients have left."""
        return []

    def grown(self) -> list[Fault]:
        return []


@dataclass
class ClusterWatch(Watch):
    cluster: Cluster
    samples: list[dict[ProcessKey, Footprint]] = field(default_factory=list)
    at_rest: list[dict[ProcessKey, Footprint]] = field(default_factory=list)
    _read_bytes: dict[Path, int] = field(default_factory=dict)
    _restarts: int = 0
    _known: dict[int, str] = field(default_factory=dict)

    def new_tracebacks(self) -> list[str]:
        found = []
        for path in sorted((self.cluster.state_dir / "logs").glob("*.log")):
            with path.open("rb") as log:
                size = log.seek(0, 2)
                begin = self._read_bytes.get(path, 0)
                log.seek(begin if begin <= size else 0)  # a rotated one begins anew
                text = log.read().decode(errors="replace")
            self._read_bytes[path] = size
            found += [f"{path.stem}: {line}" for line in last_lines(text)]
        return found

    def sample(self) -> None:
        self.samples.append(self._sample())

    def rest(self) -> list[Fault]:
        faults = []
        if why := self._wait_empty():
            faults.append(Fault("not freed", why))
        before, began_s = self._sample(), time.monotonic()
        time.sleep(IDLE_S)
        after = self._sample(with_uss=True)
        self.at_rest.append(after)
        busy = footprints.busy_cores(before, after, time.monotonic() - began_s)
        for key, cores in busy.items():
            if key.pid in self._known and cores > MAX_IDLE_CORES:
                faults.append(Fault("computes", f"{key.role} uses a core with no request"))
        return faults + self._restarted()

    def grown(self) -> list[Fault]:
        return growth(self.at_rest[0], self.at_rest[-1]) if len(self.at_rest) > 1 else []

    def _sample(self, with_uss: bool = False) -> dict[ProcessKey, Footprint]:
        with suppress(LlumctlError):  # the controller may be starting again
            self._known = footprints.members(self.cluster)
        return footprints.sample(self.cluster.nonce, self._known, with_uss)

    def _wait_empty(self) -> str:
        deadline_s = time.monotonic() + QUIET_TIMEOUT_S
        left = "the controller does not answer"
        while time.monotonic() < deadline_s:
            try:
                status = self.cluster.status()
            except LlumctlError:
                time.sleep(0.5)
                continue
            busy = [i for i in status["instances"] if not is_empty(i)]
            live = [f for f in status["frontends"] if f["num_live_reqs"]]
            if not busy and not live:
                return ""
            left = ", ".join(
                [
                    f"{i['id']}: {i['num_running_reqs']} run, {i['num_waiting_reqs']} wait, "
                    f"{i['num_free_blocks']} of {i['num_total_blocks']} blocks free"
                    for i in busy
                ]
                + [f"{f['id']}: {f['num_live_reqs']} live" for f in live]
            )
            time.sleep(0.2)
        return left

    def _restarted(self) -> list[Fault]:
        try:
            status = self.cluster.status()
        except LlumctlError:
            return [Fault("died", "the controller does not answer")]
        members = (*status["instances"], *status["frontends"])
        restarts, self._restarts = self._restarts, sum(m["num_restarts"] for m in members)
        if self._restarts <= restarts:
            return []
        return [Fault("died", ", ".join(f"{m['id']}: {m['num_restarts']}" for m in members))]
