"""What must be true of a cluster once all streams of a turn are over."""

import time
from collections import Counter
from contextlib import suppress

from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.wire.requests import RequestState
from controller.api.wire.status import ClusterStatus, InstanceState
from tools.cluster import Cluster

PATIENCE_S = 60.0
LIVE = (RequestState.WAITING, RequestState.RUNNING, RequestState.EVICTED)
ENDS = ("finished", "failed", "aborted")
SERVES = (InstanceState.ACTIVE, InstanceState.DRAINING)


class Ends:
    """Counts in the cluster's log how many requests ended. `verdicts`: what the log said meanwhile
    of the cluster as a whole."""

    def __init__(self) -> None:
        self.verdicts: list[str] = []
        self._position = ""

    def since_last(self, client: ControlClient) -> int | None:
        """Since the last call. None if that is not known: another controller writes the log."""
        counts: Counter[str] = Counter()
        known = bool(self._position)
        while True:
            page = client.events(self._position)
            known = known and page.missed == 0
            self._position = page.next_position
            if not page.events:
                break
            counts.update(event.kind for event in page.events)
            self.verdicts += [event.reason for event in page.events if event.kind == "verdict"]
        return sum(counts[kind] for kind in ENDS) if known else None


class Incarnations:
    """Each process of a member has a higher number than the one before."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        """By member: its last incarnation, and the process."""

    def wrong(self, client: ControlClient) -> list[str]:
        status, found = client.status(), []
        there = [(each.id, each.incarnation, each.pid) for each in status.instances]
        there += [(each.id, each.incarnation, each.pid) for each in status.frontends]
        for member_id, now, pid in there:
            before, earlier_pid = self._seen.get(member_id, (0, 0))
            if pid is not None and pid != earlier_pid:
                if now <= before:
                    found.append(f"{member_id}: incarnation {now} after {before}")
                self._seen[member_id] = now, pid
        return found


def imbalance(cluster: Cluster, num_wanted: int, timeout_s: float = PATIENCE_S) -> str:
    """Waits until at least so many instances serve and everything balances; empty, or what did not
    within `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    found = "the control API does not answer"
    while time.monotonic() < deadline_s:
        with suppress(LlumctlError), cluster.control() as client:
            found = _imbalance(client, num_wanted)
            if not found:
                return ""
        time.sleep(0.2)
    return found


def _imbalance(client: ControlClient, num_wanted: int) -> str:
    status = client.status()
    serving = [each for each in status.instances if each.state in SERVES]
    if len(serving) < num_wanted:
        states = Counter(str(each.state) for each in status.instances)
        return f"{len(serving)} instances serve, not {num_wanted}: {dict(states)}"
    if any(each.state is not InstanceState.ACTIVE for each in status.frontends):
        return f"frontends: {[(each.id, str(each.state)) for each in status.frontends]}"
    if status.moves or status.num_held_reqs:
        return f"{len(status.moves)} moves and {status.num_held_reqs} held requests are not over"
    if num_live := _num_live(status):
        return f"{num_live} requests live at frontends"
    for each in serving:
        if each.num_total_blocks is None:
            return f"{each.id} has not reported"
        if each.num_free_blocks != each.num_total_blocks:
            return f"{each.id}: {each.num_free_blocks} of {each.num_total_blocks} blocks are free"
        slots = (each.num_running_reqs, each.num_waiting_reqs, each.num_moves_in)
        if any(slots):
            return f"{each.id}: {slots} running, waiting, moving in"
    if left := client.requests(states=LIVE).requests:
        return f"{len(left)} requests are listed as live"
    return ""


def _num_live(status: ClusterStatus) -> int:
    return sum(each.num_live_reqs for each in status.frontends)
