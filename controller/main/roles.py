"""What runs inside each actor: the composition of shells, ports and adapters.

A role imports the heavy libraries that it needs: the controller never loads vLLM, an llumlet never
loads the OpenAI app.
"""

import asyncio
import contextlib
import gc
import ipaddress
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from controller.adapters.ray.head_watch import HeadWatch
from controller.adapters.ray.ray_starts import Start
from controller.adapters.zmq.inbox_access import ClusterKey
from controller.adapters.zmq.zmq_mailbox import ZmqMailbox
from controller.api.settings.endpoint_options import frontend_options
from controller.api.settings.live_settings import changed
from controller.api.state.audit import AuditLog
from controller.core.instance_ref import InstanceRef
from controller.core.operations.cluster_spec import ClusterSpec, EngineChange
from controller.main.machine.controller_ports import control_socket, inbox_socket
from controller.main.plan import ClusterPlan, endpoint_url
from controller.ports.engine import Engine, EngineFactory
from controller.ports.kv_transfer import KvTransfer
from controller.runtime.controller_link import ControllerLink
from controller.runtime.messages.members import LAUNCHING, MemberKind

log = logging.getLogger(__name__)

EngineArgs = Mapping[str, Any]


async def controller(plan_json: str, start: Start) -> None:
    if start.failure:
        log.error("the controller is given up: %s", start.failure)
        await asyncio.Event().wait()
    from controller.adapters.files.event_file import EventFile
    from controller.adapters.files.state_files import IncarnationFile, SpecFile
    from controller.adapters.http.cluster_view import ClusterLabels
    from controller.adapters.http.control_server import Access, ControlServer
    from controller.adapters.http.live_settings import live_config
    from controller.adapters.prometheus import cluster_metrics as metrics
    from controller.adapters.ray.ray_launcher import ActorPlan, RayLauncher
    from controller.api.settings.key_file import own_limits
    from controller.main.machine.capacity import available_bytes
    from controller.runtime.controller.cluster import ControllerProcess
    from controller.runtime.controller.operations.operated_cluster import SpecKeeper

    plan = ClusterPlan.model_validate_json(plan_json)
    store = SpecFile(plan.state_dir, plan.nonce)
    keeper = SpecKeeper(store.load() or ClusterSpec.first(plan.num_instances), store)
    host = bind_host(plan)
    inbox = inbox_socket(plan, host)
    mailbox = ZmqMailbox(host, key=ClusterKey(plan.members_key), listening=inbox)
    for_instances = {"plan_json": plan.for_instances().model_dump_json()}
    for_frontends = {"plan_json": plan.for_frontends().model_dump_json()}
    address = {"controller_address": mailbox.address}
    launcher = RayLauncher(
        plan.namespace,
        plan.log_dir,
        instance=ActorPlan(
            f"{__name__}:llumlet",
            for_instances | address,
            plan.num_gpus_per_instance,
        ),
        # Frontends run beside the controller, on the machine of `up`, which has the endpoint's
        # address.
        frontend=ActorPlan(f"{__name__}:frontend", for_frontends | address, node_id=_ray_node_id()),
        available_bytes=available_bytes,
        instance_memory=lambda: instance_memory(plan, keeper.spec.engine.args),
        head=_head_watch(),
    )
    table = plan.settings.control
    settings = changed(plan.settings, keeper.spec.settings)
    events = EventFile(plan.state_dir, plan.nonce)
    service = ControllerProcess(
        mailbox,
        launcher,
        live_config(settings),
        keeper,
        events,
        own_limits(plan.api_keys),
        IncarnationFile(plan.state_dir, plan.nonce),
    )
    service.start(plan.num_frontends)
    labels = ClusterLabels(
        cluster=plan.settings.cluster.name,
        model=plan.model_name,
        engine=plan.settings.cluster.engine,
        endpoint_url=endpoint_url(plan),
        started_at_s=plan.started_at_s,
    )
    server = ControlServer(
        service,
        labels,
        Access(table.host, table.port, plan.control_token, plan.view_token),
        AuditLog(plan.state_dir),
        settings,
        metrics=lambda status: metrics.render(
            status, service.journal.counts, service.operator_moves.log
        ),
        metrics_type=metrics.CONTENT_TYPE,
        log_dir=Path(plan.log_dir),
        listening=control_socket(plan),
        check_engine=partial(_check_engine, plan),
    )
    gc.freeze()  # or each full collection stops the loop for 40 ms to look at all imported objects
    start.succeeded()
    try:
        await server.run_beside(service.run())
    finally:
        events.close()


def _check_engine(
    plan: ClusterPlan, given: EngineArgs, before: EngineArgs, after: EngineArgs
) -> None:
    from controller.main.checks.engine_args import check_engine_change

    check_engine_change(plan, given, before, after)


def instance_memory(plan: ClusterPlan, changed: EngineArgs) -> tuple[int, str]:
    """Bytes that a further instance takes, 0 if only the GPU's memory counts; and why its weights
    are not in them. `changed`: engine arguments that are not those of the plan any more."""
    if plan.profile is not None:
        from controller.main import emulation

        return emulation.INSTANCE_BYTES, ""
    if plan.num_gpus_per_instance:
        return 0, ""
    from controller.main.checks import preflight

    args = plan.engine_args | dict(changed)
    memory = preflight.instance_memory(args, num_gpus=0, hub_timeout_s=None)
    return memory.num_bytes, memory.unknown


async def llumlet(member_id: str, plan_json: str, controller_address: str, start: Start) -> None:
    plan = ClusterPlan.model_validate_json(plan_json)
    if start.failure:
        await _stay_failed("instance", member_id, plan, controller_address, start.failure)
    from controller.runtime.instance.llumlet import Llumlet

    os.environ["OMP_NUM_THREADS"] = str(plan.num_threads_per_instance)
    mailbox = ZmqMailbox(bind_host(plan), key=ClusterKey(plan.members_key))

    def build_engine(report: Callable[[str], None]) -> Engine:
        """The arguments are those of the moment: a rolling restart may have changed them."""
        report(LAUNCHING)
        return _engine_factory(plan, member.engine_change.result())(report)

    member = ControllerLink(
        "instance",
        member_id,
        mailbox,
        controller_address,
        _node(),
        num_live_reqs=lambda: service.num_live_reqs,
        on_active=start.succeeded,
    )
    service = Llumlet(
        member,
        mailbox,
        build_engine,
        plan.settings.scheduler.status_interval_s,
        _kv_transfer(plan, member, mailbox.address),
    )
    if start.notice is not None:
        loop, notice_s = asyncio.get_running_loop(), plan.settings.evacuate.notice_s
        start.notice.listen(lambda: _threadsafe(loop, partial(service.must_go, notice_s)))
    await service.run()


def _threadsafe(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """From a signal's handler on the main thread, which must return at once."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends anyway
        loop.call_soon_threadsafe(call)


def _engine_factory(plan: ClusterPlan, change: EngineChange) -> EngineFactory:
    if plan.profile is not None:
        from controller.adapters.emulated.emulated_engine import EmulatedEngine
        from controller.main.emulation import model_config, with_changes

        profile, table = with_changes(plan.profile, plan.settings.emulated, change.args)
        return partial(EmulatedEngine, profile, model_config(profile, table), table.speed)
    from controller.adapters.vllm.engine import VllmEngine

    return partial(VllmEngine, plan.engine_args | dict(change.args))


def _kv_transfer(plan: ClusterPlan, member: ControllerLink, address: str) -> KvTransfer:
    def me() -> InstanceRef:
        return InstanceRef(member.member_id, member.incarnation, address)

    if plan.profile is not None:
        from controller.adapters.emulated.emulated_transfer import EmulatedKvTransfer

        return EmulatedKvTransfer(plan.profile, plan.settings.emulated.speed)
    from controller.adapters.tcp.transfer import TcpKvTransfer

    return TcpKvTransfer(me, bind_host(plan))


async def frontend(member_id: str, plan_json: str, controller_address: str, start: Start) -> None:
    plan = ClusterPlan.model_validate_json(plan_json)
    if start.failure:
        await _stay_failed("frontend", member_id, plan, controller_address, start.failure)
    if plan.num_frontends > 1:  # before anything imports prometheus_client
        from controller.adapters.prometheus import share

        share(Path(plan.temp_dir) / f"metrics-{plan.nonce}")
    from controller.adapters.listener import SharedListener
    from controller.adapters.prometheus.request_metrics import RequestMetrics
    from controller.adapters.vllm.endpoint.frontend import FrontendConfig, OpenAIFrontend
    from controller.adapters.vllm.endpoint.gate import GateLimits

    mailbox = ZmqMailbox(bind_host(plan), key=ClusterKey(plan.members_key))
    member = ControllerLink(
        "frontend",
        member_id,
        mailbox,
        controller_address,
        _node(),
        num_live_reqs=lambda: service.router.num_live_reqs,
        served_lately=lambda: service.book.served_lately(),
        on_active=start.succeeded,
    )
    table = plan.settings.endpoint
    config = FrontendConfig(
        engine_args=plan.engine_args,
        options=frontend_options(table),
        level_names={level.rank: level.name for level in plan.settings.priority},
        num_instances=plan.num_instances,
        host=table.host,
        port=table.port,
        api_keys=plan.api_keys,
        hosts=(table.host, *table.allowed_hosts),
        limits=GateLimits(table.max_body_bytes, table.max_live_requests, table.request_timeout_s),
        expects_grammars=plan.profile is None,
    )
    metrics = RequestMetrics(level.name for level in plan.settings.priority)
    listener = SharedListener(plan.listener_dir, member_id)
    service = OpenAIFrontend(config, member, mailbox, listener, metrics)
    await service.run()


async def _stay_failed(
    kind: MemberKind, member_id: str, plan: ClusterPlan, controller_address: str, why: str
) -> None:
    """Reports the failure and waits for ever; the role's own modules are not imported."""
    mailbox = ZmqMailbox(bind_host(plan), key=ClusterKey(plan.members_key))
    member = ControllerLink(kind, member_id, mailbox, controller_address, _node(), lambda: 0)
    await member.stay_failed(why)


def bind_host(plan: ClusterPlan) -> str:
    """The address of the setting; for `auto`, the one by which Ray knows this machine."""
    host = plan.settings.cluster.host
    if host != "auto":
        ipaddress.ip_address(host)
        return host
    import ray

    return str(ray.util.get_node_ip_address())


def _head_watch() -> HeadWatch:
    import ray

    watch = HeadWatch(str(ray.get_runtime_context().gcs_address))
    watch.start()
    return watch


def _ray_node_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _node() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
