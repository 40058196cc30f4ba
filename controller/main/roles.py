"""What runs in each process of a cluster: in the head process, and in the actors of the controller,
the llumlets and the frontends.

The head process starts Ray or joins one, and launches the controller. Then it keeps the endpoint's
listening socket for the frontends and two sockets for the controller. If it started Ray, it owns
that Ray. `up` runs it as `python -P -m controller.main.roles ENDPOINT CONTROL PLAN_FILE` in the
state folder, never in a user's folder: Ray puts its driver's working folder first in every worker's
`sys.path`, and a `controller.py` there would be imported in place of ours. ENDPOINT and CONTROL are
descriptors of sockets that `up` has bound. The head process outlives `up`. At SIGTERM from `down`
it closes its sockets and ends Ray.

The other roles put together processes, ports and adapters. Each role imports only the heavy
libraries that it needs: the controller never loads vLLM, a llumlet never loads the OpenAI app."""

import asyncio
import contextlib
import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import ray

from controller.adapters.listener import HEAD, Keeper, keeper_path
from controller.adapters.ray import log_rotation
from controller.adapters.ray.head_watch import HeadWatch, draining_nodes
from controller.adapters.ray.ray_launcher import (
    PYTHON_VARIABLE,
    ActorPlan,
    RayLauncher,
    launch_actor,
)
from controller.adapters.ray.ray_starts import Start
from controller.adapters.zmq.zmq_mailbox import ClusterKey, ZmqMailbox
from controller.api.settings import without_python
from controller.api.settings.setting_values import changed, changed_for_model
from controller.api.settings.settings import Settings
from controller.api.settings.vllm_options import frontend_options
from controller.api.state.audit import AuditLog
from controller.api.state.batch_files import BatchFiles
from controller.core.fleet.adapters import AdapterFacts
from controller.core.fleet.attached import AttachedServer, ServerAsked
from controller.core.fleet.cluster_spec import ClusterSpec, EngineChange
from controller.core.load.snapshot import BACKGROUND, InstanceRef
from controller.main.machine import controller_ports, run_folders
from controller.main.machine.controller_ports import control_socket, inbox_socket
from controller.main.plan import (
    NOT_JOINED_FILE,
    ClusterPlan,
    endpoint_url,
    refuse_other_version,
)
from controller.ports.engine import Engine, EngineFactory, KvTransfer
from controller.ports.processes import Traces
from controller.runtime import log_records
from controller.runtime.controller.operations.operated_cluster import SpecKeeper
from controller.runtime.controller_link import ControllerLink
from controller.runtime.messages.members import LAUNCHING, MemberKind

if TYPE_CHECKING:
    from controller.adapters.files.state_files import EventFile
    from controller.runtime.controller.cluster import ControllerProcess

log = logging.getLogger(__name__)

EngineArgs = Mapping[str, Any]

# llumctl puts nothing into Ray's object store. This is about the smallest size that Ray accepts.
OBJECT_STORE_BYTES = 80_000_000
BIRTH_POLL_S = 0.5
RAY_PARTS = ("gcs_server", "raylet")
"""The processes of Ray without which a node does not start."""
HEAD_LOG = "head.log"
"""The file in the folder of logs to which `up` sends this process's output."""


