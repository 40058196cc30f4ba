"""A Launcher that uses Ray: it makes detached, named actors in the cluster's namespace. Also the
class of these actors; every process of the cluster is one of them."""

import importlib
import logging
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray

from controller.adapters.ray import log_rotation, ray_starts
from controller.adapters.ray.head_watch import CALL_TIMEOUT_S, HeadWatch
from controller.adapters.ray.ray_starts import EndNotice, Start
from controller.ports.processes import LauncherLoss, LauncherLostError
from controller.runtime import log_records

log = logging.getLogger(__name__)

GIB = 1 << 30
PYTHON_VARIABLE = "LLUMCTL_PYTHON"
"""The variable that tells a process with which interpreter it was launched; it is not set for the
interpreter of the cluster. The process's own `sys.executable` may have another name."""


@dataclass(frozen=True, slots=True)
class ActorPlan:
    """How to make the actor of one kind of member."""

    role: str
    arguments: dict[str, Any]
    num_gpus: int = 0
    node_id: str | None = None
    avoided: frozenset[str] = frozenset()
    """The nodes on which it is not made. Ray itself leaves out those that it drains."""
    python: str = ""
    """The path of the Python interpreter that runs the process, on any node; empty: Ray's own."""
    is_new: bool = False
    """Whether there is no such actor yet. If there is one, the launch fails."""


@dataclass(slots=True)
class RayLauncher:
    namespace: str
    log_dir: str
    instance: ActorPlan
    frontend: ActorPlan
    available_bytes: Callable[[], int]
    """How many bytes of memory are left for new members."""
    instance_memory: Callable[[], tuple[int, str]] = lambda: (0, "")
    """How many bytes a new instance takes with the present engine arguments; and a text that says
    why the weights are not included, if they are not."""
    head: HeadWatch | None = None
    python_of: Callable[[str], str] = lambda _instance_id: ""
    """The interpreter with which the instance's next process starts; empty: Ray's own."""
    attached: ActorPlan | None = None
    """How to make the actor of an attached server, with a JSON text as its argument `server`."""
    server_of: Callable[[str], str] = lambda _instance_id: ""
    """The JSON text of the server to which the instance is attached; empty: to none."""
    beside: Sequence["RayLauncher"] = field(default=(), repr=False, compare=False)
    """The launchers of the other models, which share the machines; this one may be among them. A
    machine that one of them avoids is avoided by all."""
    _avoided: frozenset[str] = frozenset()
    _handles: dict[str, Any] = field(default_factory=dict)
    """The actors by member. None: the actor was ended, and the next one could not be made yet."""
    _pythons: dict[str, str] = field(default_factory=dict)
    """The interpreter of each instance's actor that this launcher made. An earlier controller may
    have made the others."""

    def loss(self) -> LauncherLoss | None:
        return None if self.head is None else self.head.loss

    def launch_instance(self, instance_id: str) -> None:
        self._refuse_if_lost()
        try:
            self._handles[instance_id] = ray.get_actor(instance_id, self.namespace)
        except ValueError:
            self._launch_anew(instance_id)

    def _launch_anew(self, instance_id: str) -> None:
        """Makes the instance's actor. Does not look for one by this name: for a moment, Ray would
        still find an actor that has just been ended."""
        python, server = self.python_of(instance_id), self.server_of(instance_id)
        plan = replace(self.instance, python=python, avoided=self._avoided_by_all())
        if server and self.attached is not None:
            plan = replace(self.attached, arguments={**self.attached.arguments, "server": server})
        self._launch(instance_id, replace(plan, is_new=True))
        self._pythons[instance_id] = python

    def leaving(self) -> Mapping[str, float | None] | None:
        return None if self.head is None else self.head.draining

    def avoid(self, machines: frozenset[str]) -> None:
        self._avoided = machines

    def _avoided_by_all(self) -> frozenset[str]:
        return self._avoided.union(*(each._avoided for each in self.beside))

    def launch_frontend(self, frontend_id: str) -> None:
        self._launch(frontend_id, self.frontend)

    def no_room(self, num_instances: int) -> str:
        """Compares the needs of the new instances with the GPUs that Ray has free on any node, and
        with this machine's memory."""
        if (loss := self._look()) is not None:
            return loss.what
        gone = self._avoided_by_all() | (self.leaving() or {}).keys()
        if gone and all(node["NodeID"] in gone for node in ray.nodes() if node["Alive"]):
            return "by notices, every machine will be taken away"
        num_gpus = num_instances * self.instance.num_gpus
        if num_gpus:
            free = int(ray.available_resources().get("GPU", 0))
            if free < num_gpus:
                return f"{num_gpus} GPUs are needed, Ray has {free} free"
        each_bytes, unknown = self.instance_memory()
        num_bytes = num_instances * each_bytes
        available = self.available_bytes()
        if num_bytes > available:
            needed = f"about {num_bytes / GIB:.1f} GiB are needed"
            return f"{needed}, {available / GIB:.1f} GiB are available"
        return unknown and f"it is not known whether their weights fit into the memory: {unknown}"

    def restart(self, member_id: str) -> None:
        """Ray starts an actor's next process with the interpreter of the first one. So another
        interpreter needs another actor, which gets the name of the first one."""
        self._refuse_if_lost()
        if member_id not in self._handles:  # its launch by this controller failed, or it is unknown
            try:
                self._handles[member_id] = ray.get_actor(member_id, self.namespace)
            except ValueError:
                return
        handle = self._handles[member_id]
        if handle is not None and self._pythons.get(member_id) == self.python_of(member_id):
            ray.kill(handle, no_restart=False)
            return
        if handle is not None:
            ray.kill(handle, no_restart=True)
            self._handles[member_id] = None
        self._launch_anew(member_id)

    def is_misplaced(self, instance_id: str) -> bool:
        if instance_id not in self._handles:
            return False
        if self._handles[instance_id] is None:
            return True
        launched = self._pythons.get(instance_id)
        return launched is not None and launched != self.python_of(instance_id)

    def terminate(self, member_id: str) -> None:
        if member_id in self._handles:
            self._refuse_if_lost()
            if (handle := self._handles[member_id]) is not None:
                ray.kill(handle, no_restart=True)
            del self._handles[member_id]  # if the kill raised an error, it is tried again

    def _look(self) -> LauncherLoss | None:
        return None if self.head is None else self.head.look(CALL_TIMEOUT_S)

    def _refuse_if_lost(self) -> None:
        if (loss := self._look()) is not None:
            raise LauncherLostError(loss.what)

    def _launch(self, member_id: str, plan: ActorPlan) -> None:
        self._refuse_if_lost()
        plan = replace(plan, arguments={"member_id": member_id, **plan.arguments})
        self._handles[member_id] = launch_actor(self.namespace, member_id, plan, self.log_dir)


