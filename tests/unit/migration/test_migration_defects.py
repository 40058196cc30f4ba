"""What went wrong in an earlier public implementation, put back piece by piece: the checks of the
simulation must find each of them, and find nothing without them.

    a COMMIT that timed out put the request back in the batch, while the destination had it
    a watchdog freed the blocks of a move, but not its slot
    bytes that did not come made the destination forget a move, but not free its blocks
    a queued request whose COMMIT failed was put back among the running ones

And of our own:

    an instance decoded to its end what no frontend read
    a request moved on, to make room, before its source knew that it had arrived
"""

from collections.abc import Callable
from typing import Any

import pytest

from controller.core.migration import destination, source
from controller.core.migration.destination import DestinationMove, DestinationState
from controller.core.migration.protocol import Rule, StageLost
from controller.core.migration.source import SourceMove, SourceState
from tests.unit.migration.simulated_engine import SimulatedEngine
from tests.unit.migration.simulated_instance import Instance
from tests.unit.migration.simulation import HistoryError, run_seed

pytestmark = pytest.mark.long

MAX_SEEDS = 1000
PutBack = Callable[[pytest.MonkeyPatch], None]


def _with_rule(monkeypatch: pytest.MonkeyPatch, module: Any, pair: Any, rule: Rule[Any]) -> None:
    assert pair in module.TABLE
    monkeypatch.setattr(module, "TABLE", {**module.TABLE, pair: rule})


def _resumes_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = (SourceState.COMMITTING, source.TimedOut)
    rule = Rule((SourceState.RESUMED,), SourceMove._resume)
    _with_rule(monkeypatch, source, pair, rule)


def _lease_frees_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    def free(_move: DestinationMove, _event: object) -> destination.Instructions:
        return [destination.Free()]

    pair = (DestinationState.HOLDING, destination.LeaseExpired)
    _with_rule(monkeypatch, destination, pair, Rule((DestinationState.HOLDING,), free))


def _lost_bytes_free_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(move: DestinationMove, event: StageLost) -> destination.Instructions:
        did = DestinationMove._lost(move, event)
        return [each for each in did if not isinstance(each, destination.Free)]

    pair = (DestinationState.RECEIVING, StageLost)
    _with_rule(monkeypatch, destination, pair, Rule((DestinationState.ABORTED,), lost))


def _queued_resumes_into_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def resume(engine: SimulatedEngine, request_id: str) -> None:
        if request := engine.requests.get(request_id):
            request.place = "running"

    monkeypatch.setattr(SimulatedEngine, "resume", resume)


def _unread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Instance, "_unread", lambda *_said: None)


def _moves_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_moving(instance: Instance, request_id: str) -> bool:
        return instance.under_way(request_id) is not None

    monkeypatch.setattr(Instance, "_is_moving", is_moving)


DEFECTS: dict[str, tuple[PutBack, str]] = {
    "commit_timeout_resumes_at_once": (
        _resumes_without_asking,
        "tokens of two owners are mixed|has two owners",
    ),
    "lease_frees_blocks_and_no_slot": (
        _lease_frees_no_slot,
        "a move that is holding holds nothing, but takes a slot|KeyError",
    ),
    "lost_bytes_free_no_blocks": (
        _lost_bytes_free_nothing,
        "a move that is aborted holds reserved blocks|blocks are reserved for no move",
    ),
    "queued_one_resumes_into_the_batch": (
        _queued_resumes_into_the_batch,
        "runs without blocks",
    ),
    "unread_goes_on": (_unread_goes_on, "nobody reads it"),
    "moves_on_at_once": (_moves_on_at_once, "tokens of two owners are mixed|has two owners"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_defect_is_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_back, what = DEFECTS[defect]
    put_back(monkeypatch)
    seed = _first_that_fails()
    with pytest.raises(HistoryError, match=what):
        run_seed(seed)
    monkeypatch.undo()
    run_seed(seed)


def _first_that_fails() -> int:
    for seed in range(MAX_SEEDS):
        try:
            run_seed(seed)
        except HistoryError:
            return seed
    raise AssertionError(f"not found in {MAX_SEEDS} histories")