def head(endpoint: int, control: int, plan_file: str) -> None:
    log_records.install()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    plan = ClusterPlan.model_validate_json(Path(plan_file).read_text(encoding="utf-8"))
    log_rotation.keep_small(Path(plan.log_dir) / HEAD_LOG)
    os.chdir(plan.state_dir)
    for_endpoint, for_control = socket.socket(fileno=endpoint), socket.socket(fileno=control)
    for each in (for_endpoint, for_control):
        each.set_inheritable(False)  # Ray's processes would keep the port
    keepers = [Keeper(for_endpoint, keeper_path(plan.listener_dir, HEAD))]
    table = plan.settings.cluster
    if table.ray_address:
        ray.init(address=table.ray_address, namespace=plan.namespace, log_to_driver=False)
    else:
        with _ended_with_ray():
            ray.init(
                namespace=plan.namespace,
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=str(Path(plan.temp_dir) / run_folders.RAY),
            )
        _end_log_monitor()
    if stop.is_set():
        return
    (Path(plan.state_dir) / NOT_JOINED_FILE).unlink(missing_ok=True)
    inboxes = [controller_ports.bound_apart(bind_host(plan)) for _ in plan.by_model]
    keepers += controller_ports.keep(plan, for_control, inboxes)
    plan = plan.with_ports([each.getsockname()[1] for each in inboxes])
    as_actor = ActorPlan(
        "controller.main.roles:controller",
        {"plan_json": plan.model_dump_json()},
        node_id=_ray_node_id(),
    )
    actor = launch_actor(plan.namespace, "controller", as_actor, plan.log_dir)
    _watch_birth(actor, stop)
    log.info("controller launched on Ray at %s", ray.get_runtime_context().gcs_address)
    stop.wait()
    for keeper in keepers:
        keeper.close()
    ray.shutdown()


@contextlib.contextmanager
def _ended_with_ray() -> Iterator[None]:
    """Ends this process if a part of Ray ends during the block. `ray.init` itself waits for a dead
    raylet as long as for a slow one, which is as long as `up` waits."""
    import psutil

    started = threading.Event()

    def watch() -> None:
        while not started.wait(BIRTH_POLL_S):
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):  # helpers of Ray may end meanwhile
                    # Ray waits for its processes only when it ends them, so a process that died by
                    # itself is still a zombie.
                    if child.name() in RAY_PARTS and child.status() == psutil.STATUS_ZOMBIE:
                        log.error("Ray could not start: its %s ended", child.name())
                        os._exit(1)

    threading.Thread(target=watch, name="ray watch", daemon=True).start()
    try:
        yield
    finally:
        started.set()


def _end_log_monitor() -> None:
    """Ends Ray's log monitor, which sends the output of workers to drivers. This driver does not
    need it, and the monitor takes 90 MB and polls. `ray.init` cannot start a Ray without it."""
    import ray._private.worker

    ray._private.worker._global_node.kill_log_monitor(check_alive=False)


def _watch_birth(controller: Any, stop: threading.Event) -> None:
    """Waits until the controller's process runs. If its actor cannot be made, Ray gives it up
    without a restart, and this process ends, too. Later deaths of the controller are in its own
    log."""
    born = controller.pid.remote()
    while not stop.is_set():
        done, _ = ray.wait([born], timeout=BIRTH_POLL_S)
        if done:
            try:
                ray.get(born)
            except ray.exceptions.ActorUnavailableError:
                log.info("the controller died and is started again")
            except ray.exceptions.ActorDiedError as error:
                why = " ".join(str(error).split())[:500]
                sys.exit(f"the controller could not be launched: {why}")
            return


