"""Why an order about instances is refused."""

import pytest

from controller.core.emptying.claims import Drain, Remove
from controller.core.fleet.cluster_spec import (
    ClusterSpec,
    Mark,
    OrderRefusal,
    emptying_refusal,
    mark_refusal,
    none_would_serve,
    restart_refusal,
    undrain_refusal,
)
from controller.core.load.closed import Closed

SPEC = ClusterSpec.first(3)
DRAINED = SPEC.with_claims({"i-1": Drain("d", 0.0)})
ALL = {"i-0", "i-1", "i-2"}
LAST = OrderRefusal.LAST_INSTANCE


def test_one_must_be_left_that_takes_requests() -> None:
    assert not none_would_serve(SPEC, ["i-0", "i-1"], ALL)
    assert none_would_serve(SPEC, ["i-0", "i-1", "i-2"], ALL)
    assert none_would_serve(SPEC, ["i-0", "i-1"], ALL - {"i-2"})
    assert none_would_serve(DRAINED, ["i-0", "i-2"], ALL), "one that drains is no other"
    assert none_would_serve(SPEC, [], ())


def test_a_drain_that_goes_on_may_be_ordered_again_whoever_serves() -> None:
    assert emptying_refusal(SPEC, ["i-0"], {"i-0"}, force=False) is LAST
    assert emptying_refusal(SPEC, ["i-0"], {"i-0"}, force=True) is None
    assert emptying_refusal(DRAINED, ["i-1"], (), force=False) is None
    assert emptying_refusal(DRAINED, ["i-1", "i-0"], {"i-0"}, force=False) is LAST


def test_a_cordon_that_stands_may_be_ordered_again() -> None:
    assert mark_refusal(SPEC, Closed.CORDONED, ["i-0"], {"i-0"}, force=False) is LAST
    assert mark_refusal(SPEC, Closed.CORDONED, ["i-0"], {"i-0"}, force=True) is None
    cordoned = SPEC.with_mark(Closed.CORDONED, "i-0", Mark("c", 0.0))
    assert mark_refusal(cordoned, Closed.CORDONED, ["i-0"], (), force=False) is None
    assert mark_refusal(cordoned, Closed.CORDONED, ["i-0", "i-1"], {"i-1"}, force=False) is LAST
    assert mark_refusal(SPEC, Closed.CORDONED, ["i-0", "i-1", "i-2"], ALL, force=False) is LAST


@pytest.mark.parametrize(
    ("spec", "started", "serving", "force", "refusal"),
    [
        (SPEC, True, True, False, LAST),
        (SPEC, True, True, True, None),
        (SPEC, True, False, False, None),
        (SPEC, False, False, True, OrderRefusal.NOT_STARTED),
        (SPEC.with_claims({"i-0": Drain("d", 0.0)}), True, True, False, None),
        (SPEC.with_claims({"i-0": Remove("d", 0.0)}), True, True, True, OrderRefusal.LEAVING),
    ],
)
def test_restarts(spec, started, serving, force, refusal) -> None:
    facts = {"started": started, "serving": serving, "force": force}
    assert restart_refusal(spec, "i-0", {"i-0"}, **facts) is refusal


def test_only_what_drains_is_undrained() -> None:
    assert undrain_refusal(DRAINED, "i-1") is None
    assert undrain_refusal(DRAINED, "i-0") is OrderRefusal.NOT_DRAINING
