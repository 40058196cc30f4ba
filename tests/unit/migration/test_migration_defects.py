"""Defects of an earlier public implementation, put back one by one: the checks of the simulation
must find each of them, and must find nothing without them.

    a COMMIT that timed out put the request back in the batch, while the destination had it
    a watchdog freed the blocks of a move, but not its slot
    bytes that did not come made the destination forget a move, but not free its blocks
    a queued request whose COMMIT failed was put back among the running ones

And of our own:

    an instance decoded to its end what no frontend read
    a request moved on before its source knew that it had arrived
"""

import re
from collections.abc import Callable
from typing import Any

import pytest

from controller.core.migration import destination, source
from controller.core.migration.destination import DestinationMove, DestinationState
from controller.core.migration.protocol import Rule, StageLost
from controller.core.migration.source import SourceMove, SourceState
from tools.fault_histories.simulated_engine import SimulatedEngine
from tools.fault_histories.simulated_instance import Instance
from tools.fault_histories.simulation import HistoryError, run_seed

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
    monkeypatch.setattr(Instance, "_moving_ids", Instance.leaving_ids)


DEFECTS: dict[str, tuple[PutBack, str, int]] = {
    "commit_timeout_resumes_at_once": (
        _resumes_without_asking,
        "tokens of two owners are mixed|has two owners",
        23,
    ),
    "lease_frees_blocks_and_no_slot": (
        _lease_frees_no_slot,
        "a move that is holding holds nothing, but takes a slot|KeyError",
        167,
    ),
    "lost_bytes_free_no_blocks": (
        _lost_bytes_free_nothing,
        "a move that is aborted holds reserved blocks|blocks are reserved for no move",
        17,
    ),
    "queued_one_resumes_into_the_batch": (
        _queued_resumes_into_the_batch,
        "runs without blocks",
        94,
    ),
    "unread_goes_on": (_unread_goes_on, "nobody reads it", 16),
    "moves_on_at_once": (
        _moves_on_at_once,
        "tokens of two owners are mixed|has two owners",
        328,
    ),
}
"""What puts it back, what is found, and the seed with which the search begins: the one that found
it last, as a search from 0 takes minutes. When the simulation has changed it may be another one."""


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_defect_is_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_back, what, first = DEFECTS[defect]
    with monkeypatch.context() as patch:
        put_back(patch)
        seed, why = _first_that_fails(first)
    assert re.search(what, why), why
    run_seed(seed)


def _first_that_fails(first: int) -> tuple[int, str]:
    for seed in range(first, first + MAX_SEEDS):
        try:
            run_seed(seed)
        except HistoryError as error:
            return seed, str(error)
    raise AssertionError(f"not found in {MAX_SEEDS} histories from {first} on")