async def controller(plan_json: str, start: Start) -> None:
    if start.failure:
        log.error("the controller is given up: %s", start.failure)
        await asyncio.Event().wait()
    from controller.adapters import prometheus
    from controller.adapters.files.state_files import EventFile, HistoryFile
    from controller.adapters.http.cluster_view import ClusterLabels
    from controller.adapters.http.control_server import Access, ControlServer
    from controller.adapters.http.model_api import ModelApi
    from controller.api.wire.status import ClusterStatus

    plan = _plan(plan_json, start)
    table, host = plan.settings.control, bind_host(plan)
    events = EventFile(plan.state_dir, plan.nonce)
    mailboxes = [
        ZmqMailbox(host, key=ClusterKey(plan.members_key), listening=inbox_socket(each, host))
        for each in plan.by_model
    ]
    # Frontends run next to the controller, on the machine of `up`, because that machine has the
    # endpoint's address.
    frontends = ActorPlan(
        f"{__name__}:frontend",
        {
            "plan_json": plan.for_frontends().model_dump_json(),
            "controller_addresses": [each.address for each in mailboxes],
        },
        node_id=_ray_node_id(),
    )
    head, audit = _head_watch(), AuditLog(plan.state_dir)
    services: dict[str, ControllerProcess] = {}
    launchers: list[RayLauncher] = []
    histories: list[HistoryFile] = []
    apis: dict[str, ModelApi] = {}
    for of_model, mailbox in zip(plan.by_model, mailboxes, strict=True):
        name = of_model.settings.model_names[0]
        beside = next(iter(services.values()), None)
        names = [each.settings.model_names[0] for each in plan.by_model]
        service, settings = _controller_of(
            of_model, names, mailbox, frontends, head, events, launchers, beside
        )
        services[name] = service
        histories.append(HistoryFile(plan.state_dir, plan.nonce, model=of_model.number))
        labels = ClusterLabels(
            cluster=plan.settings.cluster.name,
            model=of_model.model_name,
            engine=plan.settings.cluster.engine,
            endpoint_url=endpoint_url(plan),
            started_at_s=plan.started_at_s,
        )
        apis[name] = ModelApi(
            service,
            labels,
            audit,
            settings,
            log_dir=Path(plan.log_dir),
            check_engine=partial(_check_engine, of_model),
            check_python=partial(_check_python, of_model),
            check_adapter=partial(_check_adapter, of_model),
            check_server=partial(_check_server, of_model),
            history=histories[-1],
            beside=next(iter(apis.values()), None),
        )
    for service in services.values():
        service.start(plan.num_frontends)
    if plan.models:
        histories.append(HistoryFile(plan.state_dir, plan.nonce))

    def metrics(statuses: Mapping[str, ClusterStatus]) -> bytes:
        found = {
            name: prometheus.ClusterMetrics(
                statuses[name], service.journal.counts, service.operator_moves.log
            )
            for name, service in services.items()
        }
        return prometheus.render(found)

    server = ControlServer(
        apis,
        Access(table.host, table.port, plan.control_token, plan.view_token),
        metrics=metrics,
        metrics_type=prometheus.CONTENT_TYPE,
        listening=control_socket(plan),
        history=histories[-1],
    )
    gc.freeze()  # else each full collection stops the loop for 40 ms to look at imported objects
    start.succeeded()
    try:
        await server.run_beside(_together(services.values()))
    finally:
        events.close()
        for each in histories:
            each.close()


async def _together(services: Iterable["ControllerProcess"]) -> None:
    async with asyncio.TaskGroup() as group:
        for each in services:
            group.create_task(each.run())


def _controller_of(
    plan: ClusterPlan,
    models: Sequence[str],
    mailbox: ZmqMailbox,
    frontends: ActorPlan,
    head: HeadWatch,
    events: "EventFile",
    launchers: list[RayLauncher],
    beside: "ControllerProcess | None",
) -> tuple["ControllerProcess", Settings]:
    """The controller of one model, and its present settings. `plan`: the model's. `models`: the
    names of all models. `launchers`: those of the models before, to which this model's is added.
    `beside`: the controller of the first model."""
    from controller.adapters.files.state_files import IncarnationFile, SpecFile
    from controller.adapters.http.live_settings import live_config
    from controller.api.settings.key_file import own_limits
    from controller.main.machine.capacity import available_bytes
    from controller.runtime.controller.cluster import ControllerProcess

    store = SpecFile(plan.state_dir, plan.nonce, plan.number)
    first_number = 0 if beside is None else beside.keeper.next_instance
    spec = store.load() or ClusterSpec.first(plan.num_instances, plan.adapters, first_number)
    keeper = SpecKeeper(spec, store, None if beside is None else beside.keeper)
    of_instances = {
        "plan_json": plan.for_instances().model_dump_json(),
        "controller_address": mailbox.address,
    }
    launcher = RayLauncher(
        plan.namespace,
        plan.log_dir,
        instance=ActorPlan(f"{__name__}:llumlet", of_instances, plan.num_gpus_per_instance),
        frontend=frontends,
        available_bytes=available_bytes,
        instance_memory=lambda: instance_memory(plan, keeper.spec.engine.args),
        head=head,
        python_of=partial(_python_of, plan, keeper),
        # An attached server's process only makes calls. It runs next to the controller, because its
        # key's file is there.
        attached=ActorPlan(f"{__name__}:llumlet", of_instances, node_id=_ray_node_id()),
        server_of=partial(_server_of, keeper),
        beside=launchers,
    )
    launchers.append(launcher)
    changes = changed_for_model(keeper.spec.settings, keeper.first.spec.settings)
    settings = changed(plan.settings, changes)
    service = ControllerProcess(
        mailbox,
        launcher,
        live_config(settings, models),
        keeper,
        events,
        own_limits(plan.api_keys),
        IncarnationFile(plan.state_dir, plan.nonce, plan.number),
        model=plan.settings.model_names[0] if plan.number else "",
        beside=beside,
        notice_s=plan.settings.evacuate.notice_s,
    )
    return service, settings


