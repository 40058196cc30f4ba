"""What a simulated cluster leaves out to be fast changes no outcome."""

from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.holding.config import HoldingConfig
from controller.core.rescheduling.config import ReschedulingConfig
from controller.core.rescheduling.pairing import InstanceLoad
from controller.sim.cluster import SimCluster
from controller.sim.loads import Loads
from controller.sim.outcome import Outcome
from controller.sim.policies import SIM_POLICIES
from controller.sim.setup import ClusterSetup, Fault, SimPolicy
from tests.unit.sim.runs import SMALL, requests

ROWS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 500), st.integers(1, 300)),
    min_size=1,
    max_size=60,
).map(lambda rows: requests((at / 100, p, o) for at, p, o in sorted(rows)))
MOVES = ReschedulingConfig(guard=False, source_below_steps=40, destination_above_steps=60)
FAULTS = (
    Fault(1.5, "kill", "i-1"),
    Fault(2.0, "slow-steps", "i-2", 2.0),
    Fault(2.5, "drain", "i-0"),
)


def everything(outcome: Outcome) -> tuple[object, ...]:
    return (
        {name: bytes(column) for name, column in outcome.rows.columns.items()},
        outcome.sampled,
        outcome.num_failed_moves,
        outcome.downtimes_s,
        outcome.num_steps,
        outcome.duration_s,
    )


def every_load(loads: Loads, config: ReschedulingConfig, closed: object) -> list[InstanceLoad]:
    statuses = (each.status() for each in loads._instances.values() if each.alive)
    return [loads._load(status, config, closed) for status in statuses]  # type: ignore[arg-type]


def the_long_way(setup: ClusterSetup, trace: object) -> Outcome:
    """All instances report before each dispatch and in each round, which looks at all of them."""
    with (
        mock.patch.object(SimCluster, "_report_for", lambda cluster, _: cluster._report_all()),
        mock.patch.object(SimCluster, "_any_waiting", return_value=True),
        mock.patch.object(Loads, "in_pairs", every_load),
    ):
        return SimCluster(setup).run(trace)  # type: ignore[arg-type]


@settings(max_examples=40)
@given(trace=ROWS, late=st.booleans(), faults=st.sampled_from([(), FAULTS]))
def test_moves_and_late_binding_are_the_same_as_when_all_is_looked_at(trace, late, faults) -> None:
    holding = HoldingConfig(room_to_grow_tokens=32) if late else None
    setup = ClusterSetup(
        SMALL, SimPolicy("test", "llumnix", MOVES, holding=holding), 4, faults=faults
    )
    short = SimCluster(setup).run(trace)
    assert everything(short) == everything(the_long_way(setup, trace))


@given(trace=ROWS, name=st.sampled_from(sorted(SIM_POLICIES)))
def test_every_policy_dispatches_as_if_all_had_reported(trace, name) -> None:
    setup = ClusterSetup(SMALL, SIM_POLICIES[name], 4)
    assert everything(SimCluster(setup).run(trace)) == everything(the_long_way(setup, trace))
