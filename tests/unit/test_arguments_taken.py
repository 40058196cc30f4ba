"""When `up --detach` returns: not before vLLM has seen the arguments."""

import pytest

from controller.api.wire.status import InstanceState
from controller.main.up import are_taken
from controller.runtime.messages.members import IMPORTING, LAUNCHING
from tests.unit.cli_support import cluster
from tools.synthetic_cluster import instance

STARTING, ACTIVE = InstanceState.STARTING, InstanceState.ACTIVE


STARTED = [(STARTING, "loading the model")]
WAITS = (STARTING, "waiting for an instance")


@pytest.mark.parametrize(
    ("instances", "frontend", "taken"),
    [
        ([(STARTING, LAUNCHING)], (STARTING, LAUNCHING), False),
        ([(STARTING, IMPORTING)], WAITS, False),
        (STARTED, (STARTING, IMPORTING), False),
        (STARTED, WAITS, True),
        ([(STARTING, IMPORTING), *STARTED], WAITS, True),
        ([(ACTIVE, "")], (ACTIVE, ""), True),
        ([(InstanceState.FAILED, "TypeError")], (ACTIVE, ""), False),
        ([(InstanceState.RESTARTING, "")], (ACTIVE, ""), False),
    ],
)
def test_one_instance_and_one_frontend_have_built_their_configuration(
    instances: list[tuple[InstanceState, str]], frontend: tuple[InstanceState, str], taken: bool
) -> None:
    state, detail = frontend
    found = cluster(
        *(instance(f"i-{n}", *each[:1], detail=each[1]) for n, each in enumerate(instances))
    )
    told = found.frontends[0].model_copy(update={"state": state, "detail": detail})
    assert are_taken(found.model_copy(update={"frontends": (told,)})) is taken
