"""The last rolling restart, and the engine arguments that one has changed, as the control API shows
them."""

from controller.api.wire.rolling_models import (
    EngineChangeStatus,
    RestartedInstance,
    RestartTurn,
    RollingReport,
)
from controller.runtime.controller.cluster import ControllerProcess


def rolling_report(controller: ControllerProcess) -> RollingReport:
    order, revision = controller.rolling.order, controller.keeper.spec.revision
    if order is None:
        return RollingReport(revision=revision)
    return RollingReport(
        rolling_id=order.order_id,
        state=order.state,
        why=order.why,
        failed_id=order.failed_id,
        waits=controller.rolling.waits if order.goes else "",
        left=order.left,
        under_way=tuple(
            _turn(controller, each.instance_id, each.began_s) for each in order.under_way
        ),
        done=tuple(
            RestartedInstance(instance_id=each, took_s=took_s)
            for each, took_s in order.done.items()
        ),
        at_once=order.at_once,
        deadline_s=order.deadline_s,
        start_timeout_s=order.start_timeout_s,
        began_s=order.began_s,
        ended_s=order.ended_s,
        actor=order.actor,
        reason=order.reason,
        engine_args=dict(order.engine.args),
        dismissed=order.dismissed,
        revision=revision,
    )


def _turn(controller: ControllerProcess, instance_id: str, began_s: float) -> RestartTurn:
    progress = controller.drains.progress(instance_id)
    return RestartTurn(
        instance_id=instance_id,
        began_s=began_s,
        state=progress.state.value,
        num_requests_left=progress.num_left,
        num_moved=progress.num_moved,
    )


def engine_changes(controller: ControllerProcess) -> tuple[EngineChangeStatus, ...]:
    """Empty while every instance has the arguments of the cluster's start; else the cluster's own
    first, which new instances get."""
    spec = controller.keeper.spec
    known = {spec.engine.generation: spec.engine}
    known |= {each.generation: each for each in spec.engines.values()}
    if len(known) == 1 and not spec.engine.args:
        return ()
    return tuple(
        EngineChangeStatus(
            generation=each.generation,
            args=dict(each.args),
            instances=tuple(i for i in spec.instance_ids if spec.engine_of(i) == each),
            is_clusters=each == spec.engine,
        )
        for each in known.values()
    )