def launch_actor(namespace: str, name: str, plan: ActorPlan, log_dir: str) -> Any:
    """Makes the actor `name`, or finds it unless it must be new. With a `node_id` it runs on that
    node, otherwise on any node: Ray spreads such actors over the nodes. Each run of a cluster has
    its own namespace."""
    options: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "lifetime": "detached",
        "get_if_exists": not plan.is_new,
        "max_restarts": -1,
        "num_cpus": 0,
        "num_gpus": plan.num_gpus,
    }
    if plan.python:
        options["runtime_env"] = {
            "py_executable": shlex.quote(plan.python),  # Ray gives it to a shell
            "env_vars": {PYTHON_VARIABLE: plan.python},
        }
    if plan.node_id is not None:
        options["label_selector"] = {"ray.io/node-id": plan.node_id}
    else:
        if plan.avoided:
            nodes = ",".join(sorted(plan.avoided))
            options["label_selector"] = {"ray.io/node-id": f"!in({nodes})"}
        # By default Ray fills one machine before it uses the next. Four instances without GPUs were
        # all placed on the second of two machines, and would have died with that machine.
        options["scheduling_strategy"] = "SPREAD"
    actor = ray.remote(RayMember).options(**options)
    return actor.remote(name, plan.role, plan.arguments, log_dir, namespace)


def kill_actors(namespace: str) -> int:
    """Ends every actor of the namespace for good, and returns their number."""
    names = [
        a["name"]
        for a in ray.util.list_named_actors(all_namespaces=True)
        if a["namespace"] == namespace
    ]
    for name in names:
        try:
            ray.kill(ray.get_actor(name, namespace=namespace), no_restart=True)
        except ValueError:
            log.info("%s was gone already", name)
    return len(names)


# -- the actor -------------------------------------------------------------------------------------
# The Ray actor in which every process of the cluster runs.
#
# The actor runs one role (an async function named by `module:function`) on an event loop in its own
# thread. When the role returns or raises, the process ends. Ray then starts it again
# (`max_restarts=-1`), and the new process has only the role's arguments. If the process dies again
# and again before it serves, it waits longer before each start, and is given up in the end: the
# role then gets the reason (`Start.failure`), reports it and does nothing more. Ray only starts,
# places and restarts processes; no data goes through it.


class RayMember:
    """The actor in which a member's role runs. `run` names the run of the cluster."""

    def __init__(
        self, member_id: str, role: str, arguments: dict[str, Any], log_dir: str, run: str
    ) -> None:
        log_file = Path(log_dir) / f"{member_id}.log"
        _log_to(log_file)
        log_rotation.keep_small(log_file)
        start = ray_starts.begin(log_file, run, EndNotice())
        if ray.is_initialized():  # tests make members without Ray
            start.on_success = ray.get_runtime_context().current_actor.rest.remote
        threading.current_thread().name = member_id
        threading.Thread(
            target=_run_role, args=(role, arguments, start), name=f"{member_id}-loop", daemon=True
        ).start()

    def pid(self) -> int:
        return os.getpid()

    def rest(self) -> None:
        """Blocks the process's main thread for ever. Ray otherwise wakes that thread a hundred
        times a second to look for tasks and signals, which takes 0.006 cores, half of what an idle
        instance takes. Each member calls `rest` for itself once it serves; from then on it answers
        no other call. Python still handles signals."""
        threading.Event().wait()


def _run_role(role: str, arguments: dict[str, Any], start: Start) -> None:
    if delay_s := start.delay_s:
        log.info("the last start failed: waiting %.1f s before this one", delay_s)
        time.sleep(delay_s)
    module, _, function = role.partition(":")
    status = 1
    try:
        import uvloop

        run = getattr(importlib.import_module(module), function)
        uvloop.run(run(**arguments, start=start))
        status = 0
    except BaseException as error:
        log.exception("%s ended", role)
        start.failed(f"{type(error).__name__}: {error}")
    finally:
        logging.shutdown()
        os._exit(status)


def _log_to(path: Path) -> None:
    """Sends all output of this process, including that of libraries, to the file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    os.close(descriptor)
    log_records.install()
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )
