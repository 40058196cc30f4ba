"""What operators read of an order about instances that is refused."""

from collections.abc import Sequence

from controller.core.bounds import MAX_INSTANCES
from controller.core.operations.order_checks import OrderRefusal


class OperationRefusedError(Exception):
    """The operation was not done, and nothing changed."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


def refuse_instances(
    refusal: OrderRefusal | None, instance_ids: Sequence[str], despite: str = "drain {} --force"
) -> None:
    """Raises OperationRefusedError if there is a refusal of an order about these instances.
    `despite`: the command that does it though it is about the last instance."""
    names, ids = ", ".join(instance_ids), " ".join(instance_ids)
    match refusal:
        case None:
            return
        case OrderRefusal.NOT_STARTED:
            message, hint = f"{names} has not started yet", "llumctl status"
        case OrderRefusal.LEAVING:
            message = f"{names} is to be removed once it is empty"
            hint = f"llumctl undrain {ids}"
        case OrderRefusal.NOT_DRAINING:
            message, hint = f"{names} is not being drained", "llumctl status"
        case _:
            message = f"without {names} no instance would serve"
            hint = f"llumctl scale +1      or      llumctl {despite.format(ids)}"
    raise OperationRefusedError(refusal.value, message, hint)


def scaling_refused(
    refusal: OrderRefusal, target: int, num_added: int = 0, no_room: str = ""
) -> OperationRefusedError:
    """`no_room`: why `num_added` more instances would not start, in words."""
    match refusal:
        case OrderRefusal.MIN_INSTANCES:
            message = f"{target} instances are wanted; a cluster has at least one"
            hint = "llumctl scale 1      or      llumctl down"
        case OrderRefusal.MAX_INSTANCES:
            message = f"{target} instances are wanted; {MAX_INSTANCES} are the most"
            hint = f"llumctl scale {MAX_INSTANCES}"
        case OrderRefusal.NO_ROOM:
            message = f"{num_added} more would not start: {no_room}"
            hint = f"llumctl status -o wide      or      llumctl scale +{num_added} --force"
        case _:
            message = "this plan cannot be carried out any more: other instances come or go by now"
            hint = "llumctl status      then      the same command again"
    return OperationRefusedError(refusal.value, message, hint)
