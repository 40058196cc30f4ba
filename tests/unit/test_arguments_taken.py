"""When `up --detach` returns: not before vLLM has seen the arguments."""

from controller.api.wire.status import InstanceState
from controller.main.up import are_taken
from controller.runtime.messages.members import IMPORTING, LAUNCHING
from tests.unit.cli_support import cluster
from tools.synthetic_cluster import instance

STARTING, ACTIVE = InstanceState.STARTING, InstanceState.ACTIVE


STARTED = [(STARTING, "loading the model")]
WAITS = (STARTING, "waiting for an instance")


def test_one_instance_and_one_frontend_have_built_their_configuration() -> None:
    frontend: tuple[InstanceState, str]
    for instances, frontend, taken in (
        ([(STARTING, LAUNCHING)], (STARTING, LAUNCHING), False),
        ([(STARTING, IMPORTING)], WAITS, False),
        (STARTED, (STARTING, IMPORTING), False),
        ([(STARTING, IMPORTING), *STARTED], WAITS, True),
        ([(ACTIVE, "")], (ACTIVE, ""), True),
        ([(InstanceState.FAILED, "TypeError")], (ACTIVE, ""), False),
    ):
        members = (instance(f"i-{n}", each[0], detail=each[1]) for n, each in enumerate(instances))
        found = cluster(*members)
        told = found.frontends[0].model_copy(update={"state": frontend[0], "detail": frontend[1]})
        assert are_taken(found.model_copy(update={"frontends": (told,)})) is taken