def _check_engine(
    plan: ClusterPlan, given: EngineArgs, before: EngineArgs, after: EngineArgs
) -> None:
    from controller.main.checks.engine_args import check_engine_change

    check_engine_change(plan, given, before, after)


def _check_python(plan: ClusterPlan, python: object) -> None:
    from controller.main.checks.environment import check_python

    check_python(python, plan.settings, runs_vllm=plan.profile is None)


def _check_adapter(plan: ClusterPlan, name: str, path: str) -> AdapterFacts:
    from controller.main.checks.adapters import check_adapter

    return check_adapter(name, path, plan.settings, plan.engine_args)


def _check_server(plan: ClusterPlan, asked: ServerAsked, max_model_len: int) -> AttachedServer:
    from controller.main.checks.attached_server import check_server

    return check_server(asked, max_model_len, plan.settings.model_names, plan.engine_args)


def _python_of(plan: ClusterPlan, keeper: SpecKeeper, instance_id: str) -> str:
    """The interpreter of an instance's next process; empty: that of the cluster."""
    if instance_id in keeper.spec.attached:
        return ""
    return keeper.spec.engine_of(instance_id).python or plan.python


def _server_of(keeper: SpecKeeper, instance_id: str) -> str:
    server = keeper.spec.attached.get(instance_id)
    return "" if server is None else msgspec.json.encode(server).decode()


def instance_memory(plan: ClusterPlan, changed: EngineArgs) -> tuple[int, str]:
    """How many bytes a further instance takes (0 if only the GPU's memory counts), and why its
    weights are not included. `changed`: engine arguments that replace the plan's."""
    if plan.profile is not None:
        from controller.main import emulation

        return emulation.INSTANCE_BYTES, ""
    if plan.num_gpus_per_instance:
        return 0, ""
    from controller.main.checks import preflight

    args = plan.engine_args | without_python(changed)
    memory = preflight.instance_memory(args, num_gpus=0, hub_timeout_s=None)
    return memory.num_bytes, memory.unknown


