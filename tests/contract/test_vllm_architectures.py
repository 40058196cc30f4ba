"""Tiny models of other architectures than the built-in one: which of their requests move."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ON_GPU

from controller.core.migration.refusals import MoveRefusal
from tests.contract.architectures import ARCHITECTURES, MOVED_AT, OUTCOMES, SAMPLING, Outcome

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(ON_GPU, reason="the sizes of these models suit kernels for CPUs"),
]
STAY = {"sliding window", "sliding window and full attention"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("models")
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.architectures", folder],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (folder / OUTCOMES).read_text().splitlines()
    return {found.name: found for found in (Outcome(**json.loads(line)) for line in lines)}


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - STAY))
def test_the_reader_cannot_tell(outcomes: dict[str, Outcome], name: str) -> None:
    found = outcomes[name]
    assert found.refusal is None
    assert found.num_moves == len(SAMPLING) * len(MOVED_AT)
    assert found.as_unmoved
    assert found.num_different > 30, "answers that would show a difference"


@pytest.mark.parametrize("name", sorted(STAY))
def test_served_but_not_moved(outcomes: dict[str, Outcome], name: str) -> None:
    found = outcomes[name]
    assert found.refusal == MoveRefusal.KV_GROUPS
    assert found.as_unmoved, "the same request twice, with a prefix cache"
    assert found.num_different > 30
