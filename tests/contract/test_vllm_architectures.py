"""Tiny models of other architectures than the built-in one: 60 moves of requests of each, and the
same prompts again afterwards."""

import json
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

import pytest
from conftest import ON_GPU

from tests.contract.architectures import ARCHITECTURES, OUTCOMES, Outcome

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(ON_GPU, reason="the sizes of these models suit kernels for CPUs"),
]
ALWAYS = ("sliding window and full attention", "Mamba2 beside attention")
KINDS = [
    pytest.param(name, marks=() if name in ALWAYS else pytest.mark.full) for name in ARCHITECTURES
]


@pytest.fixture(scope="module")
def outcome_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Tries all kinds that this run wants, in one process."""
    wanted = {
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    }
    folder = tmp_path_factory.mktemp("models")

    @cache
    def outcomes() -> dict[str, Outcome]:
        return tried([name for name in ARCHITECTURES if name in wanted], folder)

    return lambda name: outcomes()[name]


def tried(names: Collection[str], folder: Path) -> dict[str, Outcome]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.architectures", folder, *names],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (folder / OUTCOMES).read_text().splitlines()
    return {found.name: found for found in (Outcome(**json.loads(line)) for line in lines)}


@pytest.mark.parametrize("name", KINDS)
def test_the_reader_cannot_tell(outcome_of, name: str) -> None:
    found = outcome_of(name)
    assert found.refusal is None
    assert found.different == []
    assert found.num_moves == 60
    assert found.num_tokens > 100, "answers that would show a difference"
    assert found.tail_shows
    assert found.blocks_balanced
    assert found.demands == {}
    has_states = "Mamba" in name or "Delta" in name
    assert found.continued is has_states, "what an eviction means for its tokens"