async def llumlet(
    member_id: str, plan_json: str, controller_address: str, start: Start, server: str = ""
) -> None:
    """`server`: the attached server on which the requests run, as JSON; empty: they run here."""
    plan = _plan(plan_json, start)
    if start.failure:
        await _stay_failed("instance", member_id, plan, controller_address, start.failure)
    from controller.adapters.files.adapter_files import AdapterCopies
    from controller.adapters.files.notice_file import NoticeFile
    from controller.runtime.instance.llumlet import Llumlet

    os.environ["OMP_NUM_THREADS"] = str(plan.num_threads_per_instance)
    python = os.environ.get(PYTHON_VARIABLE, "")
    attached = msgspec.json.decode(server, type=AttachedServer) if server else None
    mailbox = ZmqMailbox(bind_host(plan), key=ClusterKey(plan.members_key))

    def build_engine(report: Callable[[str], None]) -> Engine:
        """Makes the engine with the present arguments: a rolling restart may have changed them."""
        report(LAUNCHING)
        if attached is not None:
            if plan.attached_only:
                from controller.adapters.attached.forward_engine import ForwardEngine

                return ForwardEngine(attached, report)
            from controller.adapters.attached.attached_engine import AttachedEngine

            return AttachedEngine(attached, report)
        return engine_factory(plan, member.engine_change.result())(report)

    member = ControllerLink(
        "instance",
        member_id,
        mailbox,
        controller_address,
        _node(),
        num_live_reqs=lambda: service.num_live_reqs,
        on_active=start.succeeded,
        python="" if python == plan.python else python,
        machine=_ray_node_id(),
    )
    evacuate = plan.settings.evacuate
    service = Llumlet(
        member,
        mailbox,
        build_engine,
        plan.settings.scheduler.status_interval_s,
        _kv_transfer(plan, member, mailbox.address) if attached is None else _no_transfer(),
        AdapterCopies(plan.adapters_dir),
        NoticeFile(evacuate.notice_file, evacuate.notice_s) if evacuate.notice_file else None,
    )
    if start.notice is not None:
        loop, must_go = asyncio.get_running_loop(), partial(service.must_go, evacuate.notice_s)
        start.notice.listen(lambda: _threadsafe(loop, must_go))
    await service.run()


