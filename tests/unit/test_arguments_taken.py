"""When `up --detach` returns: not before vLLM has seen the arguments."""

from typing import Any

import pytest

from controller.api.wire.status import ClusterStatus, FrontendStatus, InstanceState
from controller.main.up import are_taken
from controller.runtime.messages.members import IMPORTING, LAUNCHING
from tests.unit.cli_support import cluster
from tools.synthetic_cluster import instance

STARTING, ACTIVE = InstanceState.STARTING, InstanceState.ACTIVE


def status(instances: list[tuple[Any, str]], frontend: tuple[Any, str]) -> ClusterStatus:
    found = [instance(f"i-{n}", each[0], detail=each[1]) for n, each in enumerate(instances)]
    state, detail = frontend
    told: FrontendStatus = (
        cluster().frontends[0].model_copy(update={"state": state, "detail": detail})
    )
    return cluster(*found).model_copy(update={"frontends": (told,)})


@pytest.mark.parametrize(
    ("instances", "frontend", "taken"),
    [
        ([(STARTING, LAUNCHING)], (STARTING, LAUNCHING), False),
        ([(STARTING, IMPORTING)], (STARTING, "waiting for an instance"), False),
        ([(STARTING, "loading the model")], (STARTING, IMPORTING), False),
        ([(STARTING, "loading the model")], (STARTING, "waiting for an instance"), True),
        (
            [(STARTING, IMPORTING), (STARTING, "loading the model")],
            (STARTING, "waiting for an instance"),
            True,
        ),
        ([(ACTIVE, "")], (ACTIVE, ""), True),
        ([(InstanceState.FAILED, "TypeError")], (ACTIVE, ""), False),
        ([(InstanceState.RESTARTING, "")], (ACTIVE, ""), False),
    ],
)
def test_one_instance_and_one_frontend_have_built_their_configuration(
    instances: list[tuple[Any, str]], frontend: tuple[Any, str], taken: bool
) -> None:
    assert are_taken(status(instances, frontend)) is taken
