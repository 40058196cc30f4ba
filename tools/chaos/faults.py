"""Carries out one fault, and mends what does not mend itself."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.operations.on_cluster import Scale, ScaleRequest
from controller.api.operations.on_instances import Drain, DrainRequest, Undrain, UndrainRequest
from controller.api.wire.status import InstanceState
from tools.chaos.schedule import Fault, Kind
from tools.cluster import Cluster
from tools.ray_nodes import RayNodes, kill
from tools.two_hosts import run

MOMENT_S = 1.0
FENCED_S = 8.0
"""Beyond `fence_after_s` of this cluster."""
SLOW = ("tbf", "rate", "20mbit", "burst", "64kbit", "latency", "400ms")


@dataclass(slots=True)
class Done:
    """What a fault did. `frontend_died`, `controller_died`: what that excuses is not held against
    the cluster."""

    what: str
    frontend_died: bool = False
    controller_died: bool = False


class Faults:
    """`nodes`: on two hosts."""

    def __init__(self, cluster: Cluster, num_instances: int, nodes: RayNodes | None) -> None:
        self._cluster = cluster
        self._num_instances = num_instances
        self._nodes = nodes

    def carry_out(self, fault: Fault) -> Done:
        """Blocks as long as the fault lasts."""
        acts: dict[Kind, Callable[[Fault], Done]] = {
            Kind.KILL_INSTANCE: lambda f: self._kill_instances(f, 1),
            Kind.KILL_TWO: lambda f: self._kill_instances(f, 2),
            Kind.PAUSE_INSTANCE: lambda f: self._pause_instance(f, MOMENT_S),
            Kind.HANG_INSTANCE: lambda f: self._pause_instance(f, FENCED_S),
            Kind.KILL_CONTROLLER: lambda _: self._kill_controller(),
            Kind.PAUSE_CONTROLLER: lambda _: self._pause_controller(),
            Kind.KILL_BOTH: self._kill_both,
            Kind.CONTROLLER_IN_REPLAY: self._kill_controller_in_replay,
            Kind.KILL_FRONTEND: self._kill_frontend,
            Kind.DRAIN: self._drain,
            Kind.SCALE: self._scale,
            Kind.CUT_CABLE: lambda _: self._cut(MOMENT_S),
            Kind.LOSE_CABLE: lambda _: self._cut(FENCED_S),
            Kind.SLOW_CABLE: lambda _: self._slow(),
            Kind.KILL_NODE: lambda _: self._kill_node(),
        }
        return acts[fault.kind](fault)

    def mend(self) -> None:
        """What a fault leaves for good, if anything."""
        with suppress(LlumctlError), self._cluster.control() as client:
            for each in client.drains().drains:
                with suppress(LlumctlError):
                    client.send(Undrain(each.instance_id, UndrainRequest(reason="chaos")))
            if len(client.status().instances) != self._num_instances:
                client.send(Scale(ScaleRequest(target=self._num_instances, reason="chaos")))

    # -- processes -----------------------------------------------------------------------

    def _kill_instances(self, fault: Fault, number: int) -> Done:
        victims = self._victims(fault, number)
        for _, pid in victims:
            _signal(pid, signal.SIGKILL)
        return Done(f"killed {_names(victims)}")

    def _pause_instance(self, fault: Fault, seconds: float) -> Done:
        victims = self._victims(fault, 1)
        _pause([pid for _, pid in victims], seconds)
        return Done(f"stopped {_names(victims)} for {seconds:g} s")

    def _kill_controller(self) -> Done:
        pid = self._cluster.controller_pid
        _signal(pid, signal.SIGKILL)
        return Done(f"killed the controller ({pid})", controller_died=True)

    def _pause_controller(self) -> Done:
        _pause([self._cluster.controller_pid], 2 * MOMENT_S)
        return Done(f"stopped the controller for {2 * MOMENT_S:g} s")

    def _kill_both(self, fault: Fault) -> Done:
        victims = self._victims(fault, 1)
        done = self._kill_controller()
        for _, pid in victims:
            _signal(pid, signal.SIGKILL)
        return Done(f"{done.what} and {_names(victims)}", controller_died=True)

    def _kill_frontend(self, fault: Fault) -> Done:
        with self._cluster.control() as client:
            there = [(each.id, each.pid) for each in client.status().frontends if each.pid]
        name, pid = there[int(fault.choice * len(there))]
        _signal(pid, signal.SIGKILL)
        return Done(f"killed {name}", frontend_died=True)

    # -- operations that are cut short ---------------------------------------------------

    def _drain(self, fault: Fault) -> Done:
        victims = self._victims(fault, 1)
        with self._cluster.control() as client:
            client.send(Drain(victims[0][0], DrainRequest(reason="chaos")))
        time.sleep(0.2 * fault.choice)
        done = self._kill_controller()
        return Done(f"drained {_names(victims)}, {done.what}", controller_died=True)

    def _scale(self, fault: Fault) -> Done:
        change = 1 if fault.choice < 0.5 else -1
        target = self._num_instances + change
        with self._cluster.control() as client:
            client.send(Scale(ScaleRequest(target=target, reason="chaos")))
        time.sleep(0.2 * fault.choice)
        done = self._kill_controller()
        return Done(f"scaled to {target}, {done.what}", controller_died=True)

    def _kill_controller_in_replay(self, fault: Fault) -> Done:
        """All instances but one are drained, so that its requests, once it is dead, wait at the
        controller until it is back."""
        ((name, pid),) = victims = self._victims(fault, 1)
        with self._cluster.control() as client:
            for each in client.status().instances:
                if each.id != name:
                    client.send(Drain(each.id, DrainRequest(reason="chaos")))
            _wait_until(lambda: any(_num_running(client, name)))
            _signal(pid, signal.SIGKILL)
            _wait_until(lambda: client.status().num_held_reqs > 0)
            num_held = client.status().num_held_reqs
        done = self._kill_controller()
        what = f"drained all but {_names(victims)}, killed it, with {num_held} held {done.what}"
        return Done(what, controller_died=True)

    # -- the second host -----------------------------------------------------------------

    @property
    def nodes(self) -> RayNodes:
        assert self._nodes is not None, "there is one host only"
        return self._nodes

    def _cut(self, seconds: float) -> Done:
        self.nodes.second.cut()
        try:
            time.sleep(seconds)
        finally:
            self.nodes.second.mend()
        return Done(f"cut the cable for {seconds:g} s")

    def _slow(self) -> Done:
        host = self.nodes.second
        queue = ("tc", "-n", host.namespace, "qdisc")
        run(*queue, "replace", "dev", host.link, "root", *SLOW)
        try:
            time.sleep(FENCED_S)
        finally:
            run(*queue, "delete", "dev", host.link, "root")
        return Done(f"the cable at 20 Mbit/s for {FENCED_S:g} s")

    def _kill_node(self) -> Done:
        kill(self.nodes.second)
        self.nodes.start_second()
        return Done("killed the second node, and started Ray there again")

    # -- victims -------------------------------------------------------------------------

    def _victims(self, fault: Fault, number: int) -> list[tuple[str, int]]:
        """(id, pid) of instances that serve."""
        with self._cluster.control() as client:
            instances = client.status().instances
        there = [
            (each.id, each.pid)
            for each in instances
            if each.state is InstanceState.ACTIVE and each.pid
        ]
        begin = int(fault.choice * len(there))
        return [there[(begin + n) % len(there)] for n in range(min(number, len(there) - 1))]


def _names(victims: Sequence[tuple[str, int]]) -> str:
    return " and ".join(name for name, _ in victims) or "nobody"


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _num_running(client: ControlClient, instance_id: str) -> list[int]:
    return [
        each.num_running_reqs or 0 for each in client.status().instances if each.id == instance_id
    ]


def _wait_until(condition: Callable[[], bool], timeout_s: float = 3.0) -> None:
    """Or for as long: the burst may be over."""
    deadline_s = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)


def _pause(pids: Sequence[int], seconds: float) -> None:
    for pid in pids:
        _signal(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        for pid in pids:
            _signal(pid, signal.SIGCONT)