def _threadsafe(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Makes the call on the loop's thread. It is used by a signal's handler, which must return at
    once."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends anyway
        loop.call_soon_threadsafe(call)


def engine_factory(plan: ClusterPlan, change: EngineChange) -> EngineFactory:
    if plan.profile is not None:
        from controller.adapters.emulated.emulated_engine import EmulatedEngine
        from controller.main.emulation import model_config, with_changes

        profile, table = with_changes(plan.profile, plan.settings.emulated, change.engine_args)
        config = model_config(profile, table, plan.settings.cluster.host_cache_gib)
        return partial(EmulatedEngine, profile, config, table.speed)
    from controller.adapters.vllm.engine import VllmEngine

    return partial(
        VllmEngine,
        plan.engine_args | dict(change.engine_args),
        host_cache_bytes=int(plan.settings.cluster.host_cache_gib * 2**30),
    )


def _no_transfer() -> KvTransfer:
    from controller.adapters.attached.attached_moves import NoTransfer

    return NoTransfer()


def _kv_transfer(plan: ClusterPlan, member: ControllerLink, address: str) -> KvTransfer:
    def me() -> InstanceRef:
        return InstanceRef(member.member_id, member.incarnation, address)

    if plan.profile is not None:
        from controller.adapters.emulated.emulated_kv import EmulatedKvTransfer

        return EmulatedKvTransfer(plan.profile, plan.settings.emulated.speed)
    from controller.adapters.tcp.transfer import TcpKvTransfer

    return TcpKvTransfer(me, bind_host(plan))


async def frontend(
    member_id: str, plan_json: str, controller_addresses: list[str], start: Start
) -> None:
    plan = _plan(plan_json, start)
    if start.failure:
        stays = (
            _stay_failed("frontend", member_id, plan, address, start.failure)
            for address in controller_addresses
        )
        await asyncio.gather(*stays)
    if plan.num_frontends > 1:  # before anything imports prometheus_client
        from controller.adapters.vllm.process_setup import share_metrics

        share_metrics(Path(plan.temp_dir) / f"metrics-{plan.nonce}")
    from controller.adapters.listener import SharedListener
    from controller.adapters.prometheus import RequestMetrics
    from controller.adapters.vllm.endpoint.frontend import (
        ForwardedModel,
        FrontendConfig,
        HostedModel,
        ModelConfig,
        OpenAIFrontend,
        ServedModel,
    )
    from controller.adapters.vllm.endpoint.gate import GateLimits

    table = plan.settings.endpoint
    config = FrontendConfig(
        options=frontend_options(table),
        level_names={level.rank: level.name for level in plan.settings.priority},
        host=table.host,
        port=table.port,
        api_keys=plan.api_keys,
        hosts=(table.host, *table.allowed_hosts),
        limits=GateLimits(table.max_body_bytes, table.max_live_requests, table.request_timeout_s),
        receipts=table.receipt_headers,
        batches=_batch_files(plan),
    )
    levels = [level.name for level in plan.settings.priority]
    names = [each.settings.model_names[0] for each in plan.by_model] if plan.models else []
    metrics = RequestMetrics([*levels, BACKGROUND.name], models=names)

    def served(of_model: ClusterPlan, controller_address: str) -> ServedModel:
        mailbox = ZmqMailbox(bind_host(plan), key=ClusterKey(plan.members_key))
        model: ServedModel
        member = ControllerLink(
            "frontend",
            member_id,
            mailbox,
            controller_address,
            _node(),
            num_live_reqs=lambda: model.router.num_live_reqs,
            served_lately=lambda: model.served_lately(),
            on_active=start.succeeded,
            machine=_ray_node_id(),
        )
        name, is_one = of_model.settings.model_names[0], bool(of_model.number)
        own = metrics.of(name) if is_one else metrics
        if of_model.attached_only:
            model = ForwardedModel(config, name, member, mailbox, own, is_one_of_several=is_one)
            return model
        about = ModelConfig(
            name,
            of_model.engine_args,
            of_model.num_instances,
            expects_grammars=of_model.profile is None,
            is_one_of_several=is_one,
        )
        model = HostedModel(config, about, member, mailbox, own)
        return model

    models = [
        served(of_model, address)
        for of_model, address in zip(plan.by_model, controller_addresses, strict=True)
    ]
    listener = SharedListener(plan.listener_dir, member_id)
    await OpenAIFrontend(config, models, listener, _traces(plan, member_id)).run()


def _traces(plan: ClusterPlan, frontend_id: str) -> Traces | None:
    if (url := plan.settings.endpoint.otlp_traces_endpoint) is None:
        return None
    # On somebody else's Ray this process has the environment of that Ray.
    os.environ.update(plan.telemetry)
    from controller.adapters.otel import OtelTraces

    resource = {
        "service.name": "llumctl",
        "service.version": metadata.version("llumctl"),
        "service.instance.id": frontend_id,
        "llumctl.cluster": plan.settings.cluster.name,
    }
    return OtelTraces(url, resource)


def _batch_files(plan: ClusterPlan) -> BatchFiles | None:
    num_gib = plan.settings.endpoint.batch_files_gib
    return BatchFiles(plan.state_dir, int(num_gib * 2**30)) if num_gib else None


def _plan(plan_json: str, start: Start) -> ClusterPlan:
    """The plan. Raises LlumctlError if another version of llumctl made it. A member that is given
    up reads the plan in any case, because it only reports why."""
    if not start.failure:
        refuse_other_version(plan_json)
    return ClusterPlan.model_validate_json(plan_json)


async def _stay_failed(
    kind: MemberKind, member_id: str, plan: ClusterPlan, controller_address: str, why: str
) -> None:
    """Reports the failure and then waits for ever. It imports none of the role's own modules."""
    mailbox = ZmqMailbox(bind_host(plan), key=ClusterKey(plan.members_key))
    member = ControllerLink(kind, member_id, mailbox, controller_address, _node(), lambda: 0)
    await member.stay_failed(why)


def bind_host(plan: ClusterPlan) -> str:
    """The address in `cluster.host`. For `auto` it is the address by which Ray knows this
    machine."""
    host = plan.settings.cluster.host
    if host != "auto":
        ipaddress.ip_address(host)
        return host
    return _node()


def _head_watch() -> HeadWatch:
    address = str(ray.get_runtime_context().gcs_address)
    watch = HeadWatch(address, draining=draining_nodes(address))
    watch.start()
    return watch


def _ray_node_id() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _node() -> str:
    return str(ray.util.get_node_ip_address())


if __name__ == "__main__":
    head(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
