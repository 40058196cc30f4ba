"""The guard of `conftest.py` holds."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("words", [("-m", "controller.main.roles"), ("-m", "vllm", "serve")])
def test_a_unit_test_that_starts_an_engine_fails(words: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match="a unit test started"):
        subprocess.Popen([sys.executable, *words])


def test_a_process_without_the_mark_fails() -> None:
    with pytest.raises(AssertionError, match="not marked `process`"):
        subprocess.Popen([sys.executable, "-c", ""])
