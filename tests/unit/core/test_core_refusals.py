"""The one check whether a request may leave its instance now, and its use for many requests."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from controller.core.emptying.relieving import known
from controller.core.migration.move_table import MoveTable
from controller.core.migration.ownership import FIRST_EPOCH
from controller.core.migration.refusals import (
    MOVABLE,
    MoveFacts,
    MoveRefusal,
    refusal_between,
    refusal_of,
)
from controller.core.migration.source import SourceMove
from tests.unit.rescheduling.relief_builders import running

MULTIMODAL = MoveFacts(never=MoveRefusal.MULTIMODAL)
IN_PREFILL, LEAVING = MoveFacts(in_prefill=True), MoveFacts(leaving=True)


class Away:
    epoch = FIRST_EPOCH

    def __init__(self, request_id: str) -> None:
        self.request_id, self.migration_id = request_id, f"m-{request_id}"
        self.machine = SourceMove(0, 0.0)

    def tick(self) -> None: ...


def table(*request_ids: str, leaving: str = "", max_moves: int = 4) -> MoveTable[Any, Any]:
    moves = MoveTable[Any, Any](set(request_ids), max_moves)
    for request_id in leaving:
        moves.leave(request_id, partial(Away, request_id))
    return moves


@pytest.mark.parametrize(
    ("facts", "moving", "has_place", "refusal"),
    [
        (None, True, False, MoveRefusal.UNKNOWN),
        (MOVABLE, False, True, None),
        (MOVABLE, False, False, MoveRefusal.TOO_MANY_MOVES),
        (MOVABLE, True, False, MoveRefusal.MOVING),
        (LEAVING, False, True, MoveRefusal.MOVING),
        (IN_PREFILL, False, False, MoveRefusal.IN_PREFILL),
        (MULTIMODAL, False, False, MoveRefusal.MULTIMODAL),
        (replace(MULTIMODAL, in_prefill=True), False, True, MoveRefusal.MULTIMODAL),
    ],
)
def test_what_keeps_a_request(facts, moving, has_place, refusal) -> None:
    assert refusal_of(facts, moving=moving, has_place=has_place) is refusal


def test_a_table_says_of_many_what_it_says_of_each() -> None:
    moves = table(*"abcd", leaving="a", max_moves=1)
    facts = {"a": MOVABLE, "b": MULTIMODAL, "c": MOVABLE, "d": None, "gone": MOVABLE}
    found = {"a": "moving", "b": "multimodal", "d": "unknown", "gone": "unknown"}
    assert moves.refusals(facts) == found
    for request_id, of_engine in facts.items():
        assert moves.refusal(request_id, of_engine, waits=True) == found.get(request_id)
    assert moves.refusal("c") is MoveRefusal.TOO_MANY_MOVES
    assert moves.leave("c", lambda: Away("c")) is MoveRefusal.TOO_MANY_MOVES


def test_what_is_known_of_candidates() -> None:
    plain, often = running("plain", 1), running("often", 2)
    seen = [
        plain,
        often,
        running("a", 3),
        replace(running("b", 4), facts=MULTIMODAL),
        replace(running("c", 5), facts=LEAVING),
        running("gone", 6),
    ]
    past = {"often": (("i-1", 2.0),)}
    moves = table("plain", "often", *"abc", leaving="a")
    found = {each.request_id: each for each in known(seen, moves, lambda r: past.get(r, ()))}
    assert found["plain"] is plain
    assert found["often"] == replace(often, moves=past["often"])
    assert (found["b"].refusal, found["b"].outgoing) == ("multimodal", False)
    assert found["a"].outgoing, "by the table"
    assert found["c"].outgoing, "by the engine"
    assert found["gone"].outgoing, "the snapshot counts it, as if it left"


# -- two engines -------------------------------------------------------------------------

ENGINE = "runner=v1 layout=a weights=b files=c ranks=1 vllm=0.32.0"


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({}, None),
        ({"files=c": "files=hub"}, None),
        ({"runner=v1": "runner=v2"}, MoveRefusal.MODEL_RUNNER),
        ({"runner=v1": "runner=v2", "layout=a": "layout=z"}, MoveRefusal.MODEL_RUNNER),
        ({"layout=a": "layout=z"}, MoveRefusal.FINGERPRINT),
        ({"weights=b": "weights=z"}, MoveRefusal.FINGERPRINT),
        ({"weights=b": "weights=z", "ranks=1": "ranks=2"}, MoveRefusal.RANKS),
        (
            {"weights=b": "weights=z", "files=c": "files=z", "ranks=1": "ranks=2"},
            MoveRefusal.FINGERPRINT,
        ),
        ({"vllm=0.32.0": "vllm=0.33.0"}, MoveRefusal.VLLM_VERSION),
        ({" vllm=0.32.0": ""}, MoveRefusal.VLLM_VERSION),
        ({ENGINE: "emulated"}, MoveRefusal.MODEL_RUNNER),
        ({ENGINE: ""}, MoveRefusal.FINGERPRINT),
        ({" vllm=0.32.0": " vllm=0.33.0 more=x"}, MoveRefusal.FINGERPRINT),
    ],
)
def test_which_difference_between_two_engines_counts(
    changed: dict[str, str], refusal: MoveRefusal | None
) -> None:
    other = ENGINE
    for old, new in changed.items():
        other = other.replace(old, new)
    assert refusal_between(ENGINE, other) is refusal
    assert refusal_between(other, ENGINE) is refusal
    by_rounding = refusal in (MoveRefusal.RANKS, MoveRefusal.VLLM_VERSION)
    allowed = refusal_between(ENGINE, other, allow_inexact=True)
    assert allowed is (None if by_rounding else refusal)
